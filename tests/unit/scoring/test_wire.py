"""Prompts and outputs reach a reward's process as they are: every field, of every kind, bit for bit."""

from __future__ import annotations

import io
import math
import random
import string
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import pytest
import torch

from mmgrpo.scoring.isolation import VALUES, copy_value
from mmgrpo.scoring.wire import LENGTH, frames, read
from mmgrpo.types import Answer, Audio, Call, Image, Media, Prompt, Text, Turn, Video

FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
OTHERS = (torch.uint8, torch.int16, torch.int64, torch.bool, torch.complex64)


def there_and_back(value: Any) -> Any:
    stream = io.BytesIO(b"".join(frames(value)))
    back = read(lambda: stream.read(int.from_bytes(stream.read(LENGTH), "big")))
    assert stream.read() == b""
    return back


def same(a: Any, b: Any) -> bool:
    """Equal in type and to the last bit, NaN included."""
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and _bits(a) == _bits(b)
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if type(a) is not type(b):
        return False
    if is_dataclass(a):
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in fields(a))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return repr(a) == repr(b)


def _bits(tensor: torch.Tensor) -> list[int]:
    return tensor.contiguous().reshape(-1).view(torch.uint8).tolist()


def word(draw: random.Random) -> str:
    letters = string.printable + 'äß漢🙂\x00\ud800\u2028"\\'
    return "".join(draw.choice(letters) for _ in range(draw.randrange(8)))


def json_value(draw: random.Random, depth: int = 3) -> Any:
    leaves: list[Callable[[], Any]] = [
        lambda: None,
        lambda: draw.random() < 0.5,
        lambda: draw.randrange(-(10**30), 10**30),
        lambda: draw.choice([0.1, -0.0, 1e-320, 1e308, math.nan, math.inf, draw.gauss(0, 1)]),
        lambda: word(draw),
    ]
    if depth:
        leaves.append(lambda: [json_value(draw, depth - 1) for _ in range(draw.randrange(4))])
        leaves.append(lambda: {word(draw): json_value(draw, depth - 1) for _ in range(draw.randrange(4))})
    return draw.choice(leaves)()


def tensor(draw: random.Random, *shape: int) -> torch.Tensor:
    values = torch.rand(shape, generator=torch.Generator().manual_seed(draw.randrange(2**31))).to(draw.choice(FLOATS))
    return values.transpose(0, 1).contiguous().transpose(0, 1) if draw.random() < 0.3 and len(shape) > 1 else values


def output(draw: random.Random) -> Text | Image | Video | Audio:
    sizes = [draw.randrange(4) for _ in range(3)]
    seen = tuple((draw.randrange(9), draw.randrange(9)) for _ in range(draw.randrange(3)))
    turns = tuple(Turn(word(draw), (word(draw),)) for _ in range(draw.randrange(3)))
    called = {word(draw): json_value(draw) for _ in range(draw.randrange(3))}
    seldom = draw.random() < 0.1  # a medium holds an output, which may hold calls
    images = (media(draw),) if seldom else ()
    calls = tuple(Call(word(draw), called, word(draw), word(draw), images) for _ in turns)
    kinds: list[Callable[[], Text | Image | Video | Audio]] = [
        lambda: Text(
            word(draw),
            draw.randrange(9),
            draw.random() < 0.5,
            seen,
            word(draw),
            sum(seen, ()),
            turns,
            calls,
            draw.choice([None, 0.5]),
            word(draw),
        ),
        lambda: Image(tensor(draw, 3, *sizes[:2]), word(draw)),
        lambda: Video(
            tensor(draw, sizes[0], 3, *sizes[1:]),
            draw.random() * 30,
            draw.choice([None, Audio(tensor(draw, *sizes[:2]), draw.randrange(48_000))]),
        ),
        lambda: Audio(tensor(draw, *sizes[:2]), draw.randrange(48_000)),
    ]
    return draw.choice(kinds)()


def media(draw: random.Random) -> Media:
    source = draw.choice([lambda: word(draw), lambda: (word(draw), word(draw)), lambda: output(draw)])()
    return Media(draw.choice(["image", "video", "audio"]), source, {word(draw): json_value(draw, 1)})


