"""The interface of a language model to the token policy, whatever media its prompts show.

Completions as a token policy stores them, sampled or from the data set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from mmgrpo.data.columns import unwrap
from mmgrpo.runtime.devices import put
from mmgrpo.types import CONTRAST, HINTED, OWN, Media, Prompt, Reference

AUTOCAST = {"bfloat16": torch.bfloat16, "float16": torch.float16}
"""Precisions of sampling by name."""

STREAMS = {OWN: "tokens", CONTRAST: "contrast", HINTED: "hinted"}
"""Name of the random stream by the origin of its rows."""


SHOWN_BYTES = 1 << 31
"""Features of media that tools returned which are kept, on the host: some 200 images of 1,300 tokens by a model of
width 3584 in half precision."""


@dataclass(frozen=True)
class Query:
    """A prompt and the number of completions to sample for it."""

    prompt: Prompt
    slot: int
    count: int
    origin: int = OWN
    forced: tuple[int, ...] = ()
    """Tokens that its completions begin with."""
    variant: float | None = None
    """The number of the form of the prompt, where its group is divided among several."""
    shown: tuple[Media, ...] = ()
    """The media of the placeholders in ``forced``, which tools have returned (``Showing``)."""
    opening: tuple[str, ...] = ()
    """What classes of tools have written behind the prompt, at the end of its last user turn."""
    numbers: tuple[tuple[str, float], ...] = ()
    """Further numbers of the form of the prompt, fields of its samples."""
    fault: str = ""
    """Why such a class could not begin, so no completion of the prompt is scored."""

    @property
    def stream(self) -> tuple[str | int, ...]:
        """The name of its random stream, beyond the seed."""
        form = () if self.variant is None else ("variant", str(self.variant))
        return STREAMS[self.origin], self.slot, *form


@dataclass(frozen=True)
class Tokens:
    """Entries of a part: the decisions of some rows, in the order of ``rows`` and ``positions``."""

    rows: Int[Tensor, "N"]
    positions: Int[Tensor, "N"]
    distinct: Int[Tensor, "D"]
    """The different rows, on the host."""
    inverse: Int[Tensor, "N"]
    """Which of them each entry is of."""

    @staticmethod
    def of(rows: Int[Tensor, "N"], positions: Int[Tensor, "N"]) -> Tokens:
        """Any entries; the host waits for their rows."""
        distinct, inverse = torch.unique(rows, return_inverse=True)
        return Tokens(rows, positions, distinct.cpu(), inverse)


@dataclass(frozen=True)
class Sequences:
    """Prompts and completions in token ids."""

    context: Context
    features: Features | None
    """Features of the context's media; None when the encoder is trained, so every score computes them again."""
    prompt: Int[Tensor, "B"]
    """Index of each completion's prompt in the context."""
    ids: Int[Tensor, "B T"]
    """Completions, padded on the right."""
    real: Bool[Tensor, "B T"]
    seed: int = 0
    """Seed of the request, from which changes of the prompts are drawn."""
    temperature: float = 1.0
    """Temperature at which completions are scored, that of sampling."""
    observed: Bool[Tensor, "B T"] | None = None
    """Tokens of completions that tools wrote; None: the policy wrote all that are ``real``."""
    shown: Sequence[tuple[Media, ...]] = ()
    """The media of the placeholders in each completion; empty if none has any."""

    @property
    def written(self) -> Bool[Tensor, "B T"]:
        """Tokens that the policy wrote, its decisions."""
        return self.real if self.observed is None else self.real & ~self.observed

    def split(self, loss_mask: Bool[Tensor, "B T"], limit: int) -> Iterator[Tokens]:
        """Parts of at most ``limit`` rows; a row's tokens share its forward pass."""
        mask, device = loss_mask.cpu(), self.ids.device
        for rows in mask.any(1).nonzero()[:, 0].split(limit):
            inverse, positions = mask[rows].nonzero(as_tuple=True)
            if len(rows):
                yield Tokens(put(rows[inverse], device), put(positions, device), rows, put(inverse, device))

    def inner(self, part: Tokens) -> tuple[Sequences, Tokens]:
        """What a part is scored on, and the part as that numbers it: rows that are one sequence each, as they are."""
        return self, part

    @cached_property
    def prompts(self) -> Int[Tensor, "B"]:
        """``prompt`` on the host."""
        return self.prompt.cpu()

    @cached_property
    def lengths(self) -> Int[Tensor, "B"]:
        """The number of tokens of each completion, on the host."""
        return self.real.sum(1).cpu()


