"""Small video models: latents are the pixels of all frames, and the folder is complete."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from mmgrpo.types import Media, Prompt, Turn, Video
from pipelines.pretrained import architecture
from pipelines.visual import sd3, wan
from pipelines.visual.families import FAMILIES
from pipelines.visual.wan_small import Clip
from tests.building import load
from tests.libraries.pipelines.visual.drawing import draw, noise, shake
from tests.tiny import tiny_checkpoint

PROMPTS = [Prompt("a red circle"), Prompt("a blue square and a circle ."), Prompt("")]


@pytest.fixture(scope="module")
def small() -> Path:
    return tiny_checkpoint(wan.tiny_words, clip=Clip(frames=6, height=8, width=12, fps=4.5))


def test_a_clip_has_the_model_s_own_form_unless_another_is_asked_for(small):
    model = load(wan, small, guidance=1.0)
    assert model.latent_shape() == (3, 6, 8, 12)
    [clip, *_] = model.decode(noise(model))
    assert isinstance(clip, Video) and clip.frames.shape == (6, 3, 8, 12) and clip.fps == 4.5
    other = load(wan, small, frames=1, height=16, width=4, fps=2.0)
    assert other.latent_shape() == (3, 1, 16, 4) and other.fps == 2.0
    for frames in (2, 64):
        assert load(wan, small, frames=frames).latent_shape()[1] == frames


def test_latents_are_pixels_from_minus_one_to_one_frame_by_frame(small):
    model = load(wan, small)
    x = torch.zeros(1, 3, 6, 8, 12)
    x[0, 0, 2], x[0, 1, 5] = 1.0, -1.0  # red in frame 2, no green in frame 5
    [clip] = model.decode(x)
    expected = torch.full((6, 3, 8, 12), 0.5)
    expected[2, 0], expected[5, 1] = 1.0, 0.0
    assert torch.equal(clip.frames, expected)


def test_the_network_is_that_of_diffusers_at_a_thousand_sigma(small):
    from diffusers import WanTransformer3DModel

    model = load(wan, small, guidance=1.0)
    network = WanTransformer3DModel.from_pretrained(small, subfolder="transformer")
    x, conditioning = noise(model), model.encode(PROMPTS)
    time = torch.tensor([0.5, 0.123, 1.0])
    expected = network(x, time * 1000, conditioning.tensors[0]).sample
    torch.testing.assert_close(model.predict(model.network, x, time, conditioning), expected, atol=1e-6, rtol=0)


def test_words_are_encoded_as_in_small_models_of_pictures(small, tmp_path):
    pictures = load(sd3, sd3.tiny_words(tmp_path))
    shutil.copytree(small / "words", tmp_path / "words", dirs_exist_ok=True)
    pictures = load(sd3, tmp_path)
    ours, theirs = load(wan, small, guidance=1.0).encode(PROMPTS), pictures.encode(PROMPTS)
    assert all(torch.equal(one, other) for one, other in zip(ours.tensors, theirs.tensors, strict=True))


@pytest.mark.parametrize("options", [{}, {"lora_rank": 2}])
def test_a_saved_model_films_the_same(small, tmp_path, options):
    model = load(wan, small, guidance=3.0, **options)
    shake(model.network)
    with torch.no_grad():
        model.network.proj_out.bias += 0 if options else 1
    start = noise(model)
    end = draw(model, model.network, start, PROMPTS)
    model.save(tmp_path / "saved", model.network)
    again = load(wan, small, guidance=3.0, weights=tmp_path / "saved")
    assert torch.equal(draw(again, again.network, start, PROMPTS), end)
    if not options:  # a whole model is a folder that loads by itself
        alone = load(wan, tmp_path / "saved", guidance=3.0)
        assert torch.equal(draw(alone, alone.network, start, PROMPTS), end)
        assert (alone.latent_shape(), alone.fps) == (model.latent_shape(), 4.5)
        assert architecture(str(tmp_path / "saved")) in FAMILIES["wan"].architectures


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"frames": 0}, "frames, height, width, fps"),
        ({"frames": 5.5}, "frames, height, width, fps"),
        ({"fps": float("inf")}, "frames, height, width, fps"),
        ({"width": True}, "frames, height, width, fps"),
        ({"seconds": 3}, "frames, height, width, fps"),
        ({"height": 10}, "height.*10.*8"),
        ({"frames": 65}, "frames.*65.*64"),
    ],
)
def test_a_form_that_cannot_be_is_refused(small, tmp_path, change, message):
    folder = shutil.copytree(small, tmp_path / "model")
    file = folder / "video.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(ValueError, match=message):
        load(wan, folder)


def test_a_folder_without_its_form_and_prompts_with_media_are_refused(small, tmp_path):
    folder = shutil.copytree(small, tmp_path / "model")
    (folder / "video.json").unlink()
    with pytest.raises(FileNotFoundError, match="video.json"):
        load(wan, folder)
    video = Media("video", Video(torch.zeros(2, 3, 4, 4), 1.0))
    with pytest.raises(ValueError, match="1 media"):
        load(wan, small).encode([Prompt("red", turns=(Turn("user", (video,)),))])
