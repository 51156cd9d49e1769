"""What rewards do with what no model should answer, and what they ask of their engines."""

from __future__ import annotations

import math
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from mmgrpo.types import Image, Prompt, Text
from reward_models import ocr
from reward_models.rules import mathematics, tags

# Reading pictures


@pytest.mark.parametrize(
    ("size", "factor"),
    [((1, 200), 128), ((64, 200), 2), ((127, 400), 2), ((128, 128), 1), ((300, 129), 1), ((200, 43), 3)],
)
def test_a_picture_is_enlarged_until_its_shorter_side_has_128_pixels(size, factor, monkeypatch):
    seen: list[np.ndarray] = []

    def engine(pixels: np.ndarray) -> SimpleNamespace:
        seen.append(pixels)
        return SimpleNamespace(txts=("one", "Two"))

    monkeypatch.setattr(ocr, "_engine", lambda: engine)
    pixels = torch.rand(3, *size, generator=torch.Generator().manual_seed(0))
    assert ocr.read(Image(pixels)) == "one Two"
    [shown] = seen
    assert shown.shape == (size[0] * factor, size[1] * factor, 3) and shown.dtype == np.uint8
    # the pixel in the last row and column, nearest pixels, 255 levels
    assert shown[-1, -1].tolist() == shown[-factor, -factor].tolist() == (pixels[:, -1, -1] * 255).round().tolist()


def test_agreement_is_one_minus_the_distance_over_the_length_without_case_and_spaces(monkeypatch):
    texts = iter([("HEL", "lo"), (), None, ("hallo you",), ("x" * 40,)])
    monkeypatch.setattr(ocr, "_engine", lambda: lambda pixels: SimpleNamespace(txts=next(texts)))
    prompt, picture = Prompt("a sign", "a", answer="Hel lo"), Image(torch.zeros(3, 128, 128))
    # equal; nothing read, twice; one letter changed and three too many of five; more wrong than there is
    assert ocr.ocr([prompt] * 5, [picture] * 5) == pytest.approx([1.0, 0.0, 0.0, 1 - 4 / 5, 0.0])
    broken = Image(torch.full((3, 8, 8), math.nan))
    assert math.isnan(ocr.ocr([prompt], [broken])[0])
    with pytest.raises(TypeError, match="ocr.*Text.*Image"):
        ocr.ocr([prompt], [Text("hello")])
    assert ocr.target_text(Prompt("a", "a", answer="x", meta={"text": "y"})) == "y"
    for nothing in (None, " ", 3):
        with pytest.raises(ValueError, match="ocr.*'a'"):
            ocr.target_text(Prompt("a", "a", answer=nothing))


def test_the_engine_says_nothing_but_errors(monkeypatch):
    monkeypatch.setitem(sys.modules, "rapidocr", SimpleNamespace(RapidOCR=lambda params: params))
    assert ocr._engine.__wrapped__() == {"Global.log_level": "error"}


# Actions on a screen

CLICK = {"action": "click", "point": [3, 4], "input_text": ""}


@pytest.mark.parametrize(
    ("changes", "valid"),
    [
        ({}, True),
        ({"point": (3, 4)}, True),
        ({"action": "scroll", "input_text": "up"}, True),
        ({"action": "scroll", "input_text": "north"}, False),
        ({"action": "click", "input_text": "north"}, True),
        ({"action": "type", "input_text": " "}, False),
        ({"action": "select", "input_text": "a"}, True),
        ({"action": "open_app", "input_text": ""}, False),
        ({"action": 3}, False),
        ({"input_text": None}, False),
        ({"point": "3, 4"}, False),
        ({"point": [3]}, False),
        ({"point": [3, 4, 5]}, False),
        ({"point": [3.5, 4]}, False),
        ({"point": None}, False),
    ],
)
def test_an_action_has_a_kind_a_point_of_whole_numbers_and_a_text(changes, valid):
    assert tags._action({**CLICK, **changes}) is valid


def test_what_is_no_mapping_or_lacks_a_key_is_no_action():
    assert not any(tags._action(value) for value in (None, [CLICK], "click", 3))
    assert not any(tags._action({k: v for k, v in CLICK.items() if k != missing}) for missing in CLICK)


# How large a number is


def test_a_formula_of_a_thousand_characters_is_read_and_a_longer_one_is_not():
    pytest.importorskip("math_verify")
    longest = "11" + "+1" * 499
    assert len(longest) == 1000 and mathematics.read(f"${longest[:998]}$") != []
    assert mathematics.read(f"${longest[:998]}$ ") == [] == mathematics.read("")


@pytest.mark.parametrize(
    ("expression", "digits"),
    [
        ("Integer(1000)", 3.0),
        ("Integer(-1000)", 3.0),
        ("Integer(0)", 0.0),
        ("Rational(1, 100)", 2.0),
        ("Float(0.01)", 2.0),
        ("Float(0)", 0.0),
        ("Mul(1000, 10, evaluate=False)", 4.0),
        ("Add(1000, 10, evaluate=False)", 3.0),
        ("Pow(1000, 2, evaluate=False)", 3 * 10 ** math.log10(2)),
        ("Pow(2, 10000, evaluate=False)", 10**4),
        ("factorial(Integer(10) ** 5, evaluate=False)", math.inf),
        ("factorial(10, evaluate=False)", 10.0),
        ("Matrix([[1, 100], [10, 1]])", 2.0),
        ("zeros(0, 0)", 0.0),
        ("Symbol('x')", 0.0),
        ("'text'", 0.0),
    ],
)
def test_the_size_of_a_number_is_bounded_before_it_is_computed(expression, digits):
    sympy = pytest.importorskip("sympy")
    value = "text" if expression == "'text'" else sympy.sympify(expression, evaluate=False)
    if expression.startswith("Symbol"):
        value = sympy.Symbol("x")
    assert mathematics._digits(value) == pytest.approx(digits)


def test_a_voice_is_a_file(tmp_path):
    from mmgrpo.types import Audio, Media, Turn
    from reward_models.speech.speaker import reference_file

    def heard(source: object) -> Prompt:
        return Prompt("", "a", turns=(Turn("user", (Media("image", "a.png"), Media("audio", source))),))

    assert reference_file(heard("voice.flac"), "") == "voice.flac"
    assert reference_file(heard("voice.flac"), "other.flac") == "other.flac"
    for prompt in (heard(Audio(torch.zeros(1, 8), 8)), Prompt("", "a")):
        with pytest.raises(ValueError, match="'a'"):
            reference_file(prompt, "")


# Clicks


@pytest.mark.parametrize("x", [5, 10, 15, 20, 25])
@pytest.mark.parametrize("y", [15, 20, 25, 30, 35])
def test_a_click_counts_strictly_inside_of_its_box(x, y):
    from mmgrpo.rewards import scorer

    gold = {"action": "click", "box": [10, 20, 20, 30]}
    action = f'{{"action": "click", "point": [{x}, {y}], "input_text": "no input text"}}'
    prompt = Prompt("", "a", answer=gold, meta={"coordinates": "absolute"})
    assert scorer("gui_r1").fn([prompt], [Text(f"<think>x</think><answer>[{action}]</answer>")]) == [
        float(10 < x < 20 and 20 < y < 30)
    ]
