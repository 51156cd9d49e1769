"""What each benchmark counts: its reader, how a tie of the reward counts, and over what its number is averaged."""

from __future__ import annotations

import functools
import inspect
import itertools
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from mmgrpo.config.names import nearest
from mmgrpo.config.registry import parse
from mmgrpo.runtime.progress import progress_bar
from reward_models.evaluation.comparison import Comparison
from reward_models.evaluation.metrics import TieRule
from reward_models.evaluation.readers import answers, images, scenes
from reward_models.evaluation.readers.rows import Row, read_rows


@dataclass(frozen=True)
class Protocol:
    """One benchmark. ``headline`` is the number that its own table prints."""

    read: Callable[..., Comparison]
    ties: TieRule = "wrong"
    """What an exact tie of the reward counts where people have a preference."""
    headline: Literal["pairs", "thresholded", "inversions", "best"] = "pairs"
    """``pairs``: accuracy without the ties of people. ``thresholded``: with them, at the best threshold of the
    difference. ``inversions``: per prompt. ``best``: a correct output has the highest score."""
    average: Literal["pairs", "prompts", "categories"] = "pairs"
    rows: Callable[..., Iterable[Row]] = read_rows
    """From a path to the rows."""
    note: str = ""
    """Where the rule is from."""


PROTOCOLS: Mapping[str, Protocol] = {
    "hpdv2": Protocol(
        images.hpdv2, "half", "inversions", "prompts",
        note="1 - inversions / pairs per prompt (HPSv2, train code); a tie of the reward is half an inversion",
    ),
    "hpdv3": Protocol(
        images.hpdv3, "half", note="preference accuracy over pairs (HPSv3, arXiv:2508.03789); a tie counts half",
    ),
    "imagereward": Protocol(
        images.imagereward,
        note="over the pairs that people did not tie; a tie of the reward is wrong, as in its script (test.py at "
        "c1392c6d of THUDM/ImageReward)",
    ),
    "pickapic": Protocol(
        images.pickapic, "half",
        note="argmax, over pairs that people did not tie, a tie of the reward half; PickScore's own table is with ties",
    ),
    "genai": Protocol(
        images.genai, headline="thresholded", note="tie and both bad are ties; threshold as acc_23, arXiv:2305.14324"
    ),
    "mjbench": Protocol(
        images.mjbench,
        note="accuracy with ties (MJ-Bench, arXiv:2407.04842): a judge may answer that two images tie, which is wrong; "
        "scores tie within a threshold, here 0",
    ),
    "vlrewardbench": Protocol(
        answers.vlrewardbench, "half",
        note="overall over all pairs, macro over three groups (VL_RewardBench, cal.py), of judges that always choose; "
        "a tie counts half",
    ),
    "mmrewardbench": Protocol(
        answers.mmrewardbench, "half", note="a tie counts half, the expectation of the random answer of its script"
    ),
    "videogen": Protocol(
        answers.videogen, headline="thresholded", note="best threshold over all differences (VideoAlign)"
    ),
    "videorewardbench": Protocol(
        answers.videorewardbench, "half",
        note="over all triplets, macro over five dimensions, of judges that always choose; a tie counts half",
    ),
    "rewardbench2": Protocol(
        answers.rewardbench2, headline="best", average="categories",
        note="a correct answer is best, equal ones share; the subset Ties has its own score (allenai/reward-bench)",
    ),
    "votes": Protocol(images.votes, "half", note="a tie of the reward counts half, what a coin would earn"),
    "ratings": Protocol(images.ratings, "half", note="a tie of the reward counts half, what a coin would earn"),
    "scenes": Protocol(
        scenes.scene_pair, "half", rows=scenes.rows, note="known truth; a tie of the reward counts half"
    ),
}  # fmt: skip
"""Benchmarks by name."""


@dataclass(frozen=True)
class Benchmark:
    """A benchmark that has been read."""

    name: str
    """As on the command line."""
    protocol: Protocol
    comparisons: tuple[Comparison, ...]


def read_benchmark(spec: str, limit: int = 0) -> Benchmark:
    """A benchmark from ``FORMAT:PATH``: ``hpdv2:data/test.json``, ``genai(split="test_v1"):TIGER-Lab/GenAI-Bench``.

    ``config`` and ``split`` are those of a data set of the hub; further parameters are those of the reader. ``limit``
    is the number of rows that are read; 0 for all.
    """
    match = re.fullmatch(r"([\w.-]+(?:\([^)]*\))?):(.+)", spec.strip())
    if match is None:
        raise ValueError(f"--data: got {spec!r}, expected FORMAT:PATH, with a format of {', '.join(PROTOCOLS)}")
    name, parameters = parse(match[1], "--data")
    if name not in PROTOCOLS:
        raise ValueError(f"--data: unknown format '{name}'.{nearest(name, PROTOCOLS)}")
    protocol, source = PROTOCOLS[name], {}
    for key in ("config", "split"):
        if key in parameters:
            source[key] = str(parameters.pop(key))
    accepted = list(inspect.signature(protocol.read).parameters)[1:]
    for key in parameters:
        if key not in accepted:
            raise ValueError(
                f"--data: '{name}' has no parameter '{key}'.{nearest(key, [*accepted, 'config', 'split'])}"
            )
    read = functools.partial(protocol.read, **parameters)
    rows = itertools.islice(protocol.rows(match[2], **source), limit or None)
    comparisons = tuple(read(row) for row in progress_bar(rows, f"reading {name}", unit="row"))
    if not comparisons:
        raise ValueError(f"--data: {match[2]} has no row")
    return Benchmark(spec, protocol, comparisons)
