"""Encoded prompts: each is encoded once, kept in memory and, where a folder is named, on disk."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

import torch
from jaxtyping import Bool, Float, Int
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from mmgrpo.data.limits import content, is_inside
from mmgrpo.files import write_bytes
from mmgrpo.runtime.devices import put
from mmgrpo.types import Image, Media, Prompt, Video

Encoding = tuple[Tensor, ...]
"""The conditioning on one prompt, without a batch axis; on the device, but for what decides sizes, which may stay on
the host."""

HOST = " host"
"""Behind the number of a tensor, in a file, that stays on the host."""

SUFFIX = ".encoding.safetensors"
"""Of a file of the cache on disk; nothing else in its folder is ever removed."""


@dataclass(frozen=True)
class Conditioning:
    """The network's conditioning on the prompts: tensors with one row per prompt."""

    tensors: tuple[Float[Tensor, "N *_"], ...]
    negative: tuple[Float[Tensor, "N *_"], ...] = ()
    """The same with the negative prompt in place of the words, for classifier-free guidance; empty where there is
    none."""

    def take(self, index: Int[Tensor, "M"]) -> Conditioning:
        """Rows by number, possibly repeated; with an index on the host, the host waits for nothing."""
        return Conditioning(take_rows(self.tensors, index), take_rows(self.negative, index))


def take_rows(tensors: Sequence[Tensor], index: Int[Tensor, "M"]) -> tuple[Tensor, ...]:
    """Rows of tensors, wherever tensors and index lie."""
    at = {index.device: index}
    for device in {tensor.device for tensor in tensors} - at.keys():
        at[device] = put(index, device) if index.device.type == "cpu" else index.to(device)
    return tuple(tensor[at[tensor.device]] for tensor in tensors)


@dataclass
class Encodings:
    """Encodings by prompt, computed by ``encode``.

    Prompts are encoded one at a time, so an encoding depends on its prompt alone and neither on its neighbours
    nor on how prompts are spread over ranks. ``kept`` are kept in memory, the oldest are dropped first. With a
    ``folder`` they are also files there, of at most ``disk_bytes`` together, the longest unused dropped first;
    ``identity`` tells the encodings of one model and its settings from those of others.
    """

    encode: Callable[[Prompt], Encoding]
    device: torch.device
    kept: int = 1024
    folder: Path | None = None
    disk_bytes: int = 0
    identity: str = ""
    memory: dict[str, Encoding] = field(default_factory=dict)

    def rows(self, prompts: Sequence[Prompt]) -> list[Encoding]:
        """One encoding per prompt."""
        keys = [key_of(prompt) for prompt in prompts]
        encodings = {}
        for key, prompt in dict(zip(keys, prompts, strict=True)).items():
            encodings[key] = self.memory[key] if key in self.memory else self._read_or_encode(key, prompt)
        self.memory.update(encodings)
        while len(self.memory) > self.kept:
            del self.memory[next(iter(self.memory))]
        return [encodings[key] for key in keys]

    def only(self, prompts: Iterable[Prompt]) -> None:
        """Encode these prompts, and refuse all others from now on, so the encoders can be freed."""
        distinct = {key_of(prompt): prompt for prompt in prompts}
        self.kept = len(self.memory) + len(distinct)
        self.rows(list(distinct.values()))
        self.encode = missing_encoder

    def _read_or_encode(self, key: str, prompt: Prompt) -> Encoding:
        if self.folder is None:
            return self.encode(prompt)
        file = self.folder / (hashlib.sha256(f"{self.identity} {key}".encode()).hexdigest()[:40] + SUFFIX)
        encoding = _read(file, self.device)
        if encoding is None:
            encoding = self.encode(prompt)
            away = [HOST if tensor.device.type != self.device.type else "" for tensor in encoding]
            named = {f"{i:02d}{place}": tensor for i, (place, tensor) in enumerate(zip(away, encoding, strict=True))}
            content = save({name: tensor.contiguous().cpu() for name, tensor in named.items()})
            if len(content) <= self.disk_bytes:
                self._make_room(len(content))
                write_bytes(file, content)
        return encoding

    def _make_room(self, size: int) -> None:
        """Remove the files that were not used for the longest time until ``size`` bytes more are within the limit."""
        assert self.folder is not None
        self.folder.mkdir(parents=True, exist_ok=True)
        files = sorted((file.stat().st_mtime_ns, file.stat().st_size, file) for file in self.folder.glob(f"*{SUFFIX}"))
        total = size + sum(bytes_ for _, bytes_, _ in files)
        for _, bytes_, file in files:
            if total <= self.disk_bytes:
                break
            file.unlink(missing_ok=True)
            total -= bytes_


