"""Entry points. Each file runs as ``python scripts/<name>.py``."""
