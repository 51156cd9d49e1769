"""The tab Rewards: what can be named, read and computed, what attacks do, and that nothing else happens."""

from __future__ import annotations

import io
import json
import math
import struct
import zlib
from base64 import b64decode
from pathlib import Path

import gradio as gr
import numpy as np
import pytest
import torch
from PIL import Image as Pil

from mmgrpo.cli import score as score_command
from mmgrpo.cli.demo import rewards, rewards_media
from mmgrpo.cli.demo import rewards_scoring as scoring
from mmgrpo.cli.demo.opened import Opened
from mmgrpo.data.limits import Unreadable
from mmgrpo.rewards import RewardEntry, entries
from mmgrpo.scoring import Scorer
from mmgrpo.scoring.manifest import Manifest
from mmgrpo.types import Audio, Image, Media, Prompt, Text, Turn, Video
from pipelines.visual.clips import mp4
from reward_models.evaluation.attacks import DAMAGES, STRENGTHS, damaged

PICTURE = Image(torch.rand(3, 24, 32, generator=torch.Generator().manual_seed(0)))
CLIP = Video(torch.rand(5, 3, 16, 16, generator=torch.Generator().manual_seed(0)), 4.0)
SOUND = Audio(torch.sin(torch.arange(1600) / 5)[None] / 2, 16_000)
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture
def picture(tmp_path) -> str:
    """A picture as a file."""
    file = tmp_path / "a.png"
    file.write_bytes(rewards_media.png(rewards_media.to_pil(PICTURE)))
    return str(file)


@pytest.fixture
def opened(tmp_path) -> Opened:
    return Opened({}, {}, tmp_path / "votes.jsonl")


@pytest.fixture
def wired(opened):
    """The functions behind the controls, by the name of the function."""
    with gr.Blocks() as page:
        rewards.tab(opened)
    return page


def function(page, name):
    (found,) = [one for one in page.fns.values() if one.name == name]
    return found


def score(name, output, answer="", prompt="how many?"):
    return scoring.score_one(name, scoring.prompt_of(prompt, answer, ""), output, "cpu")


# What can be named.


@pytest.mark.parametrize("name", ["os:system", "scene_score(weight=2)", "scene_scor", "", "served(reward='x')"])
def test_only_names_of_the_table_are_rewards(name):
    with pytest.raises(ValueError, match="no reward of the list"):
        scoring.known(["scene_score", name])


def test_all_rewards_are_listed_those_of_the_upload_first():
    names = [name for _, name in scoring.choices("Audio")]
    assert sorted(names) == sorted(entries())
    fits = ["Audio" in scoring.kinds(entries()[name]) for name in names]
    assert fits == sorted(fits, reverse=True) and any(fits) and not all(fits)
    here = [not scoring.missing(name) for name, fit in zip(names, fits, strict=True) if fit]
    assert here == sorted(here, reverse=True) and here[0] and not here[-1]
    labels = {name: label for label, name in scoring.choices()}
    assert labels["scene_score"] == "scene_score (pictures, 0 to 1)" and "not here" in labels["geneval"]


