"""The score that a sequence classifier of transformers gives a text, and which tokens it looked at.

mmgrpo train ... --rewards "text_classifier(model='OpenAssistant/reward-model-deberta-v3-base', form='pair')"
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mmgrpo.config.extras import install
from mmgrpo.data.chat import ChatTemplate, special_tokens
from mmgrpo.runtime.weight_files import check_weight_files
from mmgrpo.scoring.manifest import reward
from mmgrpo.types import Output, Prompt, Text
from reward_models.checkpoints import read_whole
from reward_models.rules.parsing import texts

NAME = "text_classifier"
FORMS = ("chat", "pair", "joined")


@reward(
    "Text",
    range=(-inf, inf),
    scale="logit of the classifier",
    reads=("text",),
    packages=("transformers",),
    extra="vlm",
    source="transformers; shares of its attention as in ABC, arXiv:2402.00782",
    check="reward_models.text_classifier:check_form",
    remarks="reward_models.text_classifier:attention_remarks",
)
def text_classifier(
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    model: str,
    form: str = "chat",
    label: int = 0,
    device: str = "cpu",
) -> list[float]:
    """The logit ``label`` of a sequence classifier for a text after its prompt: a reward model, or one of sentiment.

    ``model`` is a folder or hub id of transformers, read from safetensors. ``form``: the turns of a ``chat`` template,
    a ``pair`` of texts, or both ``joined``. NaN for a text that is longer than the model reads. Its attention shares
    the reward among tokens for the credit ``share_gae``.
    """
    results = [_read(prompt, output, model, form, label, device) for prompt, output in _rows(prompts, outputs)]
    return [math.nan if result is None else result[0] for result in results]


def attention_remarks(
    model: str, form: str = "chat", label: int = 0, device: str = "cpu", **more: Any
) -> Callable[[Sequence[Prompt], Sequence[Output]], list[Mapping[str, Any]]]:
    """``shares``: the attention that the last token of a text pays to each of its tokens in the last layer, the mean
    over heads, divided by its sum (ABC, arXiv:2402.00782, as in its code)."""

    def remarks(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[Mapping[str, Any]]:
        results = [_read(prompt, output, model, form, label, device) for prompt, output in _rows(prompts, outputs)]
        return [{} if result is None else {"shares": result[1]} for result in results]

    return remarks


def check_form(model: str, form: str = "chat", label: int = 0, **more: str) -> None:
    """Before a run starts: the form is known."""
    if form not in FORMS or label < 0:
        raise ValueError(
            f"rewards: {NAME}: got form={form!r}, label={label}, expected one of {', '.join(FORMS)}, and at least 0"
        )


def _rows(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[tuple[Prompt, Text]]:
    return list(zip(prompts, texts(outputs, NAME), strict=True))


@dataclass(frozen=True)
class Classifier:
    """A frozen classifier with its tokenizer."""

    tokenizer: Any
    network: Any

    def encode(self, prompt: str, answer: str, form: str) -> tuple[dict[str, Tensor], list[tuple[int, int]]]:
        """What the network reads of a prompt and its answer, and where each token stands in the answer; (0, 0) for
        those that are none of it, and for all where the chat template leaves it out."""
        options: dict[str, Any] = {"return_tensors": "pt", "return_offsets_mapping": True}
        if form == "pair":
            side, start, read = 1, 0, self.tokenizer(prompt, answer, **options)
        else:
            whole = prompt + answer if form == "joined" else self._conversation(prompt, answer)
            added = special_tokens(self.tokenizer, whole) if form == "chat" else {}
            side, start, read = 0, whole.rfind(answer.strip()), self.tokenizer(whole, **options, **added)
            if start < 0:
                side = -1
            start -= len(answer) - len(answer.lstrip())
        places = []
        for (first, behind), of in zip(read["offset_mapping"][0].tolist(), read.sequence_ids(0), strict=True):
            first, behind = max(0, first - start), min(len(answer), behind - start)
            while first < behind and answer[first].isspace():
                first += 1
            places.append((first, behind) if of == side and first < behind else (0, 0))
        known = inspect.signature(self.network.forward).parameters
        return {name: tensor for name, tensor in read.items() if name in known}, places

    def _conversation(self, prompt: str, answer: str) -> str:
        turns = [("user", prompt), ("assistant", answer)]
        messages = [{"role": role, "content": [{"type": "text", "text": text}]} for role, text in turns]
        return ChatTemplate(self.tokenizer).text(messages, generate=False)


def _read(
    prompt: Prompt, output: Text, model: str, form: str, label: int, device: str
) -> tuple[float, list[tuple[int, int, float]]] | None:
    """The logit of a text and the shares of its parts; None for one that is too long for the model."""
    classifier = load(model, device)
    read, places = classifier.encode(prompt.text, output.whole, form)
    limit = getattr(classifier.network.config, "max_position_embeddings", None)
    if limit and read["input_ids"].shape[1] > limit:
        return None
    with torch.no_grad():
        out = classifier.network(**{name: tensor.to(device) for name, tensor in read.items()}, output_attentions=True)
    if label >= out.logits.shape[1]:
        raise ValueError(f"rewards: {NAME}: label: got {label}, expected less than {out.logits.shape[1]}, of {model}")
    return float(out.logits[0, label]), shares_of(out.attentions, places, len(output.whole) - len(output.text))


def shares_of(
    attentions: Sequence[Float[Tensor, "1 heads L L"]], places: Sequence[tuple[int, int]], ahead: int
) -> list[tuple[int, int, float]]:
    """The attention of the last token of a text to its tokens, whose ``places`` in it are known, in the last layer:
    the mean over heads, divided by its sum. ``ahead``: characters before the text's own that are given."""
    inside = [number for number, (first, behind) in enumerate(places) if first < behind and behind > ahead]
    if not inside:
        return []
    paid = attentions[-1][0].float().mean(0)[inside[-1], inside]
    shares = (paid / paid.sum()).tolist()
    return [
        (max(0, places[number][0] - ahead), places[number][1] - ahead, share)
        for number, share in zip(inside, shares, strict=True)
    ]


@functools.lru_cache(maxsize=2)
def load(name: str, device: str) -> Classifier:
    """The classifier of a folder or hub id, with attention whose weights can be read; ValueError for a tokenizer that
    does not say where its tokens stand."""
    try:
        from transformers import AutoModelForSequenceClassification, AutoTokenizer
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"{NAME}: needs transformers: {install('vlm')}") from error
    check_weight_files(Path(name), False, "")
    tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    if not tokenizer.is_fast:
        raise ValueError(f"{NAME}: model: {name} has a tokenizer without offsets; save it with a tokenizer.json")
    options = {"trust_remote_code": False, "attn_implementation": "eager"}  # the others keep no weights
    network = read_whole(AutoModelForSequenceClassification, name, options, NAME)
    return Classifier(tokenizer, network.to(device).eval().requires_grad_(False))
