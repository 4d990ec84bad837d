"""Many images at once: gathered, judged with resume, written as a table, summed up; and two compared."""
