"""The types that the rooms share, and the axes of their tensors.

Axes, used in every signature:

    P   prompts per round
    G   samples per prompt
    B   rows (samples); B = P * G when groups are full, members of a group adjacent
    T   decisions per row: tokens, or denoising transitions (padded; ``decision_mask`` is False on the padding)
    R   rewards
    N   (row, position) entries of one part of a rollout

A group is an integer key per row, not a class. Rows may be grouped by several keys at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn


@dataclass(frozen=True)
class Media:
    """An image, video or audio in a prompt, and how it is read."""

    kind: str
    """``image``, ``video`` or ``audio``."""
    source: str | tuple[str, ...] | Output
    """A file, the files of a video's frames, or an output in memory."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """How it is read: ``min_pixels``, ``max_pixels``; for a video ``fps`` or ``frames``, and for a video or audio
    ``start``, ``end`` (seconds); ``shuffle`` (the seed of a permutation of the frames)."""


@dataclass(frozen=True)
class Turn:
    """One message of a conversation: text and media in their order."""

    role: str
    """``system``, ``user``, ``assistant`` or ``tool``."""
    parts: tuple[str | Media, ...]
    keys: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """What else chat templates read of it: ``tool_calls``, ``reasoning_content``, ``name``, ``tool_call_id``, and
    ``content`` where that is null."""


@dataclass(frozen=True)
class Answer:
    """An answer that a data set gives to a prompt, to be compared with its others."""

    text: str
    media: Media | None
    """An image, video or audio in place of a text; of a text that is the name of a file, both."""
    grade: float
    """Higher is better; only the order of the answers to a prompt counts."""


@dataclass(frozen=True)
class Prompt:
    """One row of a data set: the policy's input, and what a verifier may compare with."""

    text: str
    """The whole prompt where it is only text; else the text of its user turns."""
    id: str = ""
    answer: Any = None
    task: str = ""
    meta: Mapping[str, Any] = field(default_factory=dict)
    turns: tuple[Turn, ...] = ()
    """A conversation, where the prompt is more than a text."""
    columns: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """What was read of the row, under its own names (``solution`` for ``answer``) and as it was."""
    answers: tuple[Answer, ...] = ()
    """Answers of preference data, the best first (``mmgrpo.data.pairs``)."""

    @property
    def media(self) -> tuple[Media, ...]:
        """All media in their order in the conversation."""
        return tuple(part for turn in self.turns for part in turn.parts if isinstance(part, Media))


@dataclass(frozen=True)
class Call:
    """A call of a tool in a completion."""

    name: str
    """As the policy wrote it; empty where the call could not be read."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    result: str = ""
    """What the policy was given to read, before it is cut to ``sampling.observation_tokens``."""
    error: str = ""
    """Why the call failed; the policy reads it in place of a result."""
    images: tuple[Media, ...] = ()
    """What it was given to look at, behind the text of the result."""


@dataclass(frozen=True)
class Text:
    """A decoded completion, without its prompt; of several turns (``sampling.tools``) the last."""

    text: str
    tokens: int = 0
    """The tokens that the policy wrote, in all turns."""
    truncated: bool = False
    seen: tuple[tuple[int, int], ...] = ()
    """(height, width) in pixels at which the model saw each of the prompt's media: the coordinate system of boxes in
    the text."""
    prefilled: str = ""
    """What the chat template wrote of the answer at the end of the prompt, e.g. an opened thought, ``<think>\\n``."""
    ids: tuple[int, ...] = field(default=(), compare=False, repr=False)
    """The tokens of the text, where a policy sampled it."""
    turns: tuple[Turn, ...] = ()
    """The turns before the text: what the policy wrote and what its tools answered, and before them what these wrote
    behind the prompt."""
    calls: tuple[Call, ...] = field(default=(), hash=False)
    """The calls of tools in all turns that were answered, in their order."""
    tool_reward: float | None = field(default=None, hash=False)
    """What the tools themselves gave to the completion; NaN where one failed, None where none rewards."""
    fault: str = ""
    """Why the world that its tools act in failed, no fault of the policy's; no reward scores such a completion."""

    @property
    def whole(self) -> str:
        """The answer with its prefilled beginning, whose form rewards check."""
        return self.prefilled + self.text

    @property
    def messages(self) -> tuple[tuple[str, str], ...]:
        """Role and text of the turns before it and of the last, ``whole``; a medium is its kind in brackets."""
        turns = [*self.turns, Turn("assistant", (self.whole,))]
        words = [[part if isinstance(part, str) else f"[{part.kind}]" for part in turn.parts] for turn in turns]
        return tuple((turn.role, "".join(texts)) for turn, texts in zip(turns, words, strict=True))

    @property
    def transcript(self) -> str:
        """``whole``, behind the turns before it, for reports."""
        return "\n".join(f"{role}: {text}" for role, text in self.messages) if self.turns else self.whole


