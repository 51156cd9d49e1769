"""Language models in GGUF files, as folders of ``transformers``: weights of the Llama architecture, which are
multiplied out of their blocks of few bits, a byte-level BPE, and the chat template.

Names of tensors and fields are those of the GGUF specification; the package ``gguf`` reads the file and its blocks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mmgrpo.files import write_tensors
from pipelines import require

CONTROL = 3
"""Type of a token that stands for no text (``tokenizer.ggml.token_type``)."""

_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""The tensors of a layer, ``blk.<number>.<name>.weight``, and their names in ``transformers``."""
_OUTSIDE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def convert(file: Path, folder: Path) -> None:
    """Write the model of a GGUF file as a folder of ``transformers``, in half precision.

    Where the file has no output matrix, that of the embeddings is used twice, as the configuration then says.
    Raises ValueError for another architecture or tokenizer, or a tensor that no name is known for.
    """
    require("vlm", "gguf", "tokenizers")
    from gguf import GGUFReader
    from gguf.quants import dequantize

    reader = GGUFReader(file)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    folder.mkdir(parents=True)
    if (architecture := fields["general.architecture"]) != "llama":
        raise ValueError(f"{file}: got the architecture '{architecture}', expected 'llama'")
    heads = {"attn_q": fields["llama.attention.head_count"], "attn_k": fields["llama.attention.head_count_kv"]}
    state: dict[str, Tensor] = {}
    for entry in reader.tensors:
        values = dequantize(entry.data, entry.tensor_type)
        kind = entry.name.removesuffix(".weight").rpartition(".")[2]
        if kind in heads:
            values = halves_of_heads(values, heads[kind])
        state[transformers_name(entry.name, file)] = torch.from_numpy(values.astype(np.float16))
    write_tensors(folder / "model.safetensors", state, {"format": "pt"})
    _write_json(folder / "config.json", configuration(fields, tied="lm_head.weight" not in state))
    ends = {key: fields[f"tokenizer.ggml.{name}_token_id"] for key, name in _ENDS.items()}
    _write_json(folder / "generation_config.json", {"_from_model_config": True, **ends})
    tokenizer(fields, file).save(str(folder / "tokenizer.json"))
    tokens = fields["tokenizer.ggml.tokens"]
    named = {key.removesuffix("_id"): tokens[number] for key, number in ends.items()}
    length = fields["llama.context_length"]
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": length, **named}
    _write_json(folder / "tokenizer_config.json", {**settings, "clean_up_tokenization_spaces": False})
    (folder / "chat_template.jinja").write_text(fields["tokenizer.chat_template"], "utf-8")


_ENDS = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}


def transformers_name(name: str, file: Path) -> str:
    """The name in ``transformers`` of a tensor of a GGUF file, e.g. ``blk.0.attn_q.weight``."""
    parts = name.split(".")
    if parts[0] == "blk" and len(parts) == 4 and parts[2] in _LAYER:
        return f"model.layers.{parts[1]}.{_LAYER[parts[2]]}.{parts[3]}"
    if len(parts) == 2 and parts[0] in _OUTSIDE:
        return f"{_OUTSIDE[parts[0]]}.{parts[1]}"
    raise ValueError(f"{file}: unknown tensor '{name}' of a model of architecture 'llama'")


def halves_of_heads(values: np.ndarray, heads: int) -> np.ndarray:
    """A matrix of queries or keys whose rows are the pairs that a rotation turns, (0, 1), (2, 3), ..., with the rows
    of each head in two halves, as ``transformers`` rotates them: 0, 2, ..., 1, 3, ..."""
    rows, width = values.shape
    return values.reshape(heads, rows // heads // 2, 2, width).swapaxes(1, 2).reshape(rows, width)


def configuration(fields: Mapping[str, Any], tied: bool) -> dict[str, Any]:
    """``config.json`` of a Llama, of the fields of a GGUF file."""
    width, heads = fields["llama.embedding_length"], fields["llama.attention.head_count"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float16",
        "vocab_size": len(fields["tokenizer.ggml.tokens"]),
        "hidden_size": width,
        "intermediate_size": fields["llama.feed_forward_length"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "head_dim": width // heads,
        "max_position_embeddings": fields["llama.context_length"],
        "rms_norm_eps": round(fields["llama.attention.layer_norm_rms_epsilon"], 10),
        "rope_theta": fields["llama.rope.freq_base"],
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": tied,
        **{key: fields[f"tokenizer.ggml.{name}_token_id"] for key, name in _ENDS.items()},
    }


def tokenizer(fields: Mapping[str, Any], file: Path) -> Any:
    """The byte-level BPE of a GGUF file, which splits numbers into digits before anything else (``smollm``)."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    kind = fields["tokenizer.ggml.model"], fields["tokenizer.ggml.pre"]
    if kind != ("gpt2", "smollm"):
        raise ValueError(f"{file}: got the tokenizer {kind}, expected ('gpt2', 'smollm')")
    tokens, types = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    made = Tokenizer(models.BPE(vocab={token: number for number, token in enumerate(tokens)}, merges=merges))
    digits = pre_tokenizers.Digits(individual_digits=True)
    made.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind in zip(tokens, types, strict=True)
            if kind == CONTROL
        ]
    )
    return made


def _write_json(file: Path, content: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=1) + "\n", "utf-8")
