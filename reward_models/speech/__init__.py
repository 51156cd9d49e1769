"""Rewards of generated speech: recognizers, speaker encoders, predictors of opinion scores, and speaking rates."""
