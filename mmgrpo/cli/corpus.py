"""What is reported of all transcripts or translations of a file together, group by group, and of the worst ones.

Word and character error rates divide all errors by all words (or characters) of the references; BLEU and chrF are
those of the corpus. None is the mean of the sentences' scores. Intervals are 95 % bootstrap intervals over clips.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mmgrpo.registry import parse
from mmgrpo.report.terminal import interval

if TYPE_CHECKING:
    from mmgrpo.report.audio_player import Aligned
    from mmgrpo.types import Prompt

SENTENCES = {"sentence_bleu": "bleu", "sentence_chrf": "chrf"}
"""Rewards of sentences, and the scores of a corpus that belong to them."""
KINDS = {"replace": "substituted", "delete": "deleted", "insert": "inserted"}
FEW = 3
"""What divides the clips into groups of fewer than this, on average, is not reported unless it is asked for."""


@dataclass(frozen=True)
class Counts:
    """Errors of a clip's transcripts, each the mean over its samples."""

    errors: Mapping[str, float]
    """Substituted, deleted and inserted words."""
    words: float
    letter_errors: float
    letters: float

    @property
    def word_errors(self) -> float:
        return sum(self.errors.values())


def suitable(prompts: Sequence[Prompt], translated: bool, default: Sequence[str]) -> list[str]:
    """Rewards where none are named: of translations and of references in several versions those of sentences."""
    loose = translated or any(p.task == "translate" or not isinstance(p.answer, str) for p in prompts)
    return list(SENTENCES) if normal_of(default) and loose else list(default)


def normal_of(rewards: Sequence[str]) -> str:
    """How the first reward that compares transcripts normalizes them; empty where there is no such reward."""
    from reward_models import SPEECH

    normals = [str(values.get("normal", "english")) for name, values in map(parse, rewards) if name in SPEECH]
    return normals[0] if normals else ""


def count(prompts: Sequence[Prompt], texts: Sequence[Sequence[str]], rewards: Sequence[str]) -> list[Counts]:
    """Errors of every clip, where a reward compares transcripts; else nothing."""
    from reward_models.rules.speech import transcript
    from reward_models.rules.transcripts import aligned, letters_of, normalizer, word_errors

    if not (normal := normal_of(rewards)) or not texts:
        return []
    rule, cut = normalizer(normal), letters_of(normal)
    counts = []
    for prompt, samples in zip(prompts, texts, strict=True):
        reference = rule(transcript(prompt))
        places = [[pair[0] for pair in aligned(transcript(prompt), text, normal)] for text in samples]
        letters = [float(word_errors(cut(reference), cut(rule(text)))) for text in samples]
        counts.append(
            Counts(
                {name: mean([float(row.count(kind)) for row in places]) for kind, name in KINDS.items()},
                float(len(reference.split())),
                mean(letters),
                float(len(cut(reference))),
            )
        )
    return counts


def described(
    prompts: Sequence[Prompt],
    texts: Sequence[Sequence[str]],
    counts: Sequence[Counts],
    rewards: Sequence[str],
    groups: Sequence[str],
    worst: int,
) -> dict[str, Any]:
    """The whole, its groups by the values of ``groups`` (of meta), and the ``worst`` clips; empty where no reward is
    about a corpus."""
    if not texts or not (normal_of(rewards) or any(parse(reward)[0] in SENTENCES for reward in rewards)):
        return {}
    parts = _parts(prompts)
    names = list(groups) or [name for name, of in parts.items() if 1 < len(of) <= len(prompts) / FEW]
    for name in names:
        if name not in parts:
            raise ValueError(f"--groups: no clip has meta.{name}; there are {', '.join(parts) or 'none'}")

    def scores(places: Sequence[int]) -> dict[str, Any]:
        some = [counts[place] for place in places] if counts else []
        return _scores([prompts[p] for p in places], [texts[p][0] for p in places], some, rewards)

    return {
        **scores(range(len(prompts))),
        "groups": {name: {value: scores(places) for value, places in parts[name].items()} for name in names},
        "worst": _worst(prompts, texts, rewards, worst),
    }


def compared(before: Sequence[Counts], after: Sequence[Counts]) -> dict[str, Any]:
    """Error rates of two models on the same clips: the paired differences."""
    from mmgrpo.evaluation import ErrorCounts
    from mmgrpo.report.comparison import compare_rates

    rates = {}
    for name, errors, units in (("wer", "word_errors", "words"), ("cer", "letter_errors", "letters")):
        if before:
            sides = [
                ErrorCounts([getattr(c, errors) for c in side], [getattr(c, units) for c in side])
                for side in (before, after)
            ]
            rates[name] = compare_rates(*sides)
    return {name: {key: one[key] for key in ("difference", "relative")} for name, one in rates.items() if one}


