"""Settings of families that speak reach their models, and rows whose clips cannot be read are left out or refused."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mmgrpo.config.settings import config_class
from mmgrpo.family import family
from mmgrpo.policies.denoising import DenoisingPolicy
from mmgrpo.runtime import progress
from mmgrpo.types import Audio, Media, Prompt, Turn
from pipelines.speech import (
    codec_speech,
    ctc,
    qwen_audio,
    renderers,
    stable_audio,
    vocoders,
    whisper,
)
from pipelines.training import Training
from tests.building import load
from tests.tiny import maker


class Mute:
    """A vocoder of one's own."""

    def sound(self, mel: torch.Tensor) -> torch.Tensor:
        return torch.zeros(mel.shape[1] * 256)


def config(name: str, path: str = "", **model: Any) -> Any:
    made = config_class(family(name).sections)(seed=3)
    for key, value in {"path": path, **model}.items():
        setattr(made.model, key, value)
    return made


@pytest.fixture(scope="module")
def f5(tmp_path_factory) -> str:
    return maker("flow_speech")(tmp_path_factory.mktemp("f5") / "here" / "inside")


def test_settings_reach_a_model_of_flow_matching(f5):
    place = f5.rpartition("/")[0]
    names = {"folder": "inside", "release": "v0", "head": "drawn", "sigma": 0.7, "vocoder": f"{__name__}:Mute"}
    numbers = {"seconds": 3.0, "guidance": 2.0, "pace": 9.0, "lora_rank": 2, "gradient_checkpointing": True}
    made = config("flow_speech", place, **names, **numbers)
    made.sampling.grid, made.sampling.kernel = "shifted_linspace(shift=2)", "drawn_velocity"
    made.sampling.steps, made.sampling.evaluation_steps = 4, 6
    policy = family("flow_speech").policy(made, "cpu")
    model = policy.model
    assert isinstance(policy, DenoisingPolicy) and policy.settings.config is made
    assert (model.shape.rotates_all, model.shape.masks_text, model.shape.spread) == (False, False, True)
    assert torch.allclose(model.network.state_dict()["proj_out_ln_sig.bias"].exp(), torch.tensor(0.7))
    assert isinstance(model.voice, Mute) and (model.seconds, model.guidance, model.pace) == (3.0, 2.0, 9.0)
    assert model.levels == made.sampling.grid and (policy.grid.steps, policy.evaluation_grid.steps) == (4, 6)
    assert model.training.lora_seed == 3 and model.training.lora_rank == 2 and model.network.recomputes
    policy.save(Path(place) / "new" / "adapters")
    made.model.lora_rank = 0
    again = family("flow_speech").policy(made, "cpu", training=False, weights=f"{place}/new/adapters").model
    assert again.training.adapters and not again.training.gradient_checkpointing
    assert model.device == torch.device("cpu")


@pytest.mark.parametrize(("guidance", "factor"), [(1.0, 1), (2.0, 2)])
@pytest.mark.parametrize("name", ["flow_speech", "stable_audio", "stable_audio3"])
def test_guidance_doubles_the_evaluations(name, guidance, factor):
    made = config(name, guidance=guidance)
    made.data.prompts_per_step, made.data.group_size, made.sampling.steps = 3, 4, 5
    assert family(name).arithmetic(made).totals["evaluations to sample"] == factor * 3 * 4 * 5


class Voice:
    """A renderer and a vocoder of one's own."""

    def natural(self, prompt: Prompt) -> float:
        return 1.0

    def size(self) -> int:
        return 9

    def render(self, prompt: Prompt, asked: Any) -> Audio:
        return Audio(torch.zeros(1, 1), 8)


ONE_VOICE = Voice()


def speaks() -> Voice:
    return ONE_VOICE