@pytest.mark.parametrize(
    "name, reason",
    [
        ("clip_score", "downloads openai/clip-vit-base-patch32 from the hub"),
        ("brisque", "downloads pypi:brisque from the package index"),
        ("spoken_neg_wer", "downloads pypi:whisper-tiny.en from the package index"),
        ("speaker_similarity", "of the prompt, which this page does not ask for"),
        ("geneval", "needs detector"),
        ("served", "needs reward"),
        ("judge_pairs", "compares the outputs of a prompt with each other"),
        ("decision_statistic", "the decisions of a policy"),
    ],
)
def test_what_is_missing_is_said_and_not_tried(name, reason, monkeypatch, tmp_path):
    """Where nothing has been downloaded yet."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("reward_models.wheels.CACHE", tmp_path)
    monkeypatch.setattr("pipelines.speech.whisper_weights.CACHE", tmp_path / "whisper")
    monkeypatch.setattr(scoring, "scorer", lambda *given: pytest.fail("it was loaded"))
    output = {"Text": Text("3"), "Image": PICTURE, "Audio": SOUND}[entries()[name].read_manifest().scores[0]]
    made = score(name, output)
    assert math.isnan(made.value) and made.reason.startswith("not computed: ") and reason in made.reason
    assert reason in scoring.manifest_html([name])


def test_weights_that_were_downloaded_are_not_missing(monkeypatch, tmp_path):
    monkeypatch.setattr("reward_models.wheels.CACHE", tmp_path)
    (tmp_path / "brisque-0.2.0").mkdir()
    assert not scoring.missing("brisque") and scoring.missing("niqe")


# Values.


def test_values_are_those_of_the_command(picture, capsys):
    score_command.main(["--reward", "jpeg_compressibility", "--json", "--device", "cpu", picture])
    value = float(capsys.readouterr().out.split('"jpeg_compressibility": ')[1].split("}")[0])
    assert np.float32(score("jpeg_compressibility", rewards_media.read_upload(picture, "")).value) == value
    assert score("exact", Text("<answer>3</answer>"), "3").value == 1
    assert score("exact", Text("<answer>4</answer>"), "3").value == 0


@pytest.mark.parametrize(
    "name, output, reason",
    [
        ("exact", Text("3"), "got answer None, expected a text or number"),
        ("exact", PICTURE, "scores texts, got image"),
        ("jpeg_compressibility", Text("3"), "scores pictures, got text"),
    ],
)
def test_what_fails_is_shown_as_failed_with_a_line(name, output, reason):
    made = score(name, output)
    assert math.isnan(made.value) and reason in made.reason and "\n" not in made.reason
    table = scoring.values_html([made])
    assert f"<td class='mm-number'>{scoring.FAILED}</td>" in table and reason in table


def test_nan_is_failed(monkeypatch):
    monkeypatch.setattr(scoring, "score_column", lambda *given: [math.nan])
    assert "could not score this output" in score("exact", Text("3"), "3").reason


def test_a_manifest_is_told_in_words():
    words = scoring.manifest_html(["pickscore"])
    assert "It scores pictures; its values are any number" in words and "licence: MIT" in words
    assert "Of the prompt it reads the text." in words and "Not computed here" in words


# Attacks.


@pytest.mark.parametrize("attack", DAMAGES)
def test_attacks_of_strength_1_are_those_of_the_evaluation(attack):
    _, changed = scoring.attacked(attack, 1.0, Prompt(""), PICTURE, "")
    assert torch.equal(changed.pixels, damaged(PICTURE, attack, np.random.default_rng(0)).pixels)
    _, clip = scoring.attacked(attack, 1.0, Prompt(""), CLIP, "")
    assert torch.equal(clip.frames, damaged(CLIP, attack, np.random.default_rng(0)).frames)


@pytest.mark.parametrize("attack", DAMAGES)
def test_a_stronger_attack_changes_more(attack):
    distances = [
        float((scoring.attacked(attack, strength, Prompt(""), PICTURE, "")[1].pixels - PICTURE.pixels).abs().mean())
        for strength in (scoring.WEAKEST, 1, scoring.STRONGEST)
    ]
    assert 0 < distances[0] < distances[1] < distances[2]


def test_strengths_are_told_in_their_own_units():
    assert scoring.describe("jpeg", 1) == f"JPEG of quality {STRENGTHS['jpeg']:.0f}"
    assert scoring.describe("jpeg", 4) == "JPEG of quality 2" and "0.3" in scoring.describe("noise", 2)
    with pytest.raises(ValueError, match="strength: got 5"):
        scoring.absolute("blur", 5)


def test_texts_are_padded_and_prompts_swapped():
    prompt = Prompt("a", answer="b")
    assert scoring.attacked("padding", 1, prompt, Text("x"), "")[1].text == "x\n\nx"
    swapped, output = scoring.attacked("prompt_swap", 1, prompt, PICTURE, "c")
    assert swapped == Prompt("c", answer="b") and output is PICTURE


@pytest.mark.parametrize(
    "attack, output, other, message",
    [
        (
            "padding",
            PICTURE,
            "",
            "padding attacks texts; for this upload choose blur, noise, jpeg, texture, prompt_swap",
        ),
        ("blur", SOUND, "", "blur attacks pictures and clips; for this upload choose prompt_swap"),
        ("prompt_swap", PICTURE, " ", "got no other prompt"),
        ("prompt_swap", PICTURE, "a", "got no other prompt"),
        ("melt", PICTURE, "", "got the attack 'melt'"),
    ],
)
def test_an_attack_that_does_not_apply_is_an_error(attack, output, other, message):
    with pytest.raises(ValueError, match=message):
        scoring.attacked(attack, 1, Prompt("a"), output, other)


def test_the_verdict_names_rewards_that_rose():
    """Up, equal, down, and one that failed."""
    before = [scoring.Score(name, 0.5) for name in "abc"] + [scoring.Score("d", math.nan, HOSTILE)]
    after = [scoring.Score("a", 0.6), scoring.Score("b", 0.5), scoring.Score("c", 0.4), scoring.Score("d", 0.4)]
    effects = [scoring.effect(*pair) for pair in zip(before, after, strict=True)]
    assert effects == ["rose", "unchanged", "fell", scoring.FAILED]
    assert scoring.effect(after[3], before[3]) == scoring.FAILED
    assert scoring.verdict("blur", before, after).startswith("a rose under blur")
    assert scoring.verdict("blur", before[1:3], after[1:3]) == "No reward rose under blur. b did not notice it."
    assert scoring.verdict("blur", before[3:], after[3:]) == "No chosen reward could score both."
    table = scoring.attack_html(before, after)
    assert table.count("▲ rose") == 1 and "+0.1" in table and "<img" not in table and "&lt;img" in table


# Uploads.


def test_an_upload_is_read_by_its_suffix(picture, tmp_path):
    assert torch.equal(rewards_media.read_upload(picture, "ignored").pixels, (PICTURE.pixels * 255).round() / 255)
    clip = tmp_path / "a.mp4"
    clip.write_bytes(mp4(CLIP))
    made = rewards_media.read_upload(str(clip), "")
    assert len(made.frames) == 5 and made.fps == pytest.approx(4)
    assert rewards_media.read_upload(None, "hello") == Text("hello") and rewards_media.read_upload(None, " ") is None


def test_of_a_long_clip_some_frames_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(rewards_media, "FRAMES", 3)
    (tmp_path / "a.mp4").write_bytes(mp4(CLIP))
    made = rewards_media.read_upload(str(tmp_path / "a.mp4"), "")
    assert len(made.frames) == 3 and made.fps == pytest.approx(4 * 3 / 5)
    monkeypatch.setattr(rewards_media, "MAX_CLIP_PIXELS", 2 * made.frames[0, 0].numel())
    assert len(rewards_media.read_upload(str(tmp_path / "a.mp4"), "").frames) == 2
    assert rewards_media.spaced(5, 3) == [0, 2, 4] and rewards_media.spaced(2, 3) == [0, 1]


def declared_png(folder: Path, side: int) -> str:
    """A PNG that says that it has ``side`` squared pixels, and has none."""
    head = b"IHDR" + struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", 13) + head + struct.pack(">I", zlib.crc32(head))
    end = struct.pack(">I", 0) + b"IDAT" + struct.pack(">I", zlib.crc32(b"IDAT"))
    (folder / "big.png").write_bytes(b"\x89PNG\r\n\x1a\n" + chunk + end)
    return str(folder / "big.png")


def test_sizes_are_limited_before_anything_is_decoded(tmp_path, monkeypatch):
    monkeypatch.setattr(rewards_media, "read_output", lambda file: pytest.fail("it was decoded"))
    with pytest.raises(Unreadable, match=r"^big\.png: got 5000 x 5000 pixels, expected at most 16,777,216"):
        rewards_media.read_upload(declared_png(tmp_path, 5000), "")
    (tmp_path / "a.txt").write_bytes(b"x" * 80_001)
    with pytest.raises(Unreadable, match=r"^a\.txt: got a file of 80,001 bytes"):
        rewards_media.read_upload(str(tmp_path / "a.txt"), "")
    with pytest.raises(ValueError, match="the text: got 20,001 characters"):
        rewards_media.read_upload(None, "x" * 20_001)
    with pytest.raises(ValueError, match="the prompt: got 20,001 characters"):
        scoring.prompt_of("x" * 20_001, "", "")
    with pytest.raises(ValueError, match="nested too deeply"):
        scoring.prompt_of("", "[" * 20_000, "")


@pytest.mark.parametrize("name", ["a.svg", "a.html", "a.png", "a.mp4", "a.wav", "a.txt"])
def test_errors_of_uploads_name_them_without_the_folder_of_the_server(name, tmp_path):
    (tmp_path / name).write_bytes(b"\xff<script>")
    with pytest.raises(ValueError, match=name.replace(".", r"\.")) as caught:
        rewards_media.read_upload(str(tmp_path / name), "")
    assert str(tmp_path) not in str(caught.value)


# The page.


def test_nothing_of_an_upload_is_mark_up():
    figure = rewards_media.figure(Text(HOSTILE), HOSTILE, HOSTILE)
    assert "<img" not in figure and figure.count("&lt;img") == 3
    for output in (PICTURE, CLIP, SOUND):
        made = rewards_media.figure(output, '"' + HOSTILE)
        assert "onerror=alert(1)>" not in made and "&quot;&lt;img" in made and ":" in made.split('src="')[1][:6]
    asked = rewards_media.prompt_html(Prompt(HOSTILE))
    assert "<img" not in asked and "&lt;img" in asked


def test_a_medium_that_cannot_be_read_is_a_note():
    made = rewards_media.prompt_medium(Media("image", "/nowhere/<b>.png"), "picture of the prompt")
    assert made.startswith('<p class="mm-note">picture of the prompt is not shown: /nowhere/&lt;b&gt;.png: there is no')


def test_errors_are_one_line_without_mark_up():
    with pytest.raises(gr.Error) as caught, rewards.told():
        raise ValueError(f"first\nsecond {HOSTILE}")
    assert str(caught.value.message) == "first second &lt;img src=x onerror=alert(1)&gt;"


def test_values_come_one_by_one_and_others_can_come_between(wired, opened, picture):
    """Whoever cancels between two rewards waits for one; the lock is free whenever the page is updated."""
    names = ["jpeg_compressibility", "jpeg_incompressibility", "geneval"]
    steps = function(wired, "score").fn(picture, "", "a", "", "", names, progress=lambda *place, **words: None)
    tables = []
    for _, table in steps:
        assert opened.lock.acquire(blocking=False)
        opened.lock.release()
        tables.append(table)
    assert [table.count("<tr>") - 1 for table in tables] == [1, 2, 3] and "needs detector" in tables[-1]


def test_an_attack_shows_both_and_a_verdict(wired, picture):
    given = (picture, None, None, None, None, ["jpeg_compressibility"], "blur", 1.0, None)
    *_, (sides, table) = function(wired, "attack").fn(*given, progress=lambda *place, **words: None)
    assert sides.count("data:image/png") == 2 and "attacked: Gaussian blur" in sides
    assert "jpeg_compressibility rose under blur" in table
    assert list(function(wired, "again").fn(None, None, *given[2:])) == [(gr.skip(), gr.skip())]
    *_, live = function(wired, "again").fn(*given)
    assert live == (sides, table)


def test_the_example_is_scored_as_it_should(wired):
    file, _, asked, answer, names = function(wired, "take").fn()
    assert Path(file).is_file() and scoring.known(names) == names
    made = scoring.score_one(
        "scene_score", scoring.prompt_of(asked, answer, ""), rewards_media.read_upload(file, ""), "cpu"
    )
    assert made == scoring.Score("scene_score", 1.0)


def test_without_an_upload_the_page_says_what_to_do(wired):
    with pytest.raises(gr.Error, match="Upload a file or write a text first"):
        next(function(wired, "score").fn(None, None, "", "", "", ["exact"]))
    shown, choices, attacks = function(wired, "look").fn(None, None)
    assert rewards.NOTHING in shown and len(choices["choices"]) == len(entries()) and attacks["value"] == "blur"
    assert function(wired, "look").fn(None, "hello")[2]["choices"] == ["padding", "prompt_swap"]


def test_events_are_private_models_compute_one_at_a_time_and_can_be_cancelled(wired):
    fns = {one.name: one for one in wired.fns.values()}
    assert {one.api_visibility for one in fns.values()} == {"private"}
    computing = [fns[name] for name in ("score", "attack", "again")]
    assert {(one.concurrency_id, one.concurrency_limit) for one in computing} == {("rewards", 1)}
    cancelled = {number for one in wired.fns.values() for number in one.cancels}
    assert cancelled == {one._id for one in computing}
    controls = [one for one in wired.blocks.values() if type(one).__name__ in ("Textbox", "Dropdown", "Slider", "File")]
    assert len(controls) == 9 and all(one.label for one in controls)


class Loud(gr.Progress):
    """A bar that may not be moved."""

    def __call__(self, *place, **words):
        raise AssertionError("the bar is moved")


def test_an_attack_shows_values_as_they_come_and_at_last_the_verdict(wired, picture):
    places = []
    names = ["jpeg_compressibility", "jpeg_incompressibility"]
    given = (picture, None, None, None, None, names, "blur", 1.0, None)
    steps = list(function(wired, "attack").fn(*given, progress=lambda *place, **words: places.append(place)))
    tables = [table for _, table in steps]
    assert tables[0] == "<p class='mm-note'>scoring …</p>" and len({sides for sides, _ in steps}) == 1
    assert [table.count("<tr>") - 1 for table in tables[1:]] == [1, 2, 1, 2]
    assert ["<strong>" in table for table in tables] == [False, False, False, False, True]
    assert places == [((0, 2),), ((1, 2),)] * 2


def test_as_the_slider_moves_the_same_attack_is_shown_without_a_bar(opened, monkeypatch):
    monkeypatch.setattr(rewards, "PROGRESS", Loud())
    with gr.Blocks() as page:
        rewards.tab(opened)
    for text, which, other in (("words", scoring.SWAP, "b"), ("words", "padding", ""), ("words", "padding", None)):
        given = (None, text, "a", "", "", ["format"], which, 1.0, other)
        steps = list(function(page, "attack").fn(*given, progress=lambda *place, **words: None))
        assert list(function(page, "again").fn(*given)) == steps and len(steps) == 3


def test_what_the_chosen_rewards_measure_is_told(wired):
    assert function(wired, "about").fn(["exact", "format"]) == scoring.manifest_html(["exact", "format"])
    assert function(wired, "about").fn([]) == ""
    with pytest.raises(gr.Error, match="no reward of the list"):
        function(wired, "about").fn(["os:system"])


def test_the_example_lies_in_a_folder_of_its_own(wired):
    file, text, asked, answer, names = function(wired, "take").fn()
    assert Path(file).parent.name.startswith("mmgrpo-demo-") and text == ""
    assert asked == "two blue triangles and a black circle" and names == [*rewards.EXAMPLE]
    assert json.loads(answer)["things"] == [[2, "blue", "triangle"], [1, "black", "circle"]]


def test_what_was_uploaded_is_shown_with_the_rewards_and_attacks_of_its_kind(wired, picture):
    shown, choices, attacks = function(wired, "look").fn(picture, None)
    assert "<figcaption>your upload</figcaption>" in shown and shown.startswith("<div class='mm-sides'>")
    assert choices["choices"] == scoring.choices("Image") != scoring.choices()
    assert attacks["choices"] == ["blur", "noise", "jpeg", "texture", "prompt_swap"] and attacks["value"] == "blur"
    with pytest.raises(gr.Error, match="20,001 characters") as caught:
        function(wired, "look").fn(None, "x" * 20_001)
    assert not caught.value.print_exception
    with pytest.raises(gr.Error, match="Upload a file") as caught:
        rewards.upload(None, None)
    assert not caught.value.print_exception


# Media.


def side_of(mark_up: str) -> tuple[int, int]:
    """Width and height of the picture in mark-up."""
    content = b64decode(mark_up.split("base64,")[1].split('"')[0])
    return Pil.open(io.BytesIO(content)).size


def test_small_pictures_are_marked_and_large_ones_are_sent_small():
    assert 'class="mm-medium mm-small"' in rewards_media.medium(Image(torch.zeros(3, 2, 127)), "a")
    assert 'class="mm-medium"' in rewards_media.medium(Image(torch.zeros(3, 128, 2)), "a")
    assert side_of(rewards_media.medium(Image(torch.zeros(3, 1536, 4)), "a")) == (2, 768)
    assert side_of(rewards_media.medium(Image(torch.zeros(3, 4, 1536)), "a")) == (768, 2)
    sound = rewards_media.medium(SOUND, '"a"')
    assert sound.startswith('<audio controls aria-label="&quot;a&quot;" src="data:audio/')
    assert rewards_media.medium(Text(""), "a").endswith('aria-label="a">(no text)</div>')
    assert rewards_media.figure(Text("x"), "a").endswith("<figcaption>a</figcaption></figure>")
    assert rewards_media.figure(Text("x"), "a", "b").endswith(
        'aria-label="a">x</div><figcaption>b</figcaption></figure>'
    )


@pytest.mark.parametrize(
    ("total", "most", "places"),
    [(1, 3, [0]), (5, 1, [0]), (5, 2, [0, 4]), (10, 4, [0, 3, 6, 9]), (0, 3, []), (4, 4, [0, 1, 2, 3])],
)
def test_frames_are_evenly_spaced_from_the_first_to_the_last(total, most, places):
    assert rewards_media.spaced(total, most) == places


def test_a_picture_of_the_largest_size_and_a_text_of_the_largest_length_are_read(picture, tmp_path, monkeypatch):
    monkeypatch.setattr(rewards_media, "MAX_PIXELS", 24 * 32)
    assert rewards_media.read_upload(picture, "").pixels.shape == (3, 24, 32)
    monkeypatch.setattr(rewards_media, "MAX_PIXELS", 24 * 32 - 1)
    with pytest.raises(Unreadable, match=r"^a\.png: got 32 x 24 pixels, expected at most 767; scale it down"):
        rewards_media.read_upload(picture, "")
    words = tmp_path / "a.txt"
    words.write_text("\N{GRINNING FACE}" * 20_000)
    assert rewards_media.read_upload(str(words), "") == Text("\N{GRINNING FACE}" * 20_000)
    words.write_text("x" * 20_001)
    with pytest.raises(Unreadable, match=r"^a\.txt: got 20,001 characters, expected at most 20,000; shorten it"):
        rewards_media.read_upload(str(words), "")


def test_a_clip_of_one_frame_is_read(tmp_path):
    (tmp_path / "a.mp4").write_bytes(mp4(Video(CLIP.frames[:1], 4.0)))
    made = rewards_media.read_upload(str(tmp_path / "a.mp4"), "")
    assert (len(made.frames), made.fps) == (1, pytest.approx(4)) and 0.5 < float(made.frames.max()) <= 1


def test_media_of_prompts_are_decoded_by_their_kind(picture, tmp_path, monkeypatch):
    assert rewards_media.decoded(Media("image", PICTURE)) is PICTURE
    assert rewards_media.decoded(Media("image", picture)).pixels.shape == (3, 24, 32)
    (tmp_path / "a.wav").write_bytes(rewards_media.wav(SOUND).content)
    assert rewards_media.decoded(Media("audio", str(tmp_path / "a.wav"))).rate == 16_000
    (tmp_path / "a.mp4").write_bytes(mp4(CLIP))
    assert len(rewards_media.decoded(Media("video", str(tmp_path / "a.mp4"))).frames) == 5
    files = []
    for number in range(4):
        files.append(str(tmp_path / f"{number}.png"))
        Pil.new("RGB", (2, 2), (51 * number, 0, 0)).save(files[-1])
    clip = rewards_media.decoded(Media("video", tuple(files)))
    assert clip.fps == 2 and clip.frames[:, 0, 0, 0].tolist() == pytest.approx([0, 0.2, 0.4, 0.6])
    monkeypatch.setattr(rewards_media, "FRAMES", 2)
    clip = rewards_media.decoded(Media("video", tuple(files), {"fps": 5}))
    assert clip.fps == 5 and clip.frames[:, 0, 0, 0].tolist() == pytest.approx([0, 0.6])


def test_a_prompt_is_shown_with_its_media_and_its_text():
    shown = rewards_media.prompt_html(Prompt("a<b", turns=(Turn("user", (Media("image", PICTURE), "a<b")),)))
    assert shown.startswith('<div class="mm-sides"><figure><img class="mm-medium mm-small" alt="picture of the prompt"')
    assert shown.endswith('</figure></div><div class="mm-text">a&lt;b</div>')
    assert rewards_media.prompt_html(Prompt(" ")) == '<div class="mm-sides"></div>'
    sound = rewards_media.prompt_html(Prompt("", turns=(Turn("user", (Media("audio", SOUND),)),)))
    assert 'aria-label="sound of the prompt"' in sound


def test_a_message_is_one_line_of_at_most_300_letters():
    assert rewards_media.one_line(ValueError("a\n b")) == "a b"
    assert rewards_media.one_line(ValueError("x" * 300)) == "x" * 300
    assert rewards_media.one_line(ValueError("x" * 301)) == "x" * 299 + "…"
    assert "KeyError" in rewards_media.one_line(KeyError())


# Rewards of the table.


def own(prompts, outputs, factor=1.0):
    """Scores nothing. It never does; not ever."""
    return [factor for _ in outputs]


def strict(prompts, outputs, *many, least, most, **others):
    """Needs two numbers."""
    return [least + most for _ in outputs]


def several(function_=own, **facts):
    """A table of one reward."""
    manifest = Manifest(**facts) if facts else ""
    return lambda: {"mine": RewardEntry(f"tests.cli.demo.test_rewards:{function_.__name__}", manifest=manifest)}


def test_a_reward_that_says_nothing_of_itself_can_be_tried(monkeypatch):
    monkeypatch.setattr(scoring, "entries", several())
    monkeypatch.setattr(scoring, "scorer", lambda name, device: Scorer(name, own))
    assert scoring.missing("mine") == scoring.scale("mine") == "" and scoring.kinds(scoring.entries()["mine"]) == ()
    assert scoring.choices("Text") == scoring.choices() == [("mine ()", "mine")]
    assert scoring.manifest_html(["mine"]) == (
        "<p><strong>mine</strong>. Scores nothing. It can be computed here now.</p>"
    )
    assert scoring.score_one("mine", Prompt("a"), Text("b"), "cpu") == scoring.Score("mine", 1.0)
    monkeypatch.setattr(scoring, "entries", several(strict))
    assert scoring.missing("mine") == "needs least, most: name it on the command line, mmgrpo score"


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (
            {"scores": ("Text", "Image"), "reads": ("text", "answer", "meta.x")},
            "It scores texts, pictures; its values are 0 to 1, higher is better. "
            "Of the prompt it reads the text, the reference answer, meta.x.",
        ),
        (
            {"scores": ("Audio",), "high": math.inf, "scale": "<hertz>", "deterministic": False, "source": "a paper"},
            "It scores sounds; its values are at least 0, higher is better. The number is &lt;hertz&gt;. "
            "It does not look at the prompt. Equal inputs can have different values. Source: a paper.",
        ),
    ],
)
def test_the_facts_of_a_reward_are_sentences(facts, words, monkeypatch):
    monkeypatch.setattr(scoring, "entries", several(**facts))
    assert scoring.manifest_html(["mine"]) == (
        f"<p><strong>mine</strong>. Scores nothing. {words} It can be computed here now.</p>"
    )


def test_a_scale_is_the_range_and_what_the_number_is():
    assert scoring.scale("exact") == "0 to 1" and scoring.scale("jpeg_compressibility") == "at most 0, kilobytes"
    table = scoring.values_html([scoring.Score("exact", -0.0), scoring.Score("exact", 1 / 3)])
    assert "<td class='mm-number'>0</td><td class='mm-note'>0 to 1</td>" in table
    assert "<td class='mm-number'>0.333333</td>" in table
    assert table.startswith(
        "<div class='mm-wide'><table class='mm-table'><tr><th scope='col'>reward</th><th scope='col'>value</th>"
    )
    missing = Manifest(("Image",), packages=("nobody_has_this",), weights={"pypi:brisque": ()}, licence="MIT")
    assert scoring.absent(missing).startswith("needs the package nobody_has_this")


def test_rewards_are_chosen_once_each_and_at_least_one():
    assert scoring.known(["exact", "format", "exact"]) == ["exact", "format"]
    with pytest.raises(ValueError, match="got no reward; choose one or several"):
        scoring.known([])
    with pytest.raises(ValueError, match=f"got '{'x' * 80}', which is"):
        scoring.known(["x" * 81])
    assert scoring.prompt_of("a", "[3]", "count") == Prompt("a", "upload", [3], "count")


def test_kinds_of_outputs_are_told_in_words():
    assert score("decision_statistic", SOUND).reason.startswith("not computed: reads the decisions")
    assert score("preference", SOUND).reason == "scores pictures and clips and texts, got audio"


def test_attacks_that_apply_to_an_output_and_what_they_do():
    assert scoring.attacks_of(None) == ["blur", "noise", "jpeg", "texture", "padding", "prompt_swap"]
    assert scoring.attacks_of(CLIP) == ["blur", "noise", "jpeg", "texture", "prompt_swap"]
    assert (scoring.attacks_of(SOUND), scoring.attacks_of(Text("a"))) == (["prompt_swap"], ["padding", "prompt_swap"])
    assert [scoring.describe(attack, 2) for attack in scoring.ATTACKS] == [
        "Gaussian blur, sigma 2/32 of the longer side",
        "white noise, standard deviation 0.3 (white is 1)",
        "JPEG of quality 5",
        "a fine checkerboard of amplitude 0.3 (white is 1)",
        "the text says everything twice",
        "the output is scored for another prompt",
    ]
    assert [scoring.absolute("jpeg", strength) for strength in (0.25, 1, 4)] == [40, 10, 2.5]
    assert [scoring.absolute("blur", strength) for strength in (0.25, 1, 4)] == [0.25, 1, 4]
    for strength in (0.2, 4.1):
        with pytest.raises(ValueError, match=f"strength: got {strength}, expected 0.25 to 4"):
            scoring.absolute("blur", strength)
    with pytest.raises(ValueError, match=f"got the attack '{'x' * 80}', expected one of blur"):
        scoring.attacked("x" * 81, 1, Prompt("a"), PICTURE, "")
    with pytest.raises(ValueError, match="the other prompt: got 20,001 characters"):
        scoring.attacked("prompt_swap", 1, Prompt("a"), PICTURE, "x" * 20_001)


def test_the_verdict_names_all_rewards_that_rose_or_noticed_nothing():
    low, high = ([scoring.Score(name, value) for name in "ab"] for value in (0.0, 1.0))
    assert scoring.verdict("noise", low, high).startswith("a and b rose under noise: training on it can learn")
    assert scoring.verdict("noise", low, low) == "No reward rose under noise. a and b did not notice it."
    assert scoring.verdict("noise", high, low) == "No reward rose under noise."
    table = scoring.attack_html([*high, low[0]], [*low, low[0]])
    assert table.count("<td>fell -1</td>") == 2 and "<td>unchanged</td>" in table
    failed = scoring.attack_html([scoring.Score("a", math.nan, "<why>")], [scoring.Score("a", 1.0)])
    assert "<td>failed<br><span class='mm-note'>&lt;why&gt;</span></td>" in failed
    failed = scoring.attack_html([scoring.Score("a", 1.0)], [scoring.Score("a", math.nan, "later")])
    assert "<span class='mm-note'>later</span>" in failed and ">1</td>" in failed
