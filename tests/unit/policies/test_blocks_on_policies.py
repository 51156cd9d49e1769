"""Every row of every table of an algorithm trains at least one kind of policy: none is there that all refuse."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from mmgrpo.advantages.baseline import BASELINES
from mmgrpo.advantages.combine import COMBINE
from mmgrpo.advantages.credit import CREDITS
from mmgrpo.advantages.scale import SCALES
from mmgrpo.advantages.select import SELECTORS
from mmgrpo.advantages.shape import SHAPES
from mmgrpo.advantages.transform import TRANSFORMS
from mmgrpo.advantages.weighting import KL_WEIGHTS, WEIGHTINGS
from mmgrpo.config.presets import BASE, PRESETS
from mmgrpo.config.registry import Block
from mmgrpo.objectives import AGGREGATIONS, MISMATCH, OBJECTIVES, OFF_POLICY_OBJECTIVES, TERMS
from mmgrpo.policies.categorical import CategoricalPolicy
from mmgrpo.policies.rendered import Reading, RenderedTokenPolicy
from mmgrpo.prompts.samplers import SAMPLERS
from mmgrpo.prompts.trackers import READS, TRACKERS
from mmgrpo.trainer import Trainer
from mmgrpo.types import Image, Output, Policy, Prompt, Text
from pipelines.text.causal_lm import toy
from tests.building import algorithm_blocks, matching_policy_over, token_policy_over, trainer
from tests.speaking import TableModel
from tests.toys import ToyModel, toy_policy, toy_prompts
from tests.unit.policies.test_presets_on_policies import REFUSED, made_for
from tests.unit.policies.test_tools import policy_of as conversing

TABLES: dict[str, dict[str, Block]] = {
    "transform": TRANSFORMS,
    "weighting": WEIGHTINGS,
    "combine": COMBINE,
    "baseline": BASELINES,
    "scale": SCALES,
    "shape": SHAPES,
    "credit": CREDITS,
    "select": SELECTORS,
    "sampler": SAMPLERS,
    "trackers": TRACKERS,
    "objective": OBJECTIVES,
    "off_policy": OFF_POLICY_OBJECTIVES,
    "mismatch": MISMATCH,
    "aggregation": AGGREGATIONS,
    "terms": TERMS,
    "kl_weight": KL_WEIGHTS,
}
"""Lines of an algorithm and what they may name; ``keys`` are the policies' own."""
POLICIES = ("categorical", "gaussian", "tokens", "matching", "rendered", "completing", "few_steps", "stepped", "tools")
POLICIES = (*POLICIES, "streams")
REFERENCE_VALUE = {"reference_value": 0.5, "reference_rewards": {"reward": [0.0, 1.0]}, "difficulty": 1.0}


def written(name: str, block: Block) -> str:
    """The block with a value for each parameter that has no default."""
    parameters = list(inspect.signature(block.fn).parameters.values())[len(block.needs) :]
    required = [one.name for one in parameters if one.default is inspect.Parameter.empty]
    whole = {one.name for one in parameters if str(one.annotation).startswith(("int", "Annotated[int"))}
    known = {
        "by": "reward",
        "of": "reward",
        "low": 0.0,
        "weights": {"(none)": 1.0},
        "auxiliary": ["reward"],
        "until": [1],
        "most": [1.0],
    }
    values = {one: 2 if one in whole else known.get(one, 0.25) for one in required}
    return f"{name}({', '.join(f'{one}={value!r}' for one, value in values.items())})"


class FirstWord:
    """It reads how likely the first word of the list was, for every text."""

    def read(self, speech: Tensor, real: Tensor, texts: Sequence[str]) -> Tensor:
        return -(1 - speech[..., 0]).where(real, 0.0).sum(1)


