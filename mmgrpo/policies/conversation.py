"""Completions of several turns, between which tools answer: the walk of a policy with ``tools.Tools``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jaxtyping import Float
from torch import Tensor

from mmgrpo.policies.generation import Drawer, Drawing, Generated
from mmgrpo.policies.records import answer_gains
from mmgrpo.policies.token_model import Query, Sequences
from mmgrpo.policies.token_passes import TokenPasses
from mmgrpo.policies.tools import NUMBERS, WALKING, Conversations, Tools
from mmgrpo.policies.walks import Completion, Walked
from mmgrpo.randomness import derive
from mmgrpo.types import Output, Request, Text


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
        """Records of one text, and scores under changed prompts where classes write behind them."""
        changed = {"log_probs under a changed prompt", "reference.log_probs under a changed prompt"}
        return frozenset({f"{name} of samples" for name in WALKING} | (changed if self.tools.opening else set()))

    def queries(self, policy: TokenPasses, request: Request) -> tuple[list[Query], Drawing]:
        """With what classes of tools write behind the prompts."""
        queries, drawing = super().queries(policy, request)
        if any(query.forced for query in queries):
            raise ValueError(
                "sampling.tools: got completions that begin with given tokens, expected those of the policy alone"
            )
        return self.tools.opened(queries, request.seed), drawing

    def draw(self, policy: TokenPasses, request: Request, queries: Sequence[Query], drawing: Drawing) -> Walked:
        """All turns of the completions."""
        measures = self.measured(request)
        sequences, drawn = policy.generate(queries, drawing, measures, engine=policy.engine)
        keyed = bool(request.records & {"state", "action"})
        turns = self._turns(policy, sequences, drawn, queries, drawing, measures, policy.engine, keyed)
        drawn = turns.drawn
        sequences = replace(sequences, ids=drawn.ids, real=drawn.real, observed=turns.observed, shown=turns.shown)
        walked = self.walked(policy, request, queries, sequences, drawn)
        fields = turns.fields(request.records)
        if "answer_gain" in request.records:
            fields["answer_gain"] = self._gains(policy, sequences, queries, turns)
        return replace(walked, outputs=_texts(sequences, turns), ended=turns.ended, fields=fields)

    def sample(self, policy: TokenPasses, queries: list[Query], drawing: Drawing) -> list[Output]:
        """As ``draw``, for an evaluation."""
        queries = self.tools.opened(queries, drawing.seed)
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
    ) -> Conversations:
        """The completions that begin with the turns that were drawn."""

        def draw(some: Sequence[Query], limit: int, turn: int) -> Generated:
            later = replace(drawing, seed=derive(drawing.seed, "turn", turn), max_tokens=limit)
            return policy.generate(some, later, measures, engine=engine)[1]

        rows, ends = [queries[place] for place in sequences.prompts.tolist()], frozenset(policy.ends.tolist())
        return self.tools.converse(drawn, rows, draw, policy.model, ends, drawing.max_tokens, drawing.seed, keyed)

    def _gains(
        self, policy: TokenPasses, sequences: Sequences, queries: Sequence[Query], turns: Conversations
    ) -> Float[Tensor, "B T"]:
        """``answer_gains`` of the turns, where the thought that the template opens is closed before the answer."""
        opened = self.tools.prefilled.rpartition("</think>")[2]
        opening = "</think>\n<answer>" if "<think>" in opened else "<answer>"
        prompts = [queries[index].prompt for index in sequences.prompts.tolist()]
        begun = [one.begun for one in turns.episodes]
        return answer_gains(sequences, prompts, begun, opening, policy.model, policy.log_probs)


def _texts(sequences: Sequences, turns: Conversations) -> list[Text]:
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
            one.fault,
        )
        for row, one in zip(sequences.prompts.tolist(), turns.episodes, strict=True)
    ]
