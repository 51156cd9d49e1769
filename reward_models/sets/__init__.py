"""Rewards that look at more than one output (diversity, distance to exemplars), at all frames, or at the rollout."""
