"""D2-Align (arXiv:2512.24146): a reward of image and prompt, corrected along a learned direction of its text space.

A reward by cosine prefers images of one look whatever the prompt says; a policy that maximizes it collapses to them.
A direction b is learned first, with the policy frozen, and then corrects the text features e of every prompt:

    e+ = normalize(e + b)    e- = normalize(e - b)    e~ = e- + omega (e+ - e-)    R = score(image, e~)
    b  = argmin -E[R]  over images of the frozen policy

with omega > 1, an extrapolation as in classifier-free guidance; the paper's best is 1.5. Without a direction R is the
reward itself. As in the paper's formula e~ is not normalized again.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from mmgrpo.config.names import nearest
from mmgrpo.config.registry import parse
from mmgrpo.files import write_tensors
from mmgrpo.scoring.manifest import reward
from mmgrpo.types import Image, Output, Prompt
from reward_models.checkpoints import read_tensors
from reward_models.clip import clip_score, hpsv2, pickscore
from reward_models.clip.match import Match, score

MATCHES: dict[str, Callable[..., Match]] = {
    "clip_score": clip_score.match,
    "hpsv2": hpsv2.match,
    "pickscore": pickscore.match,
}
"""Rewards that can be corrected."""

OMEGA = 1.5


@reward(
    "Image",
    range=(-inf, inf),
    scale="that of the reward",
    delegates=True,
    reads=("text",),
    packages=("transformers",),
    extra="visual",
    source="D2-Align, arXiv:2512.24146",
    gradient="reward_models.clip.d2_align:differentiable",
)
def d2_align(
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    direction: str,
    reward: str = "hpsv2",
    omega: float = OMEGA,
    device: str = "cpu",
) -> list[float]:
    """The ``reward`` (clip_score, hpsv2 or pickscore, with its parameters as in a recipe) with corrected text features.

    ``direction`` is a file of ``save_direction``. NaN for an image that is not finite.
    """
    match = load_match(reward, device)
    return score(match, prompts, outputs, _correction(match, direction, omega))


def differentiable(
    direction: str, reward: str = "hpsv2", omega: float = OMEGA, device: str = "cpu"
) -> Callable[[Sequence[Prompt], Tensor], Tensor]:
    """``d2_align`` as a function of pixels."""
    match = load_match(reward, device)
    return functools.partial(match.differentiable, correct=_correction(match, direction, omega))


def _correction(match: Match, direction: str, omega: float) -> Callable[[Tensor], Tensor]:
    vector = _direction(direction)

    def correct(texts: Tensor) -> Tensor:
        if texts.shape[1] != len(vector):
            raise ValueError(
                f"d2_align: {direction}: got a direction of {len(vector)} numbers, expected {texts.shape[1]}, the "
                f"width of {match.name}; learn it with the same reward"
            )
        return guide(texts, vector, omega)

    return correct


@functools.cache
def load_match(reward: str, device: str = "cpu") -> Match:
    """The reward, written as in a recipe, loaded once."""
    name, parameters = parse(reward, "d2_align: reward")
    if name not in MATCHES:
        raise ValueError(f"d2_align: reward: got '{name}'.{nearest(name, MATCHES)}")
    try:
        return MATCHES[name](**parameters, device=device)
    except TypeError as error:
        raise ValueError(f"d2_align: reward: got {reward!r}, whose parameters do not fit: {error}") from error


def guide(
    texts: Float[Tensor, "n width"], direction: Float[Tensor, " width"], omega: float = OMEGA
) -> Float[Tensor, "n width"]:
    """The corrected text features e~ of features of length 1."""
    plus = functional.normalize(texts + direction)
    minus = functional.normalize(texts - direction)
    return minus + omega * (plus - minus)


def learn_direction(
    match: Match,
    prompts: Sequence[Prompt],
    images: Sequence[Image],
    omega: float = OMEGA,
    steps: int = 2000,
    rate: float = 1e-3,
) -> Float[Tensor, " width"]:
    """The direction that maximizes the mean corrected reward of the images for their prompts, by Adam from zero.

    The images are a frozen policy's own: a few for each of many prompts, so only what they share is learned.
    """
    if not images or len(images) != len(prompts):
        raise ValueError(
            f"d2_align: got {len(images)} images and {len(prompts)} prompts, expected at least one image, and for "
            "each its prompt"
        )
    features, words = match.images(images), match.texts(prompts)
    direction = torch.zeros(words.shape[1], requires_grad=True)
    optimizer = torch.optim.Adam([direction], lr=rate)
    for _ in range(steps):
        loss = -match.value((features * guide(words, direction, omega)).sum(1)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return direction.detach()


def save_direction(direction: Float[Tensor, " width"], file: Path | str, reward: str) -> None:
    """Write a direction, with the reward that it corrects."""
    tensors = {"direction": direction.detach().cpu().contiguous()}
    write_tensors(Path(file), tensors, {"d2_align": json.dumps({"reward": reward})})


@functools.cache
def _direction(file: str) -> Tensor:
    tensors = read_tensors(Path(file).expanduser(), "d2_align")
    if set(tensors) != {"direction"} or tensors["direction"].ndim != 1:
        raise ValueError(
            f"d2_align: {file}: got {sorted(tensors)[:5]}, expected one vector direction; see save_direction"
        )
    return tensors["direction"].float()
