"""A text encoder for small vocabularies: one learned vector per word and one per position.

It replaces CLIP and T5 of Stable Diffusion 3, so a model folder of a few megabytes is complete. A prompt with a
word outside the vocabulary is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import torch
from jaxtyping import Float, Int
from safetensors.torch import load_file
from torch import Tensor, nn

from mmgrpo.config.names import nearest
from mmgrpo.files import write_tensors

PAD = 0
"""Id of the positions after the last word."""

NULL = 1
"""Id of the only token of the empty prompt, the unconditional branch of classifier-free guidance."""

FIRST = 2
"""Id of the first word of the vocabulary."""


def split(text: str) -> list[str]:
    """Lower-case words and punctuation marks in order: ``"A red cube."`` is a, red, cube, and a full stop."""
    return re.findall(r"\w+|[^\w\s]", text.lower())


class WordEncoder(nn.Module):
    """Word ids to hidden states and one pooled vector.

    hidden[l] = (table[ids[l]] + place[l]) * real[l],    pooled = W mean over real l of hidden[l] + b

    with real[l] = 1 where ids[l] is not padding, so padding has no effect. ``vocabulary`` contains the words only;
    word i has the id i + 2 (0 is padding, 1 the empty prompt).
    """

    def __init__(self, vocabulary: Sequence[str], length: int = 16, width: int = 128, pooled_width: int = 128):
        super().__init__()
        for word in vocabulary:
            if split(word) != [word]:
                raise ValueError(
                    f"vocabulary: got '{word}', expected one lower-case word or punctuation mark; it splits into "
                    f"{split(word)}"
                )
        if len(set(vocabulary)) != len(vocabulary):
            duplicates = sorted({word for word in vocabulary if list(vocabulary).count(word) > 1})
            raise ValueError(f"vocabulary: got duplicates ({', '.join(duplicates)}), expected distinct words")
        self.vocabulary = tuple(vocabulary)
        self.length, self.width, self.pooled_width = length, width, pooled_width
        self.ids = {word: FIRST + i for i, word in enumerate(self.vocabulary)}
        self.table = nn.Embedding(FIRST + len(self.vocabulary), width)
        self.place = nn.Parameter(0.02 * torch.randn(length, width))
        self.pool = nn.Linear(width, pooled_width)

    def tokenize(self, texts: Sequence[str]) -> Int[Tensor, "N length"]:
        """Ids, padded to ``length``; an empty text is the one token ``NULL``.

        Raises ValueError for a word outside the vocabulary and for a text of more than ``length`` words.
        """
        rows = torch.full((len(texts), self.length), PAD)
        for row, text in zip(rows, texts, strict=True):
            words = split(text)
            if len(words) > self.length:
                raise ValueError(
                    f"prompt '{text}': got {len(words)} words and punctuation marks, expected at most {self.length}; "
                    "shorten it"
                )
            for word in words:
                if word not in self.ids:
                    raise ValueError(f"prompt '{text}': the vocabulary lacks '{word}'.{nearest(word, self.ids)}")
            ids = [self.ids[word] for word in words] or [NULL]
            row[: len(ids)] = torch.tensor(ids)
        return rows.to(self.place.device)

    def forward(
        self, ids: Int[Tensor, "N length"]
    ) -> tuple[Float[Tensor, "N length width"], Float[Tensor, "N pooled"]]:
        real = (ids != PAD).unsqueeze(-1).to(self.place.dtype)
        hidden = (self.table(ids) + self.place) * real
        return hidden, self.pool(hidden.sum(1) / real.sum(1))

    def save(self, folder: Path | str) -> None:
        """Write ``words.json`` (the vocabulary and sizes) and ``words.safetensors``."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        shape = {"length": self.length, "width": self.width, "pooled_width": self.pooled_width}
        (folder / "words.json").write_text(json.dumps({**shape, "vocabulary": self.vocabulary}, indent=1) + "\n")
        weights = {name: weight.detach().cpu().contiguous() for name, weight in self.state_dict().items()}
        write_tensors(folder / "words.safetensors", weights)

    @classmethod
    def load(cls, folder: Path | str) -> WordEncoder:
        """Read what ``save`` wrote. Raises FileNotFoundError when one of the two files is missing."""
        folder = Path(folder)
        for name in ("words.json", "words.safetensors"):
            if not (folder / name).is_file():
                raise FileNotFoundError(
                    f"{folder / name} is missing; a word encoder is words.json and words.safetensors"
                )
        shape = json.loads((folder / "words.json").read_text())
        encoder = cls(shape["vocabulary"], shape["length"], shape["width"], shape["pooled_width"])
        encoder.load_state_dict(load_file(folder / "words.safetensors"))
        return encoder.eval()
