"""Settings of TRL and ms-swift become ours: data, names and rewards, on both sides of every condition."""

from __future__ import annotations

from typing import Any

import pytest

from mmgrpo.cli.migrate.tokens import where
from mmgrpo.rewards import scorer
from mmgrpo.types import Prompt, Text
from tests.journeys.cli.migrating import cases, convert, same, values, warned

# ---- data


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("a/b", "hf:a/b@train"),
        ("hf::a/b", "hf:a/b@train"),
        ("b.jsonl", "b.jsonl"),
        ("b.json", "b.json"),
        ("b.parquet", "b.parquet"),
        ("b.txt", "b.txt"),
    ],
)
def test_a_data_set_is_a_file_or_of_the_hub(name: str, place: str):
    assert where(name) == place
    assert where("a/b", ":c", "val") == "hf:a/b:c@val"


NONE = "data.train: no data set is named"


@cases(
    """
    settings | expected | words
    {} | {data.heldout: ''} | ['data.train: no data set is named']
    {eval_strategy: steps, eval_steps: 5} | {data.heldout: '', eval.every: 5} | ['data.train: no data set is named']
    {dataset_name: a/b, eval_steps: 5} | {data.train: 'hf:a/b@train', data.heldout: ''}
    {dataset_name: a.jsonl} | {data.train: a.jsonl, data.heldout: ''}
    {dataset_name: a.jsonl, eval_strategy: epoch} | {data.train: a.jsonl} | [a.jsonl has no splits]
    {dataset_name: a/b, dataset_config: c, dataset_train_split: all, eval_strategy: epoch}
        | {data.train: 'hf:a/b:c@all', data.heldout: 'hf:a/b:c@test'}
    {dataset_name: a/b, dataset_test_split: val, eval_strategy: steps}
        | {data.train: 'hf:a/b@train', data.heldout: 'hf:a/b@val'}
    {dataset_name: a/b, eval_strategy: epoch, eval_steps: 5} | {data.train: 'hf:a/b@train', data.heldout: 'hf:a/b@test'}
    {dataset_name: a.jsonl, dataset_prompt_column: problem} | {data.train: a.jsonl, data.heldout: ''}
    {dataset_name: a.jsonl, dataset_prompt_column: task_text}
        | {data.train: a.jsonl, data.heldout: '', data.columns: task_text=prompt}
    """
)
def test_data_of_trl(settings: dict[str, Any], expected: dict[str, Any], words: list[str]):
    draft = convert("trl", "data", settings)
    assert values(draft) == expected and warned(draft, *words)


@pytest.mark.parametrize("given", [{"q": "query", "gold": "solution", "level": "difficulty"}, '{"a": "answer"}', "a=b"])
def test_columns_of_ms_swift_become_ours(given: Any):
    draft = convert("ms_swift", "data", {"dataset": "a.jsonl", "columns": given})
    if given == "a=b":
        assert len(draft.questions["data.columns"]) == 1
        return
    expected = "a=answer" if isinstance(given, str) else "q=problem,gold=solution,level=meta.difficulty"
    assert values(draft)["data.columns"] == expected and not draft.warnings


def test_the_system_prompt_of_open_r1_is_ours_and_its_rewards_are_named():
    draft = convert("trl", "prompt rewards", {"system_prompt": "Think.", "reward_funcs": ["accuracy", "own"]})
    assert values(draft)["data.system"] == "Think."
    own, theirs = sorted(draft.warnings, key=len)
    assert "open_r1" not in own and "open_r1.rewards:accuracy_reward" in theirs


ROWS = "takes only some of the rows"
SPLIT = "held-out rows are a file of their own here"


@pytest.mark.parametrize(
    ("settings", "expected", "words"),
    [
        ({}, {"data.heldout": ""}, [NONE]),
        ({"dataset": "a/b#5"}, {"data.train": "hf:a/b@train", "data.heldout": ""}, [f"dataset {ROWS}"]),
        (
            {"dataset": ["a.jsonl", "b.jsonl", "c/d#2"], "val_dataset": ["v.jsonl", "w.jsonl"]},
            {
                **{"data.train": "a.jsonl", "data.extra_train": ["b.jsonl", "hf:c/d@train"]},
                **{"data.heldout": "v.jsonl", "eval.extra": ["w.jsonl"]},
            },
            [f"dataset {ROWS}"],
        ),
        ({"dataset": ["a.jsonl"], "split_dataset_ratio": 0.1}, {"data.train": "a.jsonl", "data.heldout": ""}, [SPLIT]),
    ],
)
def test_data_of_ms_swift(settings: dict[str, Any], expected: dict[str, Any], words: list[str]):
    draft = convert("ms_swift", "data", settings)
    assert values(draft) == expected and warned(draft, *words)
    assert [*draft.left] == (["split_dataset_ratio"] if SPLIT in words else [])
    with pytest.raises(ValueError, match="split_dataset_ratio.*2.0.*0.*1"):
        convert("ms_swift", "data", {"split_dataset_ratio": 2})


