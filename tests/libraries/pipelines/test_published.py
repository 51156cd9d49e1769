"""Records of published checkpoints: their sizes are those of the networks, and a dry run needs no files of them."""

from __future__ import annotations

import pytest

from docs.site.checkpoints import most
from mmgrpo.catalogue.checkpoints import Checkpoint, checkpoints
from mmgrpo.cli.train import costs_of, read
from mmgrpo.family import families
from pipelines.published import folder_of


@pytest.mark.rows
@pytest.mark.parametrize("name", checkpoints())
def test_the_parameters_of_a_record_are_those_of_its_network(name: str) -> None:
    checkpoint = checkpoints()[name]
    assert folder_of(checkpoint).parameters == checkpoint.parameters
    assert checkpoint.family in families()


PUBLISHED = {
    "black-forest-labs/FLUX.1-dev": 11_901_408_320,
    "Qwen/Qwen2.5-VL-7B-Instruct": 8_292_166_656,
    "meta-llama/Llama-3.1-8B-Instruct": 8_030_261_248,
    "openai/whisper-large-v3": 1_543_490_560,
}
"""The sizes that the hub states."""


def test_the_sizes_are_the_published_ones() -> None:
    assert {name: checkpoints()[name].parameters for name in PUBLISHED} == PUBLISHED


@pytest.mark.parametrize(
    ("path", "arguments"),
    [
        ("black-forest-labs/FLUX.1-dev", ["--model.family", "flux"]),
        ("Qwen/Qwen2.5-VL-7B-Instruct", ["--model.family", "qwen_vl", "--model.max-prompt-tokens", "512"]),
    ],
)
def test_a_dry_run_counts_memory_and_hours_of_a_published_checkpoint_without_its_files(path, arguments) -> None:
    """With LoRA in bf16, and so with P parameters 2 P bytes of weights and those of the adapters."""
    given = ["--model.path", path, "--model.lora-rank", "8", "--model.dtype", "bfloat16", "--data.train", "t.jsonl"]
    text = "\n".join(costs_of(read([*arguments, *given, "--rewards", "exact"], ""), 1, on_hub=False))
    weights = float(text.split("weights ")[1].split(",")[0])
    assert 2e-9 * checkpoints()[path].parameters < weights < 2.1e-9 * checkpoints()[path].parameters
    assert "H100" in text and path in text


@pytest.mark.parametrize(
    ("billions", "way"), [(1.25, "all weights"), (1.26, "LoRA"), (10.1, "4 bits"), (40, "several")]
)
def test_four_gigabytes_of_a_card_are_left(billions: float, way: str) -> None:
    """On 24 GB, 20 of them for 16, 2 or .54 bytes for each parameter."""
    assert most(Checkpoint("flux", "", int(1e9 * billions)), 24).startswith(way)
