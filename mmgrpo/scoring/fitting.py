"""Whether rewards can score the outputs of a run and its rows, checked before a model is loaded."""

from __future__ import annotations

import functools
import inspect
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.util import find_spec

from mmgrpo.config import plugins
from mmgrpo.data.columns import likely
from mmgrpo.scoring import Scorer, trl
from mmgrpo.scoring.isolation import in_words
from mmgrpo.scoring.manifest import MEDIA, Manifest, RewardEntry, absent, obstacle
from mmgrpo.types import Prompt, Text

_OF_RUN: ContextVar[Sequence[Scorer]] = ContextVar("rewards of the run that is being loaded", default=())


@contextmanager
def check_rows_with(scorers: Sequence[Scorer]) -> Iterator[None]:
    """Within the block, what loads a run checks its rows with these rewards (``refuse_rows``) before its model."""
    token = _OF_RUN.set(scorers)
    try:
        yield
    finally:
        _OF_RUN.reset(token)


def refuse_rows(splits: Mapping[str, Sequence[Prompt]], outputs: str = "", allowed: float = 0.0) -> list[str]:
    """``refuse_unfit`` with the rewards of the run that is being loaded."""
    return refuse_unfit(_OF_RUN.get(), splits, outputs, allowed)


TRIED = 10_000
"""Largest number of rows of a split whose reference answers are tried; of more, evenly spaced ones."""

LISTED = 5
"""Rows that a message names."""

ANSWERS = (Text("<answer>1</answer>"), Text("1"))
"""Answers with which reference answers are tried."""


def refuse_unfit(
    scorers: Sequence[Scorer], splits: Mapping[str, Sequence[Prompt]], outputs: str = "", allowed: float = 0.0
) -> list[str]:
    """ValueError for rewards that cannot score the run's ``outputs`` (Text, Image, Video or Audio; empty: unknown),
    that need a package or a column that is missing, or that have no score for more than the share ``allowed`` of the
    rows of a split. Returns a sentence for every split with such rows, and one for media that no reward reads.
    """
    notes = unread_media(scorers, splits, outputs)
    for scorer in scorers:
        manifest = scorer.manifest
        if manifest is not None and outputs and outputs not in manifest.scores:
            raise ValueError(wrong_kind(scorer.name, manifest, outputs))
        if manifest is not None and any(find_spec(name) is None for name in manifest.packages):
            raise ValueError(f"rewards: '{scorer.name}' {obstacle(manifest)}")
        for name, prompts in splits.items():
            if objection := trl.missing_column(scorer.name, scorer.needs, spaced_prompts(prompts)):
                raise ValueError(f"{name}: {objection}")
            if scorer.weight == 0:
                continue
            rows = spaced_prompts(prompts)
            unfit = list(unscorable(scorer, rows))
            if unfit:
                text = f"{name}: {listing(scorer.name, unfit, len(rows))}"
                if len(unfit) > allowed * len(rows):
                    raise ValueError(text)
                notes.append(f"{text}; they are not trained")
    return notes


def unread_media(scorers: Sequence[Scorer], splits: Mapping[str, Sequence[Prompt]], outputs: str) -> list[str]:
    """A sentence for images, videos or audio made from media of their prompts (an image to edit, a first frame, a
    voice) where none of the rewards reads these; with the names of rewards that do. One without a manifest may."""
    if (
        outputs not in KEPT
        or not scorers
        or any(scorer.manifest is None or MEDIA & {*scorer.manifest.reads} for scorer in scorers)
    ):
        return []
    rows = [prompt for prompts in splits.values() for prompt in spaced_prompts(prompts)]
    with_media = sum(bool(prompt.media) for prompt in rows)
    if not with_media:
        return []
    table = plugins.table(plugins.REWARDS)
    manifests = {name: row.read_manifest() for name, row in table.items() if isinstance(row, RewardEntry)}
    known = [
        name
        for name, manifest in manifests.items()
        if manifest and outputs in manifest.scores and "media" in manifest.reads
    ]
    return [
        f"rewards: {', '.join(scorer.name for scorer in scorers)}: {with_media} of {len(rows)} rows give media to "
        f"start from, which none of these rewards reads, so {KEPT[outputs]} costs nothing; add one that does: "
        f"{', '.join(known)}, or a function of your own"
    ]


KEPT = {
    "Image": "repainting what should stay",
    "Video": "leaving the given image",
    "Audio": "leaving the given voice or music",
}
"""What a reward of outputs of a kind overlooks that does not read the media of the prompt."""


