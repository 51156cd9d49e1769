"""A policy whose decisions are tokens, whatever media its prompts show.

What is drawn of which prompts is its walk (``mmgrpo.policies.walks``); the passes of the network are in
``mmgrpo.policies.token_passes``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mmgrpo.config.registry import networks_of
from mmgrpo.config.sampling import SUPPRESSING
from mmgrpo.files import share
from mmgrpo.policies.generation import Drawer, Drawing
from mmgrpo.policies.records import reaching, visual_dependency
from mmgrpo.policies.token_model import Query, Sequences, TokenModel, Tokens, answers_of
from mmgrpo.policies.token_passes import GREEDY_MARGIN, MEASURES, USUAL, Memory, TokenPasses
from mmgrpo.policies.walks import Completion, refuse_parts
from mmgrpo.types import GIVEN, RECORDS, Decisions, Output, Prompt, Record, Request, Rollout, Scores, distinct_prompts

if TYPE_CHECKING:
    from mmgrpo.policies.chains import Chains, Link
    from mmgrpo.policies.perturbed_prompts import ChangedPrompts


class TokenPolicy(TokenPasses):
    """Samples token by token and scores the same tokens in one forward pass."""

    kind = "tokens"
    answer_kind = "text"
    keys = frozenset({"prompt"})
    adjustable = frozenset({"temperature", "max_tokens", "forced_tokens"})

    def __init__(
        self,
        model: TokenModel,
        *,
        max_tokens: int,
        walk: Completion | None = None,
        temperature: float = 1.0,
        top_p: float = 1.0,
        evaluation_temperature: float = 0.0,
        train_truncated: bool = True,
        sampling_dtype: str = "",
        memory: Memory = USUAL,
        device: torch.device | str = "cpu",
    ) -> None:
        """``walk`` says what is drawn (``walk_of``); None: every sample by itself. ``sampling_dtype`` (bfloat16,
        float16) samples faster under autocast; the old log-probs are then computed again as training computes them, and
        those of the sampler are stored for a mismatch correction."""
        super().__init__(
            model,
            max_tokens=max_tokens,
            temperature=temperature,
            top_p=top_p,
            evaluation_temperature=evaluation_temperature,
            train_truncated=train_truncated,
            sampling_dtype=sampling_dtype,
            memory=memory,
            device=device,
        )
        self.settings: Any = None
        self.walk = Completion() if walk is None else walk
        parts = self.walk.parts
        refuse_parts(parts, self.used)
        self.keys = self.keys.union(*(part.keys for part in parts))
        self.fields = frozenset({"truncated", "entropy"}).union(*(part.fields for part in parts))
        self.fields |= {"sampler_log_probs"} if sampling_dtype else set()
        self.provides = frozenset(
            {
                "log_probs",
                "entropy",
                "certainty",
                "top_log_prob",
                "hidden_state",
                GREEDY_MARGIN,
                "reference.log_probs",
                "log_probs under a changed prompt",
            }
            | {"reference.log_probs under a changed prompt"}
            | {f"{name} of samples" for name in RECORDS}
        ).difference(*(part.lacks for part in parts))

    @property
    def used(self) -> dict[str, Any]:
        """The settings for which it stands, as far as others exclude them."""
        return self.walk.used | {
            "sampling.dtype": self.sampling_dtype,
            "sampling.draw_batch_size": self.memory.draw_batch_size,
            "sampling.truncated": "train" if self.train_truncated else "mask",
            "model.family": SUPPRESSING if self.model.begin_suppress_tokens else "",
            "rollout.engine": type(self.engine).__name__ if self.engine else "policy",
        }

    @cached_property
    def changed_prompts(self) -> ChangedPrompts:
        """Scores under changed prompts."""
        from mmgrpo.policies.perturbed_prompts import ChangedPrompts

        return ChangedPrompts(self.encode)

    def draw_with(self, engine: Drawer) -> None:
        """Let an engine draw the completions of rollouts; evaluations stay the network's own. Old log-probs are those
        of the network, and the engine's are the field ``sampler_log_probs``."""
        refuse_parts(self.walk.parts, {**self.used, "rollout.engine": type(engine).__name__})
        self.engine = engine
        self.fields |= {"sampler_log_probs"}

    @torch.no_grad()
    def rollout(self, request: Request) -> Rollout:
        """``group_size`` completions per prompt, each group from its own random stream; then those of contrasts."""
        self.shown_cache.entries.clear()
        rollout = self.walk.rollout(self, request)
        return self._with_visual_dependency(rollout) if "visual_dependency" in request.records else rollout

    @torch.no_grad()
    def begin(self, request: Request) -> None:
        """Let the engine begin to draw the completions that ``rollout`` will be asked for."""
        queries, drawing = self.walk.queries(self, request)
        context = self._context(queries)
        if self.engine is not None:
            self.engine.begin(context, self._cached_features(context, queries), queries, drawing)

    def _with_visual_dependency(self, rollout: Rollout) -> Rollout:
        """The rollout with the field ``visual_dependency``, against grey media."""
        sequences: Sequences = rollout.steps  # type: ignore[assignment]
        changed, rows = self.changed_prompts.sequences(rollout, "blank")
        network, decisions = self.network, rollout.decisions
        dependency = visual_dependency(
            sequences,
            changed,
            rows,
            lambda steps, some: self.states(network, steps, some),
            lambda hidden, first: self._log_softmax(network, hidden, first, sequences.temperature),
            self.logits_chunk_size,
        )
        return rollout.with_decisions(replace(decisions, fields={**decisions.fields, "visual_dependency": dependency}))

    @torch.no_grad()
    def rollout_of_answers(self, request: Request) -> Rollout:
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
        ids = torch.tensor([[*row, *[self.model.pad_id] * (width - len(row))] for row in spelled], device=self.device)
        length = torch.tensor([[len(row)] for row in spelled], device=self.device)
        each = torch.arange(len(queries), device=self.device)
        prompt = each.repeat_interleave(torch.tensor([query.count for query in queries], device=self.device))
        real = torch.arange(width, device=self.device) < length
        sequences = Sequences(context, features, prompt, ids, real, request.seed, self.temperature)
        mask = real & self.has_probability(ids)
        truncated = [len(tokens) > len(cut) for tokens, cut in zip(whole, spelled, strict=True)]
        decisions = Decisions(
            log_probs=self._training_scores(sequences)["log_probs"].masked_fill(~mask, 0.0),
            loss_mask=mask,
            decision_mask=mask,
            node=torch.arange(mask.numel(), device=self.device).view(mask.shape),
            origin=torch.full((len(ids),), GIVEN, device=self.device),
            keys={"prompt": torch.tensor(list(request.slots), device=self.device)[prompt]},
            fields={"truncated": torch.tensor(truncated, device=self.device).float()},
        )
        return Rollout(prompts, self.decode(sequences), decisions, sequences, evaluations=int(real.sum()))

    def score(self, rollout: Rollout, part: Tokens | Link, names: frozenset[str]) -> Scores:
        """Score the part's tokens again under the present parameters; ``hidden_state`` alone is that before each,
        [N width], without a pass of the output layer."""
        steps: Sequences | Chains = rollout.steps  # type: ignore[assignment]
        sequences, inner = steps.inner(part)  # type: ignore[arg-type]  # it is a part of these steps
        if names == {"hidden_state"}:
            return {
                "hidden_state": self.states(self.network, sequences, inner.distinct)[inner.inverse, inner.positions]
            }
        measures = [name for name in MEASURES if name in names]
        log_probs, *measured = self._score(self.network, sequences, inner, measures)
        scores: Scores = {"log_probs": log_probs, **dict(zip(measures, measured, strict=True))}
        if GREEDY_MARGIN in names:
            scores[GREEDY_MARGIN] = self.greedy_margin(sequences, inner)
        for other in networks_of(names - {GREEDY_MARGIN}):
            with torch.no_grad(), self.networks(other) as network:
                scores[f"{other}.log_probs"] = self._score(network, sequences, inner)[0]
        for name in sorted(name for name in names if "@" in name):
            unchanged, _, change = name.partition("@")
            other = unchanged.removesuffix("log_probs").rstrip(".")
            if not other:
                scores[name] = self._log_probs_under(self.network, rollout, inner, change, log_probs)
                continue
            with torch.no_grad(), self.networks(other) as network:
                scores[name] = self._log_probs_under(network, rollout, inner, change, scores[unchanged])
        return scores

    def _log_probs_under(
        self, network: nn.Module, rollout: Rollout, part: Tokens, change: str, log_probs: Float[Tensor, "N"]
    ) -> Float[Tensor, "N"]:
        return self.changed_prompts.log_probs(
            rollout, part, change, log_probs, lambda under, some: self._score(network, under, some)[0]
        )

    @torch.no_grad()
    def sample(self, request: Request) -> list[Output]:
        """Sample at the evaluation temperature (0 is greedy)."""
        size = request.group_size * (self.ranking.candidates if self.ranking else 1)
        queries = [Query(prompt, slot, size) for prompt, slot in zip(request.prompts, request.slots)]
        drawing = Drawing(request.seed, self.evaluation_temperature, self.max_tokens, self.top_p, request.round)
        outputs = self.walk.sample(self, queries, drawing)
        return self.ranking.kept(request, outputs) if self.ranking else outputs

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
        return [[self.record_of(text) for text in answers_of(prompt)[: count or None]] for prompt in prompts]

    def record_of(self, text: str) -> Record:
        """A text as a completion of at most ``max_tokens`` tokens."""
        tokens = self.model.spell(text)
        record = self._record_of_tokens(tokens[: self.max_tokens])
        return record | {"truncated": torch.tensor(float(len(tokens) > self.max_tokens))}

    def _record_of_tokens(self, tokens: Sequence[int]) -> Record:
        ids = torch.tensor(tokens, dtype=torch.long)
        zeros = torch.zeros(len(ids))
        fields = {name: zeros[0] if name == "truncated" else zeros for name in self.fields}
        return {**fields, "ids": ids, "loss_mask": self.has_probability(ids[None].to(self.device))[0].cpu()}

    def reopen(self, record: Record, text: str) -> Record:
        """A completion without its end tokens, and a text behind it."""
        going = ~torch.isin(record["ids"], self.ends.cpu())
        kept = record | {name: value[going] for name, value in record.items() if value.dim()}
        return self.concatenate(kept, self._record_of_tokens(self.model.spell(text)[:-1])) if text else kept

    def before(self, record: Record, text: str) -> int:
        """The number of tokens before a text, or before its end where it has none of it."""
        ids = self.reopen(record, "")["ids"].tolist()
        whole = self.model.decode(ids)
        start = whole.find(text)
        return len(ids) if start < 0 else reaching(ids, self.model.decode, len(whole[:start].rstrip()))

    def concatenate(self, record: Record, rest: Record) -> Record:
        """A completion that goes on with another, without log-probs; it is cut off if the other is."""
        both = {name: value for name, value in record.items() if name in rest and name != "log_probs"}
        return {n: torch.cat([value, rest[n]]) if value.dim() else rest[n] for n, value in both.items()}

    @torch.no_grad()
    def unpack(
        self, prompts: Sequence[Prompt], records: Sequence[Record], slots: Sequence[int], origin: int, request: Request
    ) -> Rollout:
        """A rollout of stored completions, one per prompt, at the temperature of the round."""
        distinct, places = distinct_prompts(prompts)
        context, features = self.encode(distinct)
        width = max(len(record["ids"]) for record in records)

        def rows(name: str, padding: float | int = 0) -> Tensor:
            tensors = [record[name] if name in record else torch.zeros(len(record["ids"])) for record in records]
            if tensors[0].dim():
                tensors = [nn.functional.pad(values, (0, width - len(values)), value=padding) for values in tensors]
            return torch.stack(tensors).to(self.device)

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
        return Rollout(list(prompts), self.decode(sequences), decisions, sequences)
