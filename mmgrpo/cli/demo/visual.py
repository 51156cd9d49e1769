"""The tab Visual: images and videos of a prompt, before and after training, from the same noise."""

from __future__ import annotations

import math
import shlex
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import gradio as gr
from PIL import Image as Pil

from mmgrpo.cli.demo.chart import Curve, chart_html
from mmgrpo.cli.demo.compare import (
    MOST,
    OWN,
    TITLES,
    Comparison,
    Examples,
    at_run,
    compare,
    look_up,
    running,
)
from mmgrpo.cli.demo.models import AFTER, Opened, Pair
from mmgrpo.cli.demo.parts import (
    QUIET,
    at_choice,
    checked_text,
    digits,
    escape,
    figure,
    figures,
    one_line_errors,
    reasons_list,
    reward_value,
    status,
    table,
)
from mmgrpo.report.media import image_uri, jpeg, thumbnail, to_pil
from mmgrpo.types import Image, Media, Output, Prompt, Turn, Video

NOTHING = (
    "No generator of images or videos is open. Train one (`mmgrpo train` takes minutes), and open its run: "
    "`mmgrpo demo runs/demo`."
)
MAX_PROMPT = 2_000
"""Characters of a prompt."""
LARGE = 448
"""Height in pixels to which small images are enlarged, by a whole factor."""
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
        return (min if self.made.weights[reward] < 0 else max)(scored, key=lambda pair: pair[1], default=None)

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
    known = [prompt for prompt in pair.examples(None) if prompt.text == text]
    prompt = known[0] if known else embedded_prompt(pair, text)
    if image and not use:
        raise ValueError(f"the family '{pair.family.name}' draws from words alone; remove the image")
    if image:
        from mmgrpo.data.images import decode_image

        return replace(prompt, turns=(Turn("user", (Media("image", decode_image(image)), text)),))
    if use == "required" and not prompt.media:
        raise ValueError(
            f"the family '{pair.family.name}' starts from an image: upload one, or choose a held-out prompt "
            "that has its own"
        )
    return prompt


def takes_image(pair: Pair) -> str:
    """The image that a prompt has in addition: ``required``, ``optional``, or empty where the model takes none."""
    return pair.family.image_input


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


def sample_of(output: Output) -> Sample:
    """An image or a video as it is shown."""
    from pipelines.visual.clips import enlarge, mp4

    if isinstance(output, Video):
        return Sample(enlarge(to_pil(Image(output.frames[0])), LARGE), mp4(output))
    if not isinstance(output, Image):
        raise TypeError(f"got {type(output).__name__}, expected an image or a video")
    return Sample(enlarge(to_pil(output), LARGE))


def draw(
    opened: Opened, name: str | None, text: str | None, image: str | None, seed: float | int | None, count: float | int
) -> Iterator[tuple[Any, ...]]:
    """The comparison so far, and what the tab shows of it."""
    pair = look_up(opened, name)
    prompt = prompt_of(pair, text or "", image or "")
    samples: dict[str, list[Sample]] = {}
    for made in compare(opened, pair.name, prompt, seed=int(seed or 0), count=int(count)):
        for side, result in made.sides.items():
            old = samples.get(side, [])
            samples = {**samples, side: [*old, *map(sample_of, result.outputs[len(old) :])]}
        drawn = Drawn(made, samples)
        yield made, drawn, *view(drawn, dict.fromkeys(samples, 0)), *final_updates(pair, drawn)


def of_run(made: Comparison) -> tuple[Any, ...]:
    """What is said of samples that a run has kept, and what the tab shows of them."""
    drawn = Drawn(
        made, {side: [sample_of(output) for output in samples.outputs] for side, samples in made.sides.items()}
    )
    end = "after training" if made.trained == "model" else f"after {int(made.trained):,} optimizer steps"
    line = status(f"Kept by the run: one sample before and one {end}, from the same noise.")
    return line, drawn, *view(drawn, dict.fromkeys(drawn.shown, 0)), *best_of(drawn), ""


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
    images = tuple(sample.image for sample in samples.values() if not sample.video)
    slides = len(images) == 2 or not samples
    large = []
    if drawn and not slides:
        outputs = {side: drawn.made.sides[side].outputs[place] for side, place in places.items()}
        large = [figure(output, title(side, drawn)) for side, output in outputs.items()]
    return [
        gr.update(value=images or None, visible=True) if slides else gr.update(value=None, visible=False),
        figures(*large) if large else "",
        rewards_table(drawn, places),
        *(cards(drawn, side, places.get(side)) for side in TITLES),
    ]


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
        cell = reward_value(drawn.value(side, place, name), drawn.made.failures.get(name, ""))
        kind = ' class="trained"' if drawn.made.weights[name] else ""
        items.append(f"<span{kind}><span>{escape(name)}</span> <b>{cell}</b></span>")
    return f'<span class="rewards">{"".join(items)}</span>'


