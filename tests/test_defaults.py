"""Defaults are those that the documentation states: one that changes unseen changes every run that relies on it."""

from __future__ import annotations

import inspect
import re

import pytest

from mmgrpo.advantages.baseline import BASELINES
from mmgrpo.advantages.combine import COMBINE
from mmgrpo.advantages.credit import CREDITS
from mmgrpo.advantages.scale import SCALES
from mmgrpo.advantages.select import AFTER, BEFORE
from mmgrpo.advantages.shape import SHAPES
from mmgrpo.diffusion.kernels import KERNELS
from mmgrpo.diffusion.planners import PLANS
from mmgrpo.diffusion.schedules import GRIDS
from mmgrpo.objectives import AGGREGATIONS, MISMATCH, OBJECTIVES, OFF_POLICY_OBJECTIVES, TERMS
from mmgrpo.policies.flow_matching import ERRORS
from mmgrpo.registry import Block
from mmgrpo.rollout import SAMPLERS
from tests import ROOT

TABLES = {
    "combine": COMBINE,
    "baseline": BASELINES,
    "scale": SCALES,
    "shape": SHAPES,
    "credit": CREDITS,
    "select": {**BEFORE, **AFTER},
    "sampler": SAMPLERS,
    "objective": OBJECTIVES,
    "off_policy": OFF_POLICY_OBJECTIVES,
    "terms": TERMS,
    "mismatch": MISMATCH,
    "aggregation": AGGREGATIONS,
    "sampling.plan": PLANS,
    "sampling.kernel": KERNELS,
    "sampling.grid": GRIDS,
    "sampling.error": ERRORS,
}


def written() -> dict[str, list[str]]:
    """Line of a recipe to its blocks as the documentation writes them."""
    section = (ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8")
    section = section.split("## Parameters and their defaults")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `([\w.]+)` \| (.*) \|$", section, re.MULTILINE)
    return {line: re.findall(r"`([^`]+)`", blocks) for line, blocks in rows}


def signature(name: str, block: Block) -> str:
    """The block with all of its parameters, those that have no default as ``...``."""
    parameters = list(inspect.signature(block.fn).parameters.values())[len(block.needs) :]
    empty = inspect.Parameter.empty
    texts = [f"{one.name}={'...' if one.default is empty else repr(one.default)}" for one in parameters]
    return f"{name}({', '.join(texts)})"


@pytest.mark.parametrize("line", TABLES)
def test_the_parameters_of_every_block_and_their_defaults_are_those_of_the_documentation(line):
    signatures = [signature(name, block) for name, block in TABLES[line].items()]
    assert written()[line] == [text for text in signatures if not text.endswith("()")]


def test_the_documentation_has_a_row_for_every_table():
    assert list(written()) == list(TABLES)
