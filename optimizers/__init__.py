"""Optimizers: programs compiled with human judgements, compared on images they have not seen."""
