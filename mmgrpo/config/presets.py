"""Algorithms by name: each preset is a choice of blocks with the constants of its source.

A preset is a record in a YAML file of ``mmgrpo/catalogue/presets/``, one file per kind (``KINDS``):

    dapo:
      about: Clip-higher, token mean, groups without spread replaced by fresh ones.     one sentence
      policies: any                         `POLICIES`: the kind of decisions that it is for
      source: arXiv:2503.14476              where its constants come from
      notes: "Section 4.1: clip 0.2 / ..."  where they stand there, and what is not from there
      blocks: {objective: ppo(low=0.2, high=0.28), ...}       lines of a recipe's section `algorithm`
      sampling: {kernel: {flow: flow_sde(a=0.7), ...}, ...}   settings of the section `sampling`
      data: {group_size: 16}                                  settings of the section `data`

Lines that ``blocks`` does not state are the defaults of ``Algorithm`` (``BASE``). ``sampling`` and ``data`` are the
settings without which a run would not be what the name says: the plan and kernel of a tree, groups of two. Learning
rate, steps and rewards belong to recipes. The files are read when the first preset is asked for, without torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from mmgrpo.config.names import nearest
from mmgrpo.config.records import records
from mmgrpo.config.settings import Algorithm

__all__ = ["BASE", "CATALOGUE", "KINDS", "POLICIES", "PRESETS", "Preset", "read"]

FOLDER = Path(__file__).parents[1] / "catalogue" / "presets"

KINDS = {
    "start_here": "Start here",
    "any_policy": "Any policy",
    "images_and_video": "Images and video",
    "text": "Text",
    "preferences": "Preferences",
    "steps_and_turns": "Steps, trees and turns",
}
"""Names of the files to their titles, in the order in which presets are listed."""

POLICIES: Mapping[str, str] = {
    "any": "",
    "tokens": "it needs tokens, their entropies or lengths",
    "gaussian": "it needs Gaussian transitions, or its clip range is calibrated for their log-probabilities",
    "matching": "its clip range is calibrated for flow-matching errors",
    "gradients": "it differentiates rewards through the sampler, with sampling.policy=gradients",
    "joint": "it has lines for the tokens of a text and for the transitions of its image",
}
"""Kinds of decisions that a preset is for, and why it needs them: tokens of language models; Gaussian transitions of
denoising policies, or clip means over latent dimensions; flow-matching errors at drawn noise levels; gradients of
rewards; rows of tokens and transitions, whose ``sampling`` settings each part takes of them that it has."""

PROCESSES = ("tokens", "flow", "diffusion")
"""What a model was trained on, by which the value of a setting of ``sampling`` may differ."""

BASE: dict[str, Any] = {
    f.name: f.default if f.default_factory is MISSING else f.default_factory()
    for f in fields(Algorithm)
    if f.name != "preset"
}
"""The defaults of a preset: GRPO (arXiv:2402.03300) with the sample std, without its KL."""

T = TypeVar("T")


@dataclass(frozen=True)
class Preset:
    """A named choice of blocks."""

    about: str
    """A description in one sentence."""
    policies: str
    """One of ``POLICIES``."""
    blocks: dict[str, Any]
    """All lines of the section ``algorithm``."""
    sampling: dict[str, Any] = field(default_factory=dict)
    """Settings of the section ``sampling`` with which a run is what the name says, each a value, or a mapping of the
    process of the model (``PROCESSES``) to one. Families leave out those that they do not have."""
    data: dict[str, Any] = field(default_factory=dict)
    """Settings of the section ``data``, likewise."""
    source: str = ""
    """The paper, ``arXiv:...`` where it has a number, or the project."""
    notes: str = ""
    """Where the constants stand in the source, and what is not from there."""
    kind: str = ""
    """One of ``KINDS``: the file that holds it."""


class Lazy(Mapping[str, T]):
    """A mapping that is read when it is first looked into."""

    def __init__(self, load: Callable[[], Mapping[str, T]]) -> None:
        self._load = cache(load)

    def __getitem__(self, name: str) -> T:
        return self._load()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._load())

    def __len__(self) -> int:
        return len(self._load())


def presets() -> dict[str, Preset]:
    """All presets by name, kind by kind; ValueError for a name in two files."""
    catalogue: dict[str, Preset] = {}
    for kind in KINDS:
        for name, preset in read(FOLDER / f"{kind}.yaml"):
            if name in catalogue:
                raise ValueError(f"presets: {name} stands in {catalogue[name].kind}.yaml and in {kind}.yaml")
            catalogue[name] = preset
    return catalogue


CATALOGUE: Mapping[str, Preset] = Lazy(presets)
"""Every preset by name."""

PRESETS: Mapping[str, dict[str, Any]] = Lazy(lambda: {name: preset.blocks for name, preset in CATALOGUE.items()})
"""Every preset's blocks by name."""


def read(path: Path) -> Iterator[tuple[str, Preset]]:
    """The presets of a file by name; ValueError that names file, preset and key for what is no preset."""
    for name, record in records(path).items():
        where = f"{path.name}: {name}"
        check(record, where)
        blocks = deepcopy(BASE) | record.get("blocks", {})
        yield name, Preset(**{**record, "blocks": blocks, "kind": path.stem})


FIELDS = {f.name: dict if f.name in ("blocks", "sampling", "data") else str for f in fields(Preset)}
del FIELDS["kind"]
NEEDED = ("about", "policies", "source")
WORDS = {str: "text", list: "a list of texts", dict: "a mapping"}


def check(record: Any, where: str) -> None:
    """Raise ValueError for a record that is no preset."""
    if not isinstance(record, dict):
        raise ValueError(f"{where}: got {record!r}, expected a mapping with {', '.join(NEEDED)}")
    if absent := [key for key in NEEDED if key not in record]:
        raise ValueError(f"{where}: {absent[0]} is missing")
    for key, value in record.items():
        if key not in FIELDS:
            raise ValueError(f"{where}: unknown key '{key}'.{nearest(str(key), FIELDS)}")
        if not isinstance(value, FIELDS[key]) or not value:
            raise ValueError(f"{where}: {key} is {value!r}, expected {WORDS[FIELDS[key]]}")
    if record["policies"] not in POLICIES:
        raise ValueError(f"{where}: policies is {record['policies']!r}, expected one of {', '.join(POLICIES)}")
    for line, value in record.get("blocks", {}).items():
        if line not in BASE:
            raise ValueError(f"{where}: blocks: unknown key '{line}'.{nearest(str(line), BASE)}")
        items = value if isinstance(value, list) else [value]
        if type(value) is not type(BASE[line]) or not all(isinstance(item, str) for item in items):
            raise ValueError(f"{where}: blocks: {line} is {value!r}, expected {WORDS[type(BASE[line])]}")
    for part in ("sampling", "data"):
        for key, value in record.get(part, {}).items():
            values = value if isinstance(value, dict) else {"flow": value}
            if unknown := [process for process in values if process not in PROCESSES]:
                known = nearest(str(unknown[0]), PROCESSES)
                raise ValueError(f"{where}: {part}: {key}: unknown process '{unknown[0]}'.{known}")
            if not all(isinstance(item, str | int | float) for item in values.values()):
                raise ValueError(f"{where}: {part}: {key} is {value!r}, expected a value, or one for each process")
