"""Networks that train alongside the policy, and the few-step method that needs them (TDM-R1)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from mmgrpo.config.registry import bind
from mmgrpo.diffusion.ode import Solver
from mmgrpo.objectives import OBJECTIVES
from mmgrpo.policies.boundaries import clean_estimate, renoise
from mmgrpo.policies.flow_matching import FlowMatchingPolicy
from mmgrpo.requirements.blocks import refuse_unread
from mmgrpo.requirements.policies import refuse_mismatch
from mmgrpo.runtime.finite import NotFinite
from mmgrpo.runtime.networks import bind_networks
from mmgrpo.trainer import Trainer
from mmgrpo.types import Request
from mmgrpo.update import LossRecipe, losses
from tests.building import algorithm_blocks, matching_policy_over, near_one, trainer
from tests.toys import ToyModel, toy_prompts

SURROGATE = "learner(name='surrogate', objective='surrogate_preference(beta=1.0)', lr=1e-3)"


def few_steps(steps: int = 4, **more: Any) -> FlowMatchingPolicy:
    settings: dict[str, Any] = {"steps": steps, "draws": 2, "error": "velocity", "evaluation_steps": steps}
    settings |= {"boundaries": True, **more}
    return matching_policy_over(cast(Any, ToyModel()), forward_batch_size=1024, **settings)


def made(folder: Path, **more: Any) -> Trainer:
    settings = {"prompts_per_step": 2, "group_size": 4, "steps": 4, "lr": 1e-3, "reward": near_one, **more}
    return trainer(few_steps(), folder, toy_prompts(4), **{**algorithm_blocks("tdm_r1"), **settings})


def test_a_renoised_state_has_the_marginal_of_its_level_and_the_velocity_that_made_it():
    end, noise = torch.tensor([[0.2]]), torch.tensor([[1.0]])
    noisy, velocity = renoise(end, noise, torch.tensor([0.5]), torch.tensor([0.8]))
    # alpha .4, b .77459667; -.2 / .5 + (.8 + .25 x .4 / .5) / b = -.4 + 1 / b
    assert noisy.item() == pytest.approx(0.08 + 0.77459667) and velocity.item() == pytest.approx(-0.4 + 1 / 0.77459667)
    noisy, velocity = renoise(end, noise, torch.zeros(1), torch.tensor([0.8]))
    assert noisy.item() == pytest.approx(0.2 * 0.2 + 0.8) and velocity.item() == pytest.approx(0.8)  # e - x0
    # x' of a clean sample c and noise n: x_tau is (1 - tau) c + sqrt(...) of two noises, of variance tau^2 together
    alpha, spread = 0.4, 0.77459667
    assert alpha * (1 - 0.5) == pytest.approx(1 - 0.8) and (alpha * 0.5) ** 2 + spread**2 == pytest.approx(0.8**2)


def test_the_clean_estimate_of_a_step_is_read_from_its_two_states():
    states = torch.tensor([[[1.0], [0.8]]])  # v = .5 from level 1 to .6
    assert clean_estimate(states, torch.tensor([1.0]), torch.tensor([0.6])).item() == pytest.approx(0.5)


def test_the_generators_gradient_is_that_of_a_mean_over_its_latents():
    """Reference - fake .2 and -.4, mean square .1; w = mean(.5, .3) = .4: .25, gradient -(.2, -.4) / .4."""
    x0 = torch.tensor([[[0.7], [0.4]]], requires_grad=True)
    other = torch.zeros(1, 2, 1)
    inputs = {"reference.clean": torch.tensor([[[0.3], [0.1]]]), "fake.clean": torch.tensor([[[0.1], [0.5]]])}
    inputs |= {"reference.guided_clean": torch.tensor([[[0.2], [0.7]]]), "reference.direction": other}
    given = {"clean": x0, **inputs, "surrogate.guided_clean": other, "boundary": torch.tensor([3.0])}
    value = bind("tdm_r1(mix=1.0)", OBJECTIVES, "o")(given).values
    assert value.tolist() == pytest.approx([0.25])
    value.sum().backward()
    assert x0.grad is not None and x0.grad.flatten().tolist() == pytest.approx([-0.5, 1.0])


def test_the_generators_loss_and_gradient_are_the_worked_numbers():
    x0 = torch.tensor([[0.3]], requires_grad=True)
    inputs = {"clean": x0, "reference.clean": 0.25, "reference.guided_clean": 0.775, "reference.direction": 0.15}
    inputs |= {"fake.clean": 0.28, "surrogate.guided_clean": 0.35}
    given = {name: one if isinstance(one, torch.Tensor) else torch.tensor([[one]]) for name, one in inputs.items()}
    value = bind("tdm_r1", OBJECTIVES, "o")({**given, "boundary": torch.tensor([3.0])}).values
    assert value.item() == pytest.approx(0.0009 / 0.475 + 0.3 * 0.525**2 / 0.475 + 0.7 * 0.01 / 0.05)
    value.sum().backward()
    assert x0.grad is not None and x0.grad.item() == pytest.approx(-3.33684211)
    late = bind("tdm_r1(last=3)", OBJECTIVES, "o")({**given, "boundary": torch.tensor([3.0])}).values
    assert late.item() == pytest.approx(0.3 * (0.0009 + 0.525**2) / 0.475)


def preference(gap: float, **more: float) -> tuple[float, list[float]]:
    error = torch.tensor([[0.05125], [0.00625]], requires_grad=True)
    given = {"error": error, "old.error": error.detach(), "reference.error": torch.tensor([[0.0125], [0.00125]])}
    given |= {"reference.velocity_gap": torch.full((2, 1), gap), "advantages": torch.tensor([[1.0], [-1.0]])}
    given |= {"loss_mask": torch.ones(2, 1, dtype=torch.bool), "key": torch.zeros(2, dtype=torch.long), **more}
    value = bind("surrogate_preference(beta=1.0)", OBJECTIVES, "o")(given).values.mean()
    value.backward()
    assert error.grad is not None
    return value.item(), error.grad.flatten().tolist()


def test_the_surrogates_preference_is_the_worked_number_and_stops_what_has_moved_too_far():
    near, gradient = preference(0.01)
    assert near == pytest.approx(0.01134492) and gradient == pytest.approx([0.252109, -0.252109], rel=1e-4)
    far, gradient = preference(0.06)  # the second, of A -1, has an error above the reference's already
    assert far == pytest.approx(near) and gradient == pytest.approx([0.252109, 0.0], rel=1e-4)


def test_estimates_at_the_ends_of_steps_are_those_of_a_loop():
    policy = few_steps()
    drawn = policy.rollout(Request(toy_prompts(2), [0, 1], 3, seed=5))
    kept = cast(Any, drawn.steps)
    [part] = kept.split(drawn.decisions.loss_mask, 100)
    scores = policy.score(drawn, part, frozenset({"log_probs", "clean", "estimate_error", "boundary", "error"}))
    network, queries, grid = policy.network, cast(Any, policy.queries), policy.grid
    for entry, (row, place) in enumerate(zip(part.rows.tolist(), part.positions.tolist(), strict=True)):
        step = int(kept.trajectories.step[row // 3, place])
        states, low = kept.trajectories.states[row], grid.levels[step + 1]
        level = queries.levels[kept.step[row // 3, place]]
        assert level > low and int(scores["boundary"][entry]) == step
        number = kept.conditioning.number[row : row + 1]
        first = states[step] - grid.levels[step] * network(states[step][None], grid.levels[step][None], number)[0]
        torch.testing.assert_close(scores["clean"][entry], first)
        alpha = (1 - level) / (1 - low)
        noise = kept.noise[row // 3, place]
        noisy = alpha * states[step + 1] + (level**2 - (low * alpha) ** 2).sqrt() * noise
        velocity = network(noisy[None], level[None], number)[0]
        error = (velocity - (noisy - first) / level).square().mean()
        torch.testing.assert_close(scores["estimate_error"][entry], error, rtol=1e-4, atol=1e-5)
        assert drawn.decisions.fields["boundary_weight"][row, place] == (step + 1) / 4
    assert scores["clean"].requires_grad and not scores["log_probs"].requires_grad
    torch.testing.assert_close(scores["log_probs"], -scores["error"])


def test_samples_are_those_of_the_solver_and_the_ends_of_last_steps_are_its_clean_samples():
    policy, request = few_steps(), Request(toy_prompts(2), [0, 1], 3, seed=5)
    clean = Solver(cast(Any, policy.model), 1024, torch.device("cpu")).sample(policy.network, request, policy.grid)[1]
    drawn = cast(Any, policy.rollout(request).steps)
    assert torch.equal(drawn.trajectories.states[:, -1], clean) and torch.equal(drawn.clean, clean)


def test_levels_are_above_the_ends_of_their_steps_and_the_least():
    policy = few_steps(least_level=0.6)
    drawn = cast(Any, policy.rollout(Request(toy_prompts(4), [0, 1, 2, 3], 2, seed=1)).steps)
    levels, ends = cast(Any, policy.queries).levels[drawn.step], policy.grid.levels[drawn.trajectories.step + 1]
    assert bool((levels > ends).all()) and bool((levels >= 0.6).all())


def test_a_learner_moves_by_its_own_loss_and_optimizer_and_leaves_the_policy_alone(tmp_path):
    """Two updates of SGD's direction: the sign of Adam's first step is that of the gradient, its length the rate."""
    fitted = made(tmp_path, steps=1)
    before = {name: {k: v.clone() for k, v in values.items()} for name, values in fitted.policy.networks.values.items()}
    fitted.fit()
    moved = {
        name: max(float((fitted.policy.networks.values[name][key] - old).abs().max()) for key, old in values.items())
        for name, values in before.items()
    }
    assert moved["fake"] == pytest.approx(3e-4, rel=1e-2) and moved["surrogate"] == pytest.approx(3e-4, rel=1e-2)
    assert 0 < moved["old"] <= moved["surrogate"]  # decay .002 after a step
    line = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[0])
    assert line["learner/fake/loss"] > 0 and line["learner/surrogate/grad_norm"] > 0 and line["grad_norm"] > 0


def test_a_learner_takes_its_own_number_of_steps_of_at_most_the_largest_norm(tmp_path):
    """Adam divides a gradient of norm 1e-12 by its eps of 1e-8: a step of the rate becomes one of 1e-4 of it."""
    networks = [
        "learner(name='fake', objective='fake_score', lr=1e-3, updates=3)",
        SURROGATE,
        "average(name='old', of='surrogate', most=0.3)",
    ]
    blocks = algorithm_blocks("tdm_r1", networks=networks)
    fitted = made(tmp_path, steps=1, max_grad_norm=1e-12, **blocks)
    before = {name: [one.clone() for one in values.values()] for name, values in fitted.policy.networks.values.items()}
    fitted.fit()
    for name, updates in (("fake", 3), ("surrogate", 1)):
        states = fitted.policy.networks.optimizers[name].state.values()
        assert {int(state["step"]) for state in states} == {updates}
        pairs = zip(fitted.policy.networks.values[name].values(), before[name], strict=True)
        assert 0 < max(float((one - old).abs().max()) for one, old in pairs) < 1e-6 * updates
    assert all(one.grad is None for values in fitted.policy.networks.values.values() for one in values.values())


def test_the_loss_of_a_learner_is_its_own():
    own = "learner(name='fake', objective='fake_score', lr=1e-3, terms=['kl_k3(coef=0.1)'], aggregation='per_prompt')"
    loss = LossRecipe.of("ppo", "per_sample", networks=[own, SURROGATE, "average(of='surrogate')"])
    found = {name: (one.objective.text, one.aggregation.text, one.term_names) for name, one in losses(loss).items()}
    assert found == {
        "fake": ("fake_score", "per_prompt", ["kl_k3"]),
        "surrogate": ("surrogate_preference(beta=1.0)", "per_sample", []),
    }


def test_learners_resume_exactly(tmp_path):
    whole = made(tmp_path / "whole")
    whole.fit()
    stopped = made(tmp_path / "part")
    while stopped.step < 2:
        stopped.run_round()
    stopped.save()
    again = made(tmp_path / "part")
    assert again.resume()
    again.fit()
    for name, values in whole.policy.networks.values.items():
        assert all(torch.equal(value, again.policy.networks.values[name][key]) for key, value in values.items()), name
    assert all(torch.equal(a, b) for a, b in zip(whole.trained.values(), again.trained.values(), strict=True))


def test_the_average_of_a_learner_follows_it_and_not_the_policy():
    policy = few_steps()
    policy.networks.follow(bind_networks([SURROGATE, "average(of='surrogate', start=0.5, most=0.5)"]))
    values = policy.networks.values
    with torch.no_grad():
        for key in values["surrogate"]:
            values["surrogate"][key] += 1.0
    start = {key: value.clone() for key, value in values["old"].items()}
    policy.networks.advance(1)
    assert all(torch.allclose(values["old"][key], one + 0.5) for key, one in start.items())


def test_what_a_learner_needs_is_checked_before_anything_is_sampled():
    recipe = algorithm_blocks("tdm_r1")["advantages"]
    loss = LossRecipe.of("ppo", "per_sample", networks=[SURROGATE, "average(of='surrogate')"])
    with pytest.raises(ValueError, match=r"algorithm\.networks.*surrogate"):
        refuse_unread(recipe, loss)  # nothing reads the surrogate itself
    plain = few_steps(boundaries=False)
    with pytest.raises(ValueError, match="tdm_r1.*clean"):
        refuse_mismatch(plain, recipe, algorithm_blocks("tdm_r1")["loss"])
    with pytest.raises(ValueError, match=r"algorithm\.networks.*'surogate'.*surrogate"):
        bind_networks([SURROGATE, "average(of='surogate')"])
    with pytest.raises(ValueError, match=r"objective of learner.*fake_scor"):
        bind_networks(["learner(name='fake', objective='fake_scor', lr=1e-3)"])


@pytest.mark.learning
def test_a_few_step_generator_learns_a_known_answer_through_its_surrogate(tmp_path):
    blocks = algorithm_blocks("tdm_r1", networks=[
        "learner(name='fake', objective='fake_score', lr=3e-3, beta1=0.0, updates=2)",
        "learner(name='surrogate', objective='surrogate_preference(beta=1.0, clip=0.5, bound=10.0)', lr=3e-3)",
        "average(name='old', of='surrogate', most=0.3)",
    ])  # fmt: skip
    policy = few_steps()
    policy.keep_reference()
    fitted = trainer(policy, tmp_path, toy_prompts(4), **blocks, reward=near_one, heldout=toy_prompts(4),
                     prompts_per_step=4, group_size=16, steps=60, lr=3e-3)  # fmt: skip
    result = fitted.fit()["eval"]
    assert result["after"]["reward"]["mean"] > result["before"]["reward"]["mean"] + 0.3


def test_a_learner_that_diverges_ends_the_run(tmp_path):
    fake = "learner(name='fake', objective='fake_score', lr=1e-3)"
    networks = [fake, SURROGATE.replace("1e-3", "1e30"), "average(name='old', of='surrogate', most=0.3)"]
    with pytest.raises(NotFinite, match=r"algorithm\.networks.*surrogate.*lr"):
        made(tmp_path, **algorithm_blocks("tdm_r1", networks=networks)).fit()


def test_a_gradient_that_is_not_finite_ends_the_run_though_the_loss_is(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", lambda values, most: torch.tensor(torch.inf))
    with pytest.raises(NotFinite, match="gradient of norm inf"):
        made(tmp_path).fit()
