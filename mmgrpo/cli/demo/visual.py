"""The tab Visual: images and videos of a prompt, before and after training, from the same noise."""

from __future__ import annotations

import io
import math
import shlex
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.processing_utils import save_bytes_to_cache
from gradio.utils import get_upload_folder
from PIL import Image as Pil

from mmgrpo.cli.demo.compare import MOST, TITLES, Comparison, compare, look_up
from mmgrpo.cli.demo.models import AFTER, BEFORE, Opened, Pair
from mmgrpo.cli.demo.parts import (
    PROGRESS,
    QUIET,
    at_cancel,
    at_choice,
    checked_text,
    computing,
    digits,
    escaped,
    one_line_errors,
)
from mmgrpo.report.plots import to_pil
from mmgrpo.types import Image, Media, Output, Prompt, Turn, Video

NOTHING = (
    "No generator of images or videos is open. Train one (`mmgrpo train` takes minutes), and open its run: "
    "`mmgrpo demo runs/demo`."
)
MAX_PROMPT = 2_000
"""Characters of a prompt."""
HELDOUT = 200
"""Held-out prompts that are offered."""
LARGE, THUMBNAIL = 448, 256
"""Height in pixels to which small images are enlarged, by a whole factor, and the longer side of the image of a
card."""
MAX_INLINE = 200_000
"""Bytes of a video that plays in its card; of a longer one the card shows the first frame."""
CHOOSE = """
element.addEventListener('click', event => {
  const card = event.target.closest('[data-sample]');
  if (card) trigger('click', {sample: Number(card.dataset.sample)});
});
const still = matchMedia('(prefers-reduced-motion: reduce)');
watch('value', () => { if (still.matches) element.querySelectorAll('video').forEach(video => video.pause()); });
"""
"""A click on a card, or a key, tells which sample it is."""


@dataclass(frozen=True)
class Sample:
    """An image or a video, as it is shown."""

    image: Pil.Image
    """The image, or the first frame; small ones with every pixel repeated."""
    video: bytes = b""
    """An mp4 file, where it is a video."""


@dataclass(frozen=True)
class Drawn:
    """A comparison, and its samples as they are shown."""

    made: Comparison
    shown: Mapping[str, Sequence[Sample]]

    def value(self, side: str, place: int, reward: str) -> float:
        """The value of a reward for a sample; NaN where there is none."""
        rows = self.made.sides[side].rewards
        return rows[place].get(reward, math.nan) if place < len(rows) else math.nan

    def best(self, side: str, reward: str, count: int) -> tuple[int, float] | None:
        """Place and value of the best of the first ``count`` samples by a reward (the lowest where training lowers it),
        the first of equal ones; None if none of them could be computed."""
        values = [(place, self.value(side, place, reward)) for place in range(min(count, len(self.shown[side])))]
        scored = [(place, value) for place, value in values if not math.isnan(value)]
        return (min if self.made.weights[reward] < 0 else max)(scored, key=lambda one: one[1], default=None)

    def rewards(self) -> list[str]:
        """Rewards with a weight first, both kinds in the order of the run."""
        return sorted(self.made.weights, key=lambda name: not self.made.weights[name])


# ---- drawing


def prompt_of(pair: Pair, text: str, image: str = "") -> Prompt:
    """The prompt of a text and, where the model takes one, of the file of an image.

    A text of the held-out prompts is that prompt, with what rewards compare with and its image.
    """
    text, use = text.strip(), takes_image(pair)
    if not text:
        raise ValueError("the prompt is empty: type one, or choose a held-out prompt")
    checked_text(text, "the prompt", MAX_PROMPT)
    known = [prompt for prompt in pair.examples(HELDOUT) if prompt.text == text]
    found = known[0] if known else embedded_prompt(pair, text)
    if image and not use:
        raise ValueError(f"the family '{pair.family.name}' draws from words alone; remove the image")
    if image:
        from mmgrpo.data.images import decode_image

        return replace(found, turns=(Turn("user", (Media("image", decode_image(image)), text)),))
    if use == "required" and not found.media:
        raise ValueError(
            f"the family '{pair.family.name}' starts from an image: upload one, or choose a held-out prompt "
            "that has its own"
        )
    return found


def takes_image(pair: Pair) -> str:
    """The image that a prompt has in addition: ``required``, ``optional``, or empty where the model takes none."""
    return getattr(pair.family, "image_input", "")


