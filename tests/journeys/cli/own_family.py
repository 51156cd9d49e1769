"""A family whose model says a known number, and two rewards of the tests, as commands name them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mmgrpo.config.settings import Config, Sections
from mmgrpo.family import Family
from mmgrpo.types import Output, Policy, Prompt, Request, Text
from pipelines.language import language_family
from pipelines.speech.options import HearingSampling, SpeechData, SpeechEval, WhisperOptions
from pipelines.vlm.families import check_media
from pipelines.vlm.options import QwenVlOptions, VlmData, VlmEval, VlmSampling

LOOKS, HEARS = (f"tests.journeys.cli.own_family:{name}" for name in ("LOOKING", "HEARING"))


class Counts(Policy):
    """Says its number, with every further sample of a prompt the next one, and of blank pictures nothing."""

    provides = fields = keys = frozenset[str]()
    kind = "tokens"
    settings = None

    def __init__(self, number: float) -> None:
        self.network = nn.Module()
        self.network.number = nn.Parameter(torch.tensor(number))
        self.network.frozen = nn.Parameter(torch.ones(2), requires_grad=False)

    def sample(self, request: Request) -> Sequence[Output]:
        number = self.network.number.item()
        return [
            Text("nothing" if is_blank(prompt) else f"{number + sample:g}")
            for prompt in request.prompts
            for sample in range(request.group_size)
        ]


def is_blank(prompt: Prompt) -> bool:
    return any(not isinstance(medium.source, str) for medium in prompt.media)


def load(
    config: Config, device: str, prompts: Sequence[Prompt] = (), *, training: bool = True, weights: str = ""
) -> Any:
    """Counts from the number that is the name of the model, or from that in its saved weights."""
    assert not training, "nothing is trained here"
    return Counts(float((Path(weights) / "number").read_text() if weights else config.model.path))


def refuse_model(config: Config, path: str) -> None:
    """Any number is a model."""
    float(path)


def counting(sections: Sections) -> Family:
    one = language_family("counting", "counts", "vlm", "none", (), sections, check_media, load=load)
    return replace(one, refuse_model=refuse_model)


LOOKING = counting(Sections(QwenVlOptions, VlmSampling, VlmData, VlmEval, ("exact(tags=False)",)))
HEARING = counting(Sections(WhisperOptions, HearingSampling, SpeechData, SpeechEval, ("one_minus_wer",)))


def halves(prompts: Sequence[Prompt], outputs: Sequence[Any]) -> list[float]:
    """Half of the number that is said; the number 4 cannot be scored."""
    return [float("nan") if output.text == "4" else float(output.text) / 2 for output in outputs]


def nothing(prompts: Sequence[Prompt], outputs: Sequence[Any]) -> list[float]:
    return [float("nan")] * len(outputs)


HALVES, NOTHING = (f"tests.journeys.cli.own_family:{name}(process=False)" for name in ("halves", "nothing"))
