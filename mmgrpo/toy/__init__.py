"""The embedded worlds with exact answers: scenes to draw, questions about pictures and clips."""
