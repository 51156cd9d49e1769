"""Models that see: what trains, what stays, and in which precision."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from mmgrpo.policies.token import TokenPolicy
from mmgrpo.runtime.metrics import read_metrics
from mmgrpo.types import Image, Media, Output, Prompt
from mmgrpo.update import LossRecipe, accumulate_gradients
from pipelines.vlm import qwen_vl, qwen_vl_tiny
from tests.building import algorithm_blocks, amplify, load, rescored, token_policy_over, trainer
from tests.seeing import (
    CLIP,
    EVERY,
    PICTURE,
    WORDS,
    asked,
    distance,
    gradient,
    kept,
    noise,
    plain_inputs,
    plain_log_probs,
    rollout,
    tower,
)
from tests.unit.test_trainer import judged_batch

pytest.importorskip("transformers")


def token_policy(name: str, folder: str | Path, **settings: Any) -> TokenPolicy:
    mine = ("share_prefix", "sampling_dtype", "contrast")
    loaded = load(name, folder, **{key: value for key, value in settings.items() if key not in mine})
    return token_policy_over(loaded, max_tokens=5, **{key: value for key, value in settings.items() if key in mine})


def step(policy: TokenPolicy, made: Any, size: float = 0.02) -> None:
    """Move what trains along a gradient, so adapters are no longer zero."""
    gradient(policy, made)
    with torch.no_grad():
        for parameter in policy.network.parameters():
            if parameter.grad is not None:
                parameter -= size * parameter.grad / parameter.grad.norm().clamp(min=1e-6)
    gradient(policy, made)


@pytest.mark.parametrize("freeze", [True, False])
def test_sharing_prefixes_and_features_leaves_the_gradient_unchanged(freeze, name, folder):
    shared = token_policy(name, folder, freeze_vision=freeze)
    made = rollout(shared)
    wanted = gradient(token_policy_over(shared.model, max_tokens=5, share_prefix=False), made)
    assert distance(gradient(shared, made), wanted) < 1e-5
    assert distance(gradient(shared, made, limit=2), wanted) < 1e-5
    assert (kept(made).features is None) == (not freeze)
    anew = dataclasses.replace(made, steps=dataclasses.replace(kept(made), features=None))
    assert distance(gradient(shared, anew), wanted) < 1e-5


def test_a_trained_tower_gets_a_gradient_and_a_frozen_one_gets_none(name, folder):
    for freeze in (True, False):
        policy = token_policy(name, folder, freeze_vision=freeze)
        gradient(policy, rollout(policy, [PICTURE, CLIP]))
        seeing = list(tower(policy.network).parameters())
        assert policy.model.frozen_media == freeze
        if freeze:
            assert all(p.grad is None and not p.requires_grad for p in seeing)
        else:
            assert all(p.grad is not None for p in seeing)
            assert sum(float(p.grad.abs().sum()) for p in seeing) > 1e-3
        assert all(p.grad is not None for p in policy.network.get_input_embeddings().parameters())


def test_a_batch_of_words_only_trains_a_model_that_sees(name, folder):
    policy = token_policy(name, folder, freeze_vision=False)
    gradient(policy, rollout(policy, [WORDS]))
    assert all(p.grad is None or not p.grad.any() for p in tower(policy.network).parameters())


def test_the_ratio_begins_at_one_though_the_config_asks_for_dropout_and_activations_are_made_again(name, folder):
    policy = token_policy(name, folder, freeze_vision=False, gradient_checkpointing=True)
    for layer in policy.network.modules():
        if hasattr(layer, "attention_dropout"):
            layer.attention_dropout = 0.5
    made = rollout(policy, EVERY)
    for part in made.steps.split(made.decisions.loss_mask, 4):
        scored = policy.score(made, part, frozenset({"log_probs"}))["log_probs"]
        before = made.decisions.log_probs[part.rows, part.positions]
        torch.testing.assert_close(scored.detach(), before, rtol=0, atol=1e-5)


@pytest.mark.parametrize("settings", [{"lora_rank": 2}, {"lora_rank": 2, "freeze_vision": False}, {}], ids=str)
def test_checkpointing_leaves_the_gradient_where_what_comes_before_a_layer_is_frozen(settings, name, folder):
    """Adapters behind frozen embeddings: no input of the first layer needs a gradient."""
    plain = token_policy(name, folder, **settings)
    checkpointed = token_policy(name, folder, gradient_checkpointing=True, **settings)
    made = rollout(plain, [PICTURE, WORDS])
    wanted = gradient(plain, made)
    assert distance(gradient(checkpointed, made), wanted) < 1e-5
    assert settings == {} or all(float(value.norm()) > 1e-6 for which, value in wanted.items() if "lora_B" in which)


@pytest.mark.parametrize("targets", [(), ("mlp.down_proj",), ("mlp.gate_proj",), ("mlp.fc1",)], ids=str)
def test_adapters_only_are_trained_and_none_is_in_a_frozen_tower(targets, name, folder):
    if (name, targets) in (("qwen_vl", ("mlp.fc1",)), ("smolvlm", ("mlp.fc1",))):
        # A target that the frozen tower alone has (SmolVLM), or that nothing has (Qwen).
        with pytest.raises(ValueError, match="lora targets"):
            token_policy(name, folder, lora_rank=2, lora_targets=targets)
        return
    policy = token_policy(name, folder, lora_rank=2, lora_targets=targets)
    names = [which for which, p in policy.network.named_parameters() if p.requires_grad]
    assert names and all(".lora_" in which for which in names)
    assert not any("visual." in which or "vision_model." in which for which in names)
    made = rollout(policy, [PICTURE, CLIP])
    before = {which: p.detach().clone() for which, p in policy.network.named_parameters()}
    step(policy, made)
    moved = {which for which, p in policy.network.named_parameters() if not torch.equal(p, before[which])}
    assert moved == {which for which in names if "lora_B" in which}  # A has no gradient while B is zero
    assert all(p.grad is None for p in tower(policy.network).parameters())


def test_a_trained_tower_is_adapted_too_where_the_targets_name_it(folder, name):
    target = {"qwen_vl": "mlp.gate_proj", "smolvlm": "self_attn.q_proj"}[name]
    policy = token_policy(name, folder, lora_rank=2, lora_targets=(target,), freeze_vision=False)
    gradient(policy, rollout(policy, [PICTURE]))
    adapted = [p for p in tower(policy.network).parameters() if p.requires_grad]
    assert adapted and all(p.grad is not None for p in adapted) and not policy.model.frozen_media


def test_a_saved_model_is_an_ordinary_folder_with_equal_logits(name, folder, tmp_path):
    from transformers import AutoModelForImageTextToText, AutoTokenizer

    policy = token_policy(name, folder, freeze_vision=False)
    step(policy, rollout(policy))
    policy.save(tmp_path)
    ordinary = AutoModelForImageTextToText.from_pretrained(tmp_path).eval()
    again = token_policy(name, tmp_path)
    assert AutoTokenizer.from_pretrained(tmp_path)("what is")["input_ids"]
    trained, saved = (dict(network.named_parameters()) for network in (policy.network, ordinary))
    assert trained.keys() == saved.keys() and all(torch.equal(saved[which], p) for which, p in trained.items())
    tied = [
        one.get_output_embeddings().weight is one.get_input_embeddings().weight for one in (policy.network, ordinary)
    ]
    assert tied == [True, True]
    word = torch.tensor([40, 50])
    for prompt in EVERY:
        inputs = plain_inputs(policy.model, prompt, word)
        with torch.no_grad():
            wanted, found = (network.eval()(**inputs).logits for network in (policy.network, ordinary))
        assert torch.equal(found, wanted)
        scores = [plain_log_probs(one.model, prompt, word) for one in (policy, again)]
        assert torch.equal(*scores)
    continued = token_policy(name, folder, weights=tmp_path)
    assert torch.equal(plain_log_probs(continued.model, PICTURE, word), plain_log_probs(again.model, PICTURE, word))


def test_computing_in_bfloat16_keeps_likelihoods_and_what_trains_in_fp32(name, folder):
    exact = token_policy(name, folder)
    for settings in ({}, {"lora_rank": 2}):
        policy = token_policy(name, folder, dtype="bfloat16", **settings)
        made = rollout(policy)
        for scores in (made.decisions.log_probs, rescored(policy, made), made.decisions.fields["entropy"]):
            assert scores.dtype == torch.float32 and scores.isfinite().all()
        real = made.decisions.decision_mask
        assert (rescored(policy, made)[real] - made.decisions.log_probs[real]).abs().max() < 0.2
        gap = rescored(exact, dataclasses.replace(made, steps=dataclasses.replace(kept(made), features=None)))
        assert 0 < (gap - rescored(policy, made)).abs().max() < 0.3
        assert all(p.dtype == torch.float32 for p in policy.network.parameters() if p.requires_grad)
        base = [p.dtype for p in policy.network.parameters() if not p.requires_grad]
        assert set(base) == {torch.bfloat16 if settings else torch.float32}
        assert all(value.isfinite().all() for value in gradient(policy, made).values())


def test_truncated_importance_sampling_weighs_what_a_lower_precision_drew(name, folder, tmp_path):
    found = {}
    for mismatch in ("none", "tis(cap=2)"):
        policy = token_policy(name, folder, sampling_dtype="bfloat16")
        made = trainer(
            policy,
            tmp_path / mismatch,
            [PICTURE, CLIP],
            reward=lambda prompts, outputs: [float(len(output.text)) for output in outputs],
            loss=LossRecipe.of("ppo(low=0.2, high=0.2)", "per_sample", mismatch),
        )
        batch = judged_batch(made)
        policy.network.zero_grad()
        accumulate_gradients(
            policy,
            batch,
            torch.ones(len(batch.loss_mask), dtype=torch.bool),
            made.loss,
            micro_batch_size=100,
            accelerator=made.accelerator,
            on_policy=False,
        )
        found[mismatch] = {n: p.grad.clone() for n, p in policy.network.named_parameters() if p.grad is not None}
    assert 1e-4 < distance(found["tis(cap=2)"], found["none"]) < 0.5


COLOURS = {"red": (1.0, 0.0, 0.0), "green": (0.0, 1.0, 0.0), "blue": (0.0, 0.0, 1.0)}


def patches_of(colour: str, seed: int) -> Prompt:
    """A picture of 8 x 8 pixels in one colour of uneven brightness, and the question what it is."""
    pixels = torch.tensor(COLOURS[colour]).view(3, 1, 1) * (0.7 + 0.3 * noise(1, 8, 8, seed=seed))
    prompt = asked(f"{colour} {seed}", Media("image", Image(pixels)), "what is it ?")
    return dataclasses.replace(prompt, answer=colour)


def names_the_colour(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    """Reward: half for a first word that is the colour, all for nothing else behind it."""
    return [
        0.5 * (output.text.split()[:1] == [prompt.answer]) + 0.5 * (output.text == prompt.answer)
        for prompt, output in zip(prompts, outputs, strict=True)
    ]


@pytest.mark.learning
@pytest.mark.slow
def test_a_model_that_knows_nothing_learns_to_name_colours_from_rewards_alone(tmp_path):
    folder = qwen_vl_tiny.write_model(
        tmp_path / "model",
        ("what", "is", "it", "?", *COLOURS),
        width=32,
        layers=2,
        heads=2,
        vision_width=32,
        vision_layers=1,
        patch=4,
        min_pixels=64,
    )
    model = load(qwen_vl, folder, freeze_vision=False)
    amplify(model.network, 8)
    made = trainer(
        TokenPolicy(model, max_tokens=2),
        tmp_path / "run",
        [patches_of(colour, seed) for seed in range(4) for colour in COLOURS],
        reward=names_the_colour,
        heldout=[patches_of(colour, seed) for seed in range(100, 103) for colour in COLOURS],
        prompts_per_step=6,
        group_size=16,
        steps=64,
        lr=4e-3,
        max_grad_norm=1.0,
        **algorithm_blocks("grpo", terms=[]),
    )
    result = made.fit()["eval"]
    # One who does not look names one colour of three.
    assert result["before"]["reward"]["mean"] <= 0.34
    assert result["after"]["reward"]["mean"] > 0.7
    lines = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert all(line["ratio/first_minus_one"] < 1e-4 for line in lines)
