"""What a token policy draws as one object: which parts go together, and that a plain policy meets none of them."""

from __future__ import annotations

import ast
import functools
import inspect
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from mmgrpo.policies.programs import Program
from mmgrpo.policies.token import TokenPolicy
from mmgrpo.policies.walks import PARTS, Completion, walk_of
from mmgrpo.types import Request
from tests.building import rescored
from tests.unit.policies.test_programs import plan_and_write
from tests.unit.policies.test_token_policy import PROMPTS, rollout, token_policy
from tests.unit.policies.test_tools import policy_of as conversing

pytest.importorskip("transformers")

ROOT = Path(__file__).parents[3]
REQUEST = Request(PROMPTS, [0, 1, 2], 1, 3)
ASKED: dict[str, Any] = {
    "search": "beam",
    "tree": "text_tree(children=2, depth=2, tokens=2)",
    "reference_in_group": True,
    "variants": "instructions(texts=['', ' now'])",
    "contrast": "paraphrase",
    "divergence": True,
    "states": "judged()",
    "temperature_by_entropy": 0.5,
    "program": Program(plan_and_write, 2),
}
TOGETHER = [
    *[{"reference_in_group", other} for other in ("search", "contrast", "divergence", "states")],
    *[{"states", other} for other in ("search", "variants", "contrast", "divergence")],
    *[{"variants", "contrast"}, {"variants", "divergence"}, {"contrast", "divergence"}, {"variants", "tools"}],
    *[{"temperature_by_entropy", other} for other in ("reference_in_group", "variants", "divergence")],
]
"""Every other pair is refused."""
SETTINGS = {name: f"sampling.{name}" for name in PARTS} | {
    "reference_in_group": "data.reference_in_group",
    "divergence": "algorithm.credit",
}
BEYOND = {f"mmgrpo.policies.{module}" for module, _ in PARTS.values()} | {
    f"mmgrpo.policies.{module}" for module in ("tools", "tool_calls", "tool_table", "perturbed_prompts")
}


@pytest.mark.parametrize("pair", combinations(PARTS, 2), ids="-".join)
def test_two_parts_go_together_or_are_refused_by_name(pair):
    tools: Any = conversing().walk.value
    asked = {name: tools if name == "tools" else ASKED[name] for name in pair}
    if {*pair} in TOGETHER:
        assert len(walk_of(**asked).used) == 2
        return
    with pytest.raises(ValueError, match="leave out") as error:
        walk_of(**asked)
    assert all(SETTINGS[name] in str(error.value) for name in pair)


@pytest.mark.parametrize(
    ("name", "own", "setting"),
    [
        ("tree", {"sampling_dtype": "bfloat16"}, "sampling.dtype"),
        ("tree", {"train_truncated": False}, "sampling.truncated"),
        ("tree", {"draw_batch_size": 2}, "sampling.draw_batch_size"),
        ("search", {"draw_batch_size": 2}, "sampling.draw_batch_size"),
        ("divergence", {"draw_batch_size": 2}, "sampling.draw_batch_size"),
    ],
)
def test_a_part_refuses_settings_of_the_policy_that_it_cannot_have(name, own, setting):
    with pytest.raises(ValueError, match="leave out") as error:
        token_policy(**{name: ASKED[name]}, **own)
    assert setting in str(error.value) and SETTINGS[name] in str(error.value)


def test_nothing_asked_for_is_a_plain_completion():
    walk = walk_of()
    assert type(walk) is Completion and walk.used == {} and walk.additions == []


def imports_of(module: str) -> set[str]:
    """Modules of ours that importing a module imports, itself included; not those inside functions or for types."""
    names, met = [module], set()
    while names:
        name = names.pop()
        file = ROOT / f"{name.replace('.', '/')}.py"
        file = file if file.is_file() else ROOT / name.replace(".", "/") / "__init__.py"
        if name in met or not file.is_file():
            continue
        met.add(name)
        names += imports_in(file)
    return met


@functools.cache
def imports_in(file: Path) -> list[str]:
    """What the statements of a file import, and what may be a module of what they import from."""
    names: list[str] = []
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    return names


@pytest.mark.slow
def test_a_plain_policy_imports_no_other_walk(monkeypatch):
    assert "mmgrpo.policies.tools" in imports_of("mmgrpo.policies.conversation"), "the trace sees imports"
    assert imports_of("mmgrpo.policies.token") & BEYOND == set() == imports_of("mmgrpo.rollout") & BEYOND
    for name in BEYOND & sys.modules.keys():
        monkeypatch.delitem(sys.modules, name)
    policy = token_policy(keep_reference=True)
    made = rollout(policy)
    rescored(policy, made)
    policy.sample(REQUEST)
    rows = range(len(made.prompts))
    policy.unpack(made.prompts, policy.pack(made, rows), [0] * len(rows), 0, REQUEST)
    assert BEYOND & sys.modules.keys() == set()


def test_a_policy_has_few_parameters():
    assert len(inspect.signature(TokenPolicy).parameters) <= 12
