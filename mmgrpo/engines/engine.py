"""The interface of a rollout engine, and what keeps it from drifting away from the trainer.

    Holder         holds weights by name
    Engine         and draws completions: our own sampler, a server, vLLM
    Synchronized   an engine as the policy uses it: weights are pushed and proven before every round, and what was drawn
                   is compared with what the trainer computes of it, before anything is trained

A sync sends what differs: the trainer's tensors and the engine's have a fingerprint each, by name. Afterwards the
engine states those of all that it holds, and one that is missing, unknown, of another shape or of another value is an
error. So a tensor that was forgotten, swapped or left as it was cannot draw a sample. What fingerprints cannot see
(another kernel, another image processor, a mask that only one of both applies, a fused copy that was not rewritten)
shows in the log-probs: every token drawn is scored again by the trainer, as its old log-prob, and the run stops where
both part.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeAlias, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mmgrpo.policies.generation import Drawer, Drawing, Generated
from mmgrpo.policies.token_model import Context, Features, Query, TokenModel

Named: TypeAlias = Iterable[tuple[str, Tensor]]
"""Tensors by name."""

CHUNK = 1 << 20
"""Numbers of a tensor that enter its fingerprint at a time."""

FORMS = ("own", "merged", "adapters")
"""own: the tensors of the trainer's network, of an engine with the same network; merged: those of a network without
adapters that computes the same; adapters: those of the checkpoint, and factors of adapters by the names of peft."""

UNTRAINED = "nothing was trained on it; start the engine again, or go on without it (rollout.engine=policy)"
"""How errors about what an engine has drawn end."""

OTHER = "it is another model; start it with the model of the run"
"""How errors about what an engine holds end."""

PRIME, BASE = 0x9E3779B97F4A7C15 - (1 << 64), 1_000_003
"""An odd factor of places and one of chunks, both modulo 2^64."""


class EngineFailure(RuntimeError):
    """An engine that cannot be used, or whose samples cannot be trained on."""


class Drift(EngineFailure):
    """An engine that does not compute what the trainer computes."""


class Unanswered(EngineFailure):
    """An engine that does not answer, or only that it cannot now."""


class Forgotten(Exception):
    """An engine has been started again and no longer holds the weights of a version."""


@dataclass(frozen=True)
class EncodedQuery:
    """A query as an engine reads it."""

    query: Query
    ids: Sequence[int]
    """The prompt as the trainer reads it: placeholders of media, and the given beginning of completions, included."""
    media: Mapping[str, Any] = field(default_factory=dict)
    """What an engine of another library is given of the prompt's media (``Synchronized.media``)."""


@dataclass(frozen=True)
class Rules:
    """Which tokens end a completion, and which are never drawn, anywhere or as the first: those of the trainer."""

    end: frozenset[int]
    suppressed: frozenset[int]
    begin_suppressed: frozenset[int]
    media: frozenset[int]
    """Placeholders of media, of which an engine may want one for each run."""


@dataclass(frozen=True)
class Drawn:
    """A completion: its tokens, its end included, the log-prob of each as it was drawn, and the weights' version."""

    ids: Sequence[int]
    log_probs: Sequence[float]
    version: int


@runtime_checkable
class Served(Protocol):
    """A policy whose rollouts an engine may draw."""

    engine: Any
    """What draws them, with a method ``close``; None: its own network."""


@runtime_checkable
class Holder(Protocol):
    """What draws with weights of its own."""

    name: str
    """How errors call it."""
    whole: bool
    """Whether a load must bring all tensors; else those that have changed."""
    form: str
    """The names and values of what it is sent, one of ``FORMS``."""

    def fingerprints(self) -> Mapping[str, str]:
        """The fingerprint of each tensor that it holds, by the trainer's names; empty where it cannot say, before the
        first load."""
        ...

    def load(self, tensors: Named, version: int) -> None:
        """Take over tensors; EngineFailure for a name that it does not have, a shape that is not its own, and, where it
        takes ``whole`` loads, one of its weights that was not given."""
        ...

    def rest(self) -> None:
        """Free what memory it can until the next load: the trainer computes now."""
        ...

    def close(self) -> None:
        """End it."""
        ...


@runtime_checkable
class Engine(Holder, Protocol):
    """What draws completions."""

    def generate(self, encoded: Sequence[EncodedQuery], rules: Rules, drawing: Drawing) -> list[list[Drawn]]:
        """Completions of each query; ``Forgotten`` where it lost its weights since the last load."""
        ...