def card_medium(sample: Sample, text: str) -> str:
    """The image of a card, or the video, which plays."""
    if sample.video and len(sample.video) <= MAX_INLINE:
        source = f"data:video/mp4;base64,{b64encode(sample.video).decode()}"
        return f'<video src="{source}" aria-label="{text}" muted loop autoplay playsinline></video>'
    return f'<img src="{image_uri(jpeg(thumbnail(sample.image)), "image/jpeg")}" alt="{text}">'


def rewards_table(drawn: Drawn | None, chosen: Mapping[str, int]) -> str:
    """Every reward of the chosen sample of each side, and the difference."""
    sides = [side for side in chosen if drawn and side in drawn.made.scored]
    if not drawn or not sides:
        return ""
    both = len(sides) == 2
    rows = []
    for name in drawn.rewards():
        values, weight = [drawn.value(side, chosen[side], name) for side in sides], drawn.made.weights[name]
        cells = [reward_value(value, drawn.made.failures.get(name, "")) for value in values]
        changed = [change(values[1] - values[0], weight)] if both else []
        rows.append((escape(name) + " <small>trained on</small>" * bool(weight), *cells, *changed))
    heads = ["reward", *(f"{title(side, drawn)} #{chosen[side] + 1}" for side in sides), *["change"] * both]
    return table(heads, rows) + reasons_list(drawn.made.failures)


def change(difference: float, weight: float) -> str:
    """A difference with its sign, coloured by whether it is what training wants."""
    if math.isnan(difference) or abs(difference) < 5e-7:
        return digits(abs(difference))
    text = f"{difference:+.3g}"
    return f'<span class="{"good" if text.startswith("-") == (weight < 0) else "bad"}">{text}</span>'


# ---- the best of n


def final_updates(pair: Pair, drawn: Drawn) -> tuple[Any, ...]:
    """The choice of the best and the command, once all samples are scored."""
    if not drawn.made.done:
        return (gr.skip(),) * 5
    line = escape(command(pair, drawn))
    how = f"<details><summary>The same in a terminal</summary><pre>{line}</pre></details>" if line else ""
    return *best_of(drawn), how


def best_of(drawn: Drawn) -> tuple[Any, ...]:
    """The choice of the best: rewards, the chosen one, how many samples, and the answer in words."""
    names = drawn.rewards()
    # The first reward by which the best of n depends on n.
    telling = next((name for name in names if growth(drawn, name)), names[0] if names else None)
    return (
        gr.update(choices=names, value=telling),
        telling,
        gr.update(maximum=max(2, drawn.made.count), value=1, interactive=drawn.made.count > 1),
        best_text(drawn, telling, 1) if telling else "",
    )


def choose(drawn: Drawn | None, event: Any) -> tuple[Any, ...]:
    """Show the samples of a card's place large: those of both models from the same noise."""
    place = event.get("sample") if isinstance(event, dict) else None
    if drawn is None or not isinstance(place, int) or place < 0:
        return (gr.skip(),) * 5
    return tuple(view(drawn, dict.fromkeys(drawn.shown, place)))


def choose_best(drawn: Drawn | None, reward: str | None, count: float | int) -> tuple[Any, ...]:
    """Show the best of the first ``count`` samples of each side by a reward, which have different noise."""
    if drawn is None or not reward or reward not in drawn.made.weights:
        return (gr.skip(),) * 6
    best = {side: drawn.best(side, reward, int(count)) for side in drawn.made.scored}
    chosen = {side: top[0] if top else 0 for side, top in best.items()}
    return *view(drawn, chosen), best_text(drawn, reward, int(count))


