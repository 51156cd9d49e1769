"""Check a data set: the same as 'mmgrpo check-data', whose --help explains it."""

from __future__ import annotations

from mmgrpo.cli.check_data import main
from mmgrpo.cli.errors import enter

if __name__ == "__main__":
    enter(main)