def _scores(
    prompts: Sequence[Prompt], texts: Sequence[str], counts: Sequence[Counts], rewards: Sequence[str]
) -> dict[str, Any]:
    from mmgrpo.report.statistics import bootstrap_ratio
    from reward_models.rules.reading import gold_texts
    from reward_models.rules.translation import corpus_interval

    scores: dict[str, Any] = {"clips": len(prompts)}
    words = sum(one.words for one in counts)
    if words:
        scores["wer"] = bootstrap_ratio([c.word_errors for c in counts], [c.words for c in counts]).as_dict()
        scores["cer"] = bootstrap_ratio([c.letter_errors for c in counts], [c.letters for c in counts]).as_dict()
        scores |= {name: sum(one.errors[name] for one in counts) for name in KINDS.values()} | {"words": words}
    for name, parameters in map(parse, rewards):
        if name in SENTENCES:
            references = [gold_texts(prompt) for prompt in prompts]
            tokenize = parameters.get("tokenize", "13a")
            scores[SENTENCES[name]] = corpus_interval(SENTENCES[name], references, list(texts), tokenize)
    return scores


def _parts(prompts: Sequence[Prompt]) -> dict[str, dict[str, list[int]]]:
    """Names of meta to their values to the places of the clips that have them."""
    parts: dict[str, dict[str, list[int]]] = {}
    for place, prompt in enumerate(prompts):
        for name, value in prompt.meta.items():
            if isinstance(value, str | int | float):
                parts.setdefault(name, {}).setdefault(str(value), []).append(place)
    return parts


def _worst(
    prompts: Sequence[Prompt], texts: Sequence[Sequence[str]], rewards: Sequence[str], most: int
) -> list[dict[str, Any]]:
    """The clips with most wrong words; none where words are not compared."""
    from mmgrpo.report.audio_player import errors
    from reward_models.rules.speech import transcript
    from reward_models.rules.transcripts import aligned

    if not (normal := normal_of(rewards)):
        return []
    rows = []
    for prompt, samples in zip(prompts, texts, strict=True):
        pairs = [list(pair) for pair in aligned(transcript(prompt), samples[0], normal)]
        rows.append({"id": prompt.id, "errors": errors(pairs), "said": samples[0], "aligned": pairs})
    return [row for row in sorted(rows, key=lambda row: -row["errors"])[:most] if row["errors"]]


def lines(corpus: Mapping[str, Any]) -> Iterator[str]:
    """Tables for the terminal."""
    scores = [name for name in ("wer", "cer", "bleu", "chrf") if name in corpus]
    if not scores:
        return
    yield ""
    yield f"{'all together (95 %)':24} {'clips':>6} " + " ".join(f"{name:>24}" for name in scores)
    yield _line("all", corpus, scores)
    for name, parts in corpus["groups"].items():
        for value, part in parts.items():
            yield _line(f"{name} {value}", part, scores)
    if "wer" in corpus:
        kinds = ", ".join(f"{corpus[kind]:g} {kind}" for kind in KINDS.values())
        yield f"of {corpus['words']:g} words: {kinds}"
    for name, one in corpus.get("difference", {}).items():
        relative = "" if one["relative"] is None else f" ({one['relative']:+.1%})"
        yield f"{name} against the other: {interval(one['difference'], '+')}{relative}, paired"
    if corpus["worst"]:
        yield from ("", "worst clips: {heard for reference}, [-left out-], [+inserted+]")
        yield from (f"{row['errors']:3} {row['id']}: {marked(row['aligned'])}" for row in corpus["worst"])


def _line(title: str, one: Mapping[str, Any], scores: Sequence[str]) -> str:
    cells = " ".join(f"{interval(one[name]) if name in one else '–':>24}" for name in scores)
    return f"{title:24} {one['clips']:6} {cells}"


def marked(aligned: Aligned) -> str:
    """An alignment in plain text."""
    forms = {"equal": "{1}", "replace": "{{{1} for {0}}}", "delete": "[-{0}-]", "insert": "[+{1}+]"}
    return " ".join(forms[kind].format(*pair) for kind, *pair in aligned)


def mean(values: Sequence[float]) -> float:
    """NaN where there is nothing."""
    return sum(values) / len(values) if values else math.nan
