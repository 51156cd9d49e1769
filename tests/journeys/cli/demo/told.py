"""Pairs of models that answer what a test tells them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import gradio as gr
from torch import nn

from mmgrpo.cli.demo.models import AFTER, BEFORE, Opened, Pair
from mmgrpo.cli.train import read
from mmgrpo.family import family
from mmgrpo.policies.token import TokenPolicy
from mmgrpo.policies.token_model import FeatureCache
from mmgrpo.types import Output, Prompt, Request


class Told(TokenPolicy):
    """Answers a request with the outputs of ``answer(number of the answer)``, and keeps what it was asked."""

    def __init__(self, opened: Opened, answer: Callable[[int], Output]) -> None:
        self.opened, self.answer = opened, answer
        self.network, self.settings, self.fields = nn.Identity(), None, frozenset()
        self.evaluation_temperature = 0.0
        self.feature_cache = FeatureCache(0)
        self.asked: list[tuple[Prompt, int, int, int, float]] = []

    def sample(self, request: Request) -> list[Output]:
        assert self.opened.lock.locked()
        before = sum(size for _, _, size, _, _ in self.asked)
        seed, slot, size = request.seed, request.slots[0], request.group_size
        self.asked.append((request.prompts[0], slot, size, seed, self.evaluation_temperature))
        return [self.answer(before + number) for number in range(size)]


def pair(name: str, family_name: str, rewards: list[str], heldout: str = "", weights: str = "model") -> Pair:
    """A pair whose models are never loaded."""
    config = read(["--model.family", family_name, "--model.path", "nowhere"], "")
    config = replace(config, rewards=rewards, data=replace(config.data, heldout=heldout))
    return Pair(name, config, family(family_name), weights=weights)


def opened(one: Pair, *answers: Callable[[int], Output]) -> tuple[Opened, list[Told]]:
    """A pair whose sides answer; without answers a look at its models is an error."""
    found = Opened({}, {one.name: one}, Path("votes.jsonl"))
    sides = [Told(found, answer) for answer in answers]
    for side, policy in zip((BEFORE, AFTER), sides, strict=False):
        found.loaded[one.name, side, one.trained if side == AFTER else ""] = cast(Any, policy)
    return found, sides


def page(tab: Callable[[Opened], None], found: Opened) -> dict[str, Any]:
    """The components of a tab by id, and its events under ``events``."""
    with gr.Blocks() as blocks:
        tab(found)
    components: dict[Any, Any] = {
        block.elem_id: block for block in blocks.blocks.values() if getattr(block, "elem_id", None)
    }
    return {**components, "events": list(blocks.fns.values()), "all": list(blocks.blocks.values())}
