"""Images: opened and checked once, kept as content-addressed references, decoded in bounded memory."""
