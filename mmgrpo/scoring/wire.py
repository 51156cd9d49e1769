"""Prompts and outputs as bytes and back, exactly: JSON, and every tensor in the format of safetensors. No pickle.

A message is a sequence of frames, each of which begins with its length (8 bytes, big-endian). The first is JSON, the
others are the tensors that it refers to by number. In the JSON a number, text, boolean, null or list stands for itself;
an object has one key and says what it stands for:

    {"dict": [[key, value], ...]}    {"tuple": [...]}    {"bytes": base64}    {"tensor": 0}    {"array": 0}
    {"object": 0}, an entry of the message's list of objects ["Prompt", {field: value}]

What was one object, such as the prompt of a group, is sent once and is one object again.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor

from mmgrpo.scoring.isolation import VALUES

LENGTH = 8
"""Bytes of the length of a frame."""

_CLASSES = {kind.__name__: kind for kind in VALUES}


def frames(value: Any) -> Iterator[bytes]:
    """The bytes of a message, frame by frame; TypeError for what a message cannot hold."""
    sender = _Sender()
    body = {"value": sender.encode(value), "objects": sender.objects, "tensors": len(sender.tensors)}
    yield from _frame(json.dumps(body).encode())
    for tensor in sender.tensors:
        # One at a time, so no more than one of them is in memory twice.
        yield from _frame(save({"": tensor.detach().cpu().contiguous()}))


def _frame(content: bytes) -> Iterator[bytes]:
    yield len(content).to_bytes(LENGTH, "big")
    yield content


def read(frame: Callable[[], bytes]) -> Any:
    """The value of a message, whose frames ``frame`` returns one after the other, without their lengths."""
    body = json.loads(frame())
    if not isinstance(body, dict) or type(body["tensors"]) is not int or not isinstance(body["objects"], list):
        raise ValueError("got a message that does not begin with its value, its objects and the number of its tensors")
    tensors = [load(frame())[""] for _ in range(body["tensors"])]
    objects: list[Any] = []

    def decode(value: Any) -> Any:
        if isinstance(value, list):
            return [decode(entry) for entry in value]
        if not isinstance(value, dict):
            return value
        ((kind, content),) = value.items()
        if kind == "object":
            return objects[content]
        if kind in ("tensor", "array"):
            return tensors[content] if kind == "tensor" else tensors[content].numpy()
        if kind == "bytes":
            return base64.b64decode(content)
        entries = [decode(entry) for entry in content]
        return tuple(entries) if kind == "tuple" else dict(entries)

    for name, parts in body["objects"]:
        objects.append(_CLASSES[name](**{key: decode(part) for key, part in parts.items()}))
    return decode(body["value"])


class _Sender:
    """Collects the objects and tensors of one message while its values are written."""

    def __init__(self) -> None:
        self.objects: list[Any] = []
        self.tensors: list[Tensor] = []
        self._places: dict[int, tuple[int, Any]] = {}  # with what the id belongs to, so it stays alive

    def encode(self, value: Any) -> Any:
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, list):
            return [self.encode(entry) for entry in value]
        if isinstance(value, tuple):
            return {"tuple": [self.encode(entry) for entry in value]}
        if isinstance(value, Mapping):
            return {"dict": [[self.encode(key), self.encode(entry)] for key, entry in value.items()]}
        if isinstance(value, bytes):
            return {"bytes": base64.b64encode(value).decode()}
        if isinstance(value, Tensor):
            return {"tensor": self._place(value, self.tensors, lambda: value)}
        if isinstance(value, np.ndarray):
            return {"array": self._place(value, self.tensors, lambda: torch.tensor(np.ascontiguousarray(value)))}
        if isinstance(value, np.generic):
            return self.encode(value.item())
        if type(value) in VALUES:
            return {"object": self._place(value, self.objects, lambda: self._parts(value))}
        raise TypeError(f"got a {type(value).__name__} in a prompt or an output, which no message can hold")

    def _parts(self, value: Any) -> list[Any]:
        return [type(value).__name__, {f.name: self.encode(getattr(value, f.name)) for f in fields(value)}]

    def _place(self, value: Any, into: list[Any], content: Callable[[], Any]) -> int:
        if id(value) not in self._places:
            packed = content()  # before its own place: what it contains comes first
            self._places[id(value)] = (len(into), value)
            into.append(packed)
        return self._places[id(value)][0]
