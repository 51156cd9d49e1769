"""Run a benchmark: the same as 'mmgrpo bench', whose --help explains it."""

from __future__ import annotations

from mmgrpo.cli.bench import main
from mmgrpo.cli.errors import enter

if __name__ == "__main__":
    enter(main)
