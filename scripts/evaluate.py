"""Evaluate a model; equivalent to 'mmgrpo evaluate', whose --help lists the options."""

from __future__ import annotations

from mmgrpo.cli.errors import enter
from mmgrpo.cli.evaluate import main

if __name__ == "__main__":
    enter(main)
