"""Benchmarks of generated images."""

from __future__ import annotations

from collections.abc import Mapping

from mmgrpo.types import Prompt
from reward_models.evaluation.comparison import FIRST, SECOND, TIE, Comparison, Stored
from reward_models.evaluation.readers.rows import Row

VOTES = {"leftvote": FIRST, "rightvote": SECOND, "tievote": TIE, "bothbad_vote": TIE}
"""Votes of GenAI-Arena; "both bad" is a tie, since a score has no third verdict."""


def hpdv2(row: Row) -> Comparison:
    """HPDv2 (arXiv:2306.09341), ``test.json``: {prompt, image_path[n], rank[n]}, rank 1 is best."""
    files = row.items("image_path")
    images = tuple(row.medium("image", "image_path", file) for file in files)
    return Comparison(Prompt(row.text("prompt"), row.place), images, row.numbers("rank", len(files)), row.place)


def hpdv3(row: Row) -> Comparison:
    """HPDv3 (arXiv:2508.03789), ``test.json``: {prompt, path1, path2}, of which path1 is preferred."""
    images = (row.image("path1"), row.image("path2"))
    return Comparison(Prompt(row.text("prompt"), row.place), images, FIRST, row.place)


def imagereward(row: Row) -> Comparison:
    """ImageReward (arXiv:2304.05977), ``data/test.json``: {id, prompt, generations[n], ranking[n]}, 1 is best."""
    files = row.items("generations")
    images = tuple(row.medium("image", "generations", file) for file in files)
    return Comparison(Prompt(row.text("prompt"), row.place), images, row.numbers("ranking", len(files)), row.place)


def pickapic(row: Row) -> Comparison:
    """Pick-a-Pic (arXiv:2305.01569), Parquet: {caption, jpg_0, jpg_1, label_0, label_1}, labels 1, 0 or 0.5."""
    labels = row.number("label_0"), row.number("label_1")
    if sum(labels) != 1 or labels[0] not in (0, 0.5, 1):
        raise ValueError(f"{row.place}: label_0, label_1: got {labels}, expected (1, 0), (0, 1) or (0.5, 0.5)")
    images = (row.image("jpg_0"), row.image("jpg_1"))
    return Comparison(Prompt(row.text("caption"), row.place), images, (-labels[0], -labels[1]), row.place)


def genai(row: Row) -> Comparison:
    """GenAI-Bench (arXiv:2406.04485): {prompt, left_image, right_image, vote_type}, or clips left_video, right_video;
    of edits {source_image, instruct_prompt, left_output_image, right_output_image, vote_type}."""
    ranks = row.choice("vote_type", VOTES)
    if "left_video" in row.values:
        return Comparison(
            Prompt(row.text("prompt"), row.place), (row.clip("left_video"), row.clip("right_video")), ranks, row.place
        )
    if "instruct_prompt" in row.values:
        images = (row.image("left_output_image"), row.image("right_output_image"))
        prompt = Prompt(row.text("instruct_prompt"), row.place)
        return Comparison(prompt, images, ranks, row.place, about=(row.image("source_image"),))
    images = (row.image("left_image"), row.image("right_image"))
    return Comparison(Prompt(row.text("prompt"), row.place), images, ranks, row.place)


def mjbench(row: Row) -> Comparison:
    """MJ-Bench (arXiv:2407.04842), alignment, safety and quality: {caption, image0, image1, label}, the label is the
    number of the better image. Its category is the row's ``info``, where it has one."""
    ranks = row.choice("label", {0: FIRST, 1: SECOND, "0": FIRST, "1": SECOND})
    category = str(row.optional("info", str | int, ""))
    images = (row.image("image0"), row.image("image1"))
    return Comparison(Prompt(row.text("caption"), row.place), images, ranks, row.place, category)


def votes(row: Row) -> Comparison:
    """Votes of the demo, JSONL: {prompt, left, right, vote_type} and optionally {answer, task, meta, about, category,
    user, id, seed, ...}.

    ``left`` and ``right`` are files of images, clips or audio (relative to the JSONL), or {"text": ...};
    ``vote_type`` is that of GenAI-Bench: leftvote, rightvote, tievote, bothbad_vote. ``answer``, ``task`` and ``meta``
    are what the prompt of the run had, for verifiers, ``about`` its media, and ``user`` who voted. Further keys (when,
    which runs) are ignored.
    """
    values = row.values
    meta = dict(row.optional("meta", Mapping, {}))
    prompt = Prompt(row.text("prompt"), row.place, values.get("answer"), row.optional("task", str, ""), meta)
    sides = (row.output("left", values.get("left")), row.output("right", values.get("right")))
    media = row.optional("about", list, [])
    about = tuple(medium for name in media if isinstance(medium := row.output("about", name), Stored))
    category, user = (str(row.optional(key, str | int, "")) for key in ("category", "user"))
    return Comparison(prompt, sides, row.choice("vote_type", VOTES), row.place, category, about=about, user=user)


def ratings(row: Row) -> Comparison:
    """Absolute ratings, JSONL: {prompt, outputs[n], ratings[n]}, higher is better; outputs as ``left`` in ``votes``."""
    given = row.items("outputs")
    outputs = tuple(row.output("outputs", value) for value in given)
    marks = row.numbers("ratings", len(given))
    ranks = tuple(-mark for mark in marks)
    return Comparison(Prompt(row.text("prompt"), row.place), outputs, ranks, row.place, ratings=marks)
