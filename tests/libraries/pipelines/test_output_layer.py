"""The output layer of language models in fp32 next to a network of 16 bits, and settings that exclude each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from mmgrpo.config.settings import config_class
from mmgrpo.family import family
from mmgrpo.types import Prompt, Request
from tests.tiny import maker


def test_an_output_layer_in_fp32_has_the_logits_of_double_precision(tmp_path: Path) -> None:
    config: Any = config_class(family("causal_lm").sections)(seed=0)
    config.model.path, config.model.dtype, config.model.lora_rank = maker("causal_lm")(tmp_path), "bfloat16", 2
    rough: Any = family("causal_lm").policy(config, "cpu")
    config.model.head_dtype = "float32"
    exact: Any = family("causal_lm").policy(config, "cpu")
    head = exact.network.get_output_embeddings()
    assert head.weight.dtype == torch.float32 and rough.network.get_output_embeddings().weight.dtype == torch.bfloat16
    states = torch.randn(6, head.weight.shape[1], generator=torch.Generator().manual_seed(0)).bfloat16()
    states.requires_grad_()
    wanted = states.detach().double() @ head.weight.detach().double().T
    with torch.autocast("cpu", torch.bfloat16):  # as a sampler in 16 bits surrounds it
        made = exact.model.logits(exact.network, states)
    far = (rough.model.logits(rough.network, states).double() - wanted).abs().max()
    assert made.dtype == torch.float32 and (made.double() - wanted).abs().max() < 1e-2 * far
    made.sum().backward()
    assert states.grad is not None and states.grad.abs().sum() > 0
    rollout = exact.rollout(Request([Prompt("how many?", "a")], [0], 2, 0))
    part = next(rollout.steps.split(rollout.decisions.loss_mask, 8))
    again = exact.score(rollout, part, frozenset({"log_probs"}))["log_probs"]
    torch.testing.assert_close(
        again.detach(), rollout.decisions.log_probs[part.rows, part.positions], rtol=0, atol=0.05
    )
