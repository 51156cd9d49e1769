"""Policies: models that make T stochastic decisions per sample and can score them again."""
