"""A policy that asks itself about documents, answers and verifies (``algorithm.judging: self_play``; SPELL,
arXiv:2509.23863): what each role reads, what its rewards are, and which of its rows are trained.

    questioner   some documents, earlier pairs -> a question and its answer      one a prompt
    responder    all documents, the question -> answers                          G a question
    verifier     the question, both answers -> yes or no                         G an answer
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from mmgrpo.prompts.added import fill_text
from mmgrpo.prompts.judging import SelfPlay, verdict
from mmgrpo.randomness import stream
from mmgrpo.types import Prompt

MEAN, STD = 0.5, 0.5 / 3
UNGROUNDED, MALFORMED = -0.5, -1.0
"""Rewards of questions."""


@dataclass(frozen=True)
class Pair:
    """A question and its answer, and the numbers of the documents that they are about."""

    question: str
    answer: str
    documents: tuple[int, ...] = ()


def documents_of(prompt: Prompt) -> list[str]:
    """The documents of a row; ValueError for one without."""
    given = prompt.meta.get("documents")
    if not isinstance(given, list | tuple) or not given or not all(isinstance(text, str) and text for text in given):
        raise ValueError(
            f"algorithm.judging: self_play: prompt '{prompt.id}': got documents {given!r:.80}, expected a list of "
            "texts; add the column"
        )
    return list(given)


def draw_documents(prompt: Prompt, rule: SelfPlay, seed: int, number: int, slot: int) -> tuple[int, ...]:
    """Which documents the questioner reads in round ``number``."""
    count = len(documents_of(prompt))
    order = torch.randperm(count, generator=stream(seed, "documents", number, slot))[: rule.documents]
    return tuple(sorted(order.tolist()))


def asking(prompt: Prompt, read: Sequence[int], memory: Sequence[Pair], rule: SelfPlay) -> Prompt:
    """The prompt of the questioner: the documents that it is to read, those of remembered pairs, and these pairs."""
    every = documents_of(prompt)
    shown = sorted({*read}.union(*(pair.documents for pair in memory)))
    history = "".join(f"Earlier question: {pair.question}\nIts answer: {pair.answer}\n\n" for pair in memory)
    fields = {"documents": "\n\n".join(every[place] for place in shown), "history": history, "prompt": prompt.text}
    return replace(prompt, text=fill_text(rule.ask, prompt, fields=fields), turns=())


def answering(prompt: Prompt, pair: Pair, rule: SelfPlay, grounded: bool = True) -> Prompt:
    """The prompt of the responder, with all documents or none."""
    documents = "\n\n".join(documents_of(prompt)) if grounded else ""
    text = fill_text(rule.answer, prompt, fields={"documents": documents, "question": pair.question}).strip()
    return Prompt(text, prompt.id, answer=pair.answer, task=rule.task)


def verifying(prompt: Prompt, pair: Pair, sample: str, rule: SelfPlay) -> Prompt:
    """The prompt of the verifier."""
    fields = {"question": pair.question, "answer": pair.answer}
    return Prompt(fill_text(rule.verify, prompt, sample, fields=fields), prompt.id)


def pair_in(text: str) -> Pair | None:
    """The last question and answer that a text marks; None where one is missing or empty."""
    matches = [re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL) for tag in ("question", "answer")]
    parts = [texts[-1].strip() for texts in matches if texts]
    return Pair(parts[0], parts[1]) if len(parts) == 2 and all(parts) else None


def verdicts_of(texts: Sequence[str], words: Sequence[str]) -> tuple[bool, list[float]]:
    """Whether more than half of all say that answers agree, and the reward of each: 1 where it says what the majority
    says, 0 for another and for none. Five yes, two no and one of neither: yes; 1 1 1 1 1 0 0 0."""
    choices = [verdict(text, words) for text in texts]
    majority = sum(choice == 0 for choice in choices) > len(choices) / 2
    return majority, [float(choice == (0 if majority else 1)) for choice in choices]


def worth_of_question(mean: float) -> float:
    """exp(-(s - mu)^2 / (2 sigma^2)), 0 at 0 and 1. s .5: 1; .25 and .75: .324652; .125: .079560."""
    return math.exp(-((mean - MEAN) ** 2) / (2 * STD**2)) if 0 < mean < 1 else 0.0


def choose_questions(rewards: Mapping[int, float], seed: int, number: int) -> set[int]:
    """Of questions, by their places, those of a positive reward and as many others, drawn by seed."""
    good = [place for place, reward in sorted(rewards.items()) if reward > 0]
    others = [place for place, reward in sorted(rewards.items()) if reward <= 0]
    order = torch.randperm(len(others), generator=stream(seed, "self play", number, 0))[: len(good)]
    return {*good, *(others[place] for place in order.tolist())}


def choose_verdicts(conflicting: Sequence[int], count: int, seed: int, number: int) -> set[int]:
    """Of the groups of verdicts that may be trained at most ``count``, drawn by seed."""
    order = torch.randperm(len(conflicting), generator=stream(seed, "self play", number, 1))[:count]
    return {sorted(conflicting)[place] for place in order.tolist()}
