"""What the evaluation script tells of all transcripts or translations together, group by group, and of the worst ones.

Word and character error rates divide all errors by all words (or characters) of the references; BLEU and chrF are
those of the corpus. None is the mean of the sentences' scores. Intervals are 95 % bootstrap intervals over clips.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from corpus import aligner, errors_in, normal_of, units_in

if TYPE_CHECKING:
    from mmgrpo.report.audio_player import Aligned
    from mmgrpo.scoring import Scorer
    from mmgrpo.types import Output, Prompt

SUBSTITUTED, DELETED, INSERTED, WORDS = "(substituted)", "(deleted)", "(inserted)", "(words)"
LETTER_ERRORS, LETTERS = "(letter errors)", "(letters)"
"""Columns of counts; no reward can be called so."""
SENTENCES = {"sentence_bleu": "bleu", "sentence_chrf": "chrf"}
"""Rewards of sentences, and the scores of a corpus that belong to them."""
FEW = 3
"""What parts the clips into groups of fewer than this, on average, is not told unless it is asked for."""

Counts = Mapping[str, Sequence[float]]
"""Column of counts to the mean over the samples of each clip."""


def fitting(prompts: Sequence[Prompt], translated: bool) -> list[str]:
    """Rewards for clips where none are named: of translations, of references in several versions, or of transcripts."""
    loose = translated or any(p.task == "translate" or not isinstance(p.answer, str) for p in prompts)
    return list(SENTENCES) if loose else ["one_minus_wer", "exact_transcript"]


def counters(rewards: Sequence[str]) -> list[Scorer]:
    """The counts of transcripts, where a reward compares them."""
    from mmgrpo.scoring import Scorer
    from reward_models.rules.transcripts import letters_of

    if not (normal := normal_of(rewards)):
        return []
    letters, align = letters_of(normal), aligner(rewards)

    def of_kind(kind: str) -> Callable[[Sequence[Prompt], Sequence[Output]], list[float]]:
        return lambda prompts, outputs: [
            float(sum(place[0] == kind for place in align(prompt, output)))
            for prompt, output in zip(prompts, outputs, strict=True)
        ]

    counts = {
        SUBSTITUTED: of_kind("replace"),
        DELETED: of_kind("delete"),
        INSERTED: of_kind("insert"),
        WORDS: units_in(str.split, normal),
        LETTER_ERRORS: errors_in(letters, normal),
        LETTERS: units_in(letters, normal),
    }
    return [Scorer(name, fn, 0.0) for name, fn in counts.items()]


def described(
    prompts: Sequence[Prompt],
    texts: Sequence[str],
    counts: Counts,
    rewards: Sequence[str],
    groups: Sequence[str],
    worst: int,
) -> dict[str, Any]:
    """The whole, its groups by the values of ``groups`` (of meta), and the ``worst`` clips. Texts are first samples."""
    parts = _parts(prompts)
    names = list(groups) or [name for name, of in parts.items() if 1 < len(of) <= len(prompts) / FEW]
    for name in names:
        if name not in parts:
            raise ValueError(f"--groups: no clip has meta.{name}; there are {', '.join(parts) or 'none'}")
    return {
        **_scores(prompts, texts, counts, rewards, range(len(prompts))),
        "groups": {
            name: {value: _scores(prompts, texts, counts, rewards, places) for value, places in parts[name].items()}
            for name in names
        },
        "worst": _worst(prompts, texts, rewards, worst),
    }


def compared(before: Counts, after: Counts) -> dict[str, Any]:
    """Error rates of two models on the same clips: the paired differences."""
    from mmgrpo.evaluation import Counted, compare_rates

    found = {}
    for name, errors, units in (("wer", _errors, WORDS), ("cer", lambda counts: counts[LETTER_ERRORS], LETTERS)):
        if units in before:
            sides = [Counted(errors(counts), counts[units]) for counts in (before, after)]
            found[name] = compare_rates(*sides)
    return {name: {key: one[key] for key in ("difference", "relative")} for name, one in found.items() if one}


def _errors(counts: Counts) -> list[float]:
    return [sum(three) for three in zip(counts[SUBSTITUTED], counts[DELETED], counts[INSERTED], strict=True)]


def _scores(
    prompts: Sequence[Prompt], texts: Sequence[str], counts: Counts, rewards: Sequence[str], places: Sequence[int]
) -> dict[str, Any]:
    from mmgrpo.registry import parse
    from mmgrpo.report.statistics import bootstrap_ratio
    from reward_models.rules.reading import gold_texts
    from reward_models.rules.translation import corpus_interval

    some = {name: [column[place] for place in places] for name, column in counts.items()}
    found: dict[str, Any] = {"clips": len(places)}
    if some and sum(some[WORDS]):
        found["wer"] = bootstrap_ratio(_errors(some), some[WORDS]).as_dict()
        found["cer"] = bootstrap_ratio(some[LETTER_ERRORS], some[LETTERS]).as_dict()
        found |= {name.strip("()"): sum(some[name]) for name in (SUBSTITUTED, DELETED, INSERTED, WORDS)}
    for name, parameters in map(parse, rewards):
        if name in SENTENCES:
            references = [gold_texts(prompts[place]) for place in places]
            tokenize = parameters.get("tokenize", "13a")
            found[SENTENCES[name]] = corpus_interval(
                SENTENCES[name], references, [texts[place] for place in places], tokenize
            )
    return found


def _parts(prompts: Sequence[Prompt]) -> dict[str, dict[str, list[int]]]:
    """Names of meta to their values to the places of the clips that have them."""
    found: dict[str, dict[str, list[int]]] = {}
    for place, prompt in enumerate(prompts):
        for name, value in prompt.meta.items():
            if isinstance(value, str | int | float):
                found.setdefault(name, {}).setdefault(str(value), []).append(place)
    return found


def _worst(prompts: Sequence[Prompt], texts: Sequence[str], rewards: Sequence[str], most: int) -> list[dict[str, Any]]:
    """The clips with most wrong words; none where words are not compared."""
    from mmgrpo.report.audio_player import errors
    from mmgrpo.types import Text

    align = aligner(rewards)
    rows = []
    for prompt, text in zip(prompts, texts, strict=True):
        aligned = align(prompt, Text(text))
        rows.append({"id": prompt.id, "errors": errors(aligned), "said": text, "aligned": [list(p) for p in aligned]})
    return [row for row in sorted(rows, key=lambda row: -row["errors"])[:most] if row["errors"]]


def told(found: Mapping[str, Any]) -> Iterator[str]:
    """Tables for the terminal."""
    scores = [name for name in ("wer", "cer", "bleu", "chrf") if name in found]
    if not scores:
        return
    yield ""
    yield f"{'all together (95 %)':24} {'clips':>6} " + " ".join(f"{name:>24}" for name in scores)
    yield _line("all", found, scores)
    for name, parts in found["groups"].items():
        for value, part in parts.items():
            yield _line(f"{name} {value}", part, scores)
    if "wer" in found:
        kinds = ", ".join(f"{found[kind]:g} {kind}" for kind in ("substituted", "deleted", "inserted"))
        yield f"of {found['words']:g} words: {kinds}"
    for name, one in found.get("difference", {}).items():
        share = "" if one["relative"] is None else f" ({one['relative']:+.1%})"
        yield f"{name} against the other: {ranged(one['difference'], '+')}{share}, paired"
    if found["worst"]:
        yield from ("", "worst clips: {said for wanted}, [-left out-], [+inserted+]")
        yield from (f"{row['errors']:3} {row['id']}: {marked(row['aligned'])}" for row in found["worst"])


def _line(title: str, one: Mapping[str, Any], scores: Sequence[str]) -> str:
    cells = " ".join(f"{ranged(one[name]) if name in one else '–':>24}" for name in scores)
    return f"{title:24} {one['clips']:6} {cells}"


def marked(aligned: Aligned) -> str:
    """An alignment in plain text."""
    forms = {"equal": "{1}", "replace": "{{{1} for {0}}}", "delete": "[-{0}-]", "insert": "[+{1}+]"}
    return " ".join(forms[kind].format(*pair) for kind, *pair in aligned)


def ranged(one: Mapping[str, float], sign: str = "") -> str:
    """A mean or a score, and its interval."""
    return f"{one['mean']:{sign}.3f} [{one['low']:{sign}.3f}, {one['high']:{sign}.3f}]" if one["n"] else "–"
