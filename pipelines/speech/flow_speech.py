"""Text-to-speech by flow matching (F5-TTS, arXiv:2410.06885) as the model of a denoising policy.

A latent is the log-mel spectrogram [mels, frames] of a reference voice followed by the speech to be made, which the
network infills given the characters of both. F5-TTS runs from t = 0 (noise) to t = 1 (data) and predicts data - noise;
here sigma = 1 - t and v = noise - data, so all kernels, plans and solvers apply as they are:

    v(x, sigma) = -network(x, t = 1 - sigma)

Utterances differ in length, latents of a batch do not: behind the last frame of a row the velocity is zero whatever
the weights are. What is there has no gradient and adds the same constant to old and new log-probabilities; as these are
means over the whole latent, a frame counts as much in a short utterance as in a long one.

    load(options)                   a folder or hub id in the layout of ``SWivid/F5-TTS``
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mmgrpo.config.registry import bind
from mmgrpo.diffusion.schedules import GRIDS, Grid, pruned_sway_grid
from mmgrpo.runtime.devices import autocast, put
from mmgrpo.types import Audio, Prompt, Reference
from pipelines.conditions import take_rows
from pipelines.denoising import CHECKPOINT
from pipelines.pretrained import reading
from pipelines.speech.audio import read_audio, resample
from pipelines.speech.f5_checkpoint import (
    HEAD,
    find_folder,
    read_tensors,
    read_vocabulary,
    save_adapters,
    shape_of,
    with_head,
    write,
)
from pipelines.speech.f5_network import F5Network, F5Shape
from pipelines.speech.mel import MelFormat, Vocoder, vocoder
from pipelines.speech.options import FlowSpeechOptions
from pipelines.training import PLAIN, Training, make_trainable

__all__ = ["FlowSpeech", "Utterances", "load"]

TARGETS = ("attn.to_q", "attn.to_k", "attn.to_v", "attn.to_out.0")
"""Modules that adapters adapt unless a run names others."""

QUIET = 0.1
"""Root mean square to which a quieter reference is amplified; the speech is made quieter by as much."""

SPELLING = str.maketrans({";": ",", "“": '"', "”": '"', "‘": "'", "’": "'"})
"""Characters that the published vocabulary spells otherwise."""

KEPT = 1024
"""References whose spectrograms are kept in memory."""


@dataclass(frozen=True)
class Utterances:
    """What the network is given, one row per prompt."""

    text: Int[Tensor, "N characters"]
    """Characters of the reference and of the speech, padded by -1."""
    reference: Float[Tensor, "N mels frames"]
    """The reference's spectrogram, then zeros."""
    given: Int[Tensor, " N"]
    """Frames of the reference; on the host, as are those of both and the gain."""
    frames: Int[Tensor, " N"]
    """Frames of both."""
    gain: Float[Tensor, " N"]
    """By which the reference was amplified."""

    def take(self, index: Int[Tensor, "M"]) -> Utterances:
        """Rows by number, possibly repeated."""
        return Utterances(*take_rows((self.text, self.reference, self.given, self.frames, self.gain), index))


