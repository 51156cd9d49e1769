"""The bodies of requests: exact, without pickle and without paths; whatever else comes is refused by name."""

from __future__ import annotations

import base64
import io
import json
import math
import pickle
import random
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch
from safetensors.torch import save

from mmgrpo.scoring.envelope import FRAMES, JSON, Limits, Malformed, TooLarge, read, write
from mmgrpo.types import Audio, Call, Image, Media, Prompt, Text, Turn, Video
from tests.unit.scoring.serving import pictures

LIMITS = Limits()
PROMPT = Prompt("a red circle", "7", {"count": [1, 2.5, None, True]}, "count", {"nested": {"a": "ä"}})


def frames(body: dict[str, Any], *media: bytes) -> bytes:
    return b"".join(len(one).to_bytes(8, "big") + one for one in (json.dumps(body).encode(), *media))


def body(**output: Any) -> dict[str, Any]:
    """A request for one output."""
    return {
        "version": 1,
        "reward": "r",
        "prompts": [{"text": "a"}],
        "outputs": [{"id": "0", "prompt": 0, **(output or {"text": "b"})}],
    }


def png(levels: np.ndarray) -> bytes:
    stream = io.BytesIO()
    PIL.Image.fromarray(levels).save(stream, "PNG")
    return stream.getvalue()


def test_prompts_and_outputs_arrive_bit_for_bit_and_prompts_that_were_one_are_one():
    odd = torch.tensor([0.1, 1e-40, -0.0, float("nan")]).repeat(3, 1)
    sent = [
        Text("b", 3, True, ((4, 5), (6, 7))),
        Image(odd[:, None, :], "a plan"),
        Video(pictures(1)[0].pixels[None].repeat(2, 1, 1, 1), 7.5, Audio(odd[:2], 8_000)),
        Audio(odd, 16_000),
    ]
    prompts = [PROMPT, PROMPT, Prompt("b"), Prompt("b")]
    got = read(FRAMES, write("r", prompts, sent, ["w", "x", "y", "z"]), LIMITS)
    assert (got.reward, list(got.ids), list(got.prompts)) == ("r", ["w", "x", "y", "z"], prompts)
    assert got.prompts[0] is got.prompts[1] and got.prompts[2] is not got.prompts[3]
    text, image, video, audio = got.outputs
    assert text == sent[0] and image.words == "a plan" and video.fps == 7.5 and audio.rate == 16_000
    assert video.sound.rate == 8_000
    media = ((image.pixels, sent[1].pixels), (video.frames, sent[2].frames), (audio.samples, odd))
    for there, here in (*media, (video.sound.samples, odd[:2])):
        assert torch.equal(there.contiguous().view(torch.int32), here.contiguous().view(torch.int32))


def test_a_client_in_any_language_may_send_json_with_base64():
    levels = np.arange(3 * 4 * 5, dtype=np.uint8).reshape(4, 5, 3) * 4
    medium = base64.b64encode(png(levels)).decode()
    expected = torch.from_numpy(levels).permute(2, 0, 1) / 255
    (image,) = read(f"{JSON}; charset=utf-8", json.dumps(body(image=medium)).encode(), LIMITS).outputs
    assert torch.equal(image.pixels, expected)
    (video,) = read(JSON, json.dumps(body(video=[medium, medium], fps=8)).encode(), LIMITS).outputs
    assert torch.equal(video.frames, torch.stack([expected, expected])) and video.fps == 8.0


def test_what_is_not_base64_is_refused_and_not_passed_over():
    medium = base64.b64encode(png(np.zeros((2, 2, 3), np.uint8))).decode()
    with pytest.raises(Malformed, match="base64"):
        read(JSON, json.dumps(body(image=f"{medium[:8]}!{medium[8:]}")).encode(), LIMITS)


