"""Mark-up of the tab Visual: samples as cards that can be chosen, rewards of the chosen ones, the best of the first n.

Every text is escaped; braces too, since Gradio's components of HTML take them for templates.
"""

from __future__ import annotations

import html
import io
import math
from base64 import b64encode
from collections.abc import Mapping, Sequence

from mmgrpo.cli.demo.models import AFTER, BEFORE
from mmgrpo.cli.demo.visual_samples import Comparison, Sample, best

SIDES = {BEFORE: "base", AFTER: "trained"}
"""What the page calls the models."""
THUMBNAIL = 256
"""Longer side of the image of a card, in pixels."""
MAX_INLINE = 200_000
"""Bytes of a clip that plays in its card; of a longer one the card shows the first frame."""


def escaped(text: str) -> str:
    """A text as mark-up that shows it, whatever it contains."""
    return html.escape(text).replace("{", "&#123;").replace("}", "&#125;").replace("$", "&#36;")


def title(side: str, drawn: Comparison | None) -> str:
    """What a side is called: base, trained, or trained with the step of a run that goes on."""
    step = drawn.trained if drawn and side == AFTER and drawn.trained.isdecimal() else ""
    return SIDES[side] + (f", step {int(step):,}" if step else "")


def cards(drawn: Comparison | None, side: str, chosen: int | None) -> str:
    """All samples of a side, each a button with its rewards under it."""
    if drawn is None or side not in drawn.sides:
        return ""
    samples = drawn.sides[side]
    rest = drawn.count - len(samples)
    waiting = f'<p class="soft">{rest} more to draw</p>' if rest else ""
    inside = "".join(card(drawn, side, place, place == chosen) for place in range(len(samples)))
    label = f"Samples of the {title(side, drawn)} model"
    return (
        f"<h3>{title(side, drawn).capitalize()}</h3>"
        f'<div class="cards" role="group" aria-label="{label}">{inside}</div>{waiting}'
    )


def card(drawn: Comparison, side: str, place: int, chosen: bool) -> str:
    """One sample and its rewards; ``data-sample`` is its place."""
    sample = drawn.sides[side][place]
    rewards = rows(drawn, sample) if side in drawn.scored else '<p class="soft">rewards follow</p>'
    return (
        f'<button type="button" class="card" data-sample="{place}" aria-pressed="{str(chosen).lower()}">'
        f'{medium(sample, f"sample {place + 1}, {SIDES[side]}")}<span class="place">{place + 1}</span>'
        f"{rewards}</button>"
    )


def rows(drawn: Comparison, sample: Sample) -> str:
    """The rewards of a sample as a list; those that are trained on stand first and are bold."""
    items = []
    for name in ordered(drawn.weights):
        cell, reason = figure(sample.values.get(name, math.nan)), drawn.failures.get(name)
        cell = f'<span class="bad" title="{escaped(reason)}">failed</span>' if reason else cell
        kind = ' class="trained"' if drawn.weights[name] else ""
        items.append(f"<span{kind}><span>{escaped(name)}</span> <b>{cell}</b></span>")
    return f'<span class="rewards">{"".join(items)}</span>'


def ordered(weights: Mapping[str, float]) -> list[str]:
    """Rewards with a weight first, both kinds in the order of the run."""
    return sorted(weights, key=lambda name: not weights[name])


def figure(value: float) -> str:
    """A value with three digits; a dash for one that is not defined for the sample."""
    return "–" if math.isnan(value) else f"{value:.3g}"


def medium(sample: Sample, text: str) -> str:
    """The image of a card, or the clip, which plays."""
    if sample.clip and len(sample.clip) <= MAX_INLINE:
        source = f"data:video/mp4;base64,{b64encode(sample.clip).decode()}"
        return f'<video src="{source}" aria-label="{text}" muted loop autoplay playsinline></video>'
    picture = sample.picture.copy()
    picture.thumbnail((THUMBNAIL, THUMBNAIL))
    buffer = io.BytesIO()
    picture.save(buffer, "WEBP", quality=90)
    return f'<img src="data:image/webp;base64,{b64encode(buffer.getvalue()).decode()}" alt="{text}">'


