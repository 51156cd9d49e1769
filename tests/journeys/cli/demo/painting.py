"""A pair of models that paint grey, with rewards that succeed and fail."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mmgrpo.cli.demo.models import AFTER, BEFORE, Opened, Pair
from mmgrpo.cli.demo.visual_samples import Comparison, draw_sides
from mmgrpo.cli.train import read
from mmgrpo.family import family
from mmgrpo.scoring import Scorer
from mmgrpo.types import Image, Output, Prompt, Request, Video
from pipelines.visual.family import VisualFamily

EVIL = "<img src=x onerror=alert(1)> {{#each a}} ${1+1} \"'"


@dataclass(frozen=True)
class Painter(VisualFamily):
    """A family whose models paint a colour that their noise says."""

    def accept(self, config: Any, policy: Any, prompts: Any) -> Any:
        """Refuse one word."""
        if "unreadable" in prompts[0].text:
            raise ValueError(f"the prompt {prompts[0].text!r} cannot be read whole")
        return prompts, []


class Painting:
    """The model of a side: grey of a brightness that (seed, slot) decides, brighter by ``gain``."""

    def __init__(self, gain: float, clips: bool, opened: Opened) -> None:
        self.gain, self.clips, self.opened, self.requests = gain, clips, opened, []

    def sample(self, request: Request) -> list[Output]:
        """One picture, or clip, per slot."""
        assert self.opened.lock.locked()
        self.requests.append(request)
        greys = [
            self.gain + (request.seed % 7 + slot) / 100 for slot in request.slots for _ in range(request.group_size)
        ]
        if self.clips:
            return [Video(torch.full((2, 3, 4, 4), grey), 4.0) for grey in greys]
        return [Image(torch.full((3, 4, 4), grey)) for grey in greys]


def painters(sides: Sequence[str] = (BEFORE, AFTER), clips: bool = False, **changes: Any) -> Opened:
    """An opened pair 'a' of two painters, whose rewards are brightness and one that fails."""
    config = read(["--model.family", "sd3", "--rewards", "brightness", "broken(weight=0)"], "")
    fields = {field: getattr(family("sd3"), field) for field in ("name", "about", "module", "architectures")}
    pair = Pair("a", config, Painter(**{**fields, **changes}), weights="b" if AFTER in sides else "")
    opened = Opened({}, {"a": pair}, Path("votes.jsonl"))
    for side in sides:
        key = "a", side, "b" if side == AFTER else ""
        opened.loaded[key] = Painting(0.2 if side == AFTER else 0.1, clips, opened)  # type: ignore[assignment]
    opened.rewards["a"] = [Scorer("brightness", brightness), Scorer("broken", broken, 0.0)], {"missing": "not there"}
    return opened


def brightness(prompts: Sequence[Prompt], outputs: Sequence[Any]) -> list[float]:
    """Mean of all pixels; not defined for the first sample."""
    tensors = [output.pixels if isinstance(output, Image) else output.frames for output in outputs]
    return [math.nan, *(float(tensor.mean()) for tensor in tensors[1:])]


def broken(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    """A reward that raises."""
    raise RuntimeError(f"no weights for {EVIL}")


def drawn(count: int = 5, opened: Opened | None = None) -> Comparison:
    """All samples of a pair."""
    opened = opened or painters()
    *_, last = draw_sides(opened, "a", Prompt("a wall"), 3, count)
    return last