def policy_of(kind: str, answered: bool, variants: str = "") -> tuple[Policy, list[Prompt]]:
    """A small policy and its prompts; ``answered``: the data set's answer is a member of every group; ``variants`` of
    the prompts of models of tokens."""
    if kind == "gaussian":
        policy: Policy = toy_policy("branch_tree(splits=[0,1])", steps=4)
    elif kind == "streams":
        policy = toy_policy(steps=4, streams={"video": 2, "audio": 1})
    elif kind == "completing":
        policy = toy_policy(steps=4, completion_steps=4)
    elif kind in ("matching", "few_steps"):
        ends = kind == "few_steps"
        settings: dict[str, Any] = {"steps": 4, "draws": 2, "error": "velocity", "boundaries": ends}
        policy = matching_policy_over(cast(Any, ToyModel()), evaluation_steps=4, forward_batch_size=1024, **settings)
    elif kind == "stepped":
        policy = token_policy_over(toy(["say", "a", "b", "c", "d"]), max_tokens=4, states="judged()")
    elif kind == "tools":
        policy = conversing()
    elif kind in ("tokens", "rendered"):
        words = toy(["say", "a", "b", "c", "d"])
        policy = tokens = token_policy_over(
            words, max_tokens=4, reference_in_group=answered, divergence=True, variants=variants
        )
        if kind == "rendered":
            reading = Reading(FirstWord(), torch.arange(2, 7))
            policy = cast(Any, RenderedTokenPolicy(tokens, lambda prompt, text: text, reading))
    else:
        policy = CategoricalPolicy(cast(Any, TableModel(2, 5)))
    if kind in ("tokens", "rendered", "stepped", "tools"):
        prompts = [Prompt(f"say {word}", str(number), answer=word) for number, word in enumerate("ab")]
    else:
        prompts = toy_prompts(2)
    return policy, [replace(prompt, meta=REFERENCE_VALUE) for prompt in prompts]


