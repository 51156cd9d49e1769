"""What model families refuse, by name and with what they expected."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from mmgrpo.runtime import products
from pipelines import kv, lora
from pipelines.generic_lm import _join_caches
from pipelines.speech import audio, duration
from pipelines.training import Training, freeze, make_trainable, target_names


def network() -> nn.Module:
    """Two layers, of which one is called like a layer of the other's part."""
    made = nn.Module()
    made.body, made.tower = nn.Module(), nn.Module()
    made.body.q_proj, made.tower.q_proj = nn.Linear(2, 2), nn.Linear(2, 2)
    return made


# What trains


def test_a_negative_rank_is_refused_and_none_trains_all_but_what_is_frozen():
    with pytest.raises(ValueError, match="lora_rank.*-1.*0"):
        make_trainable(network(), Training(lora_rank=-1), ["q_proj"])
    made = network()
    made.requires_grad_(False)
    make_trainable(made, Training(), ["q_proj"], frozen=[made.tower])
    assert [n for n, p in made.named_parameters() if p.requires_grad] == ["body.q_proj.weight", "body.q_proj.bias"]


def test_plain_layers_are_multiplied_by_onednn_on_a_cpu_only():
    made = network()
    make_trainable(made, Training(), ["q_proj"], frozen=[made.tower])
    assert type(made.body.q_proj) is type(made.tower.q_proj) is products.Linear
    on_card = network()
    make_trainable(on_card, Training(device="cuda:0"), ["q_proj"], frozen=[on_card.tower])
    assert type(on_card.body.q_proj) is type(on_card.tower.q_proj) is nn.Linear


def test_targets_are_written_in_full_where_a_frozen_part_has_one_too():
    made = network()
    assert target_names(made, ["q_proj"], []) == ["q_proj"]
    assert target_names(made, ["q_proj"], [made.tower]) == ["body.q_proj"]
    assert target_names(made, ["body.q_proj"], [made.tower]) == ["body.q_proj"]
    assert target_names(made, ["proj"], [made.tower]) == ["proj"]  # names end at a dot


def test_a_layer_of_the_network_itself_is_a_target_too():
    made = network()
    made.q_proj = nn.Linear(2, 2)
    assert sorted(target_names(made, ["q_proj"], [made.tower])) == ["body.q_proj", "q_proj"]


def test_parts_are_frozen_in_evaluation_mode_and_missing_ones_are_left_out():
    made = network().train()
    freeze([None, made.body], "cpu")
    assert [part.training for part in (made.body, made.tower)] == [False, True]
    assert {name.split(".")[0] for name, one in made.named_parameters() if one.requires_grad} == {"tower"}


def test_adapters_need_a_rank_and_targets_that_are_there():
    with pytest.raises(ValueError, match="rank.*0"):
        lora.add_lora(network(), 0, 8.0, ["q_proj"], 0)
    with pytest.raises(ValueError, match="targets"):
        lora.check_targets(network(), [])
    with pytest.raises(ValueError, match="k_proj.*(body.q_proj|tower.q_proj)"):
        lora.check_targets(network(), ["q_proj", "k_proj"])
    assert lora.check_targets(network(), ["q_proj", "body.q_proj"]) is None
    with pytest.raises(ValueError) as error:  # only layers that can have adapters are proposed
        lora.check_targets(network(), ["bod"])
    assert str(error.value).endswith("Known: body.q_proj, tower.q_proj.")


def test_a_target_is_proposed_by_the_last_two_parts_of_a_name_without_numbers():
    made = nn.ModuleDict({"net": nn.ModuleDict({"blocks": nn.ModuleList([nn.ModuleDict({"attn": network()})])})})
    with pytest.raises(ValueError) as error:
        lora.check_targets(made, ["something"])
    assert str(error.value).endswith("Known: body.q_proj, tower.q_proj.")
    with pytest.raises(ValueError) as error:
        lora.check_targets(nn.ModuleList([nn.ModuleList([nn.Linear(1, 1)])]), ["something"])
    assert "Known: 0" not in str(error.value)


