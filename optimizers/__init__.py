"""Optimizers: programs taught with human judgements, compared on images they have not seen."""
