"""What the tabs of language and speech models share: samples of both sides of a pair, rewards, and mark-up."""

from __future__ import annotations

import json
import math
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr
from PIL import Image as Pil

from mmgrpo.cli.demo.models import AFTER, BEFORE, Opened, Pair
from mmgrpo.cli.errors import is_user_error
from mmgrpo.evaluation import annotate
from mmgrpo.policies.token import TokenPolicy
from mmgrpo.report.audio_player import sound_uri
from mmgrpo.report.figures import number
from mmgrpo.report.media import FRAMES, Medium, boxed_picture, enlarge, jpeg, picture_uri, strip
from mmgrpo.report.plots import to_pil
from mmgrpo.report.render import render
from mmgrpo.rewards import scorer
from mmgrpo.scoring import Scorer
from mmgrpo.scoring.isolation import score_column
from mmgrpo.types import Media, Output, Policy, Prompt, Request

TITLES = {BEFORE: "Base", AFTER: "Trained"}
"""Headings of the sides of a pair."""
AT_ONCE = 4
"""Samples between two looks at Cancel; a larger model then waits for at most so many."""
MOST = 16
"""Largest number of samples of a side."""
EXAMPLES = 24
"""Held-out prompts that are offered, evenly spaced over the file."""
MAX_TEXT = 4000
"""Characters of a text that a visitor writes."""
SIDE = 320
"""Longer side of an image in CSS pixels; it fits a narrow screen."""
PROGRESS: Any = gr.Progress()
"""A default argument of an event's function, by which Gradio hands it the progress bar."""
OWN = ""
"""The key of no example: a visitor's own prompt."""

CSS = """
* { --quiet: color-mix(in srgb, var(--body-text-color) 72%, transparent); }
.unseen { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
.sides { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(19rem, 100%), 1fr)); gap: 1rem 1.5rem; }
.sides > section { min-width: 0; overflow-wrap: anywhere; }
h3 { margin: 0 0 .2rem; }
p { margin: 0 0 .4rem; }
.soft, small, sup { color: var(--quiet); font-size: .85em; }
article { border: 1px solid var(--border-color-primary); border-radius: 8px; padding: .6rem .8rem; margin: .5rem 0;
  display: flow-root; }
article img { float: right; max-width: 45%; margin: 0 0 .3rem .8rem; }
.text { white-space: pre-wrap; max-height: 24rem; overflow-y: auto; font-size: 1.05em; }
.tag { color: var(--quiet); font-size: .8em; }
.rewards { display: flex; flex-wrap: wrap; gap: .1rem 1rem; margin: .3rem 0 0; padding: 0; list-style: none;
  font-size: .85em; color: var(--quiet); }
.rewards b { color: var(--body-text-color); font-variant-numeric: tabular-nums; font-weight: 600; }
.failed, .rewards .failed { color: #c0492f; }
summary { cursor: pointer; }
details { margin: .3rem 0; }
img { display: block; max-width: 100%; height: auto; border-radius: 4px; }
img[width] { image-rendering: pixelated; }
audio { width: min(24rem, 100%); }
.aligned { line-height: 2; }
ins, del { text-decoration-thickness: 2px; text-underline-offset: .2em; }
ins { text-decoration-line: underline; }
ins.replace { color: #b06f00; }
ins.insert { color: #c0492f; }
del { color: var(--quiet); margin-left: .25em; text-decoration-line: line-through; }
del.delete { color: #c0492f; margin-left: 0; }
.bar { fill: var(--color-accent); }
svg { display: block; height: 56px; margin: .3rem 0; }
"""
"""Rules of the mark-up of both tabs, which Gradio confines to the component that is given them."""


@dataclass(frozen=True)
class Drawn:
    """Samples of one side; without rewards as long as they are not computed."""

    outputs: Sequence[Output]
    rewards: Sequence[Mapping[str, float]] = ()
    """Values by name for each sample; NaN where a reward failed."""
    notes: Sequence[Mapping[str, Any]] = ()
    """Annotations (``Scorer.annotate``) of each sample."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Why a reward failed, by its name."""


