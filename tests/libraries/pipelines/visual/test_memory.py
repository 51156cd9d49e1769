"""The arithmetic of memory, and the page that shows it."""

from __future__ import annotations

import pytest

from mmgrpo.family import families
from pipelines.visual import memory
from pipelines.visual.memory import ENCODERS, MODELS, Model, encoder_parameters, fits, parameters, row
from tests import ROOT

PAGE = (ROOT / "docs" / "visual.md").read_text(encoding="utf-8")


WORDS = {
    "CLIP-L": 123_060_480,
    "OpenCLIP-bigG": 694_659_840 - 1280**2,  # without its projection
    "T5-XXL": 4_762_310_656,
    "ByT5-small": 217_657_472,
    "UMT5-XXL": 5_680_910_336,
    "Gemma2-2B": 2_614_341_888,
    "Qwen3-4B": 4_022_468_096,
    "Llama-8B": 8_030_261_248 - 128_256 * 4096 + 64 * 4096,  # without its head, with HunyuanVideo's special tokens
    "Mistral-24B": 23_572_403_200 - 131_072 * 5120,  # without its head
    "Qwen2.5-7B": 7_615_616_512 - 152_064 * 3584,  # without its head
    "Qwen3-8B": 8_190_735_360 - 151_936 * 4096,  # without its head
}
"""Parameters of the published text encoders."""

GENERATORS = {
    "SD 1.4": (859_520_964, (512 // 8) ** 2, 320, 25),
    "SDXL": (2_567_463_684, (1024 // 16) ** 2, 640, 70),
    "SD 3.5 Medium": (2_243_171_520, (512 // 16) ** 2 + 77 + 256, 24 * 64, 24),
    "Sana 1.6B": (1_604_462_752, (1024 // 32) ** 2 + 300, 70 * 32, 20),
    "SANA-Video 2B": (2_056_862_144, (80 // 4 + 1) * (480 // 16) * (832 // 16), 20 * 112, 20),
    "FLUX.2-klein 4B": (3_885_768_192, (512 // 16) ** 2 + 512, 24 * 128, 5 + 20),
    "Z-Image": (6_154_908_736, (512 // 16) ** 2 + 512, 3840, 30 + 4),
    "LongCat-Image": (6_270_668_864, (512 // 16) ** 2 + 512, 24 * 128, 10 + 20),
    "FLUX.1-dev": (11_891_178_560, (720 // 16) ** 2 + 512, 24 * 128, 19 + 38),
    "Qwen-Image": (20_430_401_088, (512 // 16) ** 2 + 512, 24 * 128, 60),
    "Qwen-Image-2.1": (7_115_124_736, (512 // 16) ** 2 + 512, 32 * 128, 32),
    "FLUX.2-dev": (32_223_281_152, (512 // 16) ** 2 + 512, 48 * 128, 8 + 48),
    "LTX-Video": (1_923_385_472, (24 // 8 + 1) * (480 // 32) * (704 // 32), 32 * 64, 28),
    "Wan 2.1 1.3B": (1_418_996_800, (32 // 4 + 1) * (240 // 16) * (416 // 16), 12 * 128, 30),
    "Wan 14B": (14_288_491_584, (32 // 4 + 1) * (240 // 16) * (416 // 16), 40 * 128, 40),
    "HunyuanVideo 1.5": (8_326_608_160, (120 // 4 + 1) * (480 // 16) * (848 // 16) + 1000, 16 * 128, 54),
    "HunyuanVideo": (12_821_012_544, (52 // 4 + 1) * (480 // 16) ** 2 + 256, 24 * 128, 20 + 40),
}
"""Parameters of the published networks; tokens of a sample, width and blocks."""


def test_networks_and_text_encoders_have_their_published_sizes() -> None:
    assert {name: encoder_parameters(name) for name in ENCODERS} == WORDS
    assert {
        one.name: (parameters(one.kind, one.config), one.tokens, one.width, one.blocks) for one in MODELS
    } == GENERATORS


def test_the_page_of_generators_lists_their_families_and_the_memory_of_each_model(monkeypatch) -> None:
    counts = {str((one.kind, one.config)): GENERATORS[one.name][0] for one in MODELS}
    monkeypatch.setattr(memory, "parameters", lambda *network: counts[str(network)])
    monkeypatch.setattr(memory, "encoder_parameters", WORDS.__getitem__)
    table = PAGE.split("\n## Families\n")[1].split("\n## ")[0]
    listed = [line.split("`")[1] for line in table.splitlines() if line.startswith("| `")]
    assert sorted(listed) == sorted(name for name, one in families().items() if one.modality == "visual")
    assert [model.name for model in MODELS if row(model) not in PAGE] == []


@pytest.mark.parametrize(("gigabytes", "card"), [(19.9, "24 GB"), (20.1, "80 GB"), (76.0, "80 GB"), (76.1, "sharding")])
def test_four_gigabytes_are_left(gigabytes, card):
    assert fits(gigabytes) == card


def test_a_row_is_arithmetic():
    # A UNet of 0.86 billion: 2 and 16 bytes each; 10^6 tokens x 100 x 10 blocks x 2 bytes = 2 GB; CLIP-L 0.123 billion.
    count = parameters("UNet2DConditionModel", {"cross_attention_dim": 768})
    assert count == 859_520_964  # the published size of Stable Diffusion 1.x's UNet
    model = Model("x", "UNet2DConditionModel", {"cross_attention_dim": 768}, 100, 10, 1_000_000, "s", ["CLIP-L"])
    assert row(model) == "| x | s | 0.86 B | 1.7 | 14 | 2.00 | 0.2 | 24 GB | 24 GB |"