def answer_of(prompt: Prompt) -> str:
    """The prompt's answer as a completion, which has the tags and thoughts that the row has around it and that were
    taken off for verifiers; a prompt without one is an error."""
    if not isinstance(prompt.answer, str) or not prompt.answer:
        raise ValueError(
            f"prompt '{prompt.id}': got answer {prompt.answer!r}, expected the text of a correct completion, which "
            "data.reference_in_group, algorithm.added and algorithm.supervised train on; add the column answer, or "
            "leave them out"
        )
    whole = [*prompt.columns.values(), prompt.meta.get("reply")]
    return next((text for text in whole if text != prompt.answer and unwrap(text) == prompt.answer), prompt.answer)


def answers_of(prompt: Prompt) -> list[str]:
    """The texts of the prompt's answers, the best first: those of preference data, else the answer, or a list of
    answers; a prompt without one is an error."""
    if prompt.answers:
        return [answer.text for answer in prompt.answers if answer.text] or [answer_of(prompt)]
    accepted = prompt.answer if isinstance(prompt.answer, list | tuple) else ()
    if accepted and all(isinstance(text, str) for text in accepted):
        return [*accepted]
    return [answer_of(prompt)]


Features: TypeAlias = Sequence[Any]
"""Encoded media of each prompt: Float[Tensor, "_ width"], one row per placeholder that they replace; none for a prompt
without media. Of a network that encodes media itself, whatever it reads of each prompt besides the tokens."""


@dataclass(frozen=True)
class Context:
    """Prompts as the network reads them, padded on the left."""

    ids: Int[Tensor, "P L"]
    real: Bool[Tensor, "P L"]
    positions: Int[Tensor, "P axes L"]
    """Positions on each of the network's axes (one for text, three for Qwen-VL's time, height and width)."""
    media: Sequence[Any]
    """The media of each prompt as the family's encoder takes them; opaque."""
    seen: Sequence[tuple[tuple[int, int], ...]] = ()
    """(height, width) in pixels of each prompt's media as the network sees them; empty if no prompt has any."""
    prefilled: Sequence[str] = ()
    """What the chat template wrote of each prompt's answer, e.g. an opened thought; empty if it writes nothing."""
    forced: Sequence[tuple[int, ...]] = ()
    """Tokens at the end of each prompt that are the given beginning of its completions; empty if there are none."""

    @cached_property
    def begins(self) -> list[int]:
        """Where each prompt begins behind its padding."""
        return (self.real.shape[1] - self.real.sum(1)).tolist()

    @property
    def there(self) -> Bool[Tensor, "P L"]:
        """``real`` on the host."""
        return torch.arange(self.real.shape[1]) >= torch.tensor(self.begins)[:, None]

    def to(self, device: torch.device) -> Context:
        """The same on another device; media stay where they are."""
        begins = self.begins  # before the host would have to wait for them
        context = replace(
            self, ids=put(self.ids, device), real=put(self.real, device), positions=put(self.positions, device)
        )
        vars(context)["begins"] = begins
        return context

    def take(self, rows: Sequence[int]) -> Context:
        """Some of the prompts, without the padding that none of them needs."""
        index, start = put(torch.tensor(rows), self.ids.device), min(self.begins[row] for row in rows)
        real = self.real[index]
        context = Context(
            self.ids[index, start:],
            real[:, start:],
            self.positions[index, :, start:],
            [self.media[row] for row in rows],
            [self.seen[row] for row in rows] if self.seen else (),
            [self.prefilled[row] for row in rows] if self.prefilled else (),
            [self.forced[row] for row in rows] if self.forced else (),
        )
        vars(context)["begins"] = [self.begins[row] - start for row in rows]
        return context

    def extend(self, forced: Sequence[tuple[int, ...]]) -> Context:
        """The prompts with tokens after each, which are given and no decisions; itself where there are none."""
        if not any(forced):
            return self
        length, device = max(map(len, forced)), self.ids.device
        place, pad = next_position(self), nn.functional.pad
        rows = []
        for row, tail in enumerate(forced):
            left, added = length - len(tail), torch.tensor(tail, device=device, dtype=self.ids.dtype)
            position = place[row] + torch.arange(len(tail), device=device)
            rows.append(
                (
                    torch.cat([pad(self.ids[row], (left, 0)), added]),
                    torch.cat([pad(self.real[row], (left, 0)), torch.ones_like(added, dtype=torch.bool)]),
                    torch.cat([pad(self.positions[row], (left, 0)), position.expand(len(self.positions[row]), -1)], 1),
                )
            )
        ids, real, positions = (torch.stack(tensors) for tensors in zip(*rows, strict=True))
        longer = replace(self, ids=ids, real=real, positions=positions, forced=tuple(forced))
        return longer.take(range(len(ids)))