def embedded_prompt(pair: Pair, text: str) -> Prompt:
    """The prompt of a text. Rewards of embedded scenes and videos compare with what its words say."""
    from mmgrpo.toy import scenes, videos

    for reward in pair.config.rewards:
        try:
            if reward.startswith("scene_"):
                return scenes.prompt(scenes.parse(text))
            if reward.startswith("film_"):
                return videos.prompt(videos.parse(text))
        except ValueError:
            break  # another sentence: those rewards fail, and say so
    return Prompt(text, id="demo")


def shown(output: Output) -> Sample:
    """An image or a video as it is shown."""
    from pipelines.visual.clips import enlarged, mp4

    if isinstance(output, Video):
        return Sample(enlarged(to_pil(Image(output.frames[0])), LARGE), mp4(output))
    if not isinstance(output, Image):
        raise TypeError(f"got {type(output).__name__}, expected an image or a video")
    return Sample(enlarged(to_pil(output), LARGE))


def run(
    opened: Opened,
    name: str | None,
    text: str | None,
    image: str | None,
    seed: float | int | None,
    count: float | int,
    progress: Any = PROGRESS,
) -> Iterator[tuple[Any, ...]]:
    """Draw samples of both models; all outputs of the tab after each batch."""
    nothing, samples = (gr.skip(),) * 12, {}
    with one_line_errors():
        try:
            pair = look_up(opened, name)
            prompt = prompt_of(pair, text or "", image or "")
            yield None, status(None, "Loading the model …"), *nothing
            for made in compare(opened, pair.name, prompt, seed=int(seed or 0), count=int(count)):
                for side, one in made.sides.items():
                    old = samples.get(side, [])
                    samples = {**samples, side: [*old, *map(shown, one.outputs[len(old) :])]}
                progress((made.drawn, made.total), desc=made.doing, unit="samples")
                drawn = Drawn(made, samples)
                yield drawn, status(drawn), *view(drawn, dict.fromkeys(samples, 0)), *finished(pair, drawn)
        except Exception:
            yield gr.skip(), status(None, "Nothing was drawn."), *nothing
            raise


def command(pair: Pair, drawn: Drawn) -> str:
    """The command that draws the same samples, by the models of a run; empty where there is no run."""
    made = drawn.made
    if pair.run is None:
        return ""
    folder = pair.run.relative_to(Path.cwd()) if pair.run.is_relative_to(Path.cwd()) else pair.run
    weights = f" --weights {made.trained}" if made.trained.isdecimal() else "" if made.trained else None
    sides = " --weights untrained" if weights is None else f"{weights} --before"
    words = " ".join([shlex.quote(made.prompt.text)] * made.count)
    return f"mmgrpo sample --run {shlex.quote(str(folder))}{sides} --seed {made.seed} --prompts {words}"


# ---- what is shown


def view(drawn: Drawn | None, chosen: Mapping[str, int]) -> list[Any]:
    """The chosen samples large, their rewards, and the cards of both sides; ``chosen`` are places by side."""
    places = {side: place for side, place in chosen.items() if drawn and place < len(drawn.shown.get(side, ()))}
    samples = {side: drawn.shown[side][place] for side, place in places.items()} if drawn else {}
    videos, both = any(one.video for one in samples.values()), len(samples) == 2
    images = {} if videos else {side: sample.image for side, sample in samples.items()}
    pair, alone = (images[BEFORE], images[AFTER]) if len(images) == 2 else None, images.get(BEFORE)
    return [
        gr.update(value=pair, visible=not videos and (both or not samples)),
        gr.update(value=None if pair else alone, visible=bool(images) and not both),
        *(player(samples.get(side)) for side in TITLES),
        rewards_table(drawn, places),
        *(cards(drawn, side, places.get(side)) for side in TITLES),
    ]


def player(sample: Sample | None) -> dict[str, Any]:
    """The player of a video, hidden where there is none."""
    if sample is None or not sample.video:
        return gr.update(value=None, visible=False)
    # By its content in Gradio's own cache, which it serves and empties.
    file = save_bytes_to_cache(sample.video, "video.mp4", get_upload_folder())
    return gr.update(value=file, visible=True)


def title(side: str, drawn: Drawn | None) -> str:
    """What a side is called: base, trained, or trained with the step of a run that goes on."""
    step = drawn.made.trained if drawn and side == AFTER and drawn.made.trained.isdecimal() else ""
    return TITLES[side].lower() + (f", step {int(step):,}" if step else "")


