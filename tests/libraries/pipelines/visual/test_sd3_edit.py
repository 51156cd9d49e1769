"""Small models that edit: what the network reads of the given image, and the embedded base."""

from __future__ import annotations

import pytest
import torch

from mmgrpo.config.plugins import locate
from mmgrpo.data.prompts import load_prompts
from mmgrpo.toy import edits
from mmgrpo.types import Image, Media, Prompt, Turn
from pipelines.visual import sd3
from pipelines.visual.options import EditOptions, FlowOptions
from tests.libraries.families.examples import noise
from tests.tiny import tiny_checkpoint
from tests.tiny.sd3_edit import tiny

FOLDER = "embedded:visual/edits"
BASE = locate(f"{FOLDER}/base")


def edit(image: Image, text: str = "a red square") -> Prompt:
    return Prompt(text, "row 7", turns=(Turn("user", (Media("image", image), text)),))


@pytest.fixture(scope="module")
def model():
    return sd3.load(EditOptions(path=str(tiny_checkpoint(tiny)), height=16, width=16))


def test_the_network_reads_the_source_behind_what_is_made(model, monkeypatch):
    image, other = Image(noise(3, 16, 16, seed=0)), Image(noise(3, 16, 16, seed=1))
    conditioning = model.encode([edit(image), edit(other)])
    x, time = noise(2, 3, 16, 16, seed=2), torch.full((2,), 0.7)
    read = []
    monkeypatch.setattr(model.network, "forward", lambda **given: read.append(given["hidden_states"]) or [x])
    model.predict(model.network, x, time, conditioning)
    assert torch.equal(read[0][:, :3], x), "noised"
    assert torch.allclose(read[0][:, 3:], torch.stack([image.pixels, other.pixels]) * 2 - 1), "and never noised"


def test_another_source_is_another_prediction_and_guidance_keeps_it(model):
    one, other = (model.encode([edit(Image(noise(3, 16, 16, seed=seed)))]) for seed in (0, 1))
    x, time = noise(1, 3, 16, 16, seed=2), torch.full((1,), 0.7)
    assert not torch.allclose(model.predict(model.network, x, time, one), model.predict(model.network, x, time, other))
    guided = model.variant(guidance=2.0)
    conditioning = guided.encode([edit(Image(noise(3, 16, 16, seed=0)))])
    assert torch.equal(conditioning.negative[2], conditioning.tensors[2])


def test_a_source_of_another_size_covers_that_of_the_edit(model):
    middle, sides = torch.full((3, 32, 32), 0.75), torch.zeros(3, 32, 8)
    read = model.encode([edit(Image(torch.cat([sides, middle, sides], 2)))]).tensors[2]
    assert read.shape == (1, 3, 16, 16)
    torch.testing.assert_close(read[..., 2:-2], torch.full((1, 3, 16, 12), 0.5))  # 2 x .75 - 1; the sides are cut off


def test_a_family_names_the_one_that_fits_the_folder():
    with pytest.raises(ValueError, match="model.family.*sd3_edit"):
        sd3.load(FlowOptions(path=BASE))
    with pytest.raises(ValueError, match="model.path.*3 channels.*model.family=sd3"):
        sd3.load(EditOptions(path=locate("embedded:visual/scenes/base")))
    with pytest.raises(ValueError, match="row 7.*none.*'image'"):
        model = sd3.load(EditOptions(path=BASE))
        model.encode([Prompt("make the circle red", "row 7")])


def test_the_embedded_files_are_those_of_the_world():
    for name, part in edits.splits().items():
        prompts = load_prompts(locate(f"{FOLDER}/{name}.jsonl"))
        assert [prompt.text for prompt in prompts] == [edits.text(one) for one in part]
        assert [prompt.meta["mask"] for prompt in prompts] == [[*edits.box(one, one.seed)] for one in part]
    words = sd3.load(EditOptions(path=BASE)).architecture.words
    assert words.vocabulary == edits.vocabulary()
