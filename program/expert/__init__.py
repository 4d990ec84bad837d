"""The embedded expert: it measures pixels and answers the program's own signatures. Not a language model."""
