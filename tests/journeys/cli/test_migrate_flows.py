"""Settings of Flow-GRPO become ours: each conversion by itself, on both sides of every condition."""

from __future__ import annotations

from typing import Any

import pytest

from mmgrpo.cli.migrate.draft import Draft
from mmgrpo.cli.migrate.flows import family_of_flow_grpo, flow_batch, matching
from mmgrpo.cli.migrate.sources import Source
from mmgrpo.cli.migrate.tables import table
from tests.journeys.cli.migrating import ASSUMED, MEMORY, cases, convert, same, values, warned


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("black-forest-labs/FLUX.1-Kontext-dev", "flux_kontext"),
        ("black-forest-labs/FLUX.1-dev", "flux"),
        ("Wan-AI/Wan2.1-I2V-14B", "wan_i2v"),
        ("Wan-AI/Wan2.1-T2V-1.3B", "wan"),
        ("Qwen/Qwen-Image-Edit", "qwen_image_edit"),
        ("qwenimage", "qwen_image"),
        ("Sana_600M", "sana"),
        ("SANA-Video_2B_480p", "sana_video"),
        ("hunyuan", "hunyuan_video"),
        ("hunyuanvideo-community/HunyuanVideo", "hunyuan_video"),
        ("tencent/HunyuanVideo-1.5", "hunyuan_video15"),
        ("skyreels", "skyreels_i2v"),
        ("stabilityai/stable-diffusion-3.5-medium", "sd3"),
        ("stabilityai/stable-diffusion-xl-base-1.0", "sdxl"),
        ("CompVis/stable-diffusion-v1-4", "stable_diffusion"),
        ("a model", ""),
        ("", ""),
    ],
)
def test_the_family_follows_from_the_name_of_the_model(name: str, family: str):
    assert matching(name) == family
    source = Source("a.py", {"pretrained.model": name} if name else {})
    if name == "a model":
        with pytest.raises(ValueError, match=r"a\.py.*pretrained\.model"):
            family_of_flow_grpo(source)
    else:
        assert family_of_flow_grpo(source) == (family or "sd3")


@cases(
    """
    settings | lines | words
    # Its defaults are our preset with the KL of train.beta, which is 0.
    {} | {preset: flow_grpo_fast}
    {train.beta: 0.04} | {preset: flow_grpo}
    {train.beta: 0.01} | {preset: flow_grpo, terms: [kl_gaussian_dt_free(coef=0.01)]}
    {train.clip_range: 0.001, train.adv_clip_max: 4}
        | {objective: 'ppo(low=0.001, high=0.001)', shape: [clamp(limit=4.0)], terms: []}
    {train.clip_range_lt: 0.001, train.clip_range: 0.5, train.clip_range_gt: 0.002}
        | {objective: 'ppo(low=0.001, high=0.002)', terms: []}
    {train.clip_range_gt: 0.002} | {objective: 'ppo(low=0.0001, high=0.002)', terms: []}
    {sample.global_std: false} | {scale: 'group_std(ddof=0, eps=1e-4)', terms: []}
    {per_prompt_stat_tracking: false} | {baseline: batch_mean, scale: 'batch_std(ddof=0, eps=1e-4)', terms: []}
    {per_prompt_stat_tracking: false, sample.global_std: false}
        | {baseline: batch_mean, scale: 'batch_std(ddof=0, eps=1e-4)', terms: []}
    {sample.kl_reward: 0.1} | {preset: flow_grpo_fast} | [puts the KL into the reward]
    """
)
def test_the_loss_of_flow_grpo(settings: dict[str, Any], lines: dict[str, Any], words: tuple[str, ...]):
    draft = convert("flow_grpo", "loss", settings)
    assert values(draft) == {f"algorithm.{key}": value for key, value in ({"preset": "flow_grpo"} | lines).items()}
    assert warned(draft, *words) and [*draft.left] == (["sample.kl_reward"] if words else [])
    keys = ("sample.global_std", "per_prompt_stat_tracking")
    for line, of in (("baseline", keys[1:]), ("scale", keys[1:] if "baseline" in lines else keys)):
        assert line not in lines or draft.settings[f"algorithm.{line}"].of == of