@dataclass(frozen=True)
class Image:
    """Pixels in [0, 1], RGB."""

    pixels: Float[Tensor, "3 height width"]
    words: str = ""
    """What the policy wrote before it drew: a plan, or its own words of the prompt."""


@dataclass(frozen=True)
class Audio:
    """Samples in [-1, 1]; ``rate`` in Hz."""

    samples: Float[Tensor, "channels samples"]
    rate: int


@dataclass(frozen=True)
class Video:
    """Frames in [0, 1], RGB; ``fps`` in frames per second."""

    frames: Float[Tensor, "frames 3 height width"]
    fps: float
    sound: Audio | None = None
    """What is heard with the frames, of a model that makes both."""


Output: TypeAlias = "Text | Image | Video | Audio"

OWN = 0
"""``origin`` of rows that the policy itself sampled in this round."""

REPLAYED = 1
"""``origin`` of rows of an earlier round."""

REFERENCE = 2
"""``origin`` of rows of the data set (reference answers)."""

CONTRAST = 3
"""``origin`` of rows sampled from a changed prompt (e.g. shuffled frames): scored, never trained."""

SUPERVISED = 4
"""``origin`` of answers of a second data set: trained by their likelihood, in no group and without a reward."""

HINTED = 5
"""``origin`` of rows that the policy sampled in this round with a hint in the prompt or a forced beginning, or from
a prompt that was made in it: trained, and no evidence of how hard a prompt of the data set is."""

HINT = "given hint"
"""Key in ``Prompt.meta`` of the hint that stands in a prompt; no column of a file is likely to have this name."""

REPLACED = 6
"""``origin`` of rows of the policy in whose place hinted ones are trained: scored and counted, never trained."""

DROPPED = 7
"""``origin`` of hinted rows in whose place others are trained: none of all this."""

GIVEN = 8
"""``origin`` of rows that the policy did not draw and that the objective itself compares: answers of preference data,
samples of another network."""
COUNTED = (OWN, HINTED)
"""Origins of rows that the statistics of a group count, unless a recipe counts more."""

UNTRAINED = (CONTRAST, SUPERVISED, REPLACED, DROPPED)
"""Origins of rows that have no advantage."""

Record: TypeAlias = "dict[str, Tensor]"
"""One row of a rollout as a policy stores it, to be scored again in a later round; its old log-probs are ``log_probs``
"""


