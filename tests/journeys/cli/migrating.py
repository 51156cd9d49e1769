"""Conversions of ``mmgrpo migrate`` one at a time: their settings in, ours and what is said out."""

from __future__ import annotations

import re
from textwrap import dedent
from typing import Any

import pytest
import yaml

from mmgrpo.cli.migrate import rules
from mmgrpo.cli.migrate.draft import Draft
from mmgrpo.cli.migrate.recipe import CONVERSIONS
from mmgrpo.cli.migrate.sources import Source
from mmgrpo.cli.migrate.tables import table

ALL_LINEAR = [
    ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    "all linear layers of the language model's blocks",
]
"""Layers of a block of Llama, Qwen, Mistral, Gemma and their kin, with the note that stands behind them."""
MEMORY = "memory only"
ASSUMED = "the number of processes is not known, and 1 is assumed"
FAMILIES = {"flow_grpo": "sd3", "dance_grpo": "flux"}


def cases(text: str) -> pytest.MarkDecorator:
    """The rows of a table, below the names of its columns, as parameters of a test.

    Columns are YAML between bars. One that a row leaves out at its end is empty, in the kind of what other rows have
    there; a line that is indented goes on with the row above it.
    """
    lines = re.sub(r"\n +", " ", dedent(text).strip()).splitlines()
    names, *rows = [line.split(" | ") for line in lines if not line.startswith("#")]
    read = [[yaml.safe_load(column) for column in row] for row in rows]
    empty = [next(type(row[i])() for row in read if row[i:] and row[i]) for i in range(len(names))]
    return pytest.mark.parametrize(names, [[*row, *empty[len(row) :]] for row in read])


def convert(
    project: str, names: str, settings: dict[str, Any], *, processes: int = 1, rows: int = 0, family: str = ""
) -> Draft:
    """What the named conversions, in this order, make of some settings."""
    source = Source("theirs.yaml", dict(settings), processes=processes)
    draft = Draft(table(project), source, family or FAMILIES.get(project, "qwen_vl"), rows)
    for name in names.split():
        if name in CONVERSIONS[project]:
            CONVERSIONS[project][name](draft)
        else:
            rules.convert(draft, name)
    return draft


def values(draft: Draft) -> dict[str, Any]:
    """Our settings; one with a note as a pair."""
    return {key: [one.value, one.note] if one.note else one.value for key, one in draft.settings.items()}


def lora(draft: Draft) -> tuple[Any, ...]:
    """Rank, alpha and layers of the adapters of a draft that has no other settings."""
    assert {*draft.settings} <= {"model.lora_rank", "model.lora_alpha", "model.lora_targets"}
    return tuple(values(draft).get(f"model.lora_{name}") for name in ("rank", "alpha", "targets"))


def same(got: Any, expected: Any) -> bool:
    """Whether settings are equal and of the same types: 1 is neither true nor 1.0 in a recipe."""
    return repr(got) == repr(expected)


def warned(draft: Draft, *words: str) -> bool:
    """Whether there are exactly as many warnings as ``words``, with these words in this order."""
    return len(words) == len(draft.warnings) and all(
        word in text for word, text in zip(words, draft.warnings, strict=True)
    )
