"""A policy whose decisions are tokens, whatever media its prompts show.

It says what is drawn of which prompts and what becomes of it (records, steps, trees, turns with tools); the passes of
the network are in ``mmgrpo.policies.token_passes``.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from mmgrpo.config.registry import bind
from mmgrpo.files import share
from mmgrpo.policies.generation import (
    Drawer,
    Drawing,
    Generated,
)
from mmgrpo.policies.perturbed_prompts import CONTRASTS, VARIANTS, ChangedPrompts
from mmgrpo.policies.records import (
    answer_gains,
    answer_likelihood,
    gradient_features,
    reaching,
    segments,
    visual_dependency,
)
from mmgrpo.policies.text_states import FIELDS as STATE_FIELDS
from mmgrpo.policies.text_states import STATES, with_states
from mmgrpo.policies.text_trees import TREES, TextTree, grow
from mmgrpo.policies.token_model import (
    AUTOCAST,
    Query,
    Sequences,
    TokenModel,
    Tokens,
    answer_of,
    answers_of,
    with_answers,
)
from mmgrpo.policies.token_passes import MEASURES, TokenPasses
from mmgrpo.policies.tools import NUMBERS, OF_TURNS, WALKING, Conversations, Tools, refuse_with_tools
from mmgrpo.randomness import derive
from mmgrpo.runtime.devices import put
from mmgrpo.runtime.networks import Networks
from mmgrpo.types import (
    CONTRAST,
    GIVEN,
    HINT,
    HINTED,
    OWN,
    RECORDS,
    REFERENCE,
    Decisions,
    Output,
    Prompt,
    Record,
    Request,
    Rollout,
    Scores,
    Text,
    distinct_prompts,
)


class TokenPolicy(TokenPasses):
    """Samples token by token and scores the same tokens in one forward pass."""

    kind = "tokens"
    answer_kind = "text"
    keys = frozenset({"prompt"})
    adjustable = frozenset({"temperature", "max_tokens", "forced_tokens"})
    provides = frozenset(
        {"log_probs", "entropy", "certainty", "reference.log_probs", "log_probs under a changed prompt"}
        | {"reference.log_probs under a changed prompt"}
    ) | {f"{name} of samples" for name in RECORDS}

    def __init__(
        self,
        model: TokenModel,
        *,
        max_tokens: int,
        temperature: float = 1.0,
        top_p: float = 1.0,
        search: str = "sample",
        reference_in_group: bool = False,
        evaluation_temperature: float = 0.0,
        train_truncated: bool = True,
        share_prefix: bool = True,
        sampling_dtype: str = "",
        contrast: str = "",
        variants: str = "",
        states: str = "",
        tree: str = "",
        tools: Tools | None = None,
        divergence: bool = False,
        logits_chunk_size: int = 4096,
        features_kept: int = 0,
        draw_batch_size: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        """``search`` chooses how the completions of a group are generated: ``sample`` draws token by token at the
        temperature, ``beam`` takes the most likely ones of a beam search. With ``reference_in_group`` one member of a
        group is the prompt's reference answer. ``sampling_dtype`` (bfloat16, float16) samples faster under autocast;
        the old log-probs are then computed again as training computes them, and those of the sampler are stored for a
        mismatch correction. ``contrast`` names a change of the prompt under which further rows are sampled
        (``CONTRASTS``); ``variants`` forms of it among which its group is divided (``VARIANTS``); ``states`` those of a
        completion that rewards judge (``STATES``), ``tree`` how samples share tokens (``TREES``), and ``tools`` what
        completions call. ``divergence`` records how much the members of a group differ at each position, for credits
        that need it. ``features_kept`` is the number of prompts whose features of frozen media are cached across
        rounds, ``draw_batch_size`` that of completions that are drawn at a time (0: all), which bounds the memory of
        keys and values."""
        if temperature <= 0:
            raise ValueError(f"got temperature {temperature}, expected above 0: the samples of a group must differ")
        if not 0 < top_p <= 1:
            raise ValueError(f"got top_p {top_p}, expected 0 < top_p <= 1")
        if top_p < 1:
            warnings.warn(
                f"top_p={top_p} samples from a truncated distribution while log-probs are those of the full one, which "
                "biases the gradient; top_p=1 is exact",
                stacklevel=2,
            )
        if search not in ("sample", "beam"):
            raise ValueError(f"got search '{search}', expected sample or beam")
        if search == "beam" and contrast:
            raise ValueError(
                f"got contrast '{contrast}' with search beam, expected search sample; leave out one of them"
            )
        if search == "beam" and divergence:
            raise ValueError(
                "got search beam with a credit that needs the divergence of samples, expected search sample"
            )
        if draw_batch_size and (search == "beam" or divergence):
            raise ValueError(
                f"sampling.draw_batch_size: got {draw_batch_size} with sampling.search beam or a credit that compares "
                "the samples of a group token by token, expected 0: they are drawn together"
            )
        if sampling_dtype and sampling_dtype not in AUTOCAST:
            raise ValueError(f"got sampling_dtype '{sampling_dtype}', expected '' or one of {', '.join(AUTOCAST)}")
        super().__init__(
            model,
            temperature=temperature,
            share_prefix=share_prefix,
            sampling_dtype=sampling_dtype,
            divergence=divergence,
            logits_chunk_size=logits_chunk_size,
            features_kept=features_kept,
            draw_batch_size=draw_batch_size,
            device=device,
        )
        self.networks = Networks(model)
        self.settings: Any = None
        self.max_tokens = max_tokens
        self.top_p = top_p
        self.search = search
        self.reference_in_group = reference_in_group
        self.evaluation_temperature = evaluation_temperature
        self.train_truncated = train_truncated
        self.contrast = bind(contrast, CONTRASTS, "sampling.contrast") if contrast else None
        self.variants = bind(variants, VARIANTS, "sampling.variants") if variants else None
        self.text_states = bind(states, STATES, "sampling.states")({}) if states else None
        self.tree = bind(tree, TREES, "sampling.tree")({}) if tree else None
        if self.tree:
            self.keys = frozenset({"prompt", "tree"})
        self.tools = tools
        self.provides -= {f"{name} of samples" for name in (WALKING if tools else OF_TURNS)}
        if tools:
            if tools.opening:
                self.provides = frozenset(name for name in self.provides if not name.endswith("under a changed prompt"))
            used = {"search": search.removeprefix("sample"), "contrast": contrast, "variants": variants}
            used |= {"states": states, "tree": tree}
            refuse_with_tools({f"sampling.{name}": value for name, value in used.items()})
            refuse_with_tools(
                {
                    "data.reference_in_group": reference_in_group,
                    "algorithm.credit": divergence and "the divergence of samples",
                    "model.family": bool(model.begin_suppress_tokens) and "one that suppresses first tokens",
                }
            )
        if variants and (search == "beam" or reference_in_group):
            raise ValueError(
                f"sampling.variants: got '{variants}' with sampling.search beam or data.reference_in_group, expected "
                "samples of the policy alone; leave out one of them"
            )
        self.changed_prompts = ChangedPrompts(self._encode)
        recorded = {"sampler_log_probs": bool(sampling_dtype), "divergence": divergence, "variant": bool(variants)}
        self.fields = frozenset({"truncated", "entropy"} | {name for name, on in recorded.items() if on})
        self.fields |= STATE_FIELDS if self.text_states else frozenset()
        self.fields |= frozenset((*NUMBERS, "step_rewards") if tools else ())
        self.engine: Drawer | None = None

    def draw_with(self, engine: Drawer) -> None:
        """Let an engine draw the completions of rollouts; evaluations stay the network's own. Old log-probs are those
        of the network, and the engine's are the field ``sampler_log_probs``."""
        for setting, value in (
            ("sampling.search", self.search if self.search != "sample" else ""),
            ("sampling.dtype", self.sampling_dtype),
            ("sampling.draw_batch_size", self.draw_batch_size),
            ("sampling.tree", self.tree),
            ("algorithm.credit", "divergence" if self.divergence else ""),
        ):
            if value:
                raise ValueError(
                    f"{setting}: got {value} with a rollout.engine, which draws by itself; leave out one of them"
                )
        self.engine = engine
        self.fields |= {"sampler_log_probs"}

    @torch.no_grad()
    def rollout(self, request: Request) -> Rollout:
        """``group_size`` completions per prompt, each group from its own random stream; then those of contrasts."""
        if self.tree is not None:
            return self._grown(request, self.tree)
        self.shown_cache.entries.clear()
        queries, drawing = self._queries(request)
        certain, most = "certainty" in request.records, drawing.max_tokens
        sequences, completions = self.generate(queries, drawing, self.search, certain, self.engine)
        keyed = bool(request.records & {"state", "action"})
        turns = self._converse(sequences, completions, queries, drawing, certain, self.engine, keyed)
        if turns:
            completions = turns.drawn
            drawn = {"ids": completions.ids, "real": completions.real, "observed": turns.observed}
            sequences = replace(sequences, **drawn, shown=turns.shown)
        numbers = {"log_probs": completions.log_probs, "entropy": completions.entropy}
        if turns and "answer_gain" in request.records:
            numbers["answer_gain"] = self._gains(sequences, queries, turns)
        if self.divergence:
            numbers["divergence"] = completions.divergence
        if self.variants:
            forms = [query.variant or 0.0 for query in queries]
            numbers["variant"] = torch.tensor(forms, device=self.device)[sequences.prompt]
        if certain and self.engine is None:
            if completions.certainty is None:
                raise ValueError("sampling.search: got beam with a reward of the certainty of samples, expected sample")
            numbers["certainty"] = completions.certainty
        if self.sampling_dtype or self.engine:
            names = ["entropy", *(["certainty"] if certain else [])] if self.engine else []
            numbers |= {"sampler_log_probs": completions.log_probs, **self._trained(sequences, names)}
        if self.engine:
            self.engine.compare(completions.log_probs, numbers["log_probs"], sequences.written)
        origin = put(torch.tensor([query.origin for query in queries])[sequences.prompts], self.device)
        if self.reference_in_group:
            answers = [self.model.spell(answer_of(prompt))[:most] for prompt in request.prompts]
            sequences, numbers, origin = with_answers(sequences, numbers, origin, answers, self.model.pad_id)
        outputs = self._last_turns(sequences, turns) if turns else self._decode(sequences)
        ended = turns.ended if turns else self._ended(sequences)
        real = sequences.written
        rows, width = real.shape
        sampled = (origin != REFERENCE)[:, None]  # only an answer of the data set can contain a suppressed token
        loss_mask = real & (origin != CONTRAST)[:, None] & (sampled | self._has_probability(sequences.ids))
        prompts = [queries[index].prompt for index in sequences.prompts.tolist()]
        decisions = Decisions(
            log_probs=numbers.pop("log_probs"),
            loss_mask=loss_mask if self.train_truncated else loss_mask & ended[:, None],
            decision_mask=real,
            node=torch.arange(rows * width, device=self.device).view(rows, width),
            origin=origin,
            keys={"prompt": put(torch.tensor([query.slot for query in queries])[sequences.prompts], self.device)},
            fields={
                "truncated": (~ended).float(),
                **numbers,
                **self._records(sequences, prompts, request.records),
                **(turns.fields(request.records) if turns else {}),
            },
        )
        rollout = Rollout(prompts, outputs, decisions, sequences, evaluations=rows * width)
        if self.text_states:
            rollout = self._with_states(rollout, sequences, request, drawing)
        return self._looked(rollout, sequences) if "visual_dependency" in request.records else rollout

    def _queries(self, request: Request) -> tuple[list[Query], Drawing]:
        """What a rollout draws, and how."""
        count = request.group_size - self.reference_in_group
        if count < 1:
            raise ValueError(
                f"got data.group_size {request.group_size} with data.reference_in_group, expected at least 2: one "
                "sample of the policy besides the reference answer; raise data.group_size"
            )
        forced = self._forced(request)
        if self.tools and forced:
            raise ValueError(
                "sampling.tools: got completions that begin with given tokens, expected those of the policy alone"
            )
        queries = [
            Query(
                prompt,
                slot,
                count - (forced[place].count if place in forced else 0),
                HINTED if HINT in prompt.meta else OWN,
            )
            for place, (prompt, slot) in enumerate(zip(request.prompts, request.slots, strict=True))
        ]
        queries = [form for query in queries for form in self._forms(query)]
        queries = [*forced.values()] if request.beginnings else [*queries, *self._contrasts(request), *forced.values()]
        queries = self.tools.opened(queries, request.seed) if self.tools else queries
        temperature = request.sampling.get("temperature", self.temperature)
        most = round(request.sampling.get("max_tokens", self.max_tokens))
        return queries, Drawing(request.seed, temperature, most, self.top_p, request.round)

    @torch.no_grad()
    def begin(self, request: Request) -> None:
        """Let the engine begin to draw the completions that ``rollout`` will be asked for."""
        queries, drawing = self._queries(request)
        context = self._context(queries)
        if self.engine is not None:
            self.engine.begin(context, self._cached_features(context, queries), queries, drawing)

    def _converse(
        self,
        sequences: Sequences,
        drawn: Generated,
        queries: Sequence[Query],
        drawing: Drawing,
        certain: bool = False,
        engine: Drawer | None = None,
        keyed: bool = False,
    ) -> Conversations | None:
        """The completions that begin with the turns that were drawn; None without tools."""
        if self.tools is None:
            return None

        def draw(some: Sequence[Query], limit: int, turn: int) -> Generated:
            later = replace(drawing, seed=derive(drawing.seed, "turn", turn), max_tokens=limit)
            return self.generate(some, later, certain=certain, engine=engine)[1]

        rows, ends = [queries[place] for place in sequences.prompts.tolist()], frozenset(self.ends.tolist())
        return self.tools.converse(drawn, rows, draw, self.model, ends, drawing.max_tokens, drawing.seed, keyed)

    def _gains(self, sequences: Sequences, queries: Sequence[Query], turns: Conversations) -> Float[Tensor, "B T"]:
        """``answer_gains`` of the turns, where the thought that the template opens is closed before the answer."""
        assert self.tools is not None
        opened = self.tools.prefilled.rpartition("</think>")[2]
        opening = "</think>\n<answer>" if "<think>" in opened else "<answer>"
        prompts = [queries[index].prompt for index in sequences.prompts.tolist()]
        begun = [one.begun for one in turns.episodes]
        return answer_gains(
            sequences, prompts, begun, opening, self.model, lambda some, part: self._score(self.network, some, part)[0]
        )

    def _last_turns(self, sequences: Sequences, turns: Conversations) -> list[Text]:
        """The last turn of each completion, with those before it and the calls."""
        seen, prefilled = sequences.context.seen, sequences.context.prefilled
        return [
            Text(
                one.text,
                one.written,
                one.end == "tokens",
                seen[row] if seen else (),
                str(prefilled[row]) if prefilled else "",
                tuple(one.last),
                tuple(one.turns),
                tuple(one.calls),
                one.reward,
            )
            for row, one in zip(sequences.prompts.tolist(), turns.episodes, strict=True)
        ]

    def _grown(self, request: Request, tree: TextTree) -> Rollout:
        """The leaves of a tree of each prompt."""
        if request.group_size != tree.leaves or request.beginnings or "certainty" in request.records:
            raise ValueError(
                f"sampling.tree: got groups of {request.group_size} samples, forced beginnings or a record of the "
                f"certainty, expected {tree.leaves} samples of the policy alone; leave out one of them"
            )
        temperature = request.sampling.get("temperature", self.temperature)
        most = round(request.sampling.get("max_tokens", self.max_tokens))

        def continued(queries: Sequence[Query], limit: int) -> Generated:
            return self.generate(queries, Drawing(request.seed, temperature, limit, self.top_p, request.round))[1]

        leaves = grow(tree, request, continued, frozenset(self.ends.tolist()), most, self.model.pad_id)
        context, features = self._encode(request.prompts)
        prompt, tree_key, ids, real, node, owner = (one.to(self.device) for one in leaves.tables)
        sequences = Sequences(context, features, prompt, ids, real, request.seed, temperature)
        prompts = [request.prompts[index] for index in prompt.tolist()]
        numbers = {name: value.to(self.device) for name, value in leaves.numbers.items()}
        decisions = Decisions(
            log_probs=numbers.pop("log_probs"),
            loss_mask=owner,
            decision_mask=real,
            node=node,
            origin=torch.full((len(ids),), OWN, device=self.device),
            keys={"prompt": torch.tensor(list(request.slots), device=self.device)[prompt], "tree": tree_key},
            fields={
                "truncated": (~self._ended(sequences)).float(),
                **numbers,
                **self._records(sequences, prompts, request.records),
            },
        )
        return Rollout(prompts, self._decode(sequences), decisions, sequences, evaluations=int(owner.sum()))

    def _with_states(self, rollout: Rollout, sequences: Sequences, request: Request, drawing: Drawing) -> Rollout:
        """The rollout with the states of its completions, which are completed within ``max_tokens`` where they are."""
        assert self.text_states is not None
        states, seed = self.text_states, derive(request.seed, "states")

        @torch.no_grad()
        def complete(queries: Sequence[Query]) -> list[Output]:
            with self.networks.drawing(states.network) if states.network else nullcontext():
                drawn, _ = self.generate(queries, replace(drawing, seed=seed))
            begun = torch.tensor([len(query.forced) for query in queries], device=self.device)[drawn.prompt]
            left = drawing.max_tokens - begun[:, None]
            place = torch.arange(drawn.real.shape[1], device=self.device)
            outputs = self._decode(replace(drawn, real=drawn.real & (place < left)))
            pairs = zip(outputs, begun.tolist(), strict=True)
            return [replace(one, tokens=one.tokens + more) if isinstance(one, Text) else one for one, more in pairs]

        segment = segments(sequences, self.model.decode, states.cut)
        return with_states(rollout, states, segment, request, complete, self._decode)

    def _looked(self, rollout: Rollout, sequences: Sequences) -> Rollout:
        """The rollout with the field ``visual_dependency``, against grey media."""
        changed, rows = self.changed_prompts.sequences(rollout, "blank")
        network, decisions = self.network, rollout.decisions
        found = visual_dependency(
            sequences,
            changed,
            rows,
            lambda one, some: self.states(network, one, some),
            lambda hidden, first: self._log_softmax(network, hidden, first, sequences.temperature),
            self.logits_chunk_size,
        )
        return rollout.with_decisions(replace(decisions, fields={**decisions.fields, "visual_dependency": found}))

    @torch.no_grad()
    def given(self, request: Request) -> Rollout:
        """The texts of the prompts' answers as completions, cut at ``max_tokens``; tokens that the policy never samples
        are no decisions."""
        queries = [
            Query(prompt, slot, len(prompt.answers), GIVEN) for prompt, slot in zip(request.prompts, request.slots)
        ]
        prompts = [prompt for prompt in request.prompts for _ in prompt.answers]
        context = self.model.encode(request.prompts).to(self.device)
        features = self._cached_features(context, queries) if self.model.frozen_media else None
        whole = [self.model.spell(answer.text) for prompt in request.prompts for answer in prompt.answers]
        spelled = [ids[: self.max_tokens] for ids in whole]
        width = max(map(len, spelled))
        ids = torch.tensor([[*one, *[self.model.pad_id] * (width - len(one))] for one in spelled], device=self.device)
        length = torch.tensor([[len(one)] for one in spelled], device=self.device)
        each = torch.arange(len(queries), device=self.device)
        prompt = each.repeat_interleave(torch.tensor([query.count for query in queries], device=self.device))
        real = torch.arange(width, device=self.device) < length
        sequences = Sequences(context, features, prompt, ids, real, request.seed, self.temperature)
        mask = real & self._has_probability(ids)
        truncated = [len(all_) > len(kept) for all_, kept in zip(whole, spelled, strict=True)]
        decisions = Decisions(
            log_probs=self._trained(sequences)["log_probs"].masked_fill(~mask, 0.0),
            loss_mask=mask,
            decision_mask=mask,
            node=torch.arange(mask.numel(), device=self.device).view(mask.shape),
            origin=torch.full((len(ids),), GIVEN, device=self.device),
            keys={"prompt": torch.tensor(list(request.slots), device=self.device)[prompt]},
            fields={"truncated": torch.tensor(truncated, device=self.device).float()},
        )
        return Rollout(prompts, self._decode(sequences), decisions, sequences, evaluations=int(real.sum()))

    def score(self, rollout: Rollout, part: Tokens, names: frozenset[str]) -> Scores:
        """Score the part's tokens again under the present parameters."""
        sequences: Sequences = rollout.steps  # type: ignore[assignment]
        measures = [name for name in MEASURES if name in names]
        log_probs, *measured = self._score(self.network, sequences, part, measures)
        scores: Scores = {"log_probs": log_probs, **dict(zip(measures, measured, strict=True))}
        for other in self.networks.asked(names):
            with torch.no_grad(), self.networks(other) as network:
                scores[f"{other}.log_probs"] = self._score(network, sequences, part)[0]
        for name in sorted(name for name in names if "@" in name):
            own, _, change = name.partition("@")
            other = own.removesuffix("log_probs").rstrip(".")
            if not other:
                scores[name] = self._changed(self.network, rollout, part, change, log_probs)
                continue
            with torch.no_grad(), self.networks(other) as network:
                scores[name] = self._changed(network, rollout, part, change, scores[own])
        return scores

    def _changed(
        self, network: nn.Module, rollout: Rollout, part: Tokens, change: str, own: Float[Tensor, "N"]
    ) -> Float[Tensor, "N"]:
        return self.changed_prompts.log_probs(
            rollout, part, change, own, lambda under, some: self._score(network, under, some)[0]
        )

    @torch.no_grad()
    def sample(self, request: Request) -> list[Output]:
        """Sample at the evaluation temperature (0 is greedy)."""
        queries = [Query(prompt, slot, request.group_size) for prompt, slot in zip(request.prompts, request.slots)]
        queries = self.tools.opened(queries, request.seed) if self.tools else queries
        drawing = Drawing(request.seed, self.evaluation_temperature, self.max_tokens, self.top_p, request.round)
        sequences, drawn = self.generate(queries, drawing)
        turns = self._converse(sequences, drawn, queries, drawing)
        return [*self._last_turns(sequences, turns)] if turns else self._decode(sequences)

    def keep_reference(self) -> None:
        """Store the present network as the reference of KL terms."""
        self.model.reference.keep()

    def save(self, folder: Path) -> None:
        """Write the network in its family's own format."""
        self.model.save(folder, self.network)
        share(folder)

    def pack(self, rollout: Rollout, rows: Sequence[int]) -> list[Record]:
        """Some completions: their tokens, old log-probs, masks and fields, on the CPU."""
        sequences: Sequences = rollout.steps  # type: ignore[assignment]
        decisions, records = rollout.decisions, []
        for row in rows:
            length = int(sequences.real[row].sum())
            numbers = {name: value[row] for name, value in decisions.fields.items() if name in self.fields}
            numbers |= {"ids": sequences.ids[row], "log_probs": decisions.log_probs[row]}
            numbers |= {"loss_mask": decisions.loss_mask[row]}
            cut = {name: value[:length] if value.dim() else value for name, value in numbers.items()}
            records.append({name: value.detach().cpu().clone() for name, value in cut.items()})
        return records

    def answers(self, prompts: Sequence[Prompt], count: int = 1) -> list[list[Record]]:
        """The best ``count`` answers of each prompt, of at most ``max_tokens`` tokens."""
        return [[self.written(text) for text in answers_of(prompt)[: count or None]] for prompt in prompts]

    def written(self, text: str) -> Record:
        """A text as a completion of at most ``max_tokens`` tokens."""
        return self._spelled(self.model.spell(text)[: self.max_tokens])

    def _spelled(self, tokens: Sequence[int]) -> Record:
        ids = torch.tensor(tokens, dtype=torch.long)
        zeros = torch.zeros(len(ids))
        fields = {name: zeros[0] if name == "truncated" else zeros for name in self.fields}
        return {**fields, "ids": ids, "loss_mask": self._has_probability(ids[None].to(self.device))[0].cpu()}

    def unfinished(self, record: Record, text: str) -> Record:
        """A completion without its end tokens, and a text behind it."""
        going = ~torch.isin(record["ids"], self.ends.cpu())
        kept = record | {name: value[going] for name, value in record.items() if value.dim()}
        return self.extended(kept, self._spelled(self.model.spell(text)[:-1])) if text else kept

    def before(self, record: Record, text: str) -> int:
        """The number of tokens before a text, or before its end where it has none of it."""
        ids = self.unfinished(record, "")["ids"].tolist()
        whole = self.model.decode(ids)
        start = whole.find(text)
        return len(ids) if start < 0 else reaching(ids, self.model.decode, len(whole[:start].rstrip()))

    def extended(self, record: Record, rest: Record) -> Record:
        """A completion that goes on with another, without log-probs; it is cut off if the other is."""
        both = {name: value for name, value in record.items() if name in rest and name != "log_probs"}
        return {n: torch.cat([value, rest[n]]) if value.dim() else rest[n] for n, value in both.items()}

    @torch.no_grad()
    def unpack(
        self, prompts: Sequence[Prompt], records: Sequence[Record], slots: Sequence[int], origin: int, request: Request
    ) -> Rollout:
        """A rollout of stored completions, one per prompt, at the temperature of the round."""
        distinct, places = distinct_prompts(prompts)
        context, features = self._encode(distinct)
        width = max(len(record["ids"]) for record in records)

        def rows(name: str, padding: float | int = 0) -> Tensor:
            several = [record[name] if name in record else torch.zeros(len(record["ids"])) for record in records]
            if several[0].dim():
                several = [nn.functional.pad(one, (0, width - len(one)), value=padding) for one in several]
            return torch.stack(several).to(self.device)

        length = torch.tensor([[len(record["ids"])] for record in records], device=self.device)
        real = torch.arange(width, device=self.device) < length
        prompt = torch.tensor(places, device=self.device)
        scale = request.sampling.get("temperature", self.temperature)
        ids = rows("ids", self.model.pad_id)
        sequences = Sequences(context, features, prompt, ids, real, request.seed, scale)
        decisions = Decisions(
            log_probs=rows("log_probs"),
            loss_mask=rows("loss_mask") & real,
            decision_mask=real,
            node=torch.arange(real.numel(), device=self.device).view(real.shape),
            origin=torch.full((len(records),), origin, device=self.device),
            keys={"prompt": torch.tensor(list(slots), device=self.device)},
            fields={name: rows(name) for name in self.fields},
        )
        return Rollout(list(prompts), self._decode(sequences), decisions, sequences)

    def _forced(self, request: Request) -> dict[int, Query]:
        """The members of groups that begin with given tokens, by the place of their prompt."""
        members, tokens = (round(request.sampling.get(f"forced_{name}", 0)) for name in ("members", "tokens"))
        pairs = zip(request.prompts, request.slots, request.beginnings) if request.beginnings else ()
        queries = {
            place: Query(prompt, slot, request.group_size, HINTED, beginning)
            for place, (prompt, slot, beginning) in enumerate(pairs)
        }
        for place, solution in enumerate(request.solutions if members else ()):
            ids = self.model.spell(solution)
            # At least the last token of the solution, and its end, are left to the policy.
            if beginning := tuple(ids[: max(0, min(tokens, len(ids) - 2))]):
                prompt, slot = request.prompts[place], request.slots[place]
                queries[place] = Query(prompt, slot, members, HINTED, beginning)
        return queries

    def _records(self, sequences: Sequences, prompts: Sequence[Prompt], names: frozenset[str]) -> dict[str, Tensor]:
        """What the request asks of samples that are scored once more."""
        found, network = {}, self.network

        def score(some: Sequences, part: Tokens) -> Tensor:
            return self._score(network, some, part)[0]

        for name, thought in (("answer_probability", True), ("answer_prior", False)):
            if name in names:
                found[name] = answer_likelihood(sequences, prompts, self.model, score, thought)
        if "gradient_feature" in names:
            found["gradient_feature"] = gradient_features(
                sequences,
                lambda rows: self.states(network, sequences, rows),
                lambda hidden, first: self._log_softmax(network, hidden, first, sequences.temperature),
                self.logits_chunk_size,
            )
        if "segment" in names:
            found["segment"] = segments(sequences, self.model.decode)
        if "token_id" in names:
            found["token_id"] = sequences.ids
        return found

    def _forms(self, query: Query) -> list[Query]:
        """The query, or one for each form of its prompt, of equal counts as far as they divide."""
        if self.variants is None:
            return [query]
        forms = self.variants({"prompt": query.prompt})
        if query.count < len(forms):
            raise ValueError(
                f"sampling.variants: got {len(forms)} forms for {query.count} samples of a prompt, expected at least "
                "one sample of each; raise data.group_size"
            )
        counts = [query.count // len(forms) + (place < query.count % len(forms)) for place in range(len(forms))]
        return [
            replace(query, prompt=prompt, variant=number, count=count)
            for (prompt, number), count in zip(forms, counts, strict=True)
        ]

    def _contrasts(self, request: Request) -> list[Query]:
        """The changed prompts, without those that the change does not apply to."""
        if self.contrast is None:
            return []
        queries = []
        for prompt, slot in zip(request.prompts, request.slots):
            inputs = {"prompt": prompt, "group_size": request.group_size, "seed": request.seed}
            changed, count = self.contrast(inputs)
            if count:
                queries.append(Query(changed, slot, count, CONTRAST))
        return queries

    def _ended(self, sequences: Sequences) -> Bool[Tensor, " B"]:
        return (torch.isin(sequences.ids, self.ends) & sequences.real).any(1)

    def _decode(self, sequences: Sequences) -> list[Output]:
        seen, prefilled = sequences.context.seen, sequences.context.prefilled
        outputs: list[Output] = []
        width = sequences.ids.shape[1]  # one copy to the host of all that is read
        table = torch.cat([sequences.ids, sequences.real, self._ended(sequences)[:, None]], 1).cpu()
        tables = table[:, :width], table[:, width:-1].bool(), table[:, -1]
        for row, ids, real, ended in zip(sequences.prompts.tolist(), *tables, strict=True):
            given = list(sequences.context.forced[row]) if sequences.context.forced else []
            text, sizes = self.model.decode(given + ids[real].tolist()), seen[row] if seen else ()
            opening = str(prefilled[row]) if prefilled else ""
            tokens = tuple(ids[real].tolist())
            outputs.append(Text(text, int(real.sum()), not bool(ended), sizes, opening, tokens))
        return outputs