@dataclass(frozen=True)
class Decisions:
    """The numbers of one round from which advantages and weights are computed.

    It is the part of a rollout that is gathered over all ranks, so statistics do not depend
    on the distribution of groups over ranks. ``node[b, t]`` is the number of the decision of row b at
    position t; rows that share a decision share the number, and at most one of them, its owner, has
    ``loss_mask`` True there, so a shared decision is trained once.
    ``decision_mask`` is True wherever the row has a decision, owned or not, trained or not.
    """

    log_probs: Float[Tensor, "B T"]
    loss_mask: Bool[Tensor, "B T"]
    decision_mask: Bool[Tensor, "B T"]
    node: Int[Tensor, "B T"]
    origin: Int[Tensor, "B"]
    keys: Mapping[str, Int[Tensor, "B"]]
    """Group keys by name, of which one is ``prompt``."""
    fields: Mapping[str, Tensor] = field(default_factory=dict)
    """Numbers that only some policies record, by name: [B] (``truncated``) or [B, T] (``std`` of each
    transition, ``entropy`` of each token)."""

    @property
    def rows(self) -> int:
        return self.loss_mask.shape[0]

    def by(self, change: Callable[[Sequence[Tensor]], Sequence[Tensor]]) -> Decisions:
        """The numbers after a change of all tensors together."""
        numbers = [self.log_probs, self.loss_mask, self.decision_mask, self.node, self.origin]
        tensors = iter(change([*numbers, *self.keys.values(), *self.fields.values()]))
        changed = [next(tensors) for _ in numbers]
        keys, fields = ({name: next(tensors) for name in table} for table in (self.keys, self.fields))
        return Decisions(*changed, keys=keys, fields=fields)

    @cached_property
    def owner_index(self) -> Int[Tensor, "B T"]:
        """For every entry, the flat index of the first entry of the same decision (its own if unshared)."""
        rows, width = self.node.shape
        index = torch.arange(rows * width, device=self.node.device)
        # Entries without a decision have unique negative numbers, so none is taken for a shared one.
        flat = torch.where(self.decision_mask, self.node, -1 - index.view(rows, width)).reshape(-1)
        _, inverse = torch.unique(flat, return_inverse=True)
        first = torch.full((int(inverse.max()) + 1,), rows * width, device=index.device)
        first = first.scatter_reduce(0, inverse, index, "amin")
        return first[inverse].view(rows, width)

    @cached_property
    def owned(self) -> Bool[Tensor, "B T"]:
        """True for exactly one entry of every decision."""
        index = torch.arange(self.node.numel(), device=self.node.device).view_as(self.node)
        return self.decision_mask & (self.owner_index == index)


@runtime_checkable
class Part(Protocol):
    """Some (row, position) entries of a rollout that are scored together in one forward pass."""

    @property
    def rows(self) -> Int[Tensor, "N"]: ...

    @property
    def positions(self) -> Int[Tensor, "N"]: ...


@runtime_checkable
class Steps(Protocol):
    """What a policy stores to score its decisions again; opaque to the core."""

    def split(self, loss_mask: Bool[Tensor, "B T"], limit: int) -> Iterator[Part]:
        """Split the decisions of the mask into parts of at most ``limit`` network evaluations each.

        A mask on the host costs no wait for the device: how large parts are is decided on the host, and the parts lie
        on the device of the steps.
        """
        ...


@dataclass(frozen=True)
class Completions:
    """Outputs to which intermediate states lead without noise; a number below N is that of a completion, N + b the
    output of row b, and -1 nothing, where there is no decision."""

    parts: Callable[[], Iterator[Sequence[Output]]]
    """Makes the N completions, a part at a time, under the weights of the moment."""
    rows: Int[Tensor, "N"]
    """A row of the rollout that passes the state of each completion."""
    before: Int[Tensor, "B T"]
    """The completion of the state before each decision."""
    after: Int[Tensor, "B T"]
    """The completion of the state after each decision."""
    by: str = ""
    """The reward that scores them; empty: the weighted sum."""
    count: int = 1
    """Completions of each state, one after the other in ``parts`` and ``rows``; numbers are those of states."""
    eta: float = 0.0
    """What of several is taken: their mean, or ln(mean exp(eta r)) / eta."""


@dataclass(frozen=True)
class Rollout:
    """The samples of one round on this rank."""

    prompts: Sequence[Prompt]
    """One entry per row (the same object for all members of a group)."""
    outputs: Sequence[Output]
    decisions: Decisions
    steps: Steps
    previews: Mapping[str, Sequence[Output]] = field(default_factory=dict)
    """Further outputs of the same rows by name, decoded from deterministic completions."""
    evaluations: int = 0
    """Network evaluations of sampling (rows of forward passes, guidance counted twice), completions included."""
    completions: Completions | None = None
    """Of a policy that records ``step_rewards`` (``mmgrpo.advantages.step_rewards``)."""

    def with_decisions(self, decisions: Decisions) -> Rollout:
        return replace(self, decisions=decisions)


