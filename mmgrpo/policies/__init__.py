"""Policies: what makes T random decisions per sample and can score them again."""