def cards(drawn: Drawn | None, side: str, chosen: int | None) -> str:
    """All samples of a side, each a button with its rewards under it; ``data-sample`` is its place."""
    if drawn is None or side not in drawn.shown:
        return ""
    inside = ""
    for place, sample in enumerate(drawn.shown[side]):
        follow = '<p class="soft">rewards follow</p>'
        rewards = card_rewards(drawn, side, place) if side in drawn.made.scored else follow
        inside += (
            f'<button type="button" class="card" data-sample="{place}" aria-pressed="{str(place == chosen).lower()}">'
            f'{card_medium(sample, f"sample {place + 1}, {title(side, None)}")}<span class="place">{place + 1}</span>'
            f"{rewards}</button>"
        )
    rest = drawn.made.count - len(drawn.shown[side])
    waiting = f'<p class="soft">{rest} more to draw</p>' if rest else ""
    name = title(side, drawn)
    group = f'<div class="cards" role="group" aria-label="Samples of the {name} model">{inside}</div>'
    return f"<h3>{name.capitalize()}</h3>{group}{waiting}"


def card_rewards(drawn: Drawn, side: str, place: int) -> str:
    """The rewards of a sample as a list; those that are trained on stand first and are bold."""
    items = []
    for name in drawn.rewards():
        cell, reason = digits(drawn.value(side, place, name)), drawn.made.failures.get(name)
        cell = f'<span class="bad" title="{escaped(reason)}">failed</span>' if reason else cell
        kind = ' class="trained"' if drawn.made.weights[name] else ""
        items.append(f"<span{kind}><span>{escaped(name)}</span> <b>{cell}</b></span>")
    return f'<span class="rewards">{"".join(items)}</span>'


def card_medium(sample: Sample, text: str) -> str:
    """The image of a card, or the video, which plays."""
    if sample.video and len(sample.video) <= MAX_INLINE:
        source = f"data:video/mp4;base64,{b64encode(sample.video).decode()}"
        return f'<video src="{source}" aria-label="{text}" muted loop autoplay playsinline></video>'
    image, buffer = sample.image.copy(), io.BytesIO()
    image.thumbnail((THUMBNAIL, THUMBNAIL))
    image.save(buffer, "WEBP", quality=90)
    return f'<img src="data:image/webp;base64,{b64encode(buffer.getvalue()).decode()}" alt="{text}">'


def rewards_table(drawn: Drawn | None, chosen: Mapping[str, int]) -> str:
    """Every reward of the chosen sample of each side, and the difference."""
    sides = [side for side in chosen if drawn and side in drawn.made.scored]
    if not drawn or not sides:
        return ""
    heads = "".join(f'<th scope="col">{title(side, drawn)} #{chosen[side] + 1}</th>' for side in sides)
    lines = []
    for name in drawn.rewards():
        values = [drawn.value(side, chosen[side], name) for side in sides]
        cells = "".join(f"<td>{'failed' if name in drawn.made.failures else digits(value)}</td>" for value in values)
        cells += f"<td>{change(values[1] - values[0], drawn.made.weights[name])}</td>" if len(sides) == 2 else ""
        note = " <small>trained on</small>" if drawn.made.weights[name] else ""
        lines.append(f'<tr><th scope="row">{escaped(name)}{note}</th>{cells}</tr>')
    last = '<th scope="col">change</th>' if len(sides) == 2 else ""
    table = f'<thead><tr><th scope="col">reward</th>{heads}{last}</tr></thead><tbody>{"".join(lines)}</tbody>'
    reasons = "".join(f"<li>{escaped(name)} failed: {escaped(why)}</li>" for name, why in drawn.made.failures.items())
    return f'<div class="wide"><table>{table}</table></div>' + (f'<ul class="note">{reasons}</ul>' if reasons else "")


def change(difference: float, weight: float) -> str:
    """A difference with its sign, coloured by whether it is what training wants."""
    if math.isnan(difference) or abs(difference) < 5e-7:
        return digits(abs(difference))
    text = f"{difference:+.3g}"
    return f'<span class="{"good" if text.startswith("-") == (weight < 0) else "bad"}">{text}</span>'


def status(drawn: Drawn | None, doing: str = "") -> str:
    """What is going on, in a line; of a pair without a trained model, that there is none."""
    if drawn is None:
        return f'<p class="soft" role="status">{escaped(doing)}</p>'
    made = drawn.made
    noise = f"seed {made.seed}, noise 1 to {made.count}" if made.count > 1 else f"seed {made.seed}"
    both = len(made.models) == 2
    same = ", the same for both models" if both else ""
    several = "1 sample" if made.total == 1 else f"{made.total} samples"
    text = f"{several}, {noise}{same}." if made.done else f"{made.drawn} of {several} drawn."
    alone = "" if both else " The model is not trained yet, so that only the base is shown."
    return f'<p class="soft" role="status">{escaped(f"{text}{alone} {doing}".strip())}</p>'


