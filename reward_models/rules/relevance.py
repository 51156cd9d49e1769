"""R3, the regularized relevance reward: relevance, length and repetition of an answer, without a trained reward model
(arXiv:2402.03469; naver-ai/rethinking-proxy-reward).

    open-ended question:   length * distinct * relevance(answer, question)
    question with answer:  scaled relevance(answer, reference) * distinct

It is a study of proxies: the reward of an open-ended answer grows with its length without bound, and an answer that is
irrelevant (a negative relevance) is punished the more the longer it is.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from math import inf

import numpy as np
from jaxtyping import Float

from mmgrpo.config.plugins import load_object
from mmgrpo.scoring.manifest import reward
from mmgrpo.types import Output, Prompt
from reward_models.rules.lengths import repeated_fraction
from reward_models.rules.parsing import texts

TOKENS = 100.0
"""Tokens of an answer at which its length incentive is 1."""
RELEVANT, LONGEST = 3.5, 512.0
"""The relevance to a reference that counts as much as an open-ended answer of ``LONGEST`` tokens."""


def tokens(text: str) -> list[str]:
    """Runs of letters and digits, and runs of punctuation (NLTK's wordpunct)."""
    return re.findall(r"\w+|[^\w\s]+", text)


def distinct(text: str, n: int = 3) -> float:
    """Unique n-grams / n-grams of the tokens; 1 for fewer than n tokens."""
    return 1 - repeated_fraction(tokens(text), n)


@reward("Text", range=(-inf, inf), reads=("text", "answer"), source="R3, arXiv:2402.03469")
def regularized_relevance(
    prompts: Sequence[Prompt], outputs: Sequence[Output], embed: str, device: str = "cpu"
) -> list[float]:
    """R3 of each answer: against the reference where the prompt has a reference text, else the open-ended one.

    ``embed`` is a function ``module:function`` of a list of texts and ``device`` to vectors [N, width], whose inner
    products are the relevance: Contriever's mean-pooled vectors in the paper, not of unit norm. The relevance to a
    reference is cut to 0 to 3.5 and mapped linearly to 0 to 5.12; an empty answer is worth 0.
    """
    answers = [text.text for text in texts(outputs, "regularized_relevance")]
    targets = [prompt.answer if isinstance(prompt.answer, str) else prompt.text for prompt in prompts]
    vectors = embed_texts([*answers, *targets], embed, device, "regularized_relevance")
    relevance = (vectors[: len(answers)] * vectors[len(answers) :]).sum(1)
    return [
        of_reference(answer, value) if isinstance(prompt.answer, str) else open_ended(answer, value)
        for prompt, answer, value in zip(prompts, answers, relevance.tolist(), strict=True)
    ]


def open_ended(answer: str, relevance: float) -> float:
    """tokens / 100 * distinct trigrams * relevance to the question."""
    return len(tokens(answer)) / TOKENS * distinct(answer) * relevance


def of_reference(answer: str, relevance: float) -> float:
    """5.12 / 3.5 * relevance to the reference, cut to 0 to 3.5, * distinct trigrams; 0 for an empty answer."""
    scaled = min(max(relevance, 0.0), RELEVANT) / RELEVANT * LONGEST / TOKENS
    return scaled * distinct(answer) if tokens(answer) else 0.0


def embed_texts(texts: Sequence[str], embed: str, device: str, reward: str) -> Float[np.ndarray, "N width"]:
    """The vectors of N texts by a function ``module:function``; ValueError, which names the reward, for others."""
    vectors = np.asarray(_embedder(embed, reward)([*texts], device=device), dtype=np.float64)
    if vectors.ndim != 2 or len(vectors) != len(texts):
        raise ValueError(f"{reward}: embed '{embed}': got shape {list(vectors.shape)}, expected [{len(texts)}, width]")
    return vectors


@functools.cache
def _embedder(name: str, reward: str) -> Callable[..., Float[np.ndarray, "N width"]]:
    return load_object(name, f"{reward}: embed")
