"""Settings of DanceGRPO become ours: each conversion by itself, on both sides of every condition."""

from __future__ import annotations

from typing import Any

import pytest

from mmgrpo.cli.migrate import rules
from mmgrpo.cli.migrate.draft import Draft
from mmgrpo.cli.migrate.flows import family_of_dance_grpo
from mmgrpo.cli.migrate.sources import Source
from mmgrpo.cli.migrate.tables import table
from mmgrpo.config.names import plural
from tests.journeys.cli.migrating import ASSUMED, MEMORY, cases, convert, values, warned


@pytest.mark.parametrize(
    ("program", "model", "family"),
    [
        ("fastvideo/train_grpo_wan_2_1.py", "data/flux", "wan"),
        ("fastvideo/train_grpo_flux_lora.py", "", "flux"),
        ("fastvideo/train_grpo_qwenimage_edit.py", "", "qwen_image_edit"),
        ("train.py", "data/HunyuanVideo", "hunyuan_video"),
        ("train_grpo_new.py", "data/skyreels", "skyreels_i2v"),
        ("", "", "flux"),
    ],
)
def test_the_family_of_dance_grpo_is_that_of_its_script_else_of_the_model(program: str, model: str, family: str):
    values = {"pretrained_model_name_or_path": model} if model else {}
    assert family_of_dance_grpo(Source("a.sh", values, program=program)) == family
    with pytest.raises(ValueError, match="visual/dance_grpo_sd14"):
        family_of_dance_grpo(Source("a.sh", values, program="fastvideo/train_grpo_sd.py"))


@cases(
    """
    settings | family | lines
    {use_group: true} | flux | {preset: dance_grpo}
    {} | flux | {baseline: batch_mean, scale: 'batch_std(ddof=1, eps=1e-8)'}
    {use_group: true, clip_range: 0.1, adv_clip_max: 3} | flux
        | {objective: 'ppo(low=0.1, high=0.1)', shape: [clamp(limit=3.0)], scale: 'group_std(ddof=1, eps=1e-8)'}
    {use_group: true, bestofn: 6} | flux
        | {select: ['best_worst(best=3, worst=3)'], scale: 'group_std(ddof=1, eps=1e-8)'}
    {use_group: true, bestofn: 16} | flux | {preset: dance_grpo}
    # Its script for HunyuanVideo always trains the best and the worst, 8 by default.
    {use_group: true} | hunyuan_video | {select: ['best_worst(best=4, worst=4)'], scale: 'group_std(ddof=1, eps=1e-8)'}
    {use_group: true, num_generations: 8} | hunyuan_video | {preset: dance_grpo}
    """
)
def test_the_loss_of_dance_grpo(settings: dict[str, Any], family: str, lines: dict[str, Any]):
    draft = convert("dance_grpo", "loss", settings, family=family)
    assert values(draft) == {f"algorithm.{key}": value for key, value in ({"preset": "dance_grpo"} | lines).items()}


def test_the_best_and_the_worst_are_at_least_one_each():
    with pytest.raises(ValueError, match="bestofn.*1.*2"):
        convert("dance_grpo", "loss", {"bestofn": 1})
    assert "algorithm.select" in convert("dance_grpo", "loss", {"bestofn": 2}).settings


DANCE = {"sampling_steps": 16, "eta": 0.3, "h": 720, "w": 640, "t": 1, "num_generations": 12}


