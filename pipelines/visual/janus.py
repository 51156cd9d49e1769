"""Janus and Janus-Pro (arXiv:2410.13848, 2501.17811) as generators of images: a language model that draws code by code.

The prompt is a turn of the chat template (or the bare text where there is none) and the begin-of-image token. Behind it
the language model reads the embeddings of codes, and ``generation_head`` predicts the next one; the frozen VQ model
makes an image of all of them. With classifier-free guidance every row is read twice, the second time with padding in
the place of its words, of which only the beginning of the sequence and the begin-of-image token stay, as in
``generate(generation_mode="image")`` of transformers. Prompts are padded on the left, masked in both rows.

The same network also writes words (``Writer``): a plan, by which it then draws (T2I-R1, arXiv:2505.00703).

Ids number the codes from 0, and the words of the text vocabulary behind them: word i is ``codebook + i``.

    load(options)  an ordinary folder or hub id, deepseek-community/Janus-Pro-1B; or a small one, whose images
                   ``patches/`` makes (``pipelines.visual.patches``)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from safetensors import safe_open
from torch import Tensor, nn

from mmgrpo.config.names import nearest
from mmgrpo.data.chat import ChatTemplate, chat_of, conversation_text, pad_left, positions_of, special_ids, token_ids
from mmgrpo.policies.image_tokens import classifier_free_guidance
from mmgrpo.policies.token_model import Context, Features
from mmgrpo.runtime.devices import autocast
from mmgrpo.types import Prompt, Reference
from pipelines import require
from pipelines.conditions import refuse_media
from pipelines.kv import Room, attention_mask, spread_cache
from pipelines.lora import has_adapters
from pipelines.pretrained import locate, read_json, read_network, reading, save_network
from pipelines.processors import load_tokenizer
from pipelines.text.causal_lm import CausalLm
from pipelines.training import PLAIN, Training, checkpoint_layers, freeze, make_trainable
from pipelines.visual.options import JanusOptions
from pipelines.visual.patches import PATCHES, PatchTokenizer

EXAMPLE = "deepseek-community/Janus-Pro-1B"
"""A hub id, for errors."""

__all__ = ["LORA_TARGETS", "Janus", "Words", "Writer", "load", "refuse_checkpoint", "words_of"]

LORA_TARGETS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
"""The attention of the language model."""
VQ = "model.vqmodel."
"""The beginning of the names of the VQ model's weights."""


@dataclass(frozen=True)
class Sizes:
    """What the configuration of a checkpoint says of its images."""

    codes: int
    """Codes of an image."""
    side: int
    """Codes of a row of an image, and of a column."""
    codebook: int
    """Different codes."""
    pixels: int
    """Width and height of an image."""
    places: int
    """Tokens that the language model reads, prompt and codes together."""

    @staticmethod
    def of(source: str) -> Sizes:
        """The sizes of a folder or hub id; ValueError for codes that are no square."""
        from transformers import JanusConfig

        with reading(source):
            config: Any = JanusConfig.from_dict(read_json(source, "config.json") or {})
        vision, vq, codes = config.vision_config, config.vq_config, config.vision_config.num_image_tokens
        pixels = vq.num_patches * 2 ** (len(vq.channel_multiplier) - 1)
        if (Path(source) / PATCHES).is_dir():
            with reading(source, PATCHES):
                pixels = PatchTokenizer.load(Path(source) / PATCHES).size
        if codes != vq.num_patches**2:
            raise ValueError(
                f"model.path: '{source}': config.json: vision_config.num_image_tokens: got {codes}, expected "
                f"{vq.num_patches**2}, the square of image_size {vision.image_size} // patch_size {vision.patch_size}; "
                "correct the file"
            )
        return Sizes(codes, vq.num_patches, vq.num_embeddings, pixels, config.text_config.max_position_embeddings)


