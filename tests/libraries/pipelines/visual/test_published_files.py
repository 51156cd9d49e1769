"""Folders as they are published: files of schedulers, half-precision variants, shards, indices, networks alone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from mmgrpo.config.plugins import locate
from mmgrpo.data.prompts import load_prompts
from mmgrpo.diffusion.kernels import kernel, noise_table
from mmgrpo.family import family
from mmgrpo.types import Prompt, Request
from pipelines.pretrained import check_scheduler
from pipelines.training import Training
from pipelines.visual import (
    flux,
    flux2_klein,
    hunyuan_video,
    longcat_image,
    ltx_video,
    qwen_image,
    sd3,
    stable_diffusion,
    wan,
    z_image,
)
from reward_models.rules.toy_videos import film_score
from tests.building import denoising_policy_over, load, refuse_foreign
from tests.tiny import maker, tiny_checkpoint

KERNELS = ("flow_sde(a=0.7)", "flow_sde_wan", "dance(eta=0.3)", "cps(a=0.8)", "flow_ddim(eta=0.7)", "edm_churn")


@pytest.fixture(scope="module")
def tiny() -> Callable[..., Path]:
    """The tiny folder of a family."""
    return lambda family, **options: tiny_checkpoint(maker(family), **options)


@pytest.fixture
def copied(tiny, tmp_path) -> Callable[..., Path]:
    """A copy of it that may be changed."""

    def folder(family: Any, **options: Any) -> Path:
        return Path(shutil.copytree(tiny(family, **options), tmp_path / "m"))

    return folder


def rewrite(file: Path, content: dict[str, Any] | None = None, absent: tuple[str, ...] = (), **values: Any) -> None:
    """Other values, or another content, of a JSON file."""
    before = json.loads(file.read_text()) if content is None else content
    file.write_text(json.dumps({key: value for key, value in (before | values).items() if key not in absent}))


# Schedulers -----------------------------------------------------------------------------------------------

EULER = {"_class_name": "FlowMatchEulerDiscreteScheduler", "_diffusers_version": "0.29.0"}
THREE = EULER | {"num_train_timesteps": 1000, "shift": 3.0}
FOREIGN = {"clip_sample": False, "set_alpha_to_one": False, "skip_prk_steps": True, "flow_shift": 9.0}
DYNAMIC = {"base_shift": 0.5, "max_shift": 1.15, "base_image_seq_len": 256, "max_image_seq_len": 4096}


def mu(tokens: int, low: float, few: int, high: float, many: int) -> float:
    return low + (high - low) * (tokens - few) / (many - few)


FILES: dict[str, tuple[Any, dict[str, Any], dict[str, Any] | None, float | None]] = {
    "three keys": (sd3, THREE, None, None),
    "foreign keys": (sd3, THREE | FOREIGN, None, None),
    "terminal false": (sd3, THREE | {"shift_terminal": False}, None, None),
    "terminal null": (sd3, THREE | {"shift_terminal": None}, None, None),
    "dynamic false beside its values": (
        flux,
        THREE | DYNAMIC | {"shift": 1.0, "use_dynamic_shifting": False},
        {},
        None,
    ),
    "dynamic": (flux, THREE | DYNAMIC | {"use_dynamic_shifting": True}, {}, mu(64, 0.5, 256, 1.15, 4096)),
    "ltx 0.9.5": (ltx_video, EULER | {"shift": 1.0, "use_dynamic_shifting": False, "base_shift": 0.95}, {}, None),
    "ltx": (
        ltx_video,
        EULER
        | {"use_dynamic_shifting": True, "shift_terminal": 0.1, "base_shift": 0.95, "max_shift": 2.05}
        | {"base_image_seq_len": 1024, "max_image_seq_len": 4096},
        {},
        mu(8, 0.95, 1024, 2.05, 4096),
    ),
    "qwen": (
        qwen_image,
        EULER
        | {"use_dynamic_shifting": True, "time_shift_type": "exponential", "shift_terminal": 0.02}
        | {"base_shift": 0.5, "max_shift": 0.9, "base_image_seq_len": 256, "max_image_seq_len": 8192},
        {},
        mu(16, 0.5, 256, 0.9, 8192),
    ),
    "longcat": (longcat_image, THREE | DYNAMIC | {"use_dynamic_shifting": True}, {}, mu(16, 0.5, 256, 1.15, 4096)),
    "z_image": (z_image, EULER | {"shift": 6.0, "use_dynamic_shifting": False}, {}, None),
    "hunyuan": (hunyuan_video, EULER | {"shift": 7.0, "use_dynamic_shifting": False}, {}, None),
}
"""Family, file of the scheduler, and None where the scheduler spaces its levels by itself (else they are even from 1 to
1 / T), and the shift mu."""

SIZES: dict[Any, dict[str, int]] = {
    flux: {"height": 32, "width": 32},
    ltx_video: {"height": 32, "width": 64, "frames": 5},
    qwen_image: {"height": 16, "width": 16},
    longcat_image: {"height": 16, "width": 16},
    z_image: {"height": 16, "width": 16},
    hunyuan_video: {"height": 32, "width": 32, "frames": 5},
    sd3: {"height": 16, "width": 16},
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("steps", [4, 10])
def test_levels_are_those_of_the_published_file_bit_for_bit(name, steps, copied):
    import diffusers

    kind, content, even, shift = FILES[name]
    folder = copied(kind)
    rewrite(folder / "scheduler" / "scheduler_config.json", content)
    model = load(kind, folder, **SIZES[kind])
    theirs = diffusers.FlowMatchEulerDiscreteScheduler.from_pretrained(folder, subfolder="scheduler")
    spaced = {"num_inference_steps": steps} if even is None else {"sigmas": np.linspace(1.0, 1 / steps, steps)}
    if kind is z_image:
        spaced = {"sigmas": torch.linspace(1.0, 1 / steps, steps).tolist()}
    if kind is hunyuan_video:
        spaced = {"sigmas": np.linspace(1.0, 0.0, steps + 1)[:-1]}
    if kind is ltx_video and shift is not None:
        shift = mu(model.shape[1] * model.shape[2] * model.shape[3], 0.95, 1024, 2.05, 4096)
    theirs.set_timesteps(**spaced, mu=shift)
    grid = model.grid(steps)
    assert torch.equal(grid.levels, theirs.sigmas)
    if shift is None:
        assert grid.shift == content.get("shift", 1.0)  # not the flow_shift that is foreign to the class


@pytest.mark.parametrize(("side", "steps"), [(16, 4), (16, 10), (32, 4), (32, 50)])
def test_the_shift_of_klein_is_of_its_tokens_and_steps_and_not_of_its_file(side, steps, copied):
    import diffusers
    from diffusers.pipelines.flux2.pipeline_flux2_klein import compute_empirical_mu

    folder = copied(flux2_klein)
    rewrite(folder / "scheduler" / "scheduler_config.json", THREE | DYNAMIC | {"use_dynamic_shifting": True})
    rewrite(folder / "model_index.json", absent=("is_distilled",))  # of the base models
    model = load(flux2_klein, folder, height=side, width=side)
    theirs = diffusers.FlowMatchEulerDiscreteScheduler.from_pretrained(folder, subfolder="scheduler")
    tokens = model.shape[1] * model.shape[2]
    theirs.set_timesteps(sigmas=np.linspace(1.0, 1 / steps, steps), mu=compute_empirical_mu(tokens, steps))
    assert torch.equal(model.grid(steps).levels, theirs.sigmas)


@pytest.mark.parametrize("place", ["model_index.json", "scheduler/scheduler_config.json"])
def test_a_class_that_diffusers_no_longer_has_is_one_clear_error(place, copied):
    folder, gone = copied(stable_diffusion), "FlowDPMSolverMultistepScheduler"
    if place == "model_index.json":
        rewrite(folder / place, scheduler=["diffusers", gone])
    else:
        rewrite(folder / place, _class_name=gone)
    with pytest.raises(ValueError, match=f"{place}.*{gone}.*DPMSolverMultistepScheduler"):
        load(stable_diffusion, folder)


def test_a_shift_that_the_class_of_the_index_would_not_read_is_refused(copied):
    folder = copied(wan)
    rewrite(folder / "model_index.json", scheduler=["diffusers", "FlowMatchEulerDiscreteScheduler"])
    with pytest.raises(ValueError, match="FlowMatchEulerDiscreteScheduler.*UniPCMultistepScheduler.*flow_shift"):
        check_scheduler(str(folder))
    rewrite(folder / "scheduler" / "scheduler_config.json", flow_shift=1.0)
    check_scheduler(str(folder))
    rewrite(folder / "scheduler" / "scheduler_config.json", THREE)
    rewrite(folder / "model_index.json", scheduler=["diffusers", "UniPCMultistepScheduler"])
    with pytest.raises(ValueError, match=r"UniPCMultistepScheduler.*FlowMatchEulerDiscreteScheduler.*3\.0"):
        check_scheduler(str(folder))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("prediction_type", "epsilon"),
        ("use_flow_sigmas", False),
        ("final_sigmas_type", "sigma_min"),
        ("use_dynamic_shifting", True),
    ],
)
def test_levels_that_are_not_those_of_the_family_s_flow_are_refused_by_key(key, value, copied):
    folder = copied(wan)
    rewrite(folder / "scheduler" / "scheduler_config.json", **{key: value})
    with pytest.raises(ValueError, match=rf"scheduler_config\.json.*UniPCMultistepScheduler.*{key}"):
        load(wan, folder).grid(4)


@pytest.mark.parametrize("kind", ["LCMScheduler", "TCDScheduler"])
def test_a_distilled_model_takes_the_timesteps_and_the_steps_of_its_scheduler(kind, copied):
    import diffusers

    folder = copied(stable_diffusion)
    rewrite(folder / "model_index.json", scheduler=["diffusers", kind])
    more = {"set_alpha_to_one": True, "skip_prk_steps": False}
    rewrite(folder / "scheduler" / "scheduler_config.json", _class_name=kind, **more)
    model, scheduler = load(stable_diffusion, folder), getattr(diffusers, kind).from_pretrained(folder / "scheduler")
    for steps in (1, 2, 4, 8):
        grid = model.grid(steps)
        scheduler.set_timesteps(steps)
        assert grid.times.tolist() == scheduler.timesteps.tolist() and grid.levels[-1] == 1
        x, output = torch.randn(2, 1, 4, 8, 8, generator=torch.Generator().manual_seed(0))
        for step in range(steps):
            options = {"eta": 1.0} if kind == "TCDScheduler" else {}  # its gamma: noise all anew
            generator = torch.Generator().manual_seed(step)
            wanted = scheduler.step(output, scheduler.timesteps[step], x, generator=generator, **options).prev_sample
            noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(step))
            got = kernel("consistency", model.prediction)(x, output, torch.tensor([step]), grid).sample(noise)
            # TCD goes by way of its first level, abar .99915: noise of std .029 that this leaves in the estimate.
            tolerance = 1e-5 if kind == "LCMScheduler" else 0.15
            torch.testing.assert_close(got, wanted, rtol=0, atol=tolerance)
    with pytest.raises(ValueError, match=r"sampling\.steps.*51.*50"):
        model.grid(51)


TURBO = {"_class_name": "EulerAncestralDiscreteScheduler", "timestep_spacing": "trailing"}


def test_a_turbo_model_starts_at_the_last_timestep(copied):
    folder = copied(stable_diffusion)
    rewrite(folder / "model_index.json", scheduler=["diffusers", TURBO["_class_name"]])
    rewrite(folder / "scheduler" / "scheduler_config.json", absent=("prediction_type", "steps_offset"), **TURBO)
    assert load(stable_diffusion, folder).grid(4).times.tolist() == [999, 749, 499, 249]


# Wan's levels ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", KERNELS)
def test_states_of_wan_have_the_size_of_noise_on_its_own_levels(kernel, tiny):
    model = load(wan, tiny(wan), height=16, width=16, frames=5, guidance=1.0)
    policy = denoising_policy_over(model, kernel=kernel, steps=20)
    assert policy.grid.levels[0] == pytest.approx(1 - 1e-6, abs=1e-7)
    [walk] = policy.rollout(Request([Prompt("a red square")], [0], 4, seed=0)).steps.walks  # type: ignore[attr-defined]
    rms = walk.states.flatten(1).square().mean(1).sqrt()
    assert float(rms.min()) > 0.5 and float(rms.max()) < 2


def test_the_shift_of_wan_is_applied_once_and_times_are_never_rounded(copied):
    """u = 1 - .999 / 40 = .975025; 12 u / (1 + 11 u) = .997870. Twice the shift would give .999822."""
    import diffusers

    folder = copied(wan)
    rewrite(folder / "scheduler" / "scheduler_config.json", flow_shift=12.0)
    grid, scheduler = (
        load(wan, folder).grid(40),
        diffusers.UniPCMultistepScheduler.from_pretrained(folder, subfolder="scheduler"),
    )
    scheduler.set_timesteps(40)
    assert torch.equal(grid.levels, scheduler.sigmas) and grid.shift == 12.0
    assert grid.levels[1].item() == pytest.approx(0.997870, abs=1e-6)
    assert torch.equal(grid.times, grid.levels[:-1])
    assert not torch.equal((1000 * grid.times).long().float(), 1000 * grid.times)


@pytest.mark.slow
def test_videos_are_as_good_on_the_levels_of_published_wan_checkpoints_as_on_euler_s(tmp_path):
    import diffusers

    prompts = load_prompts(locate("embedded:visual/films/heldout.jsonl"))[:8]
    scores = []
    for number, unipc in enumerate((False, True)):
        folder = Path(shutil.copytree(locate("embedded:visual/films/base"), tmp_path / str(number)))
        if unipc:
            diffusers.UniPCMultistepScheduler(
                prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0
            ).save_pretrained(folder / "scheduler")
        policy = denoising_policy_over(
            load(wan, folder, guidance=1.0),
            kernel="flow_sde(a=0.7)",
            steps=10,
            evaluation_steps=10,
            forward_batch_size=1024,
        )
        made = policy.rollout(Request(prompts, range(len(prompts)), 4, seed=0))
        states = made.steps.walks[0].states  # type: ignore[attr-defined]
        assert float(states.abs().max()) < 8
        assert noise_table(policy.kernel, policy.grid)[0].item() == pytest.approx(0.7, abs=1e-3)
        scores.append(float(np.mean(film_score(made.prompts, made.outputs))))
    assert scores[1] > scores[0] - 0.1


# Indices and weights --------------------------------------------------------------------------------------


def test_an_index_with_a_safety_checker_or_a_projected_image_encoder_loads(copied, tmp_path):
    folder = copied(stable_diffusion)
    checker = ["stable_diffusion", "StableDiffusionSafetyChecker"]
    rewrite(
        folder / "model_index.json", safety_checker=checker, feature_extractor=["transformers", "CLIPImageProcessor"]
    )
    assert load(stable_diffusion, folder).prediction == "epsilon"


def test_the_image_encoder_of_wan_is_of_the_projected_class(tiny):
    folder = tiny("wan_i2v")
    index = json.loads((folder / "model_index.json").read_text())
    assert index["image_encoder"][1] == "CLIPVisionModelWithProjection"
    assert load("wan_i2v", folder).architecture.pipeline.image_encoder is not None


@pytest.mark.parametrize(("pictures", "boundary"), [(False, 0.875), (True, 0.9)])
def test_the_boundary_between_two_networks_is_that_of_the_index(pictures, boundary, tiny):
    kind = "wan_i2v" if pictures else "wan"
    assert load(kind, tiny(kind, version="2.2-14B")).network.boundary == pytest.approx(1000 * boundary)


def test_a_null_boundary_with_a_null_second_network_is_one_network(tiny):
    import diffusers

    folder = tiny(wan, version="2.2-5B")
    index = json.loads((folder / "model_index.json").read_text())
    assert index["boundary_ratio"] is None and index["transformer_2"] == [None, None]
    assert isinstance(load(wan, folder).network, diffusers.WanTransformer3DModel)


def weights(model: Any) -> dict[str, torch.Tensor]:
    pipeline = model.architecture.pipeline
    parts = {"network": model.network, "words": pipeline.text_encoder, "vae": pipeline.vae}
    return {f"{part}.{key}": value.float() for part, one in parts.items() for key, value in one.state_dict().items()}


def test_a_folder_of_half_precision_variants_only_loads_whole(tiny, tmp_path):
    import diffusers

    folder = tiny(stable_diffusion)
    pipeline = diffusers.StableDiffusionPipeline.from_pretrained(folder, safety_checker=None)
    pipeline.to(dtype=torch.float16).save_pretrained(tmp_path / "half", variant="fp16")
    names = sorted(file.name for file in (tmp_path / "half").rglob("*.safetensors"))
    assert names and all(".fp16." in name for name in names)
    ours, whole = weights(load(stable_diffusion, tmp_path / "half")), weights(load(stable_diffusion, folder))
    assert ours.keys() == whole.keys()
    assert all(torch.equal(ours[key], whole[key].half().float()) for key in ours)


def test_a_folder_of_both_is_read_in_full_precision(copied):
    folder = copied(stable_diffusion)
    before = weights(load(stable_diffusion, folder))
    for file in list(folder.rglob("*.safetensors")):
        file.with_name(file.name.replace(".safetensors", ".fp16.safetensors")).write_bytes(b"damaged")
    after = weights(load(stable_diffusion, folder))
    assert all(torch.equal(before[key], after[key]) for key in before)


@pytest.mark.parametrize("variant", [None, "fp16"])
def test_shards_are_read_and_may_name_nothing_outside_of_their_folder(variant, copied):
    import diffusers

    folder = copied(sd3)
    network = diffusers.SD3Transformer2DModel.from_pretrained(folder, subfolder="transformer")
    shutil.rmtree(folder / "transformer")
    network.save_pretrained(folder / "transformer", max_shard_size="40KB", variant=variant)
    model = load(sd3, folder, **SIZES[sd3])
    assert all(torch.equal(value, model.network.state_dict()[key]) for key, value in network.state_dict().items())
    [index] = (folder / "transformer").glob("*.index*.json")
    rewrite(index, weight_map={"pos_embed.proj.weight": "../model_index.json"})
    with pytest.raises(ValueError, match=rf"{index.name}: .*model_index"):
        load(sd3, folder, **SIZES[sd3])


def test_weights_in_a_pickle_are_converted_to_the_name_that_is_read(tiny, tmp_path):
    import diffusers

    pipeline = diffusers.StableDiffusionPipeline.from_pretrained(tiny(stable_diffusion), safety_checker=None)
    pipeline.save_pretrained(tmp_path / "pickled", safe_serialization=False)
    with pytest.raises(ValueError, match=r"diffusion_pytorch_model\.safetensors.*--model\.allow-pickle"):
        load(stable_diffusion, tmp_path / "pickled")
    assert load(stable_diffusion, tmp_path / "pickled", allow_pickle=True).prediction == "epsilon"


@pytest.mark.parametrize(
    ("part", "file", "key"),
    [
        ("text_encoder", "model.safetensors", "layer_norm1.weight"),
        ("vae", "diffusion_pytorch_model.safetensors", "decoder.conv_norm_out.weight"),
        ("unet", "diffusion_pytorch_model.safetensors", "conv_in.weight"),
    ],
)
def test_a_part_that_lacks_a_weight_is_refused_and_not_filled_with_random_numbers(part, file, key, copied):
    file = copied(stable_diffusion) / part / file
    kept = load_file(file)
    removed = next(name for name in kept if name.endswith(key))
    del kept[removed]
    save_file(kept, file, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=f"1.*{key}"):
        load(stable_diffusion, file.parent.parent)


def test_a_network_alone_names_the_folder_that_is_missing(tiny):
    with pytest.raises(FileNotFoundError, match="SD3Transformer2DModel.*stable-diffusion-3.5"):
        load(sd3, tiny(sd3) / "transformer")
    with pytest.raises(ValueError, match=r"HunyuanVideoTransformer3DModel.*HunyuanVideo.*model\.transformer"):
        refuse_foreign(family("skyreels_i2v"), str(tiny("skyreels_i2v") / "transformer"))


# Words ----------------------------------------------------------------------------------------------------

LONG = "a red square left of a blue circle above a green triangle and below a yellow star, and more of it"


@pytest.mark.parametrize(
    ("kind", "options"), [(sd3, {"max_sequence_length": 128}), (flux, {"max_sequence_length": 128})]
)
def test_a_prompt_that_clip_would_cut_is_taken_where_t5_reads_it(kind, options, tiny):
    model = load(kind, tiny(kind), **SIZES[kind], **options)
    assert len(model.architecture.pipeline.tokenizer(LONG).input_ids) > 77
    model.architecture.check(Prompt(LONG))
    assert not torch.equal(*(model.encode([Prompt(text)]).tensors[0] for text in (LONG, LONG + " and end")))
    with pytest.raises(ValueError, match="77.*CLIP"):
        load(stable_diffusion, tiny(stable_diffusion)).architecture.check(Prompt(LONG))


def test_the_missing_negative_prompt_of_qwen_is_a_space(tiny):
    model = load(qwen_image, tiny(qwen_image), guidance=4.0, max_sequence_length=48, **SIZES[qwen_image])
    conditioning = model.encode([Prompt("a red square")])
    for ours, expected in zip(conditioning.negative, model.encode([Prompt(" ")]).tensors, strict=True):
        assert torch.equal(ours, expected)


# Precision ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [0, 2])
def test_what_a_network_keeps_in_fp32_stays_so_after_loading_adapting_and_saving(rank, tiny, tmp_path):
    import diffusers

    model = load(wan, tiny(wan), dtype="bfloat16", height=16, width=16, frames=5, lora_rank=rank)
    kept = tuple(diffusers.WanTransformer3DModel._keep_in_fp32_modules)
    named = {key: value for key, value in model.network.named_parameters() if any(part in key for part in kept)}
    assert named and all(value.dtype == torch.float32 for value in named.values())
    before = {key: value.clone() for key, value in named.items()}
    model.save(tmp_path / "saved", model.network)
    assert all(torch.equal(value, before[key]) for key, value in named.items())
    rollout = denoising_policy_over(model, kernel="flow_sde", steps=3, forward_batch_size=8).rollout(
        Request([Prompt("a red square")], [0], 2, seed=0)
    )
    assert bool(rollout.decisions.log_probs.isfinite().all())


def test_attention_in_fp32_and_half_precision_give_finite_pictures(tiny):
    model = load(stable_diffusion, tiny(stable_diffusion, prediction="v_prediction"), dtype="bfloat16")
    assert model.network.config.upcast_attention and model.architecture.pipeline.vae.config.shift_factor is None
    noise = torch.randn(1, *model.shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        made = model.predict(model.network, noise, torch.tensor([501]), model.encode([Prompt("a red square")]))
        [picture] = model.decode(noise)
    assert made.dtype == torch.float32 and bool(made.isfinite().all()) and bool(picture.pixels.isfinite().all())
    assert Training(dtype="bfloat16").compute_dtype == torch.bfloat16
