"""Negative prompts of runs and rows: those of diffusers' own pipelines, apart in caches, named where useless."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch

from mmgrpo.config.needs import refuse_moot
from mmgrpo.config.settings import config_class
from mmgrpo.diffusion.ode import Solver
from mmgrpo.family import family
from mmgrpo.types import Prompt, Request
from pipelines.conditions import SUFFIX
from pipelines.visual import flux, sana, sana_video, sd3
from pipelines.visual.options import FlowOptions
from tests.building import check_scores, load
from tests.libraries.pipelines.visual.drawing import load_pipeline
from tests.tiny import maker, tiny_checkpoint

WORDS = ["a red circle", "a blue square and a circle.", "a red circle"]
NEGATIVE = ["blue", "a circle.", "a square and a circle"]
PROMPTS = [
    Prompt(text, str(row), meta={"negative_prompt": negative})
    for row, (text, negative) in enumerate(zip(WORDS, NEGATIVE, strict=True))
]
STEPS = 4


def same(x: Any) -> Any:
    return x


@dataclass(frozen=True)
class Case:
    """How a family's model is made and how diffusers' pipeline of it is called."""

    pipeline: str
    scale: str = "guidance_scale"
    """The pipeline's name of the scale, where ours is ``guidance``, or the name of both."""
    size: Mapping[str, int] = field(default_factory=lambda: {"height": 16, "width": 24})
    length: int = 48
    call: Mapping[str, Any] = field(default_factory=dict)
    latents: Callable[[Any], Any] = same
    prepare: Callable[[Any], None] = lambda pipe: None


def euler(pipe: Any) -> None:
    import diffusers

    pipe.scheduler = diffusers.FlowMatchEulerDiscreteScheduler(shift=pipe.scheduler.config.flow_shift)


def ddim(pipe: Any) -> None:
    import diffusers

    pipe.scheduler = diffusers.DDIMScheduler.from_config(pipe.scheduler.config)


CASES = {
    "sd3": Case("StableDiffusion3Pipeline"),
    "stable_diffusion": Case("StableDiffusionPipeline", length=0, prepare=ddim),
    "sdxl": Case("StableDiffusionXLPipeline", length=0, prepare=ddim),
    "sana": Case(
        "SanaPipeline",
        size={"height": 32, "width": 64},
        call={"sigmas": np.linspace(1, 1 / STEPS, STEPS), "use_resolution_binning": False},
        prepare=euler,
    ),
    "sana_video": Case(
        "SanaVideoPipeline",
        size={"height": 32, "width": 64, "frames": 5},
        call={"sigmas": np.linspace(1, 1 / STEPS, STEPS), "use_resolution_binning": False},
        prepare=euler,
    ),
    "flux": Case("FluxPipeline", "true_cfg_scale", call={"guidance_scale": 3.5}, latents=flux.pack),
    "qwen_image": Case("QwenImagePipeline", "true_cfg_scale", latents=flux.pack),
}


def model_of(name: str, folder: Any, scale: float, **options: Any) -> Any:
    case = CASES[name]
    length = {"max_sequence_length": case.length} if case.length else {}
    scale_of_ours = "true_cfg_scale" if name == "flux" else "guidance"
    return load(name, folder, **case.size, **length, **{scale_of_ours: scale}, **options)


def drawn(model: Any, x: torch.Tensor, prompts: list[Prompt]) -> torch.Tensor:
    """What the solver of evaluation makes of a noise."""
    solver = Solver(model, 64, torch.device("cpu"))
    with torch.no_grad():
        return solver.denoise(model.network, x, model.encode(prompts), model.grid(STEPS))


@pytest.fixture(scope="module")
def folders() -> Any:
    made: dict[str, Any] = {}

    def folder(name: str) -> Any:
        if name not in made:
            made[name] = tiny_checkpoint(maker(name))
        return made[name]

    return folder


@pytest.mark.parametrize("name", CASES)
def test_a_sample_equals_the_pipeline_of_diffusers_with_the_negative_prompts_of_the_rows(name, folders):

    case, model = CASES[name], model_of(name, folders(name), 4.0)
    x = torch.randn(3, *model.latent_shape(), generator=torch.Generator().manual_seed(3))
    pipe = load_pipeline(case.pipeline, folders(name))
    case.prepare(pipe)
    theirs = pipe(
        prompt=WORDS,
        negative_prompt=NEGATIVE,
        latents=case.latents(x.clone()),
        num_inference_steps=STEPS,
        output_type="latent",
        **{case.scale: 4.0},
        **case.size,
        **({"max_sequence_length": case.length} if case.length else {}),
        **case.call,
    )[0]
    ours = drawn(model, x, PROMPTS)
    torch.testing.assert_close(case.latents(ours), theirs, atol=2e-5, rtol=0)
    without = drawn(model, x, [replace(prompt, meta={}) for prompt in PROMPTS])
    assert all(gap > 1e-4 for gap in (ours - without).abs().flatten(1).amax(1))
    # The setting of the run is that of rows which state none; an empty one of a row is none.
    model.negative_prompt = NEGATIVE[0]
    rows = [replace(PROMPTS[0], meta={}), PROMPTS[1], replace(PROMPTS[2], meta={"negative_prompt": ""})]
    mixed = drawn(model, x, rows)
    assert torch.equal(mixed[:2], ours[:2]) and torch.equal(mixed[2], without[2])


