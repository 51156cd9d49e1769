"""What a dry run states of memory against what tiny models take."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mmgrpo.cli.bench.scale import Counted
from mmgrpo.config.settings import Config, Distributed, config_class
from mmgrpo.family import families
from mmgrpo.memory import Folder, fits, needs, read_folder, report
from tests.building import module
from tests.libraries.families.test_battery import config_of, gradients, policy_of, rollout_of
from tests.tiny import tiny_checkpoint

NAMES = ("sd3", "wan", "stable_diffusion", "qwen_vl", "whisper")


def stated(name: str, **model: Any) -> tuple[dict[str, float], Config]:
    path = tiny_checkpoint(module(name).tiny)
    folder = read_folder(Path(path))
    assert folder is not None
    config = config_of(name, str(path), **model)
    targets = getattr(module(name), "LORA_TARGETS", ("to_q", "to_k", "to_v", "to_out.0"))
    return needs(folder, config, processes=1, targets=targets, reference=True), config


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("name", NAMES)
def test_weights_gradients_and_optimizer_are_those_of_the_model(name, rank):
    found, config = stated(name, **({"lora_rank": rank} if rank else {}))
    policy = policy_of(name, config.model.path, **({"lora_rank": rank} if rank else {}))
    rollout = rollout_of(name, policy)
    gradients(policy, rollout, 64)
    own = list(policy.network.parameters())
    trained = [one for one in own if one.requires_grad]
    for one in trained:
        one.grad = torch.zeros_like(one)
    optimizer = torch.optim.AdamW(trained)
    optimizer.step()
    moments = sum(v.nbytes for state in optimizer.state.values() for v in state.values() if v.ndim)
    assert found["weights"] == pytest.approx(sum(one.nbytes for one in own), rel=0.15)
    assert found["gradients"] == pytest.approx(sum(one.nbytes for one in trained), rel=0.15)
    assert found["optimizer"] == pytest.approx(moments, rel=0.15)
    assert ("reference" in found) == (not rank)
    if families()[name].modality == "visual":
        parts = policy.model.frozen_parts()  # type: ignore[attr-defined]
        bytes_of = {part: sum(p.nbytes for p in one.parameters()) for part, one in parts.items()}
        assert found["VAE"] == pytest.approx(bytes_of.pop("vae"), rel=0.15)
        assert found["encoders"] == pytest.approx(sum(bytes_of.values()), rel=0.15)


def measured(name: str, **model: Any) -> tuple[float, float]:
    """Activations of a micro batch of six as they are stated, and the most bytes that are alive in its backward pass,
    weights and their gradients left out."""
    _, config = stated(name, **model)
    config = replace(config, optim=replace(config.optim, micro_batch_size=6))
    folder = read_folder(Path(config.model.path))
    assert folder is not None
    told = config
    if name == "qwen_vl":  # its prompts have 36 tokens, images included
        told = replace(config, model=replace(config.model, max_prompt_tokens=36))
    if name == "whisper":  # its clips have 200 positions, of the 1500 of half a minute
        folder = replace(folder, config={**folder.config, "max_source_positions": 200})
    targets = getattr(module(name), "LORA_TARGETS", ("to_q", "to_k", "to_v", "to_out.0"))
    activations = needs(folder, told, processes=1, targets=targets)["activations"]
    policy = policy_of(name, config.model.path, **model)
    rollout = rollout_of(name, policy)
    part = next(rollout.steps.split(rollout.decisions.loss_mask, 6))

    def backward() -> None:
        policy.score(rollout, part, frozenset({"log_probs"}))["log_probs"].sum().backward()

    backward()  # as in the second micro batch of an update, gradients of weights are there
    own = [*policy.network.parameters(), *policy.network.buffers()]
    counted = Counted([*(one.detach() for one in own), *(one.grad for one in own if one.grad is not None)])
    before = counted.alive
    with counted:
        backward()
    return activations, counted.most - before


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("name", NAMES)
def test_activations_are_the_peak_of_a_backward_pass(name, rank, checkpointed):
    if checkpointed and name == "whisper":
        pytest.skip("its family refuses gradient checkpointing")
    options = ({"lora_rank": rank} if rank else {}) | ({"gradient_checkpointing": True} if checkpointed else {})
    activations, most = measured(name, **options)
    assert activations == pytest.approx(most, rel=0.15)


def test_a_divided_model_takes_its_share_and_two_blocks():
    """10 weights in two blocks of 4 and 2 others: 16 bytes each, by 2 processes; the blocks and their gradients."""
    config = config_class(families()["sd3"].sections)()
    config = replace(config, model=replace(config.model, lora_rank=0), distributed=Distributed("full"))
    folder = Folder({"blocks.0.a": (4,), "blocks.1.a": (2, 2), "out": (2,)}, {})
    found = needs(folder, config, processes=2, in_step=True)
    assert (found["weights"], found["gradients"], found["optimizer"]) == (20, 20, 40)
    assert found["gathered"] == 2 * 4 * (8 + 4)
    assert needs(folder, config, processes=2, in_step=False)["gathered"] == 96 + 2 * (4 + 4)  # "out" is in no block
    assert needs(folder, config, processes=1)["weights"] == 40


def test_activations_of_audio_of_unknown_length_are_not_stated():
    _, config = stated("flow_speech")
    folder = read_folder(Path(config.model.path))
    assert folder is not None
    assert "activations" not in needs(folder, config, processes=1)
    assert "not in it" in " ".join(report(folder, config, 1))


def test_adapters_are_counted_by_the_names_of_their_layers():
    folder = Folder({"b.0.attn.to_q.weight": (8, 6), "b.0.to_k.weight": (8, 6), "b.0.norm.weight": (8,)}, {})
    assert folder.adapters(2, ["to_q"]) == 2 * 14 and folder.adapters(1, ["to_q", "to_k"]) == 28


def test_cards_keep_a_reserve():
    assert "24 GB and of 80 GB" in fits(22) and fits(22.1) == "fits a card of 80 GB" and "not fit" in fits(78.5)
