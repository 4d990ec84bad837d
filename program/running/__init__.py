"""A program over many requests: one loop with a journal, in threads or on Ray."""
