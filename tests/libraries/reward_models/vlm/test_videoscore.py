"""VideoScore: a small checkpoint in the published layout, computed by transformers and by the reward."""

from __future__ import annotations

import math
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from mmgrpo.types import Image, Prompt, Video
from pipelines.vlm.qwen_vl_tiny import word_tokenizer
from reward_models.pixels import to_pil
from reward_models.vlm.qwen2_vl import precision_of
from reward_models.vlm.videoscore import SIDES, load, videoscore
from tests.libraries.reward_models.vlm.tiny_qwen import amplified

SPECIAL = ("<pad>", "<s>", "</s>", "<image>", "<fake_token_around_image>", "<end_of_utterance>")
LATENTS = 4


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """(folder, the network and its head)."""
    from transformers import Idefics2Config, Idefics2Model, Idefics2Processor
    from transformers.models.idefics2.image_processing_pil_idefics2 import Idefics2ImageProcessorPil

    place = tmp_path_factory.mktemp("videoscore")
    tokenizer = word_tokenizer(["red", "circle", "rate", ":"], SPECIAL, end="</s>", pad="<pad>")
    pictures = Idefics2ImageProcessorPil(size={"longest_edge": 32, "shortest_edge": 16}, do_image_splitting=False)
    Idefics2Processor(pictures, tokenizer, image_seq_len=LATENTS).save_pretrained(place)
    text = {"model_type": "mistral", "vocab_size": len(tokenizer), "hidden_size": 32, "intermediate_size": 64}
    text |= {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "pad_token_id": 0}
    vision = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision |= {"image_size": 32, "patch_size": 8}
    perceiver = {"resampler_n_latents": LATENTS, "resampler_depth": 1, "resampler_n_heads": 2, "resampler_head_dim": 8}
    perceiver |= {"num_key_value_heads": 1, "hidden_size": 32}
    ids = tokenizer.get_vocab()
    config = Idefics2Config(
        text_config=text, vision_config=vision, perceiver_config=perceiver, image_token_id=ids["<image>"]
    )
    torch.manual_seed(0)
    network, head = amplified(Idefics2Model(config)).eval(), torch.nn.Linear(32, 5)
    config.save_pretrained(place)
    tensors = {f"model.{key}": value.clone() for key, value in network.state_dict().items()}
    tensors |= {f"score.{key}": value.clone() for key, value in head.state_dict().items()}
    names = sorted(tensors)
    for n, part in enumerate((names[::2], names[1::2])):
        save_file({name: tensors[name] for name in part}, place / f"model-0000{n + 1}-of-00002.safetensors")
    (place / "asked.txt").write_text("rate {text_prompt} : ")
    return place, network, head


def clip(frames, seed=0):
    return Video(torch.rand(frames, 3, 20, 28, generator=torch.Generator().manual_seed(seed)), 8.0)


def by_transformers(made, frames):
    """Five numbers, with the places of the frames written out."""
    from transformers import AutoProcessor

    place, network, head = made
    processor = AutoProcessor.from_pretrained(place)
    pictures = [to_pil(Image(frame)) for frame in frames]
    inputs = processor.image_processor([pictures], return_tensors="pt")
    picture = "<fake_token_around_image>" + "<image>" * LATENTS + "<fake_token_around_image>"
    text = "rate red circle : " + f"{picture} " * len(pictures)
    ids = processor.tokenizer(text, add_special_tokens=False)
    with torch.no_grad():
        states = network(
            input_ids=torch.tensor([ids["input_ids"]]), pixel_values=inputs["pixel_values"],
            pixel_attention_mask=inputs["pixel_attention_mask"],
        ).last_hidden_state  # fmt: skip
        return head(states[0, -1]).tolist()


def test_the_five_numbers_are_those_of_transformers(made):
    given = [Prompt("red circle")], [clip(8)], str(made[0] / "asked.txt")
    wanted = by_transformers(made, clip(8).frames[[0, 2, 4, 6]])
    found = [videoscore(*given, side=side, frames=4, weights=str(made[0]))[0] for side in SIDES]
    assert found == pytest.approx(wanted, abs=1e-5)
    assert videoscore(*given, frames=4, weights=str(made[0])) == [pytest.approx(sum(wanted) / 5, abs=1e-5)]
    assert videoscore(*given, weights=str(made[0]))[0] != pytest.approx(sum(wanted) / 5, abs=1e-3), "all eight frames"


