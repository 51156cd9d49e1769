"""Rewards of translations and spoken answers: BLEU and chrF as sacrebleu computes them, divided by 100.

Sentence scores are rewards; ``corpus_bleu`` and ``corpus_chrf`` are for reports and are no means of sentence scores.
``Prompt.answer`` is the reference, or a list of several. Texts are not normalized beyond sacrebleu's own tokenizer.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from functools import cache
from itertools import zip_longest
from typing import Any

import numpy as np
import numpy.typing as npt

from mmgrpo.config.names import nearest
from mmgrpo.scoring.manifest import reward
from mmgrpo.statistics import Interval, draws
from mmgrpo.types import Output, Prompt
from reward_models.rules.parsing import gold_texts, texts
from reward_models.rules.transcripts import missing_package

translation_reward = functools.partial(reward, "Text", reads=("answer",), packages=("sacrebleu",), extra="speech")

TOKENIZERS = ("13a", "intl", "char", "zh", "ja-mecab", "ko-mecab", "none")
"""Tokenizers of sacrebleu that need no download; the Japanese and Korean ones need packages of their own."""


@translation_reward()
def sentence_bleu(
    prompts: Sequence[Prompt], outputs: Sequence[Output], tokenize: str = "13a", lowercase: bool = False
) -> list[float]:
    """Sentence BLEU / 100, in [0, 1] (the reward of arXiv:2509.16990). An empty hypothesis is worth 0.

    The order is effective: n-gram orders above the length of the sentence are left out, so a correct answer of one
    word is worth 1 (with order 4 throughout it would be 0). ``tokenize`` is one of ``TOKENIZERS``.
    """
    return _sentences(_bleu(tokenize, lowercase, True), prompts, outputs, "sentence_bleu")


@translation_reward()
def sentence_chrf(prompts: Sequence[Prompt], outputs: Sequence[Output], word_order: int = 0) -> list[float]:
    """chrF / 100: F2 of character 1- to 6-grams, in [0, 1]; chrF++ with ``word_order`` 2. Needs no tokenizer."""
    return _sentences(_chrf(word_order), prompts, outputs, "sentence_chrf")


def corpus_bleu(references: Sequence[str], hypotheses: Sequence[str], tokenize: str = "13a") -> float:
    """Corpus BLEU, 0 to 100, from n-gram counts summed over all sentences."""
    return _corpus(_bleu(tokenize, False, False), references, hypotheses)


def corpus_chrf(references: Sequence[str], hypotheses: Sequence[str], word_order: int = 0) -> float:
    """Corpus chrF, 0 to 100."""
    return _corpus(_chrf(word_order), references, hypotheses)


def corpus_interval(
    metric: str,
    references: Sequence[Sequence[str]],
    hypotheses: Sequence[str],
    tokenize: str = "13a",
    resamples: int = 1000,
) -> dict[str, float | int]:
    """Corpus ``bleu`` or ``chrf``, 0 to 100, with the 95 % bootstrap interval over sentences (Koehn, EMNLP 2004).

    Every sentence has one reference or several.
    """
    if not references or len(references) != len(hypotheses) or not all(references):
        raise ValueError(
            f"corpus score: got {len(hypotheses)} hypotheses and {len(references)} lists of references, expected "
            "equally many, and at least one of each"
        )
    scorer = _chrf(0) if metric == "chrf" else _bleu(tokenize, False, False)
    streams = [list(stream) for stream in zip_longest(*references)]
    # The statistics of sacrebleu's own bootstrap, which fails where a resample scores 0 (version 2.6).
    sums = np.array(scorer._extract_corpus_statistics(list(hypotheses), streams))

    def score(places: npt.NDArray[np.int64]) -> float:
        return float(scorer._compute_score_from_stats(sums[places].sum(axis=0).tolist()).score)

    scores = [score(places) for chunk in draws(len(sums), resamples, 0) for places in chunk]
    low, high = np.percentile(scores, [2.5, 97.5])
    mean = score(np.arange(len(sums)))
    return Interval(mean, float(low), float(high), len(sums)).as_dict()


def _sentences(metric: Any, prompts: Sequence[Prompt], outputs: Sequence[Output], reward: str) -> list[float]:
    rows = zip(prompts, texts(outputs, reward), strict=True)
    # Rounding inside sacrebleu makes a perfect score 100.00000000000004.
    return [min(1.0, metric.sentence_score(text.text, gold_texts(prompt)).score / 100) for prompt, text in rows]


def _corpus(metric: Any, references: Sequence[str], hypotheses: Sequence[str]) -> float:
    if not references or len(references) != len(hypotheses):
        raise ValueError(
            f"corpus score: got {len(references)} references and {len(hypotheses)} hypotheses, expected equally many, "
            "at least one"
        )
    return metric.corpus_score(list(hypotheses), [list(references)]).score


@cache
def _bleu(tokenize: str, lowercase: bool, effective_order: bool) -> Any:
    if tokenize not in TOKENIZERS:
        raise ValueError(f"sentence_bleu: unknown tokenizer '{tokenize}'.{nearest(tokenize, TOKENIZERS)}")
    return _metrics().BLEU(tokenize=tokenize, lowercase=lowercase, effective_order=effective_order)


@cache
def _chrf(word_order: int) -> Any:
    return _metrics().CHRF(word_order=word_order)


def _metrics() -> Any:
    try:
        from sacrebleu import metrics
    except ModuleNotFoundError as error:
        raise missing_package("sacrebleu", error) from error
    return metrics
