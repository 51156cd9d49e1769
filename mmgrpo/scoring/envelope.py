"""Requests for scores as bytes, for servers: one versioned JSON object, and the bytes of media. No pickle, no paths.

    {"version": 1, "reward": "pickscore",
     "prompts": [{"text": "a red circle", "id": "7", "answer": null, "task": "", "meta": {}, "turns": []}],
     "outputs": [{"id": "0", "prompt": 0, "image": MEDIUM}]}

Of a prompt only ``text`` is required; ``prompt`` is its place in ``prompts``. A turn is ``{"role": "user", "parts":
["text", {"kind": "image", "source": {"image": MEDIUM}, "options": {}}]}``. An output is one of

    {"text": "...", "tokens": 3, "truncated": false, "seen": [[height, width]], "turns": [], "calls":
     [{"name": "search", "arguments": {}, "result": "...", "error": "", "images": []}], "tool_reward": 1.0}
    {"image": MEDIUM}    {"video": MEDIUM or a list of images, "fps": 8}    {"audio": MEDIUM, "rate": 16000}

The bytes of a medium are a PNG file (RGB of 8 bits: levels / 255), a FLAC file, or a safetensors file with one float32
tensor of any name: [3, height, width] or [frames, 3, height, width] in 0..1, [channels, samples] in -1..1.

With the content type ``application/json``, MEDIUM is the base64 text of these bytes. With ``FRAMES`` it is their number
among the frames that follow the object: each frame, of which the object is number 0, is its length (8 bytes,
big-endian) and its content. The answer is ``{"version": 1, "values": {"0": 0.25, "1": null}}``, by the outputs' ids,
with null for an output that could not be scored, or ``{"error": "..."}``.
"""

from __future__ import annotations

import base64
import binascii
import io
import json
import math
import re
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import PIL.Image
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from mmgrpo.scoring.wire import LENGTH
from mmgrpo.types import Audio, Call, Image, Media, Output, Prompt, Text, Turn, Video

VERSION = 1
JSON, FRAMES = "application/json", "application/vnd.mmgrpo.score"
"""Content types of requests."""


class Malformed(ValueError):
    """The body of a request is not what the module describes."""


class TooLarge(ValueError):
    """A request exceeds one of the ``Limits``."""


@dataclass(frozen=True)
class Limits:
    """What one request may contain."""

    body: int = 1 << 30
    """Bytes of the body."""
    pixels: int = 1 << 24
    """Pixels of an image or frame."""
    decoded: int = 1 << 32
    """Bytes of all media once decoded."""
    outputs: int = 4096
    """Outputs, and prompts."""
    items: int = 4_000_000
    """Entries of all lists and objects of the JSON, which take up to 30 times their bytes once read."""
    media: int = 65_536
    """Media, and frames of a body."""
    frames: int = 20_000
    """Frames of a clip."""
    seconds: float = 1800.0
    """Length of a clip or of audio. Rewards choose frames and resample by it, so few bytes could mean hours."""
    text: int = 1 << 20
    """Characters of a text."""
    rate: int = 192_000
    """Samples per second of audio."""
    channels: int = 16
    depth: int = 50
    """Levels of lists and objects within each other."""


@dataclass(frozen=True)
class Request:
    """The contents of a request; ``ids`` name the outputs in the answer."""

    reward: str
    prompts: Sequence[Prompt]
    """One for each output; what was one prompt is one object."""
    outputs: Sequence[Output]
    ids: Sequence[str]
    nbytes: int = 0
    """Bytes of its media, decoded."""


