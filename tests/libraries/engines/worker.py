"""Runs in the environment of ``make engine``: vLLM draws for a tiny Qwen2.5-VL; what happened is written as JSON.

python -m tests.libraries.engines.worker FOLDER merged|adapter|whole
"""

from __future__ import annotations

import json
import re
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import mmgrpo
from mmgrpo.config.settings import Engine, config_class
from mmgrpo.engines.engine import EngineFailure
from mmgrpo.engines.served import application
from mmgrpo.family import families
from mmgrpo.scoring.server import Running
from mmgrpo.types import Image, Media, Prompt, Request, Turn, Video
from pipelines import vlm
from pipelines.vlm import qwen_vl_tiny
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


CALL = '<tool_call>{"name": "look", "arguments": {"place": 7}}</tool_call>'


def look(place: int) -> list[Any]:
    """Look at a place.

    Args:
        place: Which one.
    """
    return [f"{place}", Image(drawn(3, 16, 24, seed=place))]


def main(folder: Path, lora: str) -> None:
    whole = lora == "whole"
    if whole:
        qwen_vl_tiny.TAGS = (*qwen_vl_tiny.TAGS, "<tool_call>", "</tool_call>")
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
    assert owner.engines is not None
    config = config_class(owner.sections)()
    adapters = {} if whole else {"lora_rank": 4, "lora_targets": ["q_proj", "down_proj"]}
    called: Any = {"max_tokens": 96, "tools": ["tests.libraries.engines.worker:look"], "turns": 3}
    config = replace(
        config,
        model=replace(config.model, path=path, max_prompt_tokens=400 if whole else 64, **adapters),
        sampling=replace(config.sampling, temperature=0.7, **(called if whole else {"max_tokens": 6})),
        rollout=Engine(engine="vllm", eager=True, max_gap=1e-4 if whole else 1e-5, lora="merged" if whole else lora),
    )
    policy: Any = owner.policy(config, "cpu")
    decode = policy.model.decode
    policy.model.decode = lambda ids: re.sub(r"\b[a-h]\w*", CALL, decode(ids))  # many words read as a call
    owner.engines.draw(owner, config, policy, "cpu", 1, 0, "")
    engine, weights = policy.engine, policy.engine.weights
    number, found = 0, {}

    def moved() -> None:
        """An update of the adapters."""
        with torch.no_grad():
            for place, one in enumerate(policy.network.parameters()):
                if one.requires_grad:
                    one += (0.05 if whole else 0.1) * torch.randn(
                        one.shape, generator=torch.Generator().manual_seed(100 * number + place)
                    )

    def round_() -> Any:
        nonlocal number
        number += 1
        return policy.rollout(Request(PROMPTS, [0, 1, 2], 4, seed=number, round=number))

    gaps, sent, results, load = [], [], [], engine.engine.load

    def counted(tensors: Any, version: int) -> None:
        pairs = list(tensors)
        sent.append(len(pairs))
        load(pairs, version)

    engine.engine.load = counted
    for _ in range(3):
        made = round_()
        gap = (made.decisions.fields["sampler_log_probs"] - made.decisions.log_probs).abs()
        gaps.append(float(gap.max()))
        results += [call.result for text in made.outputs for call in text.calls]
        moved()
    found["gaps"] = gaps
    found["sent"] = [*sent]
    found["results"], found["shown"] = results, max(map(len, made.steps.shown), default=0)
    found["distinct"] = len({tuple(row.tolist()) for row in made.steps.ids})

    part = "lora_B.weight" if lora == "adapter" else "weight"
    norms = [f"model.language_model.layers.{place}.self_attn.q_proj.{part}" for place in (0, 1)]
    stale = {name: value.clone() for name, value in weights()}
    faults = {
        "forgotten": lambda: ((name, one) for name, one in weights() if name != norms[0]),
        "swapped": lambda: (
            (name, dict(weights())[norms[1 - norms.index(name)]] if name in norms else one) for name, one in weights()
        ),
        "stale": lambda: ((name, stale[name] if name == norms[0] else one) for name, one in weights()),
        "unknown": lambda: [*weights(), (f"model.language_model.layers.7.mlp.up_proj.{part}", torch.zeros(2, 2))],
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
    if lora == "adapter":  # whose end ends the process groups of this process
        found["ahead"] = ahead(folder, engine.engine, config)
    else:
        owner.engines.end(policy)
    (folder / "found.json").write_text(json.dumps(found))


def ahead(folder: Path, engine: Any, config: Any) -> list[dict[str, float]]:
    """The metrics of a run whose rounds the engine draws behind HTTP while the trainer computes."""
    server = Running(application(engine), "127.0.0.1", 0, 5.0)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    model = config.model
    policy = vlm.policy(
        model.path, max_tokens=5, max_prompt_tokens=64, lora_rank=4, lora_targets=model.lora_targets, temperature=0.7
    )

    def longest(prompts: Any, outputs: Any) -> list[float]:
        return [float(len(one.text) % 5) for one in outputs]

    settings: dict[str, Any] = {"group_size": 4, "prompts_per_step": 3, "steps": 4, "optim": {"lr": 1e-2}}
    settings["rollout"] = {
        "engine": "served",
        "url": [f"http://127.0.0.1:{server.port}"],
        "max_staleness": 1,
        "lora": "adapter",
        "max_gap": 1e-4,
    }
    ran = mmgrpo.train(policy, PROMPTS, [longest], output_dir=str(folder), name="ahead", trackers=[], **settings)
    server.stop()
    thread.join()
    names = ("rollout/staleness", "rollout/sampler_gap_most", "grad_norm")
    return [{name: line[name] for name in names} for line in ran.metrics]


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
