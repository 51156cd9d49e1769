"""Mixed-policy GRPO: the data set's own answer as one member of a group (arXiv:2509.16990)."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator

from mmgrpo.advantages.estimate import estimate
from mmgrpo.objectives.surrogates import importance, luffy, ppo
from mmgrpo.types import OWN, REFERENCE, Output, Prompt, Text
from mmgrpo.update import Batch, accumulate_gradients
from pipelines.text.causal_lm import toy
from tests.building import algorithm_blocks, amplify, rescored, token_policy_over, trainer
from tests.unit.policies.test_beam_search import log_prob_of
from tests.unit.policies.test_token_policy import WORDS, completions, rollout, token_policy

pytest.importorskip("transformers")

PROMPTS = [Prompt("say a", "0", "a b"), Prompt("say b c d a", "1", "d c b a")]


def right(prompts: list[Prompt], outputs: list[Output]) -> list[float]:
    return [float(isinstance(o, Text) and o.text == p.answer) for p, o in zip(prompts, outputs, strict=True)]


def test_the_answer_is_the_last_member_of_its_group_and_judged_like_the_others():
    policy = token_policy(reference_in_group=True)
    made = rollout(policy, PROMPTS, group_size=4)
    assert made.decisions.origin.tolist() == [OWN, OWN, OWN, REFERENCE] * 2
    assert made.decisions.keys["prompt"].tolist() == [0] * 4 + [1] * 4
    assert [prompt.id for prompt in made.prompts] == ["0"] * 4 + ["1"] * 4
    assert [made.outputs[3], made.outputs[7]] == [Text("a b", 3), Text("d c b a", 5)]
    assert right(list(made.prompts), list(made.outputs))[3::4] == [1.0, 1.0]
    alone = rollout(token_policy(), PROMPTS, group_size=3)
    own = made.decisions.origin == OWN
    width = completions(alone).shape[1]
    assert torch.equal(completions(made)[own][:, :width], completions(alone))  # the samples are those without it


def test_the_importance_weight_of_a_token_is_its_probability():
    policy = token_policy(reference_in_group=True)
    made = rollout(policy, PROMPTS, group_size=2)
    scored = rescored(policy, made)
    for row, prompt in ((1, PROMPTS[0]), (3, PROMPTS[1])):
        real = made.decisions.loss_mask[row]
        assert made.decisions.log_probs[row].tolist() == [0.0] * len(real)
        ids = tuple(completions(made)[row][real].tolist())
        with torch.no_grad():
            assert float(scored[row].sum()) == pytest.approx(float(log_prob_of(policy, prompt, ids)), abs=1e-5)


def test_a_given_decision_is_never_clipped_and_its_gradient_fades_with_its_probability():
    log_probs = torch.tensor([math.log(0.5), math.log(1e-3)], requires_grad=True)
    nothing, worse = torch.zeros(2), -torch.ones(2)
    (slope,) = torch.autograd.grad(importance(log_probs, nothing, worse).values.sum(), log_probs)
    torch.testing.assert_close(slope, torch.tensor([0.5, 1e-3]))  # -A p
    (stopped,) = torch.autograd.grad(ppo(log_probs, nothing, worse).values.sum(), log_probs)
    assert stopped.tolist() == [0.0, 0.0]  # a clip would have made it useless


def test_luffys_shaping_keeps_a_slope_for_unlikely_tokens():
    # p / (p + .1) at p = .1 is 1/2; its slope by log p there is p * .1 / (p + .1)^2 = 1/4 instead of p = 1/10
    log_probs = torch.tensor([math.log(0.1)], requires_grad=True)
    loss = luffy(log_probs, torch.zeros(1), torch.ones(1)).values
    assert loss.item() == pytest.approx(-0.5)
    (slope,) = torch.autograd.grad(loss.sum(), log_probs)
    assert slope.item() == pytest.approx(-0.25)


@pytest.mark.parametrize("objective", ["ppo(low=0.2, high=0.2)", "gspo_token(low=3e-4, high=4e-4)"])
def test_the_gradient_is_that_of_the_papers_formula(objective):
    """(1 / number of tokens) [sum over samples of A r + sum over the answer's tokens of A p], all A of one group."""
    policy = token_policy(reference_in_group=True)
    made = rollout(policy, PROMPTS[:1], group_size=4)
    rewards = torch.tensor([0.0, 0.5, 0.0, 1.0])
    blocks = algorithm_blocks("mp_grpo", objective=objective, terms=[])
    told = estimate(
        rewards[:, None], torch.ones(4, 1, dtype=torch.bool), torch.ones(1), made.decisions, blocks["advantages"]
    )
    batch = Batch([made], [torch.arange(4)], made.decisions, told.advantages, told.loss_mask)
    tally = accumulate_gradients(
        policy,
        batch,
        torch.ones(4, dtype=torch.bool),
        blocks["loss"],
        micro_batch_size=2,
        accelerator=Accelerator(cpu=True),
        on_policy=True,
    )
    assert tally.ratio_gap < 1e-5  # the answer's ratio is not one, and not counted
    ours = torch.cat([p.grad.flatten().clone() for p in policy.network.parameters() if p.grad is not None])
    policy.network.zero_grad()
    advantage = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
    total, count = torch.zeros(()), int(made.decisions.loss_mask.sum())
    (before,) = policy.model.encode(PROMPTS[:1]).ids
    for row in range(4):
        ids = completions(made)[row][made.decisions.decision_mask[row]]
        logits = policy.network(torch.cat([before, ids])[None]).logits[0, len(before) - 1 : -1]
        spread = logits.index_fill(1, torch.tensor(sorted(policy.model.suppress_tokens)).long(), -torch.inf)
        chosen = spread.log_softmax(-1).gather(1, ids[:, None])[:, 0]
        ratio = chosen.exp() if row == 3 else (chosen - chosen.detach()).exp()
        total = total - (advantage[row] * ratio).sum() / count
    total.backward()
    wanted = torch.cat([p.grad.flatten() for p in policy.network.parameters() if p.grad is not None])
    assert wanted.abs().max() > 1e-2
    torch.testing.assert_close(ours, wanted, rtol=0, atol=3e-6)


def test_tokens_that_the_policy_never_says_are_not_trained():
    policy = token_policy(reference_in_group=True)
    (word,) = policy.model.spell("c")[:-1]
    policy.suppressed = torch.tensor([word])
    policy.begin_suppressed = torch.tensor(policy.model.spell("d")[:-1])
    made = rollout(policy, PROMPTS[1:], group_size=2)  # "d c b a" and the end
    assert made.decisions.loss_mask[1].tolist() == [False, False, True, True, True] + [False] * (
        made.decisions.loss_mask.shape[1] - 5
    )
    assert made.decisions.decision_mask[1].sum() == 5


def test_a_prompt_without_an_answer_is_named():
    with pytest.raises(ValueError, match="'7'.*None"):
        rollout(token_policy(reference_in_group=True), [Prompt("say a", "7")], group_size=2)
    with pytest.raises(ValueError, match="data.group_size"):
        rollout(token_policy(reference_in_group=True), PROMPTS, group_size=1)


def test_beams_and_the_answer_make_one_group():
    made = rollout(token_policy(reference_in_group=True, search="beam"), PROMPTS, group_size=4)
    assert made.decisions.origin.tolist() == [OWN, OWN, OWN, REFERENCE] * 2


@pytest.mark.learning
def test_what_sampling_never_finds_is_learned_from_the_answer_only(tmp_path: Path):
    """One of 50,000 sequences is right: without the answer no group ever has spread."""
    prompt = Prompt("say b c d a", "1", "c b a d c")

    def gain(reference_in_group: bool) -> float:
        """How much likelier 40 steps make the answer, in nats."""
        model = toy(WORDS)
        amplify(model.network, 4)
        policy = token_policy_over(model, max_tokens=6, reference_in_group=reference_in_group)
        made = trainer(
            policy,
            tmp_path / str(reference_in_group),
            [prompt],
            reward=right,
            prompts_per_step=1,
            group_size=8,
            steps=40,
            lr=3e-3,
            weight_decay=0.0,
            **algorithm_blocks("mp_grpo", terms=[], off_policy="luffy(gamma=0.1)"),
        )
        answer = tuple(policy.model.spell("c b a d c"))
        before = log_prob_of(policy, prompt, answer).item()
        made.fit()
        return log_prob_of(policy, prompt, answer).item() - before

    assert gain(False) == 0.0
    assert gain(True) > 2.0