def test_sound_may_be_flac():
    soundfile = pytest.importorskip("soundfile")
    steps = np.array([[0, -32768], [1, 32767], [-5, 12]], dtype=np.int16)
    stream = io.BytesIO()
    soundfile.write(stream, steps, 8000, format="FLAC", subtype="PCM_16")
    (audio,) = read(FRAMES, frames(body(audio=1, rate=8000), stream.getvalue()), LIMITS).outputs
    assert torch.equal(audio.samples, torch.from_numpy(steps.T.copy()) / 32768)
    with pytest.raises(Malformed, match=r"outputs\[0\].audio.*FLAC.*8000.*16000"):
        read(FRAMES, frames(body(audio=1, rate=16000), stream.getvalue()), LIMITS)
    with pytest.raises(Malformed, match="damaged FLAC"):
        read(FRAMES, frames(body(audio=1, rate=8000), b"fLaC" + b"\0" * 60), LIMITS)


def test_no_more_of_a_flac_is_decoded_than_shows_that_it_is_too_large(monkeypatch):
    soundfile = pytest.importorskip("soundfile")
    stream, counts = io.BytesIO(), []
    soundfile.write(stream, np.zeros((1000, 2), np.int16), 8000, format="FLAC", subtype="PCM_16")
    decode = soundfile.SoundFile.read

    def counted(self: Any, count: int, **keywords: Any) -> Any:
        counts.append(count)
        return decode(self, count, **keywords)

    monkeypatch.setattr(soundfile.SoundFile, "read", counted)
    with pytest.raises(TooLarge):
        read(FRAMES, frames(body(audio=1, rate=8000), stream.getvalue()), Limits(decoded=400))
    assert counts == [51]  # 400 bytes are 50 samples of two channels of four bytes


def test_media_of_prompts_are_sent_from_memory_and_never_read_from_files():
    inside = Prompt("what", turns=(Turn("user", (Media("image", pictures(1)[0], {"max_pixels": 64}), "is this")),))
    (prompt,) = read(FRAMES, write("r", [inside], [Text("a")], ["0"]), LIMITS).prompts
    assert torch.equal(prompt.media[0].source.pixels, inside.media[0].source.pixels)
    assert prompt.media[0].options == {"max_pixels": 64} and prompt.turns[0].parts[1] == "is this"
    file = Prompt("what", "p1", turns=(Turn("user", (Media("image", "/etc/passwd"), "is this")),))
    with pytest.raises(ValueError, match="'p1'.*/etc/passwd"):
        write("r", [file], [Text("a")], ["0"])
    (prompt,) = read(FRAMES, write("r", [file], [Text("a")], ["0"], media=False), LIMITS).prompts
    assert prompt.turns == (Turn("user", ("is this",)),)
    forged = body()
    forged["prompts"][0]["turns"] = [{"role": "user", "parts": [{"kind": "image", "source": "/etc/passwd"}]}]
    with pytest.raises(Malformed, match="source.*'/etc/passwd'"):
        read(FRAMES, frames(forged), LIMITS)


@pytest.mark.parametrize("answer", [(1, 2), {1: "a"}, torch.zeros(1), np.float32(1), b"x", {"a": {"b": {3}}}])
def test_what_json_would_change_is_refused(answer):
    with pytest.raises(ValueError, match="'p'.*answer"):
        write("r", [Prompt("a", "p", answer)], [Text("b")], ["0"])


def broken(**changes: Any) -> dict[str, Any]:
    return {**body(), **changes}


