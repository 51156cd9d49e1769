"""Completions of several turns, between which tools answer: the walk of a policy with ``tools.Tools``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from mmgrpo.data.messages import append_text
from mmgrpo.policies.chains import Chains
from mmgrpo.policies.generation import Drawer, Drawing, Generated
from mmgrpo.policies.records import answer_gains
from mmgrpo.policies.token_model import Query, Sequences
from mmgrpo.policies.token_passes import TokenPasses
from mmgrpo.policies.tools import CUT, NUMBERS, WALKING, Conversations, Tools
from mmgrpo.policies.turn_trees import Branching, TurnTree, TurnVines, number_tokens
from mmgrpo.policies.walks import Completion, Walked
from mmgrpo.randomness import derive
from mmgrpo.types import OWN, Output, Prompt, Request, Text


class Conversation(Completion):
    """Turns of the policy, and of tools."""

    setting = "sampling.tools"
    fields = frozenset({*NUMBERS, "step_rewards", "world_failed"})

    def __init__(self, value: Tools) -> None:
        super().__init__(value)
        self.tools = value

    @property
    def text(self) -> list[str]:
        """The names of the tools."""
        return [str(getattr(tool, "__name__", tool)) for tool in self.tools.tools]

    @property
    def lacks(self) -> frozenset[str]:
        """Records of one text, of several contexts those of one, and scores under changed prompts where classes write
        behind them or contexts have prompts of their own."""
        changed = {"log_probs under a changed prompt", "reference.log_probs under a changed prompt"}
        names = {*WALKING, "call", *(("answer_gain",) if self.tools.summaries else ())}
        others = changed if self.tools.opening or self.tools.summaries else set()
        return frozenset({f"{name} of samples" for name in names} | others)

    def queries(self, policy: TokenPasses, request: Request) -> tuple[list[Query], Drawing]:
        """With what classes of tools write behind the prompts."""
        queries, drawing = super().queries(policy, request)
        if any(query.forced for query in queries):
            raise ValueError(
                "sampling.tools: got completions that begin with given tokens, expected those of the policy alone"
            )
        if self.branching:
            queries = [replace(query, count=self.branching.trees) for query in queries]
        return self.tools.open_prompts(queries, request.seed), drawing

    @property
    def branching(self) -> TurnTree | TurnVines | None:
        """The shape of the trees whose leaves the completions are."""
        return next((addition.shape for addition in self.additions if isinstance(addition, Branching)), None)

    def draw(self, policy: TokenPasses, request: Request, queries: Sequence[Query], drawing: Drawing) -> Walked:
        """All turns of the completions."""
        measures = self.measures_of(request)
        sequences, drawn = policy.generate(queries, drawing, measures, engine=policy.engine)
        keyed = bool(request.records & {"state", "action"})
        tree = self.branching
        turns = self._turns(policy, sequences, drawn, queries, drawing, measures, policy.engine, keyed, tree)
        drawn = turns.drawn
        fields = turns.fields(request.records)
        if self.tools.summaries:
            walked = self._walk_contexts(policy, request, sequences, turns)
            return replace(walked, outputs=_texts(sequences, turns), ended=turns.ended, fields=fields)
        prompt = sequences.prompt
        if tree:
            places = {id(query): place for place, query in enumerate(queries)}
            prompt = torch.tensor([places[id(episode.query)] for episode in turns.episodes], device=policy.device)
        sequences = replace(
            sequences, prompt=prompt, ids=drawn.ids, real=drawn.real, observed=turns.observed, shown=turns.shown
        )
        walked = self.record_tokens(policy, request, queries, sequences, drawn)
        if tree:
            node, owner = (table.to(policy.device) for table in number_tokens(turns.episodes, drawn.ids.shape[1]))
            key = torch.tensor(turns.trees, device=policy.device)
            walked = replace(walked, node=node, owner=owner, keys={"tree": key})
            if isinstance(tree, TurnVines):
                fields |= tree.fields(turns.episodes, turns.trees, turns.fields(frozenset({"turn"}))["turn"].long())
        if "answer_gain" in request.records:
            fields["answer_gain"] = self._gains(policy, sequences, queries, turns)
        return replace(walked, outputs=_texts(sequences, turns), ended=turns.ended, fields=fields)

    def _walk_contexts(self, policy: TokenPasses, request: Request, first: Sequences, turns: Conversations) -> Walked:
        """Completions of several contexts, each a sequence behind its own prompt."""
        spans, drawn, device = turns.spans, turns.drawn, policy.device
        queries = [episode.query for episode in turns.episodes]
        # Spans that begin alike share one prompt, which is encoded once.
        opened: dict[tuple[int, str], Prompt] = {}
        for span in spans:
            opening = "".join(queries[span.row].opening)
            key = id(span.prompt), opening
            opened.setdefault(key, append_text(span.prompt, opening) if opening else span.prompt)
        places = {key: place for place, key in enumerate(opened)}
        context, features = policy.encode([*opened.values()])
        width = max(span.length for span in spans)
        column_of = torch.arange(width, device=device)
        column = torch.tensor([[span.begin] for span in spans], device=device) + column_of
        real = column_of < torch.tensor([[span.length] for span in spans], device=device)
        row = torch.tensor([span.row for span in spans])
        at = row.to(device)[:, None], column.clamp(max=drawn.ids.shape[1] - 1)
        sequences = Sequences(
            context,
            features,
            torch.tensor(
                [places[id(span.prompt), "".join(queries[span.row].opening)] for span in spans], device=device
            ),
            torch.where(real, drawn.ids[at], policy.model.pad_id),
            real,
            request.seed,
            first.temperature,
            real & turns.observed[at],
            [span.shown for span in spans] if turns.shown else (),
        )
        chains = Chains(sequences, row, first.prompts)
        log_probs, entropy, divergence = map(chains.per_sequence, (drawn.log_probs, drawn.entropy, drawn.divergence))
        certainty = None if drawn.certainty is None else chains.per_sequence(drawn.certainty)
        of_spans = Generated(sequences.ids, real, log_probs, entropy, divergence, certainty)
        of_prompts = [Query(prompt, 0, 1) for prompt in opened.values()]
        walked = self.record_tokens(policy, request, of_prompts, sequences, of_spans)
        numbers = {name: chains.table(value) for name, value in walked.numbers.items()}
        return Walked(chains, numbers, walked.origin.new_full((len(queries),), OWN))

    def sample(self, policy: TokenPasses, queries: list[Query], drawing: Drawing) -> list[Output]:
        """As ``draw``, for an evaluation."""
        queries = self.tools.open_prompts(queries, drawing.seed)
        sequences, drawn = policy.generate(queries, drawing)
        return [*_texts(sequences, self._turns(policy, sequences, drawn, queries, drawing))]

    def _turns(
        self,
        policy: TokenPasses,
        sequences: Sequences,
        drawn: Generated,
        queries: Sequence[Query],
        drawing: Drawing,
        measures: frozenset[str] = frozenset(),
        engine: Drawer | None = None,
        keyed: bool = False,
        tree: TurnTree | TurnVines | None = None,
    ) -> Conversations:
        """The completions that begin with the turns that were drawn."""

        def draw(some: Sequence[Query], limit: int, turn: int) -> Generated:
            later = replace(drawing, seed=derive(drawing.seed, "turn", turn), max_tokens=limit)
            return policy.generate(some, later, measures, engine=engine)[1]

        rows, ends = [queries[place] for place in sequences.prompts.tolist()], frozenset(policy.ends.tolist())
        return self.tools.converse(drawn, rows, draw, policy.model, ends, drawing.max_tokens, drawing.seed, keyed, tree)

    def _gains(
        self, policy: TokenPasses, sequences: Sequences, queries: Sequence[Query], turns: Conversations
    ) -> Float[Tensor, "B T"]:
        """``answer_gains`` of the turns, where the thought that the template opens is closed before the answer."""
        opened = self.tools.prefilled.rpartition("</think>")[2]
        opening = "</think>\n<answer>" if "<think>" in opened else "<answer>"
        prompts = [queries[index].prompt for index in sequences.prompts.tolist()]
        starts = [episode.begun for episode in turns.episodes]
        return answer_gains(sequences, prompts, starts, opening, policy.model, policy.log_probs)


def _texts(sequences: Sequences, turns: Conversations) -> list[Text]:
    """The last turn of each completion, with those before it and the calls."""
    seen, prefilled = sequences.context.seen, sequences.context.prefilled
    return [
        Text(
            episode.text,
            episode.written,
            episode.end in CUT,
            seen[row] if seen else (),
            str(prefilled[row]) if prefilled else "",
            tuple(episode.last),
            tuple(episode.turns),
            tuple(episode.calls),
            episode.reward,
            episode.fault,
        )
        for row, episode in zip(sequences.prompts.tolist(), turns.episodes, strict=True)
    ]
