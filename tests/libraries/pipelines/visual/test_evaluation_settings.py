"""Evaluation at another size and guidance than training, and rollouts with another guidance than the policy's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from mmgrpo.api import make_trainer
from mmgrpo.config.settings import config_class
from mmgrpo.data.splits import Splits
from mmgrpo.family import families, family
from mmgrpo.inputs import RunInputs
from mmgrpo.policies.flow_matching import FlowMatchingPolicy
from mmgrpo.types import Request, Video
from tests.building import load, rescored
from tests.libraries.families.examples import EXAMPLES
from tests.tiny import maker, tiny_checkpoint

NAMES = [name for name, one in families().items() if one.modality == "visual" and one.sections.process != "tokens"]
WIDE = {"height": 32, "width": 64}
"""A size that all tiny models can make, and at which none of them is trained here."""


@pytest.fixture(scope="module")
def tiny() -> Any:
    return lambda name: str(tiny_checkpoint(maker(name)))


def scale_of(name: str) -> str:
    return family(name).guidance  # type: ignore[attr-defined]


def policy_of(name: str, path: str, model: Mapping[str, Any], sampling: Mapping[str, Any]) -> Any:
    return family(name).policy(config_of(name, path, model, sampling), "cpu", EXAMPLES[name].prompts)


def config_of(name: str, path: str, model: Mapping[str, Any], sampling: Mapping[str, Any]) -> Any:
    example, config = EXAMPLES[name], config_class(family(name).sections)()
    options = {"family": name, "path": path, "device": "cpu", **example.model, **model}
    return replace(
        config,
        model=replace(config.model, **options),
        sampling=replace(config.sampling, **{**example.sampling, "steps": 2, "evaluation_steps": 2}, **sampling),
        trackers=[],
        threads=1,
    )


def request(name: str) -> Request:
    prompts = EXAMPLES[name].prompts
    return Request(prompts, range(len(prompts)), 2, seed=3)


def pixels(outputs: Any) -> torch.Tensor:
    return torch.stack([one.frames if isinstance(one, Video) else one.pixels for one in outputs])


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_evaluation_has_its_own_size_and_guidance_and_training_stays_as_it_was(name, tiny):
    video = "frames" in {f.name for f in fields(family(name).sections.model)}
    longer = {"frames": 9} if video else {}
    own = {} if name == "flux2_klein" else {scale_of(name): 2.0}
    asked = {f"evaluation_{key}": value for key, value in {**WIDE, **longer, "guidance": 3.0}.items()}
    policy = policy_of(name, tiny(name), own, asked)
    shown = pixels(policy.sample(request(name)))
    assert shown.shape[-2:] == (32, 64) and (not video or shown.shape[1] == 9)
    there = policy_of(name, tiny(name), {**WIDE, **longer, scale_of(name): 3.0}, {})
    torch.testing.assert_close(shown, pixels(there.sample(request(name))), atol=1e-6, rtol=0)

    rollout, plain = policy.rollout(request(name)), policy_of(name, tiny(name), own, {}).rollout(request(name))
    assert torch.equal(rollout.decisions.log_probs, plain.decisions.log_probs)
    assert torch.equal(pixels(rollout.outputs), pixels(plain.outputs))
    assert rollout.evaluations == plain.evaluations


def test_a_whole_run_is_the_same_to_the_last_bit_whatever_the_evaluation(tiny, tmp_path):
    weights = []
    for number, asked in enumerate(({}, {"evaluation_height": 32, "evaluation_width": 48, "evaluation_guidance": 3.0})):
        config = config_of("sd3", tiny("sd3"), {"lora_rank": 2}, asked)
        config = replace(
            config,
            name="run",
            steps=2,
            output_dir=str(tmp_path / str(number)),
            optim=replace(config.optim, lr=1e-2),
            data=replace(config.data, prompts_per_step=2, group_size=2),
            eval=replace(config.eval, every=1),
        )
        prompts = EXAMPLES["sd3"].prompts
        policy = family("sd3").policy(config, "cpu", prompts)
        splits = Splits(prompts[:2], prompts[2:])
        start = lambda _: RunInputs(policy, splits)  # noqa: E731, B023
        trainer = make_trainer(config, family("sd3"), start, [brightness], Accelerator(cpu=True))
        trainer.fit()
        weights.append(torch.cat([parameter.detach().flatten() for parameter in trainer.trained.values()]))
    assert torch.equal(*weights) and weights[0].std() > 0


def brightness(prompts: Any, outputs: Any) -> list[float]:
    """A reward."""
    return [float(output.pixels.mean()) for output in outputs]


@pytest.mark.parametrize(
    ("name", "asked", "match"),
    [
        ("sd3", {"evaluation_height": 21, "evaluation_width": 16}, r"sampling\.evaluation_height.*21"),
        ("wan", {"evaluation_frames": 6}, r"sampling\.evaluation_frames.*6"),
        ("ltx_i2v", {"evaluation_frames": 1}, r"sampling\.evaluation_frames.*1"),
    ],
)
def test_a_size_that_the_model_cannot_make_is_named_by_its_setting(name, asked, match, tiny):
    with pytest.raises(ValueError, match=match):
        policy_of(name, tiny(name), {}, asked)


def test_frames_of_a_family_of_images_are_refused():
    with pytest.raises(ValueError, match=r"sampling\.evaluation_frames.*5"):
        family("sd3").check(config_of("sd3", "", {}, {"evaluation_frames": 5}))


def test_guidance_that_a_distilled_checkpoint_does_not_take_is_refused(tmp_path):
    folder = str(maker("flux2_klein")(tmp_path, distilled=True))
    for setting in ("evaluation_guidance", "rollout_guidance"):
        with pytest.raises(ValueError, match=rf"sampling\.{setting}.*4.0"):
            policy_of("flux2_klein", folder, {"guidance": 1.0}, {setting: 4.0})


def test_a_model_of_one_size_refuses_another(tiny):
    model = load("sd3", tiny("sd3"), height=16, width=16)
    model.sized = None
    with pytest.raises(ValueError, match="one size"):
        model.variant(guidance=1.0, size=(32, 32, 0))


# ---- rollouts with another guidance


@pytest.mark.parametrize("plan", ["every_step", "one_step_branch", "random_window(size=1)"])
@pytest.mark.parametrize(("own", "drawn"), [(1.0, 4.0), (4.0, 1.0), (2.0, 4.0)])
def test_rollouts_are_drawn_with_their_guidance_and_scored_with_the_policys(own, drawn, plan, tiny):
    sampling = {"plan": plan, "kernel": "flow_sde(a=0.7)"}
    mixed = policy_of("sd3", tiny("sd3"), {"guidance": own}, {**sampling, "rollout_guidance": drawn})
    guided = policy_of("sd3", tiny("sd3"), {"guidance": drawn}, sampling)
    wanted = request("sd3")
    rollout, other = mixed.rollout(wanted), guided.rollout(wanted)
    mask = rollout.decisions.loss_mask
    assert torch.equal(pixels(rollout.outputs), pixels(other.outputs))
    torch.testing.assert_close(rescored(mixed, rollout)[mask], rollout.decisions.log_probs[mask], atol=2e-5, rtol=0)
    assert torch.equal(rollout.decisions.fields["sampler_log_probs"], other.decisions.log_probs)
    assert (rollout.decisions.log_probs - other.decisions.log_probs)[mask].abs().max() > 1e-4
    assert "sampler_log_probs" in mixed.fields and "sampler_log_probs" not in guided.fields
    # evaluation is the policy's own
    plain = policy_of("sd3", tiny("sd3"), {"guidance": own}, sampling)
    assert torch.equal(pixels(mixed.sample(wanted)), pixels(plain.sample(wanted)))


def test_the_cost_of_rollouts_counts_what_draws_and_what_is_scored(tiny):
    """3 prompts x 2 samples x 2 steps: 12 states, of 2 evaluations with guidance, and 1 more to score each of the 6
    before the stochastic step, the first of the two."""
    config = config_of("sd3", tiny("sd3"), {"guidance": 1.0}, {"rollout_guidance": 4.0})
    rollout = family("sd3").policy(config, "cpu").rollout(request("sd3"))
    config = replace(config, data=replace(config.data, prompts_per_step=3, group_size=2))
    totals = family("sd3").arithmetic(config).totals
    assert rollout.evaluations == totals["evaluations to sample"] == 30
    assert totals["evaluations to train"] == 6


def test_matching_errors_are_the_policys_own_on_samples_of_another_guidance(tiny):
    sampling = {"policy": "matching", "draws": 2}
    mixed = policy_of("sd3", tiny("sd3"), {"guidance": 1.0}, {**sampling, "rollout_guidance": 4.0})
    guided = policy_of("sd3", tiny("sd3"), {"guidance": 4.0}, sampling)
    assert isinstance(mixed, FlowMatchingPolicy)
    rollout, other = mixed.rollout(request("sd3")), guided.rollout(request("sd3"))
    assert torch.equal(pixels(rollout.outputs), pixels(other.outputs))
    torch.testing.assert_close(rescored(mixed, rollout), rollout.decisions.log_probs, atol=2e-5, rtol=0)
    assert (rollout.decisions.log_probs - other.decisions.log_probs).abs().max() > 1e-4