SAMPLING = {
    "sampling.steps": 40,
    "sampling.kernel": "flow_sde(a=0.7)",
    "sampling.plan": "every_step(shared_noise=False)",
    "sampling.evaluation_steps": 40,
    "model.guidance": 4.5,
}
LAST = "trains the last step too"


@cases(
    """
    settings | changes | words | left
    {} | {} | [trains the last step too]
    {train.timestep_fraction: 0.99} | {} | [] | [train.timestep_fraction]  # 39 of 40: all but the last
    {train.timestep_fraction: 0.975} | {} | [] | [train.timestep_fraction]  # 39
    {train.timestep_fraction: 1} | {} | [trains the last step too] | [train.timestep_fraction]
    {train.timestep_fraction: 0.95} | {} | [timestep_fraction 0.95 trains the first 38 steps]
        | [train.timestep_fraction]
    {sample.num_steps: 10, sample.noise_level: 0.9, train.timestep_fraction: 0.99}
        | {sampling.steps: 10, sampling.kernel: flow_sde(a=0.9)} | [] | [train.timestep_fraction]
    {sample.sde_type: cps, sample.same_latent: true}
        | {sampling.kernel: cps(a=0.7), sampling.plan: every_step(shared_noise=True)} | [trains the last step too]
    # A window of 2 in the steps 0 to 9 begins before 8 of 40; whole and half steps are kept apart.
    {sample.sde_window_size: 2}
        | {sampling.plan: ['random_window(size=2, before=0.2, shared_noise=False)',
            uniform over the first step of the window]}
    {sample.sde_window_size: 0, sample.train_num_steps: 3} | {} | [trains the last step too]
    {sample.train_num_steps: 3, sample.same_latent: true, sample.sde_window_range: [0, 5]}
        | {sampling.plan: ['random_window(size=3, before=0.05, shared_noise=True)',
            uniform over the first step of the window]}
    # 29 / 50 * 50 is 28.999999999999996, so half a step is added
    {sample.sde_window_size: 1, sample.sde_window_range: [0, 30], sample.num_steps: 50}
        | {sampling.steps: 50,
            sampling.plan: ['random_window(size=1, before=0.59, shared_noise=False)',
            uniform over the first step of the window]}
    {sample.sde_window_size: 4, sample.sde_window_range: [3, 2]}
        | {sampling.plan: ['random_window(size=4, before=0, shared_noise=False)',
            uniform over the first step of the window]}
        | [the window begins at step 3 there]
    {sample.eval_num_steps: 28, sample.guidance_scale: 3} | {sampling.evaluation_steps: 28, model.guidance: 3.0}
        | [trains the last step too]
    {train.cfg: false} | {model.guidance: 1.0, sampling.rollout_guidance: 4.5, sampling.evaluation_guidance: 4.5}
        | [trains the last step too] | [train.cfg]
    {train.cfg: true} | {} | [trains the last step too] | [train.cfg]
    {train.cfg: false, sample.guidance_scale: 1} | {model.guidance: 1.0} | [trains the last step too] | [train.cfg]
    {sample.eval_guidance_scale: 4.5} | {} | [trains the last step too] | [sample.eval_guidance_scale]
    {sample.eval_guidance_scale: 4.0} | {sampling.evaluation_guidance: 4.0} | [trains the last step too]
    {sample.guidance_scale: 3.5} | {model.guidance: 3.5} | [trains the last step too]
    """
)
def test_the_sampling_of_flow_grpo(
    settings: dict[str, Any], changes: dict[str, Any], words: list[str], left: list[str]
):
    draft = convert("flow_grpo", "sampling plan", settings)
    assert same(dict(sorted(values(draft).items())), dict(sorted((SAMPLING | changes).items())))
    assert warned(draft, *words) and {*draft.left} == {*left}


@pytest.mark.parametrize("family", ["wan", "wan_i2v"])
@pytest.mark.parametrize("settings", [{}, {"sample.noise_level": 0.9}, {"sample.sde_type": "cps"}])
def test_the_noise_of_wan_is_that_of_its_script_whatever_the_level_and_the_type(family: str, settings: dict[str, Any]):
    draft = convert("flow_grpo", "sampling plan", settings, family=family)
    assert draft.settings["sampling.kernel"].value == "flow_sde_wan" and [*draft.left] == [*settings]


