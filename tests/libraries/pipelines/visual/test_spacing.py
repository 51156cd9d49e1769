"""The shift of noise levels by the number of image tokens, for schedulers that state no bounds of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from pipelines.visual.flow import image_shift, time_shift
from pipelines.visual.flux import Flux
from pipelines.visual.hunyuan_video import HunyuanVideo
from pipelines.visual.hunyuan_video15 import HunyuanVideo15
from pipelines.visual.longcat_image import LongCatImage
from pipelines.visual.ltx_video import LtxImage, LtxVideo
from pipelines.visual.qwen_image import QwenImage
from pipelines.visual.qwen_image21 import QwenImage21
from pipelines.visual.sana import Sana
from pipelines.visual.sd3 import Pretrained
from pipelines.visual.z_image import ZImage

CPU = torch.device("cpu")
STATING_NONE = SimpleNamespace(config=SimpleNamespace(sample_sigmas=None))
FEW, MANY = 256, 4096
"""Image tokens at which diffusers' pipelines shift by 0.5 and by the most."""

SHIFTED = {
    "sd3": (1.16, lambda tokens: Pretrained(None, 1, CPU, tokens)),
    "flux": (1.15, lambda tokens: Flux(None, 1, 1.0, CPU, (16, tokens // 4))),
    "qwen_image": (1.15, lambda tokens: QwenImage(None, 1, CPU, (16, tokens // 4))),
    "qwen_image21": (1.15, lambda tokens: QwenImage21(STATING_NONE, 1, CPU, (16, tokens // 16))),
    "longcat_image": (1.15, lambda tokens: LongCatImage(None, 0.0, CPU, (16, tokens // 4))),
    "z_image": (1.15, lambda tokens: ZImage(None, 1, 0.0, CPU, tokens)),
    "ltx_video": (1.15, lambda tokens: LtxVideo(None, 1, 1.0, CPU, tokens)),
    "ltx_i2v": (1.15, lambda tokens: LtxImage(None, 1, 1.0, CPU, (4, 8, tokens // 32))),
}
"""Family to the most by which its pipeline shifts, and its architecture for so many tokens."""

EVEN = {name: make(FEW) for name, (_, make) in SHIFTED.items() if name != "sd3"} | {
    "hunyuan_video": HunyuanVideo(None, 1, 1.0, CPU),
    "hunyuan_video15": HunyuanVideo15(None, 1, CPU),
    "sana": Sana(None, 1, CPU, even=True),
}
"""Families whose pipelines state levels themselves."""


def scheduler(**config: Any) -> Any:
    return SimpleNamespace(config={"use_dynamic_shifting": True, **config})


@pytest.mark.parametrize("name", SHIFTED)
def test_more_tokens_are_shifted_further(name):
    most, make = SHIFTED[name]
    given = {"base_image_seq_len": 0, "max_image_seq_len": 512, "base_shift": 1.0, "max_shift": 2.0}
    assert make(FEW).spacing(scheduler(), 4)["mu"] == pytest.approx(0.5)
    assert make(MANY).spacing(scheduler(), 4)["mu"] == pytest.approx(most)
    assert make(FEW).spacing(scheduler(**given), 4)["mu"] == pytest.approx(1.5)


@pytest.mark.parametrize("name", EVEN)
def test_levels_are_evenly_spaced_above_zero(name):
    levels = EVEN[name].spacing(scheduler(), 4)["sigmas"]
    assert np.asarray(levels).tolist() == pytest.approx([1.0, 0.75, 0.5, 0.25])


def test_a_shift_is_linear_in_the_tokens():
    assert image_shift({}, (FEW + MANY) // 2, 1.5) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("config", "mu", "factor"),
    [
        ({"shift": 3.0}, None, 3.0),
        ({"shift": 3.0, "flow_shift": 5.0}, None, 3.0),  # a key that is foreign to the class
        ({"use_dynamic_shifting": True}, 0.0, 1.0),
        ({"use_dynamic_shifting": True, "time_shift_type": "exponential"}, 1.0, 2.718281828),
        ({"use_dynamic_shifting": True, "time_shift_type": "linear"}, 0.7, 0.7),
    ],
)
def test_the_factor_of_a_shift_is_the_scheduler_s_own_or_that_of_the_picture(config, mu, factor):
    euler = type("FlowMatchEulerDiscreteScheduler", (), {"config": config})
    assert time_shift(euler(), mu) == pytest.approx(factor)


def test_the_factor_of_a_multistep_scheduler_is_its_flow_shift():
    unipc = type("UniPCMultistepScheduler", (), {"config": {"shift": 3.0, "flow_shift": 5.0}})
    assert time_shift(unipc(), None) == 5.0
