"""Variants: forms of a prompt among which its group is divided; all of them are trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from mmgrpo.config.registry import bind, block, parse, table_of
from mmgrpo.data.comparisons import swap_answers
from mmgrpo.data.messages import append_text
from mmgrpo.policies.generation import Generated
from mmgrpo.policies.token_model import Query, Sequences
from mmgrpo.policies.token_passes import TokenPasses
from mmgrpo.policies.walks import Addition
from mmgrpo.randomness import stream
from mmgrpo.types import Media, Prompt, Request

VARIANTS = table_of("variants")
"""Forms of a prompt among which its group is divided; all of them are trained. A block returns the forms, each with its
number, the field ``variant`` of its samples."""


class Form(NamedTuple):
    """A form of a prompt."""

    prompt: Prompt
    number: float
    """The field ``variant`` of its samples."""
    beginning: str = ""
    """Text that its completions begin with, which is given."""
    numbers: Mapping[str, float] = MappingProxyType({})
    """Further fields of its samples, of the names in ``NUMBERS``."""


@block(VARIANTS)
def budgets(
    prompt: Prompt,
    *,
    tokens: Sequence[int],
    text: str = "I will answer the question with {tokens} tokens.",
) -> list[Form]:
    """The question with a budget of each of the ``tokens``, in words after it, which is the number of the form and
    ``meta.budget`` (HBPO, arXiv:2507.15844: 512, 1024, 2048, 2560; there the sentence opens the thought)."""
    if not tokens or "{tokens}" not in text:
        raise ValueError(
            f"budgets: got tokens {tokens!r} and text {text!r}, expected numbers, and text with {{tokens}}"
        )
    return [Form(_append_sentence(prompt, text.format(tokens=count), budget=count), float(count)) for count in tokens]


@block(VARIANTS)
def instructions(prompt: Prompt, *, texts: Sequence[str]) -> list[Form]:
    """The question with each of the ``texts`` after it, an empty one for the question as it is; forms are numbered from
    0, which is ``meta.variant`` too. Samples asked to add auxiliary constructions and samples asked not to are GCPO's
    two halves (GeometryZero, arXiv:2506.07160; reward ``auxiliary``)."""
    if len(texts) < 2:
        raise ValueError(f"instructions: got texts {texts!r}, expected at least two")
    return [Form(_append_sentence(prompt, text, variant=place), float(place)) for place, text in enumerate(texts)]


@block(VARIANTS)
def both_orders(prompt: Prompt) -> list[Form]:
    """The comparison of ``data.comparison`` as it is, and with its two answers exchanged and the verdict with them: one
    group of both orders, for the reward ``order_consistency`` (J1 of Meta, arXiv:2505.10320)."""
    forms = (prompt, swap_answers(prompt))
    return [Form(replace(form, meta={**form.meta, "variant": place}), float(place)) for place, form in enumerate(forms)]


@block(VARIANTS)
def frame_ladder(prompt: Prompt, *, frames: Sequence[int], pixels: Sequence[int]) -> list[Form]:
    """The question with its videos read on each rung of a ladder, ``frames[k]`` frames of at most ``pixels[k]`` pixels,
    from few large ones to many small ones; rungs are numbered from 0, which is ``meta.variant`` too. Dynamic resolution
    frame sampling of FrameMind (arXiv:2509.24008), whose rungs were not found."""
    if not frames or len(frames) != len(pixels) or any(count < 1 or count % 2 for count in frames) or min(pixels) < 1:
        raise ValueError(
            f"frame_ladder: got frames {[*frames]} and pixels {[*pixels]}, expected as many of both, frames even and "
            "above 0, as models merge them in pairs"
        )
    if not any(medium.kind == "video" for medium in prompt.media):
        raise ValueError(f"frame_ladder: prompt '{prompt.id}' has no video, expected one; leave out sampling.variants")
    rungs = enumerate(zip(frames, pixels, strict=True))
    return [Form(_read_at(prompt, k, {"frames": count, "max_pixels": large}), float(k)) for k, (count, large) in rungs]


@block(VARIANTS)
def prefixes(prompt: Prompt, count: int, generator: torch.Generator, column: str = "prefixes") -> list[Form]:
    """Completions that begin with stored beginnings of a teacher's solutions, the nodes of its search tree: Tree-OPO
    (arXiv:2509.09284). Where a prompt has more than its group has members, as many are drawn anew in every round.

    ``column`` of the row is a list of {"text": the beginning, "wins": right solutions of the teacher below it,
    "visits": all of them}; a node is below all others whose text its own continues. The number of a form is its place
    in the order of the tree, ``prefix_end`` that of the last one below it, ``prefix_parent`` that of the node above
    (-1: none), ``prefix_value`` wins / visits.
    """
    nodes = sorted(_nodes(prompt, column))
    chosen = torch.randperm(len(nodes), generator=generator)[:count].sort().values.tolist()
    texts = [text for text, _ in nodes]
    forms = []
    for place in chosen:
        text, value = nodes[place]
        above = [other for other in range(place) if text.startswith(texts[other])]
        end = max(other for other in range(place, len(nodes)) if texts[other].startswith(text))
        numbers = {"prefix_end": float(end), "prefix_parent": float(max(above, default=-1)), "prefix_value": value}
        forms.append(Form(prompt, float(place), text, numbers))
    return forms


NUMBERS: Mapping[str, frozenset[str]] = {"prefixes": frozenset({"prefix_end", "prefix_parent", "prefix_value"})}
"""Blocks to the further fields of their samples."""


def _nodes(prompt: Prompt, column: str) -> list[tuple[str, float]]:
    """The beginnings in a column of a row with the share of right solutions below each; ValueError for what is none."""
    stored = prompt.meta.get(column)
    nodes: dict[str, float] = {}
    for node in stored if isinstance(stored, list | tuple) else ():
        text, wins, visits = (
            node.get(key) if isinstance(node, Mapping) else None for key in ("text", "wins", "visits")
        )
        known = isinstance(text, str) and text not in nodes
        if not (known and isinstance(wins, int) and isinstance(visits, int) and 0 <= wins <= visits):
            nodes.clear()
            break
        nodes[str(text)] = wins / visits if visits else 0.0
    if not nodes:
        raise ValueError(
            f"prompt '{prompt.id}': got {column} {stored!r:.200}, expected a list of different beginnings of "
            'solutions, {"text": ..., "wins": how many solutions of it were right, "visits": of how many}; add the '
            "column to the data, or name another, sampling.variants: prefixes(column=...)"
        )
    return [*nodes.items()]


def _read_at(prompt: Prompt, variant: int, options: Mapping[str, int]) -> Prompt:
    """The prompt with these options of its videos, in place of the number or rate of frames that they have."""

    def change_options(part: str | Media) -> str | Media:
        if isinstance(part, str) or part.kind != "video":
            return part
        # Of frames in files the rate says when they are.
        replaced = {"frames"} if isinstance(part.source, tuple) else {"frames", "fps"}
        kept = {name: value for name, value in part.options.items() if name not in replaced}
        return replace(part, options={**kept, **options})

    turns = tuple(replace(turn, parts=tuple(map(change_options, turn.parts))) for turn in prompt.turns)
    return replace(prompt, turns=turns, meta={**prompt.meta, "variant": variant})


def _append_sentence(prompt: Prompt, text: str, **meta: int) -> Prompt:
    """The prompt with a sentence at the end of its last user turn."""
    return replace(append_text(prompt, f" {text}") if text else prompt, meta={**prompt.meta, **meta})


class Variants(Addition):
    """Groups that are divided among the forms of their prompts."""

    setting = "sampling.variants"

    def __init__(self, value: str) -> None:
        super().__init__(value)
        self.forms = bind(value, VARIANTS, "sampling.variants")
        self.further = NUMBERS.get(parse(value)[0], frozenset())
        self.fields = frozenset({"variant"}) | self.further

    def queries(self, policy: TokenPasses, request: Request, queries: list[Query]) -> list[Query]:
        """One query for each form of each prompt, of equal counts as far as they divide."""
        return [form for query in queries for form in self._divide(policy, request, query)]

    def numbers(self, queries: Sequence[Query], sequences: Sequences, drawn: Generated) -> dict[str, Tensor]:
        """``variant``, the number of the form, and its further ones, Float[Tensor, "B"]."""
        table = {"variant": [query.variant or 0.0 for query in queries]}
        table |= {name: [dict(query.numbers).get(name, 0.0) for query in queries] for name in sorted(self.further)}
        return {
            name: torch.tensor(values, device=sequences.ids.device)[sequences.prompt] for name, values in table.items()
        }

    def _divide(self, policy: TokenPasses, request: Request, query: Query) -> list[Query]:
        generator = stream(request.seed, "variants", query.slot)
        forms = self.forms({"prompt": query.prompt, "count": query.count, "generator": generator})
        if query.count < len(forms):
            raise ValueError(
                f"sampling.variants: got {len(forms)} forms for {query.count} samples of a prompt, expected at least "
                "one sample of each; raise data.group_size"
            )
        counts = [query.count // len(forms) + (place < query.count % len(forms)) for place in range(len(forms))]
        return [
            replace(
                query,
                prompt=form.prompt,
                variant=form.number,
                count=count,
                forced=tuple(policy.model.spell(form.beginning)[:-1]) if form.beginning else query.forced,
                numbers=tuple(form.numbers.items()),
            )
            for form, count in zip(forms, counts, strict=True)
        ]
