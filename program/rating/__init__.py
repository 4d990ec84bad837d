"""The rating page: pictures are shown without any score or name, and each answer is kept at once."""
