"""Steps that evaluate the loss several times: SFPO and TRPO in numbers, and on a policy."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from mmgrpo.config.registry import bind
from mmgrpo.rounds.steps import STEPS
from mmgrpo.update import LossRecipe
from tests.building import first_number, trainer
from tests.toys import toy_policy, toy_prompts


def descended(text: str) -> tuple[float, int]:
    """The weight after a step of SGD with rate .1 on w^2 / 2 from 1, and the number of evaluations of the loss."""
    weight, calls = nn.Parameter(torch.ones(1, dtype=torch.float64)), []

    def evaluate(which: str) -> float:
        assert which == "loss"
        calls.append(which)
        weight.grad = weight.detach().clone()
        return float(weight.detach().square() / 2)

    evaluate("loss")
    inputs = {"optimizer": torch.optim.SGD([weight], lr=0.1), "parameters": [weight], "evaluate": evaluate}
    bind(text, STEPS, "optim.step")(inputs)
    return float(weight.detach()), len(calls)


@pytest.mark.parametrize(
    ("text", "weight", "evaluations"),
    [
        ("plain", 0.9, 1),
        ("sfpo(fast=3, alpha=0)", 0.9, 1),
        ("sfpo(fast=3, alpha=0.8)", 0.70488, 4),
        ("sfpo(fast=3, alpha=1)", 0.9**4, 4),
    ],
)
def test_fast_steps_a_move_back_and_a_slow_step(text, weight, evaluations):
    assert descended(text) == (pytest.approx(weight), evaluations)


def bernoulli(scale: float = 1.0, delta: float = 0.01, tries: int = 10) -> tuple[float, float]:
    """The logit and its KL to .5 after a natural step with A = +-scale/2: g = -scale / 4 and F = p (1 - p) = .25."""
    logit, old = nn.Parameter(torch.zeros(1, dtype=torch.float64)), math.log(0.5)

    def evaluate(which: str) -> float:
        p = torch.sigmoid(logit)
        if which == "loss":  # the mean over outcomes of -ratio A at the old probabilities, p_old ratio = p
            value = -(p * 0.5 - (1 - p) * 0.5) * scale
        else:
            value = 0.5 * ((p.log() - old) ** 2 / 2 + ((1 - p).log() - old) ** 2 / 2)
        logit.grad = None
        value.backward()
        return float(value.detach())

    evaluate("loss")
    bound = bind(f"natural(damping=0, delta={delta}, tries={tries})", STEPS, "optim.step")
    bound({"parameters": [logit], "evaluate": evaluate})
    p = float(torch.sigmoid(logit.detach()))
    return float(logit.detach()), p * math.log(p / 0.5) + (1 - p) * math.log((1 - p) / 0.5)


def test_a_natural_step_has_the_length_of_its_trust_region():
    logit, kl = bernoulli()
    # sqrt(2 delta / F) = .28284; its squares are .0100 + and one shrink of .8 is needed where they exceed delta
    assert logit == pytest.approx(0.28284, abs=1e-4) or logit == pytest.approx(0.8 * 0.28284, abs=1e-4)
    assert 0.005 < kl <= 0.01
    assert bernoulli(scale=100.0)[0] == pytest.approx(logit, rel=1e-6)  # whatever the scale of the advantages


def on_policy(text: str, folder, **options):
    torch.manual_seed(0)
    loss = LossRecipe.of("ppo(low=0.2, high=0.2)", "per_sample")
    settings = {"lr": 1e-3, "step": text, "steps": 2, "loss": loss, "reward": first_number, **options}
    run = trainer(toy_policy(), folder, toy_prompts(2), prompts_per_step=2, group_size=4, **settings)
    before = {name: one.detach().clone() for name, one in run.trained.items()}
    run.run_round()
    return run, {name: one.detach() - before[name] for name, one in run.trained.items()}


def test_a_move_all_the_way_back_is_a_plain_step_of_the_policy(tmp_path):
    _, plain = on_policy("plain", tmp_path / "a")
    _, none = on_policy("sfpo(fast=4, alpha=0)", tmp_path / "b")
    _, some = on_policy("sfpo(fast=2, alpha=0.5)", tmp_path / "c")
    assert all(torch.equal(plain[name], none[name]) for name in plain)
    assert not all(torch.equal(plain[name], some[name]) for name in plain)


def test_a_policy_moves_within_the_trust_region_whatever_the_learning_rate(tmp_path):
    moves = []
    for number, lr in enumerate((1e-3, 10.0)):
        run, moved = on_policy("natural(delta=1e-4, iterations=4)", tmp_path / str(number), lr=lr)
        assert any(part.abs().max() > 0 for part in moved.values())
        moves.append(moved)
        line = run.record.log.path.read_text().splitlines()[-1]
        assert '"nonfinite": 0' in line
    assert all(torch.equal(moves[0][name], moves[1][name]) for name in moves[0])


@pytest.mark.parametrize("wrong", ["sfpo(fast=0, alpha=0.5)", "sfpo(fast=2, alpha=2)", "newton", "natural(delta=0)"])
def test_a_wrong_step_is_refused(wrong):
    with pytest.raises(ValueError, match="optim.step"):
        bind(wrong, STEPS, "optim.step")
