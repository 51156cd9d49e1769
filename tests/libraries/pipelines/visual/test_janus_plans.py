"""Janus that writes a plan and draws by it: one row of words and codes, over one network."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from mmgrpo.family import family
from mmgrpo.policies.joint import JointPolicy
from mmgrpo.rollout import sample_round
from mmgrpo.types import Image, Policy, Prompt, Request, part_field
from mmgrpo.update import LossRecipe, accumulate_gradients
from tests.building import algorithm_blocks, rescored, trainer
from tests.libraries.pipelines.visual.test_janus import PROMPTS, config_of, ratio_gap, shaken
from tests.tiny import tiny_checkpoint
from tests.tiny.janus import tiny

TOKENS = 7
REQUEST = Request(PROMPTS, range(len(PROMPTS)), 4, seed=3)


@pytest.fixture(scope="module")
def folder() -> str:
    return tiny_checkpoint(tiny, places=96)


def planning(path: str, tokens: int = TOKENS, instruction: str = "of {prompt}", **model: Any) -> Any:
    config = config_of(path, **{"guidance": 5.0, **model})
    sampling = replace(config.sampling, plan_tokens=tokens, instruction=instruction)
    return replace(config, sampling=sampling, algorithm=replace(config.algorithm, preset="t2i_r1"))


def policy_of(path: str, weights: str = "", **given: Any) -> Any:
    return family("janus").policy(planning(path, **given), "cpu", PROMPTS, weights=weights)


@pytest.mark.parametrize("model", [{}, {"gradient_checkpointing": True}, {"lora_rank": 2}])
def test_a_plan_and_its_codes_are_one_row_that_is_scored_as_it_was_drawn(model, folder):
    policy = shaken(policy_of(folder, **model))
    rollout = policy.rollout(REQUEST)
    decisions = rollout.decisions
    assert isinstance(policy, Policy) and isinstance(policy, JointPolicy) and policy.kind == "tokens"
    words = [one.words for one in rollout.outputs if isinstance(one, Image)]
    assert len({*words}) > 6 and len(words) == 12
    written = decisions.fields[part_field("text")].sum(1)
    assert decisions.loss_mask.sum(1).tolist() == [16 + int(n) for n in written] and written.max() <= TOKENS
    assert torch.equal(decisions.loss_mask, decisions.owned) and decisions.loss_mask.shape == (12, 16 + TOKENS)
    torch.testing.assert_close(rescored(policy, rollout), decisions.log_probs, rtol=0, atol=1e-5)
    assert ratio_gap(policy, rollout) < 1e-4
    assert [prompt.text for prompt in rollout.prompts[::4]] == [prompt.text for prompt in PROMPTS]


def test_codes_are_drawn_under_guidance_by_the_prompt_and_its_plan_and_words_without(folder):
    policy = shaken(policy_of(folder))
    rollout = policy.rollout(REQUEST)
    before, codes = rescored(policy, rollout), rollout.decisions.fields[part_field("image")]
    read = policy.second.model.encode([Prompt(f"{PROMPTS[0].text}. {rollout.outputs[0].words}", "0")])
    steps: Any = rollout.steps
    context = steps.draws.steps.context.take([0])
    assert torch.equal(context.ids[context.real], read.ids[read.real])
    policy.second.model.guidance = 1.0
    gap = (rescored(policy, rollout) - before).abs()
    assert gap[~codes].max() == 0 and gap[codes].max() > 0.05


def flat(network: Any) -> Tensor:
    return torch.cat(
        [(torch.zeros_like(one) if one.grad is None else one.grad).flatten() for one in network.parameters()]
    )


def test_the_gradient_of_a_row_is_that_of_both_parts_with_one_advantage(folder, tmp_path):
    """(n0 g0 + n1 g1) / n, of one network, which has one reference and one set of weights."""
    policy = shaken(policy_of(folder))
    policy.keep_reference()
    made = trainer(
        policy, tmp_path, PROMPTS, reward=lambda prompts, outputs: [float(one.pixels.mean()) for one in outputs]
    )
    blocks = algorithm_blocks("t2i_r1")
    given = policy, made.scorers, blocks["advantages"], made.prompts, made.order, made.rounds
    batch = sample_round(*given, cursor=0, number=0, seed=0, accelerator=made.accelerator).batch
    rows = batch.advantages.masked_fill(~batch.decisions.decision_mask, torch.nan)
    assert float((rows.nan_to_num(-9).amax(1) - rows.nan_to_num(9).amin(1)).abs().max()) == 0
    assert rows.nanmean(1).unique().numel() > 2
    shaken(policy, 0.02)  # the reference is another network now

    def gradient(some: Any, loss: LossRecipe) -> Tensor:
        policy.network.zero_grad()
        every = torch.ones(some.decisions.rows, dtype=torch.bool)
        accumulate_gradients(
            policy, some, every, loss, accelerator=made.accelerator, on_policy=False, micro_batch_size=100
        )
        return flat(policy.network)

    whole = gradient(batch, blocks["loss"])
    parts = [batch.of_part(name) for name in ("text", "image")]
    counts = [int(one.loss_mask.sum()) for one in parts]
    apart = sum(n * gradient(one, blocks["loss"]) for n, one in zip(counts, parts, strict=True)) / sum(counts)
    assert whole.abs().max() > 1e-4 and min(float(gradient(one, blocks["loss"]).abs().max()) for one in parts) > 1e-5
    torch.testing.assert_close(whole, apart, rtol=0, atol=1e-6)
    assert len(policy.networks.model.reference.copies) == 1


@pytest.mark.parametrize("rank", [0, 2])
def test_one_model_is_saved_that_writes_and_draws_alike(rank, folder, tmp_path):
    policy = shaken(policy_of(folder, lora_rank=rank))
    assert policy.network.lm_head.weight.requires_grad is not bool(rank)
    policy.save(tmp_path / "saved")
    assert not [path for path in (tmp_path / "saved").iterdir() if path.is_dir()]
    again = policy_of(folder, weights=str(tmp_path / "saved"), lora_rank=rank)
    rollout = policy.rollout(REQUEST)
    assert torch.equal(rescored(again, rollout), rescored(policy, rollout))


def test_plans_that_the_model_cannot_write_or_read_are_refused(folder):
    owner, prompt = family("janus"), Prompt("a " * 60, "long")
    with pytest.raises(ValueError, match=r"sampling\.plan_tokens.*80.*80"):
        owner.refuse_model(planning(folder, tokens=80), folder)
    with pytest.raises(ValueError, match=r"sampling\.instruction.*\{prompt\}"):
        owner.check(planning(folder, instruction="describe"))
    config = planning(folder, tokens=40, instruction="of of of {prompt}")
    loose = replace(config, data=replace(config.data, skip_limit=0.5))
    policy = owner.policy(config, "cpu", PROMPTS)
    kept, skipped = owner.accept(loose, policy, [*PROMPTS, prompt])
    assert kept == PROMPTS and [one.id for one in skipped] == ["long"]
