"""What model families refuse, by name and with what they expected."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from mmgrpo.runtime import products
from pipelines import kv, lora
from pipelines.generic_lm import _joined
from pipelines.speech import audio, duration, whisper
from pipelines.training import Training, autocast, freeze, make_trainable, target_names
from pipelines.visual import flow, sizes
from tests.building import load


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


def test_a_folder_of_adapters_is_whole_or_refused(tmp_path):
    assert not lora.has_adapters("") and not lora.has_adapters(tmp_path)
    with pytest.raises(FileNotFoundError, match="adapter_config.json.*adapter_model.safetensors"):
        lora.read_adapters(tmp_path)
    (tmp_path / "adapter_config.json").write_text(json.dumps({"r": 2, "lora_alpha": 4}))
    assert lora.has_adapters(tmp_path)
    with pytest.raises(FileNotFoundError, match="adapter_model.safetensors"):
        lora.read_adapters(tmp_path)
    save_file({"base_model.model.a.lora_A.weight": torch.ones(2)}, tmp_path / "adapter_model.safetensors")
    with pytest.raises(ValueError, match="targets"):
        lora.read_adapters(tmp_path)
    config = {"r": 2, "lora_alpha": 4, "target_modules": ["a"]}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    weights, read = lora.read_adapters(tmp_path)
    assert weights.keys() == {"a.lora_A.weight"} and read == config
    with pytest.raises(ValueError, match="lora_rank.*3.*2"):
        lora.continue_adapters(network(), tmp_path, 3)


def test_adapters_in_diffusers_format_carry_their_settings_in_the_file(tmp_path):
    config = {"transformer.r": 2, "transformer.lora_alpha": 4, "transformer.target_modules": ["a"]}
    metadata = {"lora_adapter_metadata": json.dumps(config)}
    file = tmp_path / "pytorch_lora_weights.safetensors"
    save_file({"transformer.a.lora_A.weight": torch.ones(2)}, file, metadata=metadata)
    weights, read = lora.read_adapters(tmp_path)
    assert weights.keys() == {"a.lora_A.weight"} and read == {"r": 2, "lora_alpha": 4, "target_modules": ["a"]}
    save_file({"transformer.a.lora_A.weight": torch.ones(2)}, file)
    with pytest.raises(ValueError, match="targets"):
        lora.read_adapters(tmp_path)


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
    joined = _joined(caches, 3).layers[0]
    assert joined.keys[:, 0].tolist() == [[[0, 0], [0, 0], [1, 1]], [[2, 2]] * 3]
    assert torch.equal(joined.values, 10 * joined.keys)


# Sounds


def samples(*values: float) -> np.ndarray:
    return np.array([values], np.float32).T


@pytest.mark.parametrize(
    ("sound", "rate", "message"),
    [
        (samples(0.5), 0, "rate of 0.*192,000"),
        (np.zeros((0, 1), np.float32), 8, "samples"),
        (samples(*[0.5] * 17), 8, "got 2.1 s of sound, expected at most 2 s"),
        (samples(0.5, np.nan, np.inf), 8, "2.*NaN"),
        (samples(0.5, -9.0), 8, r"samples.*9.*\[-1, 1\]"),
        (np.array([[0.5, -0.5]], np.float32), 8, "silent.*0.*averaged"),
        (samples(0.0, 0.0), 8, "silent.*0"),
    ],
)
def test_a_sound_that_no_model_can_use_is_refused(sound, rate, message):
    with pytest.raises(audio.Unreadable, match=message):
        audio._validate(sound, rate, 2.0)


@pytest.mark.parametrize(
    ("sound", "rate", "heard", "peak"),
    [
        (samples(*[0.5] * 16), 8, [0.5] * 16, 0.5),  # of two seconds, the most
        (samples(0.5, audio.MAX_PEAK), 1, [0.5 / audio.MAX_PEAK, 1], audio.MAX_PEAK),  # scaled, not cut off
        (np.array([[0.5, 0.25]], np.float32), 1, [0.375], 0.375),
        (samples(1.5 * audio.SILENCE), 1, [1.5 * audio.SILENCE], 1.5 * audio.SILENCE),
    ],
)
def test_a_sound_at_the_limits_is_heard(sound, rate, heard, peak):
    clip, height = audio._validate(sound, rate, 2.0)
    assert clip.rate == rate and clip.samples.tolist() == [pytest.approx(heard)] and height == pytest.approx(peak)


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


class Tokens:
    """A tokenizer with four tokens of its own; an unknown one is the end, as Whisper's, which is no language either."""

    unk_token, unk_token_id = "<|endoftext|>", 9
    known = {"<|startoftranscript|>": 1, "<|en|>": 2, "<|transcribe|>": 3, "<|notimestamps|>": 4}  # noqa: RUF012

    def convert_tokens_to_ids(self, token: str) -> int:
        return self.known.get(token, self.unk_token_id)


