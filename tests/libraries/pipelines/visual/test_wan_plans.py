"""Clips under every plan; a tree over clips, with and without a given first frame, against a plain loop."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from mmgrpo.policies.denoising import DenoisingPolicy
from mmgrpo.randomness import stream
from mmgrpo.types import Prompt, Request, Video
from pipelines.visual import wan
from tests.building import check_scores, denoising_policy_over, load
from tests.libraries.pipelines.visual.filming import FOUR, PICTURED, TEXTS, UNJUDGED, checkpoint, ours
from tests.tiny import tiny_checkpoint

STEPS, ETA = 5, 0.3


def policy_of(model: Any, plan: str) -> DenoisingPolicy:
    return denoising_policy_over(
        model, plan, kernel=f"dance(eta={ETA})", steps=STEPS, evaluation_steps=3, forward_batch_size=3
    )


@pytest.fixture(scope="module")
def words_folder() -> Path:
    return tiny_checkpoint(wan.tiny_words)


@pytest.mark.parametrize("plan", UNJUDGED)
def test_every_plan_films_and_scores_what_it_sampled(words_folder, plan):
    model = load(wan, words_folder, frames=3, height=8, width=12, guidance=2.0)
    policy = policy_of(model, FOUR.get(plan, plan))
    rollout = policy.rollout(Request([Prompt("a red circle"), Prompt("a blue square")], [0, 1], 4, seed=0))
    for clip in rollout.outputs:
        assert isinstance(clip, Video) and clip.frames.shape == (3, 3, 8, 12) and clip.fps == 8
    check_scores(policy, rollout, 3)


def plain_tree(folder: Path, words: torch.Tensor, given: torch.Tensor | None, shape: tuple[int, ...]) -> Any:
    """BranchGRPO's tree of 4 leaves that splits in two at steps 0 and 2, leaf by leaf: clips and log-probs.

    Written from the papers' formulas and the network of diffusers alone. Every leaf repeats what it shares.
    """
    from diffusers import AutoencoderKLWan, FlowMatchEulerDiscreteScheduler, WanTransformer3DModel

    network: Any = WanTransformer3DModel.from_pretrained(folder, subfolder="transformer")
    vae: Any = AutoencoderKLWan.from_pretrained(folder, subfolder="vae")
    scheduler: Any = FlowMatchEulerDiscreteScheduler.from_pretrained(folder, subfolder="scheduler")
    scheduler.set_timesteps(STEPS)
    sigmas = scheduler.sigmas.tolist()
    start = torch.randn(1, *shape, generator=stream(0, "start", 0))
    random, noises = stream(0, "noise", 0, 0), []
    for edges, splits in ((2, True), (2, False), (4, True), (4, False)):
        own = torch.randn(edges, *shape, generator=random)
        if splits:  # siblings share a part: (shared + 4 own) / sqrt(17)
            shared = torch.randn(edges // 2, *shape, generator=random)
            own = torch.stack([(shared[e // 2] + 4 * own[e]) / math.sqrt(17) for e in range(edges)])
        noises.append(own)
    clips, log_probs = [], []
    for leaf in range(4):
        x, scores = start, []
        for step in range(STEPS):
            sigma, dt = sigmas[step], sigmas[step + 1] - sigmas[step]
            whole, time = x, torch.tensor([1000 * sigma])
            if given is not None:
                whole = torch.cat([given, x], 2)
                tokens = whole.shape[3] // 2 * (whole.shape[4] // 2)
                time = torch.tensor([[0.0] * tokens + [1000 * sigma] * tokens * x.shape[2]])
            velocity = network(whole, time, words)[0][:, :, whole.shape[2] - x.shape[2] :]
            if step == STEPS - 1:
                x = x + dt * velocity
                continue
            noise = x + (1 - sigma) * velocity
            mean = x + velocity * dt + ETA**2 / (2 * sigma) * noise * dt
            std = ETA * math.sqrt(-dt)
            x = mean + std * noises[step][leaf * len(noises[step]) // 4]
            density = -((x - mean) ** 2) / (2 * std**2) - math.log(std) - math.log(2 * math.pi) / 2
            scores.append(density.mean())
        whole = x if given is None else torch.cat([given, x], 2)
        mean, std = (torch.tensor(v).view(1, -1, 1, 1, 1) for v in (vae.config.latents_mean, vae.config.latents_std))
        pixels = vae.decode(whole * std + mean).sample
        clips.append((pixels[0].movedim(0, 1) / 2 + 0.5).clamp(0, 1))
        log_probs.append(torch.stack(scores))
    return torch.stack(clips), torch.stack(log_probs)


@pytest.mark.parametrize("pictures", [False, True])
@torch.no_grad()
def test_a_tree_over_clips_is_a_plain_loop(tmp_path, pictures):
    folder = checkpoint(tmp_path, "2.2-5B" if pictures else "2.1", pictures)
    model = ours(folder, pictures)
    prompt = (PICTURED if pictures else TEXTS)[0]
    rollout = policy_of(model, "branch_tree(splits=[0, 2])").rollout(Request([prompt], [0], 4, seed=0))
    words, *given = model.encode([prompt]).tensors
    shape = (4, 2, 2, 4) if pictures else (4, 3, 4, 8)  # of 9 frames of 32 x 64 pixels, the first one given
    clips, log_probs = plain_tree(folder, words, given[0] if given else None, shape)
    torch.testing.assert_close(torch.stack([one.frames for one in rollout.outputs]), clips, atol=2e-5, rtol=0)
    torch.testing.assert_close(rollout.decisions.log_probs[:, : STEPS - 1], log_probs, atol=2e-5, rtol=0)
    assert rollout.decisions.loss_mask[:, :4].tolist() == [
        [True, True, True, True],
        [False, False, True, True],
        [True, True, True, True],
        [False, False, True, True],
    ]
    assert not rollout.decisions.loss_mask[:, 4].any()
    assert (clips[0] - clips[1]).abs().max() > 1e-3 and (clips[0] - clips[2]).abs().max() > 1e-3
