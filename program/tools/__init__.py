"""Image-quality tools: what is known of them, running them, their cached readings, and raw values as scores 1..5."""
