"""Features of a language model for a preference head: the last hidden state at the last token of the answer.

    mmgrpo train-reward --data vlrewardbench:... --features "reward_models.last_hidden:last_hidden(model='Qwen/Qwen2.5-VL-7B-Instruct')"

This is BaseReward's backbone (arXiv:2509.16127): question and media are the user's turn, the answer the assistant's, and
a generated image is looked at with its prompt in the user's turn. It is frozen, or with --lora-rank trained with the
head, by adapters (LoRA, arXiv:2106.09685) in all linear layers.
"""  # noqa: E501

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mmgrpo.config.extras import install
from mmgrpo.data.chat import ChatTemplate, special_tokens
from mmgrpo.data.images import decode_image
from mmgrpo.data.values import reason_of
from mmgrpo.runtime.weight_files import check_weight_files
from mmgrpo.types import Image, Output, Prompt, Text
from reward_models.checkpoints import read_tensors, read_whole
from reward_models.pixels import to_pil
from reward_models.preference import last_token

ADAPTERS = "adapters.safetensors"
"""The file of trained adapters, next to the head."""

SCALE = 2
"""alpha / rank: W + 2 B A."""


def last_hidden(
    prompts: Sequence[Prompt], outputs: Sequence[Output], model: str, adapters: str = "", device: str = "cpu"
) -> Float[Tensor, "N width"]:
    """[N, width] of a language model, or of a vision-language model for prompts with images; rows one by one.

    ``model`` is a folder or hub id of transformers, read from safetensors; ``adapters`` a file that train-reward wrote.
    """
    processor, network = _load(model, device, adapters)
    return torch.cat(
        [state(processor, network, prompt, output, device) for prompt, output in zip(prompts, outputs, strict=True)]
    )


def state(processor: Any, network: Any, prompt: Prompt, output: Output, device: str) -> Float[Tensor, "1 width"]:
    """The state of one output, with gradient where the network has it."""
    images = [_image(medium.kind, medium.source) for medium in prompt.media]
    if isinstance(output, Image):
        images.append(output)
    elif not isinstance(output, Text):
        raise TypeError(f"last_hidden: got an output of kind {type(output).__name__}, expected Text or Image")
    text = _conversation(processor, prompt.text, output.text if isinstance(output, Text) else "", len(images))
    media = {"images": [to_pil(image) for image in images]} if images else {}
    special = special_tokens(getattr(processor, "tokenizer", processor), text)
    inputs = processor(text=[text], return_tensors="pt", **media, **special).to(device)
    return last_token(network(**inputs).last_hidden_state, inputs["attention_mask"].bool())


def _image(kind: str, source: Any) -> Image:
    if kind != "image":
        raise TypeError(f"last_hidden: got a prompt with {kind}, expected text and images only")
    return source if isinstance(source, Image) else decode_image(str(source))


def _conversation(processor: Any, question: str, answer: str, images: int) -> str:
    """The turns in the model's own template; plain lines where it has none."""
    if not getattr(processor, "chat_template", None):
        return f"{question}\n{answer}"
    parts = [{"type": "image"}] * images + [{"type": "text", "text": question}]
    reply = {"role": "assistant", "content": [{"type": "text", "text": answer}]}
    turns = [{"role": "user", "content": parts}, *([reply] if answer else [])]
    return ChatTemplate(processor).text(turns, generate=False)


def add_adapters(network: nn.Module, rank: int) -> dict[str, nn.Parameter]:
    """Adapters in all linear layers of a frozen network, which B = 0 leaves as it is; they alone are trained."""
    from peft import LoraConfig, inject_adapter_in_model

    linear = [name for name, layer in network.named_modules() if isinstance(layer, nn.Linear)]
    inject_adapter_in_model(LoraConfig(r=rank, lora_alpha=SCALE * rank, target_modules=linear), network)
    return {name: parameter for name, parameter in network.named_parameters() if ".lora_" in name}


def _add_trained(network: nn.Module, file: Path) -> None:
    """Adapters with the weights of a file."""
    tensors = read_tensors(file, "last_hidden")
    rank = next((len(tensor) for name, tensor in tensors.items() if ".lora_A." in name), 1)
    adapters = add_adapters(network, rank)
    if {name: value.shape for name, value in adapters.items()} != {
        name: value.shape for name, value in tensors.items()
    }:
        raise ValueError(f"last_hidden: {file}: its adapters do not fit the model; train them again on this model")
    network.load_state_dict(tensors, strict=False)


@functools.lru_cache(maxsize=2)
def _load(name: str, device: str, adapters: str) -> tuple[Any, Any]:
    processor, network = load_frozen(name, device)
    try:
        _conversation(processor, "a question", "an answer", 0)
    except ValueError as error:
        raise ValueError(
            f"last_hidden: {name}: its chat template raises for a question and its answer "
            f"({reason_of(error.__cause__ or error)}); correct its chat_template.jinja, or name another model"
        ) from error
    if adapters:
        _add_trained(network, Path(adapters))
    return processor, network.eval().requires_grad_(False)


def load_frozen(name: str, device: str) -> tuple[Any, Any]:
    """The processor and the network without its language-model head, not shared with anybody."""
    try:
        from transformers import AutoModel, AutoProcessor
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"last_hidden: needs transformers: {install('vlm')}") from error
    check_weight_files(Path(name), False, "")
    processor = AutoProcessor.from_pretrained(name, trust_remote_code=False)
    network = read_whole(AutoModel, name, {"trust_remote_code": False}, "last_hidden")
    return processor, network.to(device).eval().requires_grad_(False)