def test_the_prefix_of_a_transcript_names_language_and_task_where_the_model_has_several():
    assert whisper.prefix_ids(Tokens(), True, "en", "transcribe") == (1, 2, 3, 4)
    assert whisper.prefix_ids(Tokens(), False, "en", "transcribe") == (1, 4)
    for language, task, refused in (("xx", "transcribe", "language xx"), ("en", "translate", "task translate")):
        with pytest.raises(ValueError, match=f"{refused}.*en and transcribe"):
            whisper.prefix_ids(Tokens(), False, language, task)
    absent = (("xx", "transcribe", "<|xx|>"), ("en", "translate", "<|translate|>"), ("endoftext", "x", "<|endoftext|>"))
    for language, task, missing in absent:
        with pytest.raises(ValueError, match="Whisper") as error:
            whisper.prefix_ids(Tokens(), True, language, task)
        assert missing in str(error.value)


def test_the_nearest_size_is_a_multiple_within_the_limits():
    nearest = [sizes.nearest_multiple(size, 8, 100) for size in (1, 10, 13, 99, 1000)]
    assert nearest == [8, 8, 16, 96, 96]


def test_the_shift_of_levels_is_linear_in_the_number_of_image_tokens():
    assert flow.image_shift({}, 256, 1.15) == pytest.approx(0.5) and flow.image_shift({}, 4096, 1.15) == pytest.approx(
        1.15
    )
    config = {"base_image_seq_len": 100, "max_image_seq_len": 300, "base_shift": 1.0, "max_shift": 2.0}
    assert [flow.image_shift(config, tokens, 9.0) for tokens in (100, 200, 300)] == pytest.approx([1.0, 1.5, 2.0])


@pytest.mark.parametrize("by_the_scheduler", [False, True])
def test_flux_spaces_its_levels_evenly_or_leaves_it_to_the_scheduler(by_the_scheduler):
    from pipelines.visual.flux import Flux

    made = object.__new__(Flux)
    object.__setattr__(made, "size", (64, 64))  # 1024 tokens
    config = {"use_flow_sigmas": by_the_scheduler}
    spacing = made.spacing(SimpleNamespace(config=config), 4)
    assert spacing["mu"] == pytest.approx(0.5 + (1024 - 256) * 0.65 / 3840)
    if by_the_scheduler:
        assert spacing.keys() == {"mu", "num_inference_steps"} and spacing["num_inference_steps"] == 4
    else:
        assert spacing["sigmas"].tolist() == [1.0, 0.75, 0.5, 0.25] and spacing.keys() == {"mu", "sigmas"}


@pytest.mark.parametrize("missing", ["suppress_tokens", "begin_suppress_tokens"])
def test_a_whisper_that_suppresses_nothing_of_its_own_suppresses_special_tokens_and_stamps(missing, tmp_path):
    from transformers import GenerationConfig

    folder = whisper.tiny(tmp_path)
    settings = GenerationConfig.from_pretrained(folder)
    settings.suppress_tokens, settings.begin_suppress_tokens = [3, 4], [5]
    settings.save_pretrained(folder)
    both = load(whisper, folder)
    assert {3, 4} <= both.suppress_tokens and both.begin_suppress_tokens == {5}
    setattr(settings, missing, None)
    settings.save_pretrained(folder)
    one = load(whisper, folder)
    assert (one.begin_suppress_tokens == both.begin_suppress_tokens) == (missing == "suppress_tokens")
    assert both.suppress_tokens - one.suppress_tokens == ({3, 4} if missing == "suppress_tokens" else set())
    stamps = {*range(max(one.prefix) + 1, one.network.config.vocab_size)}  # type: ignore[union-attr]
    assert stamps and stamps <= one.suppress_tokens and not one.suppress_tokens & one.end_ids


@pytest.mark.parametrize(
    "smallest", [{"classes": 1}, *({name: 0} for name in ("frames_a_class", "frames_of_zero", "layers", "inner"))]
)
def test_a_duration_network_has_at_least_one_of_everything(smallest):
    with pytest.raises(ValueError, match="duration network.*2 classes"):
        duration.Shape(**smallest)
    ones = {name: 1 for name in ("frames_a_class", "frames_of_zero", "layers", "heads", "inner")}
    assert duration.Shape(classes=2, width=2, **ones).seconds(0) > 0


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


def test_full_precision_needs_no_context_and_lower_ones_autocast():
    cpu = torch.device("cpu")
    with autocast(torch.bfloat16, cpu), autocast(torch.float32, cpu):  # a sampler in lower precision stays one
        assert torch.is_autocast_enabled("cpu")
    with autocast(torch.float32, cpu):
        assert not torch.is_autocast_enabled("cpu")
