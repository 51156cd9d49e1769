"""The entry of ``python -m benchmarks``."""

from __future__ import annotations

from benchmarks import main
from mmgrpo.cli.errors import enter

if __name__ == "__main__":
    enter(main)
