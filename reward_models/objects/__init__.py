"""Rewards that compare what an image shows with its prompt: a classifier with a sentence encoder, and detectors."""