@pytest.mark.parametrize(
    ("settings", "lr"),
    [({}, 1e-4), ({"tuner_type": "full"}, 1e-5), ({"learning_rate": 3e-6, "tuner_type": "full"}, 3e-6)],
)
def test_the_learning_rate_of_ms_swift(settings: dict[str, Any], lr: float):
    assert values(convert("ms_swift", "learning_rate", settings)) == {"optim.lr": lr}


@pytest.mark.parametrize(
    ("settings", "pixels"),
    [({}, None), ({"max_pixels": 9}, 9), ({"MAX_PIXELS": 8}, 8), ({"MAX_PIXELS": 8, "max_pixels": 9}, 9)],
)
def test_the_pixels_of_ms_swift(settings: dict[str, Any], pixels: int | None):
    assert values(convert("ms_swift", "pixels", settings)) == ({"model.max_pixels": pixels} if pixels else {})


# ---- names and trackers


@pytest.mark.parametrize(
    ("given", "name"),
    [("a run", "a run"), ("a/b\\c", "a-b-c"), ("-.x", "x"), ("../", "run"), ("a\n\nb", "a-b"), ("", None), (7, "7")],
)
def test_the_name_of_a_run_is_one_component_of_a_path(given: Any, name: str | None):
    draft = convert("trl", "name", {"run_name": given})
    assert values(draft) == ({"name": name} if name else {})
    assert values(convert("verl", "name", {"trainer.experiment_name": "x/y"})) == {"name": "x-y"}


@pytest.mark.parametrize(
    ("given", "ours", "words"),
    [
        ("none", [], []),
        ("tensorboard", ["tensorboard"], []),
        (["console", "file", "tensorboard"], ["tensorboard"], []),
        (["tensorboard", "swanlab"], ["tensorboard", "swanlab"], []),
        ("json", [], ["report_to json is unknown"]),
        (None, [], []),
    ],
)
def test_trackers_are_kept_whether_or_not_they_are_installed_here(
    given: Any, ours: list[str], words: list[str], monkeypatch
):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name in ("tensorboard", "json") or None)
    draft = convert("trl", "trackers", {"report_to": given})
    assert values(draft) == {"trackers": ours} and warned(draft, *words)
    draft = convert("easyr1", "trackers", {"trainer.logger": ["wandb"]})
    assert values(draft) == {"trackers": ["wandb"]} and warned(draft)
    assert values(convert("easyr1", "trackers", {})) == {"trackers": []}  # its default, which nobody asked for


# ---- rewards


@cases(
    """
    settings | expected | words | left
    {} | {} | ['rewards: no reward is named']
    {reward_funcs: think_format_reward} | {rewards: [format(style='think')]}
    {reward_funcs: [think_format_reward, accuracy_reward], reward_weights: [2, 0.5]}
        | {rewards: ['format(weight=2, style=''think'')', 'math(weight=0.5, tags=False)']}
    {reward_funcs: [accuracy_reward, think_format_reward], reward_weights: 0.5}
        | {rewards: ['math(weight=0.5, tags=False)', format(style='think')]}
    {reward_funcs: [own.rewards.correct, 'lib:short'], reward_weights: [1, 2]}
        | {rewards: ['own.rewards:correct', 'lib:short(weight=2)']}
    {reward_funcs: [correct], reward_weights: [1]} | {}
        | ['rewards: correct, weight 1: ''mmgrpo rewards'' lists ours; one of your own is']
        | [reward_funcs, reward_weights]
    {reward_funcs: [accuracy_reward], reward_model_name_or_path: a/judge} | {rewards: [math(tags=False)]}
        | ['reward_model_name_or_path a/judge: name its counterpart'] | [reward_model_name_or_path]
    """
)
def test_rewards_of_trl(settings: dict[str, Any], expected: dict[str, Any], words: list[str], left: list[str]):
    draft = convert("trl", "rewards", settings)
    assert values(draft) == expected and warned(draft, *words) and [*draft.left] == left


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"reward_funcs": ["accuracy_reward", 3]}, "reward_funcs"),
        ({"reward_funcs": ["accuracy_reward"], "reward_weights": ["one"]}, "reward_weights"),
        ({"reward_funcs": ["accuracy_reward"], "reward_weights": [True]}, "reward_weights"),
    ],
)
def test_rewards_are_names_with_numbers(settings: dict[str, Any], key: str):
    with pytest.raises(ValueError, match=f"theirs.yaml.*{key}"):
        convert("trl", "rewards", settings)


