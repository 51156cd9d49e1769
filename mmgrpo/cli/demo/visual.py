"""The tab Visual: pictures and clips of a prompt, before and after training, from the same noise."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import partial
from typing import Any

import gradio as gr

from mmgrpo.cli.demo.opened import AFTER, BEFORE, Opened, in_a_line
from mmgrpo.cli.demo.visual_cards import best_text, cards, curve, ordered, rewards_table, status
from mmgrpo.cli.demo.visual_samples import (
    HELDOUT,
    MAX_TEXT,
    MOST,
    Comparison,
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
    drawn, chosen = gr.State(None, time_to_live=3600), gr.State({})
    with gr.Row(elem_classes="tool"):
        with gr.Column(scale=2, min_width=280):
            model = gr.Dropdown(names, value=names[0], label="Models", elem_id="visual-model")
            example = gr.Dropdown([], label="Held-out prompt", elem_id="visual-example")
            prompt = gr.Textbox(label="Prompt", lines=2, max_length=MAX_TEXT, elem_id="visual-prompt")
            picture = gr.Image(
                label="Picture to start from",
                type="filepath",
                sources=["upload", "clipboard"],
                visible=False,
                height=220,
                elem_id="visual-picture",
            )
            with gr.Row():
                count = gr.Slider(1, MOST, value=4, step=1, label="Samples", elem_id="visual-count")
                seed = gr.Number(1234, label="Seed", precision=0, minimum=0, maximum=2**32 - 1, elem_id="visual-seed")
            with gr.Row():
                generate = gr.Button("Generate", variant="primary", elem_id="visual-generate", min_width=120)
                again = gr.Button("Next seed", elem_id="visual-again", min_width=100)
                cancel = gr.Button("Cancel", variant="stop", elem_id="visual-cancel", min_width=90)
            said = gr.HTML(elem_id="visual-status", min_height=52)
        with gr.Column(scale=3, min_width=300):
            slider = gr.ImageSlider(
                label="Base (left) and trained (right)",
                format="png",
                max_height=460,
                interactive=False,
                buttons=["fullscreen"],
                elem_id="visual-slider",
            )
            alone = gr.Image(label="Base", format="png", interactive=False, visible=False, elem_id="visual-alone")
            with gr.Row():
                films = {
                    side: gr.Video(
                        label=label,
                        autoplay=True,
                        loop=True,
                        interactive=False,
                        visible=False,
                        min_width=140,
                        buttons=["download"],
                        elem_id=f"visual-clip-{side}",
                    )
                    for side, label in ((BEFORE, "Base"), (AFTER, "Trained"))
                }
            table = gr.HTML(elem_id="visual-rewards")
            with gr.Row():
                reward = gr.Dropdown([], label="Choose the best by", elem_id="visual-reward", min_width=160)
                first = gr.Slider(1, 2, value=1, step=1, label="of the first n samples", elem_id="visual-best")
            winner = gr.HTML(elem_id="visual-winner")
    # One below the other: samples of the same noise stand in one column.
    galleries = {side: gr.HTML(elem_id=f"visual-{side}", js_on_load=CHOOSE) for side in (BEFORE, AFTER)}
    how = gr.HTML(elem_id="visual-command")

    view = [slider, alone, films[BEFORE], films[AFTER], table, galleries[BEFORE], galleries[AFTER]]
    inputs = [model, prompt, picture, seed, count]
    outputs = [drawn, chosen, said, *view, reward, first, winner, how]
    quiet: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}
    busy: dict[str, Any] = {
        "api_visibility": "private",
        "concurrency_limit": 1,
        "concurrency_id": "visual",
        "show_progress_on": said,
    }

    chosen_model = (partial(offer, opened), model, [example, prompt, picture])
    gr.on([model.change], *chosen_model, **quiet)
    example.input(lambda text: text, example, prompt, **quiet)
    runs = [
        generate.click(partial(run, opened), inputs, outputs, **busy),
        prompt.submit(partial(run, opened), inputs, outputs, **busy),
    ]
    following = again.click(lambda value: (int(value or 0) + 1) % 2**32, seed, seed, **quiet)
    runs.append(following.then(partial(run, opened), inputs, outputs, **busy))
    cancel.click(partial(stopped, opened), drawn, said, cancels=runs, **quiet)

    def chosen_card(drawn: Comparison | None, event: gr.EventData) -> tuple[Any, ...]:
        return choose(drawn, event._data)

    for gallery in galleries.values():
        gallery.click(chosen_card, drawn, [chosen, *view], **quiet)
    for event in (first.release, first.change, reward.input):
        event(choose_best, [drawn, reward, first], [chosen, *view, winner], **quiet)
    example.choices, prompt.value, picture.visible = start(opened, names[0])


def start(opened: Opened, name: str) -> tuple[list[tuple[str, str]], str, bool]:
    """Held-out prompts of a pair as choices, the first one, and whether its model takes a picture."""
    pair = opened.pairs[name]
    texts = list(dict.fromkeys(prompt.text for prompt in pair.examples(HELDOUT)))
    return [(text, text) for text in texts], texts[0] if texts else "", bool(picture_use(pair))


def offer(opened: Opened, name: str) -> tuple[Any, ...]:
    """Held-out prompts of a pair, the first one, and the upload where the model takes a picture."""
    if name not in opened.pairs:
        raise gr.Error("these models are not open; choose others")
    choices, text, takes = start(opened, name)
    return gr.Dropdown(choices, value=None), text, gr.Image(value=None, visible=takes)


def run(
    opened: Opened,
    name: str,
    text: str,
    picture: str | None,
    seed: float | None,
    count: float,
    progress: gr.Progress = gr.Progress(),  # noqa: B008 -- Gradio finds it by its default
) -> Iterator[tuple[Any, ...]]:
    """Draw samples of both models; all outputs of the tab after each batch."""
    if name not in opened.of("visual"):
        raise gr.Error("these models are not open; choose others")
    pair, total = opened.pairs[name], int(count)
    sides = pair.sides
    shown: Chosen = dict.fromkeys(sides, 0)
    nothing = (gr.skip(),) * 11
    yield None, shown, status(None, sides, "Loading the model …"), *nothing
    try:
        prompt = prompt_of(pair, text or "", picture or "")
        for drawn in draw_sides(opened, name, prompt, int(seed or 0), total):
            progress((drawn.drawn, total * len(sides)), desc="sampling", unit="samples")
            done = set(drawn.sides) == set(sides) == set(drawn.scored)
            here = {side: 0 for side in drawn.sides}
            names = ordered(drawn.weights)
            telling = next((name for name in names if curve(drawn, name, 1)), names[0] if names else None)
            yield (
                drawn,
                here,
                status(drawn, sides),
                *(view(drawn, here)),
                gr.Dropdown(names, value=telling) if done else gr.skip(),
                gr.Slider(maximum=max(2, total), value=1, interactive=total > 1) if done else gr.skip(),
                best_text(drawn, telling, 1) if done and telling else "",
                how_to(command(pair, drawn)) if done else "",
            )
    except gr.Error:
        raise
    except (OSError, ValueError, RuntimeError, ModuleNotFoundError, KeyError) as error:
        raise gr.Error(in_a_line(error), print_exception=False) from error


def view(drawn: Comparison | None, chosen: Chosen) -> list[Any]:
    """The chosen samples large, their rewards, and the cards of both sides."""
    there = {side: place for side, place in chosen.items() if drawn and place < len(drawn.sides.get(side, ()))}
    pictures = {side: drawn.sides[side][place] for side, place in there.items()} if drawn else {}
    clips, both = bool(drawn and drawn.are_clips), len(pictures) == 2
    large = {
        "slider": gr.ImageSlider(
            value=(pictures[BEFORE].picture, pictures[AFTER].picture) if both and not clips else None,
            visible=not clips and (both or not pictures),
        ),
        "alone": gr.Image(
            value=pictures[BEFORE].picture if pictures and not both and not clips else None,
            visible=bool(pictures) and not both and not clips,
        ),
    }
    films = [
        gr.Video(value=written(pictures[side].clip) if side in pictures and clips else None, visible=side in pictures)
        if clips
        else gr.Video(value=None, visible=False)
        for side in (BEFORE, AFTER)
    ]
    galleries = [cards(drawn, side, there.get(side)) for side in (BEFORE, AFTER)]
    return [large["slider"], large["alone"], *films, rewards_table(drawn, there), *galleries]


def written(clip: bytes) -> str:
    """An mp4 file in a temporary folder, which Gradio copies into its cache and serves."""
    with tempfile.NamedTemporaryFile(suffix=".mp4", delete=False) as file:
        file.write(clip)
    return file.name


def choose(drawn: Comparison | None, event: Any) -> tuple[Any, ...]:
    """Show the samples of a card's place large: those of both models from the same noise."""
    place = event.get("sample") if isinstance(event, dict) else None
    chosen = {side: place for side, samples in drawn.sides.items() if place in range(len(samples))} if drawn else {}
    return (chosen, *view(drawn, chosen)) if chosen else (gr.skip(),) * 8


def choose_best(drawn: Comparison | None, reward: str | None, count: float) -> tuple[Any, ...]:
    """Show the best of the first ``count`` samples of each side by a reward, which have different noise."""
    if drawn is None or reward not in drawn.weights:
        return (gr.skip(),) * 9
    sign = -1.0 if drawn.weights[reward] < 0 else 1.0
    found = {side: best(drawn.sides[side], reward, int(count), sign) for side in drawn.scored}
    chosen = {side: one[0] if one else 0 for side, one in found.items()}
    return chosen, *view(drawn, chosen), best_text(drawn, reward, int(count))


def stopped(opened: Opened, drawn: Comparison | None) -> str:
    """The line of the status after a cancellation."""
    sides = opened.pairs[drawn.name].sides if drawn and drawn.name in opened.pairs else ()
    return status(drawn, sides, "Cancelled.")


def how_to(line: str) -> str:
    """The command that draws the same samples, where there is one."""
    from mmgrpo.cli.demo.visual_cards import escaped

    return f"<details><summary>The same in a terminal</summary><pre>{escaped(line)}</pre></details>" if line else ""
