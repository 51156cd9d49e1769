"""Data sets: prompts and their order, conversations, media, images, and the splits of a run."""