@cases(
    """
    settings | family | changes | left
    {} | flux | {model.guidance: [3.5, fixed in its script]} | [t]
    {cfg_infer: 2} | qwen_image | {model.guidance: [1.0, fixed in its script]} | [t]
    {} | qwen_image_edit | {model.guidance: [1.0, fixed in its script]} | [t]
    {t: 53, fps: 8} | hunyuan_video | {model.frames: 53, model.fps: 8.0, model.guidance: [6.018, fixed in its script]}
    {t: 5} | wan | {model.frames: 5, model.guidance: 5.0}
    {t: 5, cfg_infer: 4} | wan | {model.frames: 5, model.guidance: 4.0}
    {t: 5} | skyreels_i2v | {model.frames: 5, model.true_cfg_scale: 1.0}
    {cfg_infer: 6} | skyreels_i2v | {model.frames: 1, model.true_cfg_scale: 6.0}
    {shift: 3, timestep_fraction: 0.6, init_same_noise: true} | sana
        | {sampling.grid: shifted_linspace(shift=3.0), sampling.plan: 'random_subset(fraction=0.6, shared_noise=True)',
            model.guidance: 5.0}
        | [t]
    {use_same_noise: false, init_same_noise: true} | sana | {model.guidance: 5.0} | [t]
    """
)
def test_the_sampling_of_dance_grpo(settings: dict[str, Any], family: str, changes: dict[str, Any], left: list[str]):
    draft = convert("dance_grpo", "sampling", DANCE | settings, family=family)
    expected = {
        "sampling.steps": 16,
        "sampling.kernel": "dance(eta=0.3)",
        "sampling.grid": "shifted_linspace(shift=1.0)",
        "sampling.plan": "random_subset(fraction=1.0, shared_noise=False)",
        "model.height": 720,
        "model.width": 640,
    }
    assert values(draft) == expected | changes and [*draft.left] == left and warned(draft)


@pytest.mark.parametrize("key", ["sampling_steps", "eta", "h", "w", "t"])
def test_what_dance_grpo_has_no_default_for_must_be_there(key: str):
    with pytest.raises(ValueError, match=f"theirs.yaml.*{key}"):
        convert("dance_grpo", "sampling", {name: value for name, value in DANCE.items() if name != key}, family="wan")


PARTS = "theirs take a part of each group, ours whole groups"


@pytest.mark.parametrize(
    ("settings", "processes", "family", "numbers", "words"),
    [
        # prompts, group, updates, steps, save_every: 2 prompts on each of 8 processes, 24 samples in updates of 3
        ({}, 8, "flux", (16, 12, 8, 2400, 320), []),
        ({"sp_size": 4}, 8, "flux", (4, 12, 4, 1200, 160), ["8 updates of 4 prompts"]),
        ({"sp_size": 16}, 2, "flux", (1, 12, 1, 300, 40), ["8 updates of 1 prompt:"]),
        ({"gradient_accumulation_steps": 100}, 8, "flux", (16, 12, 1, 300, 40), []),
        ({"bestofn": 6}, 8, "flux", (16, 12, 4, 1200, 160), []),
        ({}, 8, "hunyuan_video", (16, 12, 5, 1500, 200), []),  # 16 samples of the best and the worst in updates of 3
        ({"train_batch_size": 8, "num_generations": 3}, 1, "flux", (8, 3, 8, 2400, 320), []),
        ({}, 0, "flux", (2, 12, 2, 600, 80), [ASSUMED, "8 updates of 2 prompts"]),
    ],
)
def test_the_batch_of_dance_grpo(
    settings: dict[str, Any], processes: int, family: str, numbers: tuple[int, ...], words: list[str]
):
    given = {"train_batch_size": 2, "num_generations": 12, "gradient_accumulation_steps": 3, "max_train_steps": 300}
    given |= {"checkpointing_steps": 40, "train_sp_batch_size": 4} | settings
    draft = convert("dance_grpo", "batch", given, processes=processes, family=family)
    prompts, group, updates, steps, every = numbers
    note = f"iterations x {plural(updates, 'optimizer step')}"
    size = plural(given["train_batch_size"], "prompt")
    of = f"{plural(processes or 1, 'process', 'processes')}, a batch of {size} each"
    assert values(draft) == {
        "data.prompts_per_step": [prompts, of],
        "data.group_size": group,
        "optim.updates": [updates, PARTS],
        "optim.micro_batch_size": [4, MEMORY],
        "steps": [steps, note],
        "save_every": [every, note],
    }
    assert warned(draft, *words)


