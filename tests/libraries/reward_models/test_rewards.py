"""Rewards by name, and those for pictures that need no weights of their own."""

from __future__ import annotations

import functools
import importlib
import math
import sys
from dataclasses import is_dataclass
from typing import Any, cast

import numpy as np
import pytest
import torch
from PIL import Image as Pil
from PIL import ImageDraw, ImageFont

from mmgrpo.rewards import scorer, scorers
from mmgrpo.scoring import score_outputs
from mmgrpo.scoring.isolation import copy_value
from mmgrpo.types import Audio, Image, Media, Output, Prompt, Text, Turn, Video
from reward_models import REWARDS
from tests.libraries.reward_models.rules.test_tasks import GOLD, ROW

GREY = Image(torch.full((3, 64, 64), 0.5))
PROMPT = Prompt("a picture", "1", answer="HELLO")


def of_rooms(*rooms: str) -> set[str]:
    """Rewards whose function stands in one of these folders."""
    return {name for name, entry in REWARDS.items() if entry.function.split(".")[1] in rooms}


NEEDED = {
    "bmas": "(model='models/Qwen2.5-VL-3B-Instruct')",
    "soft_overlong": "(max_tokens=8, buffer=2)",
    "cosine_length": "(max_tokens=8)",
    "code_weighted": "(alpha=2, sigma=0.1, delta=0)",
    "json_struct": "(keys=1)",
    "auxiliary": "(gap=0.1)",
    "runaway": "(n=3, times=3)",
    "answer_is": "(value='3')",
    "cluster_rarity": "(clusters=2, sigma=1.0)",
    "frames": "(reward='jpeg_compressibility')",
    "sound": "(reward='seconds')",
    "geneval": "(detector='reward_models.objects.scenes:detect')",
    "mps": "(weights='MPS.safetensors')",
    "aesthetic": "(head='head.safetensors')",
    "artifact": "(head='head.safetensors')",
    "d2_align": "(direction='direction.safetensors')",
    "served": "(reward='ocr')",
    "preference": "(weights='head.safetensors')",
    "text_classifier": "(model='a/b')",
    "regularized_relevance": "(embed='module:function')",
    "routed_step": "(embed='module:function')",
    **dict.fromkeys(of_rooms("judges"), "(judge=\"vlm(model='m')\")"),
    "judge_rubric": "(judge=\"vlm(model='m')\", criteria=['light'])",
    "edit_reward": "(weights='w', instructions='prompts.py')",
    "face_identity": "(embed='tests.libraries.reward_models.objects.test_faces:faces')",
    "win_rate": "(reward='jpeg_compressibility')",
    "videoscore": "(instruction='i.txt')",
    "frechet": "(exemplars='e.safetensors')",
    "transport": "(embed_text='a:b', embed_parts='a:c')",
    "transported": "(map='m.safetensors', embed_text='a:b', embed='a:c')",
    "by_task": "(tasks=['exact'], reward='repetition')",
}
NEED_MODELS = {
    "ocr",
    "speaker_similarity",
    "dnsmos",
    "served",
    "preference",
    "text_classifier",
    "regularized_relevance",
    "routed_step",
    "bmas",
}
NEED_MODELS |= {"token_entropy", "confident_majority", "certain", "answer_likelihood"}  # of what a policy records
NEED_MODELS |= {name for name, entry in REWARDS.items() if cast(Any, entry.read_manifest()).weights}
NEED_MODELS |= of_rooms("clip", "judges", "sets", "vlm")
"""Rewards of models and of several outputs, whose own tests call them."""


def noise(size: int = 64) -> Image:
    return Image(torch.rand(3, size, size, generator=torch.Generator().manual_seed(0)))


@pytest.mark.parametrize("name", [name for name in REWARDS if name != "served"])  # it asks its server for its name
def test_every_known_name_is_a_documented_function(name):
    module, function = REWARDS[name].function.split(":")
    assert getattr(importlib.import_module(module), function).__doc__
    made = scorer(name + NEEDED.get(name, ""))
    assert (made.name, made.weight) == (name, 1.0)