@dataclass
class Examples:
    """Held-out prompts of pairs, read when they are first needed."""

    opened: Opened
    known: dict[str, dict[str, Prompt]] = field(default_factory=dict)

    def of(self, name: str) -> dict[str, Prompt]:
        """Examples of a pair by key, at most ``EXAMPLES``; none if its held-out file cannot be read here."""
        pair = look_up(self.opened, name)
        if name not in self.known:
            try:
                prompts = pair.examples(sys.maxsize)
            except ImportError:  # a library that decodes the media is not installed
                prompts = []
            count = min(EXAMPLES, len(prompts))
            places = [round(i * (len(prompts) - 1) / max(1, count - 1)) for i in range(count)]
            self.known[name] = {str(i): prompts[place] for i, place in enumerate(places)}
        return self.known[name]

    def get(self, name: str, key: str) -> Prompt | None:
        """An example; None for ``OWN``."""
        if key == OWN:
            return None
        if key not in (known := self.of(name)):
            raise ValueError(f"example: got {key!r:.80}, expected one of the {len(known)} examples; choose one again")
        return known[key]


def look_up(opened: Opened, name: str) -> Pair:
    """A pair by the name that the page shows; nothing else opens anything."""
    if name not in opened.pairs:
        raise ValueError(f"model: got {name!r:.80}, expected one of {', '.join(opened.pairs) or 'none'}; choose one")
    return opened.pairs[name]


def check_text(text: str, what: str) -> str:
    """The text; ValueError where it is too long."""
    if len(text) > MAX_TEXT:
        raise ValueError(f"{what}: got {len(text):,} characters, expected at most {MAX_TEXT:,}; shorten it")
    return text


def draw_sides(
    opened: Opened, name: str, prompt: Prompt, *, count: int = 1, temperature: float | None = None, seed: int = 0
) -> Iterator[tuple[float, str, dict[str, Drawn]]]:
    """Sample ``count`` outputs of every side of a pair and score them with its rewards.

    Yields the fraction that is done, what comes next, and the samples so far by side. Equal seeds have equal noise on
    both sides. ``temperature`` None is that of the family's evaluation. Between two results nothing is locked.
    """
    pair, drawn = look_up(opened, name), {}
    sizes = [min(AT_ONCE, count - start) for start in range(0, count, AT_ONCE)]
    total, done = len(pair.sides) * (len(sizes) + 1), 0
    for side in pair.sides:
        title, outputs = TITLES[side], []
        for slot, size in enumerate(sizes):
            verb = "is sampling" if opened.holds(name, side) else "is being loaded"
            yield done / total, f"{title} {verb}: {len(outputs)} of {count}", drawn
            with opened.lock:
                outputs += sample(opened.policy(name, side), Request([prompt], [slot], size, seed), temperature)
            drawn = {**drawn, side: Drawn(list(outputs))}
            done += 1
        yield done / total, f"the rewards of {title} are being computed", drawn
        with opened.lock:
            drawn = {**drawn, side: scored(pair, prompt, outputs, opened.device)}
        done += 1
    yield 1.0, "", drawn


def sample(policy: Policy, request: Request, temperature: float | None) -> Sequence[Output]:
    """The outputs of a request, at another temperature where one is given."""
    if not isinstance(policy, TokenPolicy):
        return policy.sample(request)
    usual = policy.evaluation_temperature
    policy.evaluation_temperature = usual if temperature is None else temperature
    try:
        return policy.sample(request)
    finally:
        policy.evaluation_temperature = usual
        policy.feature_cache.entries.clear()  # visitors' prompts do not recur


def scored(pair: Pair, prompt: Prompt, outputs: Sequence[Output], device: str) -> Drawn:
    """Outputs with the rewards of a pair. A reward that fails has no value, and its reason is kept."""
    rewards, reasons = scorers_of(tuple(map(str, pair.config.rewards)), device)
    reasons, prompts = dict(reasons), [prompt] * len(outputs)
    rows: list[dict[str, float]] = [dict.fromkeys(reasons, math.nan) for _ in outputs]
    for one in rewards:
        values = [math.nan] * len(outputs)
        if one.reads_rollout:
            reasons[one.name] = "it reads the decisions of training"
        else:
            try:
                values = score_column(one.name, one.fn, prompts, outputs, one.trusted, one.elsewhere)
            except Exception as error:
                reasons[one.name] = in_words(error.__cause__ or error)
        for row, value in zip(rows, values, strict=True):
            row[one.name] = value if math.isfinite(value) else math.nan
    return Drawn(list(outputs), rows, annotate(rewards, prompts, outputs), reasons)


@lru_cache(maxsize=8)
def scorers_of(specs: tuple[str, ...], device: str) -> tuple[list[Scorer], dict[str, str]]:
    """The rewards of a configuration, loaded once, and the reasons of those that cannot be."""
    rewards, reasons = [], {}
    for spec in specs:
        try:
            rewards.append(scorer(spec, device))
        except Exception as error:
            reasons[spec] = in_words(error)
    return rewards, reasons