@dataclass(frozen=True)
class Batch:
    """One round as optimizer steps see it: this rank's rollouts, and the numbers of all ranks, on the host where they
    are estimated and on the device of the policy where they are trained on (``mmgrpo.update.on_device``)."""

    rollouts: Sequence[Rollout]
    places: Sequence[Int[Tensor, "_"]]
    """For each rollout of this rank (one per draw), the indices of its rows in the gathered numbers."""
    decisions: Decisions
    advantages: Float[Tensor, "B T"]
    loss_mask: Bool[Tensor, "B T"]
    """Trained decisions, after all selectors."""

    @cached_property
    def host(self) -> Host:
        """What decides the sizes of steps and parts, copied once, so no step waits for it."""
        decisions = self.decisions
        places = [place.cpu() for place in self.places]
        return Host(self.loss_mask.cpu(), decisions.keys["prompt"].cpu(), decisions.origin.cpu(), places)

    @cached_property
    def owned(self) -> Bool[Tensor, "B T"]:
        """``Decisions.owned`` on the host."""
        return self.decisions.owned.cpu()

    def of_part(self, name: str) -> Batch:
        """The batch with the decisions of one part of its rows alone (``part_field``)."""
        within = self.decisions.fields[part_field(name)]
        decisions = replace(self.decisions, decision_mask=self.decisions.decision_mask & within)
        return replace(self, decisions=decisions, loss_mask=self.loss_mask & within)


@dataclass(frozen=True)
class Host:
    """Numbers of a ``Batch`` on the host."""

    loss_mask: Bool[Tensor, "B T"]
    key: Int[Tensor, "B"]
    origin: Int[Tensor, "B"]
    places: Sequence[Int[Tensor, "_"]]


Scores: TypeAlias = dict[str, Float[Tensor, "*shape"]]
"""The return value of ``Policy.score``: one number per entry by name, with gradient where it depends on parameters.

Every policy returns ``log_probs``. Gaussian decisions add ``shift`` (mean squared distance of the
transition's mean from the rollout's), ``std``, ``dt`` and ``level`` of the transition; tokens
add ``entropy``. A score of a named network (``mmgrpo.runtime.networks``) is
``NETWORK.SCORE``, a name that no record of a batch can have: ``reference.log_probs``; for Gaussian decisions
``reference.shift``, ``reference.velocity_gap`` (mean squared velocity difference) and ``reference.kl``; where rewards
have gradients ``reference.divergence``, of the steps that made a sample.
"""


RECORDS: Mapping[str, str] = {
    "certainty": "KL from the uniform distribution to that of the next token, plus log V: logsumexp(z) - mean_v z",
    "answer_probability": "mean probability of the tokens of the row's reference answer after the sampled thought",
    "answer_prior": "the same without a thought",
    "visual_dependency": "KL of each token's distribution to the one without the media of the prompt",
    "segment": "number of the step, a part between empty lines, to which each token belongs",
    "character": "place in the sample's text of the first character of each token that is no space",
    "turn": "number of the turn of the policy to which each token belongs",
    "state": "number of the state of its tools in which the turn of each token is taken",
    "action": "number of what the turn of each token does: its calls, or its words",
    "call": "number of the call of a module of the program that wrote each token, counted module by module",
    "answer_gain": "what each turn adds to the probability of the row's reference answer, at its last token",
    "token_id": "number of each token in the vocabulary",
    "gradient_feature": "gradient of the log-prob with respect to the last hidden state, a vector per sample",
}
"""What a policy records on request, by name: of each sample, or of each decision, of which a reward gets the mean."""