def best_text(drawn: Drawn, reward: str, count: int) -> str:
    """The best of the first ``count`` samples of each side, in words, and how it grows with the count."""
    words = []
    for side in drawn.made.scored:
        best = drawn.best(side, reward, count)
        value = f"<b>{digits(best[1])}</b> (sample {best[0] + 1})" if best else "<b>none</b> could be scored"
        words.append(f"{title(side, drawn)} {value}")
    kind = "lowest" if drawn.made.weights[reward] < 0 else "best"
    first = "sample 1 alone" if count == 1 else f"{kind} of the first {count}"
    return f"<p>{escape(reward)}, {first}: {', '.join(words)}</p>{growth(drawn, reward)}"


def growth(drawn: Drawn, reward: str) -> str:
    """The best of the first n against n, a line for each side; empty where it is the same for all."""
    lines = {}
    for side in drawn.made.scored:
        tops = [(n, drawn.best(side, reward, n)) for n in range(1, drawn.made.count + 1)]
        lines[title(side, drawn)] = [(float(n), best[1]) for n, best in tops if best]
    if len({value for line in lines.values() for _, value in line}) < 2:
        return ""
    curves = [Curve(name, line, line) for name, line in lines.items()]
    return chart_html(f"best of the first n samples by {reward}", "n", curves)


# ---- the tab


def tab(opened: Opened) -> None:
    """Build the tab."""
    names, examples = opened.of("visual"), Examples(opened)
    if not names:
        gr.Markdown(NOTHING)
        return
    drawn = gr.State(None, time_to_live=3600)
    with gr.Row():
        with gr.Column(scale=2, min_width=280):
            model = gr.Dropdown(names, label="Models", elem_id="visual-model")
            example = gr.Dropdown([("my own prompt", OWN)], label="Held-out prompt", elem_id="visual-example")
            prompt = gr.Textbox(label="Prompt", lines=2, max_length=MAX_PROMPT, elem_id="visual-prompt")
            image = gr.Image(
                label="Image to start from", type="filepath", sources=["upload", "clipboard"], height=220,
                elem_id="visual-image",
            )  # fmt: skip
            with gr.Row():
                count = gr.Slider(1, MOST, value=4, step=1, label="Samples", elem_id="visual-count")
                seed = gr.Number(1234, label="Seed", precision=0, minimum=0, maximum=2**32 - 1, elem_id="visual-seed")
            controls = running("Generate", "visual-generate")
        with gr.Column(scale=3, min_width=300, elem_classes="results"):
            slider = gr.ImageSlider(
                label="Base (left) and trained (right)", max_height=460, format="png", interactive=False,
                buttons=["fullscreen"], elem_id="visual-slider",
            )  # fmt: skip
            large = gr.HTML(elem_id="visual-large")
            rewards = gr.HTML(elem_id="visual-rewards")
            with gr.Row():
                reward = gr.Dropdown([], label="Choose the best by", elem_id="visual-reward", min_width=160)
                first = gr.Slider(1, 2, step=1, label="of the first n samples", elem_id="visual-best")
            winner = gr.HTML(elem_id="visual-winner")
    # One below the other: samples of the same noise stand in one column.
    galleries = [gr.HTML(elem_id=f"visual-{side}", js_on_load=CHOOSE) for side in TITLES]
    how = gr.HTML(elem_id="visual-command")

    best_by = gr.State()
    seen = [slider, large, rewards, *galleries]
    outputs = [drawn, *seen, reward, best_by, first, winner, how]

    def fill(name: str, key: str) -> list[Any]:
        """The text of an example, the upload where the model takes an image, and what the run has kept of it."""
        with one_line_errors():
            chosen, takes = examples.get(name, key), takes_image(look_up(opened, name))
            kept = examples.kept_comparison(name, key)
        shown = of_run(kept) if kept else ("", *[gr.skip()] * len(outputs))
        return [chosen.text if chosen else "", gr.update(value=None, visible=bool(takes)), *shown]

    examples.offer(model, example, lambda example: example.text[:80], fill, [prompt, image, controls[-1], *outputs])
    at_run(controls, [model, prompt, image, seed, count], outputs, partial(draw, opened), also=[prompt.submit])

    def chosen_card(drawn: Drawn | None, event: gr.EventData) -> tuple[Any, ...]:
        return choose(drawn, event._data)

    for gallery in galleries:
        gallery.click(chosen_card, drawn, seen, **QUIET)
    last: dict[str, Any] = {**QUIET, "trigger_mode": "always_last"}
    first.input(choose_best, [drawn, reward, first], [*seen, winner], **last)
    at_choice(reward, best_by, choose_best, [drawn, reward, first], [*seen, winner], **last)
