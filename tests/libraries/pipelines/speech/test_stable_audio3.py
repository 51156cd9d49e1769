"""Stable Audio 3 against diffusers: whole chains of its pipeline, durations in one batch, what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from mmgrpo.diffusion.kernels import kernel
from mmgrpo.types import Prompt
from pipelines.speech import stable_audio3
from tests.building import load
from tests.tiny import maker, tiny_checkpoint

STEPS, SECONDS = 5, 0.12  # 24 latents of 4 samples at 800 Hz


@pytest.fixture(scope="module")
def folder() -> Path:
    return tiny_checkpoint(maker("stable_audio3"))


@pytest.fixture(scope="module")
def base() -> Path:
    return tiny_checkpoint(maker("stable_audio3"), distilled=False)


def ours(folder: Path, **options: Any) -> Any:
    return load(stable_audio3, folder, **{"seconds": SECONDS, **options})


def noise(model: Any, rows: int = 1) -> torch.Tensor:
    return torch.randn(rows, *model.latent_shape(), generator=torch.Generator().manual_seed(5))


@torch.no_grad()
def chain(model: Any, prompts: list[Prompt], x: torch.Tensor, text: str) -> torch.Tensor:
    """The end of a chain of a kernel, whose noise is that of diffusers' scheduler for the whole latents."""
    grid, conditioning, generator = model.grid(STEPS), model.encode(prompts), torch.Generator().manual_seed(9)
    frames = conditioning.tensors[-1][:, 0]
    assert len(frames.unique()) == 1
    for t in range(STEPS):
        step = torch.full((len(x),), t)
        output = model.predict(model.network, x, grid.network_time(step), conditioning)
        transition = kernel(text, model.prediction)(x, output, step, grid)
        drawn = torch.zeros_like(x)
        drawn[:, :, : frames[0]] = torch.randn(len(x), x.shape[1], int(frames[0]), generator=generator)
        x = transition.mean + transition.std * drawn
    return x


def theirs(model: Any, text: str, seconds: float, frames: int, **options: Any) -> torch.Tensor:
    from diffusers import StableAudio3Pipeline

    pipe: Any = StableAudio3Pipeline(**model.pipeline.components)
    pipe.set_progress_bar_config(disable=True)
    drawn = torch.Generator().manual_seed(9)
    given = {"duration": seconds, "num_inference_steps": STEPS, "latents": noise(model)[:, :, :frames]}
    return pipe(text, generator=drawn, **given, **options).audios


@pytest.mark.parametrize(("guidance", "seconds", "frames"), [(1.0, SECONDS, 24), (4.0, SECONDS, 24), (4.0, 0.0712, 15)])
@pytest.mark.parametrize(("distilled", "text"), [(True, "cps(a=1.0, scaled=True)"), (False, "cps(a=0.0)")])
def test_a_chain_ends_where_diffusers_pipeline_ends(folder, base, distilled, text, guidance, seconds, frames):
    model = ours(folder if distilled else base, guidance=guidance)
    prompt = Prompt("rain on a roof", meta={"seconds": seconds})
    latents = chain(model, [prompt], noise(model), text)
    expected = theirs(model, prompt.text, seconds, frames, guidance_scale=guidance, output_type="latent")
    torch.testing.assert_close(latents[:, :, :frames], expected, rtol=0, atol=1e-5)
    [sound] = model.decode(latents, model.encode([prompt]))
    heard = theirs(model, prompt.text, seconds, frames, guidance_scale=guidance)[0]
    assert sound.samples.shape == (2, int(seconds * 800)) and sound.rate == 800
    torch.testing.assert_close(sound.samples, heard, rtol=0, atol=1e-5)


def test_levels_are_even_in_log_snr_between_one_and_zero(folder):
    """log-SNR -6.2 + 8.2 i / 8; at i = 4 it is -2.1, so sigma = 1 / (1 + exp(-2.1)) = .890903."""
    grid = ours(folder).grid(8)
    expected = [1, 0.994376, 0.98448, 0.957912, 0.890903, 0.745547, 0.512497, 0.273885, 0]
    torch.testing.assert_close(grid.levels, torch.tensor(expected), rtol=0, atol=1e-6)
    assert torch.equal(grid.times, grid.levels[:-1])
    model = ours(folder)
    model.levels = "shifted_linspace(shift=3)"
    assert model.grid(2).levels.tolist() == [1, 0.75, 0]


