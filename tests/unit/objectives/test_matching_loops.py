"""Every objective of clean samples is that of a loop over groups, draws and samples, in value and gradient."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from mmgrpo.config.registry import bind
from mmgrpo.objectives import OBJECTIVES
from mmgrpo.objectives.base import Loss
from mmgrpo.policies.flow_matching import errors

KEY = torch.tensor([5, 2, 5, 9, 2, 5, 2, 2])  # interleaved groups of three, four and one
DRAWS, SIZE = 3, 4
MASK = torch.ones(len(KEY), DRAWS, dtype=torch.bool)
MASK[0, 1] = MASK[4, 2] = MASK[6, 2] = False
NETWORKS = ("", "old.", "reference.", "earlier.")
NAMES = ("gap", "error", "normalized_error")


def velocities(seed: int) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor]:
    """Velocities of the networks, the target, times and advantages; the networks lie near each other."""
    random = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.float64)

    target = normal(len(KEY), DRAWS, SIZE)
    base = target + 0.5 * normal(len(KEY), DRAWS, SIZE)
    found = {name: base + 0.05 * normal(len(KEY), DRAWS, SIZE) for name in NETWORKS}
    return found, target, normal(len(KEY), DRAWS).sigmoid(), normal(len(KEY))


def inputs_of(networks: dict[str, Tensor], target: Tensor, time: Tensor, advantages: Tensor) -> dict[str, Tensor]:
    inputs = {"time": time, "key": KEY, "loss_mask": MASK, "decision_mask": MASK}
    inputs["advantages"] = advantages[:, None].expand_as(time)
    for name, velocity in networks.items():
        asked = errors(velocity.flatten(0, 1), target.flatten(0, 1), [f"{name}{one}" for one in NAMES], name)
        inputs |= {key: value.view(*time.shape, *value.shape[1:]) for key, value in asked.items()}
        inputs[f"{name}log_probs"] = -inputs[f"{name}error"]
        if name == "old.":
            inputs["old_log_probs"] = inputs["old.log_probs"]
    return inputs


class Draw:
    """One draw of a sample: its gaps and errors by network, t and A."""

    def __init__(self, networks: dict[str, Tensor], target: Tensor, time: Tensor, advantage: Tensor) -> None:
        self.t, self.A = time, advantage
        self.gap = {name: velocity - target for name, velocity in networks.items()}
        self.e = {name: sum(x * x for x in gap) / SIZE for name, gap in self.gap.items()}

    def normalized(self, gap: Tensor) -> Tensor:
        return (sum(x * x for x in gap) / SIZE) / (sum(abs(float(x)) for x in gap.detach()) / SIZE)

    @property
    def rho(self) -> float:
        return min(max(float(self.A), -5.0), 5.0) / 10 + 0.5


def nft(members: list[Draw]) -> Tensor:
    total = torch.zeros(())
    for one in members:
        new, old = one.gap[""], one.gap["old."]
        wanted, unwanted = one.t * (0.4 * new + 0.6 * old), one.t * (1.4 * old - 0.4 * new)
        total = total + 5 / 0.4 * (one.rho * one.normalized(wanted) + (1 - one.rho) * one.normalized(unwanted))
    return total


def dgpo(members: list[Draw]) -> Tensor:
    change = sum(float((one.A * (one.e[""] - one.e["reference."])).detach()) for one in members)
    weight = float(torch.tensor(20.0 * change / len(members), dtype=torch.float64).sigmoid())
    total = torch.zeros(())
    for one in members:
        ratio = float((one.e["old."] - one.e[""]).detach().exp())
        left = ratio > 1.02 if one.A > 0 else ratio < 0.98
        total = total + weight * one.A * (one.e[""].detach() if left else one.e[""])
    return total


def crd(members: list[Draw]) -> Tensor:
    reward = [one.normalized(one.gap["old."]) - one.normalized(one.gap[""]) for one in members]
    mean, rho = sum(float(one.detach()) for one in reward) / len(reward), sum(one.rho for one in members) / len(members)
    return sum(5 / 2 * (2 * (q - mean) - (one.rho - rho)) ** 2 for q, one in zip(reward, members, strict=True))  # type: ignore[return-value]


def gdro(members: list[Draw]) -> Tensor:
    ordered = sorted(members, key=lambda one: -float(one.A))
    score = [-3.0 * (one.e[""] - one.e["reference."]) for one in ordered]
    total = 0.5 * ordered[0].e[""]
    for place in range(len(ordered)):
        wanted = [float(torch.exp((one.A - ordered[place].A) / 0.2)) for one in ordered[place:]]
        expected = sum(q * s for q, s in zip(wanted, score[place:], strict=True)) / sum(wanted)
        total = total + torch.stack(score[place:]).exp().sum().log() - expected
    return len(members) * total  # each member has the loss of its group


def seppo(members: list[Draw]) -> Tensor:
    best, worst = max(members, key=lambda one: float(one.A)), min(members, key=lambda one: float(one.A))
    if best is worst:
        return torch.zeros(())
    won, lost = (one.e[""] - one.e["earlier."] for one in (best, worst))
    sign = 1.0 if won < 0 else -1.0
    return len(members) * (1 + (7.0 * (won - sign * lost)).exp()).log()


BY_DRAW = {
    "diffusion_nft(beta=0.4)": nft,
    "dgpo(beta=20.0, clip=0.02)": dgpo,
    "crd(beta=2.0)": crd,
    "gdro(beta=3.0, tau=0.2, gamma=0.5)": gdro,
    "seppo(beta=7.0)": seppo,
}


def fpo(draws: dict[tuple[int, int], Draw]) -> Tensor:
    total = torch.zeros(())
    for row in range(len(KEY)):
        own = [draws[row, t] for t in range(DRAWS) if MASK[row, t]]
        ratio = (sum(one.e["old."] - one.e[""] for one in own) / len(own)).exp()  # type: ignore[union-attr]
        for one in own:
            total = total - torch.minimum(ratio * one.A, ratio.clamp(0.95, 1.05) * one.A)
    return total


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("text", [*BY_DRAW, "fpo(clip=0.05)"])
def test_an_objective_is_that_of_a_loop_over_groups_draws_and_samples(text, seed):
    networks, target, time, advantages = velocities(seed)
    networks[""].requires_grad_()
    result = bind(text, OBJECTIVES, "the test")(inputs_of(networks, target, time, advantages))
    assert isinstance(result, Loss)
    ours = (result.values * MASK).sum()
    draws = {
        (row, t): Draw({n: v[row, t] for n, v in networks.items()}, target[row, t], time[row, t], advantages[row])
        for row, t in itertools.product(range(len(KEY)), range(DRAWS))
    }
    if text in BY_DRAW:
        theirs = torch.zeros((), dtype=torch.float64)
        for key, t in itertools.product(KEY.unique().tolist(), range(DRAWS)):
            members = [draws[row, t] for row in range(len(KEY)) if KEY[row] == key and MASK[row, t]]
            theirs = theirs + BY_DRAW[text](members)
    else:
        theirs = fpo(draws)
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    one, other = (torch.autograd.grad(loss, networks[""])[0] for loss in (ours, theirs))
    torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)
    assert one.abs().sum() > 0 and not one[~MASK].any()


def test_a_group_that_is_where_its_reference_is_has_the_weight_of_a_half():
    """DGPO: sigmoid(0) whatever the advantages, so the gradient is half that of advantage-weighted matching."""
    networks, target, time, advantages = velocities(3)
    networks["reference."] = networks["old."] = networks[""].clone()
    networks[""].requires_grad_()
    inputs = inputs_of(networks, target, time, advantages)
    (ours,) = torch.autograd.grad((bind("dgpo", OBJECTIVES, "")(inputs).values * MASK).sum(), networks[""])
    gap = networks[""].detach() - target
    weighted = advantages[:, None, None] * MASK[..., None] * 2 * gap / SIZE
    torch.testing.assert_close(ours, weighted / 2, rtol=1e-12, atol=1e-14)


def test_flow_opd_has_the_gradient_of_the_kl_to_its_teacher():
    """dmu = -.249 dv in the worked transition: of dmu^2 .00124002, of the KL .00158166 for v .51 and a teacher's .5."""
    v = torch.tensor([[0.51]], dtype=torch.float64, requires_grad=True)
    shift, std = (-0.249 * (v - 0.5)).square(), torch.tensor([[0.62609903]], dtype=torch.float64)
    for text, value, slope in (("(divide=False)", 3.10005e-6, 0.00062001), ("", 7.90829e-6, 0.00158166)):
        found = bind(f"distillation_step{text}", OBJECTIVES, "")({"teacher.shift": shift, "std": std}).values
        assert found.item() == pytest.approx(value, rel=2e-6)
        (gradient,) = torch.autograd.grad(found, v, retain_graph=True)
        assert gradient.item() == pytest.approx(slope, rel=1e-5)
