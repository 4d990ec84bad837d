"""A folder of photographs for culling: groups, the best of each and why, a page to decide on, and the hand-over."""