def test_rows_of_a_batch_have_their_own_durations_and_nothing_behind_them(folder):
    model = ours(folder, guidance=2.0)
    durations = (SECONDS, 0.05, SECONDS, 0.0712)
    prompts = [Prompt("rain", str(n), meta={"seconds": seconds}) for n, seconds in enumerate(durations)]
    x, time = noise(model, 4).requires_grad_(), torch.tensor([0.9, 0.5, 0.3, 0.7])
    together = model.predict(model.network, x, time, model.encode(prompts))
    for row, (prompt, frames) in enumerate(zip(prompts, (24, 10, 24, 15), strict=True)):
        alone = model.predict(model.network, x[row : row + 1], time[row : row + 1], model.encode([prompt]))
        torch.testing.assert_close(together[row], alone[0], rtol=0, atol=1e-5)
        assert together[row, :, :frames].abs().min() > 0 and not together[row, :, frames:].any()
    together.sum().backward()
    assert x.grad is not None and not x.grad[1, :, 10:].any() and x.grad[1, :, :10].abs().min() > 0
    sounds = model.decode(noise(model, 4), model.encode(prompts))
    assert [sound.samples.shape[1] for sound in sounds] == [96, 40, 96, 56]
    [alone] = model.decode(noise(model, 4)[3:], model.encode(prompts[3:]))
    torch.testing.assert_close(sounds[3].samples, alone.samples, rtol=0, atol=1e-6)


def test_words_are_encoded_once_and_what_the_model_cannot_make_is_refused(folder):
    model = ours(folder, guidance=2.0)
    model.encode([Prompt("rain", "0"), Prompt("rain", "1", meta={"seconds": 0.02})])
    assert len(model.encodings.memory) == 2, "these words, and none"
    assert model.seconds_of(Prompt("rain")) == SECONDS and model.latent_shape() == (4, 24)
    for seconds in (0, 0.13, "long", True, None):
        with pytest.raises(ValueError, match="'a'.*seconds.*model.seconds"):
            model.check(Prompt("rain", "a", meta={"seconds": seconds}))
    model.check(Prompt("a" * 255, "a"))
    for read in (model.check, lambda prompt: model.encode([prompt])):
        with pytest.raises(ValueError, match="257.*256.*T5Gemma"):
            read(Prompt("a" * 256, "a"))
    with pytest.raises(ValueError, match="model.seconds.*400.*384"):
        ours(folder, seconds=400.0)


def test_without_guidance_there_is_one_evaluation_of_each_row(folder):
    model = ours(folder)
    assert model.evaluations_per_row == 1 and model.encode([Prompt("rain")]).negative == ()
    assert ours(folder, guidance=2.0).evaluations_per_row == 2


def test_layers_of_inpainting_do_not_train_and_adapters_have_the_names_of_diffusers(folder, tmp_path):
    from safetensors import safe_open

    frozen = {name for name, weight in ours(folder).network.named_parameters() if not weight.requires_grad}
    assert len(frozen) == 2 * 4 and all(".to_local_embed." in name for name in frozen)
    model = ours(folder, lora_rank=2)
    model.save(tmp_path, model.network)
    with safe_open(tmp_path / "pytorch_lora_weights.safetensors", "pt") as file:
        names = set(file.keys())
    assert "transformer_blocks.0.self_attn.to_qkv.lora_A.weight" in names and len(names) == 2 * 5 * 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"_class_name": "EulerDiscreteScheduler"}, "_class_name.*EulerDiscreteScheduler.*FlowMatchEuler"),
        ({"num_train_timesteps": 1000}, "num_train_timesteps.*1000.*1,"),
        ({"num_train_timesteps": None}, "num_train_timesteps.*1000.*1,"),
        ({"shift": 3.0}, "shift.*3.0.*1.0"),
        ({"use_dynamic_shifting": True}, "use_dynamic_shifting.*True.*False"),
        ({"invert_sigmas": True}, "invert_sigmas.*True"),
    ],
)
def test_a_scheduler_of_other_levels_or_times_is_refused(folder, change, message, tmp_path):
    copied = Path(shutil.copytree(folder, tmp_path / "model"))
    file = copied / "scheduler" / "scheduler_config.json"
    changed = {**json.loads(file.read_text()), **change}
    file.write_text(json.dumps({key: value for key, value in changed.items() if value is not None}))
    with pytest.raises(ValueError, match=message):
        ours(copied)
