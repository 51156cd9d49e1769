"""A term that counts nothing changes no gradient, whatever network it asks for and at every step of a round."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from accelerate import Accelerator

from mmgrpo.config.registry import Block, Bound, bind
from mmgrpo.objectives import TERMS
from mmgrpo.runtime.networks import bind_networks
from mmgrpo.types import Batch, Request
from mmgrpo.update import LossRecipe, accumulate_gradients
from tests.unit.policies.test_every_policy import MADE

NAMES = ("old", "sampler", "drawn", "loss", "teacher", "reference")
"""Also those with which the names of records of a batch begin."""
PLAIN = LossRecipe.of("ppo", "per_sample")
FURTHER = {"early_shift": ", first=1", "kl_hinge": ", delta=0.1"}
"""What a term must be given besides its coefficient."""
FREE = [
    bind(f"{name}(coef=0.0{FURTHER.get(name, '')})", TERMS, "")
    for name, block in TERMS.items()
    if "coef" in block.parameters
]


def of_network(name: str) -> Bound:
    """0 (log p - log p of the network)."""
    return Bound(name, Block(lambda now, other: 0 * (now - other), inputs=("log_probs", f"{name}.log_probs")), {})


def gradient(policy, batch, terms, on_policy):
    accumulate_gradients(
        policy,
        batch,
        torch.ones(len(batch.advantages), dtype=torch.bool),
        replace(PLAIN, terms=tuple(terms)),
        micro_batch_size=8,
        accelerator=Accelerator(cpu=True),
        on_policy=on_policy,
    )
    found = [parameter.grad.flatten().clone() for parameter in policy.networks.trained.values()]
    policy.network.zero_grad()
    return torch.cat(found)


def provided(policy, term: Bound) -> bool:
    """Whether a policy has what a term asks for, of a network of any name as of the reference."""
    of_any = {need if "." not in need else "reference." + need.partition(".")[2] for need in term.needs}
    return of_any - {"old_log_probs", "advantages", "loss_mask", "decision_mask", "drawn", "key"} <= policy.provides


@pytest.mark.parametrize("on_policy", [True, False])
@pytest.mark.parametrize("kind", MADE)
def test_a_term_of_no_weight_changes_no_gradient(kind, on_policy):
    policy, prompts = MADE[kind]()
    policy.keep_reference()
    policy.networks.follow(bind_networks([f"average(name='{name}')" for name in NAMES if name != "reference"]))
    drawn = policy.rollout(Request(prompts, [0, 1], 4, 3))
    with torch.no_grad():
        for number, values in enumerate(policy.networks.values.values()):
            for value in values.values():
                value += 0.05 * (number + 1)
        for parameter in policy.networks.trained.values() if not on_policy else ():
            parameter += 0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0))
    decisions = drawn.decisions
    advantages = torch.tensor([1.0, -0.5, 0.25, -0.75] * 2)[:, None].expand_as(decisions.log_probs)
    batch = Batch([drawn], [torch.arange(8)], decisions, advantages, decisions.loss_mask)
    plain = gradient(policy, batch, [], on_policy)
    assert plain.abs().max() > 0
    terms = [*map(of_network, NAMES), *FREE]
    asked = [term for term in terms if provided(policy, term)]
    assert len(asked) > len(NAMES)
    for term in asked:
        changed = gradient(policy, batch, [term], on_policy)
        torch.testing.assert_close(changed, plain, rtol=1e-6, atol=1e-6 * float(plain.abs().max()), msg=term.text)