@pytest.mark.parametrize("named", [renderers.renderer, vocoders.vocoder])
def test_an_engine_of_ones_own_is_an_object_its_class_or_a_function_that_returns_it(named):
    assert named(f"{__name__}:ONE_VOICE") is named(f"{__name__}:speaks") is ONE_VOICE
    assert isinstance(named(f"{__name__}:Voice"), Voice)


@pytest.mark.parametrize(
    ("config", "size", "rate"),
    [
        ({"codebook_size": 7, "sampling_rate": 8}, 7, 8),
        ({"quantization_levels": [2, 3], "sampling_rate": 8, "output_sampling_rate": 16}, 6, 16),
        ({"n_codebooks": 1, "codebook_size": 7, "sampling_rate": 8, "output_sampling_rate": None}, 7, 8),
    ],
)
def test_a_codec_states_its_size_and_the_rate_of_its_output_which_is_cut_off(config, size, rate):
    class Network(torch.nn.Linear):
        def decode(self, audio_codes: torch.Tensor) -> SimpleNamespace:
            assert audio_codes.tolist() == [[[1, 0]]]
            return SimpleNamespace(audio_values=torch.tensor([[[0.5, 1.5, -1.5]]], dtype=torch.float64))

    network: Any = Network(1, 1)
    network.config = SimpleNamespace(**config)
    codec = vocoders.Codec(network, "a")
    assert (codec.size(), codec.rate) == (size, rate) and not network.weight.requires_grad
    sound = codec.render(Prompt("a"), torch.tensor([1, 0]))
    assert sound.samples.tolist() == [[0.5, 1.0, -1.0]] and sound.samples.dtype == torch.float32
    assert codec.device == torch.device("cpu")


def test_settings_reach_a_model_of_sounds(tmp_path):
    folder = str(maker("stable_audio")(tmp_path / "tiny"))
    made = config("stable_audio", folder, seconds=0.25, guidance=3.0, decode_batch_size=2, lora_rank=2)
    made.sampling.steps, made.sampling.forward_batch_size = 4, 5
    policy = family("stable_audio").policy(made, "cpu")
    model = policy.model
    assert (model.seconds, model.guidance, model.decode_batch_size) == (0.25, 3.0, 2) and model.training.lora_seed == 3
    assert policy.settings.config is made and policy.settings.family.name == "stable_audio"
    assert policy.grid.steps == 4 and policy.solver.forward_batch_size == 5
    policy.save(tmp_path / "adapters")
    made.model.lora_rank = 0
    made.model.gradient_checkpointing = True
    again = family("stable_audio").policy(made, "cpu", weights=str(tmp_path / "adapters"), training=False)
    assert again.model.training.adapters and not again.model.training.gradient_checkpointing
    plain = load(stable_audio, folder)
    plain.save(tmp_path / "new" / "whole", plain.network)
    saved = load(stable_audio, folder, Training(weights=tmp_path / "new" / "whole" / "transformer"))
    assert torch.equal(saved.network.proj_out.weight, plain.network.proj_out.weight)  # type: ignore[union-attr]
    assert (plain.guidance, plain.decode_batch_size, plain.seconds) == (7.0, 4, pytest.approx(0.512))


def test_settings_reach_a_model_of_speech_tokens(tmp_path):
    folder = maker("codec_speech")(tmp_path / "tiny")
    names = {"begin": "<|s_0|>", "end": "<|s_31|>", "instruction": "say {text}", "vocoder": "tones"}
    made = config("codec_speech", folder, **names, gradient_checkpointing=True, dtype="bfloat16", lora_rank=2)
    policy = family("codec_speech").policy(made, "cpu")
    model = policy.model
    assert {name: getattr(model, name) for name in ("begin", "instruction", "speech_token")} == {
        "begin": "<|s_0|>",
        "instruction": "say {text}",
        "speech_token": "<|s_{}|>",
    }
    assert isinstance(model.voice, vocoders.Tones) and model.checkpointing and model.dtype == torch.bfloat16
    assert model.end_ids == {model.tokenizer.convert_tokens_to_ids("<|s_31|>")} and model.reading is None
    assert policy.settings.config is made and policy.settings.family.name == "codec_speech"
    policy.save(tmp_path / "adapters")
    made.model.lora_rank = 0
    again: Any = family("codec_speech").policy(made, "cpu", training=False, weights=str(tmp_path / "adapters"))
    assert again.model.network.peft_config["default"].r == 2 and not again.model.checkpointing