def write(
    reward: str, prompts: Sequence[Prompt], outputs: Sequence[Output], ids: Sequence[str], media: bool = True
) -> bytes:
    """A request as ``FRAMES``. Media of prompts are left out unless the reward reads them (``media``).

    ValueError for what JSON cannot hold exactly, and for a medium of a prompt that is a file: a server reads none.
    """
    frames: list[bytes] = []

    def medium(tensor: Tensor) -> int:
        frames.append(save({"": tensor.detach().to("cpu", torch.float32).contiguous()}))
        return len(frames)

    def output_as_json(output: Output) -> dict[str, Any]:
        if isinstance(output, Text):
            seen = [list(size) for size in output.seen]
            more = {
                "prefilled": output.prefilled,
                "ids": list(output.ids),
                "turns": [turn_as_json(turn, "a turn of an output") for turn in output.turns],
                "calls": [call_as_json(call) for call in output.calls],
            }
            if output.tool_reward is not None:
                more["tool_reward"] = None if math.isnan(output.tool_reward) else output.tool_reward
            return {"text": output.text, "tokens": output.tokens, "truncated": output.truncated, "seen": seen} | {
                key: value for key, value in more.items() if value or key == "tool_reward"
            }
        if isinstance(output, Image):
            return {"image": medium(output.pixels)} | ({"words": output.words} if output.words else {})
        if isinstance(output, Video):
            heard = {"sound": output_as_json(output.sound)} if output.sound else {}
            return {"video": medium(output.frames), "fps": output.fps, **heard}
        return {"audio": medium(output.samples), "rate": output.rate}

    def call_as_json(call: Call) -> dict[str, Any]:
        images = [part(image, f"the result of '{call.name}'") for image in call.images if media]
        text = {"name": call.name, "arguments": call.arguments, "result": call.result, "error": call.error}
        return {**text, "images": images} if images else text

    def turn_as_json(turn: Turn, where: str) -> dict[str, Any]:
        parts = [part(item, where) for item in turn.parts if media or isinstance(item, str)]
        keys = {"keys": plain(turn.keys, f"{where}: keys of a turn")} if turn.keys else {}
        return {"role": turn.role, "parts": parts, **keys}

    def part(item: str | Media, where: str) -> Any:
        if isinstance(item, str):
            return item
        if isinstance(item.source, str | tuple):
            raise ValueError(
                f"{where}: got the file {item.source}, which a server cannot read; score with this reward in the run "
                "or in a process of its own (process=True), or declare what it reads, if that is no media (@reward)"
            )
        source = output_as_json(item.source)
        return {"kind": item.kind, "source": source, "options": plain(item.options, f"{where}: options")}

    def prompt_as_json(prompt: Prompt) -> dict[str, Any]:
        where = f"prompt '{prompt.id or prompt.text[:60]}'"
        turns = [turn_as_json(turn, where) for turn in prompt.turns]
        answer, meta = plain(prompt.answer, f"{where}: answer"), plain(prompt.meta, f"{where}: meta")
        named = {"text": prompt.text, "id": prompt.id, "task": prompt.task}
        columns = {"columns": plain(prompt.columns, f"{where}: columns")} if prompt.columns else {}
        return {**named, "answer": answer, "meta": meta, "turns": turns, **columns}

    distinct = {id(prompt): prompt for prompt in prompts}
    places = {key: place for place, key in enumerate(distinct)}
    body = {
        "version": VERSION,
        "reward": reward,
        "prompts": [prompt_as_json(prompt) for prompt in distinct.values()],
        "outputs": [
            {"id": name, "prompt": places[id(prompt)], **output_as_json(output)}
            for name, prompt, output in zip(ids, prompts, outputs, strict=True)
        ],
    }
    contents = [json.dumps(body).encode(), *frames]
    return b"".join(part for chunk in contents for part in (len(chunk).to_bytes(LENGTH, "big"), chunk))


def plain(value: Any, where: str) -> Any:
    """A value that JSON gives back as it is; ValueError for any other."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) is list:
        return [plain(entry, where) for entry in value]
    if isinstance(value, Mapping) and all(type(key) is str for key in value):
        return {key: plain(entry, where) for key, entry in value.items()}
    raise ValueError(
        f"{where}: got a {type(value).__name__}, expected what JSON can hold (numbers, texts, lists, objects with "
        "texts as keys), since a server scores it; convert it when the prompts are read"
    )


def read(content_type: str, body: bytes | bytearray, limits: Limits) -> Request:
    """The request in a body; ``Malformed`` or ``TooLarge`` where there is none."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind not in (JSON, FRAMES):
        raise Malformed(f"content type: got {kind[:100]!r}, expected {JSON} or {FRAMES}")
    first, *frames = [memoryview(body)] if kind == JSON else list(_frames(memoryview(body), limits.media))
    text = bytes(first)
    if (count := _items(text, limits.items)) > limits.items:
        raise TooLarge(f"got {count:,} entries of JSON, expected at most {limits.items:,}; send fewer at a time")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"got no JSON: {error}") from error
    del text
    _refuse_deep(content, limits.depth)
    return _Reader(limits, frames if kind == FRAMES else None).request(content)


