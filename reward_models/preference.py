"""A reward that was trained on preferences: a head on the features of images or answers and their prompts.

``scripts/train_reward.py`` writes a folder with ``model.safetensors`` and ``preference.json``; the reward reads it.
Features are those of the small tower for scenes, which is trained with the head, or of any frozen model by name: a
function ``embed(prompts, outputs, ..., device)`` that returns [N, width], or a pair of images' and texts' embeddings,
both [N, width], which are joined with their product.

The head is BaseReward's (arXiv:2509.16127, section 3): two linear layers with a SiLU between them, on the last hidden
state at the last token (``last_token``) where features are a language model's.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from mmgrpo.config.plugins import load_object
from mmgrpo.files import write_tensors, write_text
from mmgrpo.runtime.weight_files import read_object
from mmgrpo.scoring.manifest import reward
from mmgrpo.types import Image, Output, Prompt, Video
from reward_models.checkpoints import load_exactly, read_tensors
from reward_models.scene_tower import SceneTower, resize

SCENES = "scenes"
"""The name of the features that are trained with the head."""
WEIGHTS, DESCRIPTION = "model.safetensors", "preference.json"
BATCH = 64
"""Outputs that are scored at once."""


@dataclass(frozen=True)
class Description:
    """What a folder says of its head next to the weights."""

    features: str = SCENES
    """``scenes``, or ``module:function`` of the frozen features."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Parameters of that function."""
    width: int = 128
    """Of the features."""
    hidden: int = 128
    """Of the head."""
    mean: float = 0.0
    std: float = 1.0
    """Of the raw scores of the training set; the reward is standardized by them."""
    training: Mapping[str, Any] = field(default_factory=dict)
    """How it was trained, for people."""


