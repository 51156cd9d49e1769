"""Draw samples: the same as 'mmgrpo sample', whose --help explains it."""

from __future__ import annotations

from mmgrpo.cli.errors import enter
from mmgrpo.cli.sample import main

if __name__ == "__main__":
    enter(main)