@dataclass(frozen=True)
class Request:
    """A request for samples: the input of ``Policy.rollout`` and ``Policy.sample``.

    ``slots`` are the positions of the prompts in the batch over all ranks. All randomness of a group
    comes from (``seed``, its slot), so the number of ranks has no effect; what must be equal for
    all groups (windows, subsets) comes from ``seed`` alone.
    """

    prompts: Sequence[Prompt]
    slots: Sequence[int]
    group_size: int
    seed: int
    round: int = 0
    sampling: Mapping[str, float] = field(default_factory=dict)
    """Settings of sampling that differ in this round from the policy's own (``Adjustable``)."""
    solutions: Sequence[str] = ()
    """The solution of each prompt, with which ``sampling["forced_members"]`` of its samples begin, as far as
    ``sampling["forced_tokens"]`` tokens; empty: none."""
    beginnings: Sequence[tuple[int, ...]] = ()
    """Tokens with which all samples of each prompt begin; empty: none."""
    records: frozenset[str] = frozenset()
    """Names in ``RECORDS`` that the rollout is to have as fields."""
    judge: Callable[[Sequence[Prompt], Sequence[Output]], Float[Tensor, "N"]] | None = None
    """The rewards of outputs as one number, NaN where they could not be scored, for policies that prune while they
    sample; None outside of training."""
    gradient: Callable[[Sequence[Prompt], Float[Tensor, "N 3 H W"]], Float[Tensor, "N"]] | None = None
    """The weighted sum of the rewards as a differentiable function of pixels in [0, 1], for policies that draw with
    gradient (``mmgrpo.rounds.reward_gradients``)."""


@runtime_checkable
class Adjustable(Protocol):
    """A policy some of whose settings of sampling may follow schedules."""

    adjustable: frozenset[str]
    """Names that it takes in ``Request.sampling``: ``temperature``, ``max_tokens``, ``forced_tokens``."""


@runtime_checkable
class ByHand(Protocol):
    """A policy that says for which settings it stands, so one that no recipe made is refused what they exclude."""

    @property
    def used(self) -> Mapping[str, Any]:
        """Values of settings, by name."""
        ...


@runtime_checkable
class Storing(Protocol):
    """A policy whose rows can be stored and scored again in a later round, and that scores answers of a data set."""

    @property
    def answer_kind(self) -> str:
        """``text``, ``image`` or ``video``: what an answer is to it; empty where it takes none."""
        ...

    def pack(self, rollout: Rollout, rows: Sequence[int]) -> list[Record]:
        """Some rows of a rollout of this rank, on the CPU."""
        ...

    def answers(self, prompts: Sequence[Prompt], count: int = 1) -> list[list[Record]]:
        """The best ``count`` answers of each prompt (0: all), without ``log_probs``; ValueError for one without."""
        ...

    def unpack(
        self, prompts: Sequence[Prompt], records: Sequence[Record], slots: Sequence[int], origin: int, request: Request
    ) -> Rollout:
        """A rollout of stored rows, one per prompt, whose key ``prompt`` is ``slots``; its old log-probs are stored, or
        0 for a record without ``log_probs``, for which whatever else scoring needs is drawn anew."""
        ...


@runtime_checkable
class Continuing(Protocol):
    """A policy whose stored rows are texts that can go on."""

    def reopen(self, record: Record, text: str) -> Record:
        """A row without its end, and a text behind it, also without."""
        ...

    def concatenate(self, record: Record, rest: Record) -> Record:
        """A row that goes on with another."""
        ...

    def record_of(self, text: str) -> Record:
        """A text with its end as a row, without ``log_probs``."""
        ...

    def before(self, record: Record, text: str) -> int:
        """The number of tokens of a row before a text, or without its end."""
        ...