class RewardHead(nn.Module):
    """Features [N, width] to one score each: linear, SiLU, linear (BaseReward)."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, hidden), nn.SiLU(), nn.Linear(hidden, 1))

    def forward(self, features: Float[Tensor, "N width"]) -> Float[Tensor, "N"]:
        return self.layers(features)[:, 0]


class PreferenceModel(nn.Module):
    """A head, and the tower below it if that is trained too."""

    def __init__(self, description: Description) -> None:
        super().__init__()
        self.description = description
        self.tower = SceneTower(description.width) if description.features == SCENES else None
        self.head = RewardHead(description.width, description.hidden)

    def features(self, prompts: Sequence[Prompt], outputs: Sequence[Output], device: str) -> Any:
        """What the forward pass takes: [N, width] of a frozen model, or words and pixels for the tower."""
        if self.tower is not None:
            return tuple(part.to(device) for part in self.tower.inputs(prompts, outputs))
        return (frozen_features(self.description.features, self.description.parameters, prompts, outputs, device),)

    def forward(self, *features: Tensor) -> Float[Tensor, "N"]:
        """Raw scores."""
        return self.head(features[0] if self.tower is None else self.tower(*features))


def frozen_features(
    name: str, parameters: Mapping[str, Any], prompts: Sequence[Prompt], outputs: Sequence[Output], device: str
) -> Float[Tensor, "N width"]:
    """The features that ``module:function`` computes, in fp32 and without gradient."""
    embed: Callable[..., Any] = load_object(name, "preference: features")
    with torch.no_grad():
        features = embed(prompts, outputs, **parameters, device=device)
        if isinstance(features, tuple):
            images, texts = features
            features = torch.cat([images, texts, images * texts], 1)
    if not isinstance(features, Tensor) or features.ndim != 2 or len(features) != len(outputs):
        shape = list(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise ValueError(f"preference: features '{name}': got {shape}, expected a tensor [{len(outputs)}, width]")
    return features.float().to(device)


def last_token(hidden: Float[Tensor, "N T width"], mask: Bool[Tensor, "N T"]) -> Float[Tensor, "N width"]:
    """The hidden state at the last token that is no padding, wherever the padding is; ValueError for an empty row."""
    if not bool(mask.any(1).all()):
        raise ValueError(f"got row {int((~mask.any(1)).nonzero()[0])} without a token, expected at least one in each")
    places = torch.arange(mask.shape[1], device=mask.device) * mask
    return hidden[torch.arange(len(hidden), device=hidden.device), places.argmax(1)]


@reward(
    "Image",
    "Video",
    "Text",
    range=(-inf, inf),
    scale="standard deviations of the training set",
    reads=("text", "media"),
    source="train-reward; head of BaseReward, arXiv:2509.16127",
    gradient="reward_models.preference:differentiable",
)
def preference(prompts: Sequence[Prompt], outputs: Sequence[Output], weights: str, device: str = "cpu") -> list[float]:
    """The score of a head trained with scripts/train_reward.py, in standard deviations of its training set.

    ``weights`` is the folder that it wrote. NaN for an image or clip with pixels that are not finite.
    """
    return scores_of(load(weights, device), prompts, outputs, device)


def differentiable(weights: str, device: str = "cpu") -> Callable[[Sequence[Prompt], Tensor], Tensor]:
    """``preference`` as a function of pixels; ValueError for a head on frozen features, which have no gradient."""
    model = load(weights, device)
    tower = model.tower
    if tower is None:
        raise ValueError(
            f"preference: weights: {weights} has a head on '{model.description.features}', expected {SCENES} for the "
            "gradient of the reward"
        )

    def score(prompts: Sequence[Prompt], pixels: Tensor) -> Tensor:
        raw = model(tower.numbers(prompts).to(device), resize(pixels.to(device)))
        return (raw - model.description.mean) / model.description.std

    return score


def scores_of(model: PreferenceModel, prompts: Sequence[Prompt], outputs: Sequence[Output], device: str) -> list[float]:
    """The standardized scores of a model that lies on ``device``."""
    usable = [row for row, output in enumerate(outputs) if _finite(output)]
    values = [math.nan] * len(outputs)
    for start in range(0, len(usable), BATCH):
        rows = usable[start : start + BATCH]
        with torch.no_grad():
            features = model.features([prompts[row] for row in rows], [outputs[row] for row in rows], device)
            scores = (model(*features) - model.description.mean) / model.description.std
        for row, score in zip(rows, scores.tolist(), strict=True):
            values[row] = score
    return values


def _finite(output: Output) -> bool:
    pixels = output.pixels if isinstance(output, Image) else output.frames if isinstance(output, Video) else None
    return pixels is None or bool(pixels.isfinite().all())


@functools.lru_cache(maxsize=8)
def load(folder: str, device: str = "cpu") -> PreferenceModel:
    """The model of a folder, ready to score."""
    place = Path(folder).expanduser()
    for name in (DESCRIPTION, WEIGHTS):
        if not (place / name).is_file():
            raise FileNotFoundError(
                f"preference: weights: {place} has no {name}; expected a folder that train-reward wrote"
            )
    try:
        description = Description(**read_object(place / DESCRIPTION))
        if "adapters" in (parameters := dict(description.parameters)):  # a file of this folder, wherever it lies now
            parameters["adapters"] = str(place / Path(str(parameters["adapters"])).name)
            description = replace(description, parameters=parameters)
        model = PreferenceModel(description)
    except (TypeError, RuntimeError) as error:
        raise ValueError(f"preference: {place / DESCRIPTION}: {error}; train the head again") from error
    return load_exactly(model, read_tensors(place / WEIGHTS, "preference"), place / WEIGHTS, "preference").to(device)


def save(model: PreferenceModel, folder: Path) -> None:
    """Write a model as safetensors and JSON."""
    weights = {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
    write_tensors(folder / WEIGHTS, weights)
    write_text(folder / DESCRIPTION, json.dumps(asdict(model.description), indent=1))
