"""VideoAlign, also VideoReward (arXiv:2501.13918): Qwen2-VL-2B rates the visual quality (VQ), the motion quality (MQ)
and the text alignment (TA) of a clip, each at a special token of its own.

The published folder has ``model_config.json`` and ``checkpoint-<step>/``, with the whole network (``model.pth``) or
with LoRA weights for Qwen2-VL-2B and the others that were trained (``adapter_model.safetensors``,
``non_lora_state_dict.pth``). Into that folder belongs ``prompt_template.py`` of its repository (KwaiVGI/VideoAlign,
MIT), of which only the text of the instruction is read.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mmgrpo.scoring.manifest import reward
from mmgrpo.types import Output, Prompt, Video
from reward_models.checkpoints import load_exactly, read_tensors, weight_file
from reward_models.vlm.instructions import texts
from reward_models.vlm.qwen2_vl import (
    VIDEO_TOKEN,
    QwenScorer,
    build,
    clip_pixels,
    current_key,
    folder_of,
    precision_of,
    read_base,
)

WEIGHTS, BASE = "KwaiVGI/VideoReward", "Qwen/Qwen2-VL-2B-Instruct"
DIMENSIONS = ("VQ", "MQ", "TA")
TOKENS = tuple(f"<|{name}_reward|>" for name in DIMENSIONS)
TEMPLATE, CONSTANT = "prompt_template.py", "DETAILED_PROMPT_WITH_SPECIAL_TOKEN"
MIN_PIXELS, FEWEST, MOST = 128 * 28 * 28, 4, 768
"""Pixels of a frame at least; frames of a clip at least and at most."""


@dataclass(frozen=True)
class VideoAlign:
    """The frozen network with its settings."""

    scorer: QwenScorer
    instruction: str
    fps: float
    pixels: int
    """Of a frame, at most."""
    scales: Mapping[str, tuple[float, float]]
    """Mean and standard deviation of each dimension on the authors' validation set."""


@reward(
    "Video",
    range=(-inf, inf),
    scale="standardized by the model's own mean and deviation",
    reads=("text",),
    packages=("transformers",),
    extra="vlm",
    weights={
        "KwaiVGI/VideoReward": ("model_config.json",),
        "Qwen/Qwen2-VL-2B-Instruct": ("config.json", "tokenizer.json"),
    },
    licence="MIT; its base Apache-2.0",
    source="VideoAlign, arXiv:2501.13918",
)
def videoalign(
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    dimension: str = "overall",
    normalize: bool = True,
    weights: str = WEIGHTS,
    base: str = BASE,
    instruction: str = "",
    fps: float = 0.0,
    allow_pickle: bool = False,
    dtype: str = "",
    device: str = "cpu",
) -> list[float]:
    """VQ, MQ, TA, or their sum (``overall``), of each clip for its prompt: standardized by the model's own mean and
    deviation, so 0 is an average clip and negative values are ordinary; NaN for broken frames and single ones.

    ``fps`` frames a second are seen, by default as many as in training (2), four at least; values at other rates
    cannot be compared. ``dtype``: float32, bfloat16 or float16; by default float32 on a CPU and bfloat16 elsewhere,
    whose scores differ.
    """
    if dimension not in (*DIMENSIONS, "overall"):
        raise ValueError(f"videoalign: got dimension {dimension!r}, expected VQ, MQ, TA or overall")
    model = load(weights, base, instruction, allow_pickle, device, dtype)
    chosen = DIMENSIONS if dimension == "overall" else (dimension,)
    values = []
    for prompt, output in zip(prompts, outputs, strict=True):
        scores = _score(model, prompt, output, fps or model.fps)
        if normalize:
            scores = {name: (value - model.scales[name][0]) / model.scales[name][1] for name, value in scores.items()}
        values.append(math.fsum(scores[name] for name in chosen))
    return values


def _score(model: VideoAlign, prompt: Prompt, output: Output, fps: float) -> dict[str, float]:
    if not isinstance(output, Video):
        raise TypeError(f"videoalign: got an output of kind {type(output).__name__}, expected a Video")
    if len(output.frames) < 2 or not bool(output.frames.isfinite().all()):
        return dict.fromkeys(DIMENSIONS, math.nan)
    frames = output.frames[frame_places(len(output.frames), output.fps, fps)]
    text = model.instruction.replace("{text_prompt}", prompt.text)
    logits = model.scorer.logits(text, [clip_pixels(frames, MIN_PIXELS, model.pixels)], VIDEO_TOKEN, "videoalign")
    # A head of three outputs has one for each token; one of a single output is read at all three.
    rows = logits.diagonal() if logits.shape[1] == len(DIMENSIONS) else logits[:, 0]
    return dict(zip(DIMENSIONS, rows.tolist(), strict=True))


