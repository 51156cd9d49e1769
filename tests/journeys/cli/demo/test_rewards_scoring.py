"""What the demo scores and attacks: rewards by name, what they need, and what an attack did."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from mmgrpo.cli.demo import rewards_media
from mmgrpo.cli.demo import rewards_scoring as scoring
from mmgrpo.rewards import entries
from mmgrpo.types import Prompt, Text
from reward_models.evaluation.attacks import DAMAGES, damaged
from tests.journeys.cli.demo.uploads import CLIP, HOSTILE, PICTURE, SOUND


def score(name, output, answer="", prompt="how many?"):
    return scoring.score_one(name, scoring.prompt_of(prompt, answer, ""), output, "cpu")


@pytest.mark.parametrize("name", ["os:system", "scene_score(weight=2)", "scene_scor", "", "served(reward='x')"])
def test_only_names_of_the_table_are_rewards(name):
    with pytest.raises(ValueError, match="reward of the list"):
        scoring.known(["scene_score", name])


def test_all_rewards_are_listed_those_of_the_upload_first(monkeypatch):
    monkeypatch.setattr(scoring, "in_cache", lambda name: False)  # another test may be downloading
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


def test_a_module_of_the_working_directory_never_stands_in_for_a_reward_of_the_table(monkeypatch, tmp_path):
    module = entries()["exact"].function.partition(":")[0]
    file = tmp_path.joinpath(*module.split(".")).with_suffix(".py")
    file.parent.mkdir(parents=True)
    file.write_text("raise RuntimeError('a file of the working directory was run')\n")
    monkeypatch.chdir(tmp_path)
    assert scoring.missing("exact") == ""


def test_the_weights_of_recognizers_are_one_folder(monkeypatch, tmp_path):
    for there, folder in ((True, tmp_path), (False, tmp_path / "nothing")):
        monkeypatch.setattr("pipelines.speech.whisper_weights.CACHE", folder)
        assert scoring.in_cache("whisper-tiny.en") is there


def test_the_example_is_the_first_picture_of_its_sentence(tmp_path):
    from mmgrpo.toy import scenes

    file, prompt = scoring.example(tmp_path)
    shown = rewards_media.read_upload(file, "")
    assert torch.equal(shown.pixels, scenes.picture(scenes.parse(prompt.text), 0).pixels)


def test_weights_that_were_downloaded_are_not_missing(monkeypatch, tmp_path):
    monkeypatch.setattr("reward_models.wheels.CACHE", tmp_path)
    (tmp_path / "brisque-0.2.0").mkdir()
    assert not scoring.missing("brisque") and scoring.missing("niqe")


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


def test_a_manifest_is_told_in_words(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))  # where nothing has been downloaded
    words = scoring.manifest_html(["pickscore"])
    assert "It scores pictures; its values are any number" in words and "licence: MIT" in words
    assert "Of the prompt it reads the text." in words and "Not computed here" in words


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
            "padding.*prompt_swap",
        ),
        ("blur", SOUND, "", "pictures.*prompt_swap"),
        ("prompt_swap", PICTURE, " ", "other prompt"),
        ("prompt_swap", PICTURE, "a", "other prompt"),
        ("melt", PICTURE, "", "'melt'"),
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


def own(prompts, outputs, factor=1.0):
    """Scores nothing. It never does; not ever."""
    return [factor for _ in outputs]


def test_rewards_are_chosen_once_each_and_at_least_one():
    assert scoring.known(["exact", "format", "exact"]) == ["exact", "format"]
    with pytest.raises(ValueError, match="no reward"):
        scoring.known([])
    with pytest.raises(ValueError, match=f"'{'x' * 80}'.*which"):
        scoring.known(["x" * 81])
    assert scoring.prompt_of("a", "[3]", "count") == Prompt("a", "upload", [3], "count")


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
        with pytest.raises(ValueError, match=f"strength.*{strength}.*0.25.*4"):
            scoring.absolute("blur", strength)
    with pytest.raises(ValueError, match=f"attack '{'x' * 80}'"):
        scoring.attacked("x" * 81, 1, Prompt("a"), PICTURE, "")
    with pytest.raises(ValueError, match="prompt.*20,001"):
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
