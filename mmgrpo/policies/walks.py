"""What a token policy draws for a request, and what becomes of it: its walk.

    Completion     every sample by itself, token by token
    BeamSearch     the most likely completions (``beam_search``)
    Tree           samples that share their beginnings (``text_trees``)
    Conversation   turns between which tools answer (``conversation``)
    Programmed     calls of a program, each with a prompt of its own (``programs``)

Beside a completion or a beam search stand additions, each of which changes one part of it: the data set's answer in
each group (``given_answers``), forms of a prompt (``variants``), further samples under a changed prompt
(``contrasts``), the divergence of a group (``divergence``), states that rewards judge (``text_states``), a temperature
of each token (``entropy_temperature``).

What parts do not go with stands at the settings that ask for them (``mmgrpo/config/sampling.py``). A policy imports the
modules of its own parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from mmgrpo.config.conflicts import refuse_values
from mmgrpo.config.settings import DECLARED
from mmgrpo.policies.generation import Drawing, Generated
from mmgrpo.policies.token_model import Query, Sequences
from mmgrpo.policies.token_passes import Search, TokenPasses
from mmgrpo.runtime.devices import put
from mmgrpo.types import CONTRAST, HINT, HINTED, OWN, REFERENCE, Decisions, Output, Request, Rollout

OF_TURNS = frozenset({"turn", "state", "action", "call", "answer_gain"})
"""Records of completions that have turns."""


@dataclass(frozen=True)
class Walked:
    """What a walk has drawn; the samples of a prompt are adjacent rows."""

    sequences: Any
    """``Sequences``, or ``Chains`` of them where a row is several; what reads single ones is then lacking."""
    numbers: dict[str, Tensor]
    """What was recorded of each token, ``log_probs`` and ``entropy`` among it, Float[Tensor, "B T"], or of each row."""
    origin: Int[Tensor, " B"]
    fields: dict[str, Tensor] = field(default_factory=dict)
    """Further fields of the decisions."""
    keys: dict[str, Tensor] = field(default_factory=dict)
    """Keys besides ``prompt``."""
    ended: Bool[Tensor, " B"] | None = None
    """Rows that were not cut off; None: those with an end token."""
    outputs: Sequence[Output] | None = None
    """None: the text of each row."""
    node: Int[Tensor, "B T"] | None = None
    """The number of each token where rows share some; None: all differ."""
    owner: Bool[Tensor, "B T"] | None = None
    """True where a row trains the token; None: everywhere."""


class Part:
    """A walk or an addition, as the value ``value`` of one setting asks for it."""

    setting: ClassVar[str] = ""
    traits: ClassVar[frozenset[str]] = frozenset()
    """What a block that is the value of the setting reads, by which others exclude it."""
    fields: frozenset[str] = frozenset()
    """Fields that it records in every round."""
    keys: frozenset[str] = frozenset()
    """Keys of its samples besides ``prompt``."""
    measures: ClassVar[frozenset[str]] = frozenset()
    """What it has measured of each token while it is drawn (``TokenPasses.generate``)."""

    def __init__(self, value: Any = "") -> None:
        self.value = value

    @property
    def text(self) -> Any:
        """The value as a recipe writes it."""
        return self.value

    @property
    def lacks(self) -> frozenset[str]:
        """What a policy with it does not provide."""
        return frozenset()

    def check_sizes(self, group_size: int, max_tokens: int) -> None:
        """ValueError for groups of another size, or completions of fewer tokens, than it has."""

    def check_leaves(self, group_size: int, leaves: int) -> None:
        """ValueError for groups of another size than the leaves of a tree."""
        if group_size != leaves:
            raise ValueError(
                f"data.group_size: got {group_size}, expected the {leaves} leaves of {self.setting}={self.text}; set "
                "it to that, or change the tree"
            )


class Addition(Part):
    """What stands beside a completion; a hook that is not overridden changes nothing."""

    beside: ClassVar[str] = ""
    """The setting of the walk beside which alone it stands; empty: any."""

    def queries(self, policy: TokenPasses, request: Request, queries: list[Query]) -> list[Query]:
        """The queries of the request, changed or with others behind them."""
        return queries

    def temper(self, request: Request) -> Callable[[Tensor], Tensor] | None:
        """What changes the log-probs [N, vocabulary] of the next token while it is drawn, but not as it is scored."""
        return None

    def numbers(self, queries: Sequence[Query], sequences: Sequences, drawn: Generated) -> dict[str, Tensor]:
        """Further numbers of what was drawn."""
        return {}

    def rows(self, policy: TokenPasses, request: Request, walked: Walked, most: int) -> Walked:
        """The rows, or others; those of at most ``most`` tokens."""
        return walked

    def rollout(self, policy: TokenPasses, request: Request, rollout: Rollout, drawing: Drawing) -> Rollout:
        """The finished rollout, or more of it."""
        return rollout


class Completion(Part):
    """Every sample by itself, token by token; other walks change parts of it."""

    search: Search | None = None
    """What searches in the place of sampling."""
    certain: ClassVar[bool] = True
    """Whether it measures the certainty of what it draws."""

    def __init__(self, value: Any = "", additions: Sequence[Addition] = ()) -> None:
        super().__init__(value)
        self.additions = additions

    @property
    def lacks(self) -> frozenset[str]:
        """Records of turns, and what it does not measure."""
        return frozenset(f"{name} of samples" for name in (*OF_TURNS, *(() if self.certain else ("certainty",))))

    @property
    def parts(self) -> list[Part]:
        """Itself and its additions."""
        return [self, *self.additions]

    @property
    def used(self) -> dict[str, Any]:
        """The settings that ask for its parts, with their values."""
        return {part.setting: part.text for part in self.parts if part.setting}

    def queries(self, policy: TokenPasses, request: Request) -> tuple[list[Query], Drawing]:
        """What a rollout draws, and how."""
        forced = given_beginnings(policy, request)
        queries = [*forced.values()]
        if not request.beginnings:
            plain = [
                Query(
                    prompt,
                    slot,
                    request.group_size - (forced[place].count if place in forced else 0),
                    HINTED if HINT in prompt.meta else OWN,
                )
                for place, (prompt, slot) in enumerate(zip(request.prompts, request.slots, strict=True))
            ]
            for addition in self.additions:
                plain = addition.queries(policy, request, plain)
            queries = [*plain, *queries]
        temperature = request.sampling.get("temperature", policy.temperature)
        most = round(request.sampling.get("max_tokens", policy.max_tokens))
        return queries, Drawing(request.seed, temperature, most, policy.top_p, request.round)

    def draw(self, policy: TokenPasses, request: Request, queries: Sequence[Query], drawing: Drawing) -> Walked:
        """The completions of the queries."""
        tempers = [temper for addition in self.additions if (temper := addition.temper(request)) is not None]
        measured = self.measures_of(request)
        sequences, drawn = policy.generate(queries, drawing, measured, self.search, policy.engine, tempers)
        return self.record_tokens(policy, request, queries, sequences, drawn, bool(tempers))

    def measures_of(self, request: Request) -> frozenset[str]:
        """What is measured of each token while it is drawn."""
        return frozenset({"certainty"} & request.records).union(*(part.measures for part in self.parts))

    def record_tokens(
        self,
        policy: TokenPasses,
        request: Request,
        queries: Sequence[Query],
        sequences: Sequences,
        drawn: Generated,
        tempered: bool = False,
    ) -> Walked:
        """What was drawn, with all that is recorded of its tokens. Log-probs are those of the policy's network in
        training, where another one, another precision or another distribution (``tempered``) drew."""
        numbers = {"log_probs": drawn.log_probs, "entropy": drawn.entropy}
        for addition in self.additions:
            numbers |= addition.numbers(queries, sequences, drawn)
        certain, engine = "certainty" in request.records, policy.engine
        anew = engine is not None or tempered
        if certain and not anew:
            assert drawn.certainty is not None  # else it is among what the policy lacks
            numbers["certainty"] = drawn.certainty
        if policy.sampling_dtype or anew:
            names = ["entropy", *(["certainty"] if certain else [])] if anew else []
            numbers |= {"sampler_log_probs": drawn.log_probs, **policy._training_scores(sequences, names)}
        if engine:
            engine.compare(drawn.log_probs, numbers["log_probs"], sequences.written)
        origin = put(torch.tensor([query.origin for query in queries])[sequences.prompts], policy.device)
        return Walked(sequences, numbers, origin)

    def rollout(self, policy: TokenPasses, request: Request) -> Rollout:
        """The rollout of a request."""
        queries, drawing = self.queries(policy, request)
        walked = self.draw(policy, request, queries, drawing)
        for addition in self.additions:
            walked = addition.rows(policy, request, walked, drawing.max_tokens)
        sequences, numbers, origin = walked.sequences, dict(walked.numbers), walked.origin
        ended = policy.has_end(sequences) if walked.ended is None else walked.ended
        real = sequences.written
        sampled = (origin != REFERENCE)[:, None]  # only an answer of the data set can contain a suppressed token
        loss_mask = real & (origin != CONTRAST)[:, None] & (sampled | policy.has_probability(sequences.ids))
        loss_mask = loss_mask if walked.owner is None else loss_mask & walked.owner
        distinct = torch.arange(real.numel(), device=policy.device).view(real.shape)
        prompts = [queries[index].prompt for index in sequences.prompts.tolist()]
        slots = put(torch.tensor([query.slot for query in queries])[sequences.prompts], policy.device)
        decisions = Decisions(
            log_probs=numbers.pop("log_probs"),
            loss_mask=loss_mask if policy.train_truncated else loss_mask & ended[:, None],
            decision_mask=real,
            node=distinct if walked.node is None else walked.node,
            origin=origin,
            keys={"prompt": slots, **walked.keys},
            fields={
                "truncated": (~ended).float(),
                **numbers,
                **policy.records(sequences, prompts, request.records),
                **walked.fields,
            },
        )
        outputs = policy.decode(sequences) if walked.outputs is None else [*walked.outputs]
        evaluations = real.numel() if walked.owner is None else int(walked.owner.sum())
        rollout = Rollout(prompts, outputs, decisions, sequences, evaluations=evaluations)
        for addition in self.additions:
            rollout = addition.rollout(policy, request, rollout, drawing)
        return rollout

    def sample(self, policy: TokenPasses, queries: list[Query], drawing: Drawing) -> list[Output]:
        """Completions for an evaluation."""
        return policy.decode(policy.generate(queries, drawing)[0])


def given_beginnings(policy: TokenPasses, request: Request) -> dict[int, Query]:
    """The members of groups that begin with given tokens, by the place of their prompt."""
    members, tokens = (round(request.sampling.get(f"forced_{name}", 0)) for name in ("members", "tokens"))
    pairs = zip(request.prompts, request.slots, request.beginnings) if request.beginnings else ()
    queries = {
        place: Query(prompt, slot, request.group_size, HINTED, beginning)
        for place, (prompt, slot, beginning) in enumerate(pairs)
    }
    for place, solution in enumerate(request.solutions if members else ()):
        ids = policy.model.spell(solution)
        # At least the last token of the solution, and its end, are left to the policy.
        if beginning := tuple(ids[: max(0, min(tokens, len(ids) - 2))]):
            prompt, slot = request.prompts[place], request.slots[place]
            queries[place] = Query(prompt, slot, members, HINTED, beginning)
    return queries


PARTS: Mapping[str, tuple[str, str]] = {
    "search": ("beam_search", "BeamSearch"),
    "tree": ("turn_trees", "tree_part"),
    "tools": ("conversation", "Conversation"),
    "program": ("programs", "Programmed"),
    "reference_in_group": ("given_answers", "GivenAnswers"),
    "variants": ("variants", "Variants"),
    "contrast": ("contrasts", "Contrast"),
    "divergence": ("divergence", "Divergence"),
    "temperature_by_entropy": ("entropy_temperature", "EntropyTemperature"),
    "states": ("text_states", "JudgedStates"),
}
"""Module and class of each part, by the argument of ``walk_of`` that asks for it, in the order in which they act."""


def parts_of(settings: Mapping[str, Any]) -> list[Part]:
    """The parts that are asked for, by the names of ``PARTS``; ValueError for a value that is none."""
    search = settings.get("search") or "sample"
    if search not in ("sample", "beam"):
        raise ValueError(f"sampling.search: got '{search}', expected sample or beam")
    values = {**settings, "search": search.removeprefix("sample")}
    parts = []
    for name, (module, kind) in PARTS.items():
        if value := values.get(name):
            parts.append(getattr(import_module(f"mmgrpo.policies.{module}"), kind)(value))
    return parts


def walk_of(
    *,
    search: str = "sample",
    reference_in_group: bool = False,
    contrast: str = "",
    variants: str = "",
    states: str = "",
    tree: str = "",
    tools: Any = None,
    program: Any = None,
    divergence: bool = False,
    temperature_by_entropy: float = 0.0,
) -> Completion:
    """The walk that these settings ask for. ``search`` chooses how the completions of a group are generated: ``sample``
    draws token by token at the temperature, ``beam`` takes the most likely ones of a beam search. With
    ``reference_in_group`` one member of a group is the prompt's reference answer. ``contrast`` names a change of the
    prompt under which further rows are sampled (``CONTRASTS``); ``variants`` forms of it among which its group is
    divided (``VARIANTS``); ``states`` those of a completion that rewards judge (``STATES``), ``tree`` how samples share
    tokens (``TREES``), ``tools`` what completions call (``Tools``), and ``program`` of which calls a sample is made
    (``Program``). ``divergence`` records how much the members of a group differ at each position, for credits that need
    it, and ``temperature_by_entropy`` draws uncertain tokens hotter. ValueError for parts that do not go together."""
    settings = {"search": search, "reference_in_group": reference_in_group, "contrast": contrast, "variants": variants}
    settings |= {"states": states, "tree": tree, "tools": tools, "program": program, "divergence": divergence}
    settings |= {"temperature_by_entropy": temperature_by_entropy}
    parts = parts_of(settings)
    refuse_parts(parts)
    walks = [part for part in parts if isinstance(part, Completion)]
    if len(walks) > 1:
        asked_by = [f"{walk.setting}={walk.text}" for walk in walks]
        raise ValueError(f"got {' and '.join(asked_by)}, each of which is a way of drawing; leave out one of them")
    walk = walks[0] if walks else Completion()
    walk.additions = [part for part in parts if isinstance(part, Addition)]
    if alone := next(
        (addition for addition in walk.additions if addition.beside and addition.beside != walk.setting), None
    ):
        raise ValueError(
            f"{alone.setting}: got '{alone.text}' without {alone.beside}, beside which it stands; set both"
        )
    return walk


def refuse_parts(parts: Sequence[Part], values: Mapping[str, Any] = MappingProxyType({})) -> None:
    """ValueError for parts that do not go together, or not with further ``values`` of settings."""
    texts = {part.setting: part.text for part in parts if part.setting}
    refuse_values({**values, **texts}, DECLARED, {(part.setting, str(part.text)): part.traits for part in parts})
