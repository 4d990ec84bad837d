"""The program as an HTTP service: what `python -m program.serve` starts."""
