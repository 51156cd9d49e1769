"""The trainer on a vision-language model is GRPO in plain loops (``scripts/grpo_minimal.py``)."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from mmgrpo.policies.token import TokenPolicy
from mmgrpo.runtime.metrics import read_metrics
from mmgrpo.types import Image, Media, Prompt, Turn, Video
from mmgrpo.update import LossRecipe
from pipelines.vlm import qwen_vl
from scripts.grpo_minimal import TextPolicy, train
from tests.building import load, recipe, trainer
from tests.seeing import distance, plain_inputs, released_positions


def drawn(*shape: int, seed: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


PICTURE = Media("image", Image(drawn(3, 16, 24, seed=0)))
CLIP = Media("video", Video(drawn(8, 3, 16, 16, seed=1), fps=4.0))
PROMPTS = [
    Prompt("which ?", "picture", turns=(Turn("user", (PICTURE, "which ?")),)),
    Prompt("is it left ?", "clip", turns=(Turn("user", (CLIP, "is it left ?")),)),
    Prompt("yes or no ?", "text"),
]


def alone(family: Any, prompt: Prompt) -> dict[str, Any]:
    """What the plain forward pass takes of one prompt; without padding there is nothing to mask."""
    inputs = plain_inputs(family, prompt, torch.empty(0, dtype=torch.long))
    return {name: value for name, value in inputs.items() if name != "attention_mask"}


class Plain(nn.Module):
    """Hugging Face's own forward pass of one prompt and its completion, without padding, cache or shared prefix."""

    def __init__(self, network: nn.Module, inputs: dict[str, dict[str, Any]], suppressed: list[int]) -> None:
        super().__init__()
        self.network, self.inputs, self.suppressed = network, inputs, suppressed

    def forward(self, prompt: str, tokens: list[int]) -> torch.Tensor:
        """[len(tokens) + 1, V] the logits of every next token."""
        inputs = self.inputs[prompt]
        ids = torch.cat([inputs["input_ids"], torch.tensor([tokens], dtype=torch.long)], 1)
        kinds = torch.cat([inputs["mm_token_type_ids"], torch.zeros(1, len(tokens), dtype=torch.int)], 1)
        logits = self.network(**{**inputs, "input_ids": ids, "mm_token_type_ids": kinds}).logits[0]
        logits = logits.index_fill(1, torch.tensor(self.suppressed), -torch.inf)
        return logits[inputs["input_ids"].shape[1] - 1 :]


@pytest.mark.slow
def test_the_trainer_on_pictures_and_clips_is_grpo_in_plain_loops(tmp_path: Path):
    """Two rounds of three prompts, two epochs each, so ratios leave one and clip, with a KL term."""
    family = load(qwen_vl, qwen_vl.tiny(tmp_path / "model"), freeze_vision=False, keep_reference=True)
    naive, original = copy.deepcopy(family.network), copy.deepcopy(family.network)
    naive.model.get_rope_index = released_positions(naive.model)
    inputs = {prompt.id: alone(family, prompt) for prompt in PROMPTS}

    made = trainer(
        TokenPolicy(family, max_tokens=4),
        tmp_path / "run",
        PROMPTS,
        reward=lambda prompts, outputs: [len(output.text) / 10 for output in outputs],
        advantages=recipe(baseline="group_mean", scale="group_std(ddof=1, eps=1e-4)"),
        loss=LossRecipe.of("ppo(low=0.02, high=0.02)", "per_sample", terms=["kl_k3(coef=0.1)"]),
        prompts_per_step=3,
        group_size=4,
        steps=4,
        epochs=2,
        lr=1e-3,
        weight_decay=0.0,
        seed=5,
    )
    made.fit()
    orders = [made.order.take(3 * number, 3) for number in range(2)]
    history = train(
        TextPolicy(max_tokens=4, ends=sorted(family.end_ids)),
        Plain(naive, inputs, sorted(family.suppress_tokens)),
        [[PROMPTS[index].id for index in order] for order in orders],
        lambda prompt, completion: len(family.decode(completion)) / 10,
        group_size=4,
        epochs=2,
        lr=1e-3,
        clip=0.02,
        kl=0.1,
        seed=5,
    )
    lines = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [lines[0]["reward/reward/mean"], lines[2]["reward/reward/mean"]] == pytest.approx(history, abs=1e-6)
    assert max(line["clip/low"] + line["clip/high"] for line in lines) > 0
    start = dict(original.named_parameters())
    moved, wanted = (
        {name: (value - start[name]).detach() for name, value in network.named_parameters()}
        for network in (family.network, naive)
    )
    assert min(float(way.abs().max()) for way in moved.values()) > 1e-4  # the vision tower too
    # All weights together: AdamW divides a gradient by its own size, also where it is nothing but rounding, as that of
    # a key's bias is. 0.6e-5 to 1.1e-5 under four roundings; 2e-4 where the coefficient of the KL is off by 1%.
    assert distance(moved, wanted) < 1e-4
