"""A recipe whose rewards need no hub: three are combined by GDPO, a fourth is held out, and all of them score."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import yaml

from mmgrpo.rewards import scorers
from pipelines.visual import sd3
from tests.journeys.cli import quick
from tests.journeys.cli.running import call, read_lines, summary
from tests.libraries.reward_models.photographs import fetched

TRAINED, HELD_OUT = ("ocr", "brisque", "jpeg_compressibility"), "niqe"


def large_enough_for_niqe(folder: Path) -> Path:
    """A tiny Stable Diffusion 3 that draws 208 x 208 pixels."""
    from diffusers import SD3Transformer2DModel

    sd3.tiny(folder)
    sizes = {**SD3Transformer2DModel.load_config(folder / "transformer"), "sample_size": 104, "pos_embed_max_size": 52}
    SD3Transformer2DModel.from_config(sizes).save_pretrained(folder / "transformer")
    return folder


def test_the_recipe_trains_on_three_rewards_and_holds_out_a_fourth():
    recipe = quick.contents("visual/offline_rewards")
    weights = {scorer.name: scorer.weight for scorer in scorers(recipe["rewards"])}
    assert weights == {"ocr": 1, "brisque": 1, "jpeg_compressibility": 0.25, "niqe": 0}
    assert recipe["algorithm"]["combine"].startswith("gdpo")


@pytest.mark.slow
@pytest.mark.nightly
def test_the_recipe_trains_on_real_rewards(tmp_path):
    for name in ("brisque", "niqe"):
        fetched(name)
    pytest.importorskip("rapidocr")
    recipe = quick.contents("visual/offline_rewards")
    options = quick.visual_recipe("offline_rewards", large_enough_for_niqe(tmp_path / "sd3"), tmp_path, tmp_path)
    options += ["--model.height", 208, "--model.width", 208, "--rewards", *recipe["rewards"], "--sampling.steps", 3]
    call("train", *options, "--optim.micro-batch-size", 8)
    folder = tmp_path / "offline_rewards"
    assert yaml.safe_load((folder / "config.yaml").read_text())["algorithm"]["combine"] == "gdpo(eps=1e-4)"

    lines = read_lines(folder / "metrics.jsonl")
    assert [line["step"] for line in lines] == [1, 2]
    for line in lines:
        for name in (*TRAINED, HELD_OUT):
            assert math.isfinite(line[f"reward/{name}/mean"]) and f"reward/{name}/failed" not in line
        assert line["reward/brisque/std"] > 0 and line["reward/niqe/std"] > 0 and line["grad_norm"] > 0
        assert line["reward/niqe/mean"] < 0 <= line["reward/brisque/mean"] <= 1
    assert summary(folder)["eval"]["after"].keys() == {*TRAINED, HELD_OUT}