@runtime_checkable
class Speller(Protocol):
    """What turns text into tokens and back."""

    def decode(self, ids: Sequence[int]) -> str: ...

    def spell(self, text: str) -> list[int]:
        """Ids of a complete completion with this text, its end token included."""
        ...


@runtime_checkable
class TokenModel(Speller, Protocol):
    """The interface of a language model family (implemented in pipelines/)."""

    network: nn.Module
    reference: Reference
    end_ids: frozenset[int]
    """Tokens that end a completion."""
    pad_id: int
    suppress_tokens: frozenset[int]
    """Tokens that are never sampled: placeholders of media and the like."""
    begin_suppress_tokens: frozenset[int]
    """Further tokens that are not sampled as the first of a completion."""
    media_tokens: frozenset[int]
    """Placeholders that features of media replace; empty for an encoder-decoder, which attends to its media."""
    frozen_media: bool
    """True when no gradient flows into the features of media, so they are computed once per rollout."""
    checkpointing: bool
    """True under gradient checkpointing, which keeps no keys and values, so no prefix is shared in training."""

    @property
    def masks(self) -> bool:
        """True where ``hidden`` can be given which tokens each token attends to, so several completions can share
        a row; False for networks with windows or states."""
        ...

    def encode(self, prompts: Sequence[Prompt]) -> Context:
        """Token ids, positions and media of the prompts."""
        ...

    def features(self, network: nn.Module, context: Context) -> Features:
        """The encoded media of each prompt."""
        ...

    def hidden(
        self,
        network: nn.Module,
        ids: Int[Tensor, "rows length"],
        real: Bool[Tensor, "rows *length total"],
        positions: Int[Tensor, "rows axes length"],
        features: Features,
        cache: Any,
    ) -> tuple[Float[Tensor, "rows length width"], Any]:
        """Last hidden states of ``ids`` given the cache of the tokens before them (None at first), and the extended
        cache. ``real`` covers the cached tokens too, and with a third axis (``masks``) says which of all tokens each
        token of ``ids`` attends to; without a cache it may lie on the host, which then need not wait for it.
        ``features`` are those of the placeholders in ``ids``, row by row, and empty if there are none."""
        ...

    def spread(self, cache: Any, rows: Int[Tensor, "rows"]) -> Any:
        """A cache whose row i is row ``rows[i]`` of ``cache``, which stays as it is; rows on the host cost no wait."""
        ...

    def reserve(self, cache: Any, rows: Sequence[int], room: int) -> Any:
        """The same with room for so many tokens behind each row (``generation.Slots``), where ``masks`` is true; what
        several rows have in common need not be copied."""
        ...

    def logits(self, network: nn.Module, hidden: Float[Tensor, "N width"]) -> Float[Tensor, "N vocabulary"]: ...
    def save(self, folder: Path, network: nn.Module) -> None: ...