@runtime_checkable
class Policy(Protocol):
    """A model that makes T stochastic decisions per sample and can score their log-probs again."""

    network: nn.Module
    """The trained network."""
    provides: frozenset[str]
    """Names that ``score`` can return."""
    fields: frozenset[str]
    """Names in ``Decisions.fields`` of its rollouts."""
    keys: frozenset[str]
    """Names in ``Decisions.keys`` of its rollouts."""
    kind: str
    """``tokens``, ``gaussian`` or ``matching``, for which presets are made."""
    settings: Any
    """Family and configuration of the policy (``mmgrpo.family.Settings``); None for one that no family loaded."""
    networks: Any
    """The networks that it may be evaluated with, by name (``mmgrpo.runtime.networks.Networks``)."""

    def rollout(self, request: Request) -> Rollout:
        """Sample ``group_size`` rows for each prompt. No gradient."""
        ...

    def score(self, rollout: Rollout, part: Any, names: frozenset[str]) -> Scores:
        """Score a part of ``rollout.steps`` under the present parameters; ``names`` are the scores to return."""
        ...

    def sample(self, request: Request) -> Sequence[Output]:
        """Sample outputs as after training (without exploration noise), for evaluation."""
        ...

    def keep_reference(self) -> None:
        """Store the present network as the reference of KL terms; called before the first update."""
        ...

    def save(self, folder: Path) -> None:
        """Write the trained network in its family's own format."""
        ...


@runtime_checkable
class Answering(Protocol):
    """A policy that can score answers which it did not draw."""

    @property
    def answer_kind(self) -> str:
        """``text``, ``image`` or ``video``: what an ``Answer`` is to it."""
        ...

    def rollout_of_answers(self, request: Request) -> Rollout:
        """The answers of the request's prompts (``Prompt.answers``) as rows of origin GIVEN, those of a prompt adjacent
        and in their order, with the log-probs of the present network. No gradient; ``group_size`` has no meaning."""
        ...


@runtime_checkable
class Reward(Protocol):
    """A function from prompts and outputs to one number per output; NaN for one that could not be scored, None for one
    to which the reward does not apply (it abstains)."""

    def __call__(self, prompts: Sequence[Prompt], outputs: Sequence[Output]) -> Sequence[float | None]: ...


@runtime_checkable
class Reference(Protocol):
    """Context manager of the network as it was before training."""

    @property
    def bare(self) -> bool:
        """True where it is the base of adapters that begin at zero."""
        ...

    @property
    def copies(self) -> Sequence[nn.Module]:
        """The frozen copies of the network that are kept."""
        ...

    def keep(self) -> None:
        """Store the present network, if needed; called before the first update."""
        ...

    def __call__(self) -> AbstractContextManager[nn.Module]: ...

    def read(self, folder: Path) -> Mapping[str, Tensor]:
        """The values of the trained parameters, by name, in a folder that a run of this model saved."""
        ...


@runtime_checkable
class Joint(Protocol):
    """A policy whose rows have decisions of several kinds (``mmgrpo.policies.joint``)."""

    parts: Mapping[str, Any]
    """The ``kind``, ``provides``, ``fields`` and ``keys`` of each, by its name."""


def part_field(name: str) -> str:
    """The field [B, T] that is True where a row has a decision of this part."""
    return f"part {name}"


def distinct_prompts(prompts: Sequence[Prompt]) -> tuple[list[Prompt], list[int]]:
    """The different prompt objects among those of rows, in their order, and the place of each row's."""
    distinct = list({id(prompt): prompt for prompt in prompts}.values())
    index = {id(prompt): place for place, prompt in enumerate(distinct)}
    return distinct, [index[id(prompt)] for prompt in prompts]


def of_kinds(origin: Int[Tensor, "B"], kinds: Sequence[int]) -> Bool[Tensor, "B"]:
    """Which rows are of one of these origins."""
    matches = torch.zeros_like(origin, dtype=torch.bool)
    for kind in kinds:  # a table of them on the device would be a copy that the host waits for
        matches = matches | (origin == kind)
    return matches


def select_rows(decisions: Decisions, rows: Int[Tensor, "rows"] | slice) -> Decisions:
    """The decisions of some rows."""
    return decisions.by(lambda tensors: [tensor[rows] for tensor in tensors])


def to_image(pixels: Tensor) -> Image:
    """Pixels clamped to [0, 1], on the CPU in fp32, as every reward expects them."""
    return Image(pixels.detach().to("cpu", torch.float32).clamp(0, 1))
