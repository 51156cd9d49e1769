"""Run a benchmark; equivalent to 'mmgrpo bench', whose --help lists the options."""

from __future__ import annotations

from mmgrpo.cli.bench import main
from mmgrpo.cli.errors import enter

if __name__ == "__main__":
    enter(main)
