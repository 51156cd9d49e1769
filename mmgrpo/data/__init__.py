"""Data sets: prompts and their order, conversations, media and images."""