def test_frames_are_spread_over_a_clip_of_any_length(made):
    wanted = by_transformers(made, clip(7).frames[[0, 1, 3, 5]])  # every 7 / 4 = 1.75
    found = videoscore([Prompt("red circle")], [clip(7)], str(made[0] / "asked.txt"), frames=4, weights=str(made[0]))
    assert found == [pytest.approx(sum(wanted) / 5, abs=1e-5)]


def test_broken_frames_are_nan_and_wrong_parameters_errors(made):
    asked = str(made[0] / "asked.txt")
    broken, empty = clip(4), Video(torch.zeros(0, 3, 20, 28), 8.0)
    broken.frames[3, 2, 0, 1] = math.nan
    values = videoscore([Prompt("red")] * 2, [broken, empty], asked, weights=str(made[0]))
    assert [*map(math.isnan, values)] == [True, True]
    with pytest.raises(TypeError, match="Video"):
        videoscore([Prompt("red")], [Image(torch.zeros(3, 8, 8))], asked, weights=str(made[0]))
    with pytest.raises(ValueError, match="visual_quality"):
        videoscore([], [], asked, side="quality", weights=str(made[0]))
    with pytest.raises(ValueError, match="side='mean.*frames=0"):
        videoscore([], [], asked, frames=0, weights=str(made[0]))


def test_one_frame_is_the_first_and_marks_of_the_instruction_are_places_of_frames(made, tmp_path):
    where = {"weights": str(made[0])}
    one = videoscore([Prompt("red circle")], [clip(8)], str(made[0] / "asked.txt"), frames=1, **where)
    assert one == [pytest.approx(sum(by_transformers(made, clip(8).frames[:1])) / 5, abs=1e-5)]
    (tmp_path / "marked.txt").write_text("rate {text_prompt} : <image> <image> ")
    marked = videoscore([Prompt("red circle")], [clip(8)], str(tmp_path / "marked.txt"), frames=4, **where)
    plain = videoscore([Prompt("red circle")], [clip(8)], str(made[0] / "asked.txt"), frames=4, **where)
    assert marked == [pytest.approx(plain[0], abs=1e-5)]


def test_the_precision_is_that_of_the_device_or_as_asked(made):
    for dtype, wanted in (("", torch.float32), ("bfloat16", torch.bfloat16)):
        network = load(str(made[0]), "cpu", dtype).network
        assert {one.dtype for one in network.parameters()} == {wanted}
    assert precision_of("", "cuda:0", "hpsv3") == torch.bfloat16
    with pytest.raises(ValueError, match="videoscore.*dtype 'half'"):
        load(str(made[0]), "cpu", "half")


def test_a_head_may_have_no_bias_and_the_network_is_frozen(made, tmp_path):
    shutil.copytree(made[0], tmp_path / "w")
    for file in (tmp_path / "w").glob("*.safetensors"):
        save_file({name: value for name, value in load_file(file).items() if name != "score.bias"}, file)
    network = load(str(tmp_path / "w"), "cpu").network
    assert network["score"].bias is None
    assert {(one.dtype, one.requires_grad) for one in network.parameters()} == {(torch.float32, False)}


def test_a_truncated_file_and_an_empty_folder_are_named(made, tmp_path):
    shutil.copytree(made[0], tmp_path / "w")
    file = tmp_path / "w" / "model-00002-of-00002.safetensors"
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(ValueError, match="model-00002-of-00002.safetensors"):
        load(str(tmp_path / "w"), "cpu")
    (tmp_path / "empty").mkdir()
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "empty" / name).touch()
        with pytest.raises(FileNotFoundError, match="config.json"):
            load.__wrapped__(str(tmp_path / "empty"), "cpu")
        (tmp_path / "empty" / name).unlink()
