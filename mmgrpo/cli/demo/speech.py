"""The tab Speech: transcripts of a recording, and a text spoken, by the models of a pair."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import gradio as gr

from mmgrpo.cli.demo.compare import (
    MAX_TEXT,
    OWN,
    TITLES,
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
from mmgrpo.cli.demo.models import AFTER, BEFORE, Opened, Pair
from mmgrpo.cli.demo.parts import (
    QUIET,
    checked_text,
    escape,
    frame,
    medium,
    one_line_errors,
    reasons_list,
    refusal_html,
)
from mmgrpo.report.audio_player import KINDS, Word, alignment, errors
from mmgrpo.report.render import render
from mmgrpo.types import Audio, Media, Prompt, Text, Turn

HEAR = """Record or upload speech, and read what the recognizer hears before and after training. Words that differ from
the reference are marked; without one, those that differ between the two."""
SPEAK = """Write a text, and hear it spoken before and after training. A voice without saved weights is pretrained when
it is first needed, which takes a minute."""
MAX_SPOKEN = 300
"""Characters of a text to speak, about 20 seconds."""
BARS = 120
"""Bars of the longest waveform."""


def hears(pair: Pair) -> bool:
    """Whether a pair transcribes recordings; otherwise it speaks."""
    return pair.family.sections.outputs == "Text"


def transcribe(
    opened: Opened, examples: Examples, name: str, key: str, file: str | None, question: str, reference: str
) -> Iterator[tuple[Comparison, str]]:
    """The comparison so far, and mark-up of its transcripts."""
    pair = look_up(opened, name)
    prompt = heard_prompt(pair, examples.get(name, key), file, question, reference)
    for made in compare(opened, name, prompt):
        title = f'<p class="soft">{escape(prompt.id)}</p>' if made.sides else ""
        yield made, frame(title + sections(transcripts(pair, prompt, made.sides)))


def heard_prompt(pair: Pair, example: Prompt | None, file: str | None, question: str, reference: str) -> Prompt:
    """The example with the reference as the visitor left it, or a prompt of a recording; ``Unreadable`` beyond
    limits."""
    question = checked_text(question, "question", MAX_TEXT).strip()
    reference = checked_text(reference, "reference", MAX_TEXT).strip()
    if example:
        return edit_example(example, question, reference, reference or None)
    if not file:
        raise ValueError("recording: got none, expected a recording; record or upload one, or choose an example")
    audio = read_upload(pair, file)
    parts = (Media("audio", audio), *([question] if question else []))
    return Prompt(question, Path(file).name, reference or None, "transcribe", {}, (Turn("user", parts),))


def read_upload(pair: Pair, file: str) -> Audio:
    """A recording within the limits of data and of the model; ``Unreadable`` otherwise."""
    from pipelines.speech.audio import read_audio
    from pipelines.speech.families import longest

    return read_audio(Media("audio", file), max_seconds=longest(pair.config.model)[0])


def transcripts(pair: Pair, prompt: Prompt, drawn: Mapping[str, Side]) -> dict[str, str]:
    """Mark-up of each side: the transcript aligned with the reference, the error rate, and rewards."""
    texts = {side: samples.outputs[0].text for side, samples in drawn.items() if isinstance(samples.outputs[0], Text)}
    columns = {}
    for side, text in texts.items():
        samples = drawn[side]
        parts = [f'<p class="text">{escape(text) or "(nothing)"}</p>']
        if isinstance(prompt.answer, str):
            parts.append(against(prompt.answer, text, rule(pair, prompt.answer, prompt)))
        elif side == AFTER:
            parts.append(changes(texts[BEFORE], text, rule(pair, text, prompt)))
        output = samples.outputs[0]
        cut = ["truncated"] if isinstance(output, Text) and output.truncated else []
        columns[side] = card(samples, 0, parts, *cut) + reasons_list(samples.reasons)
    return columns


def rule(pair: Pair, text: str, prompt: Prompt | None = None) -> str:
    """The normalization under which words are compared: that of the language of the row or of the model, else of the
    letters of the text. What a visitor speaks may be another language than the model's English."""
    from reward_models.rules.transcripts import language_of, rule_of

    row = language_of(prompt) if prompt else ""
    name = rule_of(row or getattr(pair.config.model, "language", ""), text)
    return "basic" if name == "english" and not (row or text.isascii()) else name


