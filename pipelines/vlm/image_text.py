"""Any model that transformers knows as "image-text-to-text", through its own processor and its own forward pass.

A family of its own is faster where there is one (``qwen_vl``, ``smolvlm``): it encodes frozen media once per prompt and
batches prompts. Here every prompt is read by the network alone, so that neither the layout of its media nor padding can
differ from what the model's authors wrote. Then one of two ways, which the log names:

    shared     the members of a group share the keys and values of their prompt, in sampling and in scoring
    replayed   every sample is read whole by every forward pass, as slow as that is

The first is taken where, on an example, it gives the logits of the model's own forward pass over the whole text.

    load(path)     an ordinary folder or hub id: Qwen/Qwen3-VL-4B-Instruct, google/gemma-3-4b-it, ...
    tiny(folder)   the real architecture with random weights and a small vocabulary (image_text_tiny.py)
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from PIL import Image as Pil
from torch import Tensor, nn

from mmgrpo.policies.token_model import Context, Features
from mmgrpo.types import Image, Media, Prompt, Reference, Turn
from pipelines import require
from pipelines.conversation import (
    check_prompt_lengths,
    completion_ids,
    conversation,
    end_tokens,
    pad_left,
    suppressed_tokens,
)
from pipelines.kv import spread_cache
from pipelines.pretrained import locate, read_network, read_part, save_network
from pipelines.training import PLAIN, Training, autocast, checkpoint_layers, make_trainable
from pipelines.vlm.image_text_tiny import tiny
from pipelines.vlm.media import eight_bits, read_image, read_video
from pipelines.vlm.processors import read_processor

__all__ = ["ImageText", "load", "tiny"]

LORA_TARGETS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
"""Attention of the language model; all its linear layers where it has none of these names."""
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.02}
"""Largest difference of logits, relative to their largest, by which the shared way may differ from the whole one."""


@dataclass(frozen=True)
class Limits:
    """Limits of the media of a prompt and of its length; 0 is none."""

    max_pixels: int = 0
    max_frames: int = 16
    fps: float = 1.0
    max_prompt_tokens: int = 0


@dataclass(frozen=True)
class Whole:
    """A cache that caches nothing: all tokens of each row so far, and its media."""

    ids: Sequence[Int[Tensor, "_"]]
    media: Sequence[Mapping[str, Tensor]]


@dataclass
class ImageText:
    """A model of transformers as the model of a token policy; ``load`` returns one."""

    network: nn.Module
    processor: Any
    limits: Limits
    dtype: torch.dtype
    device: torch.device
    reference: Reference
    checkpointing: bool
    frozen_media: bool = False
    """Media are encoded inside of the network's own forward pass, so that their features are never kept."""
    media_tokens: frozenset[int] = frozenset()
    begin_suppress_tokens: frozenset[int] = frozenset()
    shared: bool = True
    """Whether the members of a group share the keys and values of their prompt (``choose_way``)."""
    cap: float = 0.0
    """Bound of the logits, ``cap * tanh(logits / cap)``; 0: none."""

    def __post_init__(self) -> None:
        network: Any = self.network
        tokenizer = self.tokenizer = self.processor.tokenizer
        places = ("image_token", "video_token", "boi_token", "eoi_token", "start_image_token", "end_image_token")
        marks = {getattr(part, name, None) for part in (self.processor, tokenizer) for name in places}
        ids = {getattr(network.config, f"{name}_id", None) for name in places}
        named = tokenizer.convert_ids_to_tokens([i for i in ids if isinstance(i, int) and i < len(tokenizer)])
        self.marks = sorted({mark for mark in (*marks, *named) if isinstance(mark, str)})
        self.end_ids = end_tokens(network, tokenizer)
        self.pad_id = int(tokenizer.pad_token_id if tokenizer.pad_token_id is not None else min(self.end_ids))
        head = network.get_output_embeddings()
        self.suppress_tokens = suppressed_tokens(tokenizer, head.weight.shape[0], self.marks, self.end_ids)
        self.accepted = frozenset(inspect.signature(network.base_model.forward).parameters)

    def encode(self, prompts: Sequence[Prompt]) -> Context:
        """Every prompt by the model's processor; one that is too long is refused."""
        read = [self._read(prompt) for prompt in prompts]
        rows = [inputs["input_ids"][0].tolist() for inputs, _ in read]
        check_prompt_lengths(prompts, rows, self.limits.max_prompt_tokens, "max_pixels, fps, max_frames")
        ids, real = pad_left(rows, self.pad_id)
        own = [self._positions(inputs) for inputs, _ in read]
        positions = torch.ones(len(rows), max(map(len, own)), ids.shape[1], dtype=torch.long)
        for row, one in enumerate(own):
            positions[row, :, ids.shape[1] - one.shape[1] :] = one
        wanted = self.accepted - {"input_ids", "attention_mask"}
        media = [{name: value for name, value in inputs.items() if name in wanted} for inputs, _ in read]
        return Context(ids, real, positions, media, [sizes for _, sizes in read])

    def prompt_length(self, prompt: Prompt) -> int:
        """Number of tokens of a prompt, media included."""
        return self._read(prompt)[0]["input_ids"].shape[1]

    def features(self, network: Any, context: Context) -> Features:
        """What the processor made of each prompt's media, which the network encodes when it reads the prompt."""
        return context.media

    def hidden(
        self, network: Any, ids: Tensor, real: Tensor, positions: Tensor, features: Any, cache: Any
    ) -> tuple[Float[Tensor, "rows length width"], Any]:
        """Last hidden states: of whole prompts, one by one, or of tokens after a cache."""
        if isinstance(cache, Whole):
            kept = real[:, -ids.shape[1] :]
            rows = [torch.cat([old, new[keep]]) for old, new, keep in zip(cache.ids, ids, kept, strict=True)]
            states = [self._forward(network, row, media)[0] for row, media in zip(rows, cache.media, strict=True)]
            return _placed([s[len(old) :] for s, old in zip(states, cache.ids, strict=True)], kept), Whole(
                rows, cache.media
            )
        if cache is not None:
            return self._continued(network, ids, real, positions, cache)
        checkpointed = checkpoint_layers(network, self.checkpointing and torch.is_grad_enabled())
        ends = bool(real[:, -1].all())  # else these are whole completions, which nothing follows
        rows = [row[keep] for row, keep in zip(ids, real, strict=True)]
        media = list(features) or [{}] * len(rows)
        share = self.shared and ends and not checkpointed
        outs = [
            self._forward(network, row, one, places[:, keep] if self.shared else None, share)
            for row, one, places, keep in zip(rows, media, positions, real, strict=True)
        ]
        states = _placed([state for state, _ in outs], real)
        if not ends or checkpointed:
            return states, None
        return states, _joined([own for _, own in outs], ids.shape[1]) if self.shared else Whole(rows, media)

    def spread(self, cache: Any, rows: Int[Tensor, "rows"]) -> Any:
        """The cache of a group's prompt, repeated for each of its members."""
        if isinstance(cache, Whole):
            return Whole([cache.ids[row] for row in rows.tolist()], [cache.media[row] for row in rows.tolist()])
        return spread_cache(cache, rows)

    def logits(self, network: Any, hidden: Float[Tensor, "N width"]) -> Float[Tensor, "N vocabulary"]:
        """Logits of the next token."""
        with autocast(self.dtype, hidden.device):
            logits = network.get_output_embeddings()(hidden)
        return self.cap * torch.tanh(logits / self.cap) if self.cap else logits

    def decode(self, ids: Sequence[int]) -> str:
        """Text without special tokens."""
        return self.tokenizer.decode(ids, skip_special_tokens=True)

    def spell(self, text: str) -> list[int]:
        """Ids of a whole completion, its end included."""
        return completion_ids(self.tokenizer, text, self.end_ids)

    def save(self, folder: Path, network: nn.Module) -> None:
        """Adapters in peft's format, or an ordinary model folder."""
        save_network(folder, network, (self.processor,))

    def own_logits(self, ids: Int[Tensor, "length"], media: Mapping[str, Tensor]) -> Float[Tensor, "length vocabulary"]:
        """Logits of the model's own forward pass, to compare with."""
        with autocast(self.dtype, self.device):
            return self.network(**self._inputs(ids, media), use_cache=False).logits[0].float()

    def _inputs(self, ids: Tensor, media: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The arguments of a forward pass over one row: what is given per token is 0 on tokens of the completion."""
        inputs = {"input_ids": ids[None], "attention_mask": torch.ones_like(ids)[None]}
        for name, value in media.items():
            value = value.to(self.device, self.dtype) if value.is_floating_point() else value.to(self.device)
            if name.endswith("token_type_ids"):
                value = nn.functional.pad(value, (0, len(ids) - value.shape[1]))
            inputs[name] = value
        return inputs

    def _forward(
        self,
        network: Any,
        ids: Int[Tensor, "length"],
        media: Mapping[str, Tensor],
        positions: Int[Tensor, "axes length"] | None = None,
        share: bool = False,
    ) -> tuple[Float[Tensor, "length width"], Any]:
        """Hidden states of one row without padding, and its keys and values if they are to be shared."""
        from transformers import DynamicCache

        places = {} if positions is None else {"position_ids": _places(positions[None])}
        with autocast(self.dtype, self.device):
            out = network.base_model(
                **self._inputs(ids, media), **places, use_cache=share, past_key_values=DynamicCache() if share else None
            )
        return out.last_hidden_state[0], out.past_key_values if share else None

    def _continued(self, network: Any, ids: Tensor, real: Tensor, positions: Tensor, cache: Any) -> tuple[Tensor, Any]:
        with autocast(self.dtype, self.device):
            out = network.base_model(
                input_ids=ids,
                attention_mask=real.long(),
                position_ids=_places(positions),
                past_key_values=cache,
                use_cache=True,
            )
        return out.last_hidden_state, out.past_key_values

    def _positions(self, inputs: Mapping[str, Tensor]) -> Int[Tensor, "axes length"]:
        """Positions of a prompt: the model's own where they have several axes, else counted from 0."""
        network: Any = self.network
        ids = inputs["input_ids"]
        if not hasattr(network.base_model, "get_rope_index") or "image_grid_thw" not in inputs:
            return torch.arange(ids.shape[1])[None]
        wanted = inspect.signature(network.base_model.get_rope_index).parameters
        positions, _ = network.base_model.get_rope_index(**{n: v for n, v in inputs.items() if n in wanted})
        return positions[:, 0].cpu()

    def _read(self, prompt: Prompt) -> tuple[dict[str, Tensor], tuple[tuple[int, int], ...]]:
        """A prompt as its processor's tensors, and the size of each of its pictures as the network sees it."""
        pictures = [self._pictures(medium, prompt) for medium in prompt.media]
        remaining = iter(pictures)
        messages = conversation(prompt, self.marks, lambda _: [{"type": "image"}] * len(next(remaining)))
        flat = [picture for several in pictures for picture in several]
        try:
            text = self.processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
            inputs = self.processor(text=[text], images=[flat] if flat else None, return_tensors="pt")
        except Exception as error:  # whatever a processor raises for a prompt that it does not take
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            raise ValueError(f"prompt '{prompt.id}': the model's processor does not take it: {reason}") from error
        tensors = {name: value for name, value in inputs.items() if isinstance(value, Tensor)}
        patch = getattr(getattr(self.processor, "image_processor", None), "patch_size", 0)
        grid = tensors.get("image_grid_thw", torch.zeros(0, 3)).tolist()
        sizes = [(int(h * patch), int(w * patch)) for _, h, w in grid] or [(p.height, p.width) for p in flat]
        first = [sum(map(len, pictures[:place])) for place in range(len(pictures))]
        return tensors, tuple(sizes[place] for place in first)

    def _pictures(self, medium: Media, prompt: Prompt) -> list[Pil.Image]:
        """A picture, or the frames of a clip as pictures, at most ``max_pixels`` large."""
        if medium.kind == "image":
            frames = read_image(medium).pixels[None]
        elif medium.kind == "video":
            frames = read_video(medium, fps=self.limits.fps, max_frames=self.limits.max_frames).frames
        else:
            raise ValueError(f"prompt '{prompt.id}': got a medium of kind {medium.kind}, expected image or video")
        pictures = [Pil.fromarray(frame) for frame in eight_bits(frames).permute(0, 2, 3, 1).numpy()]
        most = int(medium.options.get("max_pixels", self.limits.max_pixels))
        return [_within(picture, most) if most else picture for picture in pictures]


def load(
    path: str | Path,
    training: Training = PLAIN,
    *,
    freeze_vision: bool = True,
    max_pixels: int = 0,
    max_frames: int = 0,
    fps: float = 0.0,
    max_prompt_tokens: int = 0,
) -> ImageText:
    """Load any image-text-to-text model for training.

    ``freeze_vision`` freezes all but the language model where the network itself trains. Larger pictures are reduced
    to ``max_pixels`` (0: as the processor does). A clip is shown as at most ``max_frames`` pictures (0: 16), ``fps`` a
    second (0: 1). Raises FileNotFoundError for a folder that is no model, ValueError for a model of another kind.
    """
    require("vlm", "transformers", "peft")
    from transformers import AutoConfig, AutoModelForImageTextToText
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

    source = locate(path, "Qwen/Qwen3-VL-4B-Instruct")
    kind = read_part(AutoConfig, source, trust_remote_code=False).model_type
    if kind not in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES:
        raise ValueError(
            f"'{source}': got a model of type '{kind}', expected one that transformers lists as image-text-to-text; "
            "choose another model.family"
        )
    network = read_network(AutoModelForImageTextToText, source, training)
    decoder = network.get_decoder()
    layers = [name for name, module in decoder.named_modules() if isinstance(module, nn.Linear)]
    usual = [target for target in LORA_TARGETS if any(name.endswith(target) for name in layers)]
    frozen = [part for part in network.base_model.children() if decoder not in part.modules()]
    reference = make_trainable(network, training, usual or layers, frozen if freeze_vision or training.adapters else [])
    model = ImageText(
        network,
        read_processor(source, kind),
        Limits(),
        training.compute_dtype,
        torch.device(training.device),
        reference,
        training.gradient_checkpointing,
    )
    choose_way(model, f"{source} ({kind})")
    model.limits = Limits(max_pixels, max_frames or 16, fps or 1.0, max_prompt_tokens)
    return model


@torch.no_grad()
def choose_way(model: ImageText, name: str) -> None:
    """Share prompts if, on an example, that gives the logits of the model's own pass over the whole text; else replay.

    ValueError where even whole passes do not: the logits are not those of the hidden states then.
    """
    picture = torch.linspace(0, 1, 3 * 48 * 64).view(3, 48, 64)
    shown = Prompt("what is it?", "example", turns=(Turn("user", (Media("image", Image(picture)), "what is it?")),))
    context = model.encode([shown])
    ids, media = context.ids.to(model.device), context.media[0]
    answer = torch.tensor([sorted(set(range(200)) - model.suppress_tokens)[1:5]] * 2, device=model.device)
    answer[1] = answer[1].flip(0)
    start, differences = ids.shape[1] - 1, []
    wanted = torch.stack([model.own_logits(torch.cat([ids[0], row]), media)[start:] for row in answer])
    network: Any = model.network
    cap = getattr(network.config.get_text_config(), "final_logit_softcapping", None)
    for model.shared, model.cap in itertools.product((True, False), (cap, 0.0) if cap else (0.0,)):
        try:
            state, cache = model.hidden(
                network, ids, context.real.to(model.device), context.positions.to(model.device), [media], None
            )
            rows = torch.zeros(2, dtype=torch.long, device=model.device)
            real = torch.ones(2, start + 1 + answer.shape[1], dtype=torch.bool, device=model.device)
            after = context.positions.amax((1, 2)).to(model.device) + 1
            places = (after[:, None] + torch.arange(answer.shape[1], device=model.device))[:, None]
            places = places.expand(2, context.positions.shape[1], -1)
            more, _ = model.hidden(network, answer, real, places, (), model.spread(cache, rows))
        except Exception as error:  # whatever a model raises that does not take what most do
            differences.append(f"{type(error).__name__}: {error}")
            continue
        got = model.logits(network, torch.cat([state[rows, -1:], more], 1).flatten(0, 1)).float()
        gap = float((got - wanted.flatten(0, 1)).abs().max() / wanted.abs().max())
        if gap <= TOLERANCE[model.dtype]:
            way = (
                "share their prompt" if model.shared else f"are read whole, since sharing fails ({differences[0]:.200})"
            )
            print(f"{name}: the samples of a group {way}", flush=True)
            return
        differences.append(f"logits differ by {gap:.1e} of the largest")
    raise ValueError(
        f"{name}: its own logits cannot be computed from its hidden states ({differences[-1]:.300}); choose another "
        "model"
    )


def _joined(caches: Sequence[Any], length: int) -> Any:
    """Keys and values of several rows in one cache, padded on the left to ``length`` tokens."""
    joined = caches[0]
    for place, layer in enumerate(joined.layers):
        for name in ("keys", "values"):
            parts = [getattr(cache.layers[place], name) for cache in caches]
            padded = [nn.functional.pad(part, (0, 0, length - part.shape[2], 0)) for part in parts]
            setattr(layer, name, torch.cat(padded))
    return joined


def _placed(states: Sequence[Tensor], real: Tensor) -> Float[Tensor, "rows length width"]:
    """The states of rows without padding, at the places of their tokens; zeros on the padding."""
    empty = states[0].new_zeros(*real.shape, states[0].shape[-1])
    return empty.masked_scatter(real[..., None], torch.cat(list(states)))


def _places(positions: Int[Tensor, "rows axes length"]) -> Tensor:
    """Positions as transformers takes them: [rows, length] for one axis, [axes, rows, length] for several."""
    return positions[:, 0] if positions.shape[1] == 1 else positions.permute(1, 0, 2)


def _within(picture: Pil.Image, most: int) -> Pil.Image:
    """The picture reduced to at most ``most`` pixels, in proportion."""
    scale = (most / (picture.width * picture.height)) ** 0.5
    if scale >= 1:
        return picture
    size = (max(1, int(picture.width * scale)), max(1, int(picture.height * scale)))
    return picture.resize(size, Pil.Resampling.BICUBIC)
