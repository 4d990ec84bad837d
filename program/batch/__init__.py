"""Many images at once: gathered, judged with resume, written as a table; and two compared."""