def test_weight_and_parameters_are_read_from_the_text():
    made = scorer("jpeg_incompressibility(weight=0.5, quality=10)")
    assert (made.name, made.weight) == ("jpeg_incompressibility", 0.5)
    both: Any = made.fn([PROMPT], [noise()]), scorer("jpeg_incompressibility").fn([PROMPT], [noise()])
    (small,), (large,) = both
    assert small < large / 2
    assert scorer("ocr(weight=0)").weight == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ocrr", "rewards.*'ocrr'.*'ocr'"),
        ("ocr(size=3)", "'ocr'.*'size'"),
        (
            "jpeg_compressibility(qualty=3)",
            "qualty.*quality.*cache",
        ),
        ("no_such_package.rewards:best", "no_such_package.*PYTHONPATH"),
        ("reward_models.ocr:orc", r"reward_models\.ocr.*'orc'.*'ocr'"),
        ("ocr(weight=high)", r"ocr\(weight=high\)"),
        ("ocr(weight='high')", "rewards.*'ocr'.*weight"),
        ("ocr(weight=inf)", "rewards.*'ocr'.*weight"),
        ("ocr(timeout=0)", "rewards.*'ocr'.*timeout"),
        ("ocr(timeout='1')", "rewards.*'ocr'.*timeout"),
        ("ocr(process=1)", "rewards.*'ocr'.*process"),
        ("ocr(process=False, timeout=1)", "rewards.*'ocr'.*timeout"),
        ("soft_overlong", "soft_overlong.*function.*max_tokens"),
        (
            "os:abort(process=False)",
            "os:abort.*Python",
        ),
        ("torch:pi(process=False)", "torch:pi.*float"),
        ("ocr(1)", r"name\(parameter=value"),
    ],
)
def test_a_reward_that_cannot_be_found_is_told_with_what_is_known(text, message, copied):
    with pytest.raises(ValueError, match=message):
        scorer(text)


def test_several_rewards_keep_their_order_and_have_names_of_their_own():
    made = scorers(["ocr(weight=0.3)", "jpeg_compressibility"])
    assert [(one.name, one.weight) for one in made] == [("ocr", 0.3), ("jpeg_compressibility", 1.0)]
    with pytest.raises(ValueError, match="'ocr'"):
        scorers(["ocr", "ocr(weight=0)"])
    with pytest.raises(ValueError, match="box_giou"):
        scorers([])


