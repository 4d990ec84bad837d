"""Image-quality tools: what is known of them, running them, raw values as scores 1..5."""