def refuse_checkpoint(source: str, size: int, plan: int = 0) -> None:
    """ValueError, before weights are read, for images of another ``size`` than the tokenizer's (0: its own), for more
    codes and tokens of a ``plan`` than the language model reads, and for a checkpoint without a tokenizer of images."""
    sizes = Sizes.of(source)
    if size not in (0, sizes.pixels):
        raise ValueError(
            f"model.size: got {size}, expected 0 or {sizes.pixels}, the size of the images of '{source}'; leave it out"
        )
    if sizes.codes >= sizes.places:
        raise ValueError(
            f"model.path: '{source}': config.json: vision_config.num_image_tokens: got {sizes.codes} codes of an "
            f"image, expected fewer than text_config.max_position_embeddings={sizes.places}, which a prompt and its "
            "codes share; choose another checkpoint"
        )
    if plan and sizes.codes + plan >= sizes.places:
        raise ValueError(
            f"sampling.plan_tokens: got {plan}, expected fewer than {sizes.places - sizes.codes}, since the model has "
            f"{sizes.places} places for a prompt, its plan and {sizes.codes} codes; lower it"
        )
    names = weight_names(source)
    if names is not None and not (Path(source) / PATCHES).is_dir() and not any(VQ in name for name in names):
        raise ValueError(
            f"model.path: '{source}': got a checkpoint without its VQ model (no weight {VQ}*), which makes images of "
            "codes; download it whole, or add the weights of the published model"
        )


def weight_names(source: str) -> set[str] | None:
    """The names of the weights of a folder, or of the index of a repository; None where they are not known before they
    are read."""
    if Path(source).is_dir():
        names: set[str] = set()
        for file in sorted(Path(source).glob("*.safetensors")):
            with reading(source), safe_open(file, framework="pt") as opened:
                names |= set(opened.keys())
        return names or None
    index = read_json(source, "model.safetensors.index.json")
    return {*index["weight_map"]} if index else None


@dataclass(frozen=True)
class Words:
    """Prompts as ids of the text vocabulary."""

    tokenizer: Any
    begin: int
    """The begin-of-image token."""
    pad: int
    most: int
    """The most tokens of a prompt behind which all codes of an image can be read."""

    @cached_property
    def chat(self) -> ChatTemplate | None:
        """None for a tokenizer without a template."""
        return chat_of(self.tokenizer)

    @property
    def bos(self) -> int | None:
        """The beginning of a sequence."""
        return self.tokenizer.bos_token_id

    def ids(self, prompt: Prompt) -> list[int]:
        """The ids of a prompt and the begin-of-image token; ValueError for one with media, without words, with words
        that the vocabulary lacks, and for one that is too long."""
        refuse_media(prompt)
        if not prompt.text.strip():
            raise ValueError(f"prompt '{prompt.id}': got no text, expected the words of an image; change the row")
        text = prompt.text if self.chat is None else conversation_text(self.chat, prompt, (), lambda medium: [])
        ids, unknown = token_ids(self.tokenizer, text), self.tokenizer.unk_token_id
        if self.begin in ids:
            mark = self.tokenizer.convert_ids_to_tokens(self.begin)
            raise ValueError(f"prompt '{prompt.id}': its text contains {mark}, with which an image begins; remove it")
        if unknown is not None and unknown in ids:
            words = re.findall(r"\w+|[^\w\s]", prompt.text)
            read = [self.tokenizer(word, add_special_tokens=False)["input_ids"] for word in words]
            missing = next((word for word, some in zip(words, read, strict=True) if unknown in some), prompt.text)
            raise ValueError(
                f"prompt '{prompt.id}': the vocabulary lacks '{missing}'.{nearest(missing, self.tokenizer.get_vocab())}"
            )
        if len(ids) + 1 > self.most:
            raise ValueError(
                f"prompt '{prompt.id}': got {len(ids) + 1} tokens, expected at most {self.most}, since the model reads "
                "them and the codes of an image; shorten it"
            )
        return [*ids, self.begin]


def words_of(source: str) -> Words:
    """How a checkpoint reads prompts; ValueError for one that names no begin-of-image token."""
    sizes, tokenizer = Sizes.of(source), load_tokenizer(source)
    stated = read_json(source, "generation_config.json") or {}
    begin = (stated.get("generation_kwargs") or {}).get("boi_token_id")
    if begin is None:
        begin = tokenizer.get_vocab().get(getattr(tokenizer, "boi_token", None) or "<begin_of_image>")
    if begin is None:
        raise ValueError(
            f"model.path: '{source}': generation_config.json: generation_kwargs: got no boi_token_id, expected the "
            "token with which an image begins; add it"
        )
    pad = stated.get("pad_token_id", tokenizer.pad_token_id)
    return Words(tokenizer, int(begin), int(begin if pad is None else pad), sizes.places - sizes.codes + 1)


