"""Data sets that are checked before anything is trained on them."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import soundfile
from PIL import Image as Pil

from mmgrpo.cli.errors import enter
from mmgrpo.types import Media
from pipelines.vlm.estimate import Sizes, tokens_of
from pipelines.vlm.media import Measure
from tests.journeys.cli.running import call
from tests.tiny import maker


@pytest.fixture
def check(monkeypatch, capsys):
    """Exit status, what was printed, and what was printed as an error."""
    monkeypatch.delenv("MMGRPO_DEBUG", raising=False)

    def checked(*arguments):
        status = 0
        try:
            enter(lambda: call("check-data", *arguments))
        except SystemExit as end:
            status = end.code
        return status, *capsys.readouterr()

    return checked


def data(folder, rows=20):
    """A data set of questions about pictures, one of them a clip of frames."""
    for number in range(rows):
        Pil.new("RGB", (56, 28)).save(folder / f"{number}.png")
    lines = [{"text": "How many?", "image": f"{n}.png", "answer": "1", "task": "numeric"} for n in range(rows - 1)]
    lines.append({"text": "Which?", "video": ["0.png", "1.png"], "answer": "B", "task": "choice", "id": "clip"})
    return write(folder, lines)


def write(folder, rows):
    path = folder / "data.jsonl"
    path.write_text("\n".join(json.dumps(row) if isinstance(row, dict) else row for row in rows))
    return path


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


# --- the command ----------------------------------------------------------------------------------


def test_a_good_data_set_is_described_and_passes(check, tmp_path):
    status, text, errors = check(data(tmp_path), "--skipped", tmp_path / "bad.jsonl")
    assert status == 0, errors
    assert "20 rows" in text and "no problems" in text
    assert "image 19, video 1" in text and "numeric 19, choice 1" in text and "20 rows have one" in text
    # A picture of 28 x 56 pixels is below the least area, 4 * 28 * 28: sqrt(3136 / 1568) = 1.41, so 56 x 84 pixels,
    # 6 tokens, and 9 letters of text are 3.
    assert "median 9," in text and "sides from 28 to 56 pixels" in text
    assert read(tmp_path / "bad.jsonl") == []


def test_every_kind_of_problem_is_listed_with_its_line(check, tmp_path):
    rows = read(data(tmp_path))
    (tmp_path / "3.png").write_bytes((tmp_path / "3.png").read_bytes()[:40])
    rows[5]["task"] = "numerc"
    rows[7]["answer"] = "some"
    rows[9]["video"] = {"path": "0.mp4", "nframes": 4}
    rows[11]["id"] = "clip"
    rows[13] = '{"text": '
    Pil.new("RGB", (300, 1)).save(tmp_path / "15.png")
    status, text, _ = check(write(tmp_path, rows), "--skipped", tmp_path / "bad.jsonl")
    assert status == 1 and "7 rows have problems" in text
    problems = [line for line in text.splitlines() if line.startswith(f"  {tmp_path}")]
    lines = {4: "cannot be read as an image", 6: "Did you mean 'numeric'", 8: "some", 10: "has no option 'nframes'"}
    lines |= {14: "not JSON", 16: "at most 200 to 1", 20: "the id 'clip' occurs at"}
    assert len(problems) == 7
    for (number, complaint), problem in zip(lines.items(), problems, strict=True):
        assert f"data.jsonl:{number}: " in problem and complaint in problem
    bad = {row["id"].rsplit("/")[-1]: row for row in read(tmp_path / "bad.jsonl")}
    assert len(bad) == 7 and bad["data.jsonl:4"]["file"] == str(tmp_path / "3.png")
    assert set(bad["data.jsonl:4"]) == {"id", "file", "reason"}


def test_prompts_that_are_there_twice_are_mentioned_and_no_problem(check, tmp_path):
    status, text, _ = check(write(tmp_path, [{"text": one} for one in "abab"]))
    assert status == 0 and re.search("2 rows.*data.jsonl:1 and .*data.jsonl:3", text)
    assert "repeated" not in check(write(tmp_path, [{"text": one} for one in "ab"]))[1]


def test_a_reward_that_cannot_score_texts_is_named_and_no_defect(check, tmp_path, monkeypatch):
    (tmp_path / "own_images.py").write_text("def red(prompts, outputs):\n    return [one.pixels for one in outputs]\n")
    monkeypatch.chdir(tmp_path)
    status, text, _ = check(write(tmp_path, [{"text": "a"}]), "--reward", "own_images:red")
    assert status == 0 and re.search("'red' fails on a text .*pixels", text)


def test_one_unreadable_picture_in_twenty_is_at_the_limit_of_a_twentieth(check, tmp_path):
    path = data(tmp_path)
    (tmp_path / "3.png").unlink()
    status, text, _ = check(path)
    assert status == 1 and "1 rows have problems" in text and "data.jsonl:4: " in text
    assert check(path, "--skip-limit", 0.05)[0] == 0
    assert check(path, "--skip-limit", 0.049)[0] == 1
    assert check(path, "--limit", 3)[0] == 0


def test_a_row_that_is_none_stops_a_run_and_so_counts_whatever_the_limit(check, tmp_path):
    table = tmp_path / "a.csv"
    table.write_text("caption,note\na fox,1\n,2\na dog,3\n")
    status, text, _ = check(table, "--columns", "caption=text", "--skip-limit", 0.5)
    assert status == 1 and "1 rows have problems" in text and "a.csv:3: data.columns: " in text and "'caption'" in text
    table.write_text("caption,note\na fox,1\na dog,3\n")
    assert check(table, "--columns", "caption=text", "--skip-limit", 0.5)[0] == 0


def test_tokens_are_counted_with_a_model_and_prompts_over_the_limit_are_listed(check, tmp_path):
    pytest.importorskip("transformers")
    from pipelines.vlm import qwen_vl

    path, model = data(tmp_path, rows=2), qwen_vl.tiny(tmp_path / "model")
    status, text, errors = check(path, "--model", model, "--max-pixels", 1024, "--max-prompt-tokens", 5)
    assert status == 1, errors
    assert "data.jsonl:1: has" in text and "more than --max-prompt-tokens 5" in text


@pytest.mark.parametrize(
    ("family", "kind", "tokens"),
    [
        ("causal_lm", "qwen2.5", "per prompt: "),
        ("whisper", "multilingual", "not counted: .*whisper"),
    ],
)
def test_tokens_are_counted_for_language_models_and_not_for_others(check, tmp_path, family, kind, tokens):
    model = maker(family)(tmp_path / "model", **({"kind": kind} if kind else {}))
    path = write(tmp_path, [{"text": "what is it"}])
    status, text, errors = check(path, "--model", model)
    assert status == 0 and re.search(f"tokens +{tokens}", text), errors
    status, text, errors = check(path, "--model", model, "--max-prompt-tokens", 5)
    assert (status == 1) if kind == "qwen2.5" else (status == 2 and "--max-prompt-tokens" in errors)


def test_prompts_that_a_generator_would_cut_are_problems(check, tmp_path):
    from pipelines.visual import sd3_tiny

    model = sd3_tiny.tiny(tmp_path / "model")
    path = write(tmp_path, [{"text": "a red cat"}, {"text": "a " * 900}])
    status, text, errors = check(path, "--model", model)
    assert status == 1 and "data.jsonl:2" in text and "256" in text and "1 rows have problems" in text, errors
    assert check(path, "--model", model, "--max-prompt-tokens", 2000)[0] == 0


def test_tasks_of_other_rewards_need_not_be_known(check, tmp_path):
    path = write(tmp_path, [{"text": "a red circle", "task": "colour"}])
    assert check(path)[0] == 1
    assert check(path, "--no-check-tasks")[0] == 0


def test_what_is_no_data_set_ends_with_one_line(check, tmp_path):
    (tmp_path / "data.tsv").write_text("a\n")
    for name, complaint in (("none.jsonl", "no such prompt file"), ("data.tsv", "got a '.tsv' file")):
        status, _, errors = check(tmp_path / name)
        assert status == 2 and complaint in errors and "Traceback" not in errors
    status, _, errors = check(write(tmp_path, [{"text": "a"}]), "--family", "sd3")
    assert status == 2 and "--family: got 'sd3', expected one of qwen_vl" in errors


# --- tokens ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("media", "known", "tokens"),
    [
        # 476 x 644 pixels (see smart_resize): 17 * 23.
        (Media("image", "a.png"), Measure(480, 640), 391),
        # 448 x 840: 16 * 30.
        (Media("image", "a.png", {"max_pixels": 401408}), Measure(1080, 1920), 480),
        # 10 s at 2 a second are 20 frames, 10 pairs of 8 * 8.
        (Media("video", "a.mp4"), Measure(224, 224, 300, 10.0), 640),
        (Media("video", "a.mp4", {"frames": 4}), Measure(224, 224, 300, 10.0), 128),
        # From second 2 to 4 there are 61 frames: 2.03 s, 4 frames.
        (Media("video", "a.mp4", {"start": 2.0, "end": 4.0}), Measure(224, 224, 300, 10.0), 128),
        # A least size above the largest frame's leaves 5 % above it: 1008 * 1008 of at most 1,050,000 pixels, 36 * 36.
        (Media("video", "a.mp4", {"frames": 4, "min_pixels": 10**6}), Measure(1010, 1010, 300, 10.0), 2 * 1296),
        # 768 frames share 128000 * 0.9 * 28 * 28 pixels: 2 * 115200 / 768 = 300 patches a frame, of which 17 * 17
        # are a square: 384 pairs of 289.
        (Media("video", "a.mp4"), Measure(1000, 1000, 12000, 400.0), 384 * 289),
    ],
)
def test_tokens_follow_from_sizes(media, known, tokens):
    assert tokens_of(media, known, Sizes()) == tokens


@pytest.mark.parametrize(
    ("settings", "problem"),
    [((), "30"), (("--windows", "2"), ""), (("--seconds", "31"), ""), (("--seconds", "15", "--windows", "2"), "30")],
)
def test_recordings_may_be_as_long_as_the_windows_of_the_run(check, tmp_path, settings, problem):
    soundfile.write(tmp_path / "a.wav", np.sin(np.arange(31 * 1_000) * 0.1) / 2, 1_000)  # 31 s
    path = write(tmp_path, [{"text": "", "audio": "a.wav", "answer": "a tone"}])
    status, text, _ = check(path, *settings)
    assert status == bool(problem) and ("maximum 31" in text) == (not problem)
    assert not problem or f"31.0 s of sound, expected at most {problem} s" in text


def test_sounds_are_listened_to_and_their_answers_are_texts(check, tmp_path):
    for number in range(3):
        tone = np.sin(np.arange(8_000 * (number + 1)) * 0.1) / 2
        soundfile.write(tmp_path / f"{number}.wav", tone * (number < 2), 16_000)
    rows = [{"text": "", "audio": f"{number}.wav", "answer": "a tone", "task": "transcribe"} for number in range(3)]
    status, text, _ = check(write(tmp_path, rows[:2]))
    assert status == 0 and "audio 2" in text
    assert (
        "2, seconds: minimum 0.5, median 0.75, 95th percentile 1, maximum 1" in text
    )  # 8,000 and 16,000 of 16,000 a second
    del rows[0]["answer"]
    status, text, _ = check(write(tmp_path, rows))
    assert status == 1 and "2 rows have problems" in text
    assert "'answer': got None, expected the transcript" in text and "2.wav: is silent" in text


# --- reference answers ----------------------------------------------------------------------------


@pytest.mark.slow
def test_a_reference_answer_that_its_own_task_does_not_reward_is_reported(check, tmp_path):
    rows = [
        {"text": "2 + 2?", "task": "numeric", "answer": "4"},
        {"text": "2 + 2?", "task": "numeric", "answer": "four"},
        {"text": "Which?", "task": "exact", "answer": ["a cat", "the cat"]},
        {"text": "Which?", "task": "choice", "answer": "B. a cat"},
        {"text": "Which?", "task": "exact", "answer": "<answer>a cat</answer>"},
        {"text": "Which?", "task": "choices", "answer": ["A", "C"]},
        {"text": "Where?", "task": "box_iou", "answer": [1, 2, 3, 4], "coordinates": "pixels"},
        {"text": "No task.", "answer": "anything"},
    ]
    status, text, _ = check(write(tmp_path, rows))
    assert status == 1 and "3 rows have problems" in text
    assert all(place in text for place in ("data.jsonl:2", "data.jsonl:4", "data.jsonl:7"))
    status, text, _ = check(write(tmp_path, rows), "--no-check-tasks")
    assert status == 0 and "no problems" in text


def test_a_reward_of_the_run_is_tried_on_every_reference_answer(check, tmp_path):
    rows = [
        {"text": "Which?", "answer": "a cat"},
        {"text": "Which?", "answer": "<answer>a</answer> b"},
        {"text": "Which?"},
    ]
    status, text, _ = check(write(tmp_path, rows), "--reward", "exact")
    assert status == 1 and "2 rows have problems" in text and "data.jsonl:3" in text  # without an answer
    assert (
        "data.jsonl:2: 'answer': reward 'exact' gives the reference answer '<answer>a</answer> b' itself 0, expected 1"
        in text
    )
    status, text, _ = check(write(tmp_path, rows[:1]), "--reward", "format(weight=0.5)")
    assert status == 0 and "reward 'format'" in text  # its form is to be asked for, which is no fault of the row


@pytest.mark.parametrize("reward", ["task", "box_iou", None])
@pytest.mark.parametrize("coordinates", ["absolute", "resized", "relative_1000", "relative_1"])
@pytest.mark.parametrize("answer", [[5, 5, 20, 20], "[5, 5, 20, 20]"])
def test_a_right_box_has_no_problem_in_any_coordinates(check, tmp_path, reward, coordinates, answer):
    Pil.new("RGB", (60, 40)).save(tmp_path / "a.png")
    row = {"text": "Where? Answer in <answer>.", "image": "a.png", "task": "box_iou", "answer": answer}
    path = write(tmp_path, [row | {"coordinates": coordinates, "size": [40, 60]}])
    status, text, _ = check(path, *(["--reward", reward] if reward else []))
    assert status == 0 and "no problems" in text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"size": [60, 40]}, ("'size'", "[40, 60]")),  # width and height exchanged
        ({"size": [40, 90]}, ("'size'", "[40, 60]")),
        ({"image": "turned.png"}, ("'size'", "[60, 40]", "EXIF")),  # stored as 60 x 40, shown upright
        ({"answer": [5, 5, 70, 20]}, ("[5, 5, 70, 20]", "40 high", "60 wide")),
        ({"answer": "[5, 5, 70, 20]"}, ("[5, 5, 70, 20]", "40 high")),
        ({"answer": [5, 5, 70, 20], "size": None, "coordinates": "absolute"}, ("[5, 5, 70, 20]", "40 high")),
        ({"answer": [83, 125, 333, 500]}, ("thousandths",)),
        ({"answer": [0.1, 0.1, 0.4, 0.6]}, ("fractions",)),
        ({"answer": [5, 20, 20, 55]}, ("[width, height]",)),
        ({"answer": [-9, 5, 20, 20]}, ("[-9, 5, 20, 20]",)),
        ({"size": None}, ("meta.size",)),
        ({"task": "detection_ap", "answer": [{"bbox_2d": [5, 5, 70, 20], "label": "cat"}]}, ("40 high",)),
        ({"size": [80, 120], "answer": [5, 5, 110, 70]}, ()),  # the file is a copy at half the size
        ({"size": None, "coordinates": "absolute", "answer": [0, 0, 60, 40.5]}, ()),  # within a pixel
    ],
)
@pytest.mark.parametrize("rewards", [(), ("--reward", "task")])
def test_a_box_in_another_system_is_named_with_its_row(check, tmp_path, changes, words, rewards):
    if changes.get("task") == "detection_ap":
        pytest.importorskip("pycocotools")
    Pil.new("RGB", (60, 40)).save(tmp_path / "a.png")
    exif = Pil.Exif()
    exif[0x0112] = 6
    Pil.new("RGB", (60, 40)).save(tmp_path / "turned.png", exif=exif)
    row = {"text": "Where? Answer in <answer>.", "image": "a.png", "task": "box_iou", "answer": [5, 5, 20, 20]}
    row |= {"coordinates": "resized", "size": [40, 60]}
    status, text, _ = check(write(tmp_path, [row, row | {"id": "b"} | changes]), *rewards)
    named = [line for line in text.splitlines() if line.startswith(f"  {tmp_path}")]
    assert (status == 1) == bool(words) and len(named) == bool(words)
    assert not words or ("data.jsonl:2" in named[0] and all(word in named[0] for word in words)), named


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"image": "a.png", "problem": "Where is it?", "bbox": [1, 2, 3, 4]}, "--data.columns bbox=answer"),
        ({"image": "a.png", "problem": "What is it?", "label": "cat"}, "--data.columns label=answer"),
        ({"image": "a.png", "problem": "What is it?", "label": "cat", "answer": "cat"}, ""),
        ({"image": "a.png", "prompt": "make it red", "target": "b.png"}, ""),  # an image to generate
        ({"image": "a.png", "prompt": "make it red", "size": 3}, ""),
        ({"prompt": "a red cat", "label": "cat"}, ""),  # a text to draw
    ],
)
def test_rows_whose_answers_nobody_finds_cannot_train(check, tmp_path, row, words):
    Pil.new("RGB", (8, 8)).save(tmp_path / "a.png")
    status, text, _ = check(write(tmp_path, [row, row]))
    assert (status == 1) == bool(words) and ("no problems" in text) != bool(words) and words in text


def test_options_are_counted_and_a_gold_solution_is_no_answer_to_itself(check, tmp_path, monkeypatch):
    status, text, _ = check(write(tmp_path, [{"question": "Which?", "choices": ["cat", "dog"], "answer": "B"}] * 2))
    assert status == 0 and re.search("options +2 rows have 2 to 2", text)
    # The answer behind the last "####" is tried, which a reward that compares whole texts does not accept.
    row = {"question": "How many?", "answer": "Half of 48 is 24. 48 + 24 = 72\n#### 72"}
    body = "    return [float(one.text == row.answer) for row, one in zip(prompts, outputs)]"
    (tmp_path / "own_whole.py").write_text(f"def whole(prompts, outputs):\n{body}\n")
    monkeypatch.chdir(tmp_path)
    status, text, _ = check(write(tmp_path, [row]), "--reward", "own_whole:whole")
    assert status == 1 and "'72'" in text


def test_rewards_of_images_check_the_rows_that_they_read(check, tmp_path, monkeypatch):
    monkeypatch.setattr("mmgrpo.scoring.manifest.importlib.util.find_spec", lambda name: object())
    rows = [{"text": 'a "sign"'}, {"text": "a red circle"}, {"text": "a sign", "answer": "STOP"}]
    status, text, _ = check(write(tmp_path, rows), "--reward", "ocr")
    assert status == 1 and "2 rows have problems" in text and "data.jsonl:1" in text and "from_quotes" in text
    status, text, _ = check(write(tmp_path, rows), "--reward", "ocr(from_quotes=True)")
    assert status == 1 and "1 rows have problems" in text and "data.jsonl:2" in text
    status, text, _ = check(write(tmp_path, rows), "--reward", "jpeg_compressibility", "--reward", "pickscore")
    assert status == 0 and "no problems" in text


def test_one_problem_of_many_rows_is_one_line_with_the_columns_that_solve_it(check, tmp_path):
    rows = [{"query": f"what {row}", "gt": row} for row in range(20)]
    status, text, _ = check(write(tmp_path, rows))
    assert status == 1 and text.count("has no 'text'") == 1 and "19 other rows" in text
    assert "query=problem,gt=answer" in text
    assert check(write(tmp_path, rows), "--columns", "query=problem,gt=answer")[0] == 0


def test_the_maximum_of_a_reward_is_that_of_its_manifest(check, tmp_path):
    rows = [{"text": "Say it.", "answer": "a red cat"}]
    status, text, _ = check(write(tmp_path, rows), "--reward", "neg_wer")
    assert status == 0, text


def test_a_reward_of_the_form_is_tried_with_a_thought_too(check, tmp_path):
    rows = [{"text": "Answer with <think> and <answer>: how many?", "answer": "2"}]
    status, text, _ = check(write(tmp_path, rows), "--reward", "format", "--reward", "exact")
    assert status == 0, text


def test_a_reward_without_a_maximum_must_only_give_the_reference_more_than_nothing(check, tmp_path):
    rows = [{"text": "Find the way.", "task": "maze", "answer": "<|up|><|left|>"}]
    status, text, _ = check(write(tmp_path, rows), "--reward", "maze_steps")  # 0.2 for each of two moves
    assert status == 0, text
    status, text, _ = check(write(tmp_path, rows), "--reward", "maze_steps(step=0)")
    assert status == 1 and "gives an empty answer 0, as much as the reference answer" in text


@pytest.mark.parametrize(
    ("text", "reward", "words"),
    [
        ("How many?", "task", ("'task'", "<answer>")),
        ("How many? Answer in <answer> tags.", "task", ()),
        ("How many?", "task(tags=False)", ()),
        ("How many?", "format", ("'format'", "<think>", "<answer>")),
        ("Think in <think>, answer in <answer>.", "format", ()),
        ("How many?", "format(style='boxed')", ("'format'", "<think>", "boxed")),
        (r"Think in <think>. How many? Write \boxed{}.", "format(style='boxed')", ()),
    ],
)
def test_a_form_that_a_reward_reads_and_no_prompt_asks_for_is_named(text, reward, words, check, tmp_path):
    path = write(tmp_path, [{"text": f"{text} {n}", "answer": str(n), "task": "numeric"} for n in range(3)])
    _, shown, _ = check(path, "--reward", reward)
    lines = [line for line in shown.splitlines() if line.startswith("  format")]
    assert len(lines) == bool(words) and all(word in lines[0] for word in words)
    if reward == "task":
        assert [line for line in check(path)[1].splitlines() if line.startswith("  format")] == lines


def test_the_form_may_be_asked_for_by_the_system_prompt(check, tmp_path):
    path = write(tmp_path, [{"text": "How many?", "system": "Use <answer>.", "answer": "1", "task": "numeric"}])
    assert "  format" not in check(path)[1]


def test_the_result_as_json_is_all_of_standard_output(check, tmp_path):
    path = data(tmp_path, rows=3)
    path.write_text(path.read_text() + '\n{"text": "Where?", "image": "gone.png", "weather": "wet"}')
    status, out, err = check(path, "--json")
    result = json.loads(out)
    assert status == 1 and "4 rows" in err and result.keys() == {
        *("data", "accepted", "rows", "readable", "media", "tasks", "answers", "pixels", "seconds", "tokens", "keys"),
        *("notes", "problems"),
    }  # fmt: skip
    assert (result["accepted"], result["rows"], result["readable"], result["answers"]) == (False, 4, 4, 3)
    assert result["media"] == {"image": 3, "video": 1} and result["tasks"] == {"numeric": 2, "choice": 1}
    assert result["pixels"]["median"] == 56 * 28 and result["keys"]["weather"] == {"rows": 1, "read_by": []}
    (problem,) = result["problems"]
    assert problem.keys() == {"place", "id", "file", "reason"} and problem["file"].endswith("gone.png")
