"""Videos of every family that generates them: tiles and slices of the VAE, and checkpoints of other families."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from mmgrpo.family import families
from mmgrpo.types import Prompt
from pipelines.visual.options import MemoryOptions
from tests.building import load, refuse_foreign
from tests.libraries.pipelines.visual.drawing import noise
from tests.libraries.pipelines.visual.filming import PICTURED, TEXTS, pictured
from tests.tiny import maker, tiny_checkpoint

TALL = {
    "hunyuan_video": {"height": 512, "width": 16, "frames": 5},
    "ltx_video": {"height": 1024, "width": 32, "frames": 5},
}
"""Family to the size of clips that are taller than a tile of its VAE."""
INNER = ("conv2.conv", "to_out.0", "per_channel_scale")
"""Last layers of residual branches in a VAE's decoder, and the scales of noise that it injects."""


@pytest.fixture(scope="module")
def folders() -> dict[str, Path]:
    return {name: tiny_checkpoint(maker(name)) for name in TALL}


def tall(folders: dict[str, Path], name: str, **memory: Any) -> Any:
    """A model of tall clips whose decoder is local: without its residual branches, whose random weights would mix all
    that a tile contains, which those of a trained decoder do not."""
    model = load(name, folders[name], **TALL[name])
    for key, parameter in model.architecture.pipeline.vae.decoder.named_parameters():
        if any(inner in key for inner in INNER):
            torch.nn.init.zeros_(parameter)
    model.limit_memory(MemoryOptions(**memory), name)
    return model


def filmed(model: Any) -> torch.Tensor:
    return torch.stack([clip.frames for clip in model.decode(noise(model, 2))])


@pytest.mark.parametrize("name", TALL)
def test_clips_are_the_same_one_by_one(folders, name):
    torch.testing.assert_close(
        filmed(tall(folders, name, decode_batch_size=1)), filmed(tall(folders, name)), rtol=0, atol=5e-5
    )


@pytest.mark.parametrize(("name", "most"), [("hunyuan_video", 0.2), ("ltx_video", 0.01)])
def test_tiles_give_the_same_clip_up_to_their_seams(folders, name, most):
    """The mean gap is small compared with the deviation of pixels; that of a clip with misplaced tiles is not: at the
    seams with LTX-Video, everywhere with HunyuanVideo, whose normalization sees one tile at a time."""
    whole, tiled = filmed(tall(folders, name)), filmed(tall(folders, name, vae_tiling=True))
    assert tiled.shape == whole.shape and 0 < (tiled - whole).abs().mean() / whole.std() < most
    assert (tiled.roll(192, -2) - whole).abs().mean() / whole.std() > 0.8


@pytest.mark.parametrize("name", ["hunyuan_video", "skyreels_i2v", "ltx_video", "ltx_i2v"])
def test_the_text_encoders_can_be_freed(tmp_path, name):
    prompts = PICTURED if name.endswith("i2v") else TEXTS
    model = load(name, maker(name)(tmp_path), height=32, width=32, frames=5)
    before = model.encode(prompts)
    model.forget_encoders(prompts)
    parts = model.architecture.pipeline.components
    assert parts["text_encoder"] is None and parts.get("text_encoder_2") is None and parts["vae"] is not None
    after = model.encode(prompts)
    assert all(torch.equal(*pair) for pair in zip(before.tensors, after.tensors, strict=True))
    with pytest.raises(KeyError, match="encoded"):
        model.encode([pictured("another", 9) if name.endswith("i2v") else Prompt("another")])


@pytest.mark.parametrize(
    ("declared", "name"),
    [
        ("HunyuanVideoPipeline", "hunyuan_video"),
        ("HunyuanSkyreelsImageToVideoPipeline", "skyreels_i2v"),
        ("LTXPipeline", "ltx_video"),
        ("LTXImageToVideoPipeline", "ltx_i2v"),
    ],
)
def test_another_family_names_the_one_to_take(tmp_path, declared, name):
    (tmp_path / "model_index.json").write_text(json.dumps({"_class_name": declared}))
    with pytest.raises(ValueError, match=f"'sd3'.*model.family={name}"):
        refuse_foreign(families()["sd3"], str(tmp_path))
    refuse_foreign(families()[name], str(tmp_path))
