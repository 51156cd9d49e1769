"""Runs in the environment of ``make engine``: vLLM draws for a tiny Qwen2.5-VL; what happened is written as JSON.

python -m tests.libraries.engines.worker FOLDER
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from mmgrpo.config.settings import Engine, config_class
from mmgrpo.engines.engine import EngineFailure
from mmgrpo.family import Drawable, families
from mmgrpo.types import Image, Media, Prompt, Request, Turn, Video
from pipelines.vlm.qwen_vl_tiny import TINY_WORDS, write_model


def drawn(*shape: int, seed: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


PICTURE, WIDE = (Media("image", Image(drawn(3, height, width, seed=width))) for height, width in ((16, 16), (24, 40)))
CLIP = Media("video", Video(drawn(8, 3, 16, 16, seed=2), fps=4.0))
PROMPTS = [
    Prompt("which ?", "picture", turns=(Turn("user", (PICTURE, "which ?")),)),
    Prompt("is it left ?", "both", turns=(Turn("user", (WIDE, "is it", CLIP, "left ?", PICTURE)),)),
    Prompt("yes or no ?", "text"),
]


def main(folder: Path) -> None:
    # vLLM's attention on a CPU takes heads of 32 and more.
    path = write_model(
        folder / "model",
        TINY_WORDS,
        width=64,
        layers=2,
        heads=2,
        vision_width=64,
        vision_layers=2,
        patch=4,
        min_pixels=64,
    )
    owner = families()["qwen_vl"]
    assert isinstance(owner, Drawable)
    config = config_class(owner.sections)()
    config = replace(
        config,
        model=replace(config.model, path=path, lora_rank=4, lora_targets=["q_proj", "down_proj"], max_prompt_tokens=64),
        sampling=replace(config.sampling, max_tokens=6, temperature=0.7),
        rollout=Engine(engine="vllm", eager=True, max_gap=1e-5),
    )
    policy: Any = owner.policy(config, "cpu")
    owner.draw_with_engine(config, policy, "cpu", 1, 0)
    engine, weights = policy.engine, policy.engine.weights
    number, found = 0, {}

    def moved() -> None:
        """An update of the adapters."""
        with torch.no_grad():
            for place, one in enumerate(policy.network.parameters()):
                if one.requires_grad:
                    one += 0.1 * torch.randn(one.shape, generator=torch.Generator().manual_seed(100 * number + place))

    def round_() -> Any:
        nonlocal number
        number += 1
        return policy.rollout(Request(PROMPTS, [0, 1, 2], 4, seed=number, round=number))

    gaps = []
    for _ in range(3):
        made = round_()
        gap = (made.decisions.fields["sampler_log_probs"] - made.decisions.log_probs).abs()
        gaps.append(float(gap.max()))
        moved()
    found["gaps"] = gaps
    found["distinct"] = len({tuple(row.tolist()) for row in made.steps.ids})

    norms = [f"model.language_model.layers.{place}.{kind}_proj.weight" for place in (0, 1) for kind in ("self_attn.q",)]
    stale = {name: value.clone() for name, value in weights()}
    faults = {
        "forgotten": lambda: ((name, one) for name, one in weights() if name != norms[0]),
        "swapped": lambda: (
            (name, dict(weights())[norms[1 - norms.index(name)]] if name in norms else one) for name, one in weights()
        ),
        "stale": lambda: ((name, stale[name] if name == norms[0] else one) for name, one in weights()),
        "unknown": lambda: [*weights(), ("model.language_model.layers.7.mlp.up_proj.weight", torch.zeros(2, 2))],
    }
    moved()
    for name, wrong in faults.items():
        engine.weights = wrong
        try:
            round_()
            found[name] = ""
        except EngineFailure as failure:
            found[name] = str(failure)
    engine.weights = weights
    made = round_()
    found["after"] = float((made.decisions.fields["sampler_log_probs"] - made.decisions.log_probs).abs().max())
    owner.end_engine(policy)
    (folder / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
