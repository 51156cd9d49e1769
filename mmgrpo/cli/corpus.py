"""Corpus scores of transcripts and translations, overall and by group, and the worst clips.

Word and character error rates divide all errors by all words (or characters) of the references; BLEU and chrF are
corpus scores as well. None is a mean of sentence scores. Intervals are 95 % bootstrap intervals over clips.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mmgrpo.config.registry import parse
from mmgrpo.report.terminal import interval, style
from mmgrpo.terminal import definitions, style_text, table

if TYPE_CHECKING:
    from mmgrpo.report.audio_player import Aligned
    from mmgrpo.types import Prompt

SENTENCES = {"sentence_bleu": "bleu", "sentence_chrf": "chrf"}
"""Sentence-level rewards, and the corresponding corpus scores."""
KINDS = {"replace": "substituted", "delete": "deleted", "insert": "inserted"}
MIN_CLIPS_PER_GROUP = 3
"""Keys of meta that divide the clips into groups smaller than this, on average, are reported only if requested."""


@dataclass(frozen=True)
class Counts:
    """Error counts of a clip, each the mean over its samples."""

    errors: Mapping[str, float]
    """Substituted, deleted and inserted words."""
    words: float
    letter_errors: float
    letters: float

    @property
    def word_errors(self) -> float:
        return sum(self.errors.values())


def suitable(prompts: Sequence[Prompt], is_translation: bool, default: Sequence[str]) -> list[str]:
    """The default rewards: sentence BLEU and chrF for translations and for several references, else ``default``."""
    ambiguous = is_translation or any(p.task == "translate" or not isinstance(p.answer, str) for p in prompts)
    return list(SENTENCES) if normal_of(default) and ambiguous else list(default)


def normal_of(rewards: Sequence[str]) -> str:
    """The text normalization of the first reward that compares transcripts; empty without such a reward."""
    from reward_models import REWARDS

    compared = {name for name, entry in REWARDS.items() if entry.function.startswith("reward_models.rules.speech:")}
    normals = [str(values.get("normal", "language")) for name, values in map(parse, rewards) if name in compared]
    return normals[0] if normals else ""


def count(prompts: Sequence[Prompt], texts: Sequence[Sequence[str]], rewards: Sequence[str]) -> list[Counts]:
    """The error counts of every clip; empty unless a reward compares transcripts."""
    from reward_models.rules.speech import transcript
    from reward_models.rules.transcripts import align, letters_of, normalizer, rule_for, word_errors

    if not (normal := normal_of(rewards)) or not texts:
        return []
    counts = []
    for prompt, samples in zip(prompts, texts, strict=True):
        name = rule_for(prompt, normal, transcript(prompt))
        normalize, letters_in = normalizer(name), letters_of(name)
        reference = normalize(transcript(prompt))
        kinds = [[pair[0] for pair in align(transcript(prompt), text, name)] for text in samples]
        letters = [float(word_errors(letters_in(reference), letters_in(normalize(text)))) for text in samples]
        counts.append(
            Counts(
                {name: mean([float(row.count(kind)) for row in kinds]) for kind, name in KINDS.items()},
                float(len(reference.split())),
                mean(letters),
                float(len(letters_in(reference))),
            )
        )
    return counts


def scores(
    prompts: Sequence[Prompt],
    texts: Sequence[Sequence[str]],
    counts: Sequence[Counts],
    rewards: Sequence[str],
    groups: Sequence[str],
    worst: int,
) -> dict[str, Any]:
    """Corpus scores of all clips, of groups by the values of the keys ``groups`` of meta, and the ``worst`` clips.

    Empty if no reward has a corpus score.
    """
    if not texts or not (normal_of(rewards) or any(parse(reward)[0] in SENTENCES for reward in rewards)):
        return {}
    from mmgrpo.evaluation import members
    from reward_models.rules.transcripts import version_of

    parts = members(prompts)
    names = list(groups) or [
        name for name, members in parts.items() if 1 < len(members) <= len(prompts) / MIN_CLIPS_PER_GROUP
    ]

    def subset(clips: Sequence[int]) -> dict[str, Any]:
        subcounts = [counts[i] for i in clips] if counts else []
        return _scores([prompts[i] for i in clips], [texts[i][0] for i in clips], subcounts, rewards)

    normal = normal_of(rewards)
    return {
        **({"rule": version_of(normal)} if normal else {}),
        **subset(range(len(prompts))),
        "groups": {name: {value: subset(clips) for value, clips in parts[name].items()} for name in names},
        "worst": _worst(prompts, texts, rewards, worst),
    }


def compare(before: Sequence[Counts], after: Sequence[Counts]) -> dict[str, Any]:
    """Paired differences of the error rates of two models on the same clips."""
    from mmgrpo.evaluation import ErrorCounts, compare_rates

    rates = {}
    for name, errors, units in (("wer", "word_errors", "words"), ("cer", "letter_errors", "letters")):
        sides = [
            ErrorCounts([getattr(c, errors) for c in side], [getattr(c, units) for c in side])
            for side in (before, after)
        ]
        rates[name] = compare_rates(*sides)
    return {name: {key: rate[key] for key in ("difference", "relative")} for name, rate in rates.items() if rate}


def _scores(
    prompts: Sequence[Prompt], texts: Sequence[str], counts: Sequence[Counts], rewards: Sequence[str]
) -> dict[str, Any]:
    from mmgrpo.statistics import bootstrap_ratio
    from reward_models.rules.parsing import gold_texts
    from reward_models.rules.translation import corpus_interval

    scores: dict[str, Any] = {"clips": len(prompts)}
    words = sum(c.words for c in counts)
    if words:
        scores["wer"] = bootstrap_ratio([c.word_errors for c in counts], [c.words for c in counts]).as_dict()
        scores["cer"] = bootstrap_ratio([c.letter_errors for c in counts], [c.letters for c in counts]).as_dict()
        scores |= {name: sum(c.errors[name] for c in counts) for name in KINDS.values()} | {"words": words}
    for name, parameters in map(parse, rewards):
        if name in SENTENCES:
            references = [gold_texts(prompt) for prompt in prompts]
            tokenize = parameters.get("tokenize", "13a")
            scores[SENTENCES[name]] = corpus_interval(SENTENCES[name], references, list(texts), tokenize)
    return scores


def _worst(
    prompts: Sequence[Prompt], texts: Sequence[Sequence[str]], rewards: Sequence[str], limit: int
) -> list[dict[str, Any]]:
    """The clips with the most word errors; empty unless a reward compares transcripts."""
    from mmgrpo.report.audio_player import errors
    from reward_models.rules.corpus import alignment

    if not (normal := normal_of(rewards)):
        return []
    rows = []
    for prompt, samples in zip(prompts, texts, strict=True):
        pairs = [list(pair) for pair in alignment(prompt, samples[0], normal)]
        rows.append({"id": prompt.id, "errors": errors(pairs), "said": samples[0], "aligned": pairs})
    return [row for row in sorted(rows, key=lambda row: -row["errors"])[:limit] if row["errors"]]


def lines(corpus: Mapping[str, Any]) -> Iterator[str]:
    """The lines of the tables for a terminal."""
    names = [name for name in ("wer", "cer", "bleu", "chrf") if name in corpus]
    if not names:
        return
    rows = {"all": corpus}
    rows |= {f"{name} {value}": part for name, parts in corpus["groups"].items() for value, part in parts.items()}
    cells = [
        [title, str(part["clips"]), *(interval(part[name]) if name in part else "–" for name in names)]
        for title, part in rows.items()
    ]
    yield from ("", *table(["all together (95 %)", "clips", *names], cells))
    if "wer" in corpus:
        kinds = ", ".join(f"{corpus[kind]:g} {kind}" for kind in KINDS.values())
        yield f"of {corpus['words']:g} words: {kinds}"
    for name, rate in corpus.get("difference", {}).items():
        relative = "" if rate["relative"] is None else f" ({rate['relative']:+.1%})"
        gain = style_text(
            interval(rate["difference"], "+"), *style(rate["difference"], -1 if name in ("wer", "cer") else 1)
        )
        yield f"{name} against the other: {gain}{relative}, paired"
    if corpus["worst"]:
        yield from ("", "worst clips: {hypothesis for reference}, [-deleted-], [+inserted+]")
        yield from definitions(
            [(f"{row['errors']} {row['id']}:", alignment_text(row["aligned"])) for row in corpus["worst"]]
        )


def alignment_text(aligned: Aligned) -> str:
    """An alignment as plain text."""
    forms = {"equal": "{1}", "replace": "{{{1} for {0}}}", "delete": "[-{0}-]", "insert": "[+{1}+]"}
    return " ".join(forms[kind].format(*pair) for kind, *pair in aligned)


def mean(values: Sequence[float]) -> float:
    """The mean; NaN without values."""
    return sum(values) / len(values) if values else math.nan