@pytest.mark.parametrize(
    ("content", "media", "words"),
    [
        ([], (), "the request: got '[]' (list), expected an object"),
        ({}, (), "the request: has no 'version'"),
        (broken(version=2), (), "version: got 2, expected 1"),
        (broken(version=True), (), "version: got 'True' (bool), expected int"),
        (broken(reward=None), (), "reward: got 'None' (NoneType), expected str"),
        (broken(prompts=[{}]), (), "prompts[0]: has no 'text'"),
        (broken(prompts=[{"text": "a", "meta": []}]), (), "prompts[0].meta: got '[]' (list), expected dict"),
        (broken(prompts=[{"text": "a", "turns": [1]}]), (), "prompts[0].turns[0]: got '1' (int), expected an object"),
        (broken(prompts=[]), (), "outputs[0].prompt: got 0, expected 0 to -1"),
        (broken(outputs=[{"id": 1, "prompt": 0, "text": "b"}]), (), "outputs[0].id: got '1' (int), expected str"),
        (broken(outputs=2 * body()["outputs"]), (), "outputs: got an id twice"),
        (body(text="a", image=1), (), "outputs[0]: got the fields ['image', 'text'], expected an output"),
        (body(text="a", rate=1), (), "outputs[0]: got the fields ['rate', 'text'], expected an output"),
        (body(text="a", seen=[[1]]), (), "outputs[0].seen: got '[[1]]' (list), expected a list of [height, width]"),
        (body(image=1), (), "outputs[0].image: got '1' (int), expected the number of a frame, 1 to 0"),
        (body(image=0), (b"x",), "outputs[0].image: got '0' (int), expected the number of a frame, 1 to 1"),
        (body(image="/etc/passwd"), (b"x",), "outputs[0].image: got '/etc/passwd' (str), expected the number"),
        (body(image=1), (b"x",), "outputs[0].image: got neither PNG nor FLAC nor safetensors"),
        (body(image=1), (save({"a": torch.zeros(3, 2, 2).half()}),), "got ['torch.float16'], expected one tensor"),
        (body(image=1), (save({"a": torch.zeros(1), "b": torch.zeros(1)}),), "expected one tensor of float32"),
        (body(image=1), (save({"a": torch.zeros(4, 2, 2)}),), "got the shape [4, 2, 2], expected [3, height, width]"),
        (body(image=1), (save({"a": torch.zeros(3, 0, 2)}),), "got the shape [3, 0, 2], expected [3, height, width]"),
        (body(image=1), (png(np.zeros((2, 2, 4), np.uint8)),), "got a PNG of mode RGBA, expected RGB of 8 bits"),
        (body(image=1), (png(np.zeros((9, 9, 3), np.uint8))[:-30],), "got a damaged PNG"),
        (body(video=1, fps=0), (save({"a": torch.zeros(1, 3, 2, 2)}),), "fps: got 0.0, expected a positive number"),
        (body(video=[], fps=1), (), "outputs[0].video: got 0 frames, expected at least one"),
        (body(audio=1, rate=0), (save({"a": torch.zeros(1, 2)}),), "rate: got '0' (int), expected 1 to 192,000"),
        (body(audio=1, rate=9), (save({"a": torch.zeros(2)}),), "got the shape [2], expected [channels, samples]"),
        (body(video=1, fps="8"), (), "outputs[0].fps: got '8' (str), expected int or float"),
        (body(video=1, fps=math.inf), (), "outputs[0].fps: got inf, expected a positive number"),
        (body(video=1, fps=-1), (), "outputs[0].fps: got -1.0, expected a positive number"),
        (body(video=1, fps=1), (save({"": torch.zeros(3, 2, 2)}),), "[3, 2, 2], expected [frames, 3, height, width]"),
        (body(video=1, fps=1), (save({"": torch.zeros(2, 1, 2, 2)}),), "[2, 1, 2, 2], expected [frames, 3, height"),
        (body(image=1), (save({"": torch.zeros(2, 3, 2, 2)}),), "[2, 3, 2, 2], expected [3, height, width]"),
        (body(image=1), (save({"": torch.zeros(3, 2, 0)}),), "[3, 2, 0], expected [3, height, width]"),
        (body(audio=1, rate=1), (save({"": torch.zeros(0, 2)}),), "[0, 2], expected [channels, samples]"),
        (body(audio=1, rate=-3), (), "outputs[0].rate: got '-3' (int), expected 1 to 192,000"),
        (
            body(video=[1, 2], fps=1),
            (save({"": torch.zeros(3, 2, 2)}), save({"": torch.zeros(3, 2, 1)})),
            "outputs[0].video: got 2 frames, expected at least one, and all of one size",
        ),
        (body(image=2), (b"x",), "outputs[0].image: got '2' (int), expected the number of a frame, 1 to 1"),
        (body(image=True), (b"x",), "outputs[0].image: got 'True' (bool), expected the number of a frame"),
        (body(text="a", seen=[3]), (), "outputs[0].seen: got '[3]' (list), expected a list of [height, width]"),
        (body(text="a", seen=[[1, 2.0]]), (), "outputs[0].seen: got '[[1, 2.0]]' (list)"),
        (body(text="a", seen=[[1, 2], [1, 2, 3]]), (), "outputs[0].seen: got '[[1, 2], [1, 2, 3]]' (list)"),
        (body(text="a", calls=[{"name": 3}]), (), "outputs[0].calls[0].name: got '3' (int)"),
        (body(text="a", calls=[{"arguments": []}]), (), "outputs[0].calls[0].arguments: got '[]' (list)"),
        (body(text="a", turns=[{"role": "tool"}]), (), "outputs[0].turns[0]"),
        (body(tokens=3), (), "outputs[0]: got the fields ['tokens'], expected an output"),
        (body(image=1, fps=1), (b"x",), "outputs[0]: got the fields ['fps', 'image'], expected an output"),
        (body(text="a", truncated=1), (), "outputs[0].truncated: got '1' (int), expected bool"),
        (broken(outputs=[{"id": "0", "prompt": -1, "text": "b"}]), (), "outputs[0].prompt: got -1, expected 0 to 0"),
        (broken(outputs=[{"id": "0", "prompt": 1, "text": "b"}]), (), "outputs[0].prompt: got 1, expected 0 to 0"),
    ],
)
def test_a_malformed_request_is_refused_and_the_place_named(content, media, words):
    with pytest.raises(Malformed) as error:
        read(FRAMES, frames(content, *media), LIMITS)
    assert words in str(error.value)