def rewards_table(drawn: Comparison | None, chosen: Mapping[str, int]) -> str:
    """Every reward of the chosen sample of each side, and the difference."""
    if drawn is None:
        return ""
    sides = [side for side in chosen if side in drawn.scored]
    if not sides:
        return ""
    both = len(sides) == 2
    heads = "".join(f'<th scope="col">{title(s, drawn)} #{chosen[s] + 1}</th>' for s in sides)
    lines = []
    for name in ordered(drawn.weights):
        values = [drawn.sides[side][chosen[side]].values.get(name, math.nan) for side in sides]
        cells = "".join(f"<td>{'failed' if name in drawn.failures else figure(value)}</td>" for value in values)
        cells += f"<td>{change(values[1] - values[0], drawn.weights[name])}</td>" if both else ""
        note = " <small>trained on</small>" if drawn.weights[name] else ""
        lines.append(f'<tr><th scope="row">{escaped(name)}{note}</th>{cells}</tr>')
    last = '<th scope="col">change</th>' if both else ""
    table = f'<thead><tr><th scope="col">reward</th>{heads}{last}</tr></thead><tbody>{"".join(lines)}</tbody>'
    reasons = "".join(f"<li>{escaped(name)} failed: {escaped(why)}</li>" for name, why in drawn.failures.items())
    return f'<div class="wide"><table>{table}</table></div>' + (f'<ul class="note">{reasons}</ul>' if reasons else "")


def change(difference: float, weight: float) -> str:
    """A difference with its sign, coloured by whether it is what training wants."""
    if math.isnan(difference) or abs(difference) < 5e-7:
        return figure(abs(difference))
    text = f"{difference:+.3g}"
    good = text.startswith("-") == (weight < 0)
    return f'<span class="{"good" if good else "bad"}">{text}</span>'


def best_text(drawn: Comparison | None, reward: str, count: int) -> str:
    """The best of the first ``count`` samples of each side, in words, and how it grows with the count."""
    if drawn is None or reward not in drawn.weights:
        return ""
    lowest = drawn.wants_lowest(reward)
    parts = []
    for side in drawn.scored:
        found = best(drawn.sides[side], reward, count, lowest)
        words = f"<b>{figure(found[1])}</b> (sample {found[0] + 1})" if found else "<b>none</b> could be scored"
        parts.append(f"{title(side, drawn)} {words}")
    first = "sample 1 alone" if count == 1 else f"{'lowest' if lowest else 'best'} of the first {count}"
    text = f"<p>{escaped(reward)}, {first}: {', '.join(parts)}</p>"
    return text + curve(drawn, reward, count)


def curve(drawn: Comparison, reward: str, count: int) -> str:
    """The best of the first n against n, a line for each side, as SVG; empty where it is the same for all."""
    lines: dict[str, list[tuple[int, float]]] = {}
    lowest = drawn.wants_lowest(reward)
    for side in drawn.scored:
        found = [(n, best(drawn.sides[side], reward, n, lowest)) for n in range(1, drawn.count + 1)]
        lines[side] = [(n, one[1]) for n, one in found if one]
    values = [value for points in lines.values() for _, value in points]
    if drawn.count < 2 or not values or min(values) == max(values):
        return ""
    low, high = min(values), max(values)

    def place(n: int, value: float) -> str:
        return f"{20 + 260 * (n - 1) / (drawn.count - 1):.1f},{70 - 50 * (value - low) / (high - low):.1f}"

    drawing = "".join(
        f'<polyline class="{side}" points="{" ".join(place(*point) for point in points)}"/>'
        for side, points in lines.items()
    )
    x = place(count, low).split(",")[0]
    words = f"best of the first n samples by {escaped(reward)}, n from 1 to {drawn.count}: {legend(lines)}"
    names = "".join(f"<span class={side}>{title(side, drawn)}</span>" for side in lines)
    return (
        f'<figure class="curve"><svg viewBox="0 0 300 90" role="img" aria-label="{words}">'
        f'<line x1="{x}" x2="{x}" y1="12" y2="76"/>{drawing}'
        f'<text x="20" y="88">n = 1</text><text x="280" y="88" text-anchor="end">{drawn.count}</text></svg>'
        f"<figcaption>{names}</figcaption></figure>"
    )


def legend(lines: Mapping[str, Sequence[tuple[int, float]]]) -> str:
    """The ends of the lines in words, for who cannot see them."""
    ends = [f"{SIDES[side]} from {figure(p[0][1])} to {figure(p[-1][1])}" for side, p in lines.items() if p]
    return ", ".join(ends)


def status(drawn: Comparison | None, doing: str = "") -> str:
    """What is going on, in a line; of a pair without a trained model, that there is none."""
    if drawn is None:
        return f'<p class="soft" role="status">{escaped(doing)}</p>'
    noise = f"seed {drawn.seed}, noise 1 to {drawn.count}" if drawn.count > 1 else f"seed {drawn.seed}"
    both = len(drawn.models) == 2
    same = ", the same for both models" if both else ""
    several = "1 sample" if drawn.total == 1 else f"{drawn.total} samples"
    text = f"{several}, {noise}{same}." if drawn.done else f"{drawn.drawn} of {several} drawn."
    alone = "" if both else " There is no trained model yet, so that only the base is shown."
    return f'<p class="soft" role="status">{escaped(f"{text}{alone} {doing}".strip())}</p>'
