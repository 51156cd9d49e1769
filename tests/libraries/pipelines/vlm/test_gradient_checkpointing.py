"""Activations that are computed again in the backward pass."""

from __future__ import annotations

import torch

from mmgrpo.policies.token import TokenPolicy
from mmgrpo.types import Media, Request
from pipelines.vlm import qwen_vl
from tests.building import load
from tests.journeys.cli.quick import write_media
from tests.seeing import asked


def test_recomputing_activations_changes_neither_likelihoods_nor_gradients(tmp_path):
    """Under gradient there is no cache to share then; what is computed is the same."""
    model, media = qwen_vl.tiny(tmp_path / "model"), write_media(tmp_path)
    prompts = [asked("q", Media("image", str(media / "0.png")), Media("video", str(media / "1.mp4")), "which?")]
    results = []
    for checkpointing in (False, True):
        family = load(qwen_vl, model, gradient_checkpointing=checkpointing)
        policy = TokenPolicy(family, max_tokens=5)
        rollout = policy.rollout(Request(prompts, [0], 3, 1))
        [part] = rollout.steps.split(rollout.decisions.loss_mask, 9)
        scores = policy.score(rollout, part, frozenset({"log_probs"}))["log_probs"]
        scores.sum().backward()
        gradients = [p.grad for p in family.network.parameters() if p.grad is not None]
        results.append((scores.detach(), torch.cat([gradient.flatten() for gradient in gradients])))
    (plain, expected), (again, gradient) = results
    assert expected.abs().max() > 0.1 and torch.isfinite(gradient).all()
    torch.testing.assert_close(again, plain, atol=1e-5, rtol=0)
    torch.testing.assert_close(gradient, expected, atol=1e-4, rtol=1e-4)
