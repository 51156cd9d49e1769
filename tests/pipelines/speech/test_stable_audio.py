"""Stable Audio against diffusers: whole chains of its scheduler and pipeline, durations, guidance, what is refused."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from diffusers import StableAudioPipeline

from mmgrpo.diffusion.kernels import kernel
from mmgrpo.diffusion.schedules import exponential_sigmas
from mmgrpo.types import Prompt
from pipelines.speech import stable_audio
from tests.building import load

STEPS = 5
SCHEDULER = "diffusers.schedulers.scheduling_cosine_dpmsolver_multistep"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return stable_audio.tiny(tmp_path_factory.mktemp("stable_audio") / "tiny")


class Still:
    """Brownian motion that does not move: the noise of every step is 0."""

    def __init__(self, size: Any, **_: Any) -> None:
        self.size = size

    def __call__(self, *_: float) -> torch.Tensor:
        return torch.zeros(self.size)


@pytest.fixture
def scheduler(monkeypatch) -> Any:
    """The scheduler of Stable Audio of first order without its noise, and without the package torchsde."""
    for name in (SCHEDULER, "diffusers.schedulers.scheduling_dpmsolver_sde"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "torchsde", SimpleNamespace(BrownianInterval=Still))
    made = importlib.import_module(SCHEDULER).CosineDPMSolverMultistepScheduler(solver_order=1)
    for name in (SCHEDULER, "diffusers.schedulers.scheduling_dpmsolver_sde"):
        monkeypatch.delitem(sys.modules, name)
    return made


def noise(model: Any, rows: int = 1) -> torch.Tensor:
    return torch.randn(rows, *model.latent_shape(), generator=torch.Generator().manual_seed(5))


@torch.no_grad()
def means(model: Any, prompts: list[Prompt], z: torch.Tensor, eta: float) -> torch.Tensor:
    """The end of the chain in which every transition is replaced by its mean."""
    grid, conditioning = model.grid(STEPS), model.encode(prompts)
    for t in range(STEPS):
        step = torch.full((len(z),), t)
        output = model.predict(model.network, z, grid.network_time(step), conditioning)
        z = kernel(f"ddim(eta={eta})", model.prediction)(z, output, step, grid).mean
    return z


def test_noise_levels_and_times_are_those_of_the_scheduler(folder, scheduler):
    scheduler.set_timesteps(STEPS)
    assert torch.equal(exponential_sigmas(STEPS, 0.3, 500.0), scheduler.sigmas)
    grid = load(stable_audio, folder).grid(STEPS)
    torch.testing.assert_close(grid.times, scheduler.timesteps, rtol=1e-6, atol=0)


@pytest.mark.parametrize(("guidance", "seconds"), [(1.0, 0.512), (4.0, 0.3)])
def test_the_means_of_our_transitions_are_the_steps_of_diffusers_pipeline_without_noise(
    folder, scheduler, guidance, seconds
):
    model, prompt = load(stable_audio, folder, guidance=guidance), Prompt("rain on a roof", meta={"seconds": seconds})
    pipe = StableAudioPipeline(**{**model.pipeline.components, "scheduler": scheduler})
    pipe.set_progress_bar_config(disable=True)
    arguments = {"audio_end_in_s": seconds, "num_inference_steps": STEPS, "guidance_scale": guidance}
    theirs = [
        pipe(prompt.text, latents=noise(model), output_type=kind, **arguments).audios for kind in ("latent", "pt")
    ]
    ours = means(model, [prompt], noise(model), eta=1.0)
    torch.testing.assert_close(ours, theirs[0], rtol=1e-4, atol=1e-5)
    [sound] = model.decode(ours, model.encode([prompt]))
    assert sound.samples.shape == (2, int(seconds * 8_000)) and sound.rate == 8_000
    torch.testing.assert_close(sound.samples, theirs[1][0], rtol=1e-4, atol=1e-5)


def test_without_noise_a_step_is_eulers_of_the_process_of_edm(folder):
    """x' = x + (sigma' - sigma) (x - D) / sigma with D = x / (1 + sigma^2) - sigma v / sqrt(1 + sigma^2)."""
    model, prompts = load(stable_audio, folder, guidance=1.0), [Prompt("rain", "0"), Prompt("a bell", "1")]
    sigmas, grid, conditioning = exponential_sigmas(STEPS, 0.3, 500.0), model.grid(STEPS), model.encode(prompts)
    x = noise(model, 2) * (1 + sigmas[0] ** 2).sqrt()
    for sigma, then, time in zip(sigmas[:-1], sigmas[1:], grid.times, strict=True):
        scale = (1 + sigma**2).sqrt()
        with torch.no_grad():
            v = model.predict(model.network, x / scale, time.expand(2), conditioning)
        x = x + (then - sigma) * (x - (x / scale**2 - sigma * v / scale)) / sigma
    torch.testing.assert_close(means(model, prompts, noise(model, 2), eta=0.0), x, rtol=1e-4, atol=1e-4)


def test_each_row_of_a_batch_has_its_own_duration(folder):
    model = load(stable_audio, folder, seconds=0.25)
    prompts = [Prompt("rain", "0"), Prompt("rain", "1", meta={"seconds": 0.5}), Prompt("rain", "2")]
    conditioning = model.encode(prompts)
    assert [sound.samples.shape[1] for sound in model.decode(noise(model, 3), conditioning)] == [2000, 4000, 2000]
    crossed, state, _ = conditioning.tensors
    assert torch.equal(crossed[0], crossed[2]) and torch.equal(state[0], state[2])
    assert not torch.equal(crossed[0], crossed[1]) and not torch.equal(state[0], state[1])
    assert load(stable_audio, folder).seconds_of(prompts[0]) == pytest.approx(0.512), "the longest by default"


def test_words_are_encoded_once_and_what_the_model_cannot_make_is_refused(folder, monkeypatch):
    model = load(stable_audio, folder)
    model.encode([Prompt("rain", "0"), Prompt("rain", "1", meta={"seconds": 0.2})])
    assert len(model.encodings.memory) == 1
    for seconds in (0, 0.6, "long", True, None):
        with pytest.raises(ValueError, match="prompt 'a': seconds: got .* above 0 of at most 0.512, the longest sound"):
            model.check(Prompt("rain", "a", meta={"seconds": seconds}))
    with pytest.raises(ValueError, match="has 151 tokens, expected at most 128, which T5 reads"):
        model.check(Prompt("a" * 149, "a"))
    with pytest.raises(ValueError, match="model.seconds"):
        load(stable_audio, folder, seconds=2.0)


def test_the_random_frequencies_of_the_times_do_not_train(folder):
    model = load(stable_audio, folder)
    frozen = {name for name, weight in model.network.named_parameters() if not weight.requires_grad}
    assert frozen == {"time_proj.weight"}


def test_saved_adapters_have_the_names_of_diffusers(folder, tmp_path):
    from safetensors import safe_open

    model = load(stable_audio, folder, lora_rank=2)
    model.save(tmp_path, model.network)
    with safe_open(tmp_path / "pytorch_lora_weights.safetensors", "pt") as file:
        names = set(file.keys())
    assert "transformer_blocks.0.attn1.to_q.lora_A.weight" in names and len(names) == 2 * 4 * 2 * 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prediction_type": "epsilon"}, "prediction_type: got epsilon, expected v_prediction"),
        ({"_class_name": "EDMEulerScheduler"}, "got EDMEulerScheduler, expected CosineDPMSolverMultistepScheduler"),
        ({"sigma_data": 0.5}, "sigma_data: got 0.5, expected 1.0"),
        ({"sigma_min": 0}, "got sigma_min=0 and sigma_max=500, expected 0 < sigma_min < sigma_max"),
    ],
)
def test_a_scheduler_of_another_process_is_refused(change, message, tmp_path):
    file = stable_audio.tiny(tmp_path / "tiny") / "scheduler" / "scheduler_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(ValueError, match=message):
        load(stable_audio, tmp_path / "tiny")


def test_without_guidance_there_is_no_second_branch(folder):
    prompts = [Prompt("rain")]
    assert load(stable_audio, folder, guidance=1.0).encode(prompts).negative == ()
    guided = load(stable_audio, folder, guidance=2.0).encode(prompts)
    assert not guided.negative[0].any() and torch.equal(guided.negative[2], guided.tensors[2])