@dataclass
class Janus:
    """A Janus model as the model of an image token policy; ``load`` returns one."""

    network: nn.Module
    """Without its VQ model, which is frozen: no decay of weights moves it, and no checkpoint of a run holds it."""
    words: Words
    codes: int
    codebook: int
    images: Any
    """The VQ model, or a ``PatchTokenizer``."""
    reference: Reference
    guidance: float = 1.0
    dtype: torch.dtype = torch.float32
    checkpointing: bool = False
    end_ids: frozenset[int] = frozenset()
    pad_id: int = 0
    suppress_tokens: frozenset[int] = frozenset()
    begin_suppress_tokens: frozenset[int] = frozenset()
    media_tokens: frozenset[int] = frozenset()
    frozen_media: bool = True
    masks: bool = field(default=False, init=False)
    """Rows are not packed: a row of the policy is two of the network with guidance."""

    @property
    def passes(self) -> int:
        """Rows of the network for each row."""
        return 1 if self.guidance == 1 else 2

    @property
    def tokenizer(self) -> Any:
        """That of words."""
        return self.words.tokenizer

    def check(self, prompt: Prompt) -> None:
        """ValueError for a prompt that cannot be read."""
        self.words.ids(prompt)

    def encode(self, prompts: Sequence[Prompt]) -> Context:
        """Ids of the prompts, padded on the left; positions do not count padding."""
        ids, real = pad_left([self.words.ids(prompt) for prompt in prompts], self.words.pad)
        return Context(ids + self.codebook, real, positions_of(real), [None] * len(prompts))

    def features(self, network: Any, context: Context) -> Features:
        """Texts have no media."""
        return ()

    def embed(self, network: Any, ids: Int[Tensor, "rows length"]) -> Float[Tensor, "rows length width"]:
        """The embeddings of words and codes."""
        words = ids >= self.codebook
        written = network.get_input_embeddings()(torch.where(words, ids - self.codebook, 0))
        drawn = network.prepare_embeddings_for_image_generation(torch.where(words, 0, ids))
        return torch.where(words[..., None], written, drawn.to(written.dtype))

    def without_words(self, ids: Int[Tensor, "rows length"]) -> Int[Tensor, "rows length"]:
        """The ids with padding in the place of words."""
        words = ids >= self.codebook
        for kept in (self.words.bos, self.words.begin):
            words = words & (ids != (-1 if kept is None else self.codebook + kept))
        return torch.where(words, self.codebook + self.words.pad, ids)

    def hidden(
        self,
        network: Any,
        ids: Int[Tensor, "rows length"],
        real: Bool[Tensor, "rows total"],
        positions: Int[Tensor, "rows 1 length"],
        features: Features,
        cache: Any,
    ) -> tuple[Float[Tensor, "rows length width"], Any]:
        """The last hidden states; with guidance those with and without the words side by side, and a cache of two rows
        for each row."""
        body = network.model.language_model
        checkpointed = checkpoint_layers(body, self.checkpointing and torch.is_grad_enabled())
        if self.passes == 2:
            ids = torch.cat([ids, self.without_words(ids)])
            real, positions = real.repeat(2, 1), positions.repeat(2, 1, 1)
        with autocast(self.dtype, ids.device):
            embeddings = self.embed(network, ids)
            out = body(
                inputs_embeds=embeddings,
                attention_mask=attention_mask(body.config, real, embeddings.dtype, ids, cached=not checkpointed),
                position_ids=positions[:, 0],
                past_key_values=cache,
                use_cache=not checkpointed,  # a recomputed layer would append its keys a second time
            )
        states = out.last_hidden_state
        return torch.cat(states.chunk(self.passes), -1), out.past_key_values

    def spread(self, cache: Any, rows: Int[Tensor, "rows"]) -> Any:
        """The cache of rows of prompts; the second half of its rows are those without words."""
        if self.passes == 2:
            rows = torch.cat([rows, rows + len(cache.layers[0].keys) // 2])
        return spread_cache(cache, rows)

    def reserve(self, cache: Any, rows: Sequence[int], room: int) -> Room:
        """Never called, since rows are not packed."""
        raise NotImplementedError("rows of two passes have no slots")

    def logits(self, network: Any, hidden: Float[Tensor, "N width"]) -> Float[Tensor, "N codebook"]:
        """The logits of the next code, guided in fp32."""
        with autocast(self.dtype, hidden.device):
            several = [network.model.generation_head(state) for state in hidden.chunk(self.passes, -1)]
        return (
            several[0]
            if self.passes == 1
            else classifier_free_guidance(several[0].float(), several[1].float(), self.guidance)
        )

    @torch.no_grad()
    def pixels(self, codes: Int[Tensor, "N T"]) -> Float[Tensor, "N 3 height width"]:
        """The images of codes."""
        with torch.autocast(codes.device.type, enabled=False):
            return (self.images.decode(codes).float() + 1) / 2

    def decode(self, ids: Sequence[int]) -> str:
        """Nothing: it writes no text."""
        return ""

    def spell(self, text: str) -> list[int]:
        """ValueError: no codes are those of a text."""
        raise ValueError(f"got the text {text[:80]!r} as a completion, expected none, since this model draws images")

    def save(self, folder: Path, network: nn.Module) -> None:
        """Adapters in peft's format, or a whole model folder, the tokenizer of images included."""
        with self._whole(network) as whole:
            save_network(folder, whole, (self.words.tokenizer,))
        if isinstance(self.images, PatchTokenizer) and not has_adapters(folder):
            self.images.save(Path(folder) / PATCHES)

    @contextmanager
    def _whole(self, network: Any) -> Any:
        """The network with its VQ model, where that is its own."""
        from accelerate.utils import extract_model_from_parallel

        inner: Any = extract_model_from_parallel(network)
        inner.model.vqmodel = None if isinstance(self.images, PatchTokenizer) else self.images
        try:
            yield network
        finally:
            inner.model.vqmodel = None


class Writer(CausalLm):
    """The same network as a language model, which writes words without guidance."""

    def __init__(self, model: Janus, most: int) -> None:
        """``most``: the longest text, which is read behind its prompt."""
        network: Any = model.network
        room = network.config.get_text_config().max_position_embeddings - most
        super().__init__(
            network, model.tokenizer, model.reference, model.dtype, room, checkpointing=model.checkpointing
        )
        self.suppress_tokens |= special_ids(self.tokenizer) - self.end_ids
        network.get_input_embeddings().sparse = False  # a tied table that only codes' rows read has no whole gradient

    def body(self, network: Any) -> Any:
        """The language model."""
        return network.model.language_model


def without_vq() -> Any:
    """The class of transformers, of a checkpoint whose images something else makes."""
    from transformers import JanusForConditionalGeneration as Whole

    place = {"__module__": Whole.__module__, "_keys_to_ignore_on_load_missing": [re.escape(VQ)]}
    return type(Whole.__name__, (Whole,), place)


def load(options: JanusOptions, training: Training = PLAIN, *, writes: bool = False) -> Janus:
    """Load a Janus model for training; the tokenizer of images is frozen, and so are the parts that only read images
    or, unless it ``writes`` plans, words.

    Raises FileNotFoundError for a folder that is no model, ValueError for what ``refuse_checkpoint`` names.
    """
    require("visual", "transformers", "peft")
    from transformers import JanusForConditionalGeneration

    source = locate(options.path, EXAMPLE)
    refuse_checkpoint(source, options.size)
    sizes, words, device = Sizes.of(source), words_of(source), torch.device(training.device)
    small = (Path(source) / PATCHES).is_dir()
    network = read_network(without_vq() if small else JanusForConditionalGeneration, source, training)
    images: Any = network.model.vqmodel.float()
    if small:
        with reading(source, PATCHES):
            images = PatchTokenizer.load(Path(source) / PATCHES)
    network.model.vqmodel = None
    # transformers drops it from the file, and ``generate`` and the next reader need it.
    network.generation_config.generation_kwargs = {"boi_token_id": words.begin}
    freeze([images], device)
    table = network.get_input_embeddings().weight
    frozen = [network.model.vision_model, network.model.aligner]
    frozen += [network.lm_head] if network.lm_head.weight is not table and not writes else []
    reference = make_trainable(network, training, LORA_TARGETS, frozen)
    return Janus(
        network,
        words,
        sizes.codes,
        sizes.codebook,
        images,
        reference,
        float(options.guidance),
        training.compute_dtype,
        training.gradient_checkpointing,
    )
