"""Runs of tiny models that must not depend on how processes divide them; ``test_sharding.py`` starts this file.

RANK=0 WORLD_SIZE=2 ... python -m tests.libraries.sharding.worker FOLDER SHARD REPLICATE SEQUENCE CASE...

A case is ``family:variant``. The run of each is left in ``FOLDER/case``, with the whole trained weights as this process
has them in ``weights-<rank>.safetensors``; where there is a run already, it is resumed from its first checkpoint.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from safetensors.torch import save_file

from mmgrpo.api import make_trainer
from mmgrpo.config.settings import Config, config_class
from mmgrpo.data.splits import Splits
from mmgrpo.family import families
from mmgrpo.inputs import RunInputs
from mmgrpo.runtime.checkpoint import checkpoints
from mmgrpo.runtime.distributed import local, whole
from mmgrpo.runtime.finite import is_finite
from mmgrpo.runtime.sharding import mesh_of, shard
from mmgrpo.trainer import Trainer
from mmgrpo.types import Output, Prompt, Text
from pipelines.visual import wan_tiny
from tests.libraries.families.examples import EXAMPLES, TEXTS
from tests.tiny import maker, tiny_checkpoint

Variant = dict[str, Any]
EMA: Variant = {"ema": 0.9, "interpolation": 0.5}
MOVING = "average(name='reference', start=0.5, samples=True)"
VARIANTS: dict[str, Variant] = {
    "lora": {"model": {"lora_rank": 2}},
    "full": {},
    "checkpointed": {"model": {"gradient_checkpointing": True}},
    "lora-checkpointed": {"model": {"lora_rank": 2, "gradient_checkpointing": True}},
    "reference": {"algorithm": {"terms": ["kl_velocity(coef=0.1)"]}, "optim": EMA},
    "lora-reference": {"model": {"lora_rank": 2}, "algorithm": {"terms": ["kl_velocity(coef=0.1)"]}, "optim": EMA},
    "tokens-reference": {"algorithm": {"terms": ["kl_k3(coef=0.1)"]}, "optim": EMA},
    "coupled": {"algorithm": {"preset": "gvpo"}},
    "experts": {"model": {"lora_rank": 2}, "path": lambda: tiny_checkpoint(wan_tiny.tiny, version="2.2-14B")},
    "networks": {"algorithm": {"terms": ["kl_velocity(coef=0.1)"], "networks": [MOVING]}},
    "tokens-networks": {"algorithm": {"terms": ["kl_k3(coef=0.1)"], "networks": [MOVING]}},
    "uneven": {
        "algorithm": {"sampler": ["knapsack(known=4, most=9)"], "trackers": ["window"]},
        "optim": {"updates": 1},
    },
    "planned": {"sampling": {"plan_per": "prompt", "plan": "random_window(size=1, before=1.0)"}},
    "fast": {"optim": {"step": "sfpo(fast=2, alpha=0.5)", "updates": 1}},
    "half": {"model": {"dtype": "bfloat16"}},
    "blocks": {"distributed": {"rollout_weights": "blocks"}},
    "blocks-networks": {
        "algorithm": {"terms": ["kl_k3(coef=0.1)"], "networks": [MOVING]},
        "distributed": {"rollout_weights": "blocks"},
    },
    "whole": {"distributed": {"rollout_weights": "whole"}},
    "one-image": {"model": {"freeze_vision": False}, "texts": 5},
    "lora-half": {"model": {"lora_rank": 2, "dtype": "bfloat16"}},
    "unfrozen": {"model": {"freeze_encoder": False}},
    "unfrozen-lora": {"model": {"freeze_vision": False, "lora_rank": 2}},
}


def measured(prompts: list[Prompt], outputs: list[Output]) -> list[float]:
    """A smooth reward of an image, video or audio; 0 or 1 for a text."""
    values = []
    for output in outputs:
        if isinstance(output, Text):
            values.append(float(sum((place + 1) * one for place, one in enumerate(output.ids)) % 7 > 3))
        else:
            first = next(iter(vars(output).values()))
            values.append(10 * float(first.mean()) % 1)
    return values


def config_of(case: str, folder: Path, mode: str, replicate: int, sequence: int = 1) -> Config:
    name, _, variant = case.partition(":")
    given, example, config = VARIANTS[variant], EXAMPLES[name], config_class(families()[name].sections)()
    path = given["path"]() if "path" in given else tiny_checkpoint(maker(name))
    options = {"family": name, "path": str(path), "device": "cpu", **example.model, **given.get("model", {})}
    divided = given.get("distributed", {}) if mode == "full" else {}
    settings = {"lr": 1e-3, "eps": 1e-2, "updates": 2, "micro_batch_size": 3, **given.get("optim", {})}
    return replace(
        config,
        name=case.replace(":", "-"),
        output_dir=str(folder),
        steps=4,
        save_every=2,
        samples_shown=1,
        groups_kept=0,
        trackers=[],
        model=replace(config.model, **options),
        sampling=replace(config.sampling, **{**example.sampling, **given.get("sampling", {})}),
        data=replace(config.data, prompts_per_step=4, group_size=4),
        optim=replace(config.optim, **settings),
        eval=replace(config.eval, every=2, batch_size=4),
        algorithm=replace(
            config.algorithm,
            **{"preset": "rloo", "objective": "ppo(low=0.2, high=0.2)", "terms": [], **given.get("algorithm", {})},
        ),
        distributed=replace(config.distributed, shard=mode, replicate=replicate, sequence=sequence, **divided),
    )


def trainer_of(config: Config, accelerator: Accelerator) -> Trainer:
    """The trainer of a run whose prompts do not divide evenly: six to train, three held out."""
    name = config.model.family
    torch.manual_seed(0)
    prompts = [replace(one, id=f"{one.id}-{copy}") for copy in range(2) for one in EXAMPLES[name].prompts]
    texts = VARIANTS[config.name.partition("-")[2]].get("texts", 0)  # so that a process has no media
    prompts[len(prompts) - texts :] = [
        Prompt(("yes", "and", "no")[one % 3] + " ?", f"text-{one}") for one in range(texts)
    ]
    heldout = [replace(one, id=f"held-{one.id}") for one in EXAMPLES[name].prompts[: len(TEXTS)]]
    policy = families()[name].policy(config, "cpu", prompts)
    start = lambda _: RunInputs(policy, Splits(prompts, heldout, {}))  # noqa: E731
    return make_trainer(config, families()[name], start, [measured], accelerator)


def nan_in_one_shard(folder: Path, accelerator: Accelerator) -> None:
    """What every process says of tensors of which one process alone has a shard that is not finite."""
    network = torch.nn.Sequential(torch.nn.Linear(4, 4))
    shard([network], ["Linear"], mesh_of("cpu"), in_step=True)
    weight = dict(network.named_parameters())["0.weight"]
    before = is_finite([weight])
    if accelerator.process_index == 1:
        local(weight.detach()).fill_(torch.nan)
    answers = [before, is_finite([weight]), all(map(torch.isfinite, [local(weight).sum()]))]
    (folder / f"finite-{accelerator.process_index}.json").write_text(json.dumps([bool(one) for one in answers]))


class Timed(torch.nn.Module):
    """A block that notes the noise levels that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)
        self.levels: list[float] = []

    def forward(self, x: torch.Tensor, level: torch.Tensor) -> torch.Tensor:
        self.levels += level.tolist()
        return self.inner(x) * level[:, None]


