"""Images: opened and checked once, kept by their content, decoded in bounded memory."""
