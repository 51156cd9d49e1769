"""The nouns of the house, and its axes.

Axes, used in every signature:

    P   prompts of one round
    G   samples a prompt
    B   rows (samples); B = P * G when groups are full, members of a group adjacent
    T   decisions a row: tokens, or denoising transitions (padded; ``loss_mask`` says which are real)
    R   rewards
    N   (row, position) entries of one part of a rollout

A group is an integer key per row, not a class. Several keys may be in force at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn


@dataclass(frozen=True)
class Media:
    """A picture, clip or sound that a prompt shows, and how it is to be read."""

    kind: str
    """``image``, ``video`` or ``audio``."""
    source: str | tuple[str, ...] | Output
    """A file, the files of a clip's frames, or what is in memory already."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """How it is read: ``min_pixels``, ``max_pixels``; of a video ``fps`` or ``frames``, ``start``, ``end``
    (seconds), ``shuffle`` (a seed: the frames in another order)."""


@dataclass(frozen=True)
class Turn:
    """One message of a conversation: text and media in the order in which they are shown."""

    role: str
    """``system``, ``user`` or ``assistant``."""
    parts: tuple[str | Media, ...]


@dataclass(frozen=True)
class Prompt:
    """One row of a data set: what the policy is given, and what a verifier may compare with."""

    text: str
    """The whole prompt where it is only text; what its user turns say, where there are turns."""
    id: str = ""
    answer: Any = None
    task: str = ""
    meta: Mapping[str, Any] = field(default_factory=dict)
    turns: tuple[Turn, ...] = ()
    """A conversation, where the prompt is more than a text."""

    @property
    def media(self) -> tuple[Media, ...]:
        """All media, in the order in which they are shown."""
        return tuple(part for turn in self.turns for part in turn.parts if isinstance(part, Media))


@dataclass(frozen=True)
class Text:
    """A decoded completion, without its prompt."""

    text: str
    tokens: int = 0
    truncated: bool = False
    seen: tuple[tuple[int, int], ...] = ()
    """(height, width) in pixels at which the model saw each of the prompt's media: the pixels that a box it names
    may be in."""


@dataclass(frozen=True)
class Image:
    """Pixels in [0, 1], RGB."""

    pixels: Float[Tensor, "3 height width"]


@dataclass(frozen=True)
class Video:
    """Frames in [0, 1], RGB; ``fps`` in frames per second."""

    frames: Float[Tensor, "frames 3 height width"]
    fps: float


@dataclass(frozen=True)
class Audio:
    """Samples in [-1, 1]; ``rate`` in Hz."""

    samples: Float[Tensor, "channels samples"]
    rate: int


Output: TypeAlias = "Text | Image | Video | Audio"

OWN = 0
"""``origin`` of rows that the policy itself sampled in this round."""

REPLAYED = 1
"""``origin`` of rows taken from an earlier round."""

REFERENCE = 2
"""``origin`` of rows that a data set supplied (reference answers)."""

CONTRAST = 3
"""``origin`` of rows sampled from a changed prompt (frames in another order): judged, never trained on."""


@dataclass(frozen=True)
class Decisions:
    """The numbers of one round that advantages and weights are made of.

    It is the part of a rollout that is gathered over all ranks, so that statistics do not depend
    on how groups are spread over them. ``node[b, t]`` numbers the decision that row b passed at
    position t; rows that share a decision share the number, and exactly one of them has
    ``loss_mask`` True there (it owns the decision), so that a shared decision is trained once.
    ``decision_mask`` is True wherever the row has a decision at all, owned or not, trained or not.
    """

    log_probs: Float[Tensor, "B T"]
    loss_mask: Bool[Tensor, "B T"]
    decision_mask: Bool[Tensor, "B T"]
    node: Int[Tensor, "B T"]
    origin: Int[Tensor, "B"]
    keys: Mapping[str, Int[Tensor, "B"]]
    """Group keys by name. ``prompt`` is always there."""
    fields: Mapping[str, Tensor] = field(default_factory=dict)
    """What only some policies know, by name: [B] (``truncated``) or [B, T] (``std``: the
    std of each transition, ``entropy`` of each token)."""

    @property
    def rows(self) -> int:
        return self.loss_mask.shape[0]


@runtime_checkable
class Part(Protocol):
    """Some (row, position) entries of a rollout that are scored together in one forward pass."""

    @property
    def rows(self) -> Int[Tensor, "N"]: ...

    @property
    def positions(self) -> Int[Tensor, "N"]: ...


@runtime_checkable
class Steps(Protocol):
    """What a policy keeps of its decisions in order to score them again; opaque to the core."""

    def split(self, loss_mask: Bool[Tensor, "B T"], limit: int) -> Iterator[Part]:
        """Cut the masked decisions into parts of at most ``limit`` network evaluations each."""
        ...


@dataclass(frozen=True)
class Rollout:
    """Everything that one round of sampling made, on this rank."""

    prompts: Sequence[Prompt]
    """One entry per row (the same object for all members of a group)."""
    outputs: Sequence[Output]
    decisions: Decisions
    steps: Steps
    previews: Mapping[str, Sequence[Output]] = field(default_factory=dict)
    """Further outputs of the same rows by name, decoded from deterministic completions."""
    evaluations: int = 0
    """Network evaluations spent (rows of forward passes, guidance counted twice)."""

    def with_decisions(self, decisions: Decisions) -> Rollout:
        return replace(self, decisions=decisions)


Scores: TypeAlias = dict[str, Float[Tensor, "*shape"]]
"""What ``Policy.score`` returns: per-entry numbers by name, with gradient where there is one.