def _items(text: bytes, most: int) -> int:
    """An upper bound of the entries of all lists and objects of a JSON text, counted before anything is made of it;
    commas and brackets inside of texts are left out where they matter."""

    def count(part: bytes) -> int:
        return sum(part.count(mark) for mark in (b",", b"[", b"{"))

    return count(text) if count(text) <= most else count(re.sub(rb'"[^"\\]*(?:\\.[^"\\]*)*"', b"", text))


def _refuse_deep(value: Any, levels: int) -> None:
    """Malformed for lists and objects in more than ``levels`` levels, which no message to a reward's process holds."""
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for entry in inside:
        if isinstance(entry, dict | list):
            if not levels:
                raise Malformed("got lists and objects in too many levels; send plainer prompts")
            _refuse_deep(entry, levels - 1)


def _frames(rest: memoryview, most: int) -> Iterator[memoryview]:
    if not rest:
        raise Malformed("got an empty body, expected frames")
    number = 0
    while rest:
        if number > most:
            raise TooLarge(f"got more than {most:,} frames; send fewer at a time")
        number += 1
        length = int.from_bytes(rest[:LENGTH], "big")
        if len(rest) < LENGTH or length > len(rest) - LENGTH:
            raise Malformed(f"a frame: got {len(rest)} bytes, expected its length in {LENGTH} bytes and its content")
        yield rest[LENGTH : LENGTH + length]
        rest = rest[LENGTH + length :]


_REQUIRED: Any = object()


def take(table: Any, name: str, kinds: type | tuple[type, ...], where: str, default: Any = _REQUIRED) -> Any:
    """An entry of an object, of one of the types; a boolean is no number."""
    if not isinstance(table, dict):
        raise Malformed(f"{where}: got {_describe(table)}, expected an object")
    value = table.get(name, default)
    if value is _REQUIRED:
        raise Malformed(f"{where}: has no '{name}'")
    kinds = kinds if isinstance(kinds, tuple) else (kinds,)
    if value is not default and (not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds)):
        expected = " or ".join(kind.__name__ for kind in kinds)
        raise Malformed(f"{where}.{name}: got {_describe(value)}, expected {expected}")
    return value


def _describe(value: Any) -> str:
    if isinstance(value, int) and abs(value) >= 1 << 128:
        return "a number of more than 38 digits (int)"
    text = value if isinstance(value, str) else reprlib.repr(value)
    return f"{text[:60]!r} ({type(value).__name__})"


_ANY = (type(None), bool, int, float, str, list, dict)
_FIELDS = {
    "text": {"tokens", "truncated", "seen", "prefilled", "ids", "turns", "calls", "tool_reward"},
    "image": {"words"},
    "video": {"fps", "sound"},
    "audio": {"rate"},
}
"""The kinds of outputs, and the other fields of each."""