def in_words(error: BaseException, file: str = "") -> str:
    """An error in one line, with the name of an upload in place of its path."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text.replace(file, Path(file).name)


@contextmanager
def one_line_errors(file: str = "") -> Iterator[None]:
    """Turn errors of the block into messages on the page; the traceback of a defect goes to the terminal."""
    try:
        yield
    except gr.Error:
        raise
    except Exception as error:
        kind = "" if is_user_error(error) else f"{type(error).__name__}: "
        if kind:
            traceback.print_exc()
        message = escape(f"{kind}{in_words(error, file)}"[:1000])
        raise gr.Error(message, print_exception=False) from error


def refused(error: Exception, file: str) -> str:
    """Mark-up of why an upload cannot be used."""
    return f'<p role="alert" class="failed">{escape(in_words(error, file))}</p>'


def shown_answer(answer: Any) -> str:
    """A reference answer as the page shows it; empty for none."""
    return "" if answer is None else answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)


def medium(media: Media) -> str:
    """Mark-up of an image, a strip of the frames of a clip, or a player.

    A medium that cannot be read, or is beyond the limits of data, is ``Unreadable``.
    """
    from pipelines.samples import sound_of
    from pipelines.vlm.media import read_video

    if media.kind == "audio":
        content = sound_of(media)
        return show(Medium("sound", "the sound", sound_uri(content.content, content.suffix)))
    if media.kind == "video":
        frames = read_video(media, max_frames=FRAMES).frames
        sheet = strip([enlarge(Pil.fromarray(frame.permute(1, 2, 0).numpy())) for frame in frames])
        return show(Medium("picture", f"{len(frames)} frames of the clip", picture_uri(jpeg(sheet), "image/jpeg")))
    return boxed(small(media), {})


def small(media: Media) -> Pil.Image:
    """An image of at most ``SIDE`` pixels, enlarged where it is tiny: lines of boxes would cover much of it."""
    from pipelines.vlm.media import read_image

    picture = to_pil(read_image(media))
    picture.thumbnail((SIDE, SIDE))
    return enlarge(picture)


def boxed(picture: Pil.Image, boxes: Mapping[str, Any]) -> str:
    """Mark-up of an image with boxes."""
    alt = "the picture with boxes" if boxes else "the picture"
    return show(Medium("picture", alt, picture_uri(jpeg(boxed_picture(picture, boxes)), "image/jpeg")))


def show(one: Medium) -> str:
    """Mark-up of an image or a player."""
    return render("medium.html", {"medium": one})


def rewards_list(values: Mapping[str, float], reasons: Mapping[str, str], *facts: str) -> str:
    """Mark-up of rewards by name, then of ``facts``; a reward without a value is shown as failed."""
    items = []
    for name, value in values.items():
        title = f' title="{escape(reasons.get(name, "no value for this output"))}"'
        text = '<b class="failed">failed</b>' if math.isnan(value) else f"<b>{number(value)}</b>"
        items.append(f"<li{title if math.isnan(value) else ''}>{escape(name)} {text}</li>")
    items += [f"<li>{escape(fact)}</li>" for fact in facts]
    return f'<ul class="rewards">{"".join(items)}</ul>' if items else ""


def means(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of every reward over the samples that it scored; NaN where there are none."""
    columns = {name: [row[name] for row in rows if not math.isnan(row[name])] for name in (rows[0] if rows else {})}
    return {name: sum(column) / len(column) if column else math.nan for name, column in columns.items()}


def reasons_list(reasons: Mapping[str, str]) -> str:
    """Mark-up of why rewards failed, folded away."""
    if not reasons:
        return ""
    items = "".join(f"<p>{escape(name)}: {escape(reason[:400])}</p>" for name, reason in reasons.items())
    return f"<details><summary>why rewards failed</summary><small>{items}</small></details>"


def sides(columns: Mapping[str, str]) -> str:
    """Mark-up of the sides beside each other, below each other on a narrow screen."""
    parts = [
        f'<section aria-label="{TITLES[side]}"><h3>{TITLES[side]}</h3>{text}</section>'
        for side, text in columns.items()
    ]
    return f'<div class="sides">{"".join(parts)}</div>' if parts else ""


def status(text: str, seen: bool = True) -> str:
    """Mark-up of what happens now, which a screen reader announces; others see the progress bar in its place."""
    return f'<p role="status" aria-live="polite"{"" if seen else " class=unseen"}>{escape(text)}</p>'
