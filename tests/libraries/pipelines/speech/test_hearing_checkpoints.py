"""Checkpoints and processors as their authors publish them, where a package that they need is not installed."""

from __future__ import annotations

import base64
import importlib.machinery
import io
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from safetensors.torch import load_file, save_file

from mmgrpo.policies.token import TokenPolicy
from pipelines.speech import audio_text, processors
from pipelines.speech.granite import granite_extractor, granite_frames, merge
from pipelines.training import Training
from tests.building import load
from tests.libraries.pipelines.speech.test_qwen_audio import ONE, TWO, WORDS, hum
from tests.seeing import asked, rollout
from tests.tiny import maker


def test_of_a_whole_qwen_omni_the_thinker_is_trained(tmp_path):
    """The talker and the vocoder of the checkpoint are not read."""
    thinker, whole = Path(maker("audio_text")(tmp_path / "thinker", "qwen2_5_omni")), tmp_path / "whole"
    shutil.copytree(thinker, whole)
    config = {"model_type": "qwen2_5_omni", "thinker_config": json.loads((thinker / "config.json").read_text())}
    (whole / "config.json").write_text(json.dumps(config))
    tensors = load_file(thinker / "model.safetensors")
    published = {f"thinker.{name}": value for name, value in tensors.items()} | {"talker.x": torch.zeros(2)}
    save_file(published, whole / "model.safetensors", {"format": "pt"})
    one, two = (load(audio_text, folder) for folder in (thinker, whole))
    wanted = one.network.state_dict()
    assert all(torch.equal(value, wanted[name]) for name, value in two.network.state_dict().items())
    assert len(two.network.state_dict()) == len(wanted)


@pytest.fixture(scope="module")
def adapted(tmp_path_factory) -> tuple[Path, Any]:
    """A Granite-Speech with the adapter next to its weights as IBM publishes it, and the network as peft applies it."""

    from peft import LoraConfig
    from transformers import GraniteSpeechForConditionalGeneration

    folder = Path(maker("audio_text")(tmp_path_factory.mktemp("granite"), "granite_speech"))
    config = json.loads((folder / "config.json").read_text()) | {"has_lora_adapter": True}
    (folder / "config.json").write_text(json.dumps(config))
    network: Any = GraniteSpeechForConditionalGeneration.from_pretrained(folder)
    config_class: Any = LoraConfig
    network.add_adapter(config_class(r=4, lora_alpha=8, target_modules=r".*language_model.*(q_proj|v_proj)"))
    for name, parameter in network.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    network.save_pretrained(str(folder / "aside"))
    published = json.loads((folder / "aside" / "adapter_config.json").read_text())
    published |= {"target_modules": ["q_proj", "v_proj"], "base_model_name_or_path": "someone/else"}
    (folder / "adapter_config.json").write_text(json.dumps(published))
    (folder / "aside" / "adapter_model.safetensors").rename(folder / "adapter_model.safetensors")
    shutil.rmtree(folder / "aside")
    return folder, network.eval()


def test_the_adapter_beside_granites_weights_is_merged_into_them(adapted, tmp_path):
    folder, theirs = adapted
    for training in (Training(), Training(lora_rank=2)):
        model = load(audio_text, folder, training)
        context = model.encode([ONE])
        with torch.no_grad():
            wanted = theirs(**model._inputs(context.ids[0], context.media[0])).logits[0]
            theirs.disable_adapters()
            without = theirs(**model._inputs(context.ids[0], context.media[0])).logits[0]
            theirs.enable_adapters()
        found = model.own_logits(context.ids[0], context.media[0])
        assert model.network.config.has_lora_adapter is False  # there is none to be switched on any more
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-4)
        assert (without - wanted).abs().max() > 0.01
        model.save(tmp_path / str(training.lora_rank), model.network)
        again = load(audio_text, folder, Training(weights=tmp_path / str(training.lora_rank)))
        assert torch.equal(again.own_logits(context.ids[0], context.media[0]), found)
        with pytest.raises(ValueError, match="words"):
            model.encode([WORDS])


