"""What a language model is asked: typed DSPy signatures, one per step."""
