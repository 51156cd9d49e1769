"""Networks by their configuration alone, without storage, and what a pass of a language model takes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from mmgrpo.config.settings import Config
from mmgrpo.runtime.counting import ROWS, count, cut_stacks
from mmgrpo.runtime.memory import FROZEN, Folder, Pass
from pipelines.lora import add_lora
from pipelines.training import checkpoint_layers


def blank_network(config: Mapping[str, Any]) -> Any:
    """The network of a configuration of diffusers or transformers, which names its class."""
    import diffusers
    import transformers

    with torch.device("meta"):
        if "_class_name" in config:
            return getattr(diffusers, config["_class_name"]).from_config(dict(config))
        (name, *_) = config.get("architectures") or ["none"]
        if (kind := getattr(transformers, name, None)) is None:
            raise ValueError(f"its config.json names no class of transformers (architectures: {name})")
        return kind(kind.config_class.from_dict(dict(config)))


def prepare(network: Any, model: Any, targets: Sequence[str]) -> None:
    """Let train what a run trains, by the options of its model."""
    frozen = [pattern for option, pattern in FROZEN.items() if getattr(model, option, False)]
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(not any(re.search(pattern, name) for pattern in frozen))
    if model.lora_rank:
        ends = tuple(f".{target}.weight" for target in targets)
        trained = [name for name, weight in network.named_parameters() if weight.requires_grad]
        names = [name.removesuffix(".weight") for name in trained if f".{name}".endswith(ends)]
        add_lora(network, model.lora_rank, model.lora_alpha, names, seed=0)
    if not model.gradient_checkpointing:
        return
    from transformers import PreTrainedModel

    if isinstance(network, PreTrainedModel):
        network.gradient_checkpointing_enable({"use_reentrant": False})
        checkpoint_layers(network, True)
    else:
        network.enable_gradient_checkpointing()


def count_pass(config: Config, folder: Folder, targets: Sequence[str]) -> Pass:
    """A pass of a language model over a prompt of ``model.max_prompt_tokens``, or a clip, and the longest completion;
    towers of media are not in it."""
    network = blank_network(folder.config).eval()
    stacks = cut_stacks(network)
    prepare(network, config.model, targets)
    head, longest = network.get_output_embeddings(), config.sampling.max_tokens
    if head is None:
        return Pass(uncounted=f"{type(network).__name__} has no output layer of words")

    def pass_over(tokens: int) -> Pass:
        if not tokens:
            return Pass()
        words = torch.zeros(ROWS, tokens, dtype=torch.long, device="meta")
        if not network.config.is_encoder_decoder:
            body = network.get_decoder()
            return count(
                network, lambda: body(input_ids=words, use_cache=False), config.model.offload_activations, stacks
            )
        length = 2 * network.config.max_source_positions
        clip = torch.empty(ROWS, network.config.num_mel_bins, length, device="meta")
        return count(network, lambda: network.model(clip, decoder_input_ids=words, use_cache=False), stacks=stacks)

    if network.config.is_encoder_decoder:  # what is left without words is that of the clip
        first, second = pass_over(1), pass_over(2)
        prompt = Pass(2 * first.operations - second.operations, 2 * first.kept - second.kept)
        whole = pass_over(longest)
    else:
        length = getattr(config.model, "max_prompt_tokens", 0)
        prompt, whole = pass_over(length), pass_over(length + longest)
    operations = whole.operations + 2 * head.weight.numel() * longest
    return Pass(operations, whole.kept, whole.most, prompt.operations, prompt.kept)