class Synchronized:
    """An engine with the trainer's weights, as a policy draws with it (``mmgrpo.policies.generation.Drawer``)."""

    def __init__(
        self,
        engine: Engine,
        weights: Callable[[], Named],
        model: TokenModel,
        *,
        max_gap: float,
        top_p: float = 1.0,
        media: Callable[[Context, Features, Sequence[Query]], Sequence[Mapping[str, Any]]] | None = None,
        overlaps: bool = False,
        note: str = "",
    ) -> None:
        """``weights``: the trained network's tensors at present, by the engine's names. ``max_gap``: the largest mean
        difference of log-probs per token, in nats, between engine and trainer. ``media``: ``EncodedQuery.media`` of
        each prompt; None for an engine that reads as the trainer does. ``overlaps``: it draws elsewhere while the
        trainer computes, what ``begin`` asks of it. ``note``: what the difference of the first round is printed as the
        cost of; empty: it is not."""
        self.engine, self.weights, self.model, self.media = engine, weights, model, media
        self.rules = Rules(model.end_ids, model.suppress_tokens, model.begin_suppress_tokens, model.media_tokens)
        self.max_gap, self.top_p = max_gap, top_p
        self.overlaps, self.note = overlaps, note
        self.version = -1
        """The version that was pushed last: the number of the round whose weights they are."""
        self.present: int | None = None
        self.begun: dict[Hashable, Future[list[list[Drawn]]]] = {}

    def draw(self, context: Context, features: Features, queries: Sequence[Query], drawing: Drawing) -> Generated:
        """The completions of all queries, drawn with the present weights; those that were begun are waited for.
        EngineFailure for what cannot be trained."""
        drawing = self._with_version(drawing)
        encoded = self._encode_queries(context, features, queries)
        future = self.begun.pop(identity(queries, drawing), None)
        try:
            drawn = future.result() if future else self._now(encoded, drawing)
        except Forgotten:
            self.version = -1
            drawn = self._now(encoded, drawing)
        return self._completions(drawn, queries, drawing, context.ids.device)

    def begin(self, context: Context, features: Features, queries: Sequence[Query], drawing: Drawing) -> None:
        """Begin to draw what ``draw`` will be asked for with the same arguments, in a thread: the trainer goes on, and
        its weights may change. What fails there is raised there."""
        encoded = self._encode_queries(context, features, queries)
        drawing = self.ready(drawing)
        earlier, future = [*self.begun.values()], Future[list[list[Drawn]]]()

        def generate() -> None:
            wait(earlier)
            try:
                future.set_result(self.engine.generate(encoded, self.rules, drawing))
            except BaseException as error:
                future.set_exception(error)

        self.begun[identity(queries, drawing)] = future
        # A daemon, so a server that hangs does not keep a run that ends.
        threading.Thread(target=generate, name=f"draws with the weights of {drawing.round}", daemon=True).start()

    def ready(self, drawing: Drawing) -> Drawing:
        """See that the engine holds the weights of a ``Drawing``, which is returned with their version."""
        drawing = self._with_version(drawing)
        if drawing.round != self.version:
            self.settle()
            self.sync(drawing.round)
        return drawing

    def holds(self, version: int | None) -> None:
        """The network has the weights of round ``version`` from now on; None: of the round of each ``Drawing``."""
        self.present = version

    def settle(self, number: int = 0) -> None:
        """Wait for what was begun; its completions or errors are kept for ``draw``."""
        wait(self.begun.values())

    def _encode_queries(self, context: Context, features: Features, queries: Sequence[Query]) -> list[EncodedQuery]:
        rows = [row[real].tolist() for row, real in zip(context.ids.cpu(), context.real.cpu(), strict=True)]
        media = self.media(context, features, queries) if self.media else [{}] * len(rows)
        return [EncodedQuery(*several) for several in zip(queries, rows, media, strict=True)]

    def _with_version(self, drawing: Drawing) -> Drawing:
        """``Drawing.round`` is the version of the weights, which may be those of an earlier round."""
        return drawing if self.present is None else replace(drawing, round=self.present)

    def _now(self, encoded: Sequence[EncodedQuery], drawing: Drawing) -> list[list[Drawn]]:
        return self.engine.generate(encoded, self.rules, self.ready(drawing))

    def sync(self, version: int) -> None:
        """Push the present weights."""
        self.version = -1
        push(self.engine, self.weights, version)
        self.version = version

    def compare(self, drawn: Float[Tensor, "B T"], scored: Float[Tensor, "B T"], real: Bool[Tensor, "B T"]) -> None:
        """Drift where the log-probs of drawn tokens differ from the trainer's by more than ``max_gap`` on average.

        With top_p an engine's are those of the truncated distribution, at most -log(top_p) larger.
        """
        self.rest()
        self.check(drawn, scored, real)

    def check(self, drawn: Float[Tensor, "B T"], scored: Float[Tensor, "B T"], real: Bool[Tensor, "B T"]) -> None:
        """As ``compare``, while the engine goes on."""
        gap = gap_of(drawn, scored, self.top_p)[real]
        if self.note and len(gap):
            mean, most = float(gap.mean()), float(gap.max())
            print(
                f"{self.note}: its log-probs are {mean:.2g} nats per token from the trainer's in the first round, at "
                f"most {most:.2g} (rollout/sampler_gap)",
                flush=True,
            )
            self.note = ""
        refuse_gap(self.engine.name, gap, self.max_gap, "token")

    def rest(self) -> None:
        """Let the engine free memory, unless it draws at present, or soon."""
        if not self.overlaps:
            self.engine.rest()

    def close(self) -> None:
        """End the engine."""
        self.engine.close()

    def _completions(
        self, drawn: Sequence[Sequence[Drawn]], queries: Sequence[Query], drawing: Drawing, device: torch.device
    ) -> Generated:
        """The completions as tensors; EngineFailure for what no sampler of this model can have drawn."""
        name = self.engine.name
        counts = [len(completions) for completions in drawn]
        if counts != (expected := [query.count for query in queries]):
            raise EngineFailure(
                f"rollout.engine: {name}: got {counts} completions of {len(expected)} prompts, asked {expected}"
            )
        rows = [completion for completions in drawn for completion in completions]
        prompts = [query.prompt.id for query in queries for _ in range(query.count)]
        for row, prompt in zip(rows, prompts, strict=True):
            if row.version != drawing.round:
                raise Drift(
                    f"rollout.engine: {name}: prompt '{prompt}': got a completion of the weights of round "
                    f"{row.version}, expected those of round {drawing.round}"
                )
            if reason := wrong(row, self.rules, drawing):
                raise EngineFailure(f"rollout.engine: {name}: prompt '{prompt}': {reason}; {UNTRAINED}")
        width = max(len(row.ids) for row in rows)
        ids = torch.full((len(rows), width), self.model.pad_id)
        log_probs, real = torch.zeros(len(rows), width), torch.zeros(len(rows), width, dtype=torch.bool)
        for place, row in enumerate(rows):
            length = len(row.ids)
            ids[place, :length], real[place, :length] = torch.tensor(list(row.ids)), True
            log_probs[place, :length] = torch.tensor(list(row.log_probs))
        zeros = torch.zeros_like(log_probs, device=device)
        return Generated(ids.to(device), real.to(device), log_probs.to(device), zeros, zeros)


