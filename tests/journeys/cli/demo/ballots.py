"""Pairs of models that need no network, for the tests of votes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from mmgrpo.cli.demo import vote_trials as trials
from mmgrpo.cli.demo.models import AFTER, BEFORE, Opened, Pair
from mmgrpo.config.settings import config_class
from mmgrpo.family import family
from mmgrpo.types import Audio, Image, Prompt, Text, Video

HOSTILE = "<img src=x onerror=alert(1)>"


def drawn(seed, *shape):
    """Pixels that eight bits represent exactly."""
    return torch.randint(256, shape, generator=torch.Generator().manual_seed(seed)).float() / 255


FLAT, BUSY = Image(torch.full((3, 16, 16), 128 / 255)), Image(drawn(1, 3, 16, 16))
STILL, MOVING = Video(drawn(0, 1, 3, 15, 17).expand(4, 3, 15, 17), 4.0), Video(drawn(1, 4, 3, 15, 17), 4.0)
SHORT, LONG = (Audio(torch.sin(torch.arange(n) / 5)[None] / 2, 16_000) for n in (1600, 3200))
PAIRS = {
    "picture": (FLAT, BUSY, "jpeg_incompressibility"),
    "clip": (MOVING, STILL, "frame_smoothness"),
    "sound": (SHORT, LONG, "seconds"),
    "text": (Text(f"<answer>{HOSTILE}</answer>"), Text("<answer>3</answer>"), "exact"),
}
"""Outputs before and after, and a reward that prefers the second."""


class Model:
    """A policy that gives what it is told to, and keeps what it was asked."""

    network = provides = fields = keys = kind = settings = None
    rollout = score = keep_reference = save = lambda *given: pytest.fail("it is only sampled from")

    def __init__(self, *outputs):
        self.outputs, self.asked = outputs, []

    def sample(self, request):
        self.asked.append(request)
        return [self.outputs[(len(self.asked) - 1) % len(self.outputs)]]


@dataclass(frozen=True)
class ToyPair(Pair):
    """A pair whose held-out prompts are given."""

    prompts: tuple[Prompt, ...] = ()

    def examples(self, count):
        return list(self.prompts)[:count]


def pair(rewards=(), prompts=(), modality="visual", run=None, weights="model"):
    """A pair of models, with the options of a family of the modality."""
    one = family({"visual": "sd3", "vlm": "qwen_vl", "speech": "whisper"}[modality])
    config = config_class(one.sections)()
    config = replace(config, rewards=list(rewards), model=replace(config.model, path="base"))
    return ToyPair("a", config, one, run, weights, tuple(prompts))


def opened_on(folder, one, before=None, after=None):
    """What is open: one pair, with its models loaded."""
    opened = Opened({}, {one.name: one}, folder / "votes.jsonl")
    opened.loaded.update({(one.name, BEFORE, ""): before, (one.name, AFTER, one.trained): after})
    return opened


ASKED = Prompt("how many?", "id-1", "3")


def trial_of(before, after, left=BEFORE, prompt=ASKED):
    return trials.Trial("a", prompt, 7, {BEFORE: before, AFTER: after}, left, {})


def last(opened, questions):
    """The trial at the end of the steps."""
    *_, trial = trials.trials(opened, "a", questions)
    return trial
