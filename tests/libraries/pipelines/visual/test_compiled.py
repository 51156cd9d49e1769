"""Compiled blocks compute what they computed, with and without adapters, and keep the names of their parameters."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from mmgrpo.config.settings import config_class
from mmgrpo.family import family
from mmgrpo.types import Request
from pipelines import training
from tests.libraries.families.examples import EXAMPLES
from tests.tiny import maker, tiny_checkpoint

WITH_A_COMPILER = pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on a CPU")


def config_of(name: str, compiled: bool, **model: Any) -> Any:
    example, config = EXAMPLES[name], config_class(family(name).sections)()
    path = str(tiny_checkpoint(maker(name)))
    options = {"family": name, "path": path, "device": "cpu", "lora_rank": 2, "compile": compiled, **example.model}
    return replace(
        config,
        model=replace(config.model, **{**options, **model}),
        sampling=replace(config.sampling, **{**example.sampling, "steps": 3, "evaluation_steps": 2}),
    )


def measured(name: str, compiled: bool, **model: Any) -> tuple[list[str], list[torch.Tensor]]:
    """Names of the parameters; log-probs of a rollout, those and the reference's as training scores them, gradients."""
    prompts = EXAMPLES[name].prompts
    policy = family(name).policy(config_of(name, compiled, **model), "cpu", prompts)
    made = policy.rollout(Request(prompts, range(len(prompts)), 2, seed=3))
    values = [made.decisions.log_probs]
    for part in made.steps.split(made.decisions.loss_mask, 100):
        scores = policy.score(made, part, frozenset({"log_probs", "reference.log_probs"}))
        scores["log_probs"].sum().backward()
        values += [scores["log_probs"].detach(), scores["reference.log_probs"].detach()]
    trained = {name: one for name, one in policy.network.named_parameters() if one.requires_grad}
    return list(trained), [*values, *(one.grad for one in trained.values())]


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["wan", "sd3", "stable_diffusion"])
def test_blocks_are_compiled_in_place(name, monkeypatch):
    """With a backend that runs the captured operations as they are."""
    done: list[torch.nn.Module] = []

    plainly = partial(training.compile_blocks, backend="eager")

    def compile_blocks(network: torch.nn.Module, names: Any) -> None:
        plainly(network, names)
        done.extend(one for one in network.modules() if one._compiled_call_impl is not None)

    monkeypatch.setattr(training, "compile_blocks", compile_blocks)
    (names, plain), (same, compiled) = measured(name, False), measured(name, True)
    assert names == same and len(done) >= 2
    assert not any(other in list(one.modules())[1:] for one in done for other in done)
    for one, other in zip(plain, compiled, strict=True):
        torch.testing.assert_close(other, one, atol=1e-6, rtol=1e-5)


@WITH_A_COMPILER
@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("checkpointing", [False, True])
def test_what_the_compiler_makes_of_them_differs_by_rounding(checkpointing):
    settings = partial(measured, "sd3", gradient_checkpointing=checkpointing)
    (_, plain), (_, compiled) = settings(compiled=False), settings(compiled=True)
    for one, other in zip(plain, compiled, strict=True):
        torch.testing.assert_close(other, one, atol=1e-5, rtol=1e-3)


def test_a_network_without_such_blocks_is_refused():
    with pytest.raises(ValueError, match=r"model\.compile.*Linear.*\*Block"):
        training.compile_blocks(torch.nn.Linear(2, 2), ["*Block"])
