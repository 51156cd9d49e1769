"""Check a data set; equivalent to 'mmgrpo check-data', whose --help lists the options."""

from __future__ import annotations

from mmgrpo.cli.check_data import main
from mmgrpo.cli.errors import enter

if __name__ == "__main__":
    enter(main)