@runtime_checkable
class Showing(Protocol):
    """A language model that can be shown media behind its prompts."""

    def read_shown(self, media: Sequence[Media], prompt: Prompt) -> Sequence[Any]:
        """The media one by one, as ``append_media`` takes them; ``prompt`` is named in errors. ``Unreadable`` for one
        that the model does not take, ValueError for a model that takes none behind a prompt."""
        ...

    def spell_shown(self, text: str, read: Sequence[Any]) -> list[int]:
        """Ids of a text that holds one mark for each medium, with a placeholder for each of its features."""
        ...

    def lean(self, read: Any) -> Any:
        """One of ``read_shown`` without what only the encoder of media reads."""
        ...

    def append_media(self, media: Any, read: Sequence[Any]) -> Any:
        """An entry of ``Context.media`` with further media behind its own."""
        ...

    def place(self, ids: Sequence[int], media: Any) -> Int[Tensor, "axes length"]:
        """Positions of the tokens of a row with these media, an entry of ``Context.media``."""
        ...


class FeatureCache:
    """Features of frozen media by prompt, so a recurring prompt is encoded once.

    It holds at most ``capacity`` prompts and drops the oldest first. Prompts are identified by object identity: a data
    set holds the same objects for the whole run.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        # The prompt is stored with its features, so its id is not given to another object meanwhile.
        self.entries: dict[int, tuple[Prompt, Float[Tensor, "_ width"]]] = {}

    def features(
        self, prompts: Sequence[Prompt], compute: Callable[[list[int]], Features], recurring: Sequence[bool]
    ) -> Features:
        """The features of all prompts. ``compute`` returns those of the prompts at some indices; only those of
        ``recurring`` prompts are stored."""
        missing = [index for index, prompt in enumerate(prompts) if prompt.media and id(prompt) not in self.entries]
        new = dict(zip(missing, compute(missing), strict=True)) if missing else {}
        features = {
            index: new[index] if index in new else self.entries[id(prompt)][1]
            for index, prompt in enumerate(prompts)
            if prompt.media
        }
        self.entries.update({id(prompts[i]): (prompts[i], value) for i, value in new.items() if recurring[i]})
        while len(self.entries) > self.capacity:
            del self.entries[next(iter(self.entries))]
        if not features:
            return ()
        empty = next(iter(features.values()))[:0]
        return [features.get(index, empty) for index in range(len(prompts))]


class ShownCache:
    """Media that tools returned, and their frozen features, so each is read and encoded once: not again by every
    later turn and every pass of an update.

    Features lie on the host. ``trim`` drops the oldest beyond ``most`` bytes. Media are identified by object identity.
    """

    def __init__(self, most: int = SHOWN_BYTES) -> None:
        self.most = most
        # The medium is stored as well, so its id is not given to another object meanwhile.
        self.entries: dict[int, tuple[Media, Any, Float[Tensor, "_ width"]]] = {}

    def trim(self) -> None:
        """Drop the oldest entries beyond ``most`` bytes."""
        sizes = {key: features.nbytes for key, (_, _, features) in self.entries.items()}
        total = sum(sizes.values())
        for key, size in sizes.items():
            if total <= self.most:
                return
            del self.entries[key]
            total -= size

    def reads(self, media: Sequence[Media], read: Callable[[Sequence[Media]], Sequence[Any]]) -> list[Any]:
        """The media as ``read`` returns them, lean where they are stored."""
        return [self.entries[id(medium)][1] if id(medium) in self.entries else read([medium])[0] for medium in media]

    def features(
        self,
        rows: Sequence[Sequence[tuple[Media, Any]]],
        lean: Callable[[Any], Any],
        compute: Callable[[Sequence[Any]], Features],
    ) -> list[list[Float[Tensor, "_ width"]]]:
        """The features of the media of each row, given as ``reads`` returned them; ``compute`` encodes several."""
        new = {id(medium): (medium, read) for row in rows for medium, read in row if id(medium) not in self.entries}
        if new:
            encoded = compute([read for _, read in new.values()])
            for (medium, read), features in zip(new.values(), encoded, strict=True):
                self.entries[id(medium)] = medium, lean(read), features.detach().cpu()
        return [[self.entries[id(medium)][2] for medium, _ in row] for row in rows]


def next_position(context: Context) -> Int[Tensor, "P"]:
    """The position of the first token after each prompt, the same on all axes: the largest of the prompt plus one."""
    return torch.where(context.real[:, None], context.positions, -1).amax((1, 2)) + 1
