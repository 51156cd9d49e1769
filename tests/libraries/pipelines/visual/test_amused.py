"""aMUSEd: its schedule, codes and images are those of diffusers' pipeline, and what is drawn is what is scored."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import AmusedPipeline, AmusedScheduler, UVit2DModel

from mmgrpo.config.reading import usual
from mmgrpo.config.settings import config_class
from mmgrpo.family import families
from mmgrpo.policies.parallel_tokens import ParallelTokenPolicy
from mmgrpo.types import Prompt, Request
from pipelines.training import Training
from pipelines.visual.amused import Amused, load, reveal_counts
from pipelines.visual.enlarger import Enlarger
from pipelines.visual.options import AmusedOptions
from pipelines.visual.patches import PatchTokenizer
from scripts.pretrain import masked_tokens
from scripts.pretrain.tokens import image_tokenizer, optimize
from tests.libraries.families.test_battery import config_of, rescored
from tests.tiny import maker, tiny_checkpoint

PROMPTS = [Prompt("a red square", "0"), Prompt("two blue circles", "1")]
MASK = 33


@pytest.fixture(scope="module")
def folder() -> str:
    return str(tiny_checkpoint(maker("amused")))


def model(folder: str, guidance: float, lora_rank: int = 0) -> Amused:
    return load(AmusedOptions(path=folder, guidance=guidance), Training(lora_rank=lora_rank)).variant(6)


@pytest.mark.parametrize(("places", "passes", "schedule"), [(64, 6, "cosine"), (256, 12, "cosine"), (16, 5, "linear")])
def test_a_pass_reveals_as_many_codes_as_the_scheduler(places, passes, schedule):
    scheduler = AmusedScheduler(mask_token_id=MASK, masking_schedule=schedule)
    scheduler.set_timesteps(passes)
    sample, left = torch.full((1, places), MASK), [places]
    for step in scheduler.timesteps:
        logits = torch.randn(1, places, 32, generator=torch.Generator().manual_seed(int(step)))
        sample = scheduler.step(logits, step, sample).prev_sample  # type: ignore[union-attr]
        left.append(int((sample == MASK).sum()))
    assert reveal_counts(places, passes, schedule) == [a - b for a, b in pairwise(left)]
    assert sum(reveal_counts(places, passes, schedule)) == places


def test_places_that_draw_their_passes_themselves_follow_the_schedule_on_average(folder):
    """6 passes of 16 codes by the cosine: .034, .100, .159, .207, .241, .259 of them; and passes without a code."""
    config = config_of("amused", folder)
    config.sampling.steps, config.sampling.reveals = 6, "drawn"
    policy: Any = families()["amused"].policy(config, "cpu")
    random = torch.Generator().manual_seed(0)
    orders = torch.stack([policy.model.order(random) for _ in range(3000)])
    shares = torch.stack([(orders == number).float().mean() for number in range(6)])
    wanted = torch.tensor([1, 0.9659, 0.8660, 0.7071, 0.5, 0.2588, 0]).diff().neg()
    assert (shares - wanted).abs().max() < 0.02 and ((orders == 0).sum(1) == 0).any()
    rollout = policy.rollout(Request(PROMPTS, [0, 1], 2, 3))
    torch.testing.assert_close(rescored(policy, rollout), rollout.decisions.log_probs.flatten(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("guidance", [1.0, 5.0])
def test_the_pipeline_draws_the_same_images_from_the_same_logits(folder, guidance):
    """With the order of the pipeline's scheduler in place of the policy's."""
    pipeline, made = AmusedPipeline.from_pretrained(folder), model(folder, guidance)
    pipeline.set_progress_bar_config(disable=True)
    texts = [prompt.text for prompt in PROMPTS]
    images = pipeline(
        texts,
        num_inference_steps=6,
        guidance_scale=guidance,
        generator=torch.Generator().manual_seed(0),
        output_type="pt",
    ).images
    scheduler, generator = pipeline.scheduler, torch.Generator().manual_seed(0)
    scheduler.set_timesteps(6, (2, 0))
    conditions, codes = made.encode(PROMPTS), torch.full((2, 64), MASK)
    for step in scheduler.timesteps:
        known = torch.where(codes == MASK, 1, 0)  # what is masked comes later
        with torch.no_grad():
            logits = made.logits(made.network, conditions, codes, known, torch.ones(2, dtype=torch.long))
        codes = scheduler.step(logits, step, codes, generator=generator).prev_sample
    drawn = torch.stack([image.pixels for image in made.render(PROMPTS, codes)])  # type: ignore[union-attr]
    torch.testing.assert_close(drawn, images, rtol=0, atol=1e-5)


def test_what_is_drawn_with_guidance_is_scored_with_it(folder):
    guided, plain = (ParallelTokenPolicy(model(folder, scale)) for scale in (5.0, 1.0))
    rollout = guided.rollout(Request(PROMPTS, [0, 1], 4, 3))
    old = rollout.decisions.log_probs.flatten()
    torch.testing.assert_close(rescored(guided, rollout), old, rtol=0, atol=1e-5)
    assert ((rescored(plain, rollout) - old).exp() - 1).abs().mean() > 0.05


def test_a_trained_network_is_one_of_the_library(folder, tmp_path):
    made = model(folder, 5.0)
    with torch.no_grad():
        next(made.network.parameters()).add_(0.1)
    made.save(tmp_path, made.network)
    saved = UVit2DModel.from_pretrained(tmp_path, subfolder="transformer").state_dict()
    assert all(torch.equal(value, saved[name]) for name, value in made.network.state_dict().items())


def test_an_evaluation_may_take_other_passes(folder):
    config = config_of("amused", folder)
    config.sampling.steps, config.sampling.evaluation_steps = 5, 8
    policy = families()["amused"].policy(config, "cpu")
    assert (policy.model.passes, policy.evaluation.passes) == (5, 8)  # type: ignore[attr-defined]
    assert policy.evaluation.encodings is policy.model.encodings  # type: ignore[attr-defined]


@pytest.mark.parametrize("setting", ["steps", "evaluation_steps"])
def test_more_passes_than_codes_are_refused_by_name(folder, setting):
    config = config_of("amused", folder)
    setattr(config.sampling, setting, 65)
    with pytest.raises(ValueError, match=rf"sampling\.{setting}: got 65.*16"):
        families()["amused"].policy(config, "cpu")


def test_single_masks_score_each_code_given_all_others_and_no_more_than_there_are(folder):
    sampling = usual(config_class(families()["amused"].sections), "sepo").sampling
    assert (sampling.likelihood, sampling.masks) == ("conditional", 16)
    config = replace(config_of("amused", folder), sampling=replace(sampling, steps=6))
    policy: Any = families()["amused"].policy(config, "cpu")
    rollout = policy.rollout(Request(PROMPTS, [0, 1], 2, 3))
    masks = rollout.steps.order
    assert masks.shape[:2] == (4, 16) and (masks.sum(2) == 1).all() and (masks.sum(1) == 1).all()
    old = rollout.decisions.log_probs[rollout.decisions.loss_mask]
    torch.testing.assert_close(rescored(policy, rollout), old, rtol=0, atol=1e-5)
    config.sampling.masks = 17
    with pytest.raises(ValueError, match=r"sampling\.masks: got 17.*16"):
        families()["amused"].policy(config, "cpu")


def test_an_unknown_schedule_is_refused_by_name(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "model")
    file = Path(tmp_path / "model" / "scheduler" / "scheduler_config.json")
    file.write_text(json.dumps({**json.loads(file.read_text()), "masking_schedule": "square"}))
    with pytest.raises(ValueError, match=r"masking_schedule.*square"):
        load(AmusedOptions(path=str(tmp_path / "model")))


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> str:
    """A small model: words and patches in place of CLIP and the VQ-VAE."""
    folder, args = tmp_path_factory.mktemp("small"), masked_tokens.Args(codes=16, width=32, layers=1)
    table = torch.rand(16, 3, 4, 4, generator=torch.Generator().manual_seed(0)) * 2 - 1
    masked_tokens.save(folder, *masked_tokens.build(args), PatchTokenizer(table, 8, Enlarger()))
    return str(folder)


def test_a_small_model_is_complete_in_its_folder(small, tmp_path):
    policy = ParallelTokenPolicy(model(small, 2.0))
    rollout = policy.rollout(Request([Prompt("a red square", "0"), Prompt("two blue circles", "1")], [0, 1], 3, 3))
    torch.testing.assert_close(rescored(policy, rollout), rollout.decisions.log_probs.flatten(), rtol=0, atol=1e-5)
    assert {image.pixels.shape for image in rollout.outputs} == {(3, 64, 64)}  # type: ignore[union-attr]
    with torch.no_grad():
        next(policy.network.parameters()).add_(0.1)
    policy.save(tmp_path)
    again = ParallelTokenPolicy(model(str(tmp_path), 2.0))
    images = [one.sample(Request(PROMPTS, [0, 1], 1, 5)) for one in (policy, again)]
    assert all(torch.equal(a.pixels, b.pixels) for a, b in zip(*images, strict=True))  # type: ignore[union-attr]


def test_the_family_reads_a_small_model(small):
    owner, config = families()["amused"], config_of("amused", small, guidance=1.0, height=0, width=0)
    owner.refuse_model(config, small)
    policy: Any = owner.policy(config, "cpu")
    config.data.skip_limit = 1.0
    usable, skipped = owner.accept(config, policy, [Prompt("a red square", "0"), Prompt("a zebra", "1")])
    assert policy.model.shape == (8, 8)
    assert [prompt.id for prompt in usable] == ["0"] and [one.id for one in skipped] == ["1"]


@pytest.mark.parametrize(("size", "text", "named"), [(32, "a red square", "32"), (64, "a red zebra", "'zebra'")])
def test_a_small_model_refuses_what_it_cannot_draw(small, size, text, named):
    with pytest.raises(ValueError, match=named):
        load(AmusedOptions(path=small, height=size, width=size, guidance=1.0)).check(Prompt(text, "0"))


@pytest.mark.slow
def test_pretraining_reaches_the_words_and_lowers_its_loss():
    args = masked_tokens.Args(codes=16, width=32, layers=1, batch=8, steps=8, lr=1e-2, warmup=1, every=8)
    patches, (network, words) = image_tokenizer(args.codes, 0), masked_tokens.build(args)
    losses, parameters = [], [*network.parameters(), *words.parameters()]

    def loss() -> torch.Tensor:
        losses.append(masked_tokens.loss_of(network, words, patches, args, torch.Generator().manual_seed(0)))
        return losses[-1]

    optimize(parameters, loss, lambda: None, args)
    assert losses[-1] < 0.7 * losses[0] and words.table.weight.grad.abs().sum() > 0