@pytest.mark.parametrize("change", ["missing", "unexpected"])
def test_adapters_that_do_not_fit_are_refused(change):
    from transformers import LlamaConfig, LlamaModel

    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    made = LlamaModel(LlamaConfig(vocab_size=5, **sizes))
    lora.add_lora(made, 2, 4.0, ["q_proj"], 0)
    weights, config = lora.lora_weights(made)
    weights = {name: value + 1 for name, value in weights.items()}
    fresh = LlamaModel(LlamaConfig(vocab_size=5, **sizes))
    parameters = lora.load_lora(fresh, weights, config)
    assert all(torch.equal(p.detach(), w) for p, w in zip(parameters, weights.values(), strict=True))
    assert [tuple(p.shape) for p in lora.add_lora(LlamaModel(made.config), 1, 4.0, ["q_proj"], 0)] == [(1, 8), (8, 1)]
    broken = dict(weights)
    name, value = broken.popitem()
    if change == "unexpected":
        broken |= {name: value, name.replace("q_proj", "x_proj"): value}
    with pytest.raises(ValueError, match="adapters"):
        lora.load_lora(LlamaModel(LlamaConfig(vocab_size=5, **sizes)), broken, config)


# Caches


def test_a_cache_of_plain_keys_and_values_is_spread_and_another_is_refused():
    from transformers.cache_utils import DynamicCache

    cache = DynamicCache()
    keys = torch.arange(6.0).view(2, 1, 3, 1).requires_grad_()
    cache.update(keys, keys + 10, 0)
    spread = kv.spread_cache(cache, torch.tensor([1, 0, 1]))
    assert spread.layers[0].keys[:, 0, 0, 0].tolist() == [3, 0, 3]
    assert spread.layers[0].values[:, 0, 0, 0].tolist() == [13, 10, 13]
    assert cache.layers[0].keys.shape[0] == 2  # the original is as it was
    spread.layers[0].keys.sum().backward()
    assert keys.grad.flatten().tolist() == [1, 1, 1, 2, 2, 2]
    with pytest.raises(TypeError, match="cache.*object.*DynamicLayer"):
        kv.spread_cache(SimpleNamespace(layers=[object()]), torch.tensor([0]))


def test_caches_of_several_rows_are_padded_on_the_left():
    from transformers.cache_utils import DynamicCache

    caches = []
    for row, length in enumerate((1, 3)):
        caches.append(DynamicCache())
        keys = torch.full((1, 1, length, 2), float(row + 1))
        caches[-1].update(keys, 10 * keys, 0)
    joined = _join_caches(caches, 3).layers[0]
    assert joined.keys[:, 0].tolist() == [[[0, 0], [0, 0], [1, 1]], [[2, 2]] * 3]
    assert torch.equal(joined.values, 10 * joined.keys)


# Sounds


def test_a_video_without_sound_and_a_file_with_fewer_frames_than_it_says_are_refused(tmp_path, monkeypatch):
    import soundfile

    from tests.journeys.cli.quick import write_video

    write_video(tmp_path / "still.mp4", 0)
    with pytest.raises(audio.Unreadable, match="recording"):
        audio._decode(str(tmp_path / "still.mp4"), 9.0)
    soundfile.write(tmp_path / "a.wav", np.full(80, 0.5), 8_000)
    read = soundfile.SoundFile.read
    monkeypatch.setattr(soundfile.SoundFile, "read", lambda self, *given, **named: read(self, *given, **named)[:77])
    with pytest.raises(audio.Unreadable, match="3.*80"):
        audio._decode(str(tmp_path / "a.wav"), 9.0)


# Settings of checkpoints


def test_a_network_of_durations_says_that_it_is_one(tmp_path):
    path = tmp_path / "config.json"
    for content, message in (
        ({"classes": 3}, "duration"),
        ({"family": "whisper"}, "whisper.*duration"),
        ({"family": "duration", "clases": 3}, "clases.*classes"),
    ):
        path.write_text(json.dumps(content))
        with pytest.raises(ValueError, match=message):
            duration.read_shape(path)
    path.write_text('{"family": "duration", "classes": 24}')
    assert duration.read_shape(path) == duration.Shape(classes=24)


@pytest.mark.parametrize("enabled", [False, True])
def test_activations_are_recomputed_where_it_is_asked_for(enabled):
    from diffusers import SD3Transformer2DModel
    from transformers import LlamaConfig, LlamaModel

    with torch.device("meta"):
        sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
        words = LlamaModel(LlamaConfig(vocab_size=5, **sizes))
        pictures = SD3Transformer2DModel(num_layers=1, num_attention_heads=1, attention_head_dim=8)
    for network in (words, pictures):
        make_trainable(network, Training(gradient_checkpointing=enabled), ["to_q"])
        assert network.is_gradient_checkpointing == enabled