@pytest.mark.parametrize("family", ["flux", "flux_kontext"])
def test_a_family_whose_guidance_is_an_input_has_no_other_in_training(family: str):
    assert warned(convert("flow_grpo", "sampling plan", {"train.cfg": False}, family=family), LAST)


@pytest.mark.parametrize("ends", [None, [1], [1, 2, 3], [0, 1.5], ["0", "5"]])
def test_a_window_has_two_ends(ends: Any):
    with pytest.raises(ValueError, match="theirs.yaml.*sample.sde_window_range"):
        convert("flow_grpo", "sampling plan", {"sample.sde_window_size": 2, "sample.sde_window_range": ends})


BATCH = {
    "sample.train_batch_size": 8,
    "sample.num_image_per_prompt": 16,
    "sample.num_batches_per_epoch": 4,
    "num_epochs": 100,
}


@cases(
    """
    settings | processes | changes
    # 8 x 4 x 2 processes are 64 samples of 4 prompts; each of 32 of a process is an update, which 4 prompts cap.
    {} | 2
    {train.batch_size: 8, train.gradient_accumulation_steps: 2} | 2
        | {optim.updates: 2, optim.micro_batch_size: [8, memory only], save_every: [40, epochs x 2 optimizer steps],
            eval.every: [40, epochs x 2 optimizer steps], steps: [200, epochs x 2 optimizer steps]}
    {train.batch_size: 64, train.num_inner_epochs: 3, save_freq: 5, eval_freq: 7} | 4
        | {data.prompts_per_step: [8, 128 samples of 4 processes], optim.updates: 1, optim.epochs: 3,
            optim.micro_batch_size: [64, memory only], save_every: [15, epochs x 3 optimizer steps],
            eval.every: [21, epochs x 3 optimizer steps], steps: [300, epochs x 3 optimizer steps]}
    {sample.mini_num_image_per_prompt: 4, sample.train_batch_size: 999} | 2
        | {data.prompts_per_step: [2, 32 samples of 2 processes], optim.updates: 2,
            save_every: [40, epochs x 2 optimizer steps], eval.every: [40, epochs x 2 optimizer steps],
            steps: [200, epochs x 2 optimizer steps]}
    """
)
def test_the_batch_of_flow_grpo(settings: dict[str, Any], processes: int, changes: dict[str, Any]):
    draft = convert("flow_grpo", "batch", BATCH | settings, processes=processes)
    assert (
        values(draft)
        == {
            "data.prompts_per_step": [4, "64 samples of 2 processes"],
            "data.group_size": 16,
            "optim.updates": 4,
            "optim.epochs": 1,
            "optim.micro_batch_size": [1, MEMORY],
            "save_every": [80, "epochs x 4 optimizer steps"],
            "eval.every": [80, "epochs x 4 optimizer steps"],
            "steps": [400, "epochs x 4 optimizer steps"],
        }
        | changes
    )
    assert warned(draft)
    sizes = ("sample.mini_num_image_per_prompt",) if "sample.mini_num_image_per_prompt" in settings else ()
    sizes = (*(sizes or ("sample.train_batch_size",)), "sample.num_image_per_prompt", "sample.num_batches_per_epoch")
    assert draft.settings["data.prompts_per_step"].of == sizes
    assert draft.settings["data.group_size"].of == sizes[1:2]
    rest = ("train.batch_size", "train.gradient_accumulation_steps")
    assert draft.settings["optim.updates"].of == (*rest, sizes[2])
    assert draft.settings["optim.micro_batch_size"].of == rest[:1]


def test_a_batch_of_flow_grpo_that_is_not_whole_or_not_known():
    with pytest.raises(
        ValueError,
        match="sample.num_batches_per_epoch.*8 x 3 x 1 = 24.*sample.num_image_per_prompt 16.*GPUs",
    ):
        convert("flow_grpo", "batch", BATCH | {"sample.num_batches_per_epoch": 3}, processes=0)
    endless = {key: value for key, value in BATCH.items() if key != "num_epochs"}
    draft = convert("flow_grpo", "batch", endless, processes=0)
    assert warned(draft, ASSUMED, "trains until it is stopped") and "steps" not in draft.settings
    draft = convert("flow_grpo", "batch", {})  # one sample of each of two prompts, which are two updates
    assert (draft.settings["data.prompts_per_step"].value, draft.settings["optim.updates"].value) == (2, 2)


