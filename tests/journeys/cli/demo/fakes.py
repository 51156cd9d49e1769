"""What the demo opens in tests: pairs whose models answer what a test tells them, media, and folders of runs."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import gradio as gr
import pytest
import torch
from PIL import Image as Pil
from torch import nn

from mmgrpo.cli.demo import compare, visual, vote
from mmgrpo.cli.demo.models import AFTER, BEFORE, Opened, Pair
from mmgrpo.cli.train import read
from mmgrpo.family import family
from mmgrpo.policies.token import TokenPolicy
from mmgrpo.policies.token_model import FeatureCache
from mmgrpo.runtime.identity import MARKER
from mmgrpo.scoring import Scorer
from mmgrpo.types import Audio, Image, Output, Prompt, Request, Text, Video

EVIL = "<img src=x onerror=alert(1)> {{#each a}} ${1+1} \"'"
NAN = math.nan


def noise(seed: int, *shape: int) -> torch.Tensor:
    """Pixels that eight bits represent exactly."""
    return torch.randint(256, shape, generator=torch.Generator().manual_seed(seed)).float() / 255


FLAT, BUSY = Image(torch.full((3, 16, 16), 128 / 255)), Image(noise(1, 3, 16, 16))
STILL, MOVING = Video(noise(0, 1, 3, 15, 17).expand(4, 3, 15, 17), 4.0), Video(noise(1, 4, 3, 15, 17), 4.0)
SHORT, LONG = (Audio(torch.sin(torch.arange(n) / 5)[None] / 2, 16_000) for n in (1600, 3200))
KINDS: dict[str, tuple[Output, Output, str]] = {
    "image": (FLAT, BUSY, "jpeg_incompressibility"),
    "video": (MOVING, STILL, "frame_smoothness"),
    "audio": (SHORT, LONG, "seconds"),
    "text": (Text(f"<answer>{EVIL}</answer>"), Text("<answer>3</answer>"), "exact"),
}
"""Outputs before and after, and a reward that prefers the second."""


# ---- models


class Model:
    """A policy that gives its outputs in turn, and keeps what it was asked."""

    network = provides = fields = keys = kind = settings = None
    model = SimpleNamespace(check=lambda prompt: None, architecture=SimpleNamespace(frame_size=None))
    rollout = score = keep_reference = save = lambda *given: pytest.fail("it is only sampled from")

    def __init__(self, *outputs: Output) -> None:
        self.outputs, self.asked = outputs, []

    def sample(self, request: Request) -> list[Output]:
        """The next output."""
        self.asked.append(request)
        return [self.outputs[(len(self.asked) - 1) % len(self.outputs)]]


class Answering(TokenPolicy):
    """Answers a request with the outputs of ``answer(number of the answer)``, and keeps what it was asked."""

    def __init__(self, opened: Opened, answer: Callable[[int], Output]) -> None:
        self.opened, self.answer = opened, answer
        self.network, self.settings, self.fields = nn.Identity(), None, frozenset()
        self.evaluation_temperature = 0.0
        self.feature_cache = FeatureCache(0)
        self.asked: list[tuple[Prompt, int, int, int, float]] = []

    def sample(self, request: Request) -> list[Output]:
        """As many answers as the group has."""
        assert self.opened.lock.locked()
        before = sum(size for _, _, size, _, _ in self.asked)
        seed, slot, size = request.seed, request.slots[0], request.group_size
        self.asked.append((request.prompts[0], slot, size, seed, self.evaluation_temperature))
        return [self.answer(before + number) for number in range(size)]


def accept(config: Any, policy: Any, prompts: Any) -> Any:
    """Every prompt without one word."""
    if "unreadable" in prompts[0].text:
        raise ValueError(f"the prompt {prompts[0].text!r} cannot be read in full")
    return prompts, []


class Painting:
    """The model of a side: grey of a brightness that (seed, slot) decides, brighter by ``gain``."""

    def __init__(self, gain: float, videos: bool, opened: Opened) -> None:
        self.gain, self.videos, self.opened, self.requests = gain, videos, opened, []

    def sample(self, request: Request) -> list[Output]:
        """One image, or video, per slot."""
        assert self.opened.lock.locked()
        self.requests.append(request)
        greys = [self.gain + (request.seed % 7 + slot) / 100 for slot in request.slots]
        if self.videos:
            return [Video(torch.full((2, 3, 4, 4), grey), 4.0) for grey in greys]
        return [Image(torch.full((3, 4, 4), grey)) for grey in greys]


# ---- pairs


def pair(
    family_name: str = "sd3",
    rewards: Sequence[str] = (),
    prompts: Sequence[Prompt] | None = (),
    *,
    name: str = "a",
    heldout: str = "",
    weights: str = "model",
    run: Path | None = None,
) -> Pair:
    """A pair whose models are never loaded; ``prompts`` None are those of the file ``heldout``."""
    config = read(["--model.family", family_name, "--model.path", "base"], "")
    config = replace(config, rewards=list(rewards), data=replace(config.data, heldout=heldout))
    one = Pair(name, config, family(family_name), run, weights)
    if prompts is not None:
        one.__dict__["_heldout"] = list(prompts)
    return one


def holding(one: Pair, *models: Any) -> Opened:
    """What is open: a pair whose sides are these models."""
    opened = Opened({}, {one.name: one}, Path("votes.jsonl"))
    for side, model in zip((BEFORE, AFTER), models, strict=False):
        opened.loaded[one.name, side, one.trained if side == AFTER else ""] = model
    return opened


def answering(one: Pair, *answers: Callable[[int], Output]) -> tuple[Opened, list[Answering]]:
    """A pair whose sides answer; without answers a look at its models is an error."""
    opened = holding(one)
    sides = [Answering(opened, answer) for answer in answers]
    opened.loaded.update(holding(one, *sides).loaded)
    return opened, sides


def painters(sides: Sequence[str] = (BEFORE, AFTER), videos: bool = False) -> Opened:
    """An opened pair 'a' of two painters, whose rewards are brightness and one that fails."""
    painter = replace(family("sd3"), accept=accept)
    one = replace(pair(prompts=None, weights="b" if AFTER in sides else ""), family=painter)
    opened = holding(one)
    opened.loaded.update(
        holding(one, *(Painting(0.2 if side == AFTER else 0.1, videos, opened) for side in sides)).loaded
    )
    opened.rewards["a"] = [Scorer("brightness", brightness), Scorer("broken", broken, 0.0)], {"missing": "not there"}
    return opened


def brightness(prompts: Sequence[Prompt], outputs: Sequence[Any]) -> list[float]:
    """Mean of all pixels; not defined for the first sample."""
    tensors = [output.pixels if isinstance(output, Image) else output.frames for output in outputs]
    return [NAN, *(float(tensor.mean()) for tensor in tensors[1:])]


def broken(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    """A reward that raises."""
    raise RuntimeError(f"no weights for {EVIL}")


def drawn(count: int = 5, opened: Opened | None = None) -> visual.Drawn:
    """All samples of a pair of painters."""
    *_, last = compare.compare(opened or painters(), "a", Prompt("a wall"), seed=3, count=count)
    return visual.Drawn(
        last, {side: [visual.sample_of(one) for one in made.outputs] for side, made in last.sides.items()}
    )


def trial(before: Output, after: Output, left: str = BEFORE, **options: Any) -> vote.Trial:
    """Two outputs to vote on."""
    prompt = options.pop("prompt", Prompt("how many?", "id-1", "3"))
    return vote.Trial("a", prompt, 7, {BEFORE: before, AFTER: after}, left, options.pop("values", {}), **options)


# ---- pages


def page(tab: Callable[[Opened], None], opened: Opened) -> dict[str, Any]:
    """The components of a tab by id, its functions by name under ``functions``, and all its texts under ``texts``."""
    with gr.Blocks(analytics_enabled=False) as blocks:
        tab(opened)
    every = list(blocks.blocks.values())
    components: dict[Any, Any] = {one.elem_id: one for one in every if getattr(one, "elem_id", None)}
    texts = " ".join(str(getattr(one, "value", "")) for one in every)
    functions = {one.name: one.fn for one in blocks.fns.values()}
    return {**components, "functions": functions, "events": list(blocks.fns.values()), "texts": texts}


def silent(*place: Any, **words: Any) -> None:
    """A progress bar that nobody sees."""


# ---- run folders

ESTIMATE = {"mean": 0.5, "low": 0.25, "high": 0.75, "n": 8}


def write_run(
    folder: Path,
    steps: int = 4,
    finished: bool = True,
    config: str = "seed: 0\n",
    metrics: Mapping[str, float] = MappingProxyType({}),
) -> Path:
    """A run folder whose metric ``loss`` is ten times the step."""
    (folder / "samples").mkdir(parents=True)
    (folder / MARKER).write_text("{}")
    (folder / "config.yaml").write_text(config)
    rows = [{"step": s, "seconds": s / 2, "loss": 10.0 * s, **metrics} for s in range(1, steps + 1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if finished:
        sides = {"before": {"r": ESTIMATE}, "after": {"r": ESTIMATE}, "difference": {"r": ESTIMATE}}
        (folder / "summary.json").write_text(json.dumps({"eval": sides}))
    buffer = BytesIO()
    Pil.new("RGB", (8, 8), "red").save(buffer, format="PNG")
    for moment in ("before", "step-000010", "step-000002", "after"):
        (folder / "samples" / f"{moment}.png").write_bytes(buffer.getvalue())
    return folder