class Lanes:
    """Several engines, which take rounds in turn and draw at the same time, each with the weights of its round."""

    overlaps = True

    def __init__(self, lanes: Sequence[Drawer]) -> None:
        self.lanes, self.last = lanes, lanes[0]

    def holds(self, version: int | None) -> None:
        """As of ``Synchronized``."""
        for lane in self.lanes:
            lane.holds(version)

    def draw(self, context: Context, features: Features, queries: Sequence[Query], drawing: Drawing) -> Generated:
        """Completions by the engine of the round."""
        self.last = self._lane(drawing.round)
        return self.last.draw(context, features, queries, drawing)

    def begin(self, context: Context, features: Features, queries: Sequence[Query], drawing: Drawing) -> None:
        """Begin to draw there."""
        self._lane(drawing.round).begin(context, features, queries, drawing)

    def settle(self, number: int = 0) -> None:
        """Wait for the engine of round ``number``; the others go on."""
        self._lane(number).settle(number)

    def compare(self, drawn: Float[Tensor, "B T"], scored: Float[Tensor, "B T"], real: Bool[Tensor, "B T"]) -> None:
        """As of ``Synchronized``, of the engine that drew last."""
        self.last.compare(drawn, scored, real)

    def close(self) -> None:
        """End all."""
        for lane in self.lanes:
            lane.close()

    def _lane(self, number: int) -> Drawer:
        return self.lanes[number % len(self.lanes)]


def identity(queries: Sequence[Query], drawing: Drawing) -> Hashable:
    """What tells one draw of a run from all others."""
    return drawing, tuple((query.stream, query.count, query.prompt.id, query.forced) for query in queries)


