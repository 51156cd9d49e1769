"""Greedy tokens by transformers' own forward pass, with which ours are compared.

A completion is greedy if the library, given everything before a token, prefers no other one. That is read from a single
forward pass of its own class over prompt and completion, so settings of ``generate`` (penalties, forced tokens),
which are none of the policy's, do not enter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from mmgrpo.config.plugins import locate
from mmgrpo.config.settings import Config
from mmgrpo.family import Difference, Incomparable
from mmgrpo.policies.token import TokenPolicy
from mmgrpo.types import Policy, Prompt, Request
from pipelines.generic_lm import OwnForward
from pipelines.pretrained import read_json
from pipelines.speech.whisper import Whisper
from pipelines.text.causal_lm import CausalLm
from pipelines.training import torch_dtype
from pipelines.vlm.qwen_vl import QwenVl
from pipelines.vlm.smolvlm import SmolVlm

__all__ = ["TOLERANCE", "Transformers", "inputs_of", "leave_out_bars"]

TOLERANCE = {"float32": 1e-3, "bfloat16": 0.25, "float16": 0.05}
"""Logit by which the library may prefer another token, by the precision of computation."""


def leave_out_bars() -> None:
    """Print no bars of the libraries while they read weights."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    if find_spec("diffusers"):
        from diffusers.utils import logging as diffusers_logging

        diffusers_logging.disable_progress_bar()


@dataclass(frozen=True)
class Asked:
    """A prompt and its greedy completion."""

    prompt: Prompt
    inputs: Mapping[str, Tensor]
    """Arguments of the forward pass."""
    completion: Int[Tensor, "T"]


@dataclass(frozen=True)
class Transformers:
    """transformers' class of a checkpoint."""

    measure = "logit by which the library prefers another token"
    tolerance = TOLERANCE

    def compare(self, config: Config, policy: Policy, prompts: Sequence[Prompt]) -> Difference:
        """Complete every prompt greedily, at ``sampling.evaluation_temperature`` 0."""
        if not isinstance(policy, TokenPolicy) or policy.evaluation_temperature != 0:
            raise Incomparable("sampling.evaluation_temperature: only greedy completions of tokens are compared; set 0")
        model: Any = policy.model
        outputs = policy.sample(Request(prompts, range(len(prompts)), 1, seed=1))
        rows = list[Asked]()
        for prompt, output in zip(prompts, outputs, strict=True):
            completion = torch.tensor(output.ids, dtype=torch.long)  # type: ignore[union-attr]
            inputs = {name: value.cpu() for name, value in inputs_of(model, prompt, completion).items()}
            rows.append(Asked(prompt, inputs, completion))
        never, at_first = sorted(model.suppress_tokens), sorted(model.begin_suppress_tokens)

        def difference(network: Any) -> float:
            return max(_margin_of_others(network, row, never, at_first) for row in rows)

        return difference

    def load(self, config: Config, path: str, adapters: str, device: str) -> Any:
        """The network in the precision of ``model.dtype``, with adapters that peft reads where a folder is named."""
        import transformers

        source = locate(path)
        [name, *_] = (read_json(source, "config.json") or {}).get("architectures") or [""]
        kind = getattr(transformers, name, None)
        if kind is None:
            raise Incomparable(f"config.json: architectures: transformers has no class '{name}'")
        network: Any = kind.from_pretrained(source, dtype=torch_dtype(config.model.dtype), use_safetensors=True)
        if adapters:
            from peft import PeftConfig, get_peft_model, set_peft_model_state_dict
            from safetensors.torch import load_file

            # Not by PeftModel.from_pretrained, which reads a pickle where a folder has nothing else.
            network = get_peft_model(network, PeftConfig.from_pretrained(adapters))
            set_peft_model_state_dict(network, load_file(Path(adapters) / "adapter_model.safetensors"))
            network = network.base_model.model
        return network.eval().to(device)


def inputs_of(model: Any, prompt: Prompt, completion: Int[Tensor, "T"]) -> dict[str, Any]:
    """What the library's forward pass takes of one prompt and its completion, without any padding.

    ``Incomparable`` for a model whose media the library takes in another form than the family keeps them in.
    """
    context = model.encode([prompt])
    ids = torch.cat([context.ids.cpu(), completion[None]], 1)
    (media,) = context.media
    if isinstance(model, Whisper):
        return {"input_features": media[None] if media.dim() == 2 else media, "decoder_input_ids": ids}
    if isinstance(model, OwnForward):
        return model._inputs(ids[0].to(model.device), media)
    inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if isinstance(model, CausalLm):
        return inputs
    if isinstance(model, SmolVlm):
        return inputs | ({"pixel_values": torch.cat([medium.tiles for medium in media])[None]} if media else {})
    if not isinstance(model, QwenVl):
        raise Incomparable(f"no comparison with transformers is written for models of {type(model).__name__}")
    network: Any = model.network
    images, clips = [medium for medium in media if not medium.seconds], [medium for medium in media if medium.seconds]
    kinds = (ids == network.config.image_token_id) + 2 * (ids == network.config.video_token_id)
    inputs["mm_token_type_ids"] = kinds.int()
    if images:
        inputs["pixel_values"] = torch.cat([image.patches for image in images])
        inputs["image_grid_thw"] = torch.tensor([image.grid for image in images])
    if clips:
        inputs["pixel_values_videos"] = torch.cat([clip.patches for clip in clips])
        inputs["video_grid_thw"] = torch.tensor([clip.grid for clip in clips])
        inputs["second_per_grid_ts"] = torch.tensor([clip.seconds for clip in clips])
    return inputs


@torch.no_grad()
def _margin_of_others(network: Any, row: Asked, never: Sequence[int], at_first: Sequence[int]) -> float:
    """The largest logit, over the tokens of a completion, by which another token has more than the chosen one."""
    device, count = network.device, len(row.completion)
    inputs = {
        name: value.to(device, network.dtype if value.is_floating_point() else None)
        for name, value in row.inputs.items()
    }
    logits = network(**inputs).logits[0, -count - 1 : -1].float().cpu()
    logits[:, list(never)] = -torch.inf
    logits[0, list(at_first)] = -torch.inf
    chosen = logits.gather(1, row.completion[:, None])[:, 0]
    return float((logits.amax(1) - chosen).max())