def against(reference: str, text: str, normal: str) -> str:
    """Mark-up of a transcript aligned with its reference, and of its word error rate."""
    from reward_models.rules.transcripts import align

    pairs = [tuple(pair) for pair in align(reference, text, normal)]
    units = sum(bool(word) for _, word, _ in pairs)
    rate = f" · word error rate <b>{errors(pairs) / units:.1%}</b>" if units else ""
    return f'{alignment(pairs)}<span class="soft">{rate}</span>'


def changes(before: str, after: str, normal: str) -> str:
    """Mark-up of the words that two transcripts do not share."""
    from reward_models.rules.transcripts import align

    pairs = [tuple(pair) for pair in align(before, after, normal)]
    words = [
        Word(kind, old, new, KINDS[kind][0], f"before “{old}”, after “{new}”" if kind != "equal" else "")
        for kind, old, new in pairs
    ]
    count = errors(pairs)
    summary = f"{count} {'word differs' if count == 1 else 'words differ'} from the transcript before training"
    return render("alignment.html", {"words": words, "summary": summary})


def speak(opened: Opened, examples: Examples, name: str, key: str, text: str) -> Iterator[tuple[Comparison, str]]:
    """The comparison so far, and mark-up of its recordings."""
    pair = look_up(opened, name)
    prompt = spoken_prompt(pair, examples.get(name, key), text)
    for made in compare(opened, name, prompt):
        title = f'<p class="soft">“{escape(prompt.text)}”</p>' if made.sides else ""
        yield made, frame(title + sections(recordings(prompt, made.sides)))


def spoken_prompt(pair: Pair, example: Prompt | None, text: str) -> Prompt:
    """The example, unless the visitor changed its text."""
    text = " ".join(text.split())
    if example and text == example.text:
        return example
    if not any(map(str.isalnum, text)):
        raise ValueError(f"text: got {text!r:.80}, expected words to speak; write a sentence")
    if len(text) > MAX_SPOKEN:
        raise ValueError(f"text: got {len(text):,} characters, expected at most {MAX_SPOKEN}; shorten it")
    return pair.family.prompts(pair.config, [text])[0]


def recordings(prompt: Prompt, drawn: Mapping[str, Side]) -> dict[str, str]:
    """Mark-up of each side: a waveform and a player, the rate, what a reward heard, and rewards."""
    spoken = {side: samples.outputs[0] for side, samples in drawn.items() if isinstance(samples.outputs[0], Audio)}
    lengths = {side: audio.samples.shape[-1] / audio.rate for side, audio in spoken.items()}
    columns = {}
    for side, audio in spoken.items():
        samples, seconds = drawn[side], lengths[side]
        parts = [
            waveform(audio, lengths[side] / max(lengths.values())),
            medium(audio, f"{TITLES[side]}: {prompt.text}"),
            f'<p class="soft">{seconds:.2f} s, {len(prompt.text.split()) / seconds:.1f} words a second</p>',
        ]
        if samples.notes and samples.notes[0].get("heard") is not None:
            parts.append(f"<p>a recognizer hears: “{escape(samples.notes[0]['heard'])}”</p>")
            parts.append(alignment(samples.notes[0].get("aligned", [])))
        columns[side] = card(samples, 0, parts) + reasons_list(samples.reasons)
    return columns


def waveform(audio: Audio, share: float) -> str:
    """The peaks of a recording as SVG; ``share`` of the width of the longest one, so durations can be compared."""
    count = max(2, round(BARS * share))
    peaks = [float(part.abs().max()) for part in audio.samples.mean(0).tensor_split(count) if part.numel()]
    heights = [max(1.0, 52 * peak / max([*peaks, 1e-6])) for peak in peaks]
    bars = "".join(
        f'<rect x="{4 * i}" y="{28 - height / 2:.1f}" width="3" height="{height:.1f}"/>'
        for i, height in enumerate(heights)
    )
    size = f'viewBox="0 0 {4 * BARS} 56" width="100%" preserveAspectRatio="none"'
    return f'<svg class="wave" {size} role="img" aria-label="waveform">{bars}</svg>'