def test_other_contents_are_refused():
    for kind in ("application/octet-stream", "application/x-pickle", "text/plain", ""):
        with pytest.raises(Malformed, match="content type"):
            read(kind, frames(body()), LIMITS)
    for content in (b"", b"{", b"[" * 100_000, b'{"version": ' + b"9" * 5000 + b"}", b"\xff"):
        with pytest.raises(Malformed):
            read(JSON, content, LIMITS)
        with pytest.raises(Malformed):
            read(FRAMES, len(content).to_bytes(8, "big") + content, LIMITS)


def test_no_pickle_is_read(tmp_path):
    class Touch:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "executed",)

    content = pickle.dumps(Touch())
    encoded = base64.b64encode(content).decode()
    for kind, request in (
        (JSON, content),
        (FRAMES, content),
        (FRAMES, frames(body(image=1), content)),
        (JSON, json.dumps(body(image=encoded)).encode()),
    ):
        with pytest.raises(Malformed):
            read(kind, request, LIMITS)
    assert not (tmp_path / "executed").exists()
    pickle.loads(content)
    assert (tmp_path / "executed").exists(), "the pickle does nothing, so the test shows nothing"


def test_a_damaged_request_is_refused_wherever_the_damage_is():
    """Each byte cut or changed: the request is refused, or is one (of other pixels); nothing else happens."""
    whole = write("r", [PROMPT], [Image(torch.rand(3, 2, 2))], ["0"])
    for cut in range(len(whole)):
        with pytest.raises(Malformed):
            read(FRAMES, whole[:cut], LIMITS)
    chance, refused = random.Random(0), 0
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 1 << chance.randrange(8)
        try:
            read(FRAMES, bytes(changed), LIMITS)
        except (Malformed, TooLarge):
            refused += 1
    assert refused > 100


def test_a_picture_that_is_too_large_is_refused_before_it_is_decompressed():
    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    # The header of a picture of so many pixels, and none of them.
    for side, words in ((6000, "6000 x 6000.*16,777,216"), (30000, "900000000")):
        bomb = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
        with pytest.raises(TooLarge, match=words):
            read(FRAMES, frames(body(image=1), bomb + chunk(b"IDAT", b"") + chunk(b"IEND", b"")), LIMITS)
    with pytest.raises(TooLarge, match="3 x 2 pixels.*5"):
        read(FRAMES, frames(body(image=1), save({"": torch.zeros(3, 2, 3)})), Limits(pixels=5))


