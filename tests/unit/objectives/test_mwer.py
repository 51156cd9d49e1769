"""GRPO without std, clip and division by the length is sampled minimum word error rate training."""

from __future__ import annotations

import torch

from mmgrpo.advantages.estimate import estimate
from mmgrpo.types import OWN, Decisions
from reward_models.rules.transcripts import word_errors
from tests.building import algorithm_blocks


def test_the_mwer_preset_has_the_gradient_of_the_expected_number_of_word_errors():
    """(1/N) sum_i (W_i - mean W) d log p(y_i), with log p(y) the sum over the tokens of y (arXiv:1712.01818)."""
    said = ["the cat sat", "a cat sat", "the cat", "dog"]
    errors = [word_errors(["the", "cat", "sat"], one.split()) for one in said]
    assert errors == [0, 1, 1, 3]  # nothing; one substituted; one deleted; one substituted and two deleted
    lengths = torch.tensor([4, 4, 3, 2])
    loss_mask = torch.arange(4) < lengths[:, None]
    logits = torch.randn(4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_()
    log_probs = torch.where(loss_mask, torch.nn.functional.logsigmoid(logits), 0.0)
    blocks = algorithm_blocks("mwer")
    decisions = Decisions(
        log_probs=log_probs.detach().float(),
        loss_mask=loss_mask,
        decision_mask=loss_mask,
        node=torch.arange(16).view(4, 4),
        origin=torch.full((4,), OWN),
        keys={"prompt": torch.zeros(4, dtype=torch.long)},
    )
    rewards = -torch.tensor(errors, dtype=torch.float32)[:, None]
    made = estimate(rewards, torch.ones(4, 1, dtype=torch.bool), torch.ones(1), decisions, blocks["advantages"])
    numbers = {"log_probs": log_probs, "advantages": made.advantages.double(), "loss_mask": loss_mask}
    loss = (blocks["loss"].aggregation({"loss_mask": loss_mask}) * blocks["loss"].objective(numbers).values).sum()
    (ours,) = torch.autograd.grad(loss, logits, retain_graph=True)
    centred = torch.tensor(errors, dtype=torch.float64) - 1.25  # the mean of 0, 1, 1, 3
    (wanted,) = torch.autograd.grad((centred * log_probs.sum(1)).mean(), logits)
    torch.testing.assert_close(ours, wanted, rtol=0, atol=1e-7)
    assert wanted.abs().max() > 0.1
