"""Generate samples; equivalent to 'mmgrpo sample', whose --help lists the options."""

from __future__ import annotations

from mmgrpo.cli.errors import enter
from mmgrpo.cli.sample import main

if __name__ == "__main__":
    enter(main)
