"""A program over many requests: one question, one answer, one loop with a journal, in threads or on Ray."""
