"""What is refused before a model is loaded: rewards of other outputs, rows that a reward cannot score."""

from __future__ import annotations

import math
from contextlib import nullcontext

import pytest

from mmgrpo.cli.train import is_embedded, read
from mmgrpo.config.plugins import locate, recipes
from mmgrpo.config.settings import config_class
from mmgrpo.data.prompts import load_prompts
from mmgrpo.family import families, family
from mmgrpo.inputs import load
from mmgrpo.rewards import from_trl, scorer
from mmgrpo.scoring import Scorer
from mmgrpo.scoring.fitting import check_rows_with, downloads, refuse_unfit, unread_media
from mmgrpo.scoring.manifest import Manifest
from mmgrpo.types import Media, Prompt, Turn

OCR = scorer("ocr")
DIFFUSION = Prompt('New York Skyline with "Diffusion" written with fireworks', "prompts.txt:1")
PLAIN = Prompt("a red circle", "prompts.txt:2")


@pytest.fixture(autouse=True)
def every_package_is_there(monkeypatch):
    monkeypatch.setattr("mmgrpo.scoring.fitting.find_spec", lambda name: object())


def test_every_family_says_what_it_makes():
    kinds = {name: one.sections.outputs for name, one in families().items()}
    assert set(kinds.values()) == {"Text", "Image", "Video", "Audio"}
    assert [kinds[name] for name in ("sd3", "wan", "qwen_vl", "whisper")] == ["Image", "Video", "Text", "Text"]


def test_a_row_without_the_text_to_draw_is_named():
    with pytest.raises(ValueError, match=r"'ocr'.*2.*2.*prompts\.txt:1.*from_quotes=True"):
        refuse_unfit([OCR], {"data.train": [DIFFUSION, PLAIN]}, "Image")
    with pytest.raises(ValueError, match=r"1.*2.*prompts\.txt:2"):
        refuse_unfit([scorer("ocr(from_quotes=True)")], {"data.train": [DIFFUSION, PLAIN]}, "Image")
    rows = [DIFFUSION, Prompt("a sign", "3", answer="STOP"), Prompt("a sign", "4", meta={"text": "GO"})]
    assert refuse_unfit([scorer("ocr(from_quotes=True)")], {"data.train": rows}, "Image") == []


def test_a_column_that_may_be_the_answer_is_named():
    rows = [Prompt("which?", "1", meta={"note": "a", "label": "cat"})]
    with pytest.raises(ValueError, match=r"'1' has no answer.*data\.columns label=answer"):
        refuse_unfit([scorer("exact")], {"data.train": rows}, "Text")


@pytest.mark.parametrize(
    ("reward", "outputs"), [("ocr", "Video"), ("ocr", "Text"), ("math", "Image"), ("clap", "Text")]
)
def test_a_reward_of_other_outputs_is_refused(reward, outputs):
    with pytest.raises(ValueError, match=f"'{reward}'.*{outputs}"):
        refuse_unfit([scorer(reward)], {}, outputs)
    assert refuse_unfit([scorer(reward)], {}) == []  # what a model of one's own makes is not known


def test_a_missing_package_is_named_with_its_extra(monkeypatch):
    monkeypatch.setattr("mmgrpo.scoring.fitting.find_spec", lambda name: None)
    monkeypatch.setattr("mmgrpo.scoring.manifest.importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"'ocr'.*rapidocr.*\[rewards\]"):
        refuse_unfit([OCR], {}, "Image")


def test_weights_that_are_not_here_are_told_before_a_model_is_loaded(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    rewards = [scorer("pickscore"), scorer("jpeg_compressibility"), scorer(f"hpsv2(weights={str(tmp_path)!r})")]
    (note,) = downloads(rewards[:2], {"HF_HUB_OFFLINE": "0"})
    assert "'pickscore'" in note and "yuvalkirstain/PickScore_v1" in note
    assert downloads(rewards[1:2], {"HF_HUB_OFFLINE": "1"}) == []
    assert "xswu/HPSv2" not in "".join(downloads(rewards, {}))  # its folder is named
    with pytest.raises(FileNotFoundError, match="'pickscore'.*HF_HUB_OFFLINE.*weights="):
        downloads(rewards, {"HF_HUB_OFFLINE": "1"})


def test_reference_answers_that_no_answer_can_be_compared_with_are_listed():
    pytest.importorskip("math_verify")
    rows = [Prompt("?", "1", answer="5"), Prompt("?", "2", answer="a bird in the hand"), Prompt("?", "3", answer="$5")]
    math = scorer("math")
    with pytest.raises(ValueError, match="data.heldout.*'math'.*1.*3.*'2'.*bird"):
        refuse_unfit([math], {"data.heldout": rows}, "Text")
    (note,) = refuse_unfit([math], {"data.train": rows}, "Text", allowed=0.5)
    assert "1 of 3 rows" in note and "not trained" in note
    with pytest.raises(ValueError, match="'numeric'.*2.*2.*9"):
        refuse_unfit([scorer("numeric")], {"x": [Prompt("?", "8", answer="two"), Prompt("?", "9")]}, "Text")
    assert refuse_unfit([scorer("numeric(weight=0)")], {"x": [Prompt("?", "8")]}, "Text") == []  # only logged


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        (lambda prompts, outputs: [math.nan for _ in outputs], "reference answer 'b'"),
        (lambda prompts, outputs: [1 / 0 for _ in outputs], "ZeroDivisionError"),
        (lambda prompts, outputs: [None for _ in outputs], ""),
        (lambda prompts, outputs: [math.nan, *[0.0 for _ in outputs[1:]]], ""),
    ],
)
def test_a_verifier_that_can_score_no_answer_to_a_row_is_named_and_one_that_abstains_is_not(verdict, words):
    own = Scorer("own", verdict, manifest=Manifest(("Text",), reads=("answer",)))
    with pytest.raises(ValueError, match=f"'own'.*1.*1.*{words}") if words else nullcontext():
        refuse_unfit([own], {"x": [Prompt("?", "7", answer="b")]}, "Text")


