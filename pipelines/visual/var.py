"""Next-scale models (VAR, Tian et al. 2024, arXiv:2404.02905): images drawn scale by scale, of a class.

A pass draws all codes of a scale, given those of coarser ones (``pipelines.visual.scales``), so each is a decision
with a likelihood. With guidance g, as in the published sampler it grows with the scale, from none at the first:

    logits_k = none_k + w_k (class_k - none_k),        w_k = 1 + (g - 1) k / (S - 1),        k = 0 .. S - 1

are the policy's, drawn and scored alike; the published ``cfg`` is g - 1. Top-k and top-p are off.

A prompt is a class: the row's ``class`` (a number from 0) where it has one, else its text, which is a name of the
checkpoint's ``classes.json`` or a number.

    load(options)  a folder of transformer/, images/ (its tokenizer) and classes.json, as
                   ``scripts/convert_var.py`` writes it of the published files
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mmgrpo.config.names import nearest
from mmgrpo.policies.parallel_tokens import Conditions
from mmgrpo.runtime.devices import autocast, put
from mmgrpo.types import Image, Output, Prompt, Reference
from pipelines import require
from pipelines.conditions import refuse_media
from pipelines.lora import lora_weights
from pipelines.pretrained import locate, read_json, read_network
from pipelines.training import PLAIN, Training, freeze, make_trainable
from pipelines.visual.flow import TRANSFORMER
from pipelines.visual.options import VarOptions

__all__ = ["LORA_TARGETS", "Classes", "Var", "load", "refuse_checkpoint", "words_of"]

LORA_TARGETS = ("attention.to_q", "attention.to_k", "attention.to_v", "attention.to_out")
EXAMPLE = "a folder that 'python -m scripts.convert_var' writes"
"""For errors."""
IMAGES, CLASSES = "images", "classes.json"
CONFIG = f"{TRANSFORMER}/config.json"


@dataclass(frozen=True)
class Classes:
    """What prompts name."""

    count: int
    names: Mapping[str, tuple[int, ...]]
    """The classes of each name, in lower case."""
    listed: Sequence[str] = ()
    """As in the file."""

    @staticmethod
    def of(source: str) -> Classes:
        """The classes of a folder; a name is one of several, divided by commas, of its class."""
        count = int((read_json(source, CONFIG) or {})["classes"])
        listed = (read_json(source, CLASSES) or {}).get("names", [])
        if len(listed) not in (0, count):
            raise ValueError(
                f"model.path: '{source}': {CLASSES}: got {len(listed)} names, expected {count}, the classes of "
                f"{CONFIG}; correct the file"
            )
        names: defaultdict[str, tuple[int, ...]] = defaultdict(tuple)
        for number, row in enumerate(listed):
            for name in {row, *row.split(",")}:
                names[" ".join(name.lower().split())] += (number,)
        return Classes(count, dict(names), listed)

    def ids(self, prompt: Prompt) -> int:
        """The class of a prompt; ValueError for none, for one of several classes, and for media."""
        refuse_media(prompt)
        given = prompt.meta.get("class")
        text = " ".join(prompt.text.lower().split())
        if given is None and text in self.names:
            if len(self.names[text]) > 1:
                raise ValueError(
                    f"prompt '{prompt.id}': '{prompt.text}' names several classes ({self.names[text]}); give the row "
                    "its number as class"
                )
            return self.names[text][0]
        number = text if given is None else given
        if isinstance(number, bool) or not str(number).isdecimal() or not int(number) < self.count:
            place = "its text is" if given is None else "class: got"
            what = "a name or a number" if self.names else "a number, since the checkpoint names no classes,"
            raise ValueError(
                f"prompt '{prompt.id}': {place} {str(number)[:80]!r}, expected a class: {what} from 0 to "
                f"{self.count - 1}.{nearest(str(number), self.names)}"
            )
        return int(number)


def write_names(folder: Path, names: Sequence[str]) -> None:
    """Write the names of classes, in the order of their numbers."""
    (folder / CLASSES).write_text(json.dumps({"names": list(names)}, indent=0) + "\n")


def words_of(source: str) -> Classes:
    """How a checkpoint reads prompts."""
    return Classes.of(source)


def refuse_checkpoint(source: str, size: int) -> None:
    """ValueError, before weights are read, for a folder without its tokenizer of images, for one of other scales, codes
    or channels than the transformer's, for names of other classes, and for images of another ``size`` (0: its own)."""
    network, images = read_json(source, CONFIG) or {}, read_json(source, f"{IMAGES}/config.json")
    if images is None:
        raise ValueError(
            f"model.path: '{source}': got a checkpoint without its tokenizer of images ({IMAGES}/config.json), "
            "which makes images of codes; add that of the published model (scripts/convert_var.py)"
        )
    for name in ("scales", "codes", "channels"):
        if network.get(name) != images.get(name):
            raise ValueError(
                f"model.path: '{source}': {CONFIG}: {name}: got {network.get(name)}, expected "
                f"{images.get(name)}, that of {IMAGES}/config.json; take the tokenizer that it was trained with"
            )
    scales = network["scales"]
    if not all(0 < small < large for small, large in pairwise(scales)):
        raise ValueError(
            f"model.path: '{source}': {CONFIG}: scales: got {scales}, expected growing sides of maps of codes; "
            "correct the file"
        )
    pixels = pixels_of(images)
    if size not in (0, pixels):
        raise ValueError(
            f"model.size: got {size}, expected 0 or {pixels}, the size of the images of '{source}'; leave it out"
        )
    Classes.of(source)


