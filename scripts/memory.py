"""Memory of each process that trains a published model, replicated and sharded: the table of docs/scaling.md.

    python -m scripts.memory

The arithmetic is that of a dry run (``mmgrpo.runtime.memory.needs``), without activations, caches and frozen encoders,
on modules without storage: nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from mmgrpo.cli.train import counted_in
from mmgrpo.config.settings import config_class
from mmgrpo.family import family
from mmgrpo.runtime.memory import CARDS, RESERVE, Folder, needs
from pipelines.visual.memory import MODELS, network_of

PROCESSES = (2, 4, 8, 16, 32, 64)
SHOWN = (2, 4, 8)
VISION = {"depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16}
QWEN = {
    "3B": {"hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36}
    | {"num_attention_heads": 16, "num_key_value_heads": 2},
    "7B": {"hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28}
    | {"num_attention_heads": 28, "num_key_value_heads": 4},
    "72B": {"hidden_size": 8192, "intermediate_size": 29568, "num_hidden_layers": 80}
    | {"num_attention_heads": 64, "num_key_value_heads": 8},
}
"""Text configurations of Qwen2.5-VL."""


@dataclass(frozen=True)
class Run:
    """One row: a model, how it is trained, and how its rollouts are drawn where it is sharded."""

    title: str
    family: str
    model: str
    lora_rank: int = 32
    dtype: str = "bfloat16"
    rollout_weights: str = "auto"


RUNS = (
    Run("SD 3.5 Medium, all weights", "sd3", "SD 3.5 Medium", 0, "float32"),
    Run("FLUX.1-dev (12 B), LoRA 32", "flux", "FLUX.1-dev"),
    Run("Qwen-Image (20 B), LoRA 32", "qwen_image", "Qwen-Image"),
    Run("Wan 14B, LoRA 32", "wan", "Wan 14B"),
    Run("HunyuanVideo (13 B), LoRA 32", "hunyuan_video", "HunyuanVideo"),
    Run("Qwen2.5-VL-7B, LoRA 32", "qwen_vl", "7B"),
    Run("the same, `rollout_weights: blocks`", "qwen_vl", "7B", rollout_weights="blocks"),
    Run("Qwen2.5-VL-7B, all weights, bf16", "qwen_vl", "7B", 0),
    Run("the same, `rollout_weights: blocks`", "qwen_vl", "7B", 0, rollout_weights="blocks"),
    Run("Qwen2.5-VL-72B, LoRA 32, `blocks`", "qwen_vl", "72B", rollout_weights="blocks"),
    Run("Qwen2.5-VL-72B, all weights, bf16, `blocks`", "qwen_vl", "72B", 0, rollout_weights="blocks"),
)


def folder_of(name: str) -> Folder:
    """The shapes of a published network."""
    if name not in QWEN:
        (model,) = (m for m in MODELS if m.name == name)
        network: Any = network_of(model.kind, model.config)
        weights = {f"transformer.{key}": tuple(value.shape) for key, value in network.named_parameters()}
        return Folder(weights, {**network.config, "_class_name": model.kind})
    import torch
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    text = {**QWEN[name], "vocab_size": 152064}
    vision = {**VISION, "out_hidden_size": text["hidden_size"], "fullatt_block_indexes": [7, 15, 23, 31]}
    with torch.device("meta"):
        network = Qwen2_5_VLForConditionalGeneration(
            Qwen2_5_VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=False)
        )
    config = {**network.config.to_dict(), "architectures": [type(network).__name__]}
    return Folder({key: tuple(value.shape) for key, value in network.named_parameters()}, config)


def gigabytes(run: Run, folder: Folder, processes: int) -> float:
    """What each process holds; one alone is not sharded."""
    settings: Any = config_class(family(run.family).sections)()
    divided = {"shard": "full" if processes > 1 else "none", "rollout_weights": run.rollout_weights}
    settings = replace(
        settings,
        model=replace(settings.model, family=run.family, lora_rank=run.lora_rank, dtype=run.dtype),
        distributed=replace(settings.distributed, **divided),
    )
    sizes = needs(folder, settings, processes=processes, **counted_in(settings, None))
    return sum(size for name, size in sizes.items() if name not in ("activations", "cache")) / 1e9


def row(run: Run, folder: Folder) -> str:
    """One line of the table."""
    alone, shared = gigabytes(run, folder, 1), {n: gigabytes(run, folder, n) for n in PROCESSES}

    def smallest(card: int) -> str:
        if alone + RESERVE <= card:
            return "none"
        fitting: Sequence[int] = [n for n, size in shared.items() if size + RESERVE <= card]
        return f"full, N >= {fitting[0]}" if fitting else "no"

    sizes = " / ".join(f"{shared[n]:.1f}" for n in SHOWN)
    return f"| {run.title} | {alone:.1f} | {sizes} | " + " | ".join(map(smallest, CARDS)) + " |"


def main() -> None:
    """Print the table."""
    cells = ["GB for N = 2 / 4 / 8, computed, not measured", "`none`", "`full`", *(f"on {card} GB" for card in CARDS)]
    print(f"| {' | '.join(cells)} |")
    print("|" + " --- |" * len(cells))
    folders = {name: folder_of(name) for name in {run.model: None for run in RUNS}}
    for run in RUNS:
        print(row(run, folders[run.model]), flush=True)


if __name__ == "__main__":
    main()
