"""A token policy that draws: its tokens are the codes of an image tokenizer, which makes an image of them.

Every sample has the same number of codes, and rewards judge the image. With classifier-free guidance of a scale w the
policy is the guided distribution, in sampling and in scoring alike: with c and u the logits with and without the
prompt,

    log pi = log_softmax((u + w (c - u)) / temperature)

whose gradient with respect to c is w times that of the plain one (and -(w - 1) times with respect to u), so a
learning rate belongs to a scale. The reference of a KL term is guided in the same way.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mmgrpo.policies.token import TokenPolicy
from mmgrpo.policies.token_model import Sequences, TokenModel
from mmgrpo.policies.token_passes import USUAL, Memory
from mmgrpo.types import Output, Request, Rollout, to_image

UNMEASURED = frozenset(
    {"answer_probability", "answer_prior", "visual_dependency", "segment", "character", "answer_gain"}
)
"""Records of texts, and of media in prompts."""


@runtime_checkable
class ImageTokenModel(TokenModel, Protocol):
    """A model whose vocabulary is the codes of an image tokenizer."""

    codes: int
    """The number of codes of an image."""
    passes: int
    """Rows of the network for each row: 2 with classifier-free guidance, else 1."""

    def pixels(self, codes: Int[Tensor, "N T"]) -> Float[Tensor, "N 3 height width"]:
        """The images of codes; values outside [0, 1] are clamped."""
        ...


def classifier_free_guidance(
    conditional: Float[Tensor, "N vocabulary"], unconditional: Float[Tensor, "N vocabulary"], scale: float
) -> Float[Tensor, "N vocabulary"]:
    """u + w (c - u), the logits of classifier-free guidance (Ho and Salimans, arXiv:2207.12598, in the form in which a
    scale of 1 is none).

    c = [1, 0, -1] and u = [.5, .5, -.5] have the log-probs [-.4076, -1.4076, -2.4076] with w = 1 and
    [-.0092, -5.0092, -6.0092] with w = 5.
    """
    return unconditional + scale * (conditional - unconditional)


class ImageTokenPolicy(TokenPolicy):
    """Draws code by code and scores the same codes in one pass; its outputs are images."""

    answer_kind = ""
    adjustable = frozenset({"temperature"})

    def __init__(
        self,
        model: ImageTokenModel,
        *,
        temperature: float = 1.0,
        evaluation_temperature: float = 1.0,
        sampling_dtype: str = "",
        decode_batch_size: int = 8,
        memory: Memory = USUAL,
        device: torch.device | str = "cpu",
    ) -> None:
        """``decode_batch_size`` images are decoded at a time; the others are those of ``TokenPolicy``."""
        super().__init__(
            model,
            max_tokens=model.codes,
            temperature=temperature,
            evaluation_temperature=evaluation_temperature,
            sampling_dtype=sampling_dtype,
            memory=memory,
            device=device,
        )
        self.drawing_model, self.decode_batch_size = model, decode_batch_size
        unknown = {f"{name} of samples" for name in UNMEASURED}
        self.provides = frozenset(name for name in self.provides - unknown if "under a changed prompt" not in name)

    @torch.no_grad()
    def rollout(self, request: Request) -> Rollout:
        """``group_size`` images per prompt, each group from its own random stream."""
        rollout = super().rollout(request)
        return replace(rollout, evaluations=rollout.evaluations * self.drawing_model.passes)

    def has_end(self, sequences: Sequences) -> Bool[Tensor, " B"]:
        """All rows: every image has all of its codes."""
        return torch.ones(len(sequences.ids), dtype=torch.bool, device=self.device)

    @torch.no_grad()
    def decode(self, sequences: Sequences) -> list[Output]:
        """The image of each row."""
        return [
            to_image(image)
            for codes in sequences.ids.split(self.decode_batch_size)
            for image in self.drawing_model.pixels(codes)
        ]
