"""CLAP: a small model of the real architecture, computed by the parts of transformers and by the reward."""

from __future__ import annotations

import json
import math
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from mmgrpo.types import Audio, Prompt, Text
from reward_models.vlm import clap as module
from reward_models.vlm.clap import clap, load, sounds, texts
from tests.libraries.reward_models.vlm.tiny_qwen import amplified

RATE = 48_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    from transformers import ClapConfig, ClapFeatureExtractor, ClapModel

    from pipelines.vlm.qwen_vl_tiny import word_tokenizer

    place = tmp_path_factory.mktemp("clap")
    tokenizer = word_tokenizer(["a", "bell", "rain"])
    tokenizer.model_max_length = 8
    tokenizer.save_pretrained(place)
    ClapFeatureExtractor().save_pretrained(place)
    text = {"vocab_size": len(tokenizer), "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    text |= {"intermediate_size": 32, "max_position_embeddings": 16, "projection_dim": 8, "pad_token_id": 0}
    audio = {"hidden_size": 64, "patch_embeds_hidden_size": 16, "depths": [1, 1, 1], "num_attention_heads": [1, 2, 4]}
    audio |= {"projection_dim": 8, "enable_fusion": True, "spec_size": 256, "window_size": 4}
    torch.manual_seed(0)
    config = ClapConfig(text_config=text, audio_config=audio, projection_dim=8)
    amplified(ClapModel(config)).save_pretrained(place)
    return place


def sound(frequency, seconds=0.5, rate=RATE):
    wave = torch.sin(torch.arange(int(seconds * rate)) * 2 * math.pi * frequency / rate)
    return Audio(torch.stack([wave, wave / 2]), rate)


def test_the_cosine_is_that_of_the_projections(folder):
    model = load(str(folder), "cpu")
    found = clap([Prompt("a bell"), Prompt("rain")], [sound(440), sound(3000)], str(folder))
    for value, words, frequency in zip(found, ("a bell", "rain"), (440, 3000), strict=True):
        ids = model.tokenizer(words, return_tensors="pt")
        heard = model.extractor(sound(frequency).samples.mean(0).numpy(), sampling_rate=RATE, return_tensors="pt")
        with torch.no_grad():
            text = model.network.get_text_features(**ids).pooler_output[0]
            audio = model.network.get_audio_features(**heard).pooler_output[0]
        assert value == pytest.approx(float(text @ audio / text.norm() / audio.norm()), abs=1e-5)
    assert abs(found[1] - clap([Prompt("rain")], [sound(440)], str(folder))[0]) > 0.01, "the sound matters"


def test_a_long_text_is_cut_where_the_model_ends(folder):
    short, long = clap([Prompt("bell " * 8), Prompt("bell " * 50)], [sound(440)] * 2, str(folder))
    assert short == long
    assert torch.equal(*texts(["bell " * 8, "bell " * 50], str(folder)))


def test_a_sound_is_seen_whole_and_in_parts_whatever_the_folder_says(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "clap")
    file = tmp_path / "clap" / "preprocessor_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "truncation": "rand_trunc"}))
    expected = clap([Prompt("rain")], [sound(440)], str(folder))
    assert clap([Prompt("rain")], [sound(440)], str(tmp_path / "clap")) == expected


def test_a_sound_at_the_rate_of_the_model_needs_no_resampling(folder, monkeypatch):
    model = load(str(folder), "cpu")
    assert not model.network.training and not any(one.requires_grad for one in model.network.parameters())
    monkeypatch.setattr(module, "import_library", None)
    assert torch.equal(torch.from_numpy(model.mono(sound(440))), sound(440).samples.mean(0))


def test_other_rates_are_resampled_and_silence_is_nan(folder):
    soxr = pytest.importorskip("soxr")
    low = sound(3000, rate=24_000)
    high = Audio(torch.from_numpy(soxr.resample(low.samples[0].numpy(), 24_000, RATE))[None] * 0.75, RATE)
    other, same = clap([Prompt("rain")] * 2, [low, high], str(folder))
    assert other == pytest.approx(same, abs=1e-4)
    broken = sound(440)
    broken.samples[1, 3] = math.inf
    silent = [Audio(samples, RATE) for samples in (torch.zeros(1, 99), torch.zeros(1, 0), broken.samples)]
    assert all(math.isnan(value) for value in clap([Prompt("a")] * 3, silent, str(folder)))
    with pytest.raises(TypeError, match="clap.*Audio"):
        clap([Prompt("a")], [Text("")], str(folder))
    with pytest.raises(TypeError, match="embed.*Audio"):
        sounds([Text("")], str(folder))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("drop", "text_projection.linear1.weight"),
        ("resize", "loaded"),
        ("truncate", "loaded"),
        ("remove", "loaded"),
    ],
)
def test_a_folder_that_does_not_fit_is_named(folder, tmp_path, change, message):
    place = tmp_path / "clap"
    shutil.copytree(folder, place)
    file = place / "model.safetensors"
    tensors = load_file(file)
    key = "text_projection.linear1.weight"
    if change == "drop":
        del tensors[key]
    if change == "resize":
        tensors[key] = torch.zeros(3, 3)
    save_file(tensors, file, metadata={"format": "pt"})
    if change == "truncate":
        file.write_bytes(file.read_bytes()[:-9])
    if change == "remove":
        file.unlink()
    with pytest.raises(ValueError, match=f"clap.*{place}.*{message}"):
        load(str(place), "cpu")


def test_sounds_and_texts_are_points_of_one_space_for_rewards_of_sets(folder, tmp_path):
    from reward_models.sets import rewards

    embed = f"clap(weights={str(folder)!r})"
    heard, read = sounds([sound(440), sound(3000)], str(folder)), texts(["a bell", "rain"], str(folder))
    assert heard.shape == read.shape == (2, 8)
    for number, words in enumerate(("a bell", "rain")):
        cosine = clap([Prompt(words)], [sound((440, 3000)[number])], str(folder))[0]
        assert float(heard[number] @ read[number]) == pytest.approx(cosine, abs=1e-5)
    (tmp_path / "captions.txt").write_text("a bell\n\nrain\n")
    given = [sound(440), sound(3000), sound(200)]
    found = rewards.frechet([Prompt("")] * 3, given, str(tmp_path / "captions.txt"), embed, credit="shared")
    distance = rewards.frechet_distance(sounds(given, str(folder)), read)
    assert found == pytest.approx([-distance] * 3, abs=1e-6) and distance > 0
    silent = sounds([Audio(torch.zeros(1, 99), RATE), sound(440)], str(folder))
    assert silent[0].isnan().all() and torch.equal(silent[1], heard[0])


def test_a_long_sound_is_the_mean_of_its_parts_and_none_is_chosen_at_random(folder):
    first, second = sound(440, seconds=10.0), sound(3000, seconds=4.0)
    whole = Audio(torch.cat([first.samples, second.samples], 1), RATE)
    rows = sounds([first, second, whole, whole], str(folder))
    mean = (rows[0] + rows[1]) / 2
    torch.testing.assert_close(rows[2], mean / mean.norm())
    assert torch.equal(rows[2], rows[3])
