"""Rewards that are differentiated through the steps of a sampler, against scalars that were computed by hand."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mmgrpo.config.registry import bind
from mmgrpo.diffusion.schedules import Grid, flow
from mmgrpo.objectives import OBJECTIVES, TERMS
from mmgrpo.policies.reward_gradients import DIVERGENCES, RewardGradientPolicy, gradient_path, recover_clean, relative
from mmgrpo.types import Image, Prompt, Request
from pipelines.training import FrozenCopy
from tests.toys import ToyConditioning, ToyModel

LEVELS = [1.0, 0.8, 0.5, 0.2, 0.0]
START = [-0.4, 0.5]


class Linear(nn.Module):
    """v = theta x + .1 s, with a theta for each level."""

    def __init__(self) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.full((4,), 0.7))

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        levels = torch.tensor(LEVELS[:4])
        theta = self.theta[(time[:, None] - levels).abs().argmin(1)]
        return theta.view(-1, 1, 1, 1) * x + 0.1 * time.view(-1, 1, 1, 1)


class LinearModel(ToyModel):
    """Two grey pixels (x + 1) / 2 of two latents."""

    def __init__(self) -> None:
        super().__init__(2)
        self.network = Linear()

    def predict(self, network: nn.Module, x: Tensor, time: Tensor, conditioning: ToyConditioning) -> Tensor:
        self.forwards += len(x)
        return network(x, time)

    def pixels(self, latents: Tensor, conditioning: ToyConditioning) -> Tensor:
        return (latents.expand(-1, 3, -1, -1) + 1) / 2

    def latent_shape(self) -> tuple[int, ...]:
        return (1, 1, 2)

    def decode(self, latents: Tensor, conditioning: ToyConditioning) -> list[Image]:
        return [Image(latent.detach().expand(3, -1, -1)) for latent in latents]

    def grid(self, steps: int) -> Grid:
        return flow(torch.tensor(LEVELS))


def near_half(prompts: Any, pixels: Tensor) -> Tensor:
    """-mean((x - .5)^2)"""
    return -(2 * pixels - 1.5).square().flatten(1).mean(1)


def made(gradient: str, model: Any = None) -> RewardGradientPolicy:
    path: Any = gradient_path(gradient)
    return RewardGradientPolicy(model or LinearModel(), steps=4, path=path, evaluation_steps=4, forward_batch_size=9)


def loss_of(policy: RewardGradientPolicy, objective: str = "reward_gradient", **changes: Any) -> tuple[float, Tensor]:
    """The loss of one sample that begins at ``START``, and its gradient with respect to each theta."""
    noise = torch.tensor(START).view(1, 1, 1, 2)
    policy.solver = replace(policy.solver)
    object.__setattr__(policy.solver, "initial_noise", lambda request, count: noise)
    rollout = policy.rollout(Request([Prompt("a")], [0], 1, seed=3, gradient=near_half))
    if changes:
        rollout = replace(rollout, steps=replace(rollout.steps, **changes))  # type: ignore[type-var]
    [part] = rollout.steps.split(torch.ones(1, 1, dtype=torch.bool), 9)
    loss = bind(objective, OBJECTIVES, "test")(policy.score(rollout, part, frozenset())).values.sum()
    (gradient,) = torch.autograd.grad(loss, policy.network.theta)  # type: ignore[arg-type]
    return float(loss.detach()), gradient


@pytest.mark.parametrize("checkpointing", [True, False])
@pytest.mark.parametrize(
    ("last", "gradient"), [(1, -0.02415203), (2, -0.05848703), (3, -0.08637169), (4, -0.10084779), (0, -0.10084779)]
)
def test_draft_has_the_loss_and_the_gradient_of_the_last_steps_and_none_before(last, gradient, checkpointing):
    loss, found = loss_of(made(f"draft(last={last}, checkpointing={checkpointing})"))
    assert loss == pytest.approx(0.31444075, abs=1e-6)
    assert float(found.sum()) == pytest.approx(gradient, abs=1e-6)
    # Each level has its theta, so those before the window must have none.
    assert (found != 0).tolist() == [4 - (last or 4) <= step for step in range(4)]


def test_draft_lv_averages_the_last_step_over_fresh_noise():
    noise = torch.tensor([[0.3, -0.1], [-0.6, 0.2]]).view(1, 2, 1, 1, 2)
    loss, found = loss_of(made("draft(draws=2)"), noise=noise)
    assert (loss, float(found.sum())) == pytest.approx((0.30924093, -0.02078155), abs=1e-6)


def test_the_steps_of_a_round_with_gradient_are_drawn_between_least_and_last():
    policy = made("draft(least=1, last=3)")
    request = Request([Prompt("a"), Prompt("b")], [0, 1], 2, seed=0, gradient=near_half)
    steps = [policy.rollout(replace(request, seed=seed)).steps.step.tolist() for seed in range(12)]  # type: ignore
    assert all(len({*one}) == 1 for one in steps) and {one[0] for one in steps} == {1, 2, 3}


@pytest.mark.parametrize(
    ("step", "loss", "gradient"),
    [(1, 0.33577833, -0.08505459), (2, 0.31910976, -0.06383888), (3, 0.31444075, -0.02415203)],
)
def test_refl_scores_the_clean_estimate_at_one_step_and_at_the_last_is_draft(step, loss, gradient):
    value, found = loss_of(made(f"refl(first={step / 4}, last={step / 4})"))
    assert (value, float(found.sum())) == pytest.approx((loss, gradient), abs=1e-6)
    assert found.nonzero().flatten().tolist() == [step]


def test_the_loss_of_refl_is_its_hinge():
    value, found = loss_of(made("refl(first=0.75, last=0.75)"), "reward_gradient(scale=1e-3, margin=2.0)")
    assert (value, float(found.sum())) == pytest.approx((0.00231444, -2.415e-5), abs=1e-8)
    value, found = loss_of(made("refl(first=0.75, last=0.75)"), "reward_gradient(margin=-1.0)")
    assert value == 0 and not found.any()  # beyond the margin


def late_loss(step: float, beta: float = 1.0, old: nn.Module | None = None) -> tuple[float, float]:
    """The loss of DiffusionOPSD of one state .8 x0 + .2 e at the level .2, and its gradient."""
    policy = made(f"ascent(step={step}, beta={beta}, first=0.75, last=0.75)")
    if old:
        policy.networks = lambda name: nullcontext(old if name == "old" else policy.network)  # type: ignore[assignment]
    state = 0.8 * torch.tensor([0.3, -0.2]) + 0.2 * torch.tensor(START)
    value, found = loss_of(policy, "reward_gradient(scale=5.0)", state=state.view(1, 1, 1, 2))
    assert found.nonzero().flatten().tolist() == [3]
    return value, float(found.sum())


class Constant(nn.Module):
    """v_old = [-.6, .8]."""

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        return torch.tensor([-0.6, 0.8]).view(1, 1, 1, 2).expand_as(x)


def test_an_ascended_estimate_is_learned_as_both_branches_of_its_source_do():
    # y_old = [.16, -.06] - .2 v_old = [.28, -.22], of norm .35609; a step of .1 along -(y - .5) is [.0292, .0956].
    value, found = late_loss(0.1 / 0.1268**0.5, old=Constant())
    assert (value, found) == pytest.approx((0.72777364, 0.26372456), abs=1e-5)


def test_without_an_old_network_an_estimate_moves_along_the_slope():
    # y = y_old = [.1336, -.0556], of norm .144708, slope along [.3664, .5556]; |d| = .05 * .144708 in its direction.
    value, found = late_loss(0.05)
    h = 0.05 * 0.144708 * torch.tensor([0.3664, 0.5556]) / 0.665544
    expected = 5 * float(h.square().mean() / h.mean())
    # dy / dtheta = -.2 z = [-.032, .012], and d = y - y_old - h.
    slope = 5 * float((2 * -h * torch.tensor([-0.032, 0.012])).mean() / h.mean())
    assert (value, found) == pytest.approx((expected, slope), rel=1e-4)


@pytest.mark.parametrize(
    ("start", "end", "clean", "loss", "gradient"),
    [(0.8, 0.6, [0.001, -0.016], 0.94152872, -2.71901367), (0.6, 0.8, [0.976, -0.686], 0.56382867, -0.03892430)],
)
def test_srpo_takes_the_known_noise_away_and_compares_two_descriptions(start, end, clean, loss, gradient):
    theta = torch.tensor(0.7, dtype=torch.double, requires_grad=True)
    x0, noise = torch.tensor([[0.3, -0.2]], dtype=torch.double), torch.tensor([START], dtype=torch.double)
    levels = torch.tensor([[start], [end]], dtype=torch.double)
    found = recover_clean(x0, noise, *levels, lambda x, level: theta * x + 0.1 * level[:, None])
    assert found[0].tolist() == pytest.approx(clean, abs=1e-9)
    feature = torch.nn.functional.normalize(found)
    wanted, unwanted = (feature @ torch.tensor(one, dtype=torch.double) for one in ([0.96, -0.28], [0.8, -0.6]))
    value = bind("reward_gradient(margin=0.7)", OBJECTIVES, "test")(
        {"gradient_reward": relative(wanted, unwanted, 0.2)}
    ).values.sum()
    assert (float(value.detach()), float(torch.autograd.grad(value, theta)[0])) == pytest.approx(
        (loss, gradient), abs=1e-6
    )
    exact = recover_clean(x0, noise, *levels, lambda x, level: noise - x0)
    torch.testing.assert_close(exact, x0)


def test_srpo_prefixes_the_prompts_and_swaps_the_words_where_noise_is_added():
    asked: list[list[str]] = []

    def reward(prompts: Any, pixels: Tensor) -> Tensor:
        asked.append([prompt.text for prompt in prompts])
        return pixels.flatten(1).mean(1) * (2 if prompts[0].text.startswith("good") else 1)

    policy = made("srpo(wanted='good ', unwanted='bad ', k=0.5)")
    request = Request([Prompt("a")], [0], 32, seed=1, gradient=reward)
    rollout = policy.rollout(request)
    [part] = rollout.steps.split(rollout.decisions.loss_mask, 99)
    found = policy.score(rollout, part, frozenset())["gradient_reward"]
    assert [one[0] for one in asked] == ["good a", "bad a"]
    # Rewards 2 p and p: 1.5 * 2 p - p = 2 p, and where they are swapped 1.5 p - 2 p = -p / 2.
    back = rollout.steps.place < 0.5  # type: ignore[attr-defined]
    assert 8 < int(back.sum()) < 24 and bool((found[back] < 0).all()) and bool((found[~back] > 0).all())
    deaf = replace(rollout, steps=replace(rollout.steps, reward=near_half))  # type: ignore[type-var]
    with pytest.raises(ValueError, match="good .*bad .*text"):
        policy.score(deaf, part, frozenset())


class TwoSteps(LinearModel):
    """A consistency model of the levels 1, .6, 0, whose reference has theta .5."""

    def __init__(self) -> None:
        super().__init__()
        self.network.theta.data.fill_(0.5)
        self.reference = FrozenCopy(self.network)
        self.reference.keep()
        self.network.theta.data.fill_(0.7)

    def grid(self, steps: int) -> Grid:
        return flow(torch.tensor([1.0, 0.6, 0.0]))


def rocm_loss(divergence: str, beta: float, checkpointing: bool = True) -> tuple[float, Tensor]:
    """-r + beta D of one sample, and its gradient with respect to each theta."""
    policy = made(f"consistency(divergence='{divergence}', checkpointing={checkpointing})", TwoSteps())
    policy.solver = replace(policy.solver)
    object.__setattr__(policy.solver, "initial_noise", lambda request, count: torch.tensor(START).view(1, 1, 1, 2))
    rollout = policy.rollout(Request([Prompt("a")], [0], 1, seed=3, gradient=near_half))
    noise = torch.tensor([[0.3, -0.1], [0.0, 0.0]]).view(1, 2, 1, 1, 2)
    rollout = replace(rollout, steps=replace(rollout.steps, noise=noise))  # type: ignore[type-var]
    [part] = rollout.steps.split(torch.ones(1, 1, dtype=torch.bool), 9)
    names = frozenset({"reference.divergence"} if beta else ())
    scores = policy.score(rollout, part, names)
    loss = bind("reward_gradient", OBJECTIVES, "test")(scores).values.sum()
    if beta:
        loss = loss + bind(f"reference_divergence(coef={beta})", TERMS, "test")(scores).sum()
    (gradient,) = torch.autograd.grad(loss, policy.network.theta)  # type: ignore[arg-type]
    return float(loss.detach()), gradient


@pytest.mark.parametrize("checkpointing", [True, False])
@pytest.mark.parametrize(
    ("divergence", "beta", "loss", "gradient"),
    [
        ("kl", 0.0, 0.27282300, 0.03329914),
        ("kl", 0.1, 0.27318745, 0.03694358),
        ("hellinger", 0.1, 0.27291407, 0.03420942),
        ("fisher", 0.1, 0.27484770, 0.05354605),
    ],
)
def test_rocm_goes_through_every_consistency_step_and_adds_its_divergence(
    divergence, beta, loss, gradient, checkpointing
):
    value, found = rocm_loss(divergence, beta, checkpointing)
    assert (value, float(found.sum())) == pytest.approx((loss, gradient), abs=1e-6)
    assert (found != 0).tolist() == [True, False, True, False]


def test_the_divergence_of_jensen_and_shannon_is_that_of_its_integral():
    x = torch.linspace(-12, 14, 200_001, dtype=torch.double)
    for distance, std in ((0.2, 0.5), (1.0, 1.0), (3.0, 1.5)):
        own, other = (torch.distributions.Normal(mean, std).log_prob(x).exp() for mean in (0.0, distance))
        middle = (own + other) / 2
        exact = torch.trapezoid(own * (own / middle).log() + other * (other / middle).log(), x) / 2
        found = DIVERGENCES["jensen_shannon"](*(torch.tensor([one**2], dtype=torch.double) for one in (distance, std)))
        assert float(found) == pytest.approx(float(exact), abs=1e-7)
    same = torch.zeros(1, requires_grad=True)
    for divergence in DIVERGENCES.values():
        value = divergence(same, torch.ones(1))
        assert float(value.detach()) == pytest.approx(0, abs=1e-6)
        assert bool(torch.autograd.grad(value, same)[0].isfinite())


def test_outputs_of_a_consistency_model_are_those_that_it_is_scored_at():
    policy = made("consistency()", TwoSteps())
    rollout = policy.rollout(Request([Prompt("a")], [0], 3, seed=4, gradient=near_half))
    [part] = rollout.steps.split(rollout.decisions.loss_mask, 9)
    found = policy.score(rollout, part, frozenset())["gradient_reward"]
    drawn = torch.stack([one.pixels for one in rollout.outputs])  # type: ignore[attr-defined]
    torch.testing.assert_close(found.detach(), near_half([], (drawn + 1) / 2))
    assert len({*found.tolist()}) == 3


def test_rows_do_not_depend_on_the_parts_that_they_are_scored_in():
    policy = made("draft(last=2, draws=1)")
    rollout = policy.rollout(Request([Prompt("a"), Prompt("b")], [0, 1], 3, seed=2, gradient=near_half))
    whole, parts = torch.zeros(6), torch.zeros(6)
    for found, limit in ((whole, 9), (parts, 2)):
        for part in rollout.steps.split(rollout.decisions.loss_mask, limit):
            found[part.rows] = policy.score(rollout, part, frozenset())["gradient_reward"].detach()
    torch.testing.assert_close(whole, parts)
    assert len({*whole.tolist()}) == 6 and rollout.evaluations == 6 * 4


class LowLast(LinearModel):
    def grid(self, steps: int) -> Grid:
        return flow(torch.tensor([1.0, 0.8, 0.5, 0.0089, 0.0]))


@pytest.mark.parametrize(
    ("gradient", "model", "match"),
    [
        ("draft(last=5)", LinearModel(), "last 5.*4"),
        ("draft(least=3, last=2)", LinearModel(), "least 3"),
        ("draft(last=1)", LowLast(), "last 1.*0.0089.*shifted_linspace"),
        ("refl(first=0.9, last=0.5)", LinearModel(), "first 0.9.*last 0.5"),
        ("srpo(wanted='a', unwanted='b', low=0.85)", LinearModel(), "low 0.85.*high 0.9"),
        ("srpo(wanted='a')", LinearModel(), "unwanted"),
        ("draft(last=1)", ToyModel(), "gradients.*family"),
    ],
)
def test_paths_that_the_grid_or_the_model_does_not_have_are_refused(gradient, model, match):
    with pytest.raises(ValueError, match=match):
        made(gradient, model)


def test_two_steps_are_taken_where_the_last_is_small():
    assert made("draft(last=2)", LowLast()).kind == "gradients"


def test_a_rollout_without_a_differentiable_reward_is_refused():
    with pytest.raises(ValueError, match="reward_gradient"):
        made("draft(last=1)").rollout(Request([Prompt("a")], [0], 1, seed=0))


def test_outputs_are_those_of_the_deterministic_solver():
    policy = made("draft(last=1)")
    request = Request([Prompt("a")], [0], 2, seed=4, gradient=near_half)
    for one, other in zip(policy.rollout(request).outputs, policy.sample(request), strict=True):
        assert isinstance(one, Image) and isinstance(other, Image) and torch.equal(one.pixels, other.pixels)
