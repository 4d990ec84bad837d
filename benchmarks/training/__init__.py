"""How the expert's arrays are fitted; judging an image needs nothing of it."""
