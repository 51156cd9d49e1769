"""A language model without media: what it refuses, and what its tokenizer leaves open."""

from __future__ import annotations

import pytest
import torch

from mmgrpo.types import Prompt
from pipelines import vlm
from pipelines.training import Training, checkpoint_layers
from pipelines.vlm import causal_lm


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    return causal_lm.tiny(tmp_path_factory.mktemp("words"))


def test_a_prompt_that_is_too_long_is_refused_and_not_cut(folder):
    model = causal_lm.load(folder, max_prompt_tokens=3)
    assert model.encode([Prompt("how many is")]).ids.shape == (1, 3)
    with pytest.raises(
        ValueError, match="prompt '7' has 4 tokens .* more than max_prompt_tokens=3; shorten it .a shor"
    ):
        model.encode([Prompt("how many is are", "7")])
    assert model.prompt_length(Prompt("how many is are")) == 4
    assert causal_lm.load(folder).encode([Prompt("is " * 200)]).ids.shape == (1, 200)


def test_padding_is_on_the_left_and_has_no_position(folder):
    context = causal_lm.load(folder).encode([Prompt("how many is"), Prompt("red")])
    assert context.real.tolist() == [[True] * 3, [False, False, True]]
    assert context.positions[:, 0].tolist() == [[0, 1, 2], [0, 0, 0]]


def test_a_tokenizer_without_padding_pads_with_its_end(folder):
    model = causal_lm.load(folder)
    assert model.pad_id == model.tokenizer.pad_token_id != model.tokenizer.eos_token_id
    model.tokenizer.pad_token = None
    again = causal_lm.CausalLm(model.network, model.tokenizer, model.reference)
    assert again.pad_id == model.tokenizer.eos_token_id
    assert (again.dtype, again.max_prompt_tokens, again.checkpointing) == (torch.float32, 0, False)


def test_precision_and_checkpointing_are_those_of_the_training(folder):
    model = causal_lm.load(folder, Training(dtype="bfloat16", gradient_checkpointing=True))
    assert model.dtype == torch.bfloat16 and model.checkpointing and not model.network.training


def test_the_seed_of_a_policy_is_that_of_its_adapters(folder):
    seeds = (7, 8, 7)
    made = [vlm.policy(folder, seed=seed, lora_rank=2, max_tokens=2) for seed in seeds]
    assert tuple(policy.settings.config.seed for policy in made) == seeds
    first, other, same = (
        [value for name, value in policy.network.named_parameters() if "lora_A" in name] for policy in made
    )
    assert all(torch.equal(*pair) for pair in zip(first, same, strict=True))
    assert not any(torch.equal(*pair) for pair in zip(first, other, strict=True))


def test_a_conversation_is_written_by_the_template_of_the_tokenizer(folder):
    model = causal_lm.load(folder)
    model.tokenizer.chat_template = "how many"
    assert model.encode([Prompt("red")]).ids.tolist() == [model.tokenizer("how many")["input_ids"]]


def test_the_search_of_the_settings_is_that_of_the_policy(folder):
    assert [vlm.policy(folder, search=name, max_tokens=2).search for name in ("sample", "beam")] == ["sample", "beam"]


def test_layers_recompute_in_evaluation_mode(folder):
    network = causal_lm.load(folder).network.train()
    checkpoint_layers(network, False)
    assert not any(module.training for module in network.modules())
