"""Small heads on image embeddings, and the file that holds one: linear layers, and what they were trained on.

The file is safetensors with ``layers.N.weight`` [out, in] and ``layers.N.bias`` [out] for N = 0, 1, ..., and one
metadata entry ``head``, a JSON object:

    {"features": "openai/clip-vit-large-patch14",   the embeddings that the head reads
     "normalised": true,                            whether they have length 1 first
     "activation": "none",                          between layers: none, relu or gelu
     "outputs": ["artifact"],                       what each output is the score or logit of
     "loss": "binary"}                              how it was trained: binary, bradley_terry or regression

``scripts/train_reward.py`` writes such files, ``artifact`` and ``aesthetic`` read them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from mmgrpo.files import write_tensors
from reward_models.checkpoints import load_exactly, read_tensors

ACTIVATIONS = {"none": lambda x: x, "relu": functional.relu, "gelu": functional.gelu}
LOSSES = ("binary", "bradley_terry", "regression")


@dataclass(frozen=True)
class HeadFacts:
    """What a head reads and says; the metadata of its file."""

    features: str
    outputs: tuple[str, ...] = ("score",)
    activation: str = "none"
    normalised: bool = True
    loss: str = "regression"

    def __post_init__(self) -> None:
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"head: activation: got {self.activation!r}, expected one of {', '.join(ACTIVATIONS)}")
        if self.loss not in LOSSES:
            raise ValueError(f"head: loss: got {self.loss!r}, expected one of {', '.join(LOSSES)}")
        if not self.outputs:
            raise ValueError("head: outputs: got none, expected a name for each output")


class Head(nn.Module):
    """Linear layers of these widths, from an embedding [n, widths[0]] to [n, widths[-1]], with the activation of
    ``facts`` between them."""

    def __init__(self, widths: Sequence[int], facts: HeadFacts) -> None:
        super().__init__()
        if len(widths) < 2 or widths[-1] != len(facts.outputs):
            raise ValueError(
                f"head: got layers of widths {list(widths)} and {len(facts.outputs)} outputs, expected at least one "
                "layer, and as many outputs in the last"
            )
        self.facts = facts
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))

    def forward(self, embeddings: Float[Tensor, "n width"]) -> Float[Tensor, "n outputs"]:
        x = functional.normalize(embeddings) if self.facts.normalised else embeddings
        for number, layer in enumerate(self.layers):
            x = layer(ACTIVATIONS[self.facts.activation](x) if number else x)
        return x


def save_head(head: Head, file: Path | str) -> None:
    """Write the head, with its facts, as one file of safetensors."""
    tensors = {name: tensor.detach().cpu().float().contiguous() for name, tensor in head.state_dict().items()}
    write_tensors(Path(file), tensors, {"head": json.dumps(asdict(head.facts))})


def load_head(file: Path | str, reward: str = "head") -> Head:
    """The head of a file, ready to score; ValueError for one that is damaged, or that is not such a file."""
    file = Path(file).expanduser()
    if not file.is_file():
        raise FileNotFoundError(f"{reward}: head: no such file: {file}")
    tensors = read_tensors(file, reward)
    return head_from(tensors, _facts(file, reward), file, reward)


def head_from(tensors: Mapping[str, Tensor], facts: HeadFacts, file: Path | str, reward: str) -> Head:
    """A head of ``layers.N.weight`` and ``layers.N.bias``, whose widths are those of the tensors."""
    weights = [tensors.get(f"layers.{number}.weight") for number in range(len(tensors))]
    shapes = [weight.shape for weight in weights if weight is not None]
    if not shapes or any(len(shape) != 2 for shape in shapes):
        raise ValueError(f"{reward}: {file}: got {sorted(tensors)[:5]}, expected matrices layers.0.weight, ...")
    head = Head([shapes[0][1], *(shape[0] for shape in shapes[:-1]), len(facts.outputs)], facts)
    return load_exactly(head, {key: tensor.float() for key, tensor in tensors.items()}, file, reward)


def _facts(file: Path, reward: str) -> HeadFacts:
    from safetensors import safe_open

    with safe_open(file, "pt") as opened:
        text = (opened.metadata() or {}).get("head", "")
    try:
        stored: Any = json.loads(text)
        return HeadFacts(**{**stored, "outputs": tuple(stored["outputs"])})
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"{reward}: {file}: its metadata 'head' is {text[:80]!r} ({error}), expected what save_head writes"
        ) from error
