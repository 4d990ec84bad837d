"""Photographs for culling: groups, the best of each and why, a page, and the hand-over."""