def downloads(scorers: Sequence[Scorer], environment: Mapping[str, str]) -> list[str]:
    """A sentence for every reward whose weights are not on this machine: they are downloaded once a model is loaded and
    its first samples are drawn. FileNotFoundError where ``environment`` forbids that."""
    notes = []
    for scorer in scorers:
        sources = scorer.manifest.weights if scorer.manifest else {}
        if not isinstance(scorer.fn, functools.partial):
            continue
        defaults = {name: parameter.default for name, parameter in inspect.signature(scorer.fn.func).parameters.items()}
        named = {value for value in (defaults | scorer.fn.keywords).values() if isinstance(value, str)}
        absences = (absent(source, files) for source, files in sources.items() if source in named)
        notes += [f"rewards: '{scorer.name}' {reason}" for reason in absences if reason][:1]
    offline = [name for name in OFFLINE if environment.get(name, "").upper() in ("1", "ON", "YES", "TRUE")]
    if notes and offline:
        raise FileNotFoundError(f"{notes[0]}, which {offline[0]} forbids; name a folder that has them: weights=...")
    return notes


OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
"""Variables with which nothing is asked of the hub."""


def spaced_prompts(prompts: Sequence[Prompt]) -> list[Prompt]:
    """At most ``TRIED`` prompts, evenly spaced."""
    step = -(-len(prompts) // TRIED) or 1
    return [prompts[place] for place in range(0, len(prompts), step)]


def wrong_kind(name: str, manifest: Manifest, outputs: str) -> str:
    """The objection to a reward of other outputs than the run's."""
    pair = manifest.scores == ("Image",) and outputs == "Video"
    hint = f'; score the frames of a video with frames(reward="{name}")' if pair else ""
    return (
        f"rewards: '{name}' scores {', '.join(manifest.scores)}, and the model makes {outputs}{hint}; "
        f"'mmgrpo rewards' lists what each reward scores"
    )


def unscorable(scorer: Scorer, prompts: Sequence[Prompt]) -> Iterator[tuple[Prompt, str]]:
    """The rows that a reward cannot score whatever the output is, each with the reason."""
    for prompt in prompts:
        if reason := row_objection(scorer, prompt):
            yield prompt, reason


def row_objection(scorer: Scorer, prompt: Prompt) -> str:
    """Why a reward cannot score a row, whatever the output is; empty if it can, or if that is not known."""
    if scorer.check_row is not None:
        try:
            scorer.check_row(prompt)
        except ValueError as error:
            return str(error)
        return ""
    manifest = scorer.manifest
    if manifest is None or not manifest.reads:
        return ""
    if not any(_has(prompt, key) for key in manifest.reads):
        pair = likely("answer", prompt.meta) if "answer" in manifest.reads else ""
        hint = f"; is it in another column: data.columns {pair}?" if pair else ""
        return f"prompt '{prompt.id}' has no {' or '.join(manifest.reads)}{hint}"
    return _reference_objection(scorer, manifest, prompt)


def _reference_objection(scorer: Scorer, manifest: Manifest, prompt: Prompt) -> str:
    """Why a verifier of texts cannot use the reference answer of a row: what it raises for any answer, or that it gives
    none a score."""
    reads_reference = "answer" in manifest.reads and "text" not in manifest.reads
    if not reads_reference or manifest.group or manifest.weights or "Text" not in manifest.scores or scorer.elsewhere:
        return ""
    try:
        values = scorer.fn([prompt] * len(ANSWERS), list(ANSWERS))
    except ValueError as error:
        return str(error)
    except Exception as error:
        return in_words(error)
    if all(value is not None and math.isnan(value) for value in values):
        return f"prompt '{prompt.id}': its reference answer {str(prompt.answer)[:80]!r} cannot be read"
    return ""


def _has(prompt: Prompt, key: str) -> bool:
    # Media may also come from a parameter of the reward or from the policy.
    known = {"text": bool(prompt.text), "answer": prompt.answer is not None, "media": True, "rollout": True}
    known |= {"reward": True, "task": bool(prompt.task), "meta.task": bool(prompt.task)}
    return known[key] if key in known else prompt.meta.get(key.removeprefix("meta.")) is not None


def listing(name: str, unfit: Sequence[tuple[Prompt, str]], rows: int) -> str:
    """One sentence for all rows that a reward cannot score, the reason once for all that share it."""
    reasons: dict[str, list[str]] = defaultdict(list)
    for prompt, reason in unfit:
        reasons[reason.replace(f"'{prompt.id}'", "").replace(repr(prompt.text[:80]), "")].append(prompt.id)
    shown = list(reasons.values())[:LISTED]
    first = [
        next(reason for prompt, reason in unfit if prompt.id == ids[0])
        + (f" (and {len(ids) - 1} more: {', '.join(ids[1:LISTED])}{', ...' * (len(ids) > LISTED)})" * (len(ids) > 1))
        for ids in shown
    ]
    more = f"; and {len(reasons) - LISTED} other reasons" if len(reasons) > LISTED else ""
    return f"reward '{name}' cannot score {len(unfit)} of {rows} rows: {'; '.join(first)}{more}"
