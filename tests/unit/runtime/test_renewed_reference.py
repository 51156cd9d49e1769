"""A reference that is renewed when the run stalls (ProRL, arXiv:2505.24864), with or without a new optimizer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from mmgrpo.runtime.networks import Networks, bind_networks
from mmgrpo.trainer import Trainer
from mmgrpo.update import LossRecipe
from tests.building import near_one, trainer
from tests.toys import toy_policy, toy_prompts
from tests.unit.runtime.test_networks import Scalar, weight


def run(folder: Path, rule: str, steps: int = 8, term: str = "kl_k3(coef=0.1)", **settings) -> Trainer:
    loss = LossRecipe.of("ppo(low=0.2, high=0.2)", "per_sample", terms=[term], networks=[rule])
    # A learning rate at which it soon gets worse.
    return trainer(
        toy_policy(steps=4), folder, toy_prompts(4), reward=near_one, loss=loss, steps=steps, save_every=1,
        heldout=toy_prompts(2), every=3, lr=0.5, **settings,
    )  # fmt: skip


def test_a_stall_is_counted_in_evaluations_without_a_new_best_and_ends_with_a_renewal():
    model = Scalar(1.0)
    networks = Networks(model)
    networks.follow(bind_networks(["renewal(stall=2, by='b', optimizer=True)"]))
    means = [(0.0, 0.5), (0.1, 0.5), (0.2, 0.4), (0.3, 0.6)]  # of b: best, stalled 1, 2, best
    renewed = []
    for step, (a, b) in enumerate(means, 1):
        networks.observe({"a": a, "b": b})
        model.set(1.0 + step)
        renewed.append(networks.advance(step))
    assert renewed == [False, False, True, False]
    assert weight(networks, "reference") == 4.0 and networks.stalled == {"a": 0, "b": 0}


def test_a_moving_reference_goes_a_share_of_the_way():
    """T1, arXiv:2501.11651: at rate .01 from 1 to 0 it becomes .99; at rate 0 it is frozen, at 1 the policy itself."""
    for decay, expected in ((0.99, 0.99), (1.0, 1.0), (0.0, 0.0)):
        model = Scalar(1.0)
        networks = Networks(model)
        networks.follow(bind_networks([f"average(name='reference', start={decay}, most={decay})"]))
        model.set(0.0)
        networks.advance(1)
        assert weight(networks, "reference") == pytest.approx(expected)


@pytest.mark.parametrize("term", ["kl_k2(coef=1.0)", "kl_k3(coef=1.0)"])
def test_right_after_a_renewal_the_kl_is_zero_and_so_is_its_gradient(term, tmp_path):
    made = run(tmp_path, "renewal(every=2)", term=term)
    kls = []
    for _ in range(4):
        made.run_round()
        made.record.log.flush()
        kls.append(json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])[f"term/{term[:5]}"])
    assert [value == 0 for value in kls] == [True, False, True, False]


@pytest.mark.parametrize("optimizer", [True, False])
def test_the_optimizer_begins_anew_or_goes_on(optimizer, tmp_path):
    made = run(tmp_path, f"renewal(every=2, optimizer={optimizer})")
    made.run_round()
    made.run_round()
    assert bool(made.optimizer.state) == (not optimizer)
    made.run_round()
    [first] = {int(state["step"]) for state in made.optimizer.state.values()}
    assert first == (1 if optimizer else 3)


def test_a_run_that_stalls_resumes_exactly(tmp_path):
    whole = run(tmp_path / "whole", "renewal(stall=1, optimizer=True)")
    whole.fit()
    assert whole.policy.networks.changed["reference"] > 0, "it never stalled, so the test tests nothing"
    for steps in (4, 8):
        part = run(tmp_path / "part", "renewal(stall=1, optimizer=True)", steps)
        assert part.resume() == (steps == 8)
        part.fit()
    assert all(torch.equal(a, b) for a, b in zip(part.trained.values(), whole.trained.values(), strict=True))
    assert part.policy.networks.state() == whole.policy.networks.state()


def test_a_stall_without_evaluations_or_of_an_unknown_reward_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"renewal.*eval\.every"):
        trainer(
            toy_policy(), tmp_path, toy_prompts(2),
            loss=LossRecipe.of("ppo", "per_sample", terms=["kl_k3(coef=1)"], networks=["renewal(stall=1)"]),
        )  # fmt: skip
    with pytest.raises(ValueError, match="renewal.*'other'"):
        run(tmp_path, "renewal(stall=1, by='other')")
