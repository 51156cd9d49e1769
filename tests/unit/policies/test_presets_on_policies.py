"""Every preset trains every kind of policy that it is made for, and says why where it does not."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from mmgrpo.config.names import FEW, SHOWN
from mmgrpo.config.presets import CATALOGUE
from mmgrpo.config.reading import refuse_preset
from mmgrpo.trainer import Trainer
from mmgrpo.types import Answer, Image, Media, Output, Policy, Prompt, Text
from pipelines.text.causal_lm import toy
from tests.building import algorithm_blocks, matching_policy_over, token_policy_over, trainer
from tests.toys import ToyModel, toy_policy, toy_prompts
from tests.unit.policies.test_programs import programmed
from tests.unit.policies.test_tools import policy_of as conversing

NO_TREES = {"tree_grpo": "algorithm.keys: got tree, which this policy"}
"""Presets that need samples in trees, which only denoising policies grow."""
NO_SINGLES = {"sepo": "conditional_entropy"}
"""Presets that need tokens given all others, which only masked models score."""
NO_TEACHER = {"flow_opd": "teacher.shift.*'teacher'.*algorithm.networks"}
"""Presets for networks that the user names."""
NO_GUIDE = dict.fromkeys(("tgdpo", "rto", "opd", "va_opd"), "teacher.log_probs.*'teacher'.*algorithm.networks")
NO_OFFLINE = dict.fromkeys(("gr_dpo", "gr_ipo"), "by_category.*data.offline") | {"sft": "likelihood.*data.offline"}
"""Presets of given answers alone."""
REFUSED = {"gaussian": NO_TEACHER, "tokens": NO_TREES | NO_SINGLES | NO_GUIDE, "matching": NO_TREES}
REFUSED = {kind: refused | NO_OFFLINE for kind, refused in REFUSED.items()}
REFUSED["matching"]["srum"] = "srum.*data.offline"
"""Presets that suit a kind of policy but need more than it gives, and what the refusal says."""
PLANS = (
    {"pro_grpo": "expand_prune(at=[2], keep=[4])", "e_grpo": "entropy_branch"}
    | {"tree_grpo": "one_step_branch(roots=2)", "granular_grpo": "one_step_branch(draw='all')"}
    | {name: "branch_tree(splits=[0,1,2])" for name in ("branch_grpo", "branch_grpo_pruned", "flow_tree_grpo")}
)
"""Plans that presets are made for; the others train every step."""
WORDS = ["say", "a", "b", "c", "d"]


def right_or_wrong(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    """A reward of 0 or 1 that about half of the samples get, as several presets want it."""
    return [float(_number(output) > 0) for output in outputs]


def won_or_lost(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    """1 or -1, for presets that take a reward as the advantage, and leave out groups of one sign."""
    return [2 * value - 1 for value in right_or_wrong(prompts, outputs)]


def never_flat(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    """A reward in (0, 1) that differs wherever two states do, so every step gains or loses."""
    return [1 / (1 + math.exp(-_number(output))) for output in outputs]


def _number(output: Output) -> float:
    if isinstance(output, Image):
        return float(output.pixels.sum())
    assert isinstance(output, Text)
    return 1.0 if output.text.split()[:1] > ["a"] else -1.0


REWARDS = {"brpo": won_or_lost}
"""Rewards of presets that want others than 0 and 1."""
CHANGES = {
    "gtpo": {"shape": ["entropy_gate(limit=inf)"]},
    "polychromic_ppo": {"credit": "vine_gae(by='reward', size=2)"},
}
"""Blocks in place of those of a preset that would train no sample here: an untrained policy is uncertain throughout;
and the reward that numbers what samples do."""


UNTAUGHT = ("archer",)
"""Their critic says 0 of every sample until it has learned from a first round."""


def policy_of(kind: str, preset: str) -> Policy:
    if kind == "gaussian":
        completes = "step_rewards" in algorithm_blocks(preset)["advantages"].fields
        return toy_policy(PLANS.get(preset, "every_step"), steps=5, completion_steps=5 if completes else 0)
    if kind == "matching":
        return matching_policy_over(
            cast(Any, ToyModel()),
            steps=5,
            draws=2,
            error="self_normalized",
            evaluation_steps=5,
            forward_batch_size=1024,
            boundaries=preset == "tdm_r1",
        )
    fields = algorithm_blocks(preset)["advantages"].fields
    states = "judged()" if "step_rewards" in fields else ""
    tree = "text_tree(children=2, depth=3, tokens=1)" if preset == "treerpo" else ""
    if "vine" in fields:
        policy = conversing(tree="turn_vines(states=1, count=7)")
    elif "call" in fields:
        policy = programmed()
    elif "turn" in fields | algorithm_blocks(preset)["loss"].fields:
        policy = conversing()
    else:
        policy = token_policy_over(toy(WORDS), max_tokens=4, divergence=preset == "tw_grpo", states=states, tree=tree)
    policy.keep_reference()
    return policy


def prompts_of(kind: str) -> list[Prompt]:
    return [Prompt(f"say {word}", word) for word in "abc"] if kind == "tokens" else toy_prompts(3)


def short_run(kind: str, preset: str, folder: Path, **more: Any) -> Trainer:
    """Two steps of a preset, put together as a training script does it."""
    policy = policy_of(kind, preset)
    given = (Answer("", Media("image", Image(torch.ones(3, 1, 1))), 1.0),)
    texts = {"answer": "a b", "meta": {"steps": ["a", "b"]}}
    answered = [replace(one, **(texts if kind == "tokens" else {"answers": given})) for one in prompts_of(kind)]
    refuse_preset(preset, policy.kind)
    settings: dict[str, Any] = algorithm_blocks(preset, **CHANGES.get(preset, {}), **more)
    if preset == "prorl":  # its reset follows evaluations
        settings |= {"heldout": prompts_of(kind), "every": 1}
    if preset.startswith("chord") or preset == "rmt":
        settings["given"] = answered
    return trainer(
        policy,
        folder,
        answered,
        reward=never_flat if getattr(policy, "completion_steps", 0) else REWARDS.get(preset, right_or_wrong),
        prompts_per_step=3,
        group_size=8,
        steps=2,
        lr=1e-3,
        **settings,
    )


def made_for(kind: str) -> list[str]:
    return sorted(name for name, preset in CATALOGUE.items() if preset.policies in ("any", kind))


def pairs(names: Callable[[str], Iterable[str]]) -> list[tuple[str, str]]:
    return [(kind, preset) for kind in REFUSED for preset in names(kind)]


@pytest.mark.rows
@pytest.mark.parametrize(("kind", "preset"), pairs(lambda kind: [p for p in made_for(kind) if p not in REFUSED[kind]]))
def test_a_preset_trains_the_policies_that_it_is_made_for(kind, preset, tmp_path):
    made = short_run(kind, preset, tmp_path)
    before = torch.cat([p.detach().clone().flatten() for p in made.trained.values()])
    made.fit()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    for line in lines:
        # A number that is not finite is written as null.
        assert all(value is not None and math.isfinite(value) for value in line.values()), line
        assert line["grad_norm"] > 0 or (preset in UNTAUGHT and line["step"] == 1)
        assert line["decisions"] > 0 and line["skipped"] == 0
        assert line["ratio/first_minus_one"] < 1e-5
    after = torch.cat([p.detach().flatten() for p in made.trained.values()])
    assert bool(after.isfinite().all()) and not torch.equal(before, after)


@pytest.mark.parametrize("preset", NO_GUIDE)
def test_a_preset_that_another_network_guides_trains_beside_one(preset, tmp_path):
    made = short_run("tokens", preset, tmp_path, networks=["average(name='teacher', start=1.0, most=1.0)"])
    generator = torch.Generator().manual_seed(0)
    for values in made.policy.networks.values["teacher"].values():  # a teacher that is not the policy
        values.add_(torch.randn(values.shape, generator=generator))
    made.fit()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) == 2 and all(value is not None for line in lines for value in line.values())
    assert all(line["grad_norm"] > 0 for line in lines)


@pytest.mark.parametrize(("kind", "preset"), pairs(lambda kind: sorted(CATALOGUE.keys() - made_for(kind))))
def test_a_preset_for_other_policies_is_refused_by_name_with_those_that_fit(kind, preset):
    with pytest.raises(ValueError, match=f"'{preset}'.*{kind}") as refusal:
        refuse_preset(preset, kind)
    shown, _, rest = str(refusal.value).partition("presets: ")[2].partition("; ")
    assert len(made_for(kind)) > FEW and len({*shown.split(", ")} & {*made_for(kind)}) == SHOWN
    assert "'mmgrpo presets'" in rest and f" {len(made_for(kind))}" in rest


@pytest.mark.parametrize(("kind", "preset"), pairs(lambda kind: REFUSED[kind]))
def test_a_preset_that_needs_what_the_policy_lacks_is_refused_before_anything_is_sampled(kind, preset, tmp_path):
    with pytest.raises(ValueError, match=REFUSED[kind][preset]):
        short_run(kind, preset, tmp_path)
    assert not (tmp_path / "metrics.jsonl").exists()
