"""Bidirectional max-average similarity (BMAS) of an open answer and its reference, Mixed-R1 (arXiv:2505.24164).

    S = E_p E_g^T,   BMAS = (mean_i max_j S_ij + mean_j max_i S_ij) / 2

E are the rows of a language model's table of token embeddings, normalized, for the tokens of the prediction and of the
gold text: every token looks for its most similar one on the other side, once in each direction. No model is run.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mmgrpo.config.extras import install
from mmgrpo.scoring.manifest import reward
from mmgrpo.types import Output, Prompt
from reward_models.checkpoints import weight_file
from reward_models.rules.parsing import answer_in, gold_text, texts

MAX_TOKENS = 2048
"""Tokens of a text that are compared."""

EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight")
"""Ends of the names under which models keep the table of their token embeddings."""


def max_average_similarity(prediction: Float[Tensor, "n width"], gold: Float[Tensor, "m width"]) -> float:
    """BMAS of two lists of vectors, in [-1, 1]; their lengths do not count."""
    unit = torch.nn.functional.normalize
    similarity = unit(prediction.double()) @ unit(gold.double()).T
    return float((similarity.max(1).values.mean() + similarity.max(0).values.mean()) / 2)


@reward(
    "Text",
    scale="similarity",
    reads=("answer",),
    packages=("tokenizers",),
    extra="vlm",
    source="Mixed-R1, arXiv:2505.24164",
)
def bmas(prompts: Sequence[Prompt], outputs: Sequence[Output], model: str, tags: bool | str = True) -> list[float]:
    """BMAS of each answer and the gold text of its prompt, at least 0; 0 for an empty answer.

    ``model`` is a folder or a hub id with safetensors and a tokenizer, in the paper the trained model itself; only the
    table of its token embeddings is read. ``tags`` says where the answer is, as for ``task``.
    """
    tokenizer, table = _embeddings(model)
    values = []
    for prompt, text in zip(prompts, texts(outputs, "bmas"), strict=True):
        tokens = [_tokens(tokenizer, side) for side in (answer_in(text, prompt, tags), gold_text(prompt))]
        values.append(max(0.0, max_average_similarity(*(table[row] for row in tokens))) if all(tokens) else 0.0)
    return values


def _tokens(tokenizer: Any, text: str) -> list[int]:
    return tokenizer.encode(text.strip(), add_special_tokens=False).ids[:MAX_TOKENS]


@functools.cache
def _embeddings(model: str) -> tuple[Any, Float[Tensor, "vocabulary width"]]:
    try:
        from tokenizers import Tokenizer
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"bmas needs the package 'tokenizers': {install('vlm')}") from error
    tokenizer = Tokenizer.from_file(str(weight_file(model, "tokenizer.json", "bmas")))
    return tokenizer, _table(model)


def _table(model: str) -> Float[Tensor, "vocabulary width"]:
    """The one tensor whose name ends as a table of token embeddings, from one file or from the shard that holds it."""
    from safetensors import safe_open

    name = "model.safetensors"
    try:
        index = weight_file(model, "model.safetensors.index.json", "bmas")
    except FileNotFoundError:
        index = None
    if index is not None:
        shards = json.loads(Path(index).read_text(encoding="utf-8"))["weight_map"]
        name = next((shard for key, shard in shards.items() if key.endswith(EMBEDDINGS)), name)
    with safe_open(weight_file(model, name, "bmas"), framework="pt") as file:
        keys = [key for key in file.keys() if key.endswith(EMBEDDINGS)]  # noqa: SIM118
        if keys:
            return file.get_tensor(keys[0])
    raise ValueError(f"bmas: model: {name} of {model} has no tensor that ends with {', '.join(EMBEDDINGS)}")