# ---- the best of n


def finished(pair: Pair, drawn: Drawn) -> tuple[Any, ...]:
    """The choice of the best and the command, once all samples are scored."""
    if not drawn.made.done:
        return (gr.skip(),) * 5
    names = drawn.rewards()
    # The first reward by which the best of n depends on n.
    telling = next((name for name in names if curve(drawn, name, 1)), names[0] if names else None)
    line = escaped(command(pair, drawn))
    return (
        gr.update(choices=names, value=telling),
        telling,
        gr.update(maximum=max(2, drawn.made.count), value=1, interactive=drawn.made.count > 1),
        best_text(drawn, telling, 1) if telling else "",
        f"<details><summary>The same in a terminal</summary><pre>{line}</pre></details>" if line else "",
    )


def choose(drawn: Drawn | None, event: Any) -> tuple[Any, ...]:
    """Show the samples of a card's place large: those of both models from the same noise."""
    place = event.get("sample") if isinstance(event, dict) else None
    if drawn is None or not isinstance(place, int) or place < 0:
        return (gr.skip(),) * 7
    return tuple(view(drawn, dict.fromkeys(drawn.shown, place)))


def choose_best(drawn: Drawn | None, reward: str | None, count: float | int) -> tuple[Any, ...]:
    """Show the best of the first ``count`` samples of each side by a reward, which have different noise."""
    if drawn is None or not reward or reward not in drawn.made.weights:
        return (gr.skip(),) * 8
    found = {side: drawn.best(side, reward, int(count)) for side in drawn.made.scored}
    chosen = {side: one[0] if one else 0 for side, one in found.items()}
    return *view(drawn, chosen), best_text(drawn, reward, int(count))


def best_text(drawn: Drawn, reward: str, count: int) -> str:
    """The best of the first ``count`` samples of each side, in words, and how it grows with the count."""
    words = []
    for side in drawn.made.scored:
        found = drawn.best(side, reward, count)
        value = f"<b>{digits(found[1])}</b> (sample {found[0] + 1})" if found else "<b>none</b> could be scored"
        words.append(f"{title(side, drawn)} {value}")
    kind = "lowest" if drawn.made.weights[reward] < 0 else "best"
    first = "sample 1 alone" if count == 1 else f"{kind} of the first {count}"
    return f"<p>{escaped(reward)}, {first}: {', '.join(words)}</p>{curve(drawn, reward, count)}"


def curve(drawn: Drawn, reward: str, count: int) -> str:
    """The best of the first n against n, a line for each side, as SVG; empty where it is the same for all."""
    most, lines = drawn.made.count, {}
    for side in drawn.made.scored:
        found = [(n, drawn.best(side, reward, n)) for n in range(1, most + 1)]
        lines[side] = [(n, one[1]) for n, one in found if one]
    values = [value for points in lines.values() for _, value in points]
    if most < 2 or not values or min(values) == max(values):
        return ""
    low, high = min(values), max(values)

    def place(n: int, value: float) -> str:
        return f"{20 + 260 * (n - 1) / (most - 1):.1f},{70 - 50 * (value - low) / (high - low):.1f}"

    drawing = "".join(
        f'<polyline class="{side}" points="{" ".join(place(*point) for point in points)}"/>'
        for side, points in lines.items()
    )
    x = place(count, low).split(",")[0]
    ends = [f"{title(s, None)} from {digits(p[0][1])} to {digits(p[-1][1])}" for s, p in lines.items() if p]
    words = f"best of the first n samples by {escaped(reward)}, n from 1 to {most}: {', '.join(ends)}"
    names = "".join(f"<span class={side}>{title(side, drawn)}</span>" for side in lines)
    return (
        f'<figure class="curve"><svg viewBox="0 0 300 90" role="img" aria-label="{words}">'
        f'<line x1="{x}" x2="{x}" y1="12" y2="76"/>{drawing}'
        f'<text x="20" y="88">n = 1</text><text x="280" y="88" text-anchor="end">{most}</text></svg>'
        f"<figcaption>{names}</figcaption></figure>"
    )


# ---- the tab


def start(opened: Opened, name: str) -> tuple[list[tuple[str, str]], str, bool]:
    """Held-out prompts of a pair as choices, the first one, and whether its model takes an image."""
    pair = look_up(opened, name)
    texts = list(dict.fromkeys(prompt.text for prompt in pair.examples(HELDOUT)))
    return [(text, text) for text in texts], texts[0] if texts else "", bool(takes_image(pair))


