"""What Stable Diffusion and SDXL make of a checkpoint's scheduler, and what they refuse."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mmgrpo.config.settings import config_class
from mmgrpo.family import family
from mmgrpo.types import Prompt
from pipelines.denoising import refuse_other_architectures
from pipelines.visual import sdxl, stable_diffusion
from pipelines.visual.diffusion import ddim_scheduler, refuse_other_inputs
from tests.building import load, refuse_foreign
from tests.libraries.families.examples import PICTURE, shown
from tests.libraries.pipelines.visual.denoising import KINDS, draw, ours, theirs
from tests.libraries.pipelines.visual.drawing import noise
from tests.tiny import maker, tiny_checkpoint

SD = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}
"""The betas of Stable Diffusion."""


@pytest.fixture(scope="module")
def folders() -> dict[Any, Path]:
    return {one: tiny_checkpoint(maker(one), prediction="v_prediction") for one in KINDS}


def edited(folder: Path, target: Path, file: str = "scheduler/scheduler_config.json", **changes: Any) -> Path:
    """A copy of a checkpoint with other values in one of its files."""
    shutil.copytree(folder, target)
    (target / file).write_text(json.dumps(json.loads((target / file).read_text()) | changes))
    return target


# ---- the noise levels


@pytest.mark.parametrize("kind", ["PNDM", "DDIM", "DDPM", "EulerDiscrete", "DPMSolverMultistep", "UniPCMultistep"])
@pytest.mark.parametrize("spacing", ["leading", "trailing"])
@pytest.mark.parametrize("rescaled", [False, True])
def test_whatever_the_checkpoints_scheduler_its_levels_are_those_of_ddim(kind, spacing, rescaled):
    import diffusers

    stated = {"timestep_spacing": spacing, "steps_offset": 1, "set_alpha_to_one": False, "clip_sample": False}
    stated |= {"prediction_type": "v_prediction"} | ({"rescale_betas_zero_snr": True} if rescaled else {})
    scheduler = getattr(diffusers, f"{kind}Scheduler").from_config(SD | stated)
    made, prediction = ddim_scheduler("there", scheduler)
    expected = diffusers.DDIMScheduler(**SD, **stated)
    assert prediction == "v" and isinstance(made, diffusers.DDIMScheduler)
    assert torch.equal(made.alphas_cumprod, expected.alphas_cumprod)
    assert {key: made.config[key] for key in stated} == stated


@pytest.mark.parametrize("family", KINDS, ids=lambda family: family.__name__.rpartition(".")[2])
@pytest.mark.parametrize("steps", [1, 4, 30, 50])
def test_the_grid_of_a_checkpoint_is_that_of_stable_diffusion(folders, family, steps):
    import diffusers

    scheduler = diffusers.DDIMScheduler(**SD, set_alpha_to_one=False, steps_offset=1)
    scheduler.set_timesteps(steps)
    grid = ours(family, folders[family]).grid(steps)
    assert torch.equal(grid.times, scheduler.timesteps) and grid.process == "diffusion"
    assert torch.equal(grid.levels[:-1], scheduler.alphas_cumprod[scheduler.timesteps])
    assert grid.levels[-1] == scheduler.final_alpha_cumprod


@pytest.mark.parametrize("changes", [{}, {"timestep_spacing": "trailing", "set_alpha_to_one": True}])
def test_rescaled_betas_draw_as_diffusers_does(folders, tmp_path, changes):
    import diffusers

    folder = edited(folders[sdxl], tmp_path / "model", rescale_betas_zero_snr=True, **changes)
    model, pipe = ours(sdxl, folder), diffusers.StableDiffusionXLPipeline.from_pretrained(folder)
    pipe.scheduler = diffusers.DDIMScheduler.from_config(pipe.scheduler.config)
    start = noise(model)
    torch.testing.assert_close(draw(model, start), theirs(pipe, start, 5.0), atol=2e-5, rtol=0)
    assert (model.grid(4).levels[0] == 0) == bool(changes)  # leading times begin after the last one


def test_offset_and_end_of_the_levels_are_the_checkpoint_s_own(folders, tmp_path):
    grid = ours(sdxl, edited(folders[sdxl], tmp_path / "model", steps_offset=0, set_alpha_to_one=True)).grid(4)
    assert grid.times.tolist() == [750, 500, 250, 0] and grid.levels[-1] == 1


def test_the_noise_is_not_predicted_from_pure_noise(folders, tmp_path):
    changes = {"timestep_spacing": "trailing", "rescale_betas_zero_snr": True, "prediction_type": "epsilon"}
    model = ours(sdxl, edited(folders[sdxl], tmp_path / "model", **changes))
    with pytest.raises(ValueError, match="rescale_betas_zero_snr=True.*prediction_type=epsilon"):
        model.grid(4)


def test_the_pipelines_own_corrections_of_an_old_checkpoint_are_kept(folders, tmp_path):
    """StableDiffusionPipeline sets the offset to 1 and clipping to False where an old file says otherwise."""
    import diffusers

    folder = edited(folders[stable_diffusion], tmp_path / "model", steps_offset=0, clip_sample=True)
    config = ours(stable_diffusion, folder).scheduler.config
    assert (config.steps_offset, config.clip_sample) == (1, False)
    file = folder / "scheduler" / "scheduler_config.json"
    file.write_text(json.dumps({k: v for k, v in json.loads(file.read_text()).items() if k != "steps_offset"}))
    assert ours(stable_diffusion, folder).scheduler.config.steps_offset == 1
    silent = diffusers.PNDMScheduler.from_config(SD)  # which says nothing of clipping, as PNDM does not clip
    assert ddim_scheduler("there", silent)[0].config.clip_sample is False


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("DDIM", {"clip_sample": True}, "clip_sample=True.*False"),
        ("DDIM", {"clip_sample": False, "thresholding": True}, "thresholding=True.*False"),
        ("DPMSolverMultistep", {"prediction_type": "flow_prediction"}, "prediction_type=flow_prediction"),
        ("DPMSolverMultistep", {"use_flow_sigmas": True}, "DPMSolverMultistepScheduler"),
        ("EDMEuler", {}, "EDMEulerScheduler"),
        ("FlowMatchEulerDiscrete", {}, "FlowMatchEulerDiscreteScheduler"),
        ("DDPM", {"beta_schedule": "sigmoid", "clip_sample": False}, "NotImplementedError.*sigmoid"),
    ],
)
def test_a_scheduler_that_ddim_cannot_stand_for_is_refused(kind, changes, message):
    import diffusers

    scheduler = getattr(diffusers, f"{kind}Scheduler").from_config(SD | changes)
    with pytest.raises(ValueError, match=message):
        ddim_scheduler("there", scheduler)


# ---- what is read of a checkpoint


def test_the_safety_checker_is_never_read_nor_its_module_imported(folders, tmp_path):
    parts = {"safety_checker": ["turtledemo", "Checker"], "feature_extractor": ["transformers", "CLIPImageProcessor"]}
    folder = edited(folders[stable_diffusion], tmp_path / "model", "model_index.json", **parts)
    (folder / "safety_checker").mkdir()
    (folder / "safety_checker" / "pytorch_model.bin").write_bytes(b"no weights")
    model = ours(stable_diffusion, folder)
    assert model.architecture.pipeline.safety_checker is None and "turtledemo" not in sys.modules
    odd = edited(folder, tmp_path / "odd", "model_index.json", text_encoder=["turtledemo", "Encoder"])
    with pytest.raises(ValueError, match="text_encoder"):
        ours(stable_diffusion, odd)


def test_unets_that_read_more_than_latents_and_words_are_refused(folders, tmp_path):
    import diffusers

    plain = {"in_channels": 4, "time_cond_proj_dim": None}
    assert refuse_other_inputs("there", SimpleNamespace(**plain), 4) is None
    with pytest.raises(ValueError, match="in_channels=9.*4"):
        refuse_other_inputs("there", SimpleNamespace(**plain | {"in_channels": 9}), 4)
    nine = diffusers.UNet2DConditionModel.from_config(folders[sdxl] / "unet", in_channels=9)
    nine.save_pretrained(edited(folders[sdxl], tmp_path / "nine") / "unet")  # type: ignore
    with pytest.raises(ValueError, match="/nine.*unet/config.json.*in_channels=9"):
        ours(sdxl, tmp_path / "nine")
    with pytest.raises(ValueError, match="time_cond_proj_dim=256"):
        refuse_other_inputs("there", SimpleNamespace(**plain | {"time_cond_proj_dim": 256}), 4)


@pytest.mark.parametrize("family", KINDS, ids=lambda family: family.__name__.rpartition(".")[2])
def test_sizes_settings_and_prompts_that_cannot_be_are_errors(folders, family, tmp_path):
    folder = folders[family]
    assert load(family, folder).shape == (4, 8, 8)  # the UNet's own size
    oblong = edited(folder, tmp_path / "oblong", "unet/config.json", sample_size=[8, 12])
    assert load(family, oblong).shape == (4, 8, 12)
    assert ours(family, folder, height=24, width=0).shape == (4, 12, 8)
    with pytest.raises(ValueError, match="height.*18.*16"):
        ours(family, folder, height=18)
    with pytest.raises(ValueError, match="width.*4.*8"):
        ours(family, folder, width=4)
    model = ours(family, folder)
    assert model.encode([Prompt("a" * 75)]).tensors[0].shape[1] == 77
    with pytest.raises(ValueError, match="78.*77.*CLIP"):
        model.encode([Prompt("a" * 76)])
    with pytest.raises(ValueError, match="1 media"):
        model.encode([shown(0, PICTURE, "what is it ?")])


def test_a_checkpoint_of_another_family_is_named(folders):
    config = config_class(family("sdxl").sections)()
    config.model.path = str(folders[stable_diffusion])
    with pytest.raises(ValueError, match="StableDiffusionPipeline.*'sdxl'.*model.family=st"):
        family("sdxl").policy(config, "cpu")
    with pytest.raises(ValueError, match="StableDiffusionXLPipeline.*model.family=sdxl"):
        refuse_foreign(family("sd3"), str(folders[sdxl]))


def test_a_family_of_ones_own_names_what_it_reads(tmp_path):
    """It is in no table, also where the folder holds one network alone."""
    (tmp_path / "config.json").write_text('{"_class_name": "OtherTransformerModel"}')
    with pytest.raises(ValueError, match="OtherTransformerModel.*expected MinePipeline"):
        refuse_other_architectures("mine", ("MinePipeline",), str(tmp_path))


# ---- settings of the other process


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("sdxl", {"kernel": "flow_sde(a=0.7)"}, r"sampling.kernel.*flow_sde\(a=0.7.*'sdxl'"),
        ("sd3", {"kernel": "ddim(eta=1.0)"}, "flow_sde.*'sd3'"),
        ("sdxl", {"kernel": "ddim(prediction='v')"}, "'ddim'.*prediction"),
    ],
)
def test_what_is_defined_for_the_other_process_is_refused_before_anything_is_read(name, changes, message):
    config = config_class(family(name).sections)()
    family(name).check(config)
    with pytest.raises(ValueError, match=message):
        family(name).check(replace(config, sampling=replace(config.sampling, **changes)))


@pytest.mark.parametrize("name", ["stable_diffusion", "sdxl"])
def test_the_settings_of_a_diffusion_family_are_those_of_ddpo(name):
    config = config_class(family(name).sections)()
    assert (config.sampling.kernel, config.sampling.steps, config.model.guidance) == ("ddim(eta=1.0)", 50, 5.0)
    config.data.prompts_per_step, config.data.group_size = 1, 4
    # 4 samples of 50 steps with two branches of guidance; all but the last step are trained
    totals = family(name).arithmetic(config).totals
    assert totals == {"samples": 4, "evaluations to sample": 400, "evaluations to train": 392}