@dataclass
class FlowSpeech:
    """A network, its vocabulary and a vocoder; ``load`` returns one."""

    network: nn.Module
    shape: F5Shape
    characters: Mapping[str, int]
    """Character to id."""
    voice: Vocoder
    training: Training
    reference: Reference
    form: MelFormat
    seconds: float
    """Of reference and speech together, at most."""
    guidance: float
    pace: float
    """Characters per second of a row without a reference."""
    levels: str = CHECKPOINT
    """Noise levels: ``checkpoint``, F5-TTS's own, or another grid by name (``mmgrpo.diffusion.schedules.GRIDS``)."""
    spectrograms: dict[str, tuple[Tensor, float]] = field(default_factory=dict)
    """Cache of references by file: spectrogram and gain."""

    @property
    def device(self) -> torch.device:
        return torch.device(self.training.device)

    @property
    def evaluations_per_row(self) -> int:
        return 1 if self.guidance == 1 else 2

    @property
    def prediction(self) -> str:
        """A velocity, or one that is drawn with a std that the network predicts too."""
        return "drawn" if self.shape.spread else "flow"

    def latent_shape(self) -> tuple[int, ...]:
        """Mels and the most frames."""
        return self.shape.mels, self.form.frames(self.seconds)

    def grid(self, steps: int) -> Grid:
        """The noise levels of ``steps`` steps; F5-TTS's own are sway sampling with s = -1, at pruned times where there
        are 5, 6, 7, 10, 12 or 16 of them."""
        if self.levels == CHECKPOINT:
            return pruned_sway_grid(steps)
        return bind(self.levels, GRIDS, "sampling.grid")({"steps": steps})

    def encode(self, prompts: Sequence[Prompt]) -> Utterances:
        """One row per prompt."""
        rows = [self.utterance(prompt) for prompt in prompts]
        longest, most = max(len(ids) for ids, *_ in rows), self.latent_shape()[1]
        text = torch.tensor([ids + [-1] * (longest - len(ids)) for ids, *_ in rows])
        reference = torch.stack([nn.functional.pad(mel, (0, most - mel.shape[1])) for _, mel, *_ in rows])
        return Utterances(
            put(text, self.device),
            put(reference, self.device),
            torch.tensor([mel.shape[1] for _, mel, *_ in rows]),
            torch.tensor([frames for _, _, frames, _ in rows]),
            torch.tensor([gain for *_, gain in rows]),
        )

    def check(self, prompt: Prompt) -> None:
        """ValueError for a prompt that cannot be spoken: too long, a character that the vocabulary lacks, no text."""
        self.utterance(prompt)

    def utterance(self, prompt: Prompt) -> tuple[list[int], Float[Tensor, "mels given"], int, float]:
        """Ids of the characters, the reference's spectrogram, the frames of both, and the gain of the reference.

        The speech lasts ``meta["seconds"]``, or as long as the reference's pace says (``frames_at_pace``), or without
        one as ``pace`` says.
        """
        given, text, clips = (
            before_text(spoken_before(prompt)),
            respell(prompt.text),
            [m for m in prompt.media if m.kind == "audio"],
        )
        if not text:
            raise ValueError(f"prompt '{prompt.id}' has no text, expected what is to be spoken")
        if bool(clips) != bool(given) or len(clips) > 1:
            raise ValueError(
                f"prompt '{prompt.id}': got {len(clips)} clips and the reference_text '{given.strip()}', expected one "
                "clip and its transcript, or neither; add the key reference_text to the row"
            )
        mel, gain = self.spectrogram(prompt) if clips else (torch.zeros(self.shape.mels, 0), 1.0)
        frames = self.form.frames(seconds_of(prompt) or len(text) / self.pace)
        if clips and not seconds_of(prompt):
            frames = frames_at_pace(mel.shape[1], given, text)
        most = self.latent_shape()[1]
        if not 1 <= frames <= most - mel.shape[1]:
            hop = self.form.hop / self.form.rate
            raise ValueError(
                f"prompt '{prompt.id}': got {mel.shape[1] * hop:.1f} s of reference and {frames * hop:.1f} s of "
                f"speech, expected some speech and at most model.seconds={self.seconds:g} s together; shorten either, "
                "or raise it"
            )
        words = space_words(given + text)
        if unknown := sorted(set(words) - self.characters.keys()):
            raise ValueError(
                f"prompt '{prompt.id}': got the characters {unknown}, which the checkpoint's vocab.txt lacks; spell "
                "them otherwise (Chinese, of which the vocabulary has pinyin, is not supported)"
            )
        return [self.characters[character] for character in words], mel, mel.shape[1] + frames, gain

    def spectrogram(self, prompt: Prompt) -> tuple[Float[Tensor, "mels given"], float]:
        """The spectrogram of a prompt's clip and the gain, by which it was at least ``QUIET``."""
        clip = next(medium for medium in prompt.media if medium.kind == "audio")
        key = f"{clip.source} {sorted(clip.options.items())}" if isinstance(clip.source, str) else ""
        if key not in self.spectrograms or not key:
            samples = resample(
                read_audio(clip, max_seconds=self.seconds, setting="model.seconds"), self.form.rate
            ).samples[0]
            gain = max(1.0, QUIET / float(samples.square().mean().sqrt()))
            self.spectrograms[key] = (self.form.mel(samples * gain), gain)
            if len(self.spectrograms) > KEPT:
                del self.spectrograms[next(iter(self.spectrograms))]
        return self.spectrograms[key]

    def predict(
        self,
        network: nn.Module,
        x: Float[Tensor, "N mels frames"],
        time: Float[Tensor, " N"],
        conditioning: Utterances,
    ) -> Float[Tensor, "N outputs frames"]:
        """The (guided) velocity noise - data at noise level ``time``, zero behind a row's last frame, in fp32.

        Guidance g is ``v_empty + g (v - v_empty)``, v_empty without text and reference: F5-TTS's cfg_strength plus 1. A
        std that the network predicts is that of the branch with text.
        """
        longest, frames = int(conditioning.frames.max()), put(conditioning.frames, x.device)
        inputs = (x[..., :longest].mT, conditioning.reference[..., :longest].mT, conditioning.text, 1 - time)
        with autocast(self.training.compute_dtype, self.device):
            output = network(*inputs, frames).float()
            empty = network(*inputs, frames, wordless=True).float() if self.guidance != 1 else None
        velocity, log_std = output.split((self.shape.mels, output.shape[-1] - self.shape.mels), -1)
        if empty is not None:
            base = empty[..., : self.shape.mels]
            velocity = base + self.guidance * (velocity - base)
        output = torch.cat([-velocity, log_std], -1).mT
        return nn.functional.pad(output, (0, x.shape[-1] - longest))

    @torch.no_grad()
    def decode(self, latents: Float[Tensor, "N mels frames"], conditioning: Utterances) -> list[Audio]:
        """The recordings of the speech, without the reference, as loud as the reference was."""
        given, frames, gain = (part.tolist() for part in (conditioning.given, conditioning.frames, conditioning.gain))
        sounds = []
        for row, latent in enumerate(latents.float()):
            samples = self.voice.sound(latent[:, given[row] : frames[row]]).float().cpu() / gain[row]
            sounds.append(Audio((samples / samples.abs().max().clamp(min=1))[None], self.form.rate))
        return sounds

    def save(self, folder: Path | str, network: nn.Module) -> None:
        """Adapters in peft's format, or the network in the published layout."""
        from accelerate.utils import extract_model_from_parallel

        folder, network = Path(folder), extract_model_from_parallel(network)
        if self.training.adapters:
            save_adapters(folder, network)
        else:
            write(folder, network, self.characters)


