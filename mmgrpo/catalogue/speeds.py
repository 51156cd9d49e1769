"""Speeds of training that others have published: the records of speeds.yaml, which says what the fields are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from mmgrpo.config.records import records

__all__ = ["Speed", "speeds"]


@dataclass(frozen=True)
class Speed:
    """What a source reports of one run."""

    by: str
    cards: str
    count: int
    source: str
    seconds: float | None = None
    samples: int | None = None
    rate: float | None = None
    mfu: float | str | None = None
    peak: float | None = None
    note: str = ""

    @property
    def per_second(self) -> float | None:
        """Samples a second and card: as reported, else by the seconds and samples of an update."""
        if self.rate is None and self.seconds and self.samples:
            return self.samples / self.seconds / self.count
        return self.rate


@cache
def speeds() -> Mapping[str, Speed]:
    """All records by what was trained."""
    return {name: Speed(**record) for name, record in records(Path(__file__).with_suffix(".yaml")).items()}
