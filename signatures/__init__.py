"""What a language model is asked: typed DSPy signatures, one per step."""


def require_docstrings() -> None:
    """Raise RuntimeError where Python drops docstrings: a signature's is the instruction that a model is sent."""
    if __doc__ is None:
        fault = "drops the instructions that are sent to a model"
        raise RuntimeError(f"Python with -OO (PYTHONOPTIMIZE=2): {fault}; run it with -O or without")
