"""Plans that are drawn for each prompt: samples of a prompt share the step, prompts of a round differ (Flash-GRPO)."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from mmgrpo.config.settings import config_class
from mmgrpo.family import family
from mmgrpo.requirements.blocks import refuse_unmet
from mmgrpo.types import Request
from mmgrpo.update import LossRecipe
from pipelines.denoising import has
from tests.building import algorithm_blocks, recipe, rescored, trainer
from tests.toys import toy_policy, toy_prompts

BRANCH = "one_step_branch(first=0.9, roots=4)"
EIGHT = Request(toy_prompts(8), list(range(8)), 4, seed=5)


def steps_of(made) -> dict[str, set[int]]:
    """The trained steps of the samples of each prompt."""
    steps: dict[str, set[int]] = {}
    for prompt, row in zip(made.prompts, made.decisions.loss_mask, strict=True):
        steps.setdefault(prompt.id, set()).update(row.nonzero()[:, 0].tolist())
    return steps


@pytest.mark.parametrize(
    "plan",
    [BRANCH, "random_window(size=2)", "sliding_window(size=2, schedule='random')", "tree_window(children=2, depth=2)"],
)
def test_ranks_share_the_plan_of_a_round_and_draw_every_prompt_group_size_times(plan):
    policy = toy_policy(plan, steps=8)

    def drawn(slots, round):
        return policy.rollout(Request([EIGHT.prompts[slot] for slot in slots], slots, 4, seed=5 + round, round=round))

    found = []
    for number in range(6):
        parts = [drawn(slots, number) for slots in ([0, 1, 2], [3], [4, 5, 6, 7])]
        steps = [set.union(*steps_of(part).values()) for part in parts]
        assert steps[0] == steps[1] == steps[2]
        names = [prompt.id for part in parts for prompt in part.prompts]
        assert sorted(names) == sorted([prompt.id for prompt in EIGHT.prompts] * 4)
        found.append(frozenset(steps[0]))
    assert len({*found}) > 1


def test_samples_of_a_prompt_share_the_step_and_prompts_differ():
    once, each = (toy_policy(BRANCH, steps=8, plan_per=per).rollout(EIGHT) for per in ("round", "prompt"))
    assert len(set.union(*steps_of(once).values())) == 1
    assert all(len(steps) == 1 for steps in steps_of(each).values()) and len(set.union(*steps_of(each).values())) > 2


def test_the_step_of_a_prompt_does_not_depend_on_the_other_prompts():
    """So that the plans of a round are the same on any number of ranks, and in parts of a round."""
    policy = toy_policy(BRANCH, steps=8, plan_per="prompt")
    whole = policy.rollout(EIGHT)
    for slots in ([0, 1, 2], [5], [7, 3]):
        part = policy.rollout(replace(EIGHT, prompts=[EIGHT.prompts[slot] for slot in slots], slots=slots))
        assert {name: steps_of(whole)[name] for name in steps_of(part)} == steps_of(part)
        for row, prompt in enumerate(part.prompts):
            first = [one.id for one in whole.prompts].index(prompt.id)
            same = first + row - [one.id for one in part.prompts].index(prompt.id)
            torch.testing.assert_close(part.outputs[row].pixels, whole.outputs[same].pixels, rtol=0, atol=1e-6)
            assert part.decisions.keys["prompt"][row] == whole.decisions.keys["prompt"][same]


def test_decisions_are_numbered_apart_scored_again_and_counted():
    policy = toy_policy(BRANCH, steps=8, plan_per="prompt", completion_steps=2)
    made = policy.rollout(EIGHT)
    assert sum(len(part) for part in made.completions.parts()) == len(made.completions.rows)
    assert policy.model.forwards == made.evaluations
    assert torch.equal(made.decisions.owned, made.decisions.loss_mask) and made.decisions.loss_mask.sum() == 32
    gap = (rescored(policy, made) - made.decisions.log_probs)[made.decisions.loss_mask]
    assert gap.abs().max() <= 5e-7
    assert sorted(made.decisions.keys["prompt"].tolist()) == sorted([*range(8)] * 4)


def test_one_prompt_has_the_plan_that_its_slot_draws():
    """With plans that draw nothing both settings are the same rollout."""
    made = [toy_policy("every_step", plan_per=per).rollout(EIGHT) for per in ("round", "prompt")]
    assert torch.equal(made[0].decisions.log_probs, made[1].decisions.log_probs)
    assert torch.equal(made[0].decisions.node, made[1].decisions.node)


def test_flash_grpo_trains(tmp_path):
    policy = toy_policy(BRANCH, steps=8, kernel="flow_sde_wan", plan_per="prompt")
    blocks = algorithm_blocks("flash_grpo", aggregation="rectified(pool=7)")
    run = trainer(policy, tmp_path, toy_prompts(4), prompts_per_step=4, group_size=4, steps=2, **blocks)
    run.fit()
    assert (tmp_path / "metrics.jsonl").read_text().count("grad_norm") == 2


@pytest.mark.parametrize("splits, effect", [([0, 1, 3, 5], True), ([0, 2, 4, 6], False)])
def test_pruning_needs_a_trained_step_behind_the_last_split(splits, effect):
    """Of 8 steps the last, number 7, is deterministic."""
    config = config_class(family("sd3").sections)()
    config.data.group_size = 16
    config.sampling.steps, config.sampling.plan = 8, f"branch_tree(splits={splits})"
    assert ("later_steps" in has(config)) == effect
    blocks = recipe(select=["parent_top1"]), LossRecipe.of("ppo", "per_sample")
    with nullcontext() if effect else pytest.raises(ValueError, match=r"algorithm\.select.*parent_top1.*last split"):
        refuse_unmet(*blocks, has(config))