def test_a_run_of_dance_grpo_without_an_end_and_with_an_average():
    draft = convert("dance_grpo", "batch", {"use_ema": True, "train_batch_size": 8, "gradient_accumulation_steps": 16})
    assert warned(draft, "steps: max_train_steps is not given") and "steps" not in draft.settings
    average = {key: one for key, one in values(draft).items() if key.startswith("optim.ema")}
    assert average == {"optim.ema": 0.995, "optim.ema_every": [8, "once an iteration"]}
    with pytest.raises(ValueError, match="ema_decay.*1.5.*0.*1"):
        convert("dance_grpo", "batch", {"use_ema": True, "ema_decay": 1.5})
    with pytest.raises(ValueError, match="num_generations.*1.*2"):
        convert("dance_grpo", "batch", {"num_generations": 1})


@pytest.mark.parametrize(
    ("settings", "program", "expected"),
    [
        ({}, "train_grpo_flux.py", {"model.lora_rank": 0}),
        ({}, "train_grpo_flux_lora.py", {"model.lora_rank": 128, "model.lora_alpha": 256.0}),
        ({"use_lora": True, "lora_rank": 8, "lora_alpha": 4}, "", {"model.lora_rank": 8, "model.lora_alpha": 4.0}),
        ({"lora_rank": 8}, "", {"model.lora_rank": 0}),
    ],
)
def test_the_model_of_dance_grpo(settings: dict[str, Any], program: str, expected: dict[str, Any]):
    draft = Draft(table("dance_grpo"), Source("a.sh", settings, program=program), "flux")
    rules.convert(draft, "model")
    assert values(draft) == expected


@cases(
    """
    settings | family | rewards
    {use_hpsv2: true, use_pickscore: true} | flux | [hpsv2, pickscore(scale='cosine')]
    {use_hpsv3: true, use_pickscore: true} | wan | [frames(reward="hpsv3"), frames(reward="pickscore(scale='cosine')")]
    {use_videoalign: true} | wan | ['videoalign(weight=1, dimension=''VQ'')']
    {use_videoalign: true, mq_coef: -0.5} | wan
        | ['videoalign(weight=1, dimension=''VQ'')', 'videoalign(weight=-0.5, dimension=''MQ'')']
    {use_videoalign: true, vq_coef: 0, mq_coef: 2} | wan | ['videoalign(weight=2, dimension=''MQ'')']
    """
)
def test_the_rewards_of_dance_grpo(settings: dict[str, Any], family: str, rewards: list[str]):
    draft = convert("dance_grpo", "data", settings | {"data_json_path": "a.json"}, family=family)
    assert values(draft) == {"rewards": rewards} and draft.settings["rewards"].of == tuple(settings)
    assert warned(draft, "data.train: a .txt file of prompts") and [*draft.left] == ["data_json_path"]


@pytest.mark.parametrize(
    ("project", "names", "settings", "key"),
    [
        ("dance_grpo", "data", {"use_videoalign": True}, "vq_coef"),
        ("ms_swift", "rewards", {"reward_funcs": ["cosine"]}, "cosine_max_len_value_wrong"),
    ],
)
def test_a_weight_below_nothing_has_a_limit(project: str, names: str, settings: dict[str, Any], key: str):
    assert "1e+06" in str(convert(project, names, settings | {key: -1e6}).settings["rewards"].value).replace(
        "1000000.0", "1e+06"
    )
    with pytest.raises(ValueError, match=f"{key}.*-1000001.0.*-1e"):
        convert(project, names, settings | {key: -1000001})


@pytest.mark.parametrize(
    ("project", "names", "key"),
    [
        ("dance_grpo", "sampling", "timestep_fraction"),
        ("flow_grpo", "plan", "train.timestep_fraction"),
        ("trl", "loss", "top_entropy_quantile"),
        ("easyr1", "batch steps", "worker.actor.optim.lr_warmup_ratio"),
    ],
)
def test_a_fraction_is_at_most_one(project: str, names: str, key: str):
    needed = {**(DANCE if project == "dance_grpo" else {})}
    with pytest.raises(ValueError, match=f"{key}.*1.5.*0.*1"):
        convert(project, names, needed | {key: 1.5})


def test_dance_grpo_without_a_reward():
    draft = convert("dance_grpo", "data", {"vq_coef": 2})
    assert values(draft) == {} and draft.left == {}
    assert warned(draft, "data.train: a .txt file of prompts", "no reward is named")