def frame_places(total: int, clip_fps: float, fps: float) -> list[int]:
    """Which frames are seen: ``fps`` a second, an even number, evenly from the first to the last."""
    count = min(max(total / clip_fps * fps, FEWEST), min(MOST, total) // 2 * 2)
    count = min(round(count / 2) * 2, total)
    return torch.linspace(0, total - 1, count).round().long().tolist()


@functools.cache
def load(weights: str, base: str, instruction: str, allow_pickle: bool, device: str, dtype: str = "") -> VideoAlign:
    """The published network with its adapters merged into the base; every key of the files is used."""
    folder = folder_of(weights, "videoalign", ("model_config.json", "checkpoint-*", TEMPLATE))
    settings = _settings(folder)
    data, inference = settings["data_config"], settings.get("inference_config")
    if not isinstance(inference, dict):
        raise ValueError(
            f"videoalign: {folder}/model_config.json: got no inference_config, expected means and deviations"
        )
    scales = {name: (float(inference[f"{name}_mean"]), float(inference[f"{name}_std"])) for name in DIMENSIONS}
    [text] = texts(Path(instruction).expanduser() if instruction else folder / TEMPLATE, [CONSTANT], "videoalign")
    config, tokenizer = read_base(base, TOKENS, "videoalign")
    width, out = config.text_config.hidden_size, int(settings["model_config"]["output_dim"])
    network = build(config, nn.Linear(width, out, bias=False), device, precision_of(dtype, device, "videoalign"))
    tensors, named = _tensors(_checkpoint(folder), base, settings["peft_lora_config"], network, allow_pickle)
    load_exactly(network, tensors, named, "videoalign")
    scorer = QwenScorer(network, tokenizer, TOKENS, torch.device(device))
    return VideoAlign(scorer, text, float(data["fps"]), int(data["max_frame_pixels"]), scales)


def _settings(folder: Path) -> dict[str, Any]:
    file = folder / "model_config.json"
    if not file.is_file():
        raise FileNotFoundError(
            f"videoalign: weights: {folder} has no model_config.json, expected the published folder"
        )
    settings = json.loads(file.read_text("utf-8"))
    wanted = {"data_config": ("fps", "max_frame_pixels"), "model_config": ("output_dim",)}
    wanted |= {"peft_lora_config": ("lora_r", "lora_alpha")}
    missing = [
        f"{part}.{name}" for part, names in wanted.items() for name in names if name not in settings.get(part, {})
    ]
    if missing:
        raise ValueError(f"videoalign: {file}: got no {', '.join(missing)}, expected the published settings")
    return settings


def _checkpoint(folder: Path) -> Path:
    """The checkpoint of the latest step."""
    steps = {
        int(number): path
        for path in folder.glob("checkpoint-*")
        if (number := path.name.removeprefix("checkpoint-")).isdigit()
    }
    if not steps:
        raise FileNotFoundError(
            f"videoalign: weights: {folder} has no checkpoint-<step>, expected the published folder"
        )
    return steps[max(steps)]


def _tensors(
    checkpoint: Path, base: str, lora: Mapping[str, Any], network: nn.Module, allow_pickle: bool
) -> tuple[dict[str, Tensor], str]:
    """(all weights of the network by its own names, the name of their files)."""
    whole = [checkpoint / name for name in ("model.safetensors", "model.pth") if (checkpoint / name).is_file()]
    scale = lora["lora_alpha"] / (math.sqrt(lora["lora_r"]) if lora.get("use_rslora") else lora["lora_r"])
    if whole:
        tensors = own_names(read_tensors(whole[0], "videoalign", allow_pickle))
        return merge_adapters(tensors, scale, whole[0]), str(whole[0])
    adapter = weight_file(str(checkpoint), "adapter_model.safetensors", "videoalign")
    others = weight_file(str(checkpoint), "non_lora_state_dict.pth", "videoalign")
    added = own_names(read_tensors(adapter, "videoalign")) | own_names(read_tensors(others, "videoalign", allow_pickle))
    given = _base_tensors(base)
    table = "model.language_model.embed_tokens.weight"
    rows = dict(network.state_dict())[table].shape[0]
    if table in given and table not in added and given[table].shape[0] != rows:
        raise ValueError(f"videoalign: {others} has no embeddings of the special tokens, expected {table} in it")
    return merge_adapters({**given, **added}, scale, adapter), f"{adapter} with {others.name} and {base}"


def _base_tensors(base: str) -> dict[str, Tensor]:
    """All weights of the base model, by the names of ``QwenReward``."""
    folder = folder_of(base, "videoalign", ("*.safetensors", "*.json"))
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise FileNotFoundError(f"videoalign: base: {folder} has no .safetensors, expected the weights of Qwen2-VL-2B")
    tensors: dict[str, Tensor] = {}
    for file in files:
        tensors |= read_tensors(file, "videoalign")
    return own_names(tensors)


PEFT = (".base_layer.", ".modules_to_save.default.", ".default.")
"""Parts of names that peft adds."""


def own_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights of peft or of transformers by the names of ``QwenReward``; adapters keep their endings, without the name
    of an adapter."""
    plain = {}
    for key, tensor in tensors.items():
        name = key.removeprefix("base_model.model.")
        for part in PEFT:
            name = name.replace(part, ".")
        if ".original_module." not in name and (current := current_key(name)) is not None:
            plain[current] = tensor
    return plain


def merge_adapters(plain: Mapping[str, Tensor], scale: float, file: Path) -> dict[str, Tensor]:
    """The weights with every pair of adapters added to the matrix they belong to: W + scale B A."""
    weights = {key: tensor for key, tensor in plain.items() if ".lora_" not in key}
    for key in [key for key in plain if key.endswith(".lora_A.weight")]:
        target, pair = key.replace(".lora_A.weight", ".weight"), key.replace("lora_A", "lora_B")
        if target not in weights or pair not in plain:
            raise ValueError(
                f"videoalign: {file} does not fit the model (unexpected: {key}, without {target} or {pair}); expected "
                "the published weights"
            )
        weights[target] = weights[target].float() + scale * plain[pair].float() @ plain[key].float()
    alone = [k for k in plain if ".lora_" in k and k.replace("lora_B", "lora_A") not in plain]
    if alone:
        raise ValueError(f"videoalign: {file} does not fit the model (unexpected: {', '.join(alone[:5])})")
    return weights