@cases(
    """
    name | settings | reward
    accuracy | {} | math(tags='answer_or_whole')
    format | {} | format(style='think_answer_end')
    cosine | {} | cosine_length(max_tokens=512, right_short=1.0, right_long=0.5, wrong_short=-0.5, wrong_long=0.0)
    cosine
        | {cosine_max_len: 99, cosine_min_len_value_correct: 2, cosine_max_len_value_correct: 3,
            cosine_min_len_value_wrong: -4, cosine_max_len_value_wrong: -5}
        | cosine_length(max_tokens=99, right_short=2.0, right_long=3.0, wrong_short=-4.0, wrong_long=-5.0)
    repetition | {repetition_n_grams: 5} | repetition(n=5)
    soft_overlong | {soft_cache_length: 64} | soft_overlong(max_tokens=512, buffer=64)
    soft_overlong | {soft_cache_length: 64, soft_max_length: 99} | soft_overlong(max_tokens=99, buffer=64)
    soft_overlong | {soft_max_length: 99}
    """
)
def test_rewards_of_ms_swift(name: str, settings: dict[str, Any], reward: str):
    draft = convert("ms_swift", "rewards", {"reward_funcs": [name], "reward_model": ""} | settings)
    assert "rewards" not in draft.settings if not reward else draft.settings["rewards"].value == [reward]


@pytest.mark.parametrize(
    ("project", "name", "right", "wrong"),
    [
        ("trl", "accuracy_reward", ["so \\boxed{4}", "it is $4$", "<answer>$4$</answer>"], ["\\boxed{5}", "no idea"]),
        ("trl", "reasoning_accuracy_reward", ["<think>$5$</think> $4$"], ["$4$", "<think>$4$</think> $5$"]),
        ("ms_swift", "accuracy", ["so \\boxed{4}", "<think>$5$</think><answer>4</answer>"], ["<answer>5</answer> $4$"]),
    ],
)
def test_a_row_needs_no_column_to_be_judged_as_there(project: str, name: str, right: list[str], wrong: list[str]):
    """Values of their code for the gold answer $4$: TRL's ``accuracy_rewards.py``, ms-swift's ``MathAccuracy``."""
    (reward,) = convert(project, "rewards", {"reward_funcs": [name]}).settings["rewards"].value
    outputs = [Text(text) for text in (*right, *wrong)]
    prompts = [Prompt("2 + 2", answer="$4$")] * len(outputs)
    assert list(scorer(reward).fn(prompts, outputs)) == [1.0] * len(right) + [0.0] * len(wrong)


# ---- what is said around a question


def test_a_system_prompt_a_template_and_arguments_of_the_chat_template_are_carried_over(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "system.txt").write_text("Think first.\n")
    (tmp_path / "math.jinja").write_text("{{ content | trim }} Answer in boxes.\n")
    (tmp_path / "odd.jinja").write_text("{% if x %}{{ content }}{% endif %}")
    cases: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
        ("ms_swift", {"system": "Be brief."}, {"data.system": "Be brief."}),
        ("ms_swift", {"system": "system.txt"}, {"data.system": ["Think first.", "the text of system.txt"]}),
        ("ms_swift", {"enable_thinking": False}, {"model.template": {"enable_thinking": False}}),
        ("trl", {"chat_template_kwargs": {"a": 1}}, {"model.template": {"a": 1}}),
        ("trl", {"chat_template_kwargs": '{"enable_thinking": false}'}, {"model.template": {"enable_thinking": False}}),
        ("verl", {"data.apply_chat_template_kwargs.a": "b"}, {"model.template": {"a": "b"}}),
        (
            *("easyr1", {"data.format_prompt": "./math.jinja"}),
            {"data.template": ["{text} Answer in boxes.", "the text of ./math.jinja"]},
        ),
    ]
    for project, settings, expected in cases:
        draft = convert(project, "prompt", settings)
        assert same(values(draft), expected) and draft.questions == {}, settings
    for project, settings, key in (
        ("ms_swift", {"system": "other.txt"}, "data.system"),
        ("easyr1", {"data.format_prompt": "odd.jinja"}, "data.template"),
        ("easyr1", {"data.format_prompt": "other.jinja"}, "data.template"),
        ("trl", {"chat_template_kwargs": {"a": [1]}}, "model.template"),
    ):
        draft = convert(project, "prompt", settings)
        assert values(draft) == {} and [*draft.questions] == [key], settings