def test_an_adapter_of_another_kind_is_refused(adapted, tmp_path):
    folder = tmp_path / "granite"
    shutil.copytree(adapted[0], folder)
    tensors = load_file(folder / "adapter_model.safetensors")
    renamed = {name.replace("layers.1.", "layers.9."): value for name, value in tensors.items()}
    save_file(renamed, folder / "adapter_model.safetensors")
    with pytest.raises(ValueError, match="layers.9"):
        load(audio_text, folder)


def decoder() -> torch.nn.Module:
    """One layer with a linear map of two numbers to one, and a norm."""
    layer = torch.nn.ModuleDict({"q": torch.nn.Linear(2, 1, bias=False), "norm": torch.nn.LayerNorm(2)})
    layer["q"].weight.data = torch.tensor([[10.0, 20.0]])
    return torch.nn.ModuleDict({"layers": torch.nn.ModuleList([layer])})


PAIR = {
    "model.layers.0.q.lora_A.weight": torch.tensor([[1.0, 2.0]]),
    "model.layers.0.q.lora_B.weight": torch.tensor([[3.0]]),
}
SCALED = {"lora_alpha": 8, "r": 2, "use_rslora": False}


def test_an_adapter_is_merged_by_alpha_over_its_rank():
    """[10, 20] + 8 / 2 x 3 x [1, 2], wherever the second one of a pair stands."""
    for weights in (PAIR, dict(reversed(PAIR.items()))):
        one = decoder()
        merge(one, weights, SCALED)
        assert one.layers[0]["q"].weight.tolist() == [[22.0, 44.0]]  # type: ignore[index, union-attr]


@pytest.mark.parametrize(
    ("weights", "config"),
    [
        ({name: PAIR[name] for name in PAIR if "lora_A" in name}, SCALED),
        ({name: PAIR[name] for name in PAIR if "lora_B" in name}, SCALED),
        ({name.replace(".q.", ".norm."): value for name, value in PAIR.items()}, SCALED),
        ({name.replace("lora_", "lokr_"): value for name, value in PAIR.items()}, SCALED),
        (PAIR, {**SCALED, "use_rslora": True}),
    ],
)
def test_what_is_no_pair_of_a_linear_layer_is_not_merged(weights, config):
    one = decoder()
    with pytest.raises(ValueError, match="pairs.*lora_A.*lora_B"):
        merge(one, weights, config)
    assert one.layers[0]["q"].weight.tolist() == [[10.0, 20.0]]  # type: ignore[index, union-attr]


@pytest.mark.parametrize("kind", ["granite_speech", "granite_speech_plus", "qwen2_5_omni", "qwen2_5_omni_thinker"])
def test_where_its_packages_are_installed_a_processor_is_that_of_transformers(kind, monkeypatch):
    for package in ("torchaudio", "torchvision"):
        monkeypatch.setattr(f"transformers.utils.is_{package}_available", lambda: True)
    monkeypatch.setattr(processors, "read_processor", lambda *given: given)
    config = SimpleNamespace(model_type=kind)
    assert processors.read_hearing_processor("folder", config) == ("folder", kind)


def test_granites_spectrogram_is_the_one_of_a_second_implementation():
    """Numpy's in transformers, which pads by the window and not by the transform; odd frames at the end are dropped."""
    from transformers import audio_utils

    samples = np.random.default_rng(0).normal(size=16_000).astype(np.float32) / 4
    filters = audio_utils.mel_filter_bank(257, 80, 0.0, 8_000.0, 16_000, norm=None, mel_scale="htk")
    window = audio_utils.window_function(400, "hann")
    mel = audio_utils.spectrogram(samples, window, 400, 160, 512, power=2.0, mel_filters=filters, mel_floor=1e-10)
    log = np.log10(mel.T)
    log = np.maximum(log, log.max() - 8) / 4 + 1
    found = granite_frames(torch.from_numpy(samples)[None], 16_000, 512, 400, 160, 80)[0]
    assert found.shape == (50, 160) and len(log) == 101
    np.testing.assert_allclose(found.numpy().reshape(100, 80)[2:-2], log[2:98], rtol=0, atol=1e-4)


