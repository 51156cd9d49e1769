"""UnifiedReward (arXiv:2503.05236) and its successors as judges: the labels and scales of each version.

    unified_reward(judge="chat(url='http://127.0.0.1:8080/v1', model='UnifiedReward')", mode="v2", axis="mean")

The questions are worded here; the models were trained with wordings of their own, which ``question`` gives: the text,
with ``{prompt}`` in it, or the name of a file that holds it.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from pathlib import Path

from mmgrpo.scoring.manifest import reward
from mmgrpo.types import Image, Output, Prompt
from reward_models.judges.named import judge_named
from reward_models.judges.pairwise import compare, win_rates
from reward_models.judges.pointwise import image_parts
from reward_models.judges.question import Question, ask, sources_of
from reward_models.judges.verdicts import flex_verdict, number_after, verdict
from reward_models.pixels import from_pil, to_pil

judged = functools.partial(
    reward,
    reads=("text", "media"),
    source="UnifiedReward, arXiv:2503.05236",
    check="reward_models.judges.named:check_judge",
    row="reward_models.judges.question:check_source",
    version=2,
)

AXES = ("Alignment", "Coherence", "Style")

SIDE = 512
"""Pixels of the square that version 1.5 is shown, as Flow-GRPO does."""

V15 = (
    "Rate this generated image from 1 to 5 by how well it fits its caption and by its quality.\n"
    "Caption: {prompt}\nEnd with one line:\nFinal Score: <number>"
)
V2 = (
    "Rate this generated image from 1 to 5 in three respects: whether it shows what its caption says (alignment), "
    "whether it is free of distortions (coherence), and its look (style).\nCaption: {prompt}\n"
    "Answer with three lines:\nAlignment Score (1-5): <number>\nCoherence Score (1-5): <number>\n"
    "Style Score (1-5): <number>"
)
THINK = (
    "Reason inside of <think></think>, then say inside of <answer></answer>: Output 1 is better, or Output 2 is better."
)
FLEX = (
    'Answer with one JSON object: {"categories": [{"name": ..., "cat_winner": "Image 1" or "Image 2"}, ...], '
    '"winner": "Image 1" or "Image 2"}.'
)


@judged("Image", scale="as the judge rates")
def unified_reward(
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    judge: str,
    mode: str = "v2",
    axis: str = "mean",
    question: str = "",
    tokens: int = 512,
    media: bool = True,
    device: str = "cpu",
) -> list[float]:
    """The score of an image in [0, 1], (x - 1) / 4 of a number from 1 to 5.

    ``mode`` v2 gives three of them, of which ``axis`` (alignment, coherence, style) takes one or the mean of all; v1.5
    gives one, after "Final Score:". Flow-GRPO divides that one by 5 instead. ``media`` is that of ``judge_score``.
    """
    if mode not in ("v2", "v1.5") or axis not in ("mean", *(name.lower() for name in AXES)):
        raise ValueError(
            f"unified_reward: got mode={mode!r} and axis={axis!r}, expected v2 or v1.5, and mean, alignment, coherence "
            "or style; comparisons are unified_reward_pairs"
        )
    asked_text = template(question, V2 if mode == "v2" else V15, "unified_reward")
    axes = [name for name in AXES if axis in ("mean", name.lower())]

    def read(text: str | None) -> float | None:
        if mode == "v1.5":
            return number_after(text, "Final Score", 1, 5)
        values = [number_after(text, f"{name} Score", 1, 5) or number_after(text, name, 1, 5) for name in axes]
        readable = [value for value in values if value is not None]
        return sum(readable) / len(readable) if len(readable) == len(axes) else None

    questions = []
    sources = sources_of(prompts, outputs, media, titles=not question)
    for prompt, output, source in zip(prompts, outputs, sources, strict=True):
        output_parts = image_parts(output, "unified_reward", "Output")
        text = asked_text.replace("{prompt}", prompt.text)
        if output_parts is None or source is None:
            questions.append(None)
            continue
        parts = (*source, *(output_parts if source and not question else output_parts[1:]))
        squared = [_square(part) if mode == "v1.5" and isinstance(part, Image) else part for part in parts]
        questions.append(Question((*squared, text)))
    values = ask(judge_named(judge, device), questions, read, tokens, "Keep to the form that was asked for.")
    return [(value - 1) / 4 for value in values]


@judged("Text", "Image", "Video", scale="share of the group that is beaten", group=True)
def unified_reward_pairs(
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    judge: str,
    mode: str = "think",
    both_orders: bool = True,
    question: str = "",
    tokens: int = 4096,
    media: bool = True,
    device: str = "cpu",
) -> list[float]:
    """Win rates within the group (``judge_pairs``) by a judge that reasons first (``think``), or that gives a winner of
    several categories and one of all in JSON (``flex``): the mean of the winner and of the mean over categories.

    ``question`` is the published text, or its file, with {prompt} in it; it stands after the two images. Those of
    CodeGoat24/UnifiedReward (at ff6f5202) have the prompt inside, and call the outputs Image 1 and Image 2; those of
    UnifiedReward-Edit (at 57aabd3c) have the source image before the two, as it is shown here."""
    if mode not in ("think", "flex"):
        raise ValueError(f"unified_reward_pairs: mode: got {mode!r}, expected think or flex")
    read, form = (verdict, THINK) if mode == "think" else (flex_verdict, FLEX)
    text = "Which of the two fits the prompt better and is of better quality?"
    whole = template(question, "", "unified_reward_pairs")
    return win_rates(
        prompts, compare(prompts, outputs, judge, text, both_orders, tokens, media, device, read, form, whole)
    )


def template(question: str, default: str, reward: str) -> str:
    """The text of a question with {prompt} in it, from a recipe or from the file that it names; or the default."""
    if not question:
        return default
    place = os.path.expanduser(question)
    text = Path(place).read_text("utf-8") if os.path.isfile(place) else question
    if "{prompt}" not in text:
        raise ValueError(f"{reward}: question: got {question[:80]!r}, expected a text with {{prompt}} in it, or a file")
    return text


def _square(image: Image) -> Image:
    return Image(from_pil(to_pil(image).resize((SIDE, SIDE))))
