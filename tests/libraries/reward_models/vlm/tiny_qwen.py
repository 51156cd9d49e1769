"""A small Qwen2-VL of the real architecture, and its weights under the names of before transformers 4.52."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from pipelines.vlm.qwen_vl_tiny import word_tokenizer

TEXT = "You are a helpful assistant rate red blue circle square Textual prompt quality motion text : . - END"
WORDS = TEXT.split()


def write_base(folder: Path, later: bool = False) -> Path:
    """Configuration and tokenizer, without weights; ``later``: of Qwen2.5-VL."""
    from transformers import Qwen2_5_VLConfig, Qwen2VLConfig

    eyes = {"depth": 2, "hidden_size": 32, "num_heads": 2}
    eyes |= {"out_hidden_size": 32, "intermediate_size": 64} if later else {"embed_dim": 32, "mlp_ratio": 2}
    tokenizer = word_tokenizer(WORDS)
    ids = tokenizer.get_vocab()
    config = (Qwen2_5_VLConfig if later else Qwen2VLConfig)(
        text_config={
            "vocab_size": len(ids) + 30,  # padded, as the real one
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [2, 3, 3]},
        },
        vision_config=eyes,
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
    )
    config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def amplified(network: Any) -> Any:
    """The network with matrices so large that pictures and words matter to its output."""
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.ndim > 1:
                parameter *= 5
    return network


def old_names(network: Any) -> dict[str, torch.Tensor]:
    """``visual.*`` and ``model.*`` in place of ``model.visual.*`` and ``model.language_model.*``."""
    tensors = {}
    for key, tensor in network.state_dict().items():
        name = key.replace("model.language_model.", "model.").replace("model.visual.", "visual.")
        tensors[name] = tensor.clone()
    return tensors


def hidden_at(network: Any, ids: torch.Tensor, tokens: list[int], **media: Any) -> torch.Tensor:
    """Hidden states at some tokens, by the forward pass of transformers with one position for each token."""
    positions = torch.arange(len(ids)).expand(3, 1, -1)
    with torch.no_grad():
        states = network(input_ids=ids[None], position_ids=positions, use_cache=False, **media).last_hidden_state[0]
    return states[torch.isin(ids, torch.tensor(tokens))]
