"""HAPO's temperature of sampling: uncertain tokens are drawn hotter, sure ones colder, and all are scored as before."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from mmgrpo.policies.entropy_temperature import SCALE, temper_by_entropy
from mmgrpo.rounds.entropy_temperature import EntropyScale
from mmgrpo.types import Prompt, Request
from pipelines.text.causal_lm import toy
from tests.building import algorithm_blocks, rounds_of, token_policy_over, trainer

WORDS = ["say", "a", "b", "c"]
PROMPTS = [Prompt("say a", "0", "a"), Prompt("say b", "1", "b")]
PIVOT, UP, DOWN = 0.3, 0.2, 0.4


def test_the_log_odds_of_a_sure_token_grow_and_those_of_an_uncertain_one_shrink():
    """H of .9 and .1 is .3251, its log -1.1237: with a pivot 1 above and a scale of 2, h = -.5."""
    sure = torch.tensor([[0.9, 0.1, 0.0]]).log()

    def odds(pivot, up, down, tau=0.5):
        made = temper_by_entropy(sure, tau, pivot, up, down)
        assert made.exp().sum().item() == pytest.approx(1) and made[0, 2] == -torch.inf
        return float(made[0, 0] - made[0, 1])

    log_h = math.log(-0.9 * math.log(0.9) - 0.1 * math.log(0.1))
    assert odds(log_h + 1, 9.0, 2.0) == pytest.approx(math.log(9) / 0.75, abs=1e-5)
    assert odds(log_h - 1, 2.0, 9.0) == pytest.approx(math.log(9) / 1.25, abs=1e-5)
    assert odds(log_h + 5, 9.0, 2.0) == pytest.approx(math.log(9) / 0.5, abs=1e-5)  # h is at least -1
    assert odds(log_h, 1.0, 1.0) == odds(log_h + 1, 1.0, 1.0, tau=0.0) == pytest.approx(math.log(9), abs=1e-5)


def rollout(policy, scale=(), size=8):
    return policy.rollout(Request(PROMPTS, [0, 1], size, 3, sampling=dict(zip(SCALE, scale))))


def test_tokens_are_drawn_at_their_temperature_and_scored_at_that_of_the_recipe():
    policy = token_policy_over(toy(WORDS), max_tokens=4, temperature=1.3, temperature_by_entropy=0.5)
    made = rollout(policy, (PIVOT, UP, DOWN))
    decisions, sequences = made.decisions, made.steps
    assert decisions.fields.keys() == policy.fields == {"truncated", "entropy", "sampler_log_probs"}
    [part] = sequences.split(decisions.decision_mask, 100)
    states = policy.states(policy.network, sequences, part.distinct)[part.inverse, part.positions]
    plain = policy._log_softmax(policy.network, states, part.positions == 0, 1.3)
    chosen = sequences.ids[part.rows, part.positions][:, None]
    drawn = temper_by_entropy(plain, 0.5, PIVOT, UP, DOWN)
    at = part.rows, part.positions
    for name, wanted in (("log_probs", plain), ("sampler_log_probs", drawn)):
        own = decisions.log_probs if name == "log_probs" else decisions.fields[name]
        torch.testing.assert_close(own[at], wanted.gather(1, chosen)[:, 0], rtol=0, atol=1e-5)
    entropy = -(plain.exp() * plain.clamp(min=-1e30)).sum(1)
    torch.testing.assert_close(decisions.fields["entropy"][at], entropy, rtol=0, atol=1e-5)
    assert (drawn - plain).abs().max() > 0.01


def test_before_a_scale_is_known_samples_are_those_without():
    plain = rollout(token_policy_over(toy(WORDS), max_tokens=4))
    made = rollout(token_policy_over(toy(WORDS), max_tokens=4, temperature_by_entropy=0.5))
    assert [one.text for one in made.outputs] == [one.text for one in plain.outputs]
    own = made.decisions.fields["sampler_log_probs"]
    torch.testing.assert_close(own, made.decisions.log_probs, rtol=0, atol=1e-6)
    with pytest.raises(ValueError, match="temperature_by_entropy.*beam"):
        token_policy_over(toy(WORDS), max_tokens=4, temperature_by_entropy=0.5, search="beam")


def test_a_round_is_drawn_by_the_scale_of_the_one_before_also_of_a_resumed_run(tmp_path):
    policy = token_policy_over(toy(WORDS), max_tokens=4, temperature_by_entropy=0.5)
    scale = EntropyScale()
    blocks = algorithm_blocks("hapo_entropy", mismatch="tis")
    reward = lambda prompts, outputs: [float(one.text.startswith("a")) for one in outputs]  # noqa: E731
    made: Any = trainer(policy, tmp_path, PROMPTS, reward=reward, group_size=8, steps=2, callbacks=[scale], **blocks)
    rounds, asked = rounds_of(made), []
    draw = policy.rollout
    policy.rollout = lambda request: asked.append(dict(request.sampling)) or draw(request)  # type: ignore[method-assign]
    made.run_round()
    decisions = rounds[0].batch.decisions
    logs = decisions.fields["entropy"][decisions.decision_mask].log().sort().values
    middle = float(logs[round(0.8 * (len(logs) - 1))])
    wanted = [middle, float(logs[-1]) - middle, middle - float(logs[0])]
    assert scale.state() == pytest.approx(wanted, abs=1e-5)
    made.run_round()
    assert asked[0] == {} and asked[1] == pytest.approx(dict(zip(SCALE, wanted)), abs=1e-5)
    later = EntropyScale()
    later.load(scale.state(), {}, 1)
    assert later.on_request(made, Request(PROMPTS, [0, 1], 8, 3)).sampling == dict(zip(SCALE, scale.scale))
