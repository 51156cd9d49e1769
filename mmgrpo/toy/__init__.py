"""Synthetic tasks with exact answers: scenes to draw, and questions about images and clips."""
