"""From beliefs to the answer that a signature asks for, in words."""
