"""Look at models in a browser; equivalent to 'mmgrpo demo', whose --help lists the options."""

from __future__ import annotations

from mmgrpo.cli.demo import main
from mmgrpo.cli.errors import enter

if __name__ == "__main__":
    enter(main)
