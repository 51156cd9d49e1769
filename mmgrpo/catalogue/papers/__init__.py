"""The papers and the state of their implementation: one record each, in the YAML files of this folder, one per area.

A record stands under its id, in the order of the ids, so two people rarely write at the same place:

    gfpo:
      title: "GFPO: Sample More to Think Less"      a short name before the first colon
      arxiv: "2508.09726"                           a string: 2508.10 is no number; or `venue`, where there is none
      status: core                                  works, core, part or not yet: `STATUS`
      uses: {preset: [gfpo], select: [gfpo]}        kind to names, as a recipe writes them, with parameters or without
      settings: {data.group_size: 2}                settings that belong to it
      how: the rows of ...                          what the names alone do not say
      tests: [unit/advantages/test_select.py::test_gfpo_keeps_the_best_rows_by_its_metric]      below tests/
      differs: ...                                  from the paper
      missing: ...                                  of the paper

From these are made ``mmgrpo papers``, ``mmgrpo explain`` and the page of papers of the site. A test
checks that every name exists. This module imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

from mmgrpo.config.names import nearest
from mmgrpo.config.records import records

__all__ = ["AREAS", "STATUS", "Paper", "papers", "read"]

AREAS = {
    "visual": "Visual generation",
    "vlm": "Vision-language reasoning",
    "speech": "Speech and audio",
    "rewards": "Rewards and reward models",
    "core": "The group-advantage core",
    "agents": "Multi-turn and multi-agent",
}
"""Names of the files to their titles."""

STATUS = {
    "works": "all that its abstract names: `mmgrpo train` runs it on a supported model family, and its formula is "
    "tested against worked numbers",
    "core": "its main idea, by a formula that has a source, tested, and trained in tests or a block that any preset "
    "can name; what is missing is named, such as the family, data or reward of its own experiments, or constants, but "
    "no contribution of its abstract",
    "part": "a contribution that its abstract names is missing, or its formula was not found and is ours, as the "
    "record says; what is there is tested",
    "not yet": "nothing specific to it is implemented; the record says what is missing",
}
"""Words of status to what they mean."""


@dataclass(frozen=True)
class Paper:
    """A record: see the head of this module."""

    id: str
    area: str
    title: str
    status: str
    arxiv: str = ""
    venue: str = ""
    uses: Mapping[str, list[str]] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    how: str = ""
    tests: list[str] = field(default_factory=list)
    differs: str = ""
    missing: str = ""

    @property
    def name(self) -> str:
        """The title up to its first colon."""
        return self.title.split(":")[0]

    @property
    def source(self) -> str:
        """Where it was published, as far as the record says so."""
        return f"arXiv:{self.arxiv}" if self.arxiv else self.venue

    def words(self) -> str:
        """Everything that a search looks at, in small letters."""
        names = [f"{kind} {' '.join(several)}" for kind, several in self.uses.items()]
        return " ".join([self.id, self.title, self.source, *names, self.how, self.differs, self.missing]).lower()


FIELDS = {f.name: str(f.type) for f in fields(Paper) if f.name not in ("id", "area")}
"""Fields that a record may have, to their types as written above."""
KINDS = {"str": str, "list": list, "Mapping": dict}


@cache
def papers() -> Mapping[str, Paper]:
    """All records by their id, area by area."""
    by_id: dict[str, Paper] = {}
    for area in AREAS:
        for paper in read(Path(__file__).with_name(f"{area}.yaml")):
            if paper.id in by_id:
                raise ValueError(f"papers: {paper.id} stands in {by_id[paper.id].area}.yaml and in {area}.yaml")
            by_id[paper.id] = paper
    return by_id


def read(path: Path) -> Iterator[Paper]:
    """The records of a file; ValueError that names file, record and field for what is no record."""
    for name, record in records(path).items():
        where = f"{path.name}: {name}"
        if not isinstance(record, dict) or not {"title", "status"} <= record.keys():
            raise ValueError(f"{where}: expected a mapping with title and status")
        for key, value in record.items():
            if key not in FIELDS:
                raise ValueError(f"{where}: unknown field '{key}'.{nearest(key, FIELDS)}")
            kind = KINDS[FIELDS[key].split("[")[0]]
            if not isinstance(value, kind):
                raise ValueError(f"{where}: {key} is {value!r}, expected {kind.__name__}")
        if record["status"] not in STATUS:
            raise ValueError(f"{where}: got status {record['status']!r}, expected one of {', '.join(STATUS)}")
        yield Paper(id=name, area=path.stem, **record)