def test_one_medium_that_is_sent_once_and_named_often_is_counted_as_often():
    several = body()
    several["outputs"] = [{"id": str(i), "prompt": 0, "image": 1} for i in range(3)]
    medium = png(np.zeros((2, 2, 3), np.uint8))  # 48 bytes as floats
    assert len(read(FRAMES, frames(several, medium), Limits(decoded=144)).outputs) == 3
    with pytest.raises(TooLarge, match=r"outputs\[2\].image.*over 143"):
        read(FRAMES, frames(several, medium), Limits(decoded=143))
    with pytest.raises(TooLarge, match="outputs.*3.*2"):
        read(FRAMES, frames(several, medium), Limits(outputs=2))


def test_an_answer_may_be_yes_and_a_number_may_be_whole():
    asked = body(video=1, fps=2)
    asked["prompts"][0]["answer"] = True
    (request,) = [read(FRAMES, frames(asked, save({"": torch.zeros(2, 3, 1, 1)})), LIMITS)]
    assert request.prompts[0].answer is True and request.outputs[0].fps == 2.0


def test_the_beginning_of_an_answer_arrives_where_there_is_one():
    sent = [Text("4", prefilled="<think>\n"), Text("4")]
    assert list(read(FRAMES, write("r", [PROMPT] * 2, sent, ["a", "b"]), LIMITS).outputs) == sent
    assert b"prefilled" not in write("r", [PROMPT], sent[1:], ["b"])  # which an older server does not know


def test_turns_and_calls_arrive_where_there_are_some():
    turns = (Turn("assistant", ("a",)), Turn("tool", ("7",)))
    sent = [Text("4", turns=turns, calls=(Call("add", {"x": [1, {"y": None}]}, "7"), Call("", {}, error="broken")))]
    assert list(read(FRAMES, write("r", [PROMPT], sent, ["a"]), LIMITS).outputs) == sent
    image = Media("image", pictures(1)[0])
    shown = Text("4", turns=(Turn("tool", ("7", image)),), calls=(Call("crop", {}, "7", images=(image,)),))
    (back,) = read(FRAMES, write("r", [PROMPT], [shown], ["a"]), LIMITS).outputs
    for one in (back.turns[0].parts[1], back.calls[0].images[0]):
        assert torch.equal(one.source.pixels, image.source.pixels)
    (back,) = read(FRAMES, write("r", [PROMPT], [shown], ["a"], media=False), LIMITS).outputs
    assert back.turns[0].parts == ("7",) and not back.calls[0].images
    for gave in (-0.5, 0.0):
        rewarded = [Text("4", tool_reward=gave)]
        assert read(FRAMES, write("r", [PROMPT], rewarded, ["a"]), LIMITS).outputs[0].tool_reward == gave
    failed = read(FRAMES, write("r", [PROMPT], [Text("4", tool_reward=math.nan)], ["a"]), LIMITS).outputs[0]
    assert math.isnan(failed.tool_reward)
    plain = write("r", [PROMPT], [Text("4")], ["a"])
    assert b"tool_reward" not in plain and b"calls" not in plain and b"turns" not in plain.partition(b"outputs")[2]


def test_media_are_as_large_as_the_limits_and_no_larger():
    picture, sound = save({"": torch.zeros(3, 2, 3)}), save({"": torch.zeros(2, 5)})
    for content, medium, exact, less in (
        (body(image=1), picture, Limits(pixels=6, decoded=72), Limits(decoded=71)),
        (body(image=1), png(np.zeros((2, 3, 3), np.uint8)), Limits(pixels=6, decoded=72), Limits(pixels=5)),
        (body(audio=1, rate=9), sound, Limits(decoded=40), Limits(decoded=39)),
    ):
        assert read(FRAMES, frames(content, medium), exact).outputs
        with pytest.raises(TooLarge):
            read(FRAMES, frames(content, medium), less)
    several = body()
    several["outputs"] = 2 * several["outputs"]
    several["outputs"][1] = {**several["outputs"][1], "id": "1"}
    assert len(read(FRAMES, frames(several), Limits(outputs=2)).ids) == 2


