"""What a token model computes of prompts and completions: features of media, drawn tokens, log-probs.

Log-probs are those of the sampled distribution: logits divided by the temperature, without the
family's suppressed tokens. They are computed at completion positions only, in fp32, and in chunks, so
that memory does not grow with vocabulary x length x batch.

What the members of a group have in common is computed once: the features of the prompt's media, and
(with ``share_prefix``) the keys and values of the prompt's tokens, in sampling and in scoring alike.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mmgrpo.data.messages import append_text
from mmgrpo.policies.generation import (
    DecodingState,
    Drawer,
    Drawing,
    Generated,
    NextToken,
    certainty_of,
    draw,
    entropy_of,
    top_of,
)
from mmgrpo.policies.records import answer_likelihood, characters, gradient_features, segments
from mmgrpo.policies.token_model import (
    AUTOCAST,
    Context,
    FeatureCache,
    Features,
    Query,
    Sequences,
    Showing,
    ShownCache,
    TokenModel,
    Tokens,
    next_position,
)
from mmgrpo.policies.token_scores import ROW, Packed, Sampled, chosen_log_probs
from mmgrpo.randomness import stream
from mmgrpo.runtime.devices import put
from mmgrpo.runtime.networks import REFERENCE_NETWORK, Networks
from mmgrpo.runtime.products import packed_weights
from mmgrpo.types import (
    CONTRAST,
    HINT,
    Media,
    Output,
    Prompt,
    Request,
    Text,
    distinct_prompts,
)

MEASURES = {"entropy": entropy_of, "certainty": certainty_of, "top_log_prob": top_of}
"""Numbers of the distribution of a token that ``score`` can return."""
GREEDY_MARGIN = "reference.greedy_margin"
"""Score without a gradient: log p(a) - max log p, a the token that the reference finds likeliest."""


@dataclass(frozen=True)
class Ranking:
    """An evaluation keeps the best of ``candidates`` times as many samples."""

    candidates: int
    kept: Callable[[Request, Sequence[Output]], list[Output]]
    """Those of each prompt, of all of its candidates in a row, the best first."""


@dataclass(frozen=True)
class Memory:
    """What passes keep, and how much they compute at a time; but for rounding no number depends on it."""

    share_prefix: bool = True
    """Whether the prompt of a group is computed once."""
    logits_chunk_size: int = 4096
    """Tokens whose logits are held at a time."""
    features_kept: int = 0
    """Prompts whose features of frozen media are cached across rounds."""
    draw_batch_size: int = 0
    """Completions that are drawn at a time, with their keys and values; 0: all."""


USUAL = Memory()
"""The defaults."""


@runtime_checkable
class Search(Protocol):
    """What searches for the completions of queries, in the place of sampling; ``state`` has a row for each query."""

    def __call__(
        self,
        policy: TokenPasses,
        state: DecodingState,
        next_token: NextToken,
        queries: Sequence[Query],
        drawing: Drawing,
    ) -> Generated: ...


class TokenPasses:
    """Passes of one token model; the arguments are those of ``TokenPolicy``."""

    def __init__(
        self,
        model: TokenModel,
        *,
        max_tokens: int,
        temperature: float,
        top_p: float,
        evaluation_temperature: float,
        train_truncated: bool,
        sampling_dtype: str,
        memory: Memory,
        device: torch.device | str,
    ) -> None:
        if temperature <= 0:
            raise ValueError(f"got temperature {temperature}, expected above 0: the samples of a group must differ")
        if not 0 < top_p <= 1:
            raise ValueError(f"got top_p {top_p}, expected 0 < top_p <= 1")
        if top_p < 1:
            warnings.warn(
                f"top_p={top_p} samples from a truncated distribution while log-probs are those of the full one, which "
                "biases the gradient; top_p=1 is exact",
                stacklevel=3,
            )
        if sampling_dtype and sampling_dtype not in AUTOCAST:
            raise ValueError(f"got sampling_dtype '{sampling_dtype}', expected '' or one of {', '.join(AUTOCAST)}")
        self.model, self.network = model, model.network
        self.networks = Networks(model)
        self.max_tokens, self.temperature, self.top_p = max_tokens, temperature, top_p
        self.evaluation_temperature, self.train_truncated = evaluation_temperature, train_truncated
        self.sampling_dtype, self.memory = sampling_dtype, memory
        self.share_prefix, self.logits_chunk_size = memory.share_prefix, memory.logits_chunk_size
        self.engine: Drawer | None = None
        self.guide: Search | None = None
        """What draws the next token in the place of sampling, while it is set."""
        self.ranking: Ranking | None = None
        """Which samples of an evaluation are kept, while it is set."""
        self.feature_cache = FeatureCache(memory.features_kept)
        self.shown_cache = ShownCache()
        self.device = torch.device(device)
        self.suppressed = torch.tensor(sorted(model.suppress_tokens), dtype=torch.long, device=self.device)
        self.begin_suppressed = torch.tensor(sorted(model.begin_suppress_tokens), dtype=torch.long, device=self.device)
        self.placeholders = torch.tensor(sorted(model.media_tokens), dtype=torch.long, device=self.device)
        self.ends = torch.tensor(sorted(model.end_ids), dtype=torch.long, device=self.device)

    def _context(self, queries: Sequence[Query]) -> Context:
        read: dict[tuple[int, tuple[str, ...]], Prompt] = {}
        for query in queries:
            key = id(query.prompt), query.opening
            if key not in read:
                read[key] = append_text(query.prompt, "".join(query.opening)) if any(query.opening) else query.prompt
        distinct, index = distinct_prompts([read[id(query.prompt), query.opening] for query in queries])
        context = self.model.encode(distinct).to(self.device)
        if len(distinct) < len(queries):
            context = context.take(index)
        return self._with_shown(context.extend([query.forced for query in queries]), queries)

    def _with_shown(self, context: Context, queries: Sequence[Query]) -> Context:
        """The context with the media that stand behind its prompts."""
        if not any(query.shown for query in queries):
            return context
        return self._append_media(context, [(query.shown, query.prompt) for query in queries])

    def _append_media(self, context: Context, shown: Sequence[tuple[Sequence[Media], Prompt]]) -> Context:
        """Rows with these media behind those that they have; positions on padding stay as they are. Rows without
        media may have one axis of positions, where they need several now."""
        model, positions, media = self.model, context.positions.clone(), [*context.media]
        assert isinstance(model, Showing)
        self.shown_cache.trim()
        for row, (some, prompt) in enumerate(shown):
            if some:
                read = partial(model.read_shown, prompt=prompt)
                reads = self.shown_cache.reads(some, read) if model.frozen_media else read(some)
                media[row], there = model.append_media(media[row], reads), context.real[row]
                row_positions = model.place(context.ids[row][there].tolist(), media[row])
                if positions.shape[1] < len(row_positions):
                    positions = positions.repeat(1, len(row_positions), 1)
                positions[row][:, there] = row_positions.to(positions.device)
        return replace(context, positions=positions, media=media)

    def generate(
        self,
        queries: Sequence[Query],
        drawing: Drawing,
        measures: frozenset[str] = frozenset(),
        search: Search | None = None,
        engine: Drawer | None = None,
        tempers: Sequence[Callable[[Tensor], Tensor]] = (),
    ) -> tuple[Sequences, Generated]:
        """Generate completions; with a shared prefix each prompt enters the cache once. ``measures`` says what more is
        measured of each token: ``certainty``, ``divergence``. A ``search`` takes the place of sampling. An ``engine``
        draws in the place of the network, which encodes frozen media all the same. ``tempers`` change the log-probs of
        the next token that is drawn."""
        seed, temperature, max_tokens = drawing.seed, drawing.temperature, drawing.max_tokens
        search = search or self.guide
        context = self._context(queries)
        dtype, divisor = AUTOCAST.get(self.sampling_dtype), temperature or 1.0

        def next_token(hidden: Tensor, first: Tensor) -> Tensor:
            distribution = self._log_softmax(self.network, hidden, first, divisor)
            for temper in tempers:
                distribution = temper(distribution)
            return distribution

        with torch.autocast(self.device.type, dtype) if dtype else nullcontext():
            features = self._cached_features(context, queries)
            each = torch.arange(len(queries))
            owners = each.repeat_interleave(torch.tensor([query.count for query in queries]))
            # The rows of the cache: prompts where samples share them, or a search repeats them; else samples.
            prompt, read = put(owners, self.device), each if self.share_prefix or search is not None else owners
            rows = put(read, self.device)
            scale = temperature or self.temperature
            if engine is not None:
                reusable = features if self.model.frozen_media else None
                drawn = engine.draw(context, features, queries, drawing)
                return Sequences(context, reusable, prompt, drawn.ids, drawn.real, seed, scale), drawn
            hidden, cache = self.model.hidden(
                self.network,
                context.ids[rows],
                context.there[read],
                context.positions[rows],
                [features[row] for row in read.tolist()] if features else (),
                None,
            )
            axes, position = context.positions.shape[1], next_position(context)[rows]
            state = DecodingState(self.model, self.network, hidden[:, -1], cache, context.real[rows], position, axes)
            with packed_weights(self.network, max_tokens):
                if search is not None:
                    completions = search(self, state, next_token, queries, drawing)
                else:
                    completions = draw(
                        state,
                        prompt if self.share_prefix else torch.arange(len(prompt), device=self.device),
                        next_token,
                        [(stream(seed, *query.stream), query.count) for query in queries],
                        self.ends,
                        max_tokens=max_tokens,
                        greedy=temperature == 0,
                        top_p=drawing.top_p,
                        diverge="divergence" in measures,
                        certain="certainty" in measures,
                        limit=self.memory.draw_batch_size,
                    )
        # Scoring may read the features again if nothing trains that made them, and in the same precision.
        reusable = features if self.model.frozen_media and not dtype else None
        return Sequences(context, reusable, prompt, completions.ids, completions.real, seed, scale), completions

    def _training_scores(
        self, sequences: Sequences, measures: Sequence[str] = (), eval_batch_size: int = 16
    ) -> dict[str, Float[Tensor, "B T"]]:
        """``log_probs`` as training computes them, and ``MEASURES``: without autocast, in one forward pass over whole
        completions."""
        tables = {name: torch.zeros(sequences.real.shape, device=self.device) for name in ("log_probs", *measures)}
        for part in sequences.split(sequences.written, eval_batch_size):
            scores = self._score(self.network, sequences, part, measures)
            for table, values in zip(tables.values(), scores, strict=True):
                table[part.rows, part.positions] = values
        return tables

    def _score(
        self, network: nn.Module, sequences: Sequences, part: Tokens, measures: Sequence[str] = ()
    ) -> list[Float[Tensor, "N"]]:
        """Log-probs of a part's tokens, and ``MEASURES`` of their distributions; logits are computed in chunks."""
        states = self.states(network, sequences, part.distinct)[part.inverse, part.positions]
        target = sequences.ids[part.rows, part.positions]

        first = part.positions == 0
        if not measures:
            sampled = Sampled(sequences.temperature, self.suppressed, self.begin_suppressed)
            logits = partial(self.model.logits, network)
            return [chosen_log_probs(logits, states, target, first, sampled, self.logits_chunk_size)]

        def score_chunk(hidden: Tensor, tokens: Tensor, first: Tensor) -> tuple[Tensor, ...]:
            distribution = self._log_softmax(network, hidden, first, sequences.temperature)
            log_probs = distribution.gather(1, tokens[:, None])[:, 0]
            return log_probs, *(MEASURES[name](distribution) for name in measures)

        scores = []
        chunks = [value.split(self.logits_chunk_size) for value in (states, target, first)]
        for hidden, tokens, begins in zip(*chunks, strict=True):
            # The backward pass computes a chunk's logits again: stored for all chunks they would not fit in memory.
            if torch.is_grad_enabled() and len(states) > self.logits_chunk_size:
                scores.append(checkpoint(score_chunk, hidden, tokens, begins, use_reentrant=False))
            else:
                scores.append(score_chunk(hidden, tokens, begins))
        return [torch.cat(column) for column in zip(*scores, strict=True)]

    def log_probs(self, sequences: Sequences, part: Tokens) -> Float[Tensor, " N"]:
        """Log-probs of a part's tokens under the policy's network."""
        return self._score(self.network, sequences, part)[0]

    @torch.no_grad()
    def greedy_margin(self, sequences: Sequences, part: Tokens) -> Float[Tensor, "N"]:
        """``GREEDY_MARGIN`` before each token of a part."""

        def each(network: nn.Module, read: Callable[[Tensor, Tensor], Tensor], given: Tensor) -> Tensor:
            states = self.states(network, sequences, part.distinct)[part.inverse, part.positions]
            chunks = [value.split(self.logits_chunk_size) for value in (states, part.positions == 0, given)]
            return torch.cat(
                [
                    read(self._log_softmax(network, hidden, first, sequences.temperature), some)
                    for hidden, first, some in zip(*chunks, strict=True)
                ]
            )

        with self.networks(REFERENCE_NETWORK) as reference:
            likeliest = each(reference, lambda distribution, _: distribution.argmax(-1), part.positions)
        return each(
            self.network,
            lambda distribution, tokens: distribution.gather(1, tokens[:, None])[:, 0] - top_of(distribution),
            likeliest,
        )

    def _log_softmax(
        self, network: nn.Module, hidden: Tensor, first: Bool[Tensor, "N"], temperature: float
    ) -> Float[Tensor, "N vocabulary"]:
        """Log-probs of the next token; ``first`` is True where it begins the completion."""
        logits = self.model.logits(network, hidden).float()
        # In place where nobody else holds the tensor: a copy would take rows x vocabulary.
        logits = logits / temperature if temperature != 1 or logits is hidden else logits
        Sampled(1.0, self.suppressed, self.begin_suppressed).apply_(logits, first)
        return torch.log_softmax(logits, -1)

    def has_probability(self, ids: Int[Tensor, "B T"]) -> Bool[Tensor, "B T"]:
        """False for suppressed tokens: their log-prob is -inf and has no gradient."""
        first = torch.arange(ids.shape[1], device=ids.device) == 0
        return ~(torch.isin(ids, self.suppressed) | (first & torch.isin(ids, self.begin_suppressed)))

    def states(
        self, network: nn.Module, sequences: Sequences, rows: Int[Tensor, " rows"]
    ) -> Float[Tensor, "rows T width"]:
        """The hidden state before every token of some completions; ``rows`` lie on the host."""
        if sequences.shown and any(sequences.shown[row] for row in rows.tolist()):
            return self._shown_states(network, sequences, rows)
        prompts, owners = torch.unique(sequences.prompts[rows], return_inverse=True)
        index, lengths = prompts.tolist(), sequences.lengths[rows]
        prompt, chosen = put(owners, self.device), put(rows, self.device)
        context = sequences.context.take(index)
        if sequences.features is None:
            features = self._features(network, context, [""] * len(index))
        else:
            features = [sequences.features[row] for row in index] if sequences.features else ()
        if self.share_prefix and self.model.masks:
            # A row that repeats its prompt is at least as long behind it.
            repeats = self.model.checkpointing and torch.is_grad_enabled()
            size = max(ROW, context.ids.shape[1]) if repeats else ROW
            packed = Packed.of(owners.tolist(), lengths.tolist(), len(index), self.device, size)
            return self._packed_states(network, sequences.ids[chosen], packed, context, prompt, features)
        length = int(lengths.max())
        # The last token of the longest completion is a target only: no later token depends on it.
        ids, real = sequences.ids[chosen, : length - 1], sequences.real[chosen, : length - 1]
        position = next_position(context)[prompt][:, None] + torch.arange(length - 1, device=ids.device)
        positions = position[:, None].expand(-1, context.positions.shape[1], -1)
        if not self.share_prefix or (self.model.checkpointing and torch.is_grad_enabled()):
            hidden, _ = self.model.hidden(
                network,
                torch.cat([context.ids[prompt], ids], 1),
                torch.cat([context.real[prompt], real], 1),
                torch.cat([context.positions[prompt], positions], 2),
                [features[row] for row in owners.tolist()] if features else (),
                None,
            )
            return hidden[:, context.ids.shape[1] - 1 :]
        prefix, cache = self.model.hidden(network, context.ids, context.there, context.positions, features, None)
        first = prefix[prompt, -1:]  # prompts are padded on the left, so the last state precedes the first token
        if length == 1:
            return first
        mask = torch.cat([context.real[prompt], real], 1)
        hidden, _ = self.model.hidden(network, ids, mask, positions, (), self.model.spread(cache, owners))
        return torch.cat([first, hidden], 1)

    def _shown_states(
        self, network: nn.Module, sequences: Sequences, rows: Int[Tensor, " rows"]
    ) -> Float[Tensor, "rows T width"]:
        """As ``states``, where media stand in completions: each row whole, with its prompt."""
        context = sequences.context.take(sequences.prompts[rows].tolist())
        before, length, chosen = context.ids.shape[1], int(sequences.lengths[rows].max()), put(rows, self.device)
        ids, real = sequences.ids[chosen, : length - 1], sequences.real[chosen, : length - 1]
        position = next_position(context)[:, None] + torch.arange(length - 1, device=self.device)
        joint = replace(
            context,
            ids=torch.cat([context.ids, ids], 1),
            real=torch.cat([context.real, real], 1),
            positions=torch.cat([context.positions, position[:, None].expand(-1, context.positions.shape[1], -1)], 2),
        )
        nameless = Prompt("", "")
        joint = self._append_media(joint, [(sequences.shown[row], nameless) for row in rows.tolist()])
        if sequences.features is None:
            features = self._features(network, joint, [""] * len(rows))
        else:
            owners, shown = sequences.prompts[rows].tolist(), [sequences.shown[row] for row in rows.tolist()]
            prompts = [sequences.features[row] for row in owners] if sequences.features else ()
            features = self._features_behind(joint, prompts, shown, [""] * len(rows))
        hidden, _ = self.model.hidden(network, joint.ids, joint.real, joint.positions, features, None)
        return hidden[:, before - 1 :]

    def _packed_states(
        self,
        network: nn.Module,
        ids: Int[Tensor, "rows length"],
        packed: Packed,
        context: Context,
        prompt: Int[Tensor, " rows"],
        features: Features,
    ) -> Float[Tensor, "rows T width"]:
        """As ``states``, where the completions of a prompt share rows. Under gradient checkpointing, which keeps no
        keys and values, the prompt stands in each of them."""
        whole = self.model.checkpointing and torch.is_grad_enabled()
        index = packed.prompt
        ids = packed.gather(ids, self.model.pad_id)
        positions = (next_position(context)[index][:, None] + packed.place)[:, None].expand(
            -1, context.positions.shape[1], -1
        )
        seen = packed.attention_mask(context.real[index], whole=whole)
        if whole:
            hidden, _ = self.model.hidden(
                network,
                torch.cat([context.ids[index], ids], 1),
                seen,
                torch.cat([context.positions[index], positions], 2),
                [features[row] for row in packed.owners] if features else (),
                None,
            )
            before = context.ids.shape[1]
            # Any row of a prompt has the state of its last token.
            first = torch.tensor([packed.owners.index(prompt_row) for prompt_row in range(len(context.ids))])
            last, hidden = hidden[put(first, self.device), before - 1], hidden[:, before:]
        else:
            prefix, cache = self.model.hidden(network, context.ids, context.there, context.positions, features, None)
            last = prefix[:, -1]  # prompts are padded on the left
            if packed.index.shape[1] == 1:
                return last[prompt][:, None]
            spread = self.model.spread(cache, torch.tensor(packed.owners))
            hidden, _ = self.model.hidden(network, ids, seen, positions, (), spread)
        return (
            torch.cat([last, hidden.flatten(0, 1)])
            .index_select(0, packed.index.flatten())
            .unflatten(0, packed.index.shape)
        )

    def encode(self, prompts: Sequence[Prompt]) -> tuple[Context, Features | None]:
        """What the network reads of prompts, with the features of media that never change."""
        context = self.model.encode(prompts).to(self.device)
        names = [prompt.id for prompt in prompts]
        return context, self._features(self.network, context, names) if self.model.frozen_media else None

    def _cached_features(self, context: Context, queries: Sequence[Query]) -> Features:
        """Features for sampling, of each prompt once, from the cache where it has them."""
        if any(query.shown for query in queries):
            if not self.model.frozen_media:
                return self._features(self.network, context, [query.prompt.id for query in queries])
            media = [[*query.prompt.media, *query.shown] for query in queries]
            return self._features_behind(context, (), media, [query.prompt.id for query in queries])
        first = {id(query.prompt): row for row, query in reversed([*enumerate(queries)])}
        if len(first) < len(queries):
            rows = sorted(first.values())
            features = self._cached_features(context.take(rows), [queries[row] for row in rows])
            return [features[rows.index(first[id(query.prompt)])] for query in queries] if features else features
        names = [query.prompt.id for query in queries]
        if not (self.model.frozen_media and self.feature_cache.capacity):
            return self._features(self.network, context, names)

        def compute(missing: list[int]) -> Features:
            return self._features(self.network, context.take(missing), [names[index] for index in missing])

        # A contrast is another change in every round, and so may be a hint.
        recurring = [
            query.origin != CONTRAST and HINT not in query.prompt.meta and not query.opening for query in queries
        ]
        return self.feature_cache.features([query.prompt for query in queries], compute, recurring)

    def _features(self, network: nn.Module, context: Context, names: Sequence[str]) -> Features:
        """Features of the context's media, one per placeholder of each prompt."""
        with torch.no_grad() if self.model.frozen_media else nullcontext():
            features = self.model.features(network, context)
        self._check_features(features, context, names)
        return features

    def _features_behind(
        self, context: Context, prompts: Features, media: Sequence[Sequence[Media]], names: Sequence[str]
    ) -> Features:
        """Frozen features of prompts and those of the media behind them, the last of each row, which are encoded
        once."""
        model = self.model
        assert isinstance(model, Showing)

        @torch.no_grad()
        def compute(reads: Sequence[Any]) -> Features:
            return model.features(self.network, replace(context, media=[[read] for read in reads]))

        rows = [
            [*zip(some, read[len(read) - len(some) :], strict=True)]
            for some, read in zip(media, context.media, strict=True)
        ]
        of_rows = [
            [put(feature, self.device) for feature in row]
            for row in self.shown_cache.features(rows, model.lean, compute)
        ]
        if prompts:
            of_rows = [[before, *row] for before, row in zip(prompts, of_rows, strict=True)]
        empty = next(feature for row in of_rows for feature in row)[:0]
        features = [torch.cat([empty, *row]) for row in of_rows]
        self._check_features(features, context, names)
        return features

    def _check_features(self, features: Features, context: Context, names: Sequence[str]) -> None:
        """ValueError where there is not one feature per placeholder."""
        if features and len(self.placeholders):
            counts = torch.isin(context.ids, self.placeholders).sum(1).tolist()
            for name, count, rows in zip(names, counts, features, strict=True):
                if count != len(rows):
                    raise ValueError(
                        f"prompt '{name}': got {len(rows)} features of its media, expected {count}, one per "
                        "placeholder in its text; the family's encode and features disagree"
                    )

    def records(self, sequences: Any, prompts: Sequence[Prompt], names: frozenset[str]) -> dict[str, Tensor]:
        """What the request asks of samples that are scored once more. ``sequences``: ``Sequences``, or any steps of a
        walk where it asks for none of it."""
        records, network = {}, self.network
        for name, thought in (("answer_probability", True), ("answer_prior", False)):
            if name in names:
                records[name] = answer_likelihood(sequences, prompts, self.model, self.log_probs, thought)
        if "gradient_feature" in names:
            records["gradient_feature"] = gradient_features(
                sequences,
                lambda rows: self.states(network, sequences, rows),
                lambda hidden, first: self._log_softmax(network, hidden, first, sequences.temperature),
                self.logits_chunk_size,
            )
        if "segment" in names:
            records["segment"] = segments(sequences, self.model.decode)
        if "character" in names:
            records["character"] = characters(sequences, self.model.decode)
        if "token_id" in names:
            records["token_id"] = sequences.ids
        return records

    def has_end(self, sequences: Sequences) -> Bool[Tensor, " B"]:
        """Rows that have an end token."""
        return (torch.isin(sequences.ids, self.ends) & sequences.real).any(1)

    def decode(self, sequences: Sequences) -> list[Output]:
        """The text of each row."""
        seen, prefilled = sequences.context.seen, sequences.context.prefilled
        outputs: list[Output] = []
        width = sequences.ids.shape[1]  # one copy to the host of all that is read
        table = torch.cat([sequences.ids, sequences.real, self.has_end(sequences)[:, None]], 1).cpu()
        tables = table[:, :width], table[:, width:-1].bool(), table[:, -1]
        for row, ids, real, ended in zip(sequences.prompts.tolist(), *tables, strict=True):
            forced = list(sequences.context.forced[row]) if sequences.context.forced else []
            text, sizes = self.model.decode(forced + ids[real].tolist()), seen[row] if seen else ()
            opening = str(prefilled[row]) if prefilled else ""
            tokens = tuple(ids[real].tolist())
            outputs.append(Text(text, int(real.sum()), not bool(ended), sizes, opening, tokens))
        return outputs
