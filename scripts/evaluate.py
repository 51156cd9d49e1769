"""Measure a model: the same as 'mmgrpo evaluate', whose --help explains it."""

from __future__ import annotations

from mmgrpo.cli.errors import enter
from mmgrpo.cli.evaluate import main

if __name__ == "__main__":
    enter(main)
