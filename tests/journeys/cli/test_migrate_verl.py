"""Settings of EasyR1 and verl become ours: sizes, steps, data, rewards and LoRA, on both sides of every condition."""

from __future__ import annotations

from typing import Any

import pytest

from mmgrpo.cli.migrate.verl import place
from tests.journeys.cli.migrating import ALL_LINEAR, MEMORY, cases, convert, lora, values, warned

NAMES = {
    "easyr1": {
        "prompts": "data.rollout_batch_size",
        "cut": "worker.actor.global_batch_size",
        "n": "worker.rollout.n",
        "epochs": "worker.actor.ppo_epochs",
        "micro": "worker.actor.micro_batch_size_per_device_for_update",
        "steps": "trainer.max_steps",
        "save": "trainer.save_freq",
        "test": "trainer.val_freq",
        "keep": "trainer.save_limit",
        "warm": "worker.actor.optim.lr_warmup_steps",
        "share": "worker.actor.optim.lr_warmup_ratio",
        "betas": "worker.actor.optim.betas",
        "rank": "worker.actor.model.lora.rank",
        "alpha": "worker.actor.model.lora.alpha",
        "targets": "worker.actor.model.lora.target_modules",
    },
    "verl": {
        "prompts": "data.train_batch_size",
        "cut": "actor_rollout_ref.actor.ppo_mini_batch_size",
        "n": "actor_rollout_ref.rollout.n",
        "epochs": "actor_rollout_ref.actor.ppo_epochs",
        "micro": "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu",
        "steps": "trainer.total_training_steps",
        "save": "trainer.save_freq",
        "test": "trainer.test_freq",
        "keep": "trainer.max_actor_ckpt_to_keep",
        "warm": "actor_rollout_ref.actor.optim.lr_warmup_steps",
        "share": "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio",
        "betas": "actor_rollout_ref.actor.optim.betas",
        "rank": "actor_rollout_ref.model.lora_rank",
        "alpha": "actor_rollout_ref.model.lora_alpha",
        "targets": "actor_rollout_ref.model.target_modules",
    },
}
"""The settings of the tests below in either project."""

project = pytest.mark.parametrize("project", NAMES)


def named(project: str, settings: dict[str, Any]) -> dict[str, Any]:
    return {NAMES[project].get(key, key): value for key, value in settings.items()}


@project
@pytest.mark.parametrize(
    ("settings", "numbers"),
    [
        ({"n": 5, "micro": 3}, (64, 5, 4, 1)),
        ({"n": 2, "micro": 3, "cut": 64, "epochs": 2}, (64, 2, 1, 2)),
    ],
)
def test_batches_count_prompts(project: str, settings: dict[str, Any], numbers: tuple[int, ...]):
    draft = convert(project, "batch", named(project, {"prompts": 64, "cut": 16} | settings))
    keys = ("data.prompts_per_step", "data.group_size", "optim.updates", "optim.epochs")
    assert values(draft) == {**dict(zip(keys, numbers, strict=True)), "optim.micro_batch_size": [3, MEMORY]}
    assert warned(draft)


@project
def test_a_batch_is_cut_evenly_and_one_sample_is_no_group(project: str):
    with pytest.raises(ValueError, match=f"{NAMES[project]['cut']}.*24.*divisor.*64"):
        convert(project, "batch", named(project, {"prompts": 64, "cut": 24}))
    draft = convert(project, "batch", named(project, {"micro": None}))
    assert values(draft)["data.group_size"] == 2 and "optim.micro_batch_size" not in draft.settings
    assert warned(draft, "one sample per prompt has nothing to be compared with")


ROUND = {"prompts": 64, "cut": 16, "n": 2, "epochs": 3}  # 12 optimizer steps a rollout


@project
@cases(
    """
    settings | rows | expected | words | left
    {steps: 5} | 0 | {steps: [60, rollouts x 12 optimizer steps], optim.warmup: 0}
    # 3 rollouts an epoch; the rest is dropped
    {trainer.total_epochs: 2} | 200 | {steps: [72, 200 prompts; rollouts x 12 optimizer steps], optim.warmup: 0}
    {trainer.total_epochs: 2} | 63 | {steps: [12, 63 prompts; rollouts x 12 optimizer steps], optim.warmup: 0}
    {trainer.total_epochs: 2} | 0 | {optim.warmup: 0} | [the number of steps follows from total_epochs 2]
        | [trainer.total_epochs]
    {} | 0 | {optim.warmup: 0} | [the number of steps follows from total_epochs]
    {steps: 5, save: 1, test: 2, keep: 1} | 0
        | {steps: [60, rollouts x 12 optimizer steps], save_every: [12, rollouts x 12 optimizer steps],
            eval.every: [24, rollouts x 12 optimizer steps], keep: 1, optim.warmup: 0}
    {steps: 5, save: -1, test: 0, keep: 0} | 0 | {steps: [60, rollouts x 12 optimizer steps], optim.warmup: 0} | []
        | [save, test, keep]
    {steps: 5, keep: null} | 0 | {steps: [60, rollouts x 12 optimizer steps], optim.warmup: 0} | [] | [keep]
    {steps: 5, warm: 1, share: 0.5} | 0
        | {steps: [60, rollouts x 12 optimizer steps], optim.warmup: [12, rollouts x 12 optimizer steps]}
    {steps: 5, warm: 0, share: 0.1} | 0 | {steps: [60, rollouts x 12 optimizer steps], optim.warmup: 6}
    {steps: 5, warm: null} | 0 | {steps: [60, rollouts x 12 optimizer steps], optim.warmup: 0}
    {share: 0.1} | 0 | {} | [the number of steps follows from total_epochs, the warm-up is 0.1 of the steps] | [share]
    """
)
def test_steps(
    project: str,
    settings: dict[str, Any],
    rows: int,
    expected: dict[str, Any],
    words: list[str],
    left: list[str],
):
    draft = convert(project, "batch steps", named(project, ROUND | settings), rows=rows)
    sizes = {"data.prompts_per_step", "data.group_size", "optim.updates", "optim.epochs", "optim.micro_batch_size"}
    assert {key: one for key, one in values(draft).items() if key not in sizes} == expected
    assert warned(draft, *words) and [*draft.left] == [NAMES[project].get(key, key) for key in left]


