import json
import math

import pytest
import torch

from mmgrpo.config.registry import bind
from mmgrpo.policies.flow_matching import (
    ERRORS,
    FlowMatchingPolicy,
    self_normalized_error,
    velocity_error,
    weighted_error,
)
from mmgrpo.types import REPLAYED, Request
from mmgrpo.update import LossRecipe
from tests.building import algorithm_blocks, matching_policy_over, near_one, recipe, rescored, trainer
from tests.toys import ToyModel, toy_prompts


def policy(
    draws: int = 3, error: str = "velocity", steps: int = 6, noisy_fraction: float = 1.0, draws_per: str = "prompt"
) -> FlowMatchingPolicy:
    return matching_policy_over(
        ToyModel(),  # type: ignore
        steps=steps,
        draws=draws,
        error=error,
        evaluation_steps=steps,
        forward_batch_size=1024,
        noisy_fraction=noisy_fraction,
        draws_per=draws_per,
    )


def test_errors_on_a_gap_of_two_numbers():
    gap, time = torch.tensor([[3.0, -1.0]]), torch.tensor([0.5])
    assert velocity_error(gap, time).item() == 5.0  # (9 + 1) / 2
    assert weighted_error(gap, time, power=2.0).item() == 1.25  # 0.25 * 5
    assert self_normalized_error(gap, time).item() == 1.25  # 0.5 * 5 / ((3 + 1) / 2)


def test_the_self_normalized_error_has_the_gradient_of_its_numerator_alone():
    gap = torch.tensor([[3.0, -1.0]], requires_grad=True)
    self_normalized_error(gap, torch.tensor([0.5])).sum().backward()
    # d/dg of 0.5 * mean(g^2) / 2 is 0.5 * g / 2.
    assert gap.grad.tolist() == [[0.75, -0.25]]  # type: ignore


@pytest.mark.parametrize(
    ("error", "new", "old", "slope"),
    [  # e .05125 and .01 at t .6; pseudo-ratio exp(e_old - e), and its gradient at ratio one (AWM, first pass)
        ("velocity", 0.05125, 0.01, [0.25, 0.2]),
        ("weighted", 0.03075, 0.006, [0.15, 0.12]),
        ("weighted(power=2.0)", 0.01845, 0.0036, [0.09, 0.072]),
        ("huber(power=0.5)", 2 * 0.13582478, 2 * 0.05999400, [2 * 0.33129458, 2 * 0.26503566]),
        ("huber", 1.13432798, 0.75135717, [1.39258225, 1.11406580]),
    ],
)
def test_the_errors_of_awm_and_their_gradients_on_two_numbers(error, new, old, slope):
    block = bind(error, ERRORS, "the test")
    gap = torch.tensor([[0.25, 0.2], [0.1, 0.1]], dtype=torch.float64, requires_grad=True)
    found = block({"gap": gap, "time": torch.full((2,), 0.6, dtype=torch.float64)})
    assert found.tolist() == pytest.approx([new, old], abs=2e-8)
    (gradient,) = torch.autograd.grad(found[0], gap)
    assert gradient[0].tolist() == pytest.approx(slope, abs=2e-8)
    # the loss of AWM on A = 1, unclipped: -exp(e_old - e)
    (ratio,) = torch.autograd.grad(
        -(found[1].detach() - block({"gap": gap, "time": found.new_full((2,), 0.6)})[0]).exp(), gap
    )
    assert ratio[0].tolist() == pytest.approx([one * math.exp(old - new) for one in slope], abs=2e-8)


@pytest.mark.parametrize("error", ["velocity", "weighted(power=2.0)", "huber", "self_normalized"])
def test_log_probs_scored_again_are_those_of_the_rollout(error):
    made = policy(error=error)
    drawn = made.rollout(Request(toy_prompts(3), [0, 1, 2], 4, seed=5))
    assert torch.equal(rescored(made, drawn), drawn.decisions.log_probs)  # type: ignore
    gap = (rescored(made, drawn, limit=5) - drawn.decisions.log_probs).abs().max()  # type: ignore
    assert gap <= 1e-6 * drawn.decisions.log_probs.abs().max()


def test_a_draw_is_the_flow_matching_error_at_its_noise_level():
    made = policy()
    drawn = made.rollout(Request(toy_prompts(2), [0, 1], 4, seed=5))
    kept = drawn.steps
    row, position = 5, 2
    noise, step = kept.noise[1, position], kept.step[1, position]  # type: ignore
    time = made.grid.levels[step]
    noisy = (1 - time) * kept.clean[row] + time * noise  # type: ignore
    velocity = made.network(noisy[None], time[None], kept.conditioning.number[row : row + 1])[0]  # type: ignore
    expected = -((velocity - (noise - kept.clean[row])) ** 2).mean()  # type: ignore
    torch.testing.assert_close(drawn.decisions.log_probs[row, position], expected.detach(), rtol=0, atol=1e-6)


