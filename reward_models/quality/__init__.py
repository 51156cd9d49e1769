"""Rewards that judge how an image looks, whatever it shows: their weights come from the package index."""
