"""Gradients of rewards through a Stable Diffusion 3: steps, both branches of guidance, and the decoder."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from mmgrpo.types import Prompt, Request
from pipelines import visual
from tests.libraries.pipelines.visual.drawing import shake

PROMPTS = [Prompt("a red circle"), Prompt("a blue square")]


def redness(prompts: Any, pixels: Tensor) -> Tensor:
    return (pixels[:, 0] - 0.5 * pixels[:, 1].square()).mean((1, 2))


def policy_of(folder, gradient: str, guidance: float = 4.5) -> Any:
    sizes = {"height": 32, "width": 32, "steps": 3, "evaluation_steps": 3, "grid": "shifted_linspace(shift=3.0)"}
    made: Any = visual.policy(str(folder), policy="gradients", gradient=gradient, guidance=guidance, seed=3, **sizes)
    shake(made.network)
    return made


def rewards(policy: Any, rollout: Any) -> Tensor:
    [part] = rollout.steps.split(torch.ones(2, 1, dtype=torch.bool), 9)
    return policy.score(rollout, part, frozenset())["gradient_reward"].sum()


def slope(policy: Any, rollout: Any) -> Tensor:
    parameters = [one for one in policy.network.parameters() if one.requires_grad]
    found = torch.autograd.grad(rewards(policy, rollout), parameters, allow_unused=True)
    pairs = zip(parameters, found, strict=True)
    return torch.cat([(torch.zeros_like(one) if value is None else value).flatten() for one, value in pairs])


def difference(policy: Any, rollout: Any, direction: Tensor, by: float) -> float:
    """The central difference of the rewards along a direction of the parameters."""
    values, parameters = [], [one for one in policy.network.parameters() if one.requires_grad]
    for sign in (1, -2):
        with torch.no_grad():
            for one, part in zip(parameters, direction.split([p.numel() for p in parameters]), strict=True):
                one += sign * by * part.view_as(one)
            values.append(float(rewards(policy, rollout)))
    with torch.no_grad():
        for one, part in zip(parameters, direction.split([p.numel() for p in parameters]), strict=True):
            one += by * part.view_as(one)
    return (values[0] - values[1]) / (2 * by)


@pytest.mark.parametrize("gradient", ["draft(last=1)", "draft(last=0)", "refl(first=0.4, last=0.7)"])
def test_the_gradient_is_the_difference_of_rewards_under_guidance(folder, gradient, monkeypatch):
    """Along the gradient itself the slope is its norm; half of the guidance has another direction."""
    policy = policy_of(folder, gradient)
    rollout = policy.rollout(Request(PROMPTS, [0, 1], 1, seed=5, gradient=redness))
    found = slope(policy, rollout)
    norm = float(found.norm())
    assert difference(policy, rollout, found / norm, 1e-2) == pytest.approx(norm, rel=0.03)

    kind = type(policy.model.architecture)
    both = kind.guided
    monkeypatch.setattr(kind, "guided", lambda self, negative, *given: both(self, negative.detach(), *given))
    half = slope(policy, rollout)
    assert float(half @ found) / (float(half.norm()) * norm) < 0.98
    assert abs(difference(policy, rollout, half / half.norm(), 1e-2) / float(half.norm()) - 1) > 0.03


def test_checkpoints_change_nothing(folder):
    found = []
    for checkpointing in (True, False):
        policy = policy_of(folder, f"draft(last=3, draws=1, checkpointing={checkpointing})")
        rollout = policy.rollout(Request(PROMPTS, [0, 1], 1, seed=5, gradient=redness))
        found.append(slope(policy, rollout))
    assert torch.equal(*found)


def test_a_family_of_clips_has_none(tmp_path):
    from pipelines.visual import wan

    with pytest.raises(ValueError, match="gradients.*images"):
        visual.policy(str(wan.tiny(tmp_path)), family="wan", policy="gradients", height=16, width=16, frames=5)