def test_a_group_shares_its_draws_and_groups_differ():
    kept = policy().rollout(Request(toy_prompts(2), [0, 1], 4, seed=5)).steps
    assert kept.group.tolist() == [0] * 4 + [1] * 4  # type: ignore
    assert not torch.equal(kept.noise[0], kept.noise[1])  # type: ignore
    assert all(len(row.unique()) == 3 for row in kept.step)  # type: ignore


def test_samples_have_draws_of_their_own_as_in_diffusion_nft():
    made = policy(draws_per="sample")
    drawn = made.rollout(Request(toy_prompts(2), [3, 4], 4, seed=5))
    kept = drawn.steps
    assert kept.group.tolist() == [*range(8)]  # type: ignore
    assert len({tuple(noise.flatten().tolist()) for noise in kept.noise}) == 8  # type: ignore
    assert all(len(row.unique()) == 3 for row in kept.step)  # type: ignore
    assert drawn.decisions.keys["prompt"].tolist() == [3] * 4 + [4] * 4, "they are compared nevertheless"
    apart = made.rollout(Request(toy_prompts(2)[1:], [4], 4, seed=5)).steps  # of a rank that has this prompt alone
    assert torch.equal(apart.noise, kept.noise[4:]) and torch.equal(apart.step, kept.step[4:])  # type: ignore

    records = made.pack(drawn, [6, 1])
    again = made.unpack(toy_prompts(2)[::-1], records, [0, 1], REPLAYED, Request(toy_prompts(2), [0, 1], 4, seed=6))
    assert torch.equal(again.steps.noise, kept.noise[[6, 1]])  # type: ignore
    assert torch.equal(rescored(made, again), drawn.decisions.log_probs[[6, 1]])  # type: ignore
    given = [{"clean": record["clean"]} for record in records]
    fresh = made.unpack(toy_prompts(2), given, [3, 3], REPLAYED, Request(toy_prompts(2), [3, 4], 4, seed=5)).steps
    every = torch.cat([fresh.noise, kept.noise])  # type: ignore
    assert len({tuple(noise.flatten().tolist()) for noise in every}) == 10, "two rows that join have draws of theirs"


def test_draws_are_of_the_noisiest_levels():
    kept = policy(noisy_fraction=0.5).rollout(Request(toy_prompts(4), [0, 1, 2, 3], 2, seed=5)).steps
    steps = kept.step  # type: ignore
    assert [sorted(row) for row in steps.tolist()] == [[0, 1, 2]] * 4  # three draws of six levels, half of them
    with pytest.raises(ValueError, match="draws"):
        policy(draws=4, noisy_fraction=0.5)


def test_the_counted_evaluations_are_those_that_the_network_did():
    made = policy()
    drawn = made.rollout(Request(toy_prompts(2), [0, 1], 4, seed=5))
    assert made.model.forwards == drawn.evaluations == 8 * (6 + 3)  # type: ignore


