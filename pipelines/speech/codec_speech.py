"""Text to speech by a causal language model whose vocabulary contains the tokens of a speech codec.

Llasa (arXiv:2502.04128) and the language model of CosyVoice 2 (arXiv:2412.10117) are of this kind: the prompt is the
text, the completion consists of speech tokens <|s_0|>, <|s_1|>, ..., and a vocoder turns these into a recording. Only
speech tokens and the end can be sampled, and never the end first: sampling and scoring have the same mask, so
log-probs are those of the sampled distribution.

    load(options)  an ordinary folder or hub id: HKUSTAudio/Llasa-1B, or CosyVoice 2's converted by its own script
                   (examples/grpo/cosyvoice2/pretrained_to_huggingface.py)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mmgrpo.config.plugins import load_instance
from mmgrpo.data.chat import chat_of, end_tokens, pad_left, positions_of, token_ids
from mmgrpo.policies.rendered import Reader, Reading
from mmgrpo.policies.token_model import Context, Features
from mmgrpo.types import Audio, Prompt, Reference, Text
from pipelines import require
from pipelines.decoder import Decoder
from pipelines.pretrained import locate, read_network
from pipelines.processors import load_tokenizer
from pipelines.speech import vocoders
from pipelines.speech.options import CodecOptions
from pipelines.training import PLAIN, Training, make_trainable

EXAMPLE = "HKUSTAudio/Llasa-1B"
"""A hub id, for errors."""

__all__ = ["LORA_TARGETS", "CodecSpeech", "load"]

LORA_TARGETS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
"""The attention of the model."""

NUMBER, TEXT = "{}", "{text}"
"""What a template holds in the place of a code, and of the text to be spoken."""


@dataclass
class CodecSpeech(Decoder):
    """A language model over speech tokens as the model of a token policy; ``load`` returns one."""

    network: nn.Module
    tokenizer: Any
    codes: dict[int, int]
    """Id of each speech token to its code."""
    end_ids: frozenset[int]
    instruction: str
    begin: str
    speech_token: str
    voice: vocoders.Vocoder
    reference: Reference
    dtype: torch.dtype = torch.float32
    checkpointing: bool = False
    reading: Reading | None = None
    media_tokens: frozenset[int] = frozenset()
    frozen_media: bool = True
    suppress_tokens: frozenset[int] = field(init=False)
    pad_id: int = field(init=False)

    def __post_init__(self) -> None:
        network: Any = self.network
        vocabulary = network.get_output_embeddings().weight.shape[0]
        self.suppress_tokens = frozenset(range(vocabulary)) - self.codes.keys() - self.end_ids
        self.begin_suppress_tokens = self.end_ids  # an utterance of no token has no recording
        self.chat = chat_of(self.tokenizer)
        self.pad_id = self.tokenizer.pad_token_id
        if self.pad_id is None:
            self.pad_id = min(self.end_ids)

    def encode(self, prompts: Sequence[Prompt]) -> Context:
        """Token ids of the texts, padded on the left; positions do not count padding. Media are not read: a recording
        in a prompt is the voice for vocoder and rewards."""
        ids, real = pad_left([self._ids(prompt) for prompt in prompts], self.pad_id)
        return Context(ids, real, positions_of(real), [None] * len(prompts))

    def features(self, network: Any, context: Context) -> Features:
        """Texts have no media."""
        return ()

    def body(self, network: Any) -> Any:
        """The network without its head."""
        return network.base_model

    def decode(self, ids: Sequence[int]) -> str:
        """The speech tokens as they are written, without the end."""
        return "".join(self.speech_token.replace(NUMBER, str(self.codes[i])) for i in ids if i in self.codes)

    def render(self, prompt: Prompt, text: Text) -> Audio:
        """The recording of a completion."""
        codes = re.findall(pattern(self.speech_token), text.text)
        return self.voice.render(prompt, torch.tensor([int(code) for code in codes]))

    def _ids(self, prompt: Prompt) -> list[int]:
        text = " ".join(prompt.text.split())
        # Others, like [laughter] and <|endofprompt|> of CosyVoice 2, may be in a text.
        ends = [self.tokenizer.convert_ids_to_tokens(end) for end in sorted(self.end_ids)]
        marks = [mark for mark in (*ends, self.begin) if mark and mark in text]
        marks += re.findall(pattern(self.speech_token), text) and [self.speech_token]
        if not text or marks:
            got = f"a text with {marks[0]}, a mark of the model" if marks else "no text"
            raise ValueError(f"prompt '{prompt.id}': got {got}, expected the words to be spoken; change the row")
        words = self.instruction.replace(TEXT, text)
        if self.chat is not None and self.tokenizer.chat_template is not None:
            words = self.chat.text([{"role": "user", "content": [{"type": "text", "text": words}]}])
        return token_ids(self.tokenizer, words + self.begin)


def pattern(speech_token: str) -> str:
    """The regular expression of a speech token, with its code as group."""
    before, after = speech_token.split(NUMBER)
    return f"{re.escape(before)}(\\d+){re.escape(after)}"


def code_table(tokenizer: Any, speech_token: str, path: str | Path) -> dict[int, int]:
    """Id to code of all speech tokens in a vocabulary, which must be 0, 1, ..., K."""
    form = re.compile(pattern(speech_token))
    table = {place: int(match[1]) for word, place in tokenizer.get_vocab().items() if (match := form.fullmatch(word))}
    if not table:
        raise ValueError(
            f"model.speech_token: the vocabulary of '{path}' has no {speech_token.replace(NUMBER, '0')}, expected a "
            "language model over speech tokens; set the form of its tokens, or model.family causal_lm for one of texts"
        )
    if sorted(table.values()) != list(range(len(table))):
        raise ValueError(
            f"model.speech_token: got {len(table)} tokens {speech_token} up to {max(table.values())} in the vocabulary "
            f"of '{path}', expected each of 0 to {len(table) - 1} once; choose another checkpoint"
        )
    return table


SPEECH_END, SPEECH_START = "<|SPEECH_GENERATION_END|>", "<|SPEECH_GENERATION_START|>"
"""Llasa's marks of speech, of which its generation config declares neither: it has the ends of Llama 3's texts."""


def end_ids(network: Any, tokenizer: Any, end: str, path: str | Path) -> frozenset[int]:
    """The tokens that end an utterance: ``end``, else ``SPEECH_END`` where the vocabulary has it, or those of the
    generation config and of the tokenizer."""
    vocabulary = tokenizer.get_vocab()
    if not end:
        return frozenset({vocabulary[SPEECH_END]}) if SPEECH_END in vocabulary else end_tokens(network, tokenizer)
    if end not in vocabulary:
        raise ValueError(f"model.end: the vocabulary of '{path}' has no token {end!r}; name the one that ends speech")
    return frozenset({vocabulary[end]})


def warn_of_begin(tokenizer: Any, begin: str, path: str | Path) -> None:
    """A warning where the answer is not begun as the vocabulary has it, behind which the model was not trained to
    speak."""
    if SPEECH_START in tokenizer.get_vocab() and SPEECH_START not in begin:
        print(
            f"{path}: warning: model.begin: got '{begin}', and its vocabulary has {SPEECH_START}, behind which it "
            "writes speech; set model.begin, and model.instruction to the words of its card (docs/speech.md)",
            flush=True,
        )


def load(options: CodecOptions, training: Training = PLAIN) -> CodecSpeech:
    """Load a speech language model for training.

    Raises FileNotFoundError for a folder that is no model, and ValueError for one without speech tokens or with more of
    them than the vocoder has.
    """
    require("speech", "transformers", "peft")
    from transformers import AutoModelForCausalLM

    path = options.path
    source = locate(path, EXAMPLE)
    tokenizer = load_tokenizer(source)
    codes = code_table(tokenizer, options.speech_token, path)
    warn_of_begin(tokenizer, options.begin, path)
    voice = vocoders.vocoder(options.vocoder, options.vocoder_path, training.device)
    if len(codes) > voice.size():
        raise ValueError(
            f"model.vocoder: got one of {voice.size()} tokens, expected the {len(codes)} of '{path}'; name the vocoder "
            "of the model's own codec"
        )
    network = read_network(AutoModelForCausalLM, source, training)
    reference = make_trainable(network, training, LORA_TARGETS)
    reading = None
    if options.reader:
        named = load_instance(options.reader, "model.reader", Reader)
        order = sorted(codes, key=lambda place: codes[place])
        reading = Reading(named, torch.tensor(order, device=training.device), options.reader_temperature)
    return CodecSpeech(
        network,
        tokenizer,
        codes,
        end_ids(network, tokenizer, options.end, path),
        options.instruction,
        options.begin,
        options.speech_token,
        voice,
        reference,
        training.compute_dtype,
        training.gradient_checkpointing,
        reading,
    )
