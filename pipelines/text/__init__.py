"""Language models that need no media: files that they are read from."""