@project
def test_a_period_below_never_is_refused(project: str):
    for key in ("save", "test", "keep"):
        with pytest.raises(ValueError, match=f"{NAMES[project][key]}.*-2.*-1"):
            convert(project, "batch steps", named(project, ROUND | {"steps": 5, key: -2}))


@project
def test_the_averages_of_the_optimizer(project: str):
    draft = convert(project, "optimizer", named(project, {"betas": [0.8, 0.95]}))
    assert values(draft) == {"optim.beta1": 0.8, "optim.beta2": 0.95}
    for betas in ([0.9], [0.9, 0.9, 0.9], None):
        with pytest.raises(ValueError, match=f"{NAMES[project]['betas']}"):
            convert(project, "optimizer", named(project, {"betas": betas}))


@project
@pytest.mark.parametrize(
    ("settings", "rank", "alpha", "targets"),
    [
        ({}, 0, None, None),
        ({"rank": 4, "alpha": 8}, 4, 8.0, ALL_LINEAR),
        ({"rank": 1, "alpha": 8, "targets": "q_proj, v_proj"}, 1, 8.0, ["q_proj", "v_proj"]),
        ({"rank": 1, "alpha": 8, "targets": ["q"]}, 1, 8.0, ["q"]),
        ({"rank": 1, "alpha": 8, "targets": None}, 1, 8.0, None),
    ],
)
def test_lora(project: str, settings: dict[str, Any], rank: int, alpha: float | None, targets: Any):
    draft = convert(project, "lora", named(project, settings))
    assert lora(draft) == (rank, alpha, targets) and draft.left == {}


# ---- data and rewards


@pytest.mark.parametrize(
    ("name", "ours"), [("a/b@val", "hf:a/b@val"), ("a/b", "hf:a/b@train"), ("c.parquet", "c.parquet")]
)
def test_a_data_set_names_its_split(name: str, ours: str):
    assert place(name) == ours


@project
@cases(
    """
    settings | expected | words | left
    {} | {data.heldout: ''} | ['data.train: no data set is named']
    {train_files: null, val_files: null} | {data.heldout: ''} | ['data.train: no data set is named']
    {train_files: a/b@train} | {data.train: 'hf:a/b@train', data.heldout: ''}
    {train_files: [a.jsonl, '', b.jsonl], val_files: [v.jsonl, w.jsonl]}
        | {data.train: a.jsonl, data.extra_train: [b.jsonl], data.heldout: v.jsonl, eval.extra: [w.jsonl]}
    {train_files: [a.jsonl, b.csv@x], val_files: [v.jsonl]}
        | {data.train: a.jsonl, data.extra_train: [b.csv], data.heldout: v.jsonl}
    {train_files: a.txt, prompt_key: question, image_key: photo, video_key: videos}
        | {data.train: a.txt, data.heldout: '', data.columns: 'question=prompt,photo=images'} | [] | [video_key]
    """
)
def test_data(project: str, settings: dict[str, Any], expected: dict[str, Any], words: list[str], left: list[str]):
    draft = convert(project, "data", {f"data.{key}": value for key, value in settings.items()})
    assert values(draft) == expected and warned(draft, *words)
    assert [*draft.left] == [f"data.{key}" for key in left]


def test_only_easyr1_names_the_column_of_the_answer():
    draft = convert("easyr1", "data", {"data.answer_key": "reply", "data.train_files": "a.txt"})
    assert values(draft)["data.columns"] == "reply=answer"
    draft = convert("easyr1", "data", {"data.answer_key": "solution", "data.train_files": "a.txt"})
    assert "data.columns" not in draft.settings and [*draft.left] == ["data.answer_key"]


MATH = "examples/reward_function/math.py:compute_score"
FUNCTION = "worker.reward.reward_function"


@pytest.mark.parametrize(
    ("kwargs", "shares"),
    [({}, (0.9, 0.1)), ({"format_weight": 0.3}, (0.7, 0.3)), (None, (0.9, 0.1)), ([1], (0.9, 0.1))],
)
def test_the_reward_of_easyr1_for_mathematics(kwargs: Any, shares: tuple[float, float]):
    draft = convert("easyr1", "rewards", {FUNCTION: MATH, f"{FUNCTION}_kwargs": kwargs})
    rewards = [f"math(weight={shares[0]}, tags=False)", f"format(weight={shares[1]}, style='boxed')"]
    assert values(draft) == {"rewards": rewards} and warned(draft)


@pytest.mark.parametrize(
    ("project", "settings", "words"),
    [
        ("easyr1", {}, "rewards: no function is named"),
        ("easyr1", {FUNCTION: "own.py:score"}, "rewards: own.py:score: 'mmgrpo rewards' lists ours"),
        ("verl", {}, "rewards: no function is named"),
        ("verl", {"custom_reward_function.path": MATH}, f"rewards: {MATH}: 'mmgrpo rewards' lists ours"),
    ],
)
def test_a_reward_function_of_another_project_is_to_be_written(project: str, settings: dict[str, Any], words: str):
    draft = convert(project, "rewards", settings)
    assert values(draft) == {} and warned(draft, words) and [*draft.left] == [*settings]