def pixels_of(images: Mapping[str, Any]) -> int:
    """Width and height of the images of a tokenizer's configuration."""
    factor = images["patch"] * images["enlarging"][0] if images["patch"] else 2 ** (len(images["widths"]) - 1)
    return images["scales"][-1] * factor


@dataclass
class Var:
    """A next-scale transformer as the model of a policy that draws tokens several at a time; ``load`` returns one."""

    network: nn.Module
    images: Any
    classes: Classes
    training: Training
    reference: Reference
    guidance: float = 1.0
    decode_batch_size: int = 8
    causal: bool = True

    def __post_init__(self) -> None:
        self.device = torch.device(self.training.device)
        sides = torch.tensor(self.images.scales)
        self.level = torch.arange(len(sides)).repeat_interleave(sides * sides)
        self.scales = 1 + (self.guidance - 1) * self.level / max(1, len(sides) - 1)
        """The guidance of each place."""

    @property
    def passes(self) -> int:
        """One for each scale."""
        return len(self.images.scales)

    @property
    def evaluations_per_row(self) -> int:
        """Two with guidance."""
        return 1 if self.guidance == 1 else 2

    def variant(self, passes: int) -> Var:
        """Itself: the passes are the scales."""
        return self

    def order(self, generator: torch.Generator) -> Int[Tensor, "T"]:
        """The scale of each place, whatever is drawn."""
        return self.level

    def encode(self, prompts: Sequence[Prompt]) -> Conditions:
        """The classes of prompts."""
        return {"class": put(torch.tensor([self.classes.ids(prompt) for prompt in prompts]), self.device)}

    def logits(
        self,
        network: nn.Module,
        conditions: Conditions,
        tokens: Int[Tensor, "N T"],
        order: Int[Tensor, "N T"],
        number: Int[Tensor, "N"],
    ) -> Float[Tensor, "N T codes"]:
        """Guided logits of all places."""
        return self._guided_logits(network, conditions["class"], self.images.all_inputs(tokens), self.scales)

    def next_logits(
        self, network: nn.Module, conditions: Conditions, tokens: Int[Tensor, "N T"], cache: dict[str, Any]
    ) -> Float[Tensor, "N L codes"]:
        """Guided logits of the next scale's places, with the keys, values and features of coarser ones in the cache."""
        scale, known = cache.get("scale", 0), cache.setdefault("known", {})
        if scale == 0:
            inputs = self.images.codebook.weight[None, :0].expand(len(tokens), -1, -1)
        else:
            drawn = self.images.contribution(scale - 1, self.images.split(tokens)[scale - 1])
            cache["features"] = cache.get("features", 0.0) + drawn
            inputs = self.images.inputs(cache["features"], scale)
        cache["scale"] = scale + 1
        places, begin = self.level == scale, int((self.level < scale).sum())
        return self._guided_logits(network, conditions["class"], inputs, self.scales[places], begin, known)

    def _guided_logits(
        self,
        network: nn.Module,
        classes: Int[Tensor, "N"],
        inputs: Float[Tensor, "N inputs channels"],
        guidance: Float[Tensor, "L"],
        begin: int = 0,
        known: dict[int, Any] | None = None,
    ) -> Float[Tensor, "N L codes"]:
        if self.guidance != 1:
            classes = torch.cat([classes, torch.full_like(classes, self.classes.count)])
            inputs = torch.cat([inputs, inputs])
        with autocast(self.training.compute_dtype, inputs.device):
            logits = network(classes, inputs, begin, known).float()
        if self.guidance == 1:
            return logits
        given, none = logits.chunk(2)
        return none + put(guidance, inputs.device)[:, None] * (given - none)

    @torch.no_grad()
    def render(self, prompts: Sequence[Prompt], tokens: Int[Tensor, "N T"]) -> list[Output]:
        """Images of codes, ``decode_batch_size`` at a time, in fp32."""
        pixels = []
        for codes in tokens.split(self.decode_batch_size):
            with torch.autocast(codes.device.type, enabled=False):
                pixels += list(((self.images.decode(codes).float() + 1) / 2).clamp(0, 1).cpu())
        return [Image(image) for image in pixels]

    def check(self, prompt: Prompt) -> None:
        """ValueError for a prompt that is no class."""
        self.classes.ids(prompt)

    def frozen_parts(self) -> dict[str, nn.Module]:
        """The tokenizer of images."""
        return {IMAGES: self.images}

    def save(self, folder: Path, network: nn.Module) -> None:
        """Write adapters as peft names them, or a whole folder, with its tokenizer and classes."""
        from accelerate.utils import extract_model_from_parallel

        whole: Any = extract_model_from_parallel(network)
        if self.training.adapters:
            from diffusers import StableDiffusion3Pipeline as Writer

            weights, config = lora_weights(whole)
            Writer.save_lora_weights(folder, transformer_lora_layers=weights, transformer_lora_adapter_metadata=config)
            return
        whole.save_pretrained(Path(folder) / TRANSFORMER)
        self.images.save_pretrained(Path(folder) / IMAGES)
        if self.classes.listed:
            write_names(Path(folder), self.classes.listed)


def load(options: VarOptions, training: Training = PLAIN) -> Var:
    """Load a next-scale model for training; the tokenizer of images is frozen, in fp32.

    Raises FileNotFoundError for a folder that is no model, ValueError for what ``refuse_checkpoint`` names.
    """
    require("visual", "diffusers", "transformers", "peft")
    from pipelines.visual.scales import NextScaleTransformer, ScaleTokenizer, of_diffusers

    source = locate(options.path, EXAMPLE, CONFIG)
    refuse_checkpoint(source, options.size)
    network = read_network(of_diffusers(NextScaleTransformer), source, training, TRANSFORMER)
    images = read_network(of_diffusers(ScaleTokenizer), source, Training(device=training.device), IMAGES)
    freeze([images], training.device)
    return Var(
        network,
        images,
        words_of(source),
        training,
        make_trainable(network, training, LORA_TARGETS),
        guidance=float(options.guidance),
        decode_batch_size=options.decode_batch_size,
    )
