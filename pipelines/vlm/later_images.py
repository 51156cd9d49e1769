"""Images that stand behind a prompt, through any processor of transformers.

A processor reads a conversation as a whole. Images that tools return come later, behind tokens that were drawn and are
never tokenized again: each is processed alone, and its tensors are joined with those of the images before it. Whether
that gives what the processor makes of the whole conversation is tried on an example (``Joins.of``), since some put
images elsewhere, or read an image otherwise where there are others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Shaped
from PIL import Image as Pil
from torch import Tensor, nn

from mmgrpo.data.chat import ChatTemplate, special_tokens, turn_end
from mmgrpo.data.values import reason_of
from pipelines.generic_lm import token_types

SIZES = ((64, 48), (30, 120), (120, 40), (200, 150))
"""Widths and heights of the images of the example: tall and wide, small and large."""

TEXT = ("input_ids", "attention_mask")
WORD, IMAGE = {"type": "text", "text": "yes"}, {"type": "image"}


@dataclass(frozen=True)
class LaterImage:
    """An image behind a prompt."""

    image: Pil.Image
    tensors: Mapping[str, Tensor]
    """What the network reads of it."""
    marks: Mapping[int, int]
    """How often each of ``Joins.marks`` stands in its text."""


@dataclass(frozen=True)
class Joins:
    """How tensors of images become those of a conversation with all of them."""

    axes: Mapping[str, int]
    """The axis of images, tiles or patches, by the name of the tensor."""
    types: Mapping[str, Mapping[int, int]]
    """Types of tokens of images, by the name of the tensor with a type for each token."""
    marks: frozenset[int]
    """The tokens that stand for images only."""

    @staticmethod
    def of(processor: Any, chat: ChatTemplate, accepted: Collection[str]) -> Joins:
        """Found on a conversation of three turns with one, one and two images; ``accepted`` are the arguments of the
        network. ValueError where nothing gives what the processor makes of the whole."""
        tokenizer = processor.tokenizer
        if (ends := turn_end(tokenizer, chat.end_of_turn)) is None:
            raise ValueError("its chat template ends a turn with no special token")
        end, turns = tokenizer.convert_ids_to_tokens(ends), ([WORD, IMAGE], [WORD, IMAGE, IMAGE])
        images = [Pil.linear_gradient("L").resize(size).convert("RGB") for size in SIZES]
        try:
            question = chat.text([{"role": "user", "content": [IMAGE, WORD]}])
            said = [("user", [IMAGE, WORD]), ("assistant", [WORD]), ("tool", turns[0])]
            whole_text = chat.text([{"role": role, "content": content} for role, content in said])
            parts = [
                (question, images[:1]),
                *zip((end + chat.reply([turn]) for turn in turns), (images[1:2], images[2:])),
            ]
            whole = process(processor, "".join(text for text, _ in parts), images)
            pieces = [process(processor, text, shown, begins=not place) for place, (text, shown) in enumerate(parts)]
            single = [process(processor, question, [image]) for image in images]
            text = chat.text([{"role": "user", "content": [WORD]}]) + 2 * (end + chat.reply([[WORD]]))
            plain = process(processor, text, ())["input_ids"]
        except Exception as error:  # whatever a template or processor raises that takes no such conversation
            raise ValueError(
                f"its template or processor takes no images in later turns ({reason_of(error)})"
            ) from error
        if not whole_text.endswith(chat.reply([turns[0]])):
            raise ValueError("its chat template writes an image otherwise behind others, it may number them")
        ids, alone = whole["input_ids"][0], torch.cat([inputs["input_ids"][0] for inputs in single])
        marks = ({*alone.tolist()} - {*plain[0].tolist()}) & tokenizer.added_tokens_decoder.keys()
        if not marks or counts(ids, marks) != counts(alone, marks):
            raise ValueError(
                "its template or processor writes an image otherwise where there are others, or none later"
            )
        if ids.tolist() != torch.cat([piece["input_ids"][0] for piece in pieces]).tolist():
            raise ValueError("its processor writes a conversation otherwise than its turns")
        axes: dict[str, int] = {}
        types: dict[str, dict[int, int]] = {}
        for name in sorted(whole.keys() & {*accepted} - {*TEXT}):
            wanted = whole[name]
            if name.endswith("token_type_ids"):
                types[name] = {token: kind for token, kind in zip(ids.tolist(), wanted[0].tolist()) if kind}
                if not torch.equal(token_types(pieces[0][name], ids, types[name]), wanted):
                    raise ValueError(f"its processor gives one token several types ({name})")
                continue
            columns = [inputs[name] for inputs in single if name in inputs]
            same = [axis for axis in range(min(2, wanted.dim())) if torch.equal(_cat_padded(columns, axis), wanted)]
            if not same:
                raise ValueError(f"its processor reads an image otherwise where there are others ({name})")
            axes[name] = same[0]
        return Joins(axes, types, frozenset(marks))

    def join(self, parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """Tensors of several images, in their order, as those of all of them."""
        columns = {name: [part[name] for part in parts if name in part] for name in self.axes}
        return {name: _cat_padded(tensors, self.axes[name]) for name, tensors in columns.items() if tensors}


def process(processor: Any, text: str, images: Sequence[Pil.Image], *, begins: bool = True) -> dict[str, Tensor]:
    """What a processor makes of a text with images; of one that does not begin a sequence without its beginning."""
    options = special_tokens(processor.tokenizer, text) if begins else {"add_special_tokens": False}
    inputs = processor(text=[text], images=[[*images]] if images else None, return_tensors="pt", **options)
    return {name: value for name, value in inputs.items() if isinstance(value, Tensor)}


def counts(ids: Tensor, marks: Collection[int]) -> dict[int, int]:
    """How often each of some tokens stands in a row."""
    numbers = Counter(ids.flatten().tolist())
    return {mark: numbers[mark] for mark in sorted(marks)}


def _cat_padded(tensors: Sequence[Shaped[Tensor, "..."]], axis: int) -> Shaped[Tensor, "..."]:
    """Tensors behind each other, padded with zeros on the other axes to the largest of them."""
    most = [max(sizes) for sizes in zip(*(tensor.shape for tensor in tensors), strict=True)]
    padded = []
    for tensor in tensors:
        missing = [0 if place == axis else most[place] - size for place, size in enumerate(tensor.shape)]
        padded.append(nn.functional.pad(tensor, [side for size in reversed(missing) for side in (0, size)]))
    return torch.cat(padded, axis)
