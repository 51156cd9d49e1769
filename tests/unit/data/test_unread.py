"""Keys of rows that nothing reads are named; what reads a key is found in the sources."""

from __future__ import annotations

import pytest

import mmgrpo
from mmgrpo.data.streaming import StoredPrompts, join_parts
from mmgrpo.data.unread import in_words, keys_of, unread
from mmgrpo.family import families
from mmgrpo.inputs import keys_of_family, keys_of_reward, unread_keys
from mmgrpo.rewards import from_trl
from mmgrpo.toy import scenes
from mmgrpo.types import Prompt
from pipelines import visual
from pipelines.hub import files_of
from pipelines.visual import sd3
from tests.journeys.cli.running import write_rows
from tests.journeys.cli.test_check_data import check  # noqa: F401


@pytest.mark.parametrize(
    "reward, keys",
    [
        ("ocr", {"text"}),
        ("geneval", {"include", "exclude", "tag"}),
        ("keywords", {"keywords"}),
        ("key_steps", {"key_steps"}),
        ("maze_moves", {"tags"}),
        ("clip_score", set()),
        ("box_iou", {"size", "coordinates"}),
        ("temporal_time_r1", {"duration"}),
        ("by_task(tasks=['a'], reward='keywords')", {"keywords"}),
        ("by_task(tasks=['a'], reward=\"ocr(what='meta.sign')\")", {"text", "sign"}),
    ],
)
def test_the_keys_that_a_reward_reads_are_found_in_its_source(reward, keys):
    read = keys_of_reward(reward)
    assert read is not None and read >= keys
    assert not read & {"system", "difficulty", "source"}


@pytest.mark.parametrize(
    "family, keys",
    [
        ("flow_speech", {"reference_text", "seconds"}),
        ("stable_audio", {"seconds"}),
        ("stable_audio3", {"seconds"}),
        ("causal_lm", set()),
    ],
)
def test_the_keys_that_a_family_reads_are_found_in_its_source(family, keys):
    read = keys_of_family(families()[family])
    assert read is not None and read >= keys and "difficulty" not in read


@pytest.mark.parametrize(
    ("family", "read"),
    [
        *((family, True) for family in ("causal_lm", "qwen_vl", "image_text", "qwen_audio", "audio_text")),
        *((family, False) for family in ("sd3", "wan", "stable_audio", "codec_speech", "flow_speech", "whisper")),
    ],
)
def test_a_system_prompt_is_read_where_the_roles_of_turns_are(tmp_path, family, read):
    rows = [{"text": "a", "system": "Be brief."}, {"messages": [turn("system"), turn("user")]}, {"text": "b"}]
    stored = StoredPrompts(files_of(write_rows(tmp_path / "rows.jsonl", rows)))
    assert keys_of(stored) == keys_of(list(stored)) == {"system": 2}
    text = unread_keys(keys_of(stored), 3, [], set(), families()[family])
    assert text.startswith("data: 'system' (2 of 3 rows): ") == (not read) and bool(text) == (not read)


@pytest.mark.parametrize(("family", "read"), [("causal_lm", True), ("sd3", False), ("flow_speech", False)])
def test_earlier_answers_are_named_where_only_the_users_text_is_read(tmp_path, family, read):
    turns = [turn("user"), turn("assistant"), turn("user")]
    rows = [{"messages": turns}, {"messages": [turn("user"), turn("assistant")]}, {"text": "b"}]
    stored = StoredPrompts(files_of(write_rows(tmp_path / "rows.jsonl", rows)))
    assert keys_of(stored)["assistant"] == keys_of(list(stored))["assistant"] == 1, "the last answer is the row's reply"
    text = unread_keys(keys_of(stored), 3, [], set(), families()[family])
    assert ("'assistant' (1 of 3 rows)" in text) == (not read)


def turn(role: str) -> dict[str, str]:
    return {"role": role, "content": "a"}