def right_or_wrong(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    """0 or 1, either for about half of the samples of any of the policies."""
    return [float(_right(output)) for output in outputs]


def _right(output: Output) -> bool:
    if isinstance(output, Image):
        return bool(output.pixels.sum() > 0)
    assert isinstance(output, Text)
    return ord((output.text.strip() or "a")[0]) % 2 == 1


NETWORKS_OF = {
    **{name: ["average"] for name in ("diffusion_nft", "dgpo", "crd", "kl_velocity_old")},
    "seppo": ["earlier"],
    "surrogate_preference": ["average"],
    "tdm_r1": [f"learner(name='{name}', objective='fake_score', lr=1e-3)" for name in ("fake", "surrogate")],
    **{name: ["frozen(path='{path}')"] for name in ("distillation", "distillation_step", "distillation_velocity")},
    **{name: ["average(name='teacher', start=1.0, most=1.0)"] for name in ("token_rewards", "visual_distillation")},
    **{name: ["critic(lr=1e-3, classes=1.0)"] for name in ("classified_invariant", "classified_high")},
    "nearest_predicted": ["prompt_value(lr=1e-3)"],
}
"""Networks that objectives compare with, and whose numbers blocks read."""


def other_run(folder: Path) -> Path:
    """A checkpoint of another run, of policies over ``ToyModel``."""
    checkpoint = folder / "checkpoints" / "step-000001"
    if not checkpoint.exists():
        trainer(toy_policy(steps=4), folder, toy_prompts(2), reward=right_or_wrong, steps=1, save_every=1).fit()
    return checkpoint


def first_that_accepts(line: str, text: str, folder: Path) -> Trainer:
    """A trainer of the first policy that does not refuse the block."""
    terms = ["kl_k3(coef=0.1)"] if line == "kl_weight" else []
    changes: dict[str, Any] = {"terms": terms, line: [text] if isinstance(BASE[line], list) else text}
    if networks := NETWORKS_OF.get(text.partition("(")[0]):
        changes["networks"] = [one.format(path=str(other_run(folder / "other"))) for one in networks]
    if line == "credit" and "advantages" not in CREDITS[text.split("(")[0]].needs:
        changes |= {"baseline": "none", "scale": "none"}
    if text.startswith("replayed_by_window"):
        changes["replay"] = "replay(count=2)"
    read = {READS[name].tracker for name in TABLES[line][text.partition("(")[0]].needs if name in READS} - {""}
    blocks = algorithm_blocks("grpo", **{"trackers": sorted(read), **changes})
    refusals = []
    # Other policies would accept an off-policy objective and never call it: no data set supplies their decisions.
    for kind in ["tokens"] if line == "off_policy" else POLICIES:
        variants = "instructions(texts=['a', 'b'])" if text.startswith("budget_offset") else ""
        policy, prompts = policy_of(kind, line == "off_policy", variants)
        if blocks["loss"].needs_reference:
            policy.keep_reference()
        try:
            more = {"heldout": prompts, "every": 1} if line == "weighting" else {}
            return trainer(policy, folder, prompts, reward=right_or_wrong, steps=2, epochs=2, lr=1e-3, **blocks, **more)
        except ValueError as refusal:
            refusals.append(f"{kind}: {refusal}")
    pytest.fail(f"every policy refuses {line}: {text}\n" + "\n".join(refusals))


OFFLINE = {"by_category", "likelihood", "reward_gradient", "reference_divergence", "sepo", "srum"}
OFFLINE |= {
    "marked_steps",
    "mark_return",
    "thought_rewards",
    "gae",
    "turn_gae",
    "mark_gae",
    "share_gae",
    "module_calls",
    "common_calls",
    "prefix_value",
    "staged",
    "turn_advantage",
    "window_gae",
    "vine_gae",
    "action_value",
    "conservative_td",
    "advantage_regression",
}
"""Rows for given answers alone (tests/unit/test_offline.py, test_supervised_rounds.py, objectives/test_srum.py), for
rewards with gradient (test_reward_gradients.py), for masked models (test_parallel_tokens.py), for judges that mark
parts of a text (tests/unit/test_marks.py), for stored beginnings (test_variants.py), for a critic, of turns too, for
windows and for a Q (tests/unit/rounds), for vines (test_turn_trees.py), and for programs (test_programs.py)."""


def in_presets() -> set[tuple[str, str]]:
    """Lines with the blocks that stand there in a preset, each of which trains in ``test_presets_on_policies``."""
    trained = {preset for kind, refused in REFUSED.items() for preset in made_for(kind) if preset not in refused}
    return {
        (line, text.partition("(")[0])
        for preset in trained
        for line, value in PRESETS[preset].items()
        for text in (value if isinstance(value, list) else [value])
    }


ROWS = [(line, name) for line, table in TABLES.items() for name in table if name not in OFFLINE]
NAMED = in_presets()


@pytest.mark.rows
@pytest.mark.parametrize(
    ("line", "name"),
    [pytest.param(*row, marks=pytest.mark.nightly) if row in NAMED else row for row in ROWS],
)
def test_every_row_of_every_table_trains_at_least_one_policy(line, name, tmp_path):
    text = "entropy_gate(limit=inf)" if name == "entropy_gate" else written(name, TABLES[line][name])
    text = text.replace("gate(by=", "gate(least=0.5, by=")  # of two bounds it needs one
    made = first_that_accepts(line, text, tmp_path)
    for values in made.policy.networks.values.get("teacher", {}).values():
        values.add_(torch.linspace(-0.5, 0.5, values.numel()).view_as(values))  # a teacher that is not the policy
    made.fit()
    steps = [json.loads(row) for row in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [step["step"] for step in steps] == [1, 2]
    for step in steps:
        assert all(value is not None and math.isfinite(value) for value in step.values()), step
    assert steps[0]["decisions"] > 0 and steps[0]["grad_norm"] > 0


def test_the_tables_are_the_lines_of_an_algorithm():
    others = {"keys", "networks", "replay", "supervised", "hint", "added", "judging", "parts"}  # have their own tests
    assert TABLES.keys() == BASE.keys() - others
