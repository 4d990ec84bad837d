"""Language models: built by name per role, with image references resolved at the wire."""