def test_an_unconditional_branch_without_a_negative_prompt_is_that_of_the_model_card(folders):
    model = model_of("qwen_image", folders("qwen_image"), 4.0)
    nothing = Prompt("a", meta={"negative_prompt": " "})
    absent, space = model.encode([Prompt("a")]).negative, model.encode([nothing]).negative
    assert all(torch.equal(a, b) for a, b in zip(absent, space, strict=True))


def test_a_negative_prompt_and_a_prompt_of_the_same_words_are_encoded_apart(folders, tmp_path):
    # Sana reads an instruction before a prompt, and none before a negative prompt.
    model = model_of("sana", folders("sana"), 4.0)
    model.limit_memory(FlowOptions(encodings_folder=str(tmp_path)), "sana")
    prompt = Prompt("blue", meta={"negative_prompt": "blue"})
    for _ in range(2):  # the second time from the files
        encoded = model.encode([prompt])
        assert (encoded.tensors[0] - encoded.negative[0]).abs().max() > 1e-3
        model.encodings.memory.clear()
        model.negatives.memory.clear()
    assert len(list(tmp_path.glob(f"*{SUFFIX}"))) == 2


def test_negative_prompts_outlive_the_encoders(folders):
    model = model_of("sd3", folders("sd3"), 4.0)
    expected = model.encode(PROMPTS)
    model.forget_encoders(PROMPTS)
    again = model.encode(PROMPTS)
    assert all(torch.equal(a, b) for a, b in zip(expected.negative, again.negative, strict=True))
    with pytest.raises(KeyError, match="encoded"):
        model.encode([replace(PROMPTS[0], meta={"negative_prompt": "green"})])


@pytest.mark.parametrize("check", [sd3, sana, sana_video], ids=["sd3", "sana", "sana_video"])
def test_a_negative_prompt_that_the_encoder_would_cut_is_refused(check, folders):
    name = check.__name__.rpartition(".")[2]
    model = model_of(name, folders(name), 4.0)
    long = Prompt("a", "7", meta={"negative_prompt": "a red circle and " * 40})
    with pytest.raises(ValueError, match="'7'"):
        model.check(long)
    model.check(Prompt("a", "7"))
    model.guidance = 1.0
    model.check(long)  # which is not read then


def config_of(name: str, path: Any = "", sampling: Any = None, **options: Any) -> Any:
    config = config_class(family(name).sections)()
    model = replace(config.model, family=name, path=str(path), device="cpu", **options)
    return replace(config, model=model, sampling=replace(config.sampling, **(sampling or {})))


@pytest.mark.parametrize(("name", "scale"), [("sd3", "guidance"), ("flux", "true_cfg_scale"), ("wan", "guidance")])
def test_a_negative_prompt_without_guidance_is_refused(name, scale):
    plain = config_of(name)
    with pytest.raises(ValueError, match=rf"model\.negative_prompt.*model\.{scale}=1"):
        refuse_moot(config_of(name, negative_prompt="blurred", **{scale: 1.0}), plain)
    for sampling in ({"evaluation_guidance": 4.0}, {"rollout_guidance": 4.0}):
        refuse_moot(config_of(name, negative_prompt="blurred", **{scale: 1.0}, sampling=sampling), plain)


def test_negative_prompts_of_rows_without_guidance_are_counted_by_name():
    rows = [*PROMPTS, Prompt("a", "3")]
    with pytest.warns(UserWarning, match=r"rows\.jsonl.*3.*negative_prompt"):
        family("sd3").readable(config_of("sd3", guidance=1.0), rows, "rows.jsonl")
    with pytest.raises(ValueError, match="'0'.*negative_prompt.*3"):
        family("sd3").readable(config_of("sd3", guidance=4.0), [Prompt("a", "0", meta={"negative_prompt": 3})], "rows")


def test_the_ratio_is_one_with_negative_prompts_of_run_and_rows(folders):
    config = config_of("sd3", folders("sd3"), {"steps": 3}, guidance=4.0, negative_prompt="blue", height=16, width=16)
    config = replace(config, model=replace(config.model, max_sequence_length=48, lora_rank=2))
    prompts = [PROMPTS[0], Prompt("a blue square", "1")]
    policy = family("sd3").policy(config, "cpu", prompts)
    rollout = policy.rollout(Request(prompts, range(2), 2, seed=3))
    check_scores(policy, rollout, 3)


def test_a_negative_prompt_of_the_run_that_is_too_long_is_named_by_its_setting(folders):
    config = config_of("sd3", folders("sd3"), guidance=4.0, negative_prompt="a red circle " * 40, height=16, width=16)
    with pytest.raises(ValueError, match=r"model\.negative_prompt"):
        family("sd3").policy(replace(config, model=replace(config.model, max_sequence_length=48)), "cpu")
