"""Rows mutated at random: each is prompts that every later step can take, or one line that names the file and the row.

``MMGRPO_FAULTS=full`` tries 2,000 rows in place of 200, ``MMGRPO_FAULTS_SEED`` others than those of seed 0.
"""

from __future__ import annotations

import copy
import json
import os
import random
import re

import numpy as np
import pytest
from PIL import Image as Pil

from mmgrpo.cli import check_data
from mmgrpo.cli.errors import is_user_error
from mmgrpo.data.prompts import attempts, load_prompts, whole
from mmgrpo.data.rows import as_prompts
from mmgrpo.data.splits import content
from mmgrpo.data.values import CONTROL
from mmgrpo.types import Prompt
from pipelines.readable import same_medium

FULL = os.environ.get("MMGRPO_FAULTS") == "full"
ROWS = 2_000 if FULL else 200
SEED = int(os.environ.get("MMGRPO_FAULTS_SEED", "0"))

VALID = [
    # What draws and what speaks: a text, and what verifies it.
    {"text": "two red circles", "answer": 2, "task": "numeric", "id": "r"},
    {"prompt": "a cat", "meta": {"objects": [["cat", 1]], "weight": 0.5}},
    # What sees: the forms of messages.
    {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {
                "role": "user",
                "content": [
                    {"type": "image", "path": "a.png", "max_pixels": 401408},
                    {"type": "text", "text": "Where is the cat?"},
                ],
            },
        ],
        "task": "box_iou",
        "answer": [10, 20, 90, 80],
        "size": [480, 640],
    },
    {
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "video", "path": ["a.png", "a.png"], "fps": 2, "start": 0, "end": 30},
                    {"type": "text", "text": "When?"},
                ],
            }
        ],
        "task": "temporal_iou",
        "answer": [12.5, 17.0],
    },
    {"problem": "<image>Where?", "images": ["a.png"], "solution": "on the mat", "task": "exact"},
    {
        "conversations": [{"from": "human", "value": "<image>Where?"}, {"from": "gpt", "value": "here"}],
        "image": "a.png",
    },
    # What hears.
    {"text": "", "audio": "a.wav", "answer": "She painted her bedroom.", "meta": {"keywords": ["bedroom"]}},
    {"text": "<audio> or <audio>?", "audios": ["a.wav", {"path": "a.wav"}], "answer": "The first."},
]

STRINGS = [
    *(
        "",
        " ",
        "\0",
        "\ud800",
        "a\udfffb",
        "\u202e",
        "\n",
        "\x1b[2J",
        "é" * 40,
        "x" * 20_000,
        "🦆",
        "<image>",
        "<audio>",
    ),
    *(
        "../../etc/passwd",
        "/dev/zero",
        "/",
        ".",
        "a" * 5_000 + ".png",
        "/etc/hostname",
        "http://x/y.png",
        "user",
        "NaN",
    ),
]
VALUES = [None, True, -1, 0, 1e308, -0.5, 10**400, 1 << 70, [], {}, [[]], {"": None}, [None], *STRINGS]
LITERALS = [b"NaN", b"-Infinity", b"1e999", b"9" * 5_000, b"[" * 5_000, b'{"a":' * 2_000, b'"\\ud800"', b"\xff", b"\0"]


def places(node, path=()):
    """The paths of every value inside a row."""
    yield path
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        yield from places(value, (*path, key))


def changed(row, draw):
    """A copy of a row with one value replaced, removed, renamed, doubled or wrapped."""
    row = copy.deepcopy(row)
    *above, key = draw.choice([path for path in places(row) if path])
    node = row
    for step in above:
        node = node[step]
    match draw.randrange(6):
        case 0 | 1:
            node[key] = copy.deepcopy(draw.choice(VALUES))
        case 2:
            del node[key]
        case 3 if isinstance(node, dict):
            node[draw.choice([*STRINGS, *VALID[2], "image", "video", "audios", "fps", "frames"])] = node.pop(key)
        case 4:
            for _ in range(draw.choice([1, 2, 60])):
                node[key] = [node[key]] if draw.random() < 0.5 else {"path": node[key]}
        case _:
            node[key] = [node[key]] * draw.choice([2, 3, 50])
    return row