def wrong(drawn: Drawn, rules: Rules, drawing: Drawing) -> str:
    """Why a completion cannot have been drawn as it was asked for; empty where it can."""
    length, most = len(drawn.ids), drawing.max_tokens
    if not 0 < length <= most or length != len(drawn.log_probs):
        return f"got {length} tokens and {len(drawn.log_probs)} log-probs, expected 1 to {most} of both"
    if not all(math.isfinite(value) for value in drawn.log_probs):
        return "got a log-prob that is not finite"
    if forbidden := sorted({*drawn.ids} & rules.suppressed | {drawn.ids[0]} & rules.begin_suppressed):
        return f"got token {forbidden[0]}, which is never sampled"
    if any(token in rules.end for token in drawn.ids[:-1]):
        return "got tokens after the end"
    if drawn.ids[-1] not in rules.end and length < most:
        return f"got {length} tokens without an end, expected {most}"
    return ""


def gap_of(drawn: Tensor, scored: Tensor, top_p: float = 1.0) -> Tensor:
    """By how much the log-probs of drawn tokens leave what the trainer's allow: |drawn - scored|, and where the sampler
    keeps the nucleus of ``top_p`` alone, what exceeds [scored, scored - log(top_p)]."""
    difference = drawn - scored
    return torch.where(difference > 0, (difference + math.log(top_p)).clamp(min=0), -difference)


def push(engine: Holder, weights: Callable[[], Named], version: int) -> None:
    """Send weights that differ; EngineFailure unless the engine then holds exactly these."""
    sent = {name: fingerprint(tensor) for name, tensor in weights()}
    held = engine.fingerprints()
    if held:
        refuse_names(engine.name, sent, held)
    changed = {name for name, value in sent.items() if held.get(name) != value}
    if engine.whole and changed:
        changed = set(sent)
    engine.load(((name, tensor) for name, tensor in weights() if name in changed), version)
    held = engine.fingerprints()
    refuse_names(engine.name, sent, held)
    if wrong := sorted(name for name, value in sent.items() if held[name] != value):
        raise Drift(
            f"rollout.engine: after the weights of round {version} were sent, {engine.name} holds other values in "
            f"{len(wrong)} of {len(sent)} tensors, e.g. '{wrong[0]}': nothing was trained on its samples; start it "
            "again, then go on with the run"
        )


def refuse_gap(engine: str, excess: Float[Tensor, "N"], max_gap: float, decision: str) -> None:
    """Drift where log-probs differ by more than ``max_gap`` on average."""
    mean = float(excess.double().mean()) if len(excess) else 0.0
    if mean > max_gap:
        raise Drift(
            f"rollout.engine: {engine} and the trainer differ by {mean:.2g} nats per {decision} over "
            f"{len(excess)} {decision}s of the round (most {float(excess.max()):.2g}), expected at most "
            f"rollout.max_gap={max_gap:g}: nothing was trained on them. Its weights, precision, masks or "
            "image sizes are not the trainer's"
        )


def refuse_names(engine: str, sent: Mapping[str, str], held: Mapping[str, str]) -> None:
    """EngineFailure unless the engine has exactly the trainer's tensors."""
    missing, unknown = sorted(sent.keys() - held.keys()), sorted(held.keys() - sent.keys())
    if missing or unknown:
        parts = [f"lacks {len(missing)} of the trainer's tensors, e.g. '{missing[0]}'"] if missing else []
        parts += [f"has {len(unknown)} that the trainer does not, e.g. '{unknown[0]}'"] if unknown else []
        raise EngineFailure(f"rollout.engine: {engine} {' and '.join(parts)}: one tensor was forgotten, or {OTHER}")


@torch.no_grad()
def fingerprint(tensor: Tensor) -> str:
    """64 bits of the shape, the precision and every byte of a tensor, with its place; computed where the tensor is.

    A sum modulo 2^64, so it does not depend on the order in which a device adds.
    """
    flat = tensor.detach().contiguous().reshape(-1)
    kind = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[flat.element_size()]
    total = torch.zeros((), dtype=torch.int64, device=flat.device)
    places = torch.arange(1, min(CHUNK, len(flat)) + 1, device=flat.device) * PRIME | 1
    for chunk in flat.view(kind).split(CHUNK):
        total = total * BASE + (chunk.long() * places[: len(chunk)]).sum()
    return (
        f"{str(tensor.dtype).removeprefix('torch.')} {'x'.join(map(str, tensor.shape))} {int(total) % (1 << 64):016x}"
    )


def parameters(network: torch.nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The parameters and stored buffers of a network, tied ones once."""
    yield from network.named_parameters()
    for prefix, module in network.named_modules():
        for name, buffer in module.named_buffers(recurse=False):
            if name not in module._non_persistent_buffers_set:
                yield f"{prefix}.{name}".lstrip("."), buffer