def test_on_policy_the_gradient_is_that_of_advantage_weighted_flow_matching(tmp_path):
    """DiffusionNFT at v_theta = v_old: (2 rho - 1) = A / 5 times the gradient of the error, up to its factor."""
    made = policy(draws=2)
    fitted = trainer(
        made, tmp_path, toy_prompts(1), prompts_per_step=1, loss=LossRecipe.of("policy_gradient", "per_sample")
    )
    from tests.unit.test_trainer import judged_batch

    state = {n: p.detach().clone() for n, p in made.network.named_parameters()}
    batch = judged_batch(fitted)
    made.network.load_state_dict(state)
    from mmgrpo.update import accumulate_gradients

    rows = torch.ones(4, dtype=torch.bool)
    accumulate_gradients(
        made, batch, rows, fitted.loss, micro_batch_size=100, accelerator=fitted.accelerator, on_policy=True
    )
    found = [p.grad.clone() for p in made.network.parameters()]  # type: ignore
    made.network.zero_grad()
    kept, total = batch.rollouts[0].steps, 0.0
    for row in range(4):
        for position in range(2):
            time = made.grid.levels[kept.step[0, position]]  # type: ignore
            noise = kept.noise[0, position]  # type: ignore
            noisy = (1 - time) * kept.clean[row] + time * noise  # type: ignore
            gap = made.network(noisy[None], time[None], kept.conditioning.number[:1])[0] - (noise - kept.clean[row])  # type: ignore
            total = total + batch.advantages[row, position] * gap.square().mean() / 8
    total.backward()  # type: ignore
    for ours, theirs in zip(found, made.network.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.learning
def test_a_flow_learns_a_known_answer_from_errors_alone(tmp_path):
    made = trainer(
        policy(draws=3),
        tmp_path,
        toy_prompts(4),
        reward=near_one,
        heldout=toy_prompts(4),
        advantages=recipe(scale="batch_std(ddof=0, eps=1e-4)"),
        loss=LossRecipe.of("ppo(low=1e-1, high=1e-1)", "per_sample"),
        prompts_per_step=4,
        group_size=16,
        steps=80,
        lr=3e-3,
    )
    result = made.fit()["eval"]
    assert result["before"]["reward"]["mean"] < -1
    assert result["after"]["reward"]["mean"] > -0.7
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert "velocity/norm_ratio" not in lines[0] and lines[0]["velocity/norm"] > 0
    assert max(line["ratio/first_minus_one"] for line in lines) <= 1e-5


def test_the_reference_is_the_network_before_training_and_its_velocity_gap_the_squared_distance():
    made = policy(error="weighted")
    drawn = made.rollout(Request(toy_prompts(2), [0, 1], 4, seed=5))
    with torch.no_grad():
        made.network.outer.bias += 0.1  # type: ignore
    torch.testing.assert_close(rescored(made, drawn, name="reference.log_probs"), drawn.decisions.log_probs)  # type: ignore
    gap = rescored(made, drawn, limit=5, name="reference.velocity_gap")  # type: ignore
    torch.testing.assert_close(gap, torch.full_like(gap, 0.01), rtol=1e-4, atol=0)
    [part] = drawn.steps.split(drawn.decisions.loss_mask, 100)
    assert made.score(drawn, part, frozenset({"log_probs"})).keys() == {"log_probs", "velocity_norm"}  # type: ignore
    made.keep_reference()


def test_a_part_holds_at_most_as_many_draws_as_the_limit_and_each_draw_once():
    drawn = policy().rollout(Request(toy_prompts(2), [0, 1], 4, seed=5))
    parts = list(drawn.steps.split(drawn.decisions.loss_mask, 5))
    assert [len(part.rows) for part in parts] == [5, 5, 5, 5, 4]
    pairs = [pair for part in parts for pair in zip(part.rows.tolist(), part.positions.tolist(), strict=True)]
    assert pairs == [(row, position) for row in range(8) for position in range(3)]
    assert drawn.decisions.keys["prompt"].tolist() == [0] * 4 + [1] * 4
    assert drawn.decisions.node.flatten().tolist() == list(range(24))


def test_an_error_of_zero_has_a_finite_gradient():
    gap = torch.zeros(1, 2, requires_grad=True)
    error = self_normalized_error(gap, torch.tensor([0.5]))
    error.sum().backward()
    assert error.item() == 0 and gap.grad.tolist() == [[0, 0]]  # type: ignore
    # the divisor is at least 1e-5: .5 * 1e-12 / 1e-5
    small = self_normalized_error(torch.full((1, 2), 1e-6), torch.tensor([0.5]))
    assert small.item() == pytest.approx(5e-8)


def test_from_one_draw_to_one_of_every_step_is_possible_and_none_is_not():
    for draws in (1, 6):
        drawn = policy(draws=draws).rollout(Request(toy_prompts(1), [0], 2, seed=5))
        assert drawn.decisions.log_probs.shape == (2, draws)
        assert sorted(drawn.steps.step[0].tolist()) == sorted(set(drawn.steps.step[0].tolist()))  # type: ignore
    with pytest.raises(ValueError, match=r"1.*sampling\.steps=6.*0"):
        policy(draws=0)


def test_draws_beyond_the_steps_are_refused():
    with pytest.raises(ValueError, match=r"1.*sampling\.steps=6.*7"):
        policy(draws=7)


def test_rollouts_of_second_order_have_the_draws_of_those_of_the_first_and_other_samples():
    settings = {"steps": 4, "draws": 2, "error": "velocity", "evaluation_steps": 4, "forward_batch_size": 64}
    made = [matching_policy_over(ToyModel(), solver=solver, **settings) for solver in ("euler", "dpmpp_2m")]  # type: ignore
    first, second = (one.rollout(Request(toy_prompts(1), [0], 2, seed=5)).steps for one in made)
    assert torch.equal(first.noise, second.noise) and torch.equal(first.step, second.step)  # type: ignore
    assert not torch.equal(first.clean, second.clean)  # type: ignore


MORE = ("dgpo", "crd", "diffusion_dpo", "gdro")


@pytest.mark.learning
@pytest.mark.parametrize(
    "preset", ["diffusion_nft", "fpo", *(pytest.param(name, marks=pytest.mark.nightly) for name in MORE)]
)
def test_a_flow_learns_a_known_answer_under_every_objective_on_clean_samples(preset, tmp_path):
    """A fixed number of steps, from a reward of about -1.3; 0 is best."""
    blocks = algorithm_blocks(preset, **({"terms": []} if preset == "crd" else {}))
    made = trainer(
        policy(draws=3, error="velocity"),
        tmp_path,
        toy_prompts(4),
        reward=near_one,
        heldout=toy_prompts(4),
        prompts_per_step=4,
        group_size=16,
        steps=80,
        lr=3e-3,
        **blocks,
    )
    result = made.fit()["eval"]
    assert result["after"]["reward"]["mean"] > result["before"]["reward"]["mean"] + 0.2
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    if preset == "diffusion_nft":  # it compares velocities with the reference, entry by entry
        ratios = [line["velocity/norm_ratio"] for line in lines]
        assert ratios[0] == pytest.approx(1, abs=1e-6) and abs(ratios[-1] - 1) > 1e-3