@pytest.mark.slow
def test_every_recipe_has_rewards_that_fit_its_model_and_its_embedded_rows():
    """The first rows of every embedded file of every recipe."""
    unfit, tried, rows = [], set(), {}
    for name in recipes():
        config = read(["--recipe", name], "")
        outputs = family(config.model.family).sections.outputs
        for path in filter(is_embedded, [config.data.train, config.data.heldout, *config.eval.extra]):
            for text in config.rewards:
                if (path, text, outputs) in tried:
                    continue
                tried.add((path, text, outputs))
                try:
                    rows[path] = rows.get(path) or load_prompts(locate(path))[:3]
                    refuse_unfit([scorer(text)], {path: rows[path]}, outputs)
                except ValueError as error:
                    unfit.append(f"{name}: {error}")
    assert unfit == [] and len(tried) > 50


def test_equal_objections_are_one():
    with pytest.raises(ValueError) as error:
        refuse_unfit([scorer("scene_all")], {"data.train": [Prompt("a", str(row)) for row in range(40)]}, "Image")
    assert "40 of 40 rows" in str(error.value) and len(str(error.value)) < 400


def test_a_column_that_no_row_has_is_refused():
    def right(completions, solution, **kwargs):
        return [1.0 for _ in completions]

    rows = [Prompt("?", "1", "4", columns={"solutions": "4"})]
    with pytest.raises(ValueError, match=r"data\.train.*'right'.*'solution'.*'solutions'"):
        refuse_unfit([from_trl(right)], {"data.train": rows}, "Text")
    assert refuse_unfit([from_trl(right)], {"x": [Prompt("?", columns={"solution": "4"})]}, "Text") == []


def test_rows_are_checked_before_the_model_is_made(tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_text('a "sign"\na red circle\n')
    config = config_class(family("sd3").sections)()
    config.data.train, config.data.heldout = str(file), ""
    reward = Scorer("ocr", lambda prompts, outputs: [0.0], manifest=Manifest(("Image",), reads=("answer",)))
    with check_rows_with([reward]), pytest.raises(ValueError, match="data.train.*'ocr'.*2.*2"):
        load(config, family("sd3"), lambda prompts: pytest.fail("the model was made"))


SHOWN = Prompt("make it night", "1", turns=(Turn("user", (Media("image", "a.png"), "make it night")),))
JUDGE = "judge=\"chat(url='http://127.0.0.1:1/v1', model='m')\""


@pytest.mark.parametrize(
    ("rewards", "outputs", "warned"),
    [
        (["pickscore", "jpeg_compressibility"], "Image", True),
        ([f"judge_score({JUDGE}, media=False)"], "Image", True),
        (["frames(reward='pickscore')"], "Video", True),
        (["spoken_neg_cer"], "Audio", True),
        ([f"judge_score({JUDGE})", "pickscore"], "Image", False),
        ([f"frames(reward={f'vqascore({JUDGE})'!r})"], "Video", False),
        (["speaker_similarity"], "Audio", False),
        (["frames(reward='tests.unit.scoring.test_fitting:dark(process=False)')"], "Video", False),
        ([Scorer("dark", lambda prompts, outputs: [])], "Image", False),
        (["exact"], "Text", False),
        ([], "Image", False),
    ],
)
def test_a_run_that_edits_is_warned_where_no_reward_reads_the_source(rewards, outputs, warned):
    several = [scorer(one) for one in rewards]
    assert unread_media(several, {"data.train": [PLAIN]}, outputs) == []
    notes = unread_media(several, {"data.train": [SHOWN, PLAIN], "data.heldout": [SHOWN]}, outputs)
    assert bool(notes) is warned
    if warned:
        (note,) = notes
        assert several[0].name in note and "2 of 3 rows" in note
        able = ("speaker_similarity",) if outputs == "Audio" else ("judge_score", "judge_pairs")
        assert all(name in note for name in able) and "hpsv2" not in note


def dark(prompts, outputs):
    return [0.0 for _ in outputs]


def test_the_warning_is_among_what_a_run_prints_before_its_model():
    (note,) = refuse_unfit([scorer("jpeg_compressibility")], {"data.train": [SHOWN]}, "Image")
    assert "jpeg_compressibility" in note and "1 of 1 rows" in note
