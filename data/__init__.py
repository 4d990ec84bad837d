"""Data with human judgements: the manifest, splits, distortions and the quickstart set."""