@pytest.mark.parametrize("module", [whisper, ctc, qwen_audio])
@pytest.mark.parametrize("seconds", [0.0, -1.0, 30.5])
def test_the_window_of_a_recognizer_is_above_zero_and_at_most_half_a_minute(module, seconds):
    with pytest.raises(ValueError, match=f"seconds.*{seconds:g}"):
        load(module, "nowhere", seconds=seconds)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        load(module, "nowhere", seconds=30.0)


# Rows whose clips cannot be read


def row(name: str, *media: Media, text: str = "say") -> Prompt:
    return Prompt(text, name, turns=(Turn("user", (*media, text) if text else media),))


HEARD = Media("audio", Audio(torch.full((1, 800), 0.5), 8_000))
LOST = Media("audio", "lost.wav")


@pytest.mark.parametrize(
    ("name", "kind"), [("whisper", "clips"), ("flow_speech", "recordings"), ("codec_speech", "recordings")]
)
def test_rows_are_left_out_up_to_the_limit_and_refused_beyond_it(name, kind, capsys, monkeypatch):
    monkeypatch.setattr(progress, "INTERVAL", 0.0)
    text = "" if name == "whisper" else "say"  # a recognizer takes no text
    made, rows = (
        config(name),
        [row(one, media, text=text) for one, media in zip("abc", (HEARD, HEARD, LOST), strict=True)],
    )
    made.data.skip_limit = 0.34
    kept, [skipped] = family(name).readable(made, rows, "a.jsonl")
    assert list(kept) == rows[:2] and skipped.id == "c" and "no such file" in skipped.reason
    assert f"{kind} of a.jsonl" in capsys.readouterr().err  # the title of the progress bar
    made.data.skip_limit = 0.33
    with pytest.raises(ValueError, match=f"a.jsonl.*1.*{kind}"):
        family(name).readable(made, rows, "a.jsonl")
    assert list(family(name).readable(made, [Prompt(text, "d")], "a.jsonl")[0]) == [Prompt(text, "d")]


class Letters:
    """A tokenizer of letters, which would begin and end a text by marks."""

    chat_template = None
    eos_token_id, pad_token_id = 1, 0

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        ids = [ord(letter) for letter in text]
        return {"input_ids": [1, *ids, 2] if add_special_tokens else ids}

    def convert_ids_to_tokens(self, ids: int) -> str:
        return f"<{ids}>"


def test_texts_are_tokens_with_the_beginning_of_the_tokenizer_and_not_its_end():
    from mmgrpo.data.chat import completion_ids

    model = object.__new__(codec_speech.CodecSpeech)
    model.tokenizer, model.end_ids, model.begin = Letters(), frozenset({9}), "!"
    model.instruction, model.speech_token = "{text}", "<|s_{}|>"
    assert model._ids(Prompt(" a \n b", "0")) == [1, *(ord(letter) for letter in "a b!")]
    assert completion_ids(Letters(), "a", frozenset({1, 2})) == [97, 1]
    assert completion_ids(Letters(), "a", frozenset({3, 2})) == [97, 2]


@pytest.mark.parametrize("name", ["whisper", "qwen_audio", "audio_text", "ctc", "codec_speech", "duration"])
def test_decisions_of_speech_are_tokens_and_a_model_has_a_path_unless_one_is_embedded(name):
    assert family(name).decisions(config(name)) == "tokens"
    if name != "duration":
        with pytest.raises(ValueError, match=f"model.path.*'{name}'"):
            family(name).check(config(name))
    assert family(name).check(config(name, "somewhere")) is None
