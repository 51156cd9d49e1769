"""Decisions as the neighbour that a deterministic step comes nearest to."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch

from mmgrpo.advantages.scale import power_norm
from mmgrpo.policies.neighbors import NeighborPolicy, nearness
from mmgrpo.types import Request
from mmgrpo.update import LossRecipe
from tests.building import near_one, recipe, rescored, trainer
from tests.toys import ToyModel, toy_prompts

REQUEST = Request(toy_prompts(2), [0, 1], 4, seed=5)
MEMBERS = torch.tensor([[[0.0, 0.0], [0.3, 0.1], [-0.2, 0.4]]])


def made(**options: Any) -> NeighborPolicy:
    model: Any = ToyModel()
    given = {"steps": 5, "draws": 2, "anchors": 3, "spread": 0.3, "temperature": 1.0} | options
    return NeighborPolicy(model, evaluation_steps=5, forward_batch_size=99, **given)


def test_the_softmax_of_distances_has_the_numbers_and_the_gradient_of_the_paper():
    old, x = torch.zeros(1, 2), torch.tensor([[0.05, 0.02]])
    before, now = nearness(MEMBERS, old, 1.0)[0], nearness(MEMBERS, x, 1.0)[0]
    torch.testing.assert_close(before.exp(), torch.tensor([0.367165, 0.332225, 0.300610]), rtol=0, atol=1e-6)
    torch.testing.assert_close(now.exp().detach(), torch.tensor([0.363426, 0.340214, 0.296360]), rtol=0, atol=1e-6)
    ratio = (now - before).exp().detach()
    torch.testing.assert_close(ratio, torch.tensor([0.989815, 1.024047, 0.985864]), rtol=0, atol=1e-6)
    old.requires_grad_(True)
    # 2 (x_i - sum_j pi_j x_j)
    wanted = [[-0.079091, -0.306933], [0.520909, -0.106933], [-0.479091, 0.493067]]
    for one, gradient in zip(nearness(MEMBERS, old, 1.0)[0], wanted, strict=True):
        (found,) = torch.autograd.grad(one, old, retain_graph=True)
        torch.testing.assert_close(found[0], torch.tensor(gradient), rtol=0, atol=1e-6)


def test_a_temperature_divides_the_distances():
    x = torch.tensor([[0.05, 0.02]])
    torch.testing.assert_close(nearness(2 * MEMBERS, 2 * x, 4.0), nearness(MEMBERS, x, 1.0))


def test_the_quasi_norm_of_a_group():
    centred, key = torch.tensor([1.0, 0.2, -1.2]).double(), torch.zeros(3, dtype=torch.long)
    stat = torch.ones(3, dtype=torch.bool)
    wanted = torch.tensor([0.3291, 0.0658, -0.3949]).double()
    torch.testing.assert_close(power_norm(centred, key, stat), wanted, rtol=0, atol=1e-4)
    torch.testing.assert_close(power_norm(9 * centred, key, stat), wanted, rtol=0, atol=1e-4)  # of any scale


def test_noises_of_a_group_have_unit_variance_and_lie_apart_by_the_spread():
    noises = made().noises(Request(toy_prompts(1), [0], 4000, seed=5), 0)
    assert noises.var(0).mean() == pytest.approx(0.09, rel=0.1)
    policy = made()
    roots = torch.stack([policy.noises(Request(toy_prompts(1), [0], 1, seed=s), 0)[0] for s in range(500)])
    assert float(roots.var(0).mean()) == pytest.approx(1.0, rel=0.15)


def test_the_ratio_is_one_and_parts_share_the_evaluation_of_an_anchor():
    policy = made()
    rollout = policy.rollout(REQUEST)
    assert rollout.decisions.log_probs.shape == (8, 2 * 3) and rollout.evaluations == 8 * 5
    torch.testing.assert_close(rescored(policy, rollout), rollout.decisions.log_probs, rtol=0, atol=1e-5)
    before = policy.model.forwards  # type: ignore[attr-defined]
    torch.testing.assert_close(rescored(policy, rollout, limit=4), rollout.decisions.log_probs, rtol=0, atol=1e-5)
    assert policy.model.forwards - before == 2 * 2 * 3  # type: ignore[attr-defined]  # groups, steps, anchors
    probabilities = rollout.decisions.log_probs.exp().view(2, 4, 6).sum(1)
    torch.testing.assert_close(probabilities, torch.ones(2, 6))
    entropy = rollout.decisions.fields["neighbor_entropy"]
    assert float(entropy.min()) > 0 and float(entropy.max()) <= math.log(4) + 1e-6


def test_scores_are_those_of_a_loop_after_the_weights_have_moved():
    policy = made(temperature=0.5)
    rollout = policy.rollout(REQUEST)
    kept: Any = rollout.steps
    with torch.no_grad():
        for parameter in policy.network.parameters():
            parameter += 0.05
    found = rescored(policy, rollout)
    reference = rescored(policy, rollout, name="reference.log_probs")
    torch.testing.assert_close(reference, rollout.decisions.log_probs, rtol=0, atol=1e-5)
    for row, column in ((0, 0), (3, 4), (6, 5)):
        group = row // 4
        t, anchor = int(kept.step[group, column]), int(kept.anchor[group, column])
        assert anchor // 4 == group
        now, then = policy.grid.levels[t], policy.grid.levels[t + 1]
        x = kept.states[t, anchor][None]
        with torch.no_grad():
            velocity = policy.network(x, policy.grid.times[t][None], kept.conditioning.number[anchor][None])
        x = x + (then - now) * velocity
        distances = [float((kept.states[t + 1, 4 * group + i] - x[0]).square().sum()) / 0.5 for i in range(4)]
        wanted = -distances[row % 4] - math.log(sum(math.exp(-one) for one in distances))
        assert float(found[row, column]) == pytest.approx(wanted, abs=1e-4)


@pytest.mark.learning
def test_a_group_learns_by_distances(tmp_path):
    fitted = trainer(
        made(steps=4, draws=3, anchors=2, spread=0.5),
        tmp_path,
        toy_prompts(4),
        reward=near_one,
        heldout=toy_prompts(4),
        advantages=recipe(scale="power_norm(p=0.8)"),
        loss=LossRecipe.of("ppo(low=0.2, high=0.2)", "per_sample"),
        prompts_per_step=4,
        group_size=12,
        steps=80,
        lr=1e-2,
    )
    result = fitted.fit()["eval"]
    assert result["after"]["reward"]["mean"] > result["before"]["reward"]["mean"] + 0.3
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert all(0 < line["rollout/neighbor_entropy"] <= math.log(12) for line in lines)
    assert max(line["ratio/first_minus_one"] for line in lines) <= 1e-5


@pytest.mark.parametrize(("options", "match"), [({"draws": 6}, "draws.*6.*5"), ({"anchors": 5}, "anchors.*5.*4")])
def test_more_steps_or_anchors_than_there_are_are_refused(options, match):
    with pytest.raises(ValueError, match=match):
        made(**options).rollout(REQUEST)
