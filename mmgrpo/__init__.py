"""Group-relative reinforcement learning for models that see, draw, film, hear and speak."""
