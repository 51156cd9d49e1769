"""The tab Vision-language: a question about an image or a video, answered by the models of a pair."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gradio as gr
from PIL import Image as Pil

from mmgrpo.cli.demo.compare import (
    MAX_TEXT,
    MOST,
    OWN,
    Comparison,
    Examples,
    Side,
    at_run,
    card,
    compare,
    edit_example,
    look_up,
    running,
    sections,
    shown_answer,
)
from mmgrpo.cli.demo.models import Opened
from mmgrpo.cli.demo.parts import (
    QUIET,
    checked_text,
    escape,
    frame,
    medium,
    one_line_errors,
    reasons_list,
    refusal_html,
    rewards_list,
)
from mmgrpo.cli.score import SUFFIXES, answer_of, kind_of
from mmgrpo.data.images import decode_image
from mmgrpo.report.media import PREDICTION, REFERENCE, enlarge, image_uri, image_with_boxes, jpeg, to_pil, words
from mmgrpo.types import Image, Media, Prompt, Text, Turn

SIDE = 320
"""Longer side of an image with boxes in CSS pixels; it fits a narrow screen."""
ABOUT = """Ask the model before and after training the same question. Both answer with the same random numbers, so
what differs is what training changed."""
TAGS = re.compile(r"(&lt;/?(?:think|answer|reasoning)&gt;)")
"""Tags of a completion's form, after escaping."""
THOUGHT = re.compile(r"\s*<think>(.*)</think>(.*)|(.*?)(<answer>.*)", re.DOTALL)
"""Reasoning and the rest of a completion; a thought may contain answers."""


def ask(
    opened: Opened,
    examples: Examples,
    name: str,
    key: str,
    file: str | None,
    question: str,
    answer: str,
    task: str,
    coordinates: str,
    count: int,
    temperature: float,
    seed: int,
) -> Iterator[tuple[Comparison, str]]:
    """The comparison so far, and mark-up of its answers. At temperature 0 all answers are equal, so one is
    drawn."""
    look_up(opened, name)
    if not 0 <= temperature <= 2:
        raise ValueError(f"temperature: got {temperature:g}, expected 0 to 2")
    prompt = prompt_of(examples.get(name, key), file, question, answer, task, coordinates, system_of(examples, name))
    count = 1 if temperature == 0 and count > 0 else int(count)
    view = in_memory(prompt)
    image = small(view.media[0]) if view.media and view.media[0].kind == "image" else None
    seen: dict[str, Side] = {}
    columns: dict[str, str] = {}
    for made in compare(opened, name, prompt, count=count, temperature=float(temperature), seed=int(seed)):
        changed = {side: samples for side, samples in made.sides.items() if samples is not seen.get(side)}
        columns |= {side: side_of(view, samples, image) for side, samples in changed.items()}
        seen |= changed
        boxed = any("<img" in column for column in columns.values())
        yield made, frame((heading(prompt, boxed) + sections(columns)) * bool(columns))


def small(media: Media) -> Pil.Image:
    """An image of at most ``SIDE`` pixels, enlarged where it is tiny: lines of boxes would cover much of it."""
    from pipelines.vlm.media import read_image

    image = to_pil(read_image(media))
    image.thumbnail((SIDE, SIDE))
    return enlarge(image)


def in_memory(prompt: Prompt) -> Prompt:
    """The prompt with its images decoded, once for all its answers."""
    from pipelines.vlm.media import read_image

    media = [replace(item, source=read_image(item)) if item.kind == "image" else item for item in prompt.media]
    return replace(prompt, turns=(Turn("user", tuple(media)),)) if media else prompt


def system_of(examples: Examples, name: str) -> tuple[Turn, ...]:
    """The system turns of the pair's own prompts, which an upload is asked with too."""
    example = next(iter(examples.of(name).values()), None)
    return tuple(turn for turn in example.turns if turn.role == "system") if example else ()