def spoken_before(prompt: Prompt) -> str:
    """The transcript of the reference as F5-TTS ends it: by a full stop and a space, also behind another mark, or by
    the full stop of Chinese; empty where there is none."""
    text = respell(str(prompt.meta.get("reference_text") or ""))
    return text if not text or text.endswith("。") else f"{text.removesuffix('.')}. "


def before_text(reference: str) -> str:
    """The transcript of the reference as it stands before the text: F5-TTS adds a space behind any character of one
    byte, so there are two behind a full stop. They count in the length of the reference."""
    return f"{reference} " if reference and reference[-1].isascii() else reference


SHORT_TEXT, SHORT_SPEED = 10, 0.3
"""Bytes below which F5-TTS speaks a text more slowly than the reference, and by how much."""


def frames_at_pace(given: int, reference: str, text: str) -> int:
    """Frames of a text at the pace of a reference of ``given`` frames, in bytes of UTF-8 (F5-TTS, utils_infer.py).

    47 frames of "la la.  " are 5.9 per byte, the spaces at its end included: "good morning" of 12 bytes takes 70,
    "hello" is shorter than 10 bytes and takes 47 / 8 x 5 / 0.3 = 97 instead of 29.
    """
    size = len(text.encode())
    return int(given / len(reference.encode()) * size / (SHORT_SPEED if size < SHORT_TEXT else 1))


RUNS = re.compile(r"([a-zA-Z0-9+#&._%-]+)")
WORDS = re.compile(r"(AT&T|[cC]\+\+|[cC]#)|((?:(?![cC]\+\+|[cC]#|AT&T)[a-zA-Z0-9])+(?:\.\d+)?%?)")
"""Where jieba, by which F5-TTS cuts texts also of other languages than Chinese, cuts what is not Chinese."""


def space_words(text: str) -> str:
    """A text with the spaces that F5-TTS writes before words behind anything but a space, a colon or a quotation mark:
    "well-known" is "well- known" and "(a dog)" stays, "(the dog)" is "( the dog)"."""
    written = ""
    for run in RUNS.split(text):
        for piece in filter(None, WORDS.split(run) if RUNS.fullmatch(run) else run):
            if len(piece) > 1 and written and written[-1] not in " :'\"":
                written += " "
            written += piece
    return written


def respell(text: str) -> str:
    """One line in the spelling of the vocabulary."""
    return " ".join(text.split()).translate(SPELLING)


def seconds_of(prompt: Prompt) -> float:
    """The duration that the row asks for; 0 where it asks for none."""
    seconds = prompt.meta.get("seconds", 0)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= 3600:
        raise ValueError(f"prompt '{prompt.id}': seconds: got {seconds!r}, expected a positive number, or no such key")
    return float(seconds)


def load(options: FlowSpeechOptions, training: Training = PLAIN) -> FlowSpeech:
    """Load a checkpoint for training.

    With ``options.head="drawn"`` the head of F5R-TTS predicts ln std of the velocity; a checkpoint without one is given
    one that predicts ``options.sigma`` everywhere.
    """
    source, old, drawn = find_folder(options.path, options.folder), options.release == "v0", options.head == "drawn"
    tensors = read_tensors(Path(training.network or source))
    shape = replace(shape_of(tensors), rotates_all=not old, masks_text=not old, spread=drawn)
    tensors = with_head(tensors, options.sigma) if shape.spread else {k: v for k, v in tensors.items() if HEAD not in k}
    network = F5Network(shape)
    with reading(str(source)):
        network.load_state_dict(tensors, strict=True)
    network = network.to(training.device, training.storage_dtype).eval()
    reference = make_trainable(network, training, TARGETS)
    form = MelFormat(mels=shape.mels)
    characters = read_vocabulary(source / "vocab.txt", shape.vocabulary)
    return FlowSpeech(
        network,
        shape,
        characters,
        vocoder(options.vocoder, form),
        training,
        reference,
        form,
        seconds=options.seconds,
        guidance=options.guidance,
        pace=options.pace,
    )
