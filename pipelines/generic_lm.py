"""Token models that compute by their network's own forward pass, whatever its architecture.

Every prompt is read by the network alone, media included, so neither the layout of its media nor padding can
differ from what the model's authors wrote. Then one of two ways, which the log names:

    shared     the members of a group share the keys and values of their prompt, in sampling and in scoring
    replayed   every sample is read whole by every forward pass, as slow as that is

The first is taken where, on an example, it gives the logits of the model's own forward pass over the whole text.
A family adds how a prompt becomes the tensors of its processor.
"""

from __future__ import annotations

import inspect
import itertools
import weakref
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from mmgrpo.data.chat import ChatTemplate, completion_ids, end_tokens, pad_left, suppressed_tokens, turn_end
from mmgrpo.policies.token_model import Context, Features
from mmgrpo.policies.token_scores import Packed
from mmgrpo.runtime.devices import autocast, put
from mmgrpo.types import Prompt, Reference
from pipelines.decoder import head_logits
from pipelines.kv import Room, attention_mask, maskable, reading, shareable, spread_cache
from pipelines.pretrained import save_network
from pipelines.training import Training, checkpoint_layers, make_trainable

LORA_TARGETS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
"""Attention of the language model; all its linear layers where it has none of these names."""
ENCODERS = ("get_image_features", "get_video_features", "get_audio_features")
"""Methods by which networks of transformers encode media."""
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.02}
"""Largest difference of logits, relative to their largest, by which the shared way may differ from the whole one."""


@dataclass(frozen=True)
class Whole:
    """A cache that caches nothing: all tokens of each row so far, and its media."""

    ids: Sequence[Int[Tensor, "_"]]
    media: Sequence[Mapping[str, Tensor]]


@dataclass(frozen=True)
class Encoded:
    """What the frozen encoders of a network made of media, so these are encoded once: not again by every pass over
    their prompt.

    A network calls its encoders by its own ``get_image_features`` and the like, whose answers are kept as long as the
    processor's tensor of the media is.
    """

    names: Sequence[str]
    """The methods of the network that encode; empty where nothing is kept."""
    kept: WeakTensorKeyDictionary = field(default_factory=WeakTensorKeyDictionary)
    """By the first tensor of the media: all of them, and answers by method, place among its calls in a pass, and
    precision of autocast."""

    @staticmethod
    def of(network: Any) -> Encoded:
        """Of the methods of a network where nothing but its decoder trains."""
        decoder = {id(p) for p in network.get_decoder().parameters()}
        if any(p.requires_grad and id(p) not in decoder for p in network.base_model.parameters()):
            return Encoded(())
        return Encoded([name for name in dir(type(network.base_model)) if name in ENCODERS])

    @contextmanager
    def during(self, network: Any, media: Mapping[str, Tensor]) -> Iterator[None]:
        """A ``with`` block of one pass over a prompt with these media."""
        tensors = [value for value in media.values() if value.is_floating_point()]
        if not tensors or not self.names:
            yield
            return
        device, calls, inside = next(network.parameters()).device.type, Counter[str](), list[str]()
        precision = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        known, answers = self.kept.get(tensors[0]) or ((), {})
        if len(known) != len(tensors) or any(ref() is not value for ref, value in zip(known, tensors, strict=True)):
            answers = {}
            self.kept[tensors[0]] = [weakref.ref(value) for value in tensors], answers

        def once(name: str) -> Callable[..., Any]:
            encode = getattr(network.base_model, name)

            def answer(*inputs: Any, **options: Any) -> Any:
                if inside:  # one encoder may call another
                    return encode(*inputs, **options)
                place = name, calls[name], precision
                calls[name] += 1
                if place not in answers:
                    inside.append(name)
                    try:
                        with torch.no_grad():
                            answers[place] = encode(*inputs, **options)
                    finally:
                        inside.clear()
                return answers[place]

            return answer

        for name in self.names:
            setattr(network.base_model, name, once(name))
        try:
            yield
        finally:
            for name in self.names:
                delattr(network.base_model, name)


NO_TYPES: Mapping[str, Mapping[int, int]] = MappingProxyType({})

Read: TypeAlias = tuple[Mapping[str, Tensor], tuple[tuple[int, int], ...]]
"""A prompt as its processor's tensors, and (height, width) of each of its images as the network sees it."""