def damaged(line, draw):
    """The bytes of a line with some flipped, deleted, repeated, or replaced by what is no JSON."""
    content = bytearray(line)
    start = draw.randrange(len(content))
    end = min(len(content), start + draw.choice([1, 1, 2, 9]))
    match draw.randrange(4):
        case 0:
            content[start] ^= 1 << draw.randrange(8)
        case 1:
            del content[start:end]
        case 2:
            content[start:start] = content[start:end] * draw.choice([1, 2, 30])
        case _:
            values = [match.span() for match in re.finditer(rb'(?<=: )("[^"]*"|[\d.]+)', line)] or [(start, end)]
            first, last = draw.choice(values)
            content[first:last] = draw.choice(LITERALS)
    return bytes(content).replace(b"\n", b" ").replace(b"\r", b" ") or b"{"


@pytest.fixture(scope="module")
def lines():
    draw = random.Random(SEED)
    mutants = []
    for number in range(ROWS):
        row = draw.choice(VALID)
        for _ in range(draw.choice([1, 1, 2, 3])):
            row = changed(row, draw) if row else row
        line = json.dumps(row, ensure_ascii=draw.random() < 0.8).encode("utf-8", "surrogatepass")
        mutants.append(damaged(line, draw) if number % 2 else line)
    return mutants


@pytest.fixture
def data(tmp_path, lines):
    """A file of the mutants; next to it are the media that valid rows name."""
    import soundfile

    Pil.new("RGB", (64, 48), "red").save(tmp_path / "a.png")
    soundfile.write(tmp_path / "a.wav", np.sin(np.arange(8_000) * 0.1) / 2, 16_000)
    (tmp_path / "rows.jsonl").write_bytes(b"\n".join(lines))
    return tmp_path / "rows.jsonl"


def assert_one_line(error, beginning):
    with pytest.raises(ValueError) as raised:
        whole([("", error)])  # as a run meets it
    assert raised.value is error
    assert is_user_error(error), f"{beginning} {type(error).__name__}: {error}"
    assert str(error).startswith(beginning) and not CONTROL.search(str(error)) and len(str(error)) < 1_000, repr(
        str(error)
    )


def assert_usable(prompt):
    """What later steps do with a prompt: write it, hash it, tell its media apart."""
    assert isinstance(prompt, Prompt) and isinstance(prompt.text, str) and not CONTROL.search(prompt.id)
    written = json.dumps([prompt.text, prompt.id, prompt.answer, prompt.task, dict(prompt.meta)], allow_nan=False)
    assert json.loads(written)[0] == prompt.text and prompt.text.encode() is not None
    hash(content(prompt))
    for medium in prompt.media:
        hash(same_medium(medium))


def test_a_mutated_line_is_a_prompt_or_one_line_that_names_it(data):
    read = dict(attempts(data))
    assert len(read) > 0.9 * ROWS
    prompts = [prompt for prompt in read.values() if isinstance(prompt, Prompt)]
    assert 0.1 * ROWS < len(prompts) < 0.9 * ROWS  # both outcomes occur
    for place, prompt in read.items():
        if isinstance(prompt, Prompt):
            assert_usable(prompt)
        else:
            assert_one_line(prompt, f"{place}: ")
    first = next(error for error in read.values() if isinstance(error, ValueError))
    with pytest.raises(ValueError, match="^" + re.escape(str(first)) + "$"):
        load_prompts(data)


def test_the_same_rows_given_in_memory_fare_alike(data, lines):
    refused = 0
    for (place, outcome), line in zip(attempts(data), [line for line in lines if line.strip()], strict=True):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        try:
            assert_usable(as_prompts([row])[0])
        except ValueError as error:
            assert_one_line(error, "prompts[0]: ")
            refused += 1
            # Null is an absent column in memory, as in data sets; twice the same id or key are of the file.
            absent = isinstance(row, dict) and None in row.values()
            assert isinstance(outcome, ValueError) or absent, f"{place}: {error}"
    assert refused


def test_a_check_of_mutated_rows_ends_with_a_list_of_problems(data, capsys):
    with pytest.raises(SystemExit) as end:
        check_data.main([str(data), "--skipped", str(data.with_name("bad.jsonl"))])
    listed = [json.loads(line) for line in data.with_name("bad.jsonl").read_text().splitlines()]
    assert end.value.code == 1 and f"{len(listed)} rows" in capsys.readouterr().out
    assert len(listed) > 0.3 * ROWS and not any(CONTROL.search(row["reason"]) for row in listed)