def test_the_extractor_of_granite_has_the_published_sizes_unless_it_is_told_otherwise():
    """ibm-granite/granite-speech-3.3-2b, preprocessor_config.json."""
    made = granite_extractor()()
    sizes = {"sample_rate": 16_000, "n_fft": 512, "win_length": 400, "hop_length": 160, "n_mels": 80}
    assert made.melspec_kwargs == sizes and (made.projector_window_size, made.projector_downsample_rate) == (15, 5)
    assert (made.feature_size, made.sampling_rate, made.padding_value) == (80, 16_000, 0.0)
    other = granite_extractor()(8_000, 256, 200, 80, 40, 30, 6, 1.0, feature_size=7)
    sizes = {"sample_rate": 8_000, "n_fft": 256, "win_length": 200, "hop_length": 80, "n_mels": 40}
    assert other.melspec_kwargs == sizes and (other.projector_window_size, other.projector_downsample_rate) == (30, 6)
    assert (other.feature_size, other.sampling_rate, other.padding_value) == (40, 8_000, 1.0)


class Tekken:
    """Stands in for mistral-common's tokenizer: it reads the sounds in the messages and writes the ids of Voxtral."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer, self.heard = tokenizer, []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tokenizer, name)

    def __len__(self) -> int:
        return len(self.tokenizer)

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self.tokenizer(*args, **options)

    def apply_chat_template(self, conversations: Any, **options: Any) -> Any:
        [messages] = conversations
        text = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        parts = [part for message in messages for part in message["content"] if part["type"] == "audio"]
        sounds = [soundfile.read(io.BytesIO(base64.b64decode(part["base64"])), dtype="float32") for part in parts]
        assert all(rate == 16_000 for _, rate in sounds)
        self.heard = [samples for samples, _ in sounds]
        for samples in self.heard:  # 100 marks for every 30 s that have begun
            text = text.replace("[AUDIO]", "<mark>" * 100 * -(-len(samples) // 480_000), 1)
        ids = self.tokenizer(text.replace("<mark>", "[AUDIO]"), add_special_tokens=False)
        return {name: [value] for name, value in ids.items()} | ({"audio": self.heard} if sounds else {})


def test_voxtral_through_mistral_common_hears_every_sample(tmp_path, monkeypatch):
    """Through transformers' own processor; the tokenizer of mistral-common itself is not tried here."""
    from transformers import VoxtralProcessor, WhisperFeatureExtractor

    own = load(audio_text, maker("audio_text")(tmp_path, "voxtral"), seconds=31)
    tekken = Tekken(own.processor.tokenizer)
    monkeypatch.setattr(VoxtralProcessor, "check_argument_for_proper_class", lambda *_: None)
    processor = VoxtralProcessor(WhisperFeatureExtractor(feature_size=128), tekken)
    monkeypatch.setattr(processors, "find_spec", lambda name: importlib.machinery.ModuleSpec(name, None))
    monkeypatch.setattr(VoxtralProcessor, "from_pretrained", lambda *_, **__: processor)
    model = load(audio_text, tmp_path, seconds=31)
    for prompt in (ONE, WORDS, TWO, asked("long", hum(0, 30.5), "what ?", hum(1))):
        one, two = model.encode([prompt]), own.encode([prompt])
        assert torch.equal(one.ids, two.ids)
        assert one.media[0].keys() == two.media[0].keys()
        assert all(torch.equal(value, two.media[0][name]) for name, value in one.media[0].items())
        for samples, medium in zip(tekken.heard, prompt.media, strict=True):
            np.testing.assert_array_equal(samples, medium.source.samples[0].numpy())  # type: ignore[union-attr]
    assert model.network.config.audio_token_id in model.suppress_tokens
    assert rollout(TokenPolicy(model, max_tokens=3), [ONE]).outputs


def test_a_voxtral_as_published_asks_for_mistral_common(tmp_path):
    folder = Path(maker("audio_text")(tmp_path, "voxtral"))
    (folder / "tokenizer.json").rename(folder / "tekken.json")
    with pytest.raises(ImportError, match="tekken.json"):
        load(audio_text, folder)