def offer(opened: Opened, name: str) -> tuple[Any, ...]:
    """Held-out prompts of a pair, the first one, and the upload where the model takes an image."""
    with one_line_errors():
        choices, text, takes = start(opened, name)
    return gr.update(choices=choices, value=None), None, text, gr.update(value=None, visible=takes)


def tab(opened: Opened) -> None:
    """Build the tab."""
    names = opened.of("visual")
    if not names:
        gr.Markdown(NOTHING)
        return
    drawn = gr.State(None, time_to_live=3600)
    with gr.Row():
        with gr.Column(scale=2, min_width=280):
            model = gr.Dropdown(names, label="Models", elem_id="visual-model")
            example = gr.Dropdown([], label="Held-out prompt", elem_id="visual-example")
            prompt = gr.Textbox(label="Prompt", lines=2, max_length=MAX_PROMPT, elem_id="visual-prompt")
            image = gr.Image(
                label="Image to start from",
                type="filepath",
                sources=["upload", "clipboard"],
                height=220,
                elem_id="visual-image",
            )
            with gr.Row():
                count = gr.Slider(1, MOST, value=4, step=1, label="Samples", elem_id="visual-count")
                seed = gr.Number(1234, label="Seed", precision=0, minimum=0, maximum=2**32 - 1, elem_id="visual-seed")
            with gr.Row():
                generate = gr.Button("Generate", variant="primary", elem_id="visual-generate", min_width=120)
                again = gr.Button("Next seed", elem_id="visual-again", min_width=130)
                cancel = gr.Button("Cancel", variant="stop", elem_id="visual-cancel", min_width=90)
            said = gr.HTML(elem_id="visual-status", min_height=52)
        with gr.Column(scale=3, min_width=300, elem_classes="results"):
            still: dict[str, Any] = {"format": "png", "interactive": False}
            slider = gr.ImageSlider(
                label="Base (left) and trained (right)", max_height=460, buttons=["fullscreen"],
                elem_id="visual-slider", **still,
            )  # fmt: skip
            alone = gr.Image(
                label="Base", visible=False, buttons=["download", "fullscreen"], elem_id="visual-alone", **still
            )
            playing: dict[str, Any] = {"autoplay": True, "loop": True, "interactive": False, "visible": False}
            with gr.Row():
                players = [
                    gr.Video(label=label, min_width=140, elem_id=f"visual-clip-{side}", **playing)
                    for side, label in TITLES.items()
                ]
            table = gr.HTML(elem_id="visual-rewards")
            with gr.Row():
                reward = gr.Dropdown([], label="Choose the best by", elem_id="visual-reward", min_width=160)
                first = gr.Slider(1, 2, step=1, label="of the first n samples", elem_id="visual-best")
            winner = gr.HTML(elem_id="visual-winner")
    # One below the other: samples of the same noise stand in one column.
    galleries = [gr.HTML(elem_id=f"visual-{side}", js_on_load=CHOOSE) for side in TITLES]
    how = gr.HTML(elem_id="visual-command")

    offered_pair, offered, best_by = gr.State(names[0]), gr.State(), gr.State()
    seen = [slider, alone, *players, table, *galleries]
    inputs = [model, prompt, image, seed, count]
    outputs = [drawn, said, *seen, reward, best_by, first, winner, how]
    busy = computing("visual", show_progress_on=said)
    at_choice(model, offered_pair, partial(offer, opened), [model], [example, offered, prompt, image], **QUIET)
    at_choice(example, offered, lambda text: [text], [example], [prompt], **QUIET)
    runs: list[Any] = [
        generate.click(partial(run, opened), inputs, outputs, **busy),
        prompt.submit(partial(run, opened), inputs, outputs, **busy),
    ]
    following = again.click(lambda value: (int(value or 0) + 1) % 2**32, seed, seed, **QUIET)
    runs.append(following.then(partial(run, opened), inputs, outputs, **busy))
    at_cancel(cancel, runs, lambda drawn: status(drawn, "Cancelled."), [drawn], [said], **QUIET)

    def chosen_card(drawn: Drawn | None, event: gr.EventData) -> tuple[Any, ...]:
        return choose(drawn, event._data)

    for gallery in galleries:
        gallery.click(chosen_card, drawn, seen, **QUIET)
    last: dict[str, Any] = {**QUIET, "trigger_mode": "always_last"}
    first.input(choose_best, [drawn, reward, first], [*seen, winner], **last)
    at_choice(reward, best_by, choose_best, [drawn, reward, first], [*seen, winner], **last)
    example.choices, prompt.value, image.visible = start(opened, names[0])
