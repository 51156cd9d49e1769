"""Every preset trains every kind of policy that it is made for, and says why where it does not."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from building import algorithm_blocks, trainer
from toys import toy_policy, toy_prompts

from mmgrpo.advantages.presets import CATALOGUE, GAUSSIAN_ONLY, PRESETS, TOKENS_ONLY
from mmgrpo.config import refuse_preset
from mmgrpo.policies.token import TokenPolicy
from mmgrpo.trainer import Trainer
from mmgrpo.types import Image, Output, Policy, Prompt, Text

NEED_MORE = {
    "remax": "need reference_value",
}
"""Presets that need what no policy records yet, and what the refusal says."""
NEED_TREES = {"tree_grpo": "algorithm.keys names tree"}
"""Presets that need samples in trees, which tokens do not grow."""
PLANS = {"tree_grpo": "one_step_branch(roots=2)", "granular_grpo": "one_step_branch(draw='all')"} | {
    name: "branch_tree(splits=[0,1,2])" for name in ("branch_grpo", "branch_grpo_pruned", "flow_tree_grpo")
}
"""Plans that presets are made for; the others train every step."""
WORDS = ["say", "a", "b", "c", "d"]


def right_or_wrong(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    """A reward of 0 or 1 that about half of the samples get, as several presets want it."""
    return [float(_number(output) > 0) for output in outputs]


def _number(output: Output) -> float:
    if isinstance(output, Image):
        return float(output.pixels.sum())
    assert isinstance(output, Text)
    return 1.0 if output.text.split()[:1] > ["a"] else -1.0


def denoising(preset: str, folder: Path) -> Trainer:
    policy = toy_policy(PLANS.get(preset, "every_step"), steps=5)
    return short_run(policy, toy_prompts(3), preset, folder)


def tokens(preset: str, folder: Path) -> Trainer:
    from pipelines.causal_lm import tiny

    policy = TokenPolicy(tiny(WORDS, keep_reference=True), max_tokens=4)
    return short_run(policy, [Prompt(f"say {word}", word) for word in "abc"], preset, folder)


def short_run(policy: Policy, prompts: Sequence[Prompt], preset: str, folder: Path) -> Trainer:
    refuse_preset(preset, policy.kind)
    return trainer(
        policy,
        folder,
        prompts,
        reward=right_or_wrong,
        per_round=3,
        group_size=8,
        steps=2,
        lr=1e-3,
        **algorithm_blocks(preset),
    )


def trains(made: Trainer) -> None:
    """Two steps with finite numbers, of which the first moves the weights."""
    before = torch.cat([p.detach().clone().flatten() for p in made.trained.values()])
    made.fit()
    lines = [json.loads(line) for line in (made.folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    for line in lines:
        # A number that is not finite is written as null.
        assert all(value is not None and math.isfinite(value) for value in line.values()), line
        assert line["grad_norm"] > 0 and line["decisions"] > 0 and line["skipped"] == 0
        assert line["ratio/first_minus_one"] < 1e-5
    after = torch.cat([p.detach().flatten() for p in made.trained.values()])
    assert bool(after.isfinite().all()) and not torch.equal(before, after)


@pytest.mark.parametrize("preset", sorted(PRESETS.keys() - TOKENS_ONLY - NEED_MORE.keys()))
def test_a_preset_trains_a_denoising_policy(preset, tmp_path):
    trains(denoising(preset, tmp_path))


@pytest.mark.parametrize("preset", sorted(PRESETS.keys() - GAUSSIAN_ONLY - NEED_MORE.keys() - NEED_TREES.keys()))
def test_a_preset_trains_a_token_policy(preset, tmp_path):
    trains(tokens(preset, tmp_path))


@pytest.mark.parametrize("preset", sorted(TOKENS_ONLY))
def test_a_preset_for_tokens_refuses_a_denoising_policy_by_name(preset, tmp_path):
    with pytest.raises(ValueError, match=rf"preset '{preset}' is for tokens policies .*entropies.*gaussian.*fit: "):
        denoising(preset, tmp_path)


@pytest.mark.parametrize("preset", sorted(GAUSSIAN_ONLY))
def test_a_preset_for_gaussian_decisions_refuses_a_token_policy_by_name(preset):
    with pytest.raises(ValueError, match=rf"preset '{preset}' is for gaussian policies .*Gaussian.*tokens.*fit: "):
        refuse_preset(preset, "tokens")


def test_a_refusal_names_presets_that_fit():
    with pytest.raises(ValueError) as refusal:
        refuse_preset("flow_grpo", "tokens")
    fitting = str(refusal.value).split("fit: ")[1].split(", ")
    assert set(fitting) == CATALOGUE.keys() - GAUSSIAN_ONLY


@pytest.mark.parametrize("build", [denoising, tokens])
@pytest.mark.parametrize("preset", sorted(NEED_MORE))
def test_a_preset_that_needs_what_no_policy_records_is_refused_before_anything_is_sampled(preset, build, tmp_path):
    with pytest.raises(ValueError, match=NEED_MORE[preset]):
        build(preset, tmp_path)
    assert not (tmp_path / "metrics.jsonl").exists()


@pytest.mark.parametrize("preset", sorted(NEED_TREES))
def test_a_preset_that_needs_trees_is_refused_by_a_token_policy(preset, tmp_path):
    with pytest.raises(ValueError, match=NEED_TREES[preset]):
        tokens(preset, tmp_path)
    assert not (tmp_path / "metrics.jsonl").exists()