def test_a_function_of_your_own_is_named_by_its_module(tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").touch()
    (tmp_path / "mine" / "pictures.py").write_text(
        "def brightness(prompts, outputs, scale=1.0):\n"
        "    return [scale * float(output.pixels.mean()) for output in outputs]\n"
        "def _hidden(prompts, outputs):\n"
        "    return [0.0] * len(outputs)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    made = scorer("mine.pictures:brightness(weight=2, scale=10, process=False)")
    assert (made.name, made.weight) == ("brightness", 2.0)
    assert score_outputs([made], [PROMPT], [GREY]).values.tolist() == [[5.0]]
    with pytest.raises(ValueError, match="bright.*brightness"):
        scorer("mine.pictures:bright(process=False)")
    with pytest.raises(ValueError, match=r"mine\.pictures:brightness.*'scal'.*scale"):
        scorer("mine.pictures:brightness(scal=2, process=False)")
    sys.modules.pop("mine.pictures")


def test_a_reward_whose_package_is_missing_says_how_to_install_it(monkeypatch):
    from reward_models import ocr

    monkeypatch.setitem(sys.modules, "rapidocr", None)
    ocr._engine.cache_clear()
    with pytest.raises(RuntimeError, match=r"'ocr'.*\[rewards\]"):
        score_outputs([scorer("ocr")], [PROMPT], [GREY])


def test_noise_compresses_worse_than_a_gradient_and_a_gradient_worse_than_nothing():
    ramp = Image(torch.linspace(0, 1, 64).expand(3, 64, 64).contiguous())
    sizes: Any = scorer("jpeg_incompressibility").fn([PROMPT] * 3, [GREY, ramp, noise()])
    flat, smooth, rough = sizes
    assert flat < smooth < rough
    assert scorer("jpeg_compressibility").fn([PROMPT] * 3, [GREY, ramp, noise()]) == [-flat, -smooth, -rough]


def test_a_size_is_that_of_the_file_in_thousands_of_bytes(tmp_path):
    path = tmp_path / "noise.jpg"
    pixels = (noise().pixels * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
    Pil.fromarray(pixels).save(path, quality=95)
    (kilobytes,) = cast(Any, scorer("jpeg_incompressibility").fn([PROMPT], [noise()]))
    assert kilobytes == path.stat().st_size / 1000
    assert 4 < kilobytes < 12.3  # 64 x 64 pixels of 3 bytes are 12.288; noise cannot be packed into a third of it


@pytest.mark.parametrize("name", ["jpeg_compressibility", "jpeg_incompressibility", "ocr"])
def test_pictures_that_are_no_numbers_get_no_number(name):
    broken = Image(GREY.pixels.clone().index_fill(2, torch.tensor(0), math.nan))
    assert score_outputs([scorer(name)], [PROMPT], [broken]).valid.tolist() == [[False]]


@pytest.mark.parametrize("name", ["jpeg_compressibility", "ocr"])
def test_what_is_no_picture_is_an_error(name):
    with pytest.raises(RuntimeError, match="Text"):
        score_outputs([scorer(name)], [PROMPT], [Text("HELLO")])


def drawn(text: str, size: int) -> Image:
    """Black letters in the middle of a white square."""
    canvas = Pil.new("RGB", (size, size), "white")
    font = ImageFont.load_default(size=size // 5)
    ImageDraw.Draw(canvas).text((size / 2, size / 2), text, fill="black", font=font, anchor="mm")
    return Image(torch.from_numpy(np.asarray(canvas).copy()).permute(2, 0, 1) / 255)


@pytest.fixture
def read(monkeypatch):
    """The reward of one picture; the same picture is looked at once."""
    pytest.importorskip("rapidocr")
    from reward_models import ocr

    ocr._engine.cache_clear()
    monkeypatch.setattr(ocr, "read", functools.cache(ocr.read))

    def read(wanted: str, image: Image) -> float | None:
        (value,) = scorer("ocr").fn([Prompt("a sign", "1", answer=wanted)], [image])
        return value

    return read


@pytest.mark.slow
@pytest.mark.parametrize("size", [256, 64])
def test_a_word_is_read_whatever_the_size_of_the_picture(size, read):
    image = drawn("HELLO", size)
    assert read("HELLO", image) == 1.0
    assert read("hel lo", image) == 1.0  # case and spaces do not count
    assert read("BRICK", image) < 0.5
    assert read("HELLA", image) == pytest.approx(0.8)  # one of five letters is wrong
    assert read("HELL", image) == pytest.approx(0.75)  # one letter too many, of four
    assert read("I", image) == 0.0


@pytest.mark.slow
def test_a_picture_without_text_gets_nothing(read):
    assert read("HELLO", drawn("", 64)) == 0


def test_a_prompt_without_text_is_an_error_that_names_it():
    for prompt in (Prompt("a sign", "7"), Prompt("a sign", "7", answer=3), Prompt("a sign", "7", answer="  ")):
        with pytest.raises(
            RuntimeError,
            match="ocr.*'7'.*meta.text",
        ):
            score_outputs([scorer("ocr")], [prompt], [GREY])


@pytest.mark.parametrize(
    ("wanted", "seen", "similarity"),
    [
        ("hello", "Hello", 1.0),
        ("hello", "", 0.0),
        ("hello", "hallo", 0.8),  # one of five replaced
        ("hello", "hell", 0.8),  # one missing
        ("kitten", "sitting", 0.5),  # three edits of six
        ("ab", "xxxxxxxx", 0.0),  # eight edits of two
        ("open now", "OPENNOW", 1.0),
    ],
)
def test_similarity_is_one_minus_the_edit_distance_over_the_length(wanted, seen, similarity, monkeypatch):
    pytest.importorskip("rapidfuzz")
    from reward_models import ocr

    monkeypatch.setattr(ocr, "read", lambda image: seen)
    assert ocr.ocr([Prompt("a sign", meta={"text": wanted})], [GREY]) == [pytest.approx(similarity)]


ALIKE = {
    "maze_steps": "maze",
    "json_struct": "json_fields",
    **dict.fromkeys(("code_levels", "code_weighted"), "code"),
}
"""Rewards to the task whose gold answer they take."""

EDITED = ("scene_edit_all", "scene_edit_follows", "scene_edit_score", "unchanged_outside", "face_identity")
"""Rewards of images that are edited."""


def same(one: Any, other: Any) -> bool:
    """Whether two outputs, or parts of them, are equal to the last bit."""
    if torch.is_tensor(one):
        return torch.equal(one, other)
    return all(map(same, vars(one).values(), vars(other).values())) if is_dataclass(one) else one == other


@pytest.mark.parametrize("name", [name for name in REWARDS if name not in NEED_MODELS])
def test_no_reward_of_the_package_changes_what_it_is_given(name):
    """They are given the tensors of the outputs, not copies (``Scorer.trusted``)."""
    if name.startswith("json_s"):
        pytest.importorskip("jsonschema")
    gold, answer = cast(Any, GOLD).get(ALIKE.get(name, name), ("3", "3"))
    meta = {
        **ROW,
        "keywords": ["a"],
        "key_steps": [["a"]],
        "options": ["3", "x"],
        "budget": 512,
        "rules": [{"words": [1, 9]}],
    }
    sine = torch.sin(torch.arange(32_000) / 9)
    outputs: list[Output] = {
        "Text": [Text(f"<think>a</think><answer>{answer}</answer>", 5), Text("a b c a b c", 7)],
        "Image": [noise(32), Image(torch.ones(3, 32, 32))],
        "Video": [Video(noise(16).pixels.repeat(4, 1, 1, 1), 2.0), Video(torch.ones(4, 3, 16, 16), 2.0)],
        "Audio": [Audio(sine.view(2, -1), 16_000)] * 2,
    }[cast(Any, REWARDS[name].read_manifest()).scores[0]]
    if name == "strict_verdict":
        gold = "A"
    elif name in ("tool_format", "tool_match"):
        gold = [{"name": "zoom", "parameters": {"x": 1}}]
    elif name == "artifact_labels":
        gold = {"Whether Normal": True}
    elif name in ("box_precision", "box_recall"):
        gold = [{"bbox_2d": [0, 0, 9, 9], "label": "cat"}]
        outputs = [Text(str(gold)), Text("a")]
    elif name.startswith(("scene", "geneval")):
        gold = {"things": [[1, "red", "circle"]], "place": ""}
    elif name.startswith("film"):
        gold = [[1, "red", "circle", "left", ""]]
    elif name == "sound":
        outputs = [Video(torch.ones(4, 3, 16, 16), 2.0, Audio(sine[None], 16_000))] * 2
    turns: tuple[Turn, ...] = ()
    if name in EDITED:
        gold, meta["mask"] = {"colour": "red", "shape": "circle"}, [0, 0, 8, 8]
        turns = (Turn("user", (Media("image", noise(32)), "one red circle")),)
    prompts = [Prompt("one red circle", "1", gold, name if name in GOLD else "exact", meta, turns)] * 2
    before = copy_value([prompts, outputs])
    assert len(scorer(name + NEEDED.get(name, "")).fn(prompts, outputs)) == 2
    assert repr(before[0]) == repr(prompts)
    assert all(map(same, outputs, before[1]))
