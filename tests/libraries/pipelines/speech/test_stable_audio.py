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

from mmgrpo.diffusion.kernels import kernel
from mmgrpo.diffusion.schedules import exponential_sigmas
from mmgrpo.types import Prompt
from pipelines.conditions import Conditioning
from pipelines.speech import stable_audio
from tests.building import load
from tests.tiny import maker, tiny_checkpoint
from tests.tiny import stable_audio as stable_audio_tiny

STEPS = 5
SCHEDULER = "diffusers.schedulers.scheduling_cosine_dpmsolver_multistep"


@pytest.fixture(scope="module")
def folder() -> Path:
    return tiny_checkpoint(maker("stable_audio"))


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
    from diffusers import StableAudioPipeline

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
    for encoded in (crossed, state):
        torch.testing.assert_close(encoded[0], encoded[2], rtol=0, atol=1e-5)
        assert (encoded[0] - encoded[1]).abs().max() > 1e-3
    assert load(stable_audio, folder).seconds_of(prompts[0]) == pytest.approx(0.512), "the longest by default"


def test_words_are_encoded_once_and_what_the_model_cannot_make_is_refused(folder, monkeypatch):
    model = load(stable_audio, folder)
    model.encode([Prompt("rain", "0"), Prompt("rain", "1", meta={"seconds": 0.2})])
    assert len(model.encodings.memory) == 1
    for seconds in (0, 0.6, "long", True, None):
        with pytest.raises(ValueError, match="'a'.*seconds"):
            model.check(Prompt("rain", "a", meta={"seconds": seconds}))
    for read in (model.check, lambda prompt: model.encode([prompt])):
        with pytest.raises(ValueError, match="151.*128.*T5"):
            read(Prompt("a" * 149, "a"))
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
        ({"prediction_type": "epsilon"}, "prediction_type.*epsilon.*v_prediction"),
        ({"_class_name": "EDMEulerScheduler"}, "EDMEulerScheduler.*CosineDPMSolverMultistepScheduler"),
        ({"sigma_data": 0.5}, "sigma_data.*0.5.*1.0"),
        ({"_class_name": None}, "_class_name.*None.*CosineDPMSolverMultistepScheduler"),
        ({"sigma_schedule": "karras"}, "sigma_schedule.*karras"),
        ({"final_sigmas_type": "sigma_min"}, "final_sigmas_type.*sigma_min"),
        ({"sigma_min": 0}, "sigma_min=0.*sigma_max=500.*sigma_min"),
        ({"sigma_min": 500}, "sigma_min=500.*sigma_max=500.*sigma_min"),
        ({"sigma_min": "low"}, "sigma_min=low.*sigma_max=500"),
        ({"sigma_max": None}, "sigma_min=0.3.*sigma_max=None"),
        ({"sigma_max": float("inf")}, "sigma_min=0.3.*sigma_max=inf"),
    ],
)
def test_a_scheduler_of_another_process_is_refused(change, message, tmp_path):
    (tmp_path / "scheduler").mkdir()
    file = tmp_path / "scheduler" / "scheduler_config.json"
    file.write_text(json.dumps({**stable_audio_tiny.SCHEDULER, **change}))
    with pytest.raises(ValueError, match=message):
        stable_audio.read_sigmas(str(tmp_path))


def test_a_scheduler_that_leaves_its_levels_to_diffusers_has_those_of_stable_audio(tmp_path):
    with pytest.raises(ValueError, match="_class_name.*None.*CosineDPMSolverMultistepScheduler"):
        stable_audio.read_sigmas(str(tmp_path))
    (tmp_path / "scheduler").mkdir()
    file = tmp_path / "scheduler" / "scheduler_config.json"
    file.write_text(json.dumps({"_class_name": "CosineDPMSolverMultistepScheduler"}))
    assert stable_audio.read_sigmas(str(tmp_path)) == (0.3, 500.0)
    file.write_text(json.dumps({"_class_name": "CosineDPMSolverMultistepScheduler", "sigma_min": 1, "sigma_max": 2}))
    assert stable_audio.read_sigmas(str(tmp_path)) == (1.0, 2.0)


@pytest.mark.parametrize("seconds", [True, "1", None, 0, -1.0, 47.01, float("nan")])
def test_seconds_are_a_number_of_at_most_the_longest_sound(seconds, monkeypatch):
    monkeypatch.setattr(stable_audio.StableAudio, "longest", 47.0)
    model = object.__new__(stable_audio.StableAudio)
    model.seconds = 47.0
    with pytest.raises(ValueError, match="'a'.*seconds"):
        model.seconds_of(Prompt("", "a", meta={"seconds": seconds}))
    assert [model.seconds_of(Prompt("", "a", meta=meta)) for meta in ({}, {"seconds": 1})] == [47.0, 1.0]


def test_guidance_of_several_rows_is_that_of_each_and_none_evaluates_once(folder):
    prompts = [Prompt(text, text, meta={"seconds": 0.1 * n}) for n, text in enumerate(("rain", "wind", "a bell"), 1)]
    plain, guided = (load(stable_audio, folder, guidance=scale) for scale in (1.0, 3.0))
    assert (plain.evaluations_per_row, guided.evaluations_per_row) == (1, 2)
    assert plain.latent_shape() == (4, 64) and plain.device == torch.device("cpu") and plain.prediction == "v"
    rows: list[int] = []
    plain.network.register_forward_pre_hook(lambda _, given: rows.append(len(given[0])))
    z, time = noise(plain, 3), torch.tensor([0.2, 0.5, 0.9])
    with torch.no_grad():
        together = guided.predict(guided.network, z, time, guided.encode(prompts))
        for row, prompt in enumerate(prompts):
            conditioning = guided.encode([prompt])
            with_words = plain.predict(plain.network, z[row : row + 1], time[row : row + 1], plain.encode([prompt]))
            without = Conditioning(conditioning.negative)
            base = plain.predict(plain.network, z[row : row + 1], time[row : row + 1], without)
            torch.testing.assert_close(together[row], (base + 3 * (with_words - base))[0], rtol=1e-4, atol=1e-5)
    assert rows == [1] * 6


def test_sounds_are_decoded_so_many_at_a_time_and_cut_off(folder, monkeypatch):
    model = load(stable_audio, folder, decode_batch_size=2, seconds=0.001)
    sizes: list[int] = []

    def decode(latents: torch.Tensor) -> SimpleNamespace:
        sizes.append(len(latents))
        return SimpleNamespace(sample=torch.tensor([0.5, 1.5, -1.5] * 4).expand(len(latents), 2, -1))

    monkeypatch.setattr(model.pipeline.vae, "decode", decode)
    sounds = model.decode(noise(model, 3), model.encode([Prompt("rain", str(n)) for n in range(3)]))
    assert sizes == [2, 1] and len(sounds) == 3
    assert sounds[2].samples.tolist() == [[0.5, 1.0, -1.0, 0.5, 1.0, -1.0, 0.5, 1.0]] * 2  # 8 samples of 8 kHz