def test_a_class_of_tools_reads_what_its_reset_takes_from_the_row():
    keys = {"tiles": 2, "asked": 2, "level": 2}
    readers = ["task", "pipelines.vlm.peek:Peek"]
    assert "'level'" in (text := unread_keys(keys, 2, readers, set(), families()["qwen_vl"])) and "tiles" not in text
    assert "'tiles'" in unread_keys(keys, 2, readers[:1], set(), families()["qwen_vl"])


def test_a_rewards_own_file_and_a_server_may_read_other_keys(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(
        "def score(prompts, outputs):\n    return [p.meta['level'] for p in prompts]\n"
        "def turns(prompts, outputs):\n    return [len(p.turns[0].role) for p in prompts]\n"
    )
    read = keys_of_reward("own:score(weight=2)")
    assert read is not None and "level" in read and "difficulty" not in read
    assert [one for one in ("score", "turns") if "system" in (keys_of_reward(f"own:{one}") or ())] == ["turns"]
    assert keys_of_reward("served(reward='mine', url='http://127.0.0.1:1')") is None

    def of_columns(completions, solution, **others):
        return [0.0] * len(completions)

    trl = keys_of_reward(from_trl(of_columns))
    assert trl is not None and "solution" in trl


def test_keys_are_counted_once_with_their_rows_and_without_nulls(tmp_path):
    rows = [{"text": "a", "hint": "Be brief.", "note": None}, {"text": "b", "hint": "x", "tag": 1}, {"text": "c"}]
    prompts = [Prompt(row["text"], meta={k: v for k, v in row.items() if k != "text"}) for row in rows]
    stored = StoredPrompts(files_of(write_rows(tmp_path / "rows.jsonl", rows)))
    assert keys_of(prompts) == keys_of(stored) == keys_of(stored[:1]) == {"hint": 2, "tag": 1}
    assert keys_of(join_parts([stored, prompts])) == {"hint": 4, "tag": 2}
    assert unread(keys_of(prompts), [frozenset({"tag"})]) == {"hint": 2}
    assert unread(keys_of(prompts), [frozenset(), None]) == {}
    assert in_words({"tag": 1, "hint": 3}, 3) == "'hint' (3 rows), 'tag' (1 of 3 rows)"


def test_keys_that_the_reader_of_rows_takes_are_read():
    assert unread({"reward_model": 2, "reply": 3, "extra_info": 2}, []) == {"extra_info": 2}


def tagged(prompts, outputs):
    return [float(output.pixels.mean()) + len(prompt.meta["tag"]) for prompt, output in zip(prompts, outputs)]


@pytest.mark.slow
def test_a_run_names_the_keys_that_nothing_reads(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = str(sd3.tiny_words(tmp_path / "words", scenes.vocabulary()))
    rows = [{"text": text, "tag": "x", "difficulty": 3} for text in ("a red circle", "two blue squares")]
    policy = visual.policy(words, height=16, width=16, steps=3, evaluation_steps=2)
    small = {"steps": 1, "group_size": 2, "prompts_per_step": 2, "trackers": [], "threads": 1}

    mmgrpo.train(policy, rows, [tagged], **small)
    [line] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("data: ")]
    assert "'difficulty' (2 rows)" in line and "'tag'" not in line


def test_check_data_names_the_keys_and_what_reads_them(check, tmp_path):  # noqa: F811
    rows = [{"text": "a", "system": "Be brief.", "tags": [1]}, {"text": "b", "difficulty": 3}]
    path = write_rows(tmp_path / "data.jsonl", rows)
    _, text, _ = check(path)
    lines = {line.split("'")[1]: line for line in text.splitlines() if line.startswith("  key")}
    assert lines.keys() >= {"tags", "difficulty", "system"} and "in 1 rows" in lines["difficulty"]
    assert "family qwen_audio" in lines["system"] and "sd3" not in lines["system"]
    assert "nothing" in lines["difficulty"] and "reward" in lines["tags"]
    _, text, _ = check(path, "--reward", "format")
    assert "nothing" in next(line for line in text.splitlines() if "'tags'" in line)
