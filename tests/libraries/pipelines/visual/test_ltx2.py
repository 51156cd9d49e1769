"""LTX-2: both streams equal diffusers' own pipeline, one ratio for each, and the sound reaches the output."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import mmgrpo
from mmgrpo.diffusion.kernels import Transition
from mmgrpo.diffusion.ode import Solver
from mmgrpo.policies.denoising import DenoisingPolicy
from mmgrpo.types import Prompt, Request
from pipelines.visual import ltx2
from pipelines.visual.flow import FlowModel
from pipelines.visual.library import Diffusers
from pipelines.visual.pipeline import Call
from tests.building import load
from tests.libraries.pipelines.visual.drawing import PROMPTS, STEPS, draw, load_pipeline, noise, shake
from tests.tiny import maker, tiny_checkpoint

OFF = {
    f"{stream}{name}": value
    for stream in ("", "audio_")
    for name, value in (("stg_scale", 0.0), ("modality_scale", 1.0), ("guidance_rescale", 0.0))
}
"""What the pipeline does besides classifier-free guidance, and ours does not."""


@pytest.fixture(scope="module")
def folder() -> Path:
    return tiny_checkpoint(maker("ltx2"))


def ours(folder: Path, **options) -> FlowModel:
    size = {"height": 32, "width": 64, "frames": 5, "fps": 25.0, "max_sequence_length": 48}
    return load(ltx2, folder, **{**size, **options})


def theirs(folder: Path, model: FlowModel, x: torch.Tensor, output: str, lora: str | Path = "", **options):
    """Frames and sound that diffusers' pipeline makes of the same noise, on its own noise levels."""
    pipe = load_pipeline("LTX2Pipeline", folder, lora)
    seen, heard = model.architecture.split(x)
    vae = pipe.audio_vae
    drawn = pipe(
        prompt=[prompt.text for prompt in PROMPTS],
        height=32,
        width=64,
        num_frames=5,
        latents=seen.flatten(2).transpose(1, 2),
        audio_latents=heard * vae.latents_std + vae.latents_mean,  # which it normalizes
        num_inference_steps=STEPS,
        max_sequence_length=48,
        output_type=output,
        generator=torch.Generator(),
        **{"frame_rate": 25.0, "use_cross_timestep": False, **OFF, **options},
    )
    return drawn.frames, drawn.audio