@dataclass
class _Reader:
    """Reads one request, and counts the bytes that its media take once decoded."""

    limits: Limits
    frames: list[memoryview] | None
    """None where media are base64 texts."""
    decoded: int = field(default=0)
    media: int = field(default=0)

    def request(self, content: Any) -> Request:
        version = take(content, "version", int, "the request")
        if version != VERSION:
            raise Malformed(f"version: got {version}, expected {VERSION}; install the same release on both sides")
        reward = take(content, "reward", str, "the request")
        rows = take(content, "prompts", list, "the request")
        if len(rows) > self.limits.outputs:
            raise TooLarge(f"prompts: got {len(rows)}, expected at most {self.limits.outputs} in one request")
        prompts = [self.prompt(row, f"prompts[{place}]") for place, row in enumerate(rows)]
        rows = take(content, "outputs", list, "the request")
        if len(rows) > self.limits.outputs:
            raise TooLarge(f"outputs: got {len(rows)}, expected at most {self.limits.outputs} in one request")
        ids, chosen, outputs = [], [], []
        for place, row in enumerate(rows):
            where = f"outputs[{place}]"
            ids.append(take(row, "id", str, where))
            number = take(row, "prompt", int, where)
            if not 0 <= number < len(prompts):
                raise Malformed(f"{where}.prompt: got {number}, expected 0 to {len(prompts) - 1}")
            chosen.append(prompts[number])
            outputs.append(self.output({key: row[key] for key in row if key not in ("id", "prompt")}, where))
        if len(set(ids)) < len(ids):
            raise Malformed("outputs: got an id twice, expected different ones: values are returned by id")
        return Request(reward, chosen, outputs, ids, self.decoded)

    def prompt(self, row: Any, where: str) -> Prompt:
        text, name, task = (
            take(row, key, str, where, *default) for key, default in (("text", ()), ("id", ("",)), ("task", ("",)))
        )
        turns = self.turns(row, where)
        answer = take(row, "answer", _ANY, where, None)
        meta, columns = (take(row, key, dict, where, {}) for key in ("meta", "columns"))
        for key, value in (("text", text), ("id", name), ("task", task)):
            self.refuse_text(value, f"{where}.{key}")
        return Prompt(text, name, answer, task, meta, turns, columns)

    def turns(self, row: Any, where: str) -> tuple[Turn, ...]:
        turns = []
        for place, turn in enumerate(take(row, "turns", list, where, [])):
            here = f"{where}.turns[{place}]"
            parts = [self.part(item, here) for item in take(turn, "parts", list, here)]
            turns.append(Turn(take(turn, "role", str, here), tuple(parts), take(turn, "keys", dict, here, {})))
        return tuple(turns)

    def calls(self, row: Any, where: str) -> tuple[Call, ...]:
        calls = []
        for place, call in enumerate(take(row, "calls", list, where, [])):
            here = f"{where}.calls[{place}]"
            name, result, error = (take(call, key, str, here, "") for key in ("name", "result", "error"))
            for key, value in (("name", name), ("result", result), ("error", error)):
                self.refuse_text(value, f"{here}.{key}")
            images = [self.part(item, here) for item in take(call, "images", list, here, [])]
            if not all(isinstance(image, Media) for image in images):
                raise Malformed(f"{here}.images: got a text, expected media")
            arguments = take(call, "arguments", dict, here, {})
            calls.append(
                Call(name, arguments, result, error, tuple(image for image in images if isinstance(image, Media)))
            )
        return tuple(calls)

    def part(self, item: Any, where: str) -> str | Media:
        if isinstance(item, str):
            self.refuse_text(item, where)
            return item
        source = take(item, "source", dict, where)
        options = take(item, "options", dict, where, {})
        return Media(take(item, "kind", str, where), self.output(source, where), options)

    def output(self, row: Mapping[str, Any], where: str) -> Output:
        kinds = [kind for kind in _FIELDS if kind in row]
        if len(kinds) != 1 or row.keys() - {kinds[0]} - _FIELDS[kinds[0]]:
            raise Malformed(f"{where}: got the fields {sorted(row)}, expected an output: one of {', '.join(_FIELDS)}")
        if kinds == ["text"]:
            seen = take(row, "seen", list, where, [])
            if not all(
                isinstance(size, list) and len(size) == 2 and all(type(n) is int for n in size) for size in seen
            ):
                raise Malformed(f"{where}.seen: got {_describe(seen)}, expected a list of [height, width]")
            tokens, truncated = take(row, "tokens", int, where, 0), take(row, "truncated", bool, where, False)
            ids = take(row, "ids", list, where, [])
            if not all(type(token) is int for token in ids):
                raise Malformed(f"{where}.ids: got {_describe(ids)}, expected a list of whole numbers")
            prefilled, sizes = take(row, "prefilled", str, where, ""), tuple((h, w) for h, w in seen)
            for number in (tokens, *ids, *(side for size in sizes for side in size)):
                if not 0 <= number < 1 << 40:
                    raise Malformed(f"{where}: got {_describe(number)} for a number of tokens, of pixels, or a token")
            text = take(row, "text", str, where)
            for key, value in (("text", text), ("prefilled", prefilled)):
                self.refuse_text(value, f"{where}.{key}")
            turns, calls = self.turns(row, where), self.calls(row, where)
            gave = take(row, "tool_reward", (int, float, type(None)), where, None)
            gave = math.nan if gave is None and "tool_reward" in row else gave  # one that failed
            return Text(text, tokens, truncated, sizes, prefilled, tuple(ids), turns, calls, gave)
        if kinds == ["image"]:
            words = take(row, "words", str, where, "")
            self.refuse_text(words, f"{where}.words")
            return Image(self.pixels(row["image"], f"{where}.image", 3), words)
        if kinds == ["video"]:
            fps = float(take(row, "fps", (int, float), where))
            if not 0 < fps < math.inf:
                raise Malformed(f"{where}.fps: got {fps}, expected a positive number")
            heard = self.sound(take(row, "sound", dict, where), f"{where}.sound") if "sound" in row else None
            video, here = row["video"], f"{where}.video"
            if not isinstance(video, list):
                clip = self.pixels(video, here, 4)
                self.refuse_length(len(clip), fps, here)
                return Video(clip, fps, heard)
            self.refuse_length(len(video), fps, here)
            frames = [self.pixels(frame, f"{here}[{place}]", 3) for place, frame in enumerate(video)]
            if not frames or len({frame.shape for frame in frames}) > 1:
                raise Malformed(f"{here}: got {len(frames)} frames, expected at least one, and all of one size")
            return Video(torch.stack(frames), fps, heard)
        return self.sound(row, where)

    def sound(self, row: Mapping[str, Any], where: str) -> Audio:
        """A recording, alone or of a video."""
        if row.keys() != {"audio", "rate"}:
            raise Malformed(f"{where}: got the fields {sorted(row)}, expected audio and rate")
        rate = take(row, "rate", int, where)
        if not 1 <= rate <= self.limits.rate:
            raise Malformed(
                f"{where}.rate: got {_describe(rate)}, expected 1 to {self.limits.rate:,} samples per second"
            )
        return Audio(self.samples(row["audio"], f"{where}.audio", rate), rate)

    def refuse_text(self, text: str, where: str) -> None:
        """A text that is too long, or that holds half of a character (a lone surrogate), which no file can hold."""
        if len(text) > self.limits.text:
            raise TooLarge(f"{where}: got {len(text):,} characters, expected at most {self.limits.text:,}")
        if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
            raise Malformed(f"{where}: got a lone surrogate in a text, which is no character")

    def refuse_length(self, frames: int, fps: float, where: str) -> None:
        """A clip of too many frames, or whose frames last too long."""
        if frames > self.limits.frames:
            raise TooLarge(f"{where}: got {frames:,} frames, expected at most {self.limits.frames:,}")
        if frames > self.limits.seconds * fps:
            raise TooLarge(
                f"{where}: got {frames:,} frames at {fps:g} per second, expected at most {self.limits.seconds:g} s"
            )

    def content(self, medium: Any, where: str) -> bytes:
        """The bytes of a medium, from its frame or from base64."""
        self.media += 1
        if self.media > self.limits.media:
            raise TooLarge(f"{where}: got more than {self.limits.media:,} media; send fewer at a time")
        if self.frames is None and isinstance(medium, str):
            try:
                return base64.b64decode(medium, validate=True)
            except (binascii.Error, ValueError) as error:
                raise Malformed(f"{where}: got a text that is not base64: {error}") from error
        if self.frames is not None and type(medium) is int and 0 < medium <= len(self.frames):
            return bytes(self.frames[medium - 1])
        expected = "a base64 text" if self.frames is None else f"the number of a frame, 1 to {len(self.frames)}"
        raise Malformed(f"{where}: got {_describe(medium)}, expected {expected}")

    def count(self, size: int, where: str) -> None:
        self.decoded += size
        if self.decoded > self.limits.decoded:
            raise TooLarge(f"{where}: got over {self.limits.decoded:,} bytes of decoded media; send fewer at a time")

    def tensor(self, content: bytes, where: str) -> Tensor:
        try:
            tensors = list(load(content).values())
        except (SafetensorError, ValueError, KeyError, TypeError) as error:
            raise Malformed(f"{where}: got neither PNG nor FLAC nor safetensors: {error}") from error
        if len(tensors) != 1 or tensors[0].dtype != torch.float32:
            raise Malformed(f"{where}: got {[str(tensor.dtype) for tensor in tensors]}, expected one tensor of float32")
        self.count(tensors[0].nbytes, where)
        return tensors[0]

    def pixels(self, medium: Any, where: str, dimensions: int) -> Tensor:
        """An image [3, height, width] or a video [frames, 3, height, width]."""
        content = self.content(medium, where)
        pixels = self.png(content, where) if content[:8] == b"\x89PNG\r\n\x1a\n" else self.tensor(content, where)
        shape = list(pixels.shape)
        if pixels.ndim != dimensions or shape[-3] != 3 or 0 in shape:
            expected = "[3, height, width]" if dimensions == 3 else "[frames, 3, height, width]"
            raise Malformed(f"{where}: got the shape {shape}, expected {expected}")
        self.refuse_size(shape[-1], shape[-2], where)
        return pixels

    def refuse_size(self, width: int, height: int, where: str) -> None:
        if width * height > self.limits.pixels:
            raise TooLarge(f"{where}: got {width} x {height} pixels, expected at most {self.limits.pixels:,}")

    def png(self, content: bytes, where: str) -> Tensor:
        try:
            with PIL.Image.open(io.BytesIO(content), formats=["PNG"]) as image:
                self.refuse_size(*image.size, where)  # before anything is decompressed
                self.count(12 * image.size[0] * image.size[1], where)
                if image.mode != "RGB":
                    raise Malformed(f"{where}: got a PNG of mode {image.mode}, expected RGB of 8 bits")
                levels = np.array(image)
        except PIL.Image.DecompressionBombError as error:
            raise TooLarge(f"{where}: {error}") from error
        except (OSError, SyntaxError, ValueError) as error:
            if isinstance(error, Malformed | TooLarge):
                raise
            raise Malformed(f"{where}: got a damaged PNG: {error}") from error
        return torch.from_numpy(levels).permute(2, 0, 1).contiguous().float() / 255

    def samples(self, medium: Any, where: str, rate: int) -> Tensor:
        """Audio samples [channels, samples]."""
        content = self.content(medium, where)
        samples = self.flac(content, where, rate) if content[:4] == b"fLaC" else self.tensor(content, where)
        if samples.ndim != 2 or 0 in samples.shape:
            raise Malformed(f"{where}: got the shape {list(samples.shape)}, expected [channels, samples]")
        self.refuse_audio(samples.shape[0], samples.shape[1], rate, where)
        return samples

    def refuse_audio(self, channels: int, samples: int, rate: int, where: str) -> None:
        """Audio of too many channels, or that is too long."""
        if channels > self.limits.channels:
            raise TooLarge(f"{where}: got {channels} channels, expected at most {self.limits.channels}")
        if samples > self.limits.seconds * rate:
            raise TooLarge(f"{where}: got {samples / rate:,.1f} s, expected at most {self.limits.seconds:g} s")

    def flac(self, content: bytes, where: str, rate: int) -> Tensor:
        try:
            import soundfile
        except ModuleNotFoundError as error:
            raise Malformed(
                f"{where}: FLAC needs soundfile on the server (mmgrpo[speech]); send safetensors"
            ) from error
        try:
            with soundfile.SoundFile(io.BytesIO(content)) as sound:
                if sound.samplerate != rate:
                    raise Malformed(f"{where}: got a FLAC of {sound.samplerate} Hz, expected the rate, {rate}")
                self.refuse_audio(sound.channels, max(0, sound.frames), rate, where)  # before anything is decoded
                most = (self.limits.decoded - self.decoded) // (4 * sound.channels)
                samples = sound.read(most + 1, dtype="float32", always_2d=True)
        except soundfile.LibsndfileError as error:
            raise Malformed(f"{where}: got a damaged FLAC: {error}") from error
        self.count(samples.nbytes, where)
        return torch.from_numpy(samples.T.copy())