class OwnForward(ABC):
    """The part of a ``TokenModel`` that does not depend on the kind of media; a family calls ``_set_up`` first."""

    network: nn.Module
    processor: Any
    dtype: torch.dtype
    device: torch.device
    reference: Reference
    checkpointing: bool
    frozen_media: bool = False
    """Media are encoded inside of the network's own forward pass, so their features are never kept."""
    media_tokens: frozenset[int] = frozenset()
    begin_suppress_tokens: frozenset[int] = frozenset()
    turn_end: int | None = None
    """The token with which the chat template ends the assistant's turn."""
    prefilled: str = ""
    """What the chat template writes of the answer itself (``ChatTemplate.prefilled``)."""
    maskable: bool = False
    """Whether the network, behind a cache, can be given which tokens each token attends to (``choose_way``)."""
    maskable_whole: bool = False
    """The same of prompts and completions in one row, without a cache."""
    shared: bool = True
    """Whether the members of a group share the keys and values of their prompt (``choose_way``)."""
    exact_head: bool = False
    """Compute the output layer in fp32 (``head_logits``)."""
    cap: float = 0.0
    """Bound of the logits, ``cap * tanh(logits / cap)``; 0: none."""
    types: Mapping[str, Mapping[int, int]] = NO_TYPES
    """Types of tokens of media, by the name of the tensor that has one for each token; others are 0."""

    @property
    def masks(self) -> bool:
        """``maskable``, and where there is no cache ``maskable_whole``."""
        whole = self.checkpointing and torch.is_grad_enabled()
        return self.shared and (self.maskable_whole if whole else self.maskable)

    @abstractmethod
    def encode(self, prompts: Sequence[Prompt]) -> Context:
        """Every prompt by the model's processor, joined by ``_context``."""

    def _set_up(self, places: Sequence[str], chat: ChatTemplate | None) -> None:
        """Attributes that follow from network and processor; ``places`` are the names under which they, or the
        configuration, declare the marks of media. ``chat`` is None for a processor that writes conversations itself."""
        end_of_turn, self.prefilled = (chat.end_of_turn, chat.prefilled) if chat else ("", "")
        network: Any = self.network
        tokenizer = self.tokenizer = self.processor.tokenizer
        marks = {getattr(part, name, None) for part in (self.processor, tokenizer) for name in places}
        ids = {getattr(network.config, f"{name}_id", None) for name in places}
        named = tokenizer.convert_ids_to_tokens([i for i in ids if isinstance(i, int) and i < len(tokenizer)])
        self.marks = sorted({mark for mark in (*marks, *named) if isinstance(mark, str)})
        self.end_ids = end_tokens(network, tokenizer, end_of_turn)
        self.turn_end = turn_end(tokenizer, end_of_turn)
        self.pad_id = int(tokenizer.pad_token_id if tokenizer.pad_token_id is not None else min(self.end_ids))
        head = network.get_output_embeddings()
        self.suppress_tokens = suppressed_tokens(tokenizer, head.weight.shape[0], self.marks, self.end_ids)
        self.accepted = frozenset(inspect.signature(network.base_model.forward).parameters)
        self.encoded = Encoded.of(network)

    def _context(self, read: Sequence[Read]) -> Context:
        """Prompts as they were read, padded on the left."""
        ids, real = pad_left([inputs["input_ids"][0].tolist() for inputs, _ in read], self.pad_id)
        places = [self._positions(inputs) for inputs, _ in read]
        positions = torch.ones(len(read), max(map(len, places)), ids.shape[1], dtype=torch.long)
        for row, place in enumerate(places):
            positions[row, :, ids.shape[1] - place.shape[1] :] = place
        wanted = self.accepted - {"input_ids", "attention_mask"}
        media = [{name: value for name, value in inputs.items() if name in wanted} for inputs, _ in read]
        return Context(ids, real, positions, media, [sizes for _, sizes in read], [self.prefilled] * len(read))

    def features(self, network: Any, context: Context) -> Features:
        """What the processor made of each prompt's media, which the network encodes when it reads the prompt."""
        return context.media

    def hidden(
        self, network: Any, ids: Tensor, real: Tensor, positions: Tensor, features: Any, cache: Any
    ) -> tuple[Float[Tensor, "rows length width"], Any]:
        """Last hidden states: of whole prompts, one by one, or of tokens after a cache."""
        if isinstance(cache, Whole):
            kept = real.cpu()[:, -ids.shape[1] :]
            rows = [torch.cat([old, _there(new, keep)]) for old, new, keep in zip(cache.ids, ids, kept, strict=True)]
            states = [self._forward(network, row, media)[0] for row, media in zip(rows, cache.media, strict=True)]
            return _scatter_states([s[len(old) :] for s, old in zip(states, cache.ids, strict=True)], kept), Whole(
                rows, cache.media
            )
        if cache is not None:
            return self._continue(network, ids, real, positions, cache)
        checkpointed = checkpoint_layers(network, self.checkpointing and torch.is_grad_enabled())
        if real.dim() == 3:
            return self._forward_masked(network, ids, real, positions, features), None
        real = real.cpu()
        ends = bool(real[:, -1].all())  # else these are whole completions, which nothing follows
        rows = [_there(row, keep) for row, keep in zip(ids, real, strict=True)]
        media = list(features) or [{}] * len(rows)
        share = self.shared and ends and not checkpointed
        outs = [
            self._forward(network, row, tensors, _there(places, keep) if self.shared else None, share)
            for row, tensors, places, keep in zip(rows, media, positions, real, strict=True)
        ]
        states = _scatter_states([state for state, _ in outs], real)
        if not ends or checkpointed:
            return states, None
        return states, _join_caches([cache for _, cache in outs], ids.shape[1]) if self.shared else Whole(rows, media)

    def _forward_masked(
        self,
        network: Any,
        ids: Int[Tensor, "rows length"],
        seen: Bool[Tensor, "rows length length"],
        positions: Int[Tensor, "rows axes length"],
        media: Features,
    ) -> Float[Tensor, "rows length width"]:
        """Hidden states of prompts with several completions each, where tokens attend to those of ``seen``; zeros on
        the padding of prompts, to which the last token of a row attends as little as any other."""
        config, states = network.config.get_text_config(), []
        starts = seen[:, -1].int().argmax(1).tolist()
        for row, (start, tensors) in enumerate(zip(starts, media or [{}] * len(ids), strict=True)):
            mask = attention_mask(config, seen[row : row + 1, start:, start:], self.dtype, ids[row : row + 1])
            state, _ = self._forward(network, ids[row, start:], tensors, positions[row, :, start:], mask=mask)
            states.append(nn.functional.pad(state, (0, 0, start, 0)))
        return torch.stack(states)

    def spread(self, cache: Any, rows: Int[Tensor, "rows"]) -> Any:
        """The cache of a group's prompt, repeated for each of its members."""
        if isinstance(cache, Whole):
            return Whole([cache.ids[row] for row in rows.tolist()], [cache.media[row] for row in rows.tolist()])
        return spread_cache(cache, rows)

    def reserve(self, cache: Any, rows: Sequence[int], room: int) -> Room:
        """Slots with room for tokens behind the prompts of a cache."""
        network: Any = self.network
        return Room.of(cache, rows, room, shared=shareable(network.get_decoder()))

    def logits(self, network: Any, hidden: Float[Tensor, "N width"]) -> Float[Tensor, "N vocabulary"]:
        """Logits of the next token."""
        logits = head_logits(network.get_output_embeddings(), hidden, self.dtype, self.exact_head)
        return self.cap * torch.tanh(logits / self.cap) if self.cap else logits

    def decode(self, ids: Sequence[int]) -> str:
        """Text without special tokens."""
        return self.tokenizer.decode(ids, skip_special_tokens=True)

    def spell(self, text: str) -> list[int]:
        """Ids of a whole completion, its end included."""
        return completion_ids(self.tokenizer, text, self.end_ids, self.turn_end, self.prefilled)

    def save(self, folder: Path, network: nn.Module) -> None:
        """Adapters in peft's format, or an ordinary model folder."""
        save_network(folder, network, (self.processor,))

    def own_logits(self, ids: Int[Tensor, "length"], media: Mapping[str, Tensor]) -> Float[Tensor, "length vocabulary"]:
        """Logits of the model's own forward pass, to compare with."""
        with autocast(self.dtype, self.device):
            return self.network(**self._inputs(ids, media), use_cache=False).logits[0].float()

    def _inputs(self, ids: Tensor, media: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The arguments of a forward pass over one row; ``media`` has the types of the tokens of its prompt."""
        inputs = {"input_ids": ids[None], "attention_mask": torch.ones_like(ids)[None]}
        for name, value in media.items():
            value = put(value.to(self.dtype) if value.is_floating_point() else value, self.device)
            if name.endswith("token_type_ids"):
                value = token_types(value, ids, self.types.get(name, {}))
            inputs[name] = value
        return inputs

    def _forward(
        self,
        network: Any,
        ids: Int[Tensor, "length"],
        media: Mapping[str, Tensor],
        positions: Int[Tensor, "axes length"] | None = None,
        share: bool = False,
        mask: Tensor | None = None,
    ) -> tuple[Float[Tensor, "length width"], Any]:
        """Hidden states of one row without padding, and its keys and values if they are to be shared; ``mask`` says
        which tokens each token attends to, in the form of transformers."""
        from transformers import DynamicCache

        inputs = self._inputs(ids, media)
        if positions is not None:
            inputs["position_ids"] = _places(positions[None])
        if mask is not None:
            inputs["attention_mask"] = mask
        with autocast(self.dtype, self.device), self.encoded.during(network, media):
            out = network.base_model(**inputs, use_cache=share, past_key_values=DynamicCache() if share else None)
        return out.last_hidden_state[0], out.past_key_values if share else None

    def _continue(self, network: Any, ids: Tensor, real: Tensor, positions: Tensor, cache: Any) -> tuple[Tensor, Any]:
        config = network.config.get_text_config()
        with autocast(self.dtype, self.device), reading(config, cache) as past:
            out = network.base_model(
                input_ids=ids,
                attention_mask=attention_mask(config, real, self.dtype, ids),
                position_ids=_places(positions),
                past_key_values=past,
                use_cache=True,
            )
        return out.last_hidden_state, out.past_key_values

    def _positions(self, inputs: Mapping[str, Tensor]) -> Int[Tensor, "axes length"]:
        """Positions of a prompt: the model's own where they have several axes, else counted from 0."""
        network: Any = self.network
        ids = inputs["input_ids"]
        if not (hasattr(network.base_model, "get_rope_index") and {"image_grid_thw", "video_grid_thw"} & inputs.keys()):
            return torch.arange(ids.shape[1])[None]
        wanted = inspect.signature(network.base_model.get_rope_index).parameters
        positions, _ = network.base_model.get_rope_index(**{n: v for n, v in inputs.items() if n in wanted})
        return positions[:, 0].cpu()


def train_decoder(network: Any, training: Training, freeze_media: bool) -> Reference:
    """Set that the language model trains, by adapters or itself, and unless ``freeze_media`` all else as well."""
    decoder = network.get_decoder()
    layers = [name for name, module in decoder.named_modules() if isinstance(module, nn.Linear)]
    usual = [target for target in LORA_TARGETS if any(name.endswith(target) for name in layers)]
    frozen = [part for part in network.base_model.children() if decoder not in part.modules()]
    return make_trainable(network, training, usual or layers, frozen if freeze_media or training.adapters else [])


@torch.no_grad()
def choose_way(model: OwnForward, name: str, example: Prompt) -> None:
    """Share prompts if, on ``example``, that gives the logits of the model's own pass over the whole text, or replay.

    ValueError where even whole passes do not: the logits are not those of the hidden states then.
    """
    context = model.encode([example]).to(model.device)
    ids, media = context.ids, context.media[0]
    answer = torch.tensor([sorted(set(range(200)) - model.suppress_tokens)[1:5]] * 2, device=model.device)
    answer[1] = answer[1].flip(0)
    start, differences = ids.shape[1] - 1, []
    wanted = torch.stack([model.own_logits(torch.cat([ids[0], row]), media)[start:] for row in answer])
    network: Any = model.network
    cap = getattr(network.config.get_text_config(), "final_logit_softcapping", None)
    for model.shared, model.cap in itertools.product((True, False), (cap, 0.0) if cap else (0.0,)):
        try:
            state, cache = model.hidden(network, ids, context.real, context.positions, [media], None)
            rows = torch.zeros(2, dtype=torch.long, device=model.device)
            real = torch.ones(2, start + 1 + answer.shape[1], dtype=torch.bool, device=model.device)
            after = context.positions.amax((1, 2)) + 1
            places = (after[:, None] + torch.arange(answer.shape[1], device=model.device))[:, None]
            places = places.expand(2, context.positions.shape[1], -1)
            more, _ = model.hidden(network, answer, real, places, (), model.spread(cache, rows))
        except Exception as error:  # whatever a model raises that does not take what most do
            differences.append(f"{type(error).__name__}: {error}")
            continue
        got = model.logits(network, torch.cat([state[rows, -1:], more], 1).flatten(0, 1)).float()
        gap = float((got - wanted.flatten(0, 1)).abs().max() / wanted.abs().max())
        if model.encoded.names and gap <= TOLERANCE[model.dtype]:
            again, _ = model.hidden(network, ids, context.real, context.positions, [media], None)
            if not torch.equal(again, state):
                model.encoded = Encoded(())
        if gap <= TOLERANCE[model.dtype]:
            way = (
                "share their prompt" if model.shared else f"are read whole, since sharing fails ({differences[0]:.200})"
            )
            print(f"{name}: the samples of a group {way}", flush=True)
            if model.shared and maskable(network.config.get_text_config()):
                inputs = answer, places, wanted
                model.maskable = _takes_masks(model, context, cache, *inputs)
                model.maskable_whole = model.checkpointing and _takes_masks(model, context, None, *inputs)
            return
        differences.append(f"logits differ by {gap:.1e} of the largest")
    raise ValueError(
        f"{name}: its own logits cannot be computed from its hidden states ({differences[-1]:.300}); choose another "
        "model"
    )


def _takes_masks(
    model: OwnForward,
    context: Context,
    cache: Any,
    answer: Int[Tensor, "2 length"],
    places: Int[Tensor, "2 axes length"],
    wanted: Float[Tensor, "2 _ vocabulary"],
) -> bool:
    """Whether two answers in one row, each of which attends to the prompt and itself, have their own logits: behind the
    prompt's cache, or without one behind the prompt."""
    packed = Packed.of([0, 0], [answer.shape[1] + 1] * 2, 1, model.device)
    mask = packed.attention_mask(context.real, whole=cache is None)
    row, place, media = answer.flatten()[None], places.permute(1, 0, 2).flatten(1)[None], ()
    if cache is None:
        row, place = torch.cat([context.ids, row], 1), torch.cat([context.positions, place], 2)
        media = context.media
    else:
        cache = model.spread(cache, torch.zeros(1, dtype=torch.long))
    try:
        states, _ = model.hidden(model.network, row, mask, place, media, cache)
    except Exception:  # whatever a model raises that takes no such mask
        return False
    got = model.logits(model.network, states[0, -answer.numel() :]).float().view(2, answer.shape[1], -1)
    gap = (got - wanted[:, 1:]).abs().max() / wanted.abs().max()
    return bool(gap <= TOLERANCE[model.dtype])


def token_types(
    types: Int[Tensor, "1 before"], ids: Int[Tensor, "length"], known: Mapping[int, int]
) -> Int[Tensor, "1 length"]:
    """Types of the tokens of a row, of which the first are given: of the others those that are known, else 0."""
    before = types.shape[1]
    row = nn.functional.pad(types, (0, len(ids) - before))
    for token, kind in known.items():
        row[:, before:].masked_fill_(ids[before:] == token, kind)
    return row


def _join_caches(caches: Sequence[Any], length: int) -> Any:
    """Keys and values of several rows in one cache, padded on the left to ``length`` tokens."""
    joined = caches[0]
    for place, layer in enumerate(joined.layers):
        for name in ("keys", "values"):
            parts = [getattr(cache.layers[place], name) for cache in caches]
            padded = [nn.functional.pad(part, (0, 0, length - part.shape[2], 0)) for part in parts]
            setattr(layer, name, torch.cat(padded))
    return joined


def _there(values: Int[Tensor, "*axes length"], real: Bool[Tensor, "length"]) -> Int[Tensor, "*axes _"]:
    """What a row has where ``real``, on the host, is true."""
    return values.index_select(-1, put(real.nonzero()[:, 0], values.device))


def _scatter_states(states: Sequence[Tensor], real: Tensor) -> Float[Tensor, "rows length width"]:
    """The states of rows without padding, at the places of their tokens; zeros on the padding."""
    empty = states[0].new_zeros(*real.shape, states[0].shape[-1])
    return empty.masked_scatter(put(real, empty.device)[..., None], torch.cat(list(states)))


def _places(positions: Int[Tensor, "rows axes length"]) -> Tensor:
    """Positions as transformers takes them: [rows, length] for one axis, [axes, rows, length] for several."""
    return positions[:, 0] if positions.shape[1] == 1 else positions.permute(1, 0, 2)