@pytest.mark.parametrize("key", ["sample.train_batch_size", "train.gradient_accumulation_steps"])
def test_a_size_that_is_an_expression_is_asked_for(key: str):
    source = Source("a.py", dict(BATCH), {key: "f(x) (line 3)"})
    with pytest.raises(ValueError, match=f"a.py.*{key}.*3.*--config.{key}=4"):
        flow_batch(Draft(table("flow_grpo"), source, "sd3"))


@cases(
    """
    settings | family | expected | words
    {} | sd3
        | {model.height: 768, model.width: 768, model.lora_rank: [32, of train_sd3.py],
            model.lora_alpha: [64.0, of train_sd3.py], optim.ema: [0.0, 0.9 every 8 steps in its scripts]}
    {resolution: 512, use_lora: false, train.ema: true} | sd3
        | {model.height: 512, model.width: 512, model.lora_rank: 0, optim.ema: [0.9, 0.9 every 8 steps in its scripts],
            optim.ema_every: 8}
    {height: 240, width: 416, frames: 33, resolution: 512, use_lora: true} | wan
        | {model.height: 240, model.width: 416, model.frames: 33, model.lora_rank: [32, of train_sd3.py],
            model.lora_alpha: [64.0, of train_sd3.py], optim.ema: [0.0, 0.9 every 8 steps in its scripts]}
        | [rank and alpha of LoRA stand in its training script]
    {frames: 33, use_lora: false} | wan
        | {model.frames: 33, model.lora_rank: 0, optim.ema: [0.0, 0.9 every 8 steps in its scripts]}
    """
)
def test_the_model_of_flow_grpo(settings: dict[str, Any], family: str, expected: dict[str, Any], words: list[str]):
    draft = convert("flow_grpo", "model", settings, family=family)
    assert same(values(draft), expected) and warned(draft, *words)


FILES = {"data.train": "data/ocr/train.txt", "data.heldout": "data/ocr/test.txt"}
OCR = {"dataset": "data/ocr/", "prompt_fn": "general_ocr", "reward_fn": {"ocr": 1}}
UNKNOWN = "rewards: no reward is named"


@cases(
    """
    settings | family | changes | words | left
    {} | sd3 | {rewards: [ocr]}
    {reward_fn: ocr} | sd3 | {rewards: [ocr]}
    {reward_fn: {}} | sd3 | {} | ['rewards: no reward is named'] | [reward_fn]
    {reward_fn: ''} | sd3 | {} | ['rewards: no reward is named'] | [reward_fn]
    {reward_fn: {geneval: 1, pickscore: 0.5, jpeg_compressibility: 2}} | sd3
        | {rewards: ['pickscore(weight=0.5, scale=''over26'')', jpeg_compressibility(weight=2)]}
        | ['rewards: geneval (weight 1) has no counterpart']
    {reward_fn: {video_ocr: 1, clipscore: 1, ocr: 0.5}} | wan
        | {rewards: [frames(reward="ocr"), frames(reward="clip_score(scale='cosine')"),
            'frames(weight=0.5, reward="ocr")']}
    {prompt_fn: geneval} | sd3
        | {data.train: data/ocr/train_metadata.jsonl, data.heldout: data/ocr/test_metadata.jsonl, rewards: [ocr]}
        | [metadata of GenEval]
    {prompt_fn: f} | sd3 | {rewards: [ocr]} | [prompt_fn f is code there] | [prompt_fn]
    """
)
def test_the_data_of_flow_grpo(
    settings: dict[str, Any], family: str, changes: dict[str, Any], words: list[str], left: list[str]
):
    draft = convert("flow_grpo", "data", OCR | settings, family=family)
    assert values(draft) == FILES | changes and warned(draft, *words) and {*draft.left} == {*left}


def test_data_of_flow_grpo_that_are_not_named_or_not_weighed():
    draft = convert("flow_grpo", "data", {})
    assert warned(draft, "no data set is named", "prompt_fn imagenet_animals is code there", UNKNOWN)
    assert values(draft) == {} and [*draft.left] == ["prompt_fn"]
    for weight in ("half", True, None):
        with pytest.raises(ValueError, match="reward_fn"):
            convert("flow_grpo", "data", {"reward_fn": {"ocr": weight}})