def _read(file: Path, device: torch.device) -> Encoding | None:
    """The encoding in a file, which counts as used now; None where there is none, or a damaged one."""
    try:
        with safe_open(file, framework="pt") as opened:
            tensors = {name: opened.get_tensor(name) for name in sorted(opened.keys())}
            encoding = tuple(tensor if name.endswith(HOST) else put(tensor, device) for name, tensor in tensors.items())
        file.touch()
    except (OSError, SafetensorError):
        return None
    return encoding


def key_of(prompt: Prompt) -> str:
    """What an encoding depends on: the words, and the content of its media."""
    return "\n".join([prompt.text, *(_digest(medium) for medium in prompt.media)])


def _digest(medium: Media) -> str:
    digest = hashlib.sha256(f"{medium.kind} {sorted(medium.options.items())}".encode())
    source = medium.source
    if isinstance(source, Image | Video):
        values = source.pixels if isinstance(source, Image) else source.frames
        digest.update(f"{list(values.shape)}".encode() + values.contiguous().numpy().tobytes())
    else:
        for file in [source] if isinstance(source, str) else source if isinstance(source, tuple) else []:
            digest.update(content(file) if is_inside(file) else Path(file).read_bytes())
    return digest.hexdigest()


def negative_of(prompt: Prompt, default: str = "") -> Prompt:
    """The prompt of the unconditional branch of classifier-free guidance: its media, and in place of its words the
    negative prompt of the row, else ``default``.

    ValueError for a row whose negative prompt is no text.
    """
    text = prompt.meta.get("negative_prompt")
    if not isinstance(text, str | None):
        raise ValueError(f"prompt '{prompt.id}': negative_prompt: got {text!r:.80}, expected a text")
    return replace(prompt, text=default if text is None else text)


def stack_rows(rows: Sequence[Encoding]) -> tuple[Tensor, ...]:
    """Encodings of several prompts, one row each; tensors of other lengths are filled up with zeros at their end."""
    return tuple(
        nn.utils.rnn.pad_sequence(list(column), batch_first=True) if column[0].dim() else torch.stack(column)
        for column in zip(*rows, strict=True)
    )


def pad_states(
    hidden: Float[Tensor, "tokens d"], length: int
) -> tuple[Float[Tensor, "length d"], Bool[Tensor, " length"]]:
    """Hidden states with zeros up to ``length``, and which of them are real, on the host."""
    real = torch.arange(length) < len(hidden)
    return nn.functional.pad(hidden, (0, 0, 0, length - len(hidden))), real


def missing_encoder(prompt: Any) -> NoReturn:
    """Replaces the encoder after ``Encodings.only``."""
    raise KeyError(
        f"prompt '{prompt.text}' was not encoded before the text encoders were freed; pass all prompts to "
        "forget_encoders, or set model.forget_encoders=False"
    )


def refuse_media(prompt: Prompt) -> None:
    """ValueError for a prompt with media where a model takes words only."""
    if prompt.media:
        raise ValueError(
            f"prompt '{prompt.text}': got {len(prompt.media)} media, expected words only, since this "
            "model takes no images; where only the texts are prompts, leave the column of the media out: "
            f"--data.columns {prompt.media[0].kind}=meta.{prompt.media[0].kind} (file_name=meta.file_name of a folder)"
        )


LONGER = ", or raise model.max_sequence_length where the model allows"


@contextmanager
def mute_summary_warnings(pipeline: Any) -> Iterator[None]:
    """Within the block, neither the pipeline nor its tokenizers warn that CLIP reads 77 tokens of a prompt, where its
    part is a summary by design and another encoder reads all."""
    loggers = [logging.getLogger(name) for name in (type(pipeline).__module__, "transformers.tokenization_utils_base")]
    for logger in loggers:
        logger.addFilter(_is_no_summary)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(_is_no_summary)


def _is_no_summary(record: logging.LogRecord) -> bool:
    text = record.getMessage()
    return not ("CLIP can only handle" in text or text.startswith("Token indices sequence length"))


def refuse_cut(
    prompt: Prompt, tokenizer: Any, most: int, encoder: str, text: str | None = None, advice: str = LONGER
) -> None:
    """ValueError for a prompt that has more tokens than the text encoder reads, since the rest would be cut.

    ``advice`` says what may be done besides shortening it.
    """
    tokens = len(tokenizer(prompt.text if text is None else text, truncation=False, verbose=False).input_ids)
    refuse_longer(prompt, tokens, most, encoder, advice)


def refuse_longer(prompt: Prompt, tokens: int, most: int, encoder: str, advice: str = LONGER) -> None:
    """ValueError for a prompt of more tokens than the text encoder reads, of those that count them in a way of their
    own."""
    if tokens > most:
        raise ValueError(
            f"prompt '{prompt.text:.80}': has {tokens} tokens, expected at most {most}, which {encoder} reads; shorten "
            f"it{advice}"
        )
