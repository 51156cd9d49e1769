"""What is a problem of a row and what is not, and the statistics of a data set: each by itself."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from mmgrpo.cli import check_data
from mmgrpo.cli.check_data import (
    Args,
    equal_answers,
    gold_problem,
    gold_rewards,
    statistics_of,
    task_problem,
    unasked_forms,
)
from mmgrpo.rewards import scorer
from mmgrpo.scoring import Scorer
from mmgrpo.types import Answer, Media, Prompt, Turn
from pipelines.vlm.media import Measure

SOUND, PICTURE, CLIP = Media("audio", "a.wav"), Media("image", "a.png"), Media("video", "a.mp4")


def asked(*media: Media, **columns: Any) -> Prompt:
    return Prompt("q", "q", turns=(Turn("user", (*media, "q")),), **columns)


# ---- problems


@pytest.mark.parametrize(
    ("media", "task", "answer", "words"),
    [
        ((SOUND,), "transcribe", "a", ""),
        ((SOUND,), "transcribe", ["a", "b"], ""),
        ((SOUND,), "transcribe", ["a", 3], "'answer': got ['a', 3], expected the transcript"),
        ((PICTURE, SOUND), "", None, "'answer': got None, expected the transcript"),
        ((SOUND,), "exact", "a", ""),
        ((SOUND,), "numeric", "some", "some"),  # a task with a verifier is checked by it
        ((PICTURE,), "colour", "a", "colour"),
        ((PICTURE,), "", None, ""),
        ((), "numeric", "3", ""),
    ],
)
def test_a_task_is_known_and_speech_has_texts(media: tuple[Media, ...], task: str, answer: Any, words: str):
    problem = task_problem(asked(*media, task=task, answer=answer))
    assert (problem is not None) is bool(words)
    assert problem is None or (problem.id == "q" and problem.file == "" and words in problem.reason)


def giving(**values: float) -> Scorer:
    """A reward that gives each text its value, others NaN."""
    return Scorer("giving", lambda prompts, outputs: [values.get(text, math.nan) for text in texts_of(outputs)])


def texts_of(outputs: Any) -> list[str]:
    return [one.text for one in outputs]


@pytest.mark.parametrize(
    ("gold", "empty", "best", "words"),
    [
        (1.0, 0.0, 1.0, ""),
        (-1e-6, -1.0, 0.0, ""),  # of rounding
        (-1.5e-6, -1.0, 0.0, "reward 'giving' gives the reference answer 'a' itself -1.5e-06, expected 0; correct"),
        (0.5, 0.0, 1.0, "itself 0.5, expected 1"),
        (2.0, 0.0, 3.0, "itself 2, expected 3"),
        (math.nan, 0.0, 1.0, "itself nan, expected 1"),
        (1.0, 1.0, 1.0, "gives an empty answer 1, as much as the reference answer; choose another"),
        (1.0, 2.0, 1.0, "gives an empty answer 2"),
        (1.0, math.nan, 1.0, ""),
        (-3.0, -4.0, -math.inf, ""),
    ],
)
def test_a_reference_answer_gets_the_maximum_and_an_empty_one_less(gold: float, empty: float, best: float, words: str):
    problem = gold_problem(Prompt("q", "q", answer="a"), [(giving(**{"a": gold, "": empty}), best)])
    assert (problem is not None) is bool(words)
    assert problem is None or (problem.id == "q" and words in problem.reason)
    second = gold_problem(Prompt("q", "q", answer="a"), [(giving(a=1.0), 1.0), (giving(a=0.0), 1.0)])
    assert second is not None and "itself 0, expected 1" in second.reason


def test_a_reference_answer_is_tried_in_tags_and_as_it_stands_each_and_together():
    seen: list[str] = []
    reward = Scorer(
        "seen",
        lambda prompts, outputs: seen.extend(texts_of(outputs)) or [1.0] * len(outputs),
    )
    gold_problem(Prompt("q", answer=["a", 2]), [(reward, 1.0)])
    words = ["a", "2", "a,2", "a;2", '["a", 2]']
    assert seen == [form for word in [*words, ""] for form in (f"<answer>{word}</answer>", word)]
    silent = Scorer("silent", lambda prompts, outputs: [None] * len(outputs))
    assert gold_problem(Prompt("q", answer="a"), [(silent, 1.0)]) is None, "of another task, say"
    assert unasked_forms([Prompt("q", answer="a")], [silent]) == []
    long = gold_problem(Prompt("q", answer="x" * 99), [(giving(), 1.0)])
    assert long is not None and f"'{'x' * 80}'" in long.reason


def test_without_a_reward_only_tasks_that_are_answered_in_words_are_tried():
    assert gold_problem(Prompt("q", answer="anything"), []) is None
    assert gold_problem(Prompt("q", answer=[1, 2, 3, 4], task="box_iou"), []) is None
    assert gold_problem(Prompt("q", answer="B", task="choice"), []) is None
    wrong = gold_problem(Prompt("q", answer="<answer>a</answer>b", task="exact"), [])
    assert wrong is not None and "reward 'task' gives the reference answer" in wrong.reason
    # The maximum of the reward "task" is that of the row's task, whatever the reward's own.
    assert gold_problem(Prompt("q", answer="4", task="numeric"), [(scorer("task"), 7.0)]) is None


# ---- statistics


def test_statistics_are_of_what_could_be_read():
    prompts = [
        asked(PICTURE, PICTURE, task="count", answer="1"),
        asked(PICTURE, CLIP, answer=0, meta={"reply": "x"}),
        asked(SOUND, task="count"),
        Prompt("alone"),
    ]
    broken = ValueError("broken")
    measures = [
        [Measure(10, 20), Measure(30, 40)],
        [broken, Measure(50, 60, 20, 4.0)],
        [Measure(0, 0, 0, 2.5)],
        [],
    ]
    assert statistics_of(prompts, measures, [7, 9]) == [
        ("media", "image 1, image + video 1, audio 1, text 1"),
        ("tasks", "count 2"),
        ("answers", "2 rows have one"),
        ("options", ""),
        ("compared", ""),
        ("replies", "1 rows end with an assistant turn, which is removed"),
        ("images", "2, sides from 10 to 40 pixels, median area 0.0007 megapixels"),
        ("videos", "1, sides from 50 to 60 pixels, median area 0.003 megapixels"),
        ("", "seconds: minimum 4, median 4, 95th percentile 4, maximum 4"),
        ("", "frames per second: minimum 5, median 5, 95th percentile 5, maximum 5"),
        ("audio", "1, seconds: minimum 2.5, median 2.5, 95th percentile 2.5, maximum 2.5"),
        ("tokens", "per prompt: minimum 7, median 8, 95th percentile 9, maximum 9"),
    ]
    given = (Answer("x", None, 1.0), Answer("y", None, 0.0))
    rows = [Prompt("a", answers=given), Prompt("b", answers=(given[0], given[0]))]
    compared = dict(statistics_of(rows, [[], []], []))["compared"]
    assert compared == "2 rows with answers to compare (text 4), 1 of them ties"
    assert equal_answers(rows[0]) is None and equal_answers(rows[1]) is not None
    nothing = dict(statistics_of([Prompt("a")], [[]], []))
    assert nothing["replies"] == nothing["tokens"] == nothing[""] == nothing["audio"] == nothing["tasks"] == ""


# ---- the command


@pytest.fixture
def checked(tmp_path, monkeypatch, capsys):
    """The output and the list of problems of a data set of texts whose tokens are counted in letters."""

    def count(prompt: Prompt, sizes: Any) -> int:
        if prompt.text == "ü":
            raise ValueError("cannot be shown")
        return len(prompt.text)

    def run(rows: list[dict[str, Any]], **options: Any):
        monkeypatch.setattr(check_data, "counter", lambda args: (count, ""))
        path = tmp_path / "data.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        values = {"skipped": str(tmp_path / "bad.jsonl"), **options}
        monkeypatch.setattr(check_data, "options", lambda kind, arguments, about: Args(str(path), **values))
        status = 0
        try:
            check_data.main([])
        except SystemExit as end:
            status = end.code
        written = tmp_path / "bad.jsonl"
        return status, capsys.readouterr().out, written.read_text() if written.exists() else ""

    return run


@pytest.mark.parametrize(
    ("spec", "best"), [("exact", 1.0), ("neg_wer", 0.0), ("maze_steps", -math.inf), ("own:one(process=False)", 1.0)]
)
def test_the_maximum_of_a_reward(spec: str, best: float, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text("def one(prompts, outputs):\n    return [1.0 for _ in outputs]\n")
    ((_, found),) = gold_rewards([spec])
    assert found == best


@pytest.mark.parametrize("spec", ["jpeg_compressibility", "length_bonus"])
def test_only_a_verifier_of_one_text_can_be_tried_on_answers(spec: str):
    with pytest.raises(ValueError, match=f"--reward {spec}"):
        gold_rewards([spec])
    assert gold_rewards([]) == []
    with pytest.raises(ValueError, match="^--reward: "):
        gold_rewards(["exact(low=3)"])
