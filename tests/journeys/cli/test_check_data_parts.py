"""What is a problem of a row and what is not, and the statistics of a data set: each by itself."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from mmgrpo.cli import check_data
from mmgrpo.cli.check_data import (
    Args,
    counter,
    equal_answers,
    gold_problem,
    gold_rewards,
    length_problem,
    media_problem,
    print_problems,
    sizes_of,
    spread,
    statistics_of,
    task_problem,
)
from mmgrpo.data.media import Skipped
from mmgrpo.rewards import scorer
from mmgrpo.scoring import Scorer
from mmgrpo.types import Answer, Media, Prompt, Turn
from pipelines.vlm.estimate import Sizes
from pipelines.vlm.media import Measure

SOUND, PICTURE, CLIP = Media("audio", "a.wav"), Media("image", "a.png"), Media("video", "a.mp4")


def asked(*media: Media, **columns: Any) -> Prompt:
    return Prompt("q", "q", turns=(Turn("user", (*media, "q")),), **columns)


# ---- problems


def test_the_first_medium_that_cannot_be_read_is_named():
    errors = [Measure(4, 4), ValueError("broken"), ValueError("also")]
    assert media_problem(asked(PICTURE, CLIP, SOUND), errors) == Skipped("q", "a.mp4", "broken")
    assert media_problem(asked(PICTURE), [Measure(4, 4)]) is None


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
    long = gold_problem(Prompt("q", answer="x" * 99), [(giving(), 1.0)])
    assert long is not None and f"'{'x' * 80}'" in long.reason


def test_an_answer_that_a_reward_refuses_is_a_problem():
    def refusing(prompts: Any, outputs: Any) -> list[float]:
        raise ValueError("not a sum")

    assert gold_problem(Prompt("q", "q", answer="a"), [(Scorer("sums", refusing), 1.0)]) == Skipped(
        "q", "", "not a sum"
    )


@pytest.mark.parametrize("answer", [None, {"a": 1}, ["a", None], [["a"]]])
def test_an_answer_that_is_no_text_or_number_is_not_tried(answer: Any):
    assert gold_problem(Prompt("q", answer=answer), [(giving(), 1.0)]) is None


def test_without_a_reward_only_tasks_that_are_answered_in_words_are_tried():
    assert gold_problem(Prompt("q", answer="anything"), []) is None
    assert gold_problem(Prompt("q", answer=[1, 2, 3, 4], task="box_iou"), []) is None
    assert gold_problem(Prompt("q", answer="B", task="choice"), []) is None
    wrong = gold_problem(Prompt("q", answer="<answer>a</answer>b", task="exact"), [])
    assert wrong is not None and "reward 'task' gives the reference answer" in wrong.reason
    # The maximum of the reward "task" is that of the row's task, whatever the reward's own.
    assert gold_problem(Prompt("q", answer="4", task="numeric"), [(scorer("task"), 7.0)]) is None


def test_a_prompt_is_too_long_beyond_the_limit():
    prompt = Prompt("q", "q")
    for limit, problem in ((0, False), (5, False), (6, False), (4, True), (1, True)):
        found, length = length_problem(prompt, [], lambda prompt, sizes: 5, limit)
        assert length == 5 and (found is not None) is problem
        assert found in (None, Skipped("q", "", f"has 5 tokens, more than --max-prompt-tokens {limit}"))

    def impossible(prompt: Prompt, sizes: Any) -> int:
        raise ValueError("too thin")

    assert length_problem(prompt, [], impossible, 0) == (Skipped("q", "", "too thin"), 0)


@pytest.mark.parametrize(
    ("options", "tokens"),
    [
        ({}, 391),  # 476 x 644 pixels: 17 x 23 patches of 28 x 28
        ({"max_pixels": 28 * 28 * 100}, 88),  # 8 x 11
        ({"min_pixels": 28 * 28 * 600}, 638),  # 22 x 29
    ],
)
def test_tokens_are_those_of_pictures_and_a_quarter_of_the_letters(options: dict[str, Any], tokens: int):
    count, note = counter(Args("a.jsonl", **options))
    assert "--model" in note
    assert count is not None
    assert count(asked(SOUND, PICTURE), [Measure(0, 0), Measure(480, 640)]) == tokens + 1
    for letters, words in ((3, 1), (4, 2), (11, 3)):
        assert count(Prompt("x" * letters), []) == words


@pytest.mark.parametrize(
    ("options", "tokens"),
    [
        ({}, 640),  # 10 s at 2 a second: 10 pairs of 8 x 8
        ({"fps": 1.0}, 320),
        ({"max_frames": 4}, 128),
        ({"frame_pixels": 112 * 112}, 160),
    ],
)
def test_tokens_of_clips_follow_the_options(options: dict[str, Any], tokens: int):
    count, _ = counter(Args("a.jsonl", **options))
    assert count and count(asked(CLIP), [Measure(224, 224, 300, 10.0)]) == tokens + 1


def test_tokens_of_a_model_are_those_that_it_counts(monkeypatch):
    asked_for: list[Any] = []

    def of_model(path: str, **limits: Any) -> Any:
        asked_for.append((path, limits))
        return Sizes(max_pixels=28 * 28 * 100), lambda prompt: 50

    monkeypatch.setattr("pipelines.vlm.estimate.of_model", of_model)
    monkeypatch.setattr(check_data, "generator_check", lambda path, most: None)
    count, _ = counter(Args("a.jsonl", model="a/model", fps=1.0))
    assert asked_for == [("a/model", {"fps": 1.0})]
    assert count and count(asked(PICTURE), [Measure(480, 640)]) == 50 + 88  # 8 x 11 patches


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


def test_the_spread_of_numbers_and_sizes():
    assert sizes_of([]) == spread("s", []) == ""
    assert spread("s", [*range(100, 0, -1)]) == "s: minimum 1, median 50.5, 95th percentile 96, maximum 100"
    assert spread("s", [1]) == "s: minimum 1, median 1, 95th percentile 1, maximum 1"
    assert spread("s", [1, 2.00004]).endswith("maximum 2")
    sizes = [Measure(1000, 2000), Measure(1000, 1000), Measure(3000, 500)]
    assert sizes_of(sizes) == "3, sides from 500 to 3000 pixels, median area 1.5 megapixels"


@pytest.mark.parametrize(
    ("count", "shown", "last"),
    [(0, 0, ""), (1, 1, ""), (20, 20, ""), (21, 20, "  ... and 1 more;"), (23, 20, "3 more;")],
)
def test_twenty_problems_are_printed(count: int, shown: int, last: str, capsys):
    print_problems({f"a:{i}": Skipped("x", "", f"why {i}") for i in range(count)})
    head, *lines = capsys.readouterr().out.splitlines()
    assert head == (f"{count} rows have problems" if count else "no problems")
    assert lines[:shown] == [f"  a:{i}: why {i}" for i in range(shown)]
    assert len(lines) == shown + bool(last) and last in (lines or [""])[-1]


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


def test_only_lengths_that_are_known_are_counted_and_problems_are_written_as_they_are(checked):
    rows = [{"text": "abc"}, {"text": "ü", "id": "ü"}, {"text": "abcde"}]
    status, text, bad = checked(rows, max_prompt_tokens=4)
    assert status == 1 and "per prompt: minimum 3, median 4" in text and "maximum 5" in text
    assert len(bad.splitlines()) == 2 and '"id": "ü"' in bad
    assert text.index("data.jsonl:2: cannot be shown") < text.index("data.jsonl:3: has 5 tokens, more than")
    assert checked(rows, max_prompt_tokens=4, skip_limit=2 / 3)[0] == 0
    assert checked(rows, max_prompt_tokens=4, limit=1)[0] == 0


def test_a_row_has_the_first_of_its_problems_and_no_length(checked):
    rows = [
        {"text": "abc", "answer": "a"},
        {"text": "abcdefgh", "task": "numerc"},
        {"text": "abcdefgh", "answer": "<answer>a</answer> b"},
        {"text": "abcdefgh", "image": "gone.png", "task": "numerc"},
        {"text": ""},
    ]
    status, text, bad = checked(rows, reward=["exact"])
    assert status == 1 and "data.jsonl: 5 rows\n" in text and "4 rows have problems" in text
    places, reasons = zip(*(line.split("data.jsonl:", 1)[1].split(": ", 1) for line in text.splitlines()[-5:-1]))
    assert places == ("2", "3", "4", "5")
    words = ("Did you mean 'numeric'", "reward 'exact' gives the reference answer", "no such file", "'text'")
    assert all(part in reason for part, reason in zip(words, reasons, strict=True)), reasons
    assert "per prompt: minimum 3, median 3, 95th percentile 3, maximum 3" in text
    listed = [json.loads(line) for line in bad.splitlines()]
    assert sorted(row["reason"] for row in listed) == sorted(reasons)
    assert [row["file"].rpartition("/")[2] for row in listed if row["file"]] == ["gone.png"]
    status, text, bad = checked(rows, check_tasks=False, reward=["exact"], skipped="")
    assert "2 rows have problems" in text and "maximum 8" in text and "written" not in text


def test_columns_are_read_under_our_names(checked):
    status, text, _ = checked([{"question": "abcdefg"}], columns="question=prompt")
    assert status == 0 and "maximum 7" in text and "no problems" in text