def what_a_unit_is_given(folder: Path, accelerator: Accelerator) -> None:
    """Noise levels inside of a block that computes in bf16, and how many numbers this process holds before a forward
    pass without gradient, within it and after it."""
    network = torch.nn.Sequential(first := torch.nn.Linear(4, 4), block := Timed())
    network.forward = lambda x, level: block(first(x), level)  # type: ignore[method-assign]
    shard([network], ["Timed"], mesh_of("cpu"), in_step=True, compute=torch.bfloat16)
    sizes, numbers = [], lambda: sum(local(one).numel() for one in network.parameters())
    block.register_forward_pre_hook(lambda *_: sizes.append(block.inner.weight.numel() + first.weight.numel()))
    before = numbers()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        network(torch.ones(2, 4), torch.tensor([987.3, 501.7]))
    found = {"levels": block.levels, "before": before, "within": sizes, "after": numbers()}
    (folder / f"given-{accelerator.process_index}.json").write_text(json.dumps(found))


def run(folder: Path, shard_mode: str, replicate: int, sequence: int, cases: list[str]) -> None:
    """Train, or resume, every case."""
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True)
    if accelerator.num_processes > 1 and shard_mode == "full":
        nan_in_one_shard(folder, accelerator)
        what_a_unit_is_given(folder, accelerator)
    for case in cases:
        alone = accelerator.num_processes == 1
        config = config_of(case, folder, *("none", 1, 1) if alone else (shard_mode, replicate, sequence))
        place = folder / config.name
        earlier = bool(checkpoints(place / "checkpoints"))
        accelerator.wait_for_everyone()
        trainer = trainer_of(replace(config, resume=earlier), accelerator)
        if earlier:
            trainer.resume(2)
        trainer.fit(place / "model")
        weights = {name: whole(value.detach()).contiguous() for name, value in trainer.trained.items()}
        save_file(weights, place / f"weights-{accelerator.process_index}.safetensors")
    accelerator.end_training()


if __name__ == "__main__":
    run(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5:])