def restored(model: FlowModel, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The latents of both streams as the pipeline returns them."""
    seen, heard = model.architecture.split(x)
    vae, audio = model.architecture.pipeline.vae, model.architecture.pipeline.audio_vae
    std, mean = (one.view(1, -1, 1, 1, 1) for one in (vae.latents_std, vae.latents_mean))
    heard = heard * audio.latents_std + audio.latents_mean
    return seen * std / vae.config.scaling_factor + mean, heard.unflatten(2, (2, 2)).transpose(1, 2)


@pytest.mark.parametrize(
    ("guidance", "sound_guidance", "cross", "fps"),
    [(1.0, 0.0, False, 25.0), (3.0, 7.0, False, 25.0), (4.0, 0.0, True, 25.0), (2.0, 1.0, True, 10.0)],
)
def test_frames_and_sound_equal_those_of_the_pipeline_of_diffusers(folder, guidance, sound_guidance, cross, fps):
    model = ours(folder, guidance=guidance, sound_guidance=sound_guidance, cross_timestep=cross, fps=fps)
    start = noise(model)
    end = draw(model, model.network, start)
    options = {"guidance_scale": guidance, "audio_guidance_scale": sound_guidance or guidance, "frame_rate": fps}
    options |= {"use_cross_timestep": cross}
    for one, other in zip(restored(model, end), theirs(folder, model, start, "latent", **options), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=0)
    clips = model.decode(end)
    frames, sounds = theirs(folder, model, start, "pt", **options)
    torch.testing.assert_close(torch.stack([clip.frames for clip in clips]), frames, atol=1e-5, rtol=0)
    heard = [clip.sound for clip in clips if clip.sound]
    torch.testing.assert_close(torch.stack([one.samples for one in heard]), sounds.clamp(-1, 1), atol=1e-5, rtol=0)
    assert clips[0].fps == fps and heard[0].rate == 16_000 and heard[0].samples.std() > 1e-3
    # Three frames of the spectrogram are cut, and the duration is rounded to latents of 0.04 s.
    assert abs(heard[0].samples.shape[1] / 16_000 - 5 / fps) <= 3 / 100 + 0.02 + 1e-9
    assert model.evaluations_per_row == (2 if guidance > 1 else 1)


@pytest.mark.parametrize("steps", [2, 4, 30])
def test_the_noise_levels_of_both_streams_are_those_of_the_frames(folder, steps):
    pipe, model = load_pipeline("LTX2Pipeline", folder), ours(folder)
    size = {"height": 32, "width": 64, "num_frames": 5, "frame_rate": 25.0}
    pipe("a", **size, num_inference_steps=steps, max_sequence_length=9, output_type="latent", **OFF)
    levels = model.grid(steps).levels
    assert torch.equal(levels, pipe.scheduler.sigmas)
    assert float(levels[-2]) == pytest.approx(0.1)  # shift_terminal


def policy(model: FlowModel, plan: str = "every_step", kernel: str = "flow_sde(a=0.7)") -> DenoisingPolicy:
    return DenoisingPolicy(model, steps=4, kernel_text=kernel, plan=plan, evaluation_steps=2, forward_batch_size=64)


@pytest.mark.parametrize("kernel", ["flow_sde(a=0.7)", "cps(a=0.8)"])
@pytest.mark.parametrize("plan", ["every_step", "one_step_branch", "branch_tree(splits=[0, 1])"])
def test_every_stream_has_a_ratio_of_its_own_and_both_of_a_state_have_one_pass(folder, plan, kernel, monkeypatch):
    one = policy(ours(folder, guidance=1.0), plan, kernel)
    one.keep_reference()
    rollout = one.rollout(Request(PROMPTS[:1], [0], 4, seed=0))
    numbers, passes = rollout.decisions, []
    predict = one.model.predict
    monkeypatch.setattr(one.model, "predict", lambda n, x, t, c: passes.append(len(x)) or predict(n, x, t, c))
    seen = torch.zeros_like(numbers.loss_mask)
    for part in rollout.steps.split(numbers.loss_mask, 3):
        scored = one.score(rollout, part, frozenset({"log_probs", "reference.kl"}))
        sampled = numbers.log_probs[part.rows, part.positions]
        torch.testing.assert_close(scored["log_probs"], sampled, rtol=0, atol=2e-5)
        seen[part.rows, part.positions] = True
    assert torch.equal(seen, numbers.loss_mask)
    walks = rollout.steps.walks
    steps = walks[0].source.shape[1]
    states = sum(
        len(walk.source[m[:, :steps]].unique()) for walk, m in zip(walks, numbers.loss_mask.split(len(walks[0].source)))
    )
    assert sum(passes) == 2 * states  # once more for the reference
    video, audio = numbers.loss_mask.chunk(2, 1)
    assert torch.equal(video, audio) and torch.equal(
        numbers.fields["stream"][0], torch.arange(2.0).repeat_interleave(steps)
    )
    assert not set(numbers.node[:, :steps][video].tolist()) & set(numbers.node[:, steps:][audio].tolist())


def test_the_joint_log_prob_is_the_mean_of_both_weighed_by_their_entries(folder):
    one = policy(ours(folder))
    rollout = one.rollout(Request(PROMPTS[:1], [0], 2, seed=0))
    [walk] = rollout.steps.walks
    steps, (video, audio) = 4, one.model.streams.values()
    assert (video, audio) == (4 * 3 * 4 * 8, 2 * 5 * 2)
    for step in range(steps - 1):
        target = walk.target[:, step]
        joint = Transition(walk.means[target], walk.std[step].view(1, 1)).log_prob(walk.states[target])
        mine = rollout.decisions.log_probs[:, step], rollout.decisions.log_probs[:, steps + step]
        torch.testing.assert_close(joint, (video * mine[0] + audio * mine[1]) / (video + audio), rtol=1e-6, atol=2e-7)


def test_the_gradient_of_a_row_is_that_of_two_losses(folder):
    one = policy(ours(folder, lora_rank=2, guidance=1.0))
    shake(one.network)
    rollout = one.rollout(Request(PROMPTS[:1], [0], 2, seed=0))
    advantages = torch.tensor([[1.5, -0.5]]).repeat_interleave(4, 1).expand(2, -1)

    def gradient(mask: torch.Tensor) -> torch.Tensor:
        one.network.zero_grad()
        for part in rollout.steps.split(mask, 2):
            scored = one.score(rollout, part, frozenset({"log_probs"}))["log_probs"]
            (scored * advantages[part.rows, part.positions]).sum().backward()
        return torch.cat([p.grad.flatten() for p in one.network.parameters() if p.grad is not None])

    mask = rollout.decisions.loss_mask
    video, audio = (mask & (rollout.decisions.fields["stream"] == stream) for stream in (0, 1))
    whole, parts = gradient(mask), [gradient(video), gradient(audio)]
    assert all(part.norm() > 1e-4 for part in parts)
    torch.testing.assert_close(whole, parts[0] + parts[1], rtol=1e-4, atol=1e-6)


def test_stored_rows_are_scored_again_with_both_streams(folder):
    one = policy(ours(folder))
    request = Request(PROMPTS[:1], [0], 2, seed=0)
    rollout = one.rollout(request)
    again = one.unpack([PROMPTS[0]] * 2, one.pack(rollout, [0, 1]), [0, 0], 1, request)
    assert torch.equal(again.decisions.log_probs, rollout.decisions.log_probs)
    assert torch.equal(again.decisions.fields["stream"], rollout.decisions.fields["stream"])
    for part in again.steps.split(again.decisions.loss_mask, 3):
        scored = one.score(again, part, frozenset({"log_probs"}))["log_probs"]
        torch.testing.assert_close(scored, rollout.decisions.log_probs[part.rows, part.positions], rtol=0, atol=2e-5)
    assert torch.equal(again.outputs[1].sound.samples, rollout.outputs[1].sound.samples)


def test_saved_adapters_give_diffusers_the_same_clip(folder, tmp_path):
    model = ours(folder, lora_rank=2, lora_alpha=6)
    shake(model.network)
    start = noise(model)
    end = restored(model, draw(model, model.network, start))
    model.save(tmp_path, model.network)
    scales = {"guidance_scale": 3.0, "audio_guidance_scale": 3.0}
    for lora, close in ((tmp_path, True), ("", False)):
        made = theirs(folder, model, start, "latent", lora=lora, **scales)
        assert [bool((one - other).abs().max() <= 1e-5) for one, other in zip(end, made, strict=True)] == [close] * 2


def test_the_decoders_of_the_sound_stay_when_the_encoders_are_forgotten(folder):
    model = ours(folder)
    start = noise(model)
    before = model.decode(start)
    model.forget_encoders(PROMPTS)
    assert model.architecture.pipeline.text_encoder is None and model.architecture.pipeline.connectors is None
    after = model.decode(start)
    assert torch.equal(before[0].sound.samples, after[0].sound.samples)


def test_guidance_of_the_sound_alone_is_refused(folder):
    with pytest.raises(ValueError, match="guidance.*1.*sound_guidance=7"):
        ours(folder, guidance=1.0, sound_guidance=7.0)
    with pytest.raises(ValueError, match="guidance.*1.*sound_guidance=7"):
        ours(folder, sound_guidance=7.0).variant(guidance=1.0)


def test_completions_of_single_streams_are_refused(folder):
    with pytest.raises(ValueError, match="completion_steps.*2"):
        DenoisingPolicy(
            ours(folder),
            steps=4,
            kernel_text="flow_sde",
            plan="every_step",
            evaluation_steps=2,
            forward_batch_size=9,
            completion_steps=2,
        )


def test_validation_draws_the_same_frames_by_the_pipeline(folder):
    options = {"sound_guidance": 5.0, "cross_timestep": True}
    model = ours(folder, guidance=2.0, **options)
    start, seed = noise(model)[:1], Prompt(PROMPTS[0].text)
    library = Diffusers("ltx2", "pipelines.visual.ltx2", ("LTX2Pipeline",), "guidance", "flow")
    shared = {**options, "guidance": 2.0, "negative_prompt": "", "max_sequence_length": 48}
    call = Call(seed, start, STEPS, 2.0, (32, 64), 5, 25.0, options=shared)
    theirs = library.samples(load_pipeline("LTX2Pipeline", folder), [call])
    conditioning = model.encode([seed])
    end = Solver(model, 8, torch.device("cpu")).denoise(model.network, start, conditioning, model.grid(STEPS))
    torch.testing.assert_close(model.decode(end)[0].frames[None], theirs, atol=1e-5, rtol=0)


def red(prompts, outputs):
    """How red the frames are."""
    return [float(one.frames[:, 0].mean()) for one in outputs]


def loud(prompts, outputs):
    """The pressure at one moment, times 1000: sounds of so small a vocoder are nearly alike."""
    return [1000 * float(one.sound.samples[0, 1000]) for one in outputs]


def test_in_a_run_frames_learn_from_their_reward_and_the_sound_from_its_own(folder, tmp_path):
    one = policy(ours(folder, lora_rank=2, guidance=1.0))
    routing = {"credit": "routed(video=['red'], audio=['loud'])", "baseline": "none", "scale": "none", "shape": []}
    run = mmgrpo.train(
        one,
        ["red"],
        [red, loud],
        preset="flow_grpo",
        algorithm=routing,
        steps=2,
        group_size=4,
        prompts_per_step=1,
        output_dir=str(tmp_path),
        trackers=[],
        groups_kept=1,
    )
    assert run.metrics[0]["ratio/first_minus_one"] == pytest.approx(0, abs=1e-5)
    [file] = (run.folder / "groups").glob("*/group.json")
    members = json.loads(file.read_text())["members"]
    for name, places in (("red", slice(0, 3)), ("loud", slice(4, 7))):
        values = torch.tensor([member["rewards"][name] for member in members]).double()
        score = (values - values.mean()) / (values.std(correction=0) + 1e-4)
        advantages = torch.tensor([member["advantages"][places] for member in members]).double()
        torch.testing.assert_close(advantages, score[:, None].expand(-1, 3), rtol=1e-3, atol=1e-3)
        assert score.abs().mean() > 0.5