def test_a_sound_that_grows_when_it_is_unpacked_is_read_up_to_the_limit():
    soundfile = pytest.importorskip("soundfile")
    stream = io.BytesIO()
    soundfile.write(stream, np.zeros((1000, 2), np.int16), 8000, format="FLAC", subtype="PCM_16")
    request = frames(body(audio=1, rate=8000), stream.getvalue())
    assert read(FRAMES, request, Limits(decoded=8000)).outputs[0].samples.shape == (2, 1000)
    with pytest.raises(TooLarge, match="over 7,999"):
        read(FRAMES, request, Limits(decoded=7999))


def test_a_medium_is_a_text_in_json_and_a_number_in_frames():
    for content_type, medium in ((JSON, 1), (FRAMES, "AAAA")):
        content = json.dumps(body(image=medium)).encode()
        request = content if content_type == JSON else len(content).to_bytes(8, "big") + content
        with pytest.raises(Malformed, match=f"image.*'{medium}'"):
            read(content_type, request, LIMITS)


# ---- small requests that would become large, or take long


LIMITS = Limits()


def asking(**output: Any) -> dict[str, Any]:
    return {"version": 1, "reward": "x", "prompts": [{"text": "a"}], "outputs": [{"id": "0", "prompt": 0, **output}]}


def refusal(content: Any, *media: bytes, limits: Limits = LIMITS) -> str:
    """Why a request of frames is refused."""
    parts = [content if isinstance(content, bytes) else json.dumps(content).encode(), *media]
    body = b"".join(piece for part in parts for piece in (len(part).to_bytes(8, "big"), part))
    with pytest.raises((TooLarge, Malformed)) as error:
        read(FRAMES, body, limits)
    return str(error.value)


@pytest.mark.parametrize(
    ("output", "tensor", "words"),
    [
        ({"audio": 1, "rate": 10**9}, torch.zeros(1, 8), "rate: got '1000000000' (int), expected 1 to 192,000"),
        ({"audio": 1, "rate": 1}, torch.zeros(1, 1801), "got 1,801.0 s, expected at most 1800 s"),
        ({"audio": 1, "rate": 8000}, torch.zeros(17, 8), "got 17 channels, expected at most 16"),
        ({"video": 1, "fps": 1e-9}, torch.zeros(2, 3, 1, 1), "got 2 frames at 1e-09 per second, expected at most 1800"),
        ({"video": 1, "fps": 1e6}, torch.zeros(20_001, 3, 1, 1), "got 20,001 frames, expected at most 20,000"),
        ({"video": [1] * 20_001, "fps": 1e6}, torch.zeros(3, 1, 1), "got 20,001 frames, expected at most 20,000"),
        (
            {"text": "a", "tokens": 10**300},
            torch.zeros(1),
            "got a number of more than 38 digits (int) for a number of tokens",
        ),
        ({"text": "a", "tokens": -1}, torch.zeros(1), "'-1' (int) for a number of tokens"),
        ({"text": "a" * ((1 << 20) + 1)}, torch.zeros(1), "got 1,048,577 characters, expected at most 1,048,576"),
        ({"text": "a\ud800"}, torch.zeros(1), "outputs[0].text: got a lone surrogate"),
    ],
)
def test_lengths_rates_and_sizes_are_limited(output: dict[str, Any], tensor: torch.Tensor, words: str):
    assert words in refusal(asking(**output), save({"": tensor}))


def test_one_medium_is_not_decoded_again_and_again():
    several = asking(text="a") | {"outputs": [{"id": str(i), "prompt": 0, "image": 1} for i in range(4)]}
    words = refusal(several, save({"": torch.zeros(3, 1, 1)}), limits=Limits(media=3))
    assert "outputs[3].image: got more than 3 media" in words