def tab(opened: Opened) -> None:
    """Build the tab."""
    names, examples = opened.of("speech"), Examples(opened)
    recognizers = [name for name in names if hears(opened.pairs[name])]
    speakers = [name for name in names if name not in recognizers]
    if not names:
        gr.Markdown(
            "No speech model is open. Train one (`mmgrpo train --recipe speech/whisper_adapt`) and name its run."
        )
    if recognizers:
        recognition(opened, examples, recognizers)
    if speakers:
        synthesis(opened, examples, speakers)


def recognition(opened: Opened, examples: Examples, names: Sequence[str]) -> None:
    """Build the half that transcribes."""
    gr.Markdown(f"### Recognition\n{HEAR}")
    with gr.Row():
        with gr.Column(min_width=300):
            pair = gr.Dropdown(list(names), label="Recognizer", elem_id="speech-recognizer")
            example = gr.Dropdown([("my own recording", OWN)], label="Held-out example", elem_id="speech-example")
            preview = gr.HTML(elem_id="speech-preview")
        with gr.Column(min_width=300):
            file = gr.Audio(
                sources=["microphone", "upload"],
                type="filepath",
                buttons=[],
                label="Or record or upload a recording",
                elem_id="speech-file",
            )
            reference = gr.Textbox(label="Reference transcript, if there is one", elem_id="speech-reference")
            question = gr.Textbox(label="Instruction", visible=False, elem_id="speech-question")
    controls, result = running("Transcribe", "speech-transcribe"), gr.HTML(elem_id="speech-transcripts")

    def fill(name: str, key: str) -> list[Any]:
        with one_line_errors():
            visible = look_up(opened, name).family.name != "whisper"
            chosen = examples.get(name, key)
            if chosen is None:
                return ["", gr.Textbox(visible=visible), gr.skip(), ""]
            shown = frame("".join(medium(recording, "the recording") for recording in chosen.media))
        return [shown_answer(chosen.answer), gr.Textbox(chosen.text, visible=visible), None, shown]

    def upload(name: str, path: str | None) -> list[Any]:
        if not path:
            return [gr.skip()] * 4
        try:
            audio = read_upload(look_up(opened, name), path)
        except ValueError as error:
            return [OWN, OWN, "", refusal_html(error, path)]
        note = f"{Path(path).name}: {audio.samples.shape[-1] / audio.rate:.1f} s at {audio.rate:,} Hz"
        return [OWN, OWN, "", f'<p class="soft">{escape(note)}</p>']

    chosen = examples.offer(pair, example, lambda prompt: prompt.id, fill, [reference, question, file, preview])
    gr.on([file.upload, file.stop_recording], upload, [pair, file], [example, chosen, reference, preview], **QUIET)
    inputs = [pair, example, file, question, reference]
    at_run(controls, inputs, [result], partial(transcribe, opened, examples), file=2)


def synthesis(opened: Opened, examples: Examples, names: Sequence[str]) -> None:
    """Build the half that speaks."""
    gr.Markdown(f"### Synthesis\n{SPEAK}")
    with gr.Row():
        with gr.Column(min_width=300):
            pair = gr.Dropdown(list(names), label="Voice", elem_id="speech-voice")
            example = gr.Dropdown([("my own text", OWN)], label="Held-out text", elem_id="speech-said")
        with gr.Column(min_width=300):
            text = gr.Textbox(label="Text to speak", lines=3, max_length=MAX_SPOKEN, elem_id="speech-text")
    controls, result = running("Speak", "speech-speak"), gr.HTML(elem_id="speech-sounds")

    def fill(name: str, key: str) -> list[str]:
        with one_line_errors():
            chosen = examples.get(name, key)
        return [chosen.text if chosen else ""]

    examples.offer(pair, example, lambda prompt: prompt.text[:60], fill, [text])
    at_run(controls, [pair, example, text], [result], partial(speak, opened, examples))