def prompt(draw: random.Random) -> Prompt:
    turns = tuple(
        Turn(
            word(draw),
            tuple(media(draw) if draw.random() < 0.5 else word(draw) for _ in range(draw.randrange(3))),
            {word(draw): json_value(draw) for _ in range(draw.randrange(2))},
        )
        for _ in range(draw.randrange(3))
    )
    meta, columns = ({word(draw): json_value(draw) for _ in range(draw.randrange(4))} for _ in range(2))
    answers = tuple(
        Answer(word(draw), media(draw) if draw.random() < 0.5 else None, draw.random())
        for _ in range(draw.randrange(3))
    )
    return Prompt(word(draw), word(draw), json_value(draw), word(draw), meta, turns, columns, answers)


@pytest.mark.parametrize("seed", range(50))
def test_prompts_and_outputs_of_all_kinds_come_back_exactly(seed):
    draw = random.Random(seed)
    prompts = [prompt(draw) for _ in range(3)]
    value = {"prompts": [*prompts, prompts[0]], "outputs": [output(draw) for _ in range(4)]}
    back = there_and_back(value)
    assert same(value, back)
    assert back["prompts"][0] is back["prompts"][3] and back["prompts"][0] is not back["prompts"][1]
    assert same(value, copy_value(value))  # and so do the copies for a reward in the run's own process


def test_the_draws_fill_every_field_of_every_class():
    """Otherwise a field that is left out would not be missed."""
    filled: set[tuple[type, str]] = set()

    def visit(value: Any) -> None:
        if is_dataclass(value) and not isinstance(value, type):
            for f in fields(value):
                part = getattr(value, f.name)
                if isinstance(part, torch.Tensor) or part not in (None, "", 0, False, {}, ()):
                    filled.add((type(value), f.name))
                visit(part)
        elif isinstance(value, tuple):
            for entry in value:
                visit(entry)

    for seed in range(50):
        draw = random.Random(seed)
        for one in [*(prompt(draw) for _ in range(3)), *(output(draw) for _ in range(4))]:
            visit(one)
    assert filled == {(kind, f.name) for kind in VALUES for f in fields(kind)}


def test_what_only_python_has_comes_back_too():
    value = {
        (1, None): b"\x00\xff",
        2: np.arange(6, dtype=np.int16).reshape(2, 3)[:, ::-1],
        "tuple": (1, [2.5], {"dict": [[1, 2]]}),
        "looks like a tag": {"object": 0},
        "parameter": torch.nn.Parameter(torch.ones(2)),
    }
    back = there_and_back(value)
    assert same({**value, "parameter": torch.ones(2)}, back)
    assert there_and_back([np.int64(3), np.float32(0.5), np.bool_(True)]) == [3, 0.5, True]


@pytest.mark.parametrize("dtype", [*FLOATS, *OTHERS])
@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (2, 3)])
def test_tensors_of_every_type_and_shape_come_back(dtype, shape):
    values = (torch.rand(shape, generator=torch.Generator().manual_seed(0)) * 9).to(dtype)
    assert same(values, there_and_back(values))


def test_views_of_one_picture_are_sent_as_what_they_show():
    batch = torch.arange(24.0).reshape(2, 3, 2, 2)
    first, second = there_and_back([Image(batch[0]), Image(batch[1].flip(2))])
    assert torch.equal(first.pixels, batch[0]) and torch.equal(second.pixels, batch[1].flip(2))


@pytest.mark.parametrize("value", [object(), {1, 2}, 1j, lambda: 0, Prompt("", meta={"deep": [object()]})])
def test_what_no_message_can_hold_is_named(value):
    with pytest.raises(TypeError, match="no message"):
        list(frames([value]))


def test_copies_have_tensors_of_their_own_unless_told_otherwise():
    output = Image(torch.zeros(3, 1, 1))
    assert copy_value(output).pixels is not output.pixels
    assert copy_value(output, tensors=False).pixels is output.pixels
