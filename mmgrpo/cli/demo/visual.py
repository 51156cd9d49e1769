"""The tab Visual: images and clips of a prompt, before and after training, from the same noise."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import gradio as gr
from gradio.processing_utils import save_bytes_to_cache
from gradio.utils import get_upload_folder

from mmgrpo.cli.demo.choice import at_cancel, at_choice
from mmgrpo.cli.demo.models import AFTER, BEFORE, Opened, in_a_line
from mmgrpo.cli.demo.visual_cards import best_text, cards, curve, escaped, ordered, rewards_table, status
from mmgrpo.cli.demo.visual_samples import (
    HELDOUT,
    MAX_TEXT,
    MOST,
    Comparison,
    Sample,
    best,
    command,
    draw_sides,
    picture_use,
    prompt_of,
)

NOTHING = (
    "There is no generator of pictures or clips here. Train one (`mmgrpo train` takes minutes), and open its run: "
    "`mmgrpo demo runs/demo`."
)
CHOOSE = """
element.addEventListener('click', event => {
  const card = event.target.closest('[data-sample]');
  if (card) trigger('click', {sample: Number(card.dataset.sample)});
});
const still = matchMedia('(prefers-reduced-motion: reduce)');
watch('value', () => { if (still.matches) element.querySelectorAll('video').forEach(clip => clip.pause()); });
"""
"""A click on a card, or a key, tells which sample it is."""

Chosen = dict[str, int]
"""Side to the place of the sample that is shown large."""


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
            prompt = gr.Textbox(label="Prompt", lines=2, max_length=MAX_TEXT, elem_id="visual-prompt")
            picture = gr.Image(
                label="Picture to start from",
                type="filepath",
                sources=["upload", "clipboard"],
                height=220,
                elem_id="visual-picture",
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
            slider = gr.ImageSlider(
                label="Base (left) and trained (right)",
                format="png",
                max_height=460,
                interactive=False,
                buttons=["fullscreen"],
                elem_id="visual-slider",
            )
            alone = gr.Image(
                label="Base",
                format="png",
                interactive=False,
                visible=False,
                buttons=["download", "fullscreen"],
                elem_id="visual-alone",
            )
            with gr.Row():
                films = {
                    side: gr.Video(
                        label=label,
                        autoplay=True,
                        loop=True,
                        interactive=False,
                        visible=False,
                        min_width=140,
                        elem_id=f"visual-clip-{side}",
                    )
                    for side, label in ((BEFORE, "Base"), (AFTER, "Trained"))
                }
            table = gr.HTML(elem_id="visual-rewards")
            with gr.Row():
                reward = gr.Dropdown([], label="Choose the best by", elem_id="visual-reward", min_width=160)
                first = gr.Slider(1, 2, step=1, label="of the first n samples", elem_id="visual-best")
            winner = gr.HTML(elem_id="visual-winner")
    # One below the other: samples of the same noise stand in one column.
    galleries = {side: gr.HTML(elem_id=f"visual-{side}", js_on_load=CHOOSE) for side in (BEFORE, AFTER)}
    how = gr.HTML(elem_id="visual-command")

    shown, offered, best_by = gr.State(names[0]), gr.State(), gr.State()
    seen = [slider, alone, films[BEFORE], films[AFTER], table, galleries[BEFORE], galleries[AFTER]]
    inputs = [model, prompt, picture, seed, count]
    outputs = [drawn, said, *seen, reward, best_by, first, winner, how]
    quiet: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}
    busy: dict[str, Any] = {
        "api_visibility": "private",
        "concurrency_limit": 1,
        "concurrency_id": "visual",
        "show_progress_on": said,
        # After a cancellation the browser waits for the end of the batch, and would ignore a click meanwhile.
        "trigger_mode": "multiple",
    }

    at_choice(model, shown, partial(offer, opened), [model], [example, offered, prompt, picture], **quiet)
    at_choice(example, offered, lambda text: [text], [example], [prompt], **quiet)
    runs: list[Any] = [
        generate.click(partial(run, opened), inputs, outputs, **busy),
        prompt.submit(partial(run, opened), inputs, outputs, **busy),
    ]
    following = again.click(lambda value: (int(value or 0) + 1) % 2**32, seed, seed, **quiet)
    runs.append(following.then(partial(run, opened), inputs, outputs, **busy))
    at_cancel(cancel, runs, lambda drawn: status(drawn, "Cancelled."), [drawn], [said], **quiet)

    def chosen_card(drawn: Comparison | None, event: gr.EventData) -> tuple[Any, ...]:
        return choose(drawn, event._data)

    for gallery in galleries.values():
        gallery.click(chosen_card, drawn, seen, **quiet)
    quiet["trigger_mode"] = "always_last"
    first.input(choose_best, [drawn, reward, first], [*seen, winner], **quiet)
    at_choice(reward, best_by, choose_best, [drawn, reward, first], [*seen, winner], **quiet)
    example.choices, prompt.value, picture.visible = start(opened, names[0])


def start(opened: Opened, name: str) -> tuple[list[tuple[str, str]], str, bool]:
    """Held-out prompts of a pair as choices, the first one, and whether its model takes an image."""
    pair = opened.pairs[name]
    texts = list(dict.fromkeys(prompt.text for prompt in pair.examples(HELDOUT)))
    return [(text, text) for text in texts], texts[0] if texts else "", bool(picture_use(pair))


def offer(opened: Opened, name: str) -> tuple[Any, ...]:
    """Held-out prompts of a pair, the first one, and the upload where the model takes an image."""
    if name not in opened.pairs:
        raise refusal("these models are not open; choose others")
    choices, text, takes = start(opened, name)
    return gr.update(choices=choices, value=None), None, text, gr.update(value=None, visible=takes)


def run(
    opened: Opened,
    name: str | None,
    text: str | None,
    picture: str | None,
    seed: float | int | None,
    count: float | int,
    progress: gr.Progress = gr.Progress(),  # noqa: B008 -- Gradio finds it by its default
) -> Iterator[tuple[Any, ...]]:
    """Draw samples of both models; all outputs of the tab after each batch."""
    if name not in opened.of("visual"):
        raise refusal("these models are not open; choose others")
    nothing = (gr.skip(),) * 12
    yield None, status(None, "Loading the model …"), *nothing
    try:
        prompt = prompt_of(opened.pairs[name], text or "", picture or "")
        for drawn in draw_sides(opened, name, prompt, int(seed or 0), int(count)):
            progress((drawn.drawn, drawn.total), desc="sampling", unit="samples")
            yield drawn, status(drawn), *view(drawn, dict.fromkeys(drawn.sides, 0)), *finished(opened, drawn)
    except (OSError, ValueError, RuntimeError, ModuleNotFoundError) as error:
        yield gr.skip(), status(None, "Nothing was drawn."), *nothing
        raise refusal(in_a_line(error)) from error


def finished(opened: Opened, drawn: Comparison) -> tuple[Any, ...]:
    """The choice of the best and the command, once all samples are scored."""
    if not drawn.done:
        return (gr.skip(),) * 5
    names = ordered(drawn.weights)
    # The first reward by which the best of n depends on n.
    telling = next((name for name in names if curve(drawn, name, 1)), names[0] if names else None)
    return (
        gr.update(choices=names, value=telling),
        telling,
        gr.update(maximum=max(2, drawn.count), value=1, interactive=drawn.count > 1),
        best_text(drawn, telling, 1) if telling else "",
        how_to(command(opened.pairs[drawn.name], drawn)),
    )


def refusal(text: str) -> gr.Error:
    """An error that the page shows; Gradio would take its text for mark-up."""
    return gr.Error(escaped(text), print_exception=False)


def view(drawn: Comparison | None, chosen: Chosen) -> list[Any]:
    """The chosen samples large, their rewards, and the cards of both sides."""
    there = {side: place for side, place in chosen.items() if drawn and place < len(drawn.sides.get(side, ()))}
    samples = {side: drawn.sides[side][place] for side, place in there.items()} if drawn else {}
    clips, both = bool(drawn and drawn.are_clips), len(samples) == 2
    pictures = {} if clips else {side: sample.picture for side, sample in samples.items()}
    pair, alone = (pictures[BEFORE], pictures[AFTER]) if len(pictures) == 2 else None, pictures.get(BEFORE)
    return [
        gr.update(value=pair, visible=not clips and (both or not samples)),
        gr.update(value=None if pair else alone, visible=bool(pictures) and not both),
        *(film(samples.get(side)) for side in (BEFORE, AFTER)),
        rewards_table(drawn, there),
        *(cards(drawn, side, there.get(side)) for side in (BEFORE, AFTER)),
    ]


def film(sample: Sample | None) -> dict[str, Any]:
    """The player of a clip, hidden where there is none."""
    if sample is None or not sample.clip:
        return gr.update(value=None, visible=False)
    # By its content in Gradio's own cache, which it serves and empties.
    file = save_bytes_to_cache(sample.clip, "clip.mp4", get_upload_folder())
    return gr.update(value=file, visible=True)


def choose(drawn: Comparison | None, event: Any) -> tuple[Any, ...]:
    """Show the samples of a card's place large: those of both models from the same noise."""
    place = event.get("sample") if isinstance(event, dict) else None
    if drawn is None or not isinstance(place, int) or place < 0:
        return (gr.skip(),) * 7
    return tuple(view(drawn, dict.fromkeys(drawn.sides, place)))


def choose_best(drawn: Comparison | None, reward: str | None, count: float | int) -> tuple[Any, ...]:
    """Show the best of the first ``count`` samples of each side by a reward, which have different noise."""
    if drawn is None or not reward or reward not in drawn.weights:
        return (gr.skip(),) * 8
    lowest = drawn.wants_lowest(reward)
    found = {side: best(drawn.sides[side], reward, int(count), lowest) for side in drawn.scored}
    chosen = {side: one[0] if one else 0 for side, one in found.items()}
    return *view(drawn, chosen), best_text(drawn, reward, int(count))


def how_to(line: str) -> str:
    """The command that draws the same samples, where there is one."""
    return f"<details><summary>The same in a terminal</summary><pre>{escaped(line)}</pre></details>" if line else ""
