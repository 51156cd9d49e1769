"""Variants: forms of a prompt among which its group is divided; all of them are trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from mmgrpo.config.registry import bind, block, table_of
from mmgrpo.data.comparisons import swapped
from mmgrpo.data.messages import appended
from mmgrpo.policies.generation import Generated
from mmgrpo.policies.token_model import Query, Sequences
from mmgrpo.policies.token_passes import TokenPasses
from mmgrpo.policies.walks import Addition
from mmgrpo.types import Prompt, Request

VARIANTS = table_of("variants")
"""Forms of a prompt among which its group is divided; all of them are trained. A block returns the forms, each with its
number, the field ``variant`` of its samples."""


@block(VARIANTS)
def budgets(
    prompt: Prompt,
    *,
    tokens: Sequence[int],
    text: str = "I will answer the question with {tokens} tokens.",
) -> list[tuple[Prompt, float]]:
    """The question with a budget of each of the ``tokens``, in words after it, which is the number of the form and
    ``meta.budget`` (HBPO, arXiv:2507.15844: 512, 1024, 2048, 2560; there the sentence opens the thought)."""
    if not tokens or "{tokens}" not in text:
        raise ValueError(
            f"budgets: got tokens {tokens!r} and text {text!r}, expected numbers, and text with {{tokens}}"
        )
    return [(_asked(prompt, text.format(tokens=one), budget=one), float(one)) for one in tokens]


@block(VARIANTS)
def instructions(prompt: Prompt, *, texts: Sequence[str]) -> list[tuple[Prompt, float]]:
    """The question with each of the ``texts`` after it, an empty one for the question as it is; forms are numbered from
    0, which is ``meta.variant`` too. Samples asked to add auxiliary constructions and samples asked not to are GCPO's
    two halves (GeometryZero, arXiv:2506.07160; reward ``auxiliary``)."""
    if len(texts) < 2:
        raise ValueError(f"instructions: got texts {texts!r}, expected at least two")
    return [(_asked(prompt, text, variant=place), float(place)) for place, text in enumerate(texts)]


@block(VARIANTS)
def both_orders(prompt: Prompt) -> list[tuple[Prompt, float]]:
    """The comparison of ``data.comparison`` as it is, and with its two answers exchanged and the verdict with them: one
    group of both orders, for the reward ``order_consistency`` (J1 of Meta, arXiv:2505.10320)."""
    forms = (prompt, swapped(prompt))
    return [(replace(one, meta={**one.meta, "variant": place}), float(place)) for place, one in enumerate(forms)]


def _asked(prompt: Prompt, text: str, **meta: int) -> Prompt:
    """The prompt with a sentence at the end of its last user turn."""
    return replace(appended(prompt, f" {text}") if text else prompt, meta={**prompt.meta, **meta})


class Variants(Addition):
    """Groups that are divided among the forms of their prompts."""

    setting = "sampling.variants"
    fields = frozenset({"variant"})

    def __init__(self, value: str) -> None:
        super().__init__(value)
        self.forms = bind(value, VARIANTS, "sampling.variants")

    def queries(self, policy: TokenPasses, request: Request, queries: list[Query]) -> list[Query]:
        """One query for each form of each prompt, of equal counts as far as they divide."""
        return [form for query in queries for form in self._divided(query)]

    def numbers(self, queries: Sequence[Query], sequences: Sequences, drawn: Generated) -> dict[str, Tensor]:
        """``variant``, the number of the form, Float[Tensor, "B"]."""
        forms = torch.tensor([query.variant or 0.0 for query in queries], device=sequences.ids.device)
        return {"variant": forms[sequences.prompt]}

    def _divided(self, query: Query) -> list[Query]:
        forms = self.forms({"prompt": query.prompt})
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