def prompt_of(
    example: Prompt | None,
    file: str | None,
    question: str,
    answer: str,
    task: str,
    coordinates: str,
    system: tuple[Turn, ...] = (),
) -> Prompt:
    """The example, with the question, answer and task as the visitor left them, or a prompt of an upload."""
    question = checked_text(question, "question", MAX_TEXT).strip()
    reference = answer_of(checked_text(answer, "reference answer", MAX_TEXT).strip())
    if example:
        return replace(edit_example(example, question, answer, reference), task=task.strip())
    if not question:
        raise ValueError("question: got no text, expected a question; write one, or choose an example")
    media = (read_upload(file),) if file else ()
    meta: dict[str, Any] = {}
    if media and isinstance(media[0].source, Image):
        meta = {"coordinates": coordinates, "size": list(media[0].source.pixels.shape[1:])}
    return Prompt(question, "upload", reference, task.strip(), meta, (*system, Turn("user", (*media, question))))


def read_upload(file: str) -> Media:
    """An image, decoded within the limits of data, or a video of which the ends could be; ``Unreadable`` otherwise."""
    from pipelines.vlm.media import measure

    name = Path(file).name
    if (kind := kind_of(name)) == "image":
        return Media("image", decode_image(file, name))
    if kind != "video":
        raise ValueError(f"{name}: got a file of kind {kind}, expected an image or a video; upload another")
    measure(video := Media("video", file))
    return video


def split(completion: str) -> tuple[str, str]:
    """The reasoning of a completion (in <think> tags, or what precedes <answer>), and the rest."""
    match = THOUGHT.fullmatch(completion)
    if not match:
        return "", completion
    thought, after, before, answer = match.groups()
    return (before.strip(), answer) if thought is None else (thought.strip(), after.strip())


def side_of(prompt: Prompt, side: Side, image: Pil.Image | None) -> str:
    """Mark-up of the answers of one side: a summary, then every answer."""
    texts = [output.whole for output in side.outputs if isinstance(output, Text)]
    counts = Counter(re.sub(r"</?answer>", "", split(text)[1]).strip() or "(nothing)" for text in texts)
    common = [(text, count) for text, count in counts.most_common(4) if count > 1]
    facts = [f"{count} × {escape(text[:40])}" for text, count in common]
    others = len(texts) - sum(count for _, count in common)
    summary = f'<p class="soft">{", ".join([*facts, *[f"{others} more"] * (others > 0)])}</p>' if facts else ""
    if len(texts) > 1 and side.rewards:
        summary += rewards_list(side.means(), side.reasons, f"mean of {len(texts)} answers")
    answers = "".join(article(prompt, side, i, image) for i in range(len(texts)))
    return summary + answers + reasons_list(side.reasons)


def article(prompt: Prompt, side: Side, i: int, image: Pil.Image | None) -> str:
    """Mark-up of one answer: text with dimmed tags, reasoning folded away, boxes in the image, rewards."""
    output = side.outputs[i]
    assert isinstance(output, Text)
    reasoning, rest = split(output.whole)
    parts = []
    if image and any((boxes := boxes_of(prompt, output)).values()):
        uri = image_uri(jpeg(image_with_boxes(image, boxes)), "image/jpeg")
        parts.append(f'<img alt="the image with boxes" src="{uri}">')
    if reasoning:
        size = len(reasoning.split())
        parts.append(
            f"<details><summary>reasoning, {size} words</summary><p class='text'>{escape(reasoning)}</p></details>"
        )
    marked = TAGS.sub(r'<span class="tag">\1</span>', escape(rest))
    parts.append(f'<p class="text">{marked or "(nothing)"}</p>')
    length = f"{output.tokens} tokens" + (", truncated" if output.truncated else "")
    return card(side, i, parts, length)


def boxes_of(prompt: Prompt, output: Text) -> Mapping[str, Any]:
    """The boxes of an answer (``said``) and of the reference (``gold``); none where they cannot be placed.

    Without a task a text that has boxes is taken for an answer about places.
    """
    from reward_models.rules import drawn_boxes

    try:
        return drawn_boxes.boxes_of(prompt if prompt.task else replace(prompt, task="box_iou"), output).get("boxes", {})
    except ValueError:  # coordinates that need a size that is not known
        return {}