Every policy gives ``log_probs``. Gaussian decisions add ``shift`` (mean squared distance of the
transition's mean from the rollout's), ``std``, ``dt`` and ``level`` of the transition; tokens
add ``entropy``. With a reference model: ``reference_log_probs``, and for Gaussian decisions
``reference_shift`` and ``reference_velocity_gap`` (mean squared velocity difference).
"""


@dataclass(frozen=True)
class Request:
    """What a policy is asked to do in one round.

    ``slots`` are the places of the prompts in the whole batch over all ranks. All randomness of
    a group comes from (``seed``, its slot), so that ranks do not matter; what must be equal for
    all groups (windows, subsets) comes from ``seed`` alone.
    """

    prompts: Sequence[Prompt]
    slots: Sequence[int]
    group_size: int
    seed: int
    round: int = 0


@runtime_checkable
class Policy(Protocol):
    """A model that makes T random decisions per sample and can say again how likely each was."""

    network: nn.Module
    """The trained network; the trainer replaces it by its prepared (wrapped) form."""
    provides: frozenset[str]
    """Names that ``score`` can return."""
    fields: frozenset[str]
    """Names in ``Decisions.fields`` of its rollouts."""
    keys: frozenset[str]
    """Names in ``Decisions.keys`` of its rollouts."""
    kind: str
    """``tokens``, ``gaussian`` or ``matching``: which presets make sense."""
    settings: Any
    """How the policy was made (``mmgrpo.family.Settings``); None for one that was made by hand."""

    def rollout(self, request: Request) -> Rollout:
        """Sample ``group_size`` rows for each prompt. No gradient."""
        ...

    def score(self, rollout: Rollout, part: Any, names: frozenset[str]) -> Scores:
        """Score a part of ``rollout.steps`` again under the present parameters; ``names`` says what is wanted."""
        ...

    def sample(self, request: Request) -> Sequence[Output]:
        """Draw outputs as one would after training (no exploration noise), for evaluation."""
        ...

    def keep_reference(self) -> None:
        """Keep the network as it is now, for terms that compare with it; called before the first update."""
        ...

    def save(self, folder: Path) -> None:
        """Write the trained network in its family's own format."""
        ...


@runtime_checkable
class Reward(Protocol):
    """A named scorer: prompts and outputs to one number each; NaN says "could not be scored"."""

    def __call__(self, prompts: Sequence[Prompt], outputs: Sequence[Output]) -> Sequence[float]: ...


@runtime_checkable
class Reference(Protocol):
    """Gives the network as it was before training, for the length of a ``with`` block."""

    def keep(self) -> None:
        """Keep the network as it is now, if that is needed; called before the first update."""
        ...

    def __call__(self) -> AbstractContextManager[nn.Module]: ...


def select_rows(decisions: Decisions, rows: Int[Tensor, "rows"] | slice) -> Decisions:
    """The decisions of some rows."""
    return Decisions(
        log_probs=decisions.log_probs[rows],
        loss_mask=decisions.loss_mask[rows],
        decision_mask=decisions.decision_mask[rows],
        node=decisions.node[rows],
        origin=decisions.origin[rows],
        keys={name: key[rows] for name, key in decisions.keys.items()},
        fields={name: value[rows] for name, value in decisions.fields.items()},
    )


def to_image(pixels: Tensor) -> Image:
    """Clamp and move to the CPU in fp32, as every reward expects it."""
    return Image(pixels.detach().to("cpu", torch.float32).clamp(0, 1))