def heading(prompt: Prompt, boxed: bool) -> str:
    """Mark-up of the question, the reference answer, and the colours of boxes where an answer has any."""
    parts = [escape(f"“{prompt.text}”")]
    if prompt.answer is not None:
        parts.append(f"reference answer: <b>{escape(shown_answer(prompt.answer))}</b>")
    if boxed:
        gold = f', <b style="color:{REFERENCE}">reference</b>' if prompt.answer is not None else ""
        parts.append(f'boxes: <b style="color:{PREDICTION}">answer</b>{gold}')
    return f'<p class="soft">{"; ".join(parts)}</p>'


def label(prompt: Prompt) -> str:
    """An example in the list."""
    kind = prompt.media[0].kind if prompt.media else "text"
    return f"{prompt.text[:80]} ({kind}{', ' + prompt.task if prompt.task else ''})"


def tab(opened: Opened) -> None:
    """Build the tab."""
    from reward_models.rules.grounding import COORDINATES
    from reward_models.rules.tasks import TASKS

    names, examples = opened.of("vlm", "text"), Examples(opened)
    gr.Markdown(ABOUT)
    if not names:
        gr.Markdown(
            "No vision-language model is open. Train one (`mmgrpo train --recipe vlm/demo`) and name its run folder."
        )
        return
    with gr.Row():
        with gr.Column(min_width=300):
            pair = gr.Dropdown(names, label="Models", elem_id="vlm-pair")
            example = gr.Dropdown([("my own question", OWN)], label="Held-out example", elem_id="vlm-example")
            suffixes = [*SUFFIXES["image"], *SUFFIXES["video"]]
            file = gr.File(file_types=suffixes, label="Or upload an image or a video", height=140, elem_id="vlm-file")
        with gr.Column(min_width=300):
            preview = gr.HTML(elem_id="vlm-preview")
            question = gr.Textbox(label="Question", lines=2, max_length=MAX_TEXT, elem_id="vlm-question")
            with gr.Accordion("Reference answer, for rewards that compare with one", open=False):
                answer = gr.Textbox(label="Reference answer", elem_id="vlm-answer")
                task = gr.Dropdown(["", *TASKS], label="Task", info="how the reward task compares", elem_id="vlm-task")
                about = "Coordinates of boxes in answers about uploads"
                coordinates = gr.Dropdown(list(COORDINATES), value="resized", label=about, elem_id="vlm-coordinates")
    with gr.Row():
        count = gr.Slider(1, MOST, 4, step=1, label="Answers", elem_id="vlm-count")
        temperature = gr.Slider(
            0, 2, 1.0, step=0.1, label="Temperature", info="0 is the most likely answer", elem_id="vlm-temperature"
        )
        seed = gr.Number(0, label="Seed", precision=0, minimum=0, elem_id="vlm-seed")
    controls, result = running("Ask", "vlm-ask"), gr.HTML(elem_id="vlm-result")

    def fill(name: str, key: str) -> list[Any]:
        """The fields of an example, and its media."""
        with one_line_errors():
            chosen = examples.get(name, key)
            if chosen is None:
                return [gr.skip(), "", "", None, ""]
            # The whole conversation where it is more than one question.
            more = f'<p class="text soft">{escape(words(chosen))}</p>' if len(chosen.turns) > 1 else ""
            shown = frame("".join(medium(item, f"{item.kind} of the question") for item in chosen.media) + more)
            known = chosen.task if chosen.task in TASKS else ""
            return [chosen.text, shown_answer(chosen.answer), known, None, shown]

    def upload(path: str | None) -> list[Any]:
        """A question of the visitor's own about a file, which is shown."""
        try:
            shown = frame(medium(read_upload(path), "your upload")) if path else ""
        except ValueError as error:
            shown = refusal_html(error, path or "")
        return [OWN, OWN, "", "", shown]

    chosen = examples.offer(pair, example, label, fill, [question, answer, task, file, preview])
    gr.on([file.upload, file.clear], upload, [file], [example, chosen, answer, task, preview], **QUIET)
    inputs = [pair, example, file, question, answer, task, coordinates, count, temperature, seed]
    at_run(controls, inputs, [result], partial(ask, opened, examples), file=2)
