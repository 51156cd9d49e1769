"""How long an utterance is to be: the duration policy of DMOSpeech 2 (arXiv:2507.14988), before any synthesizer.

A text goes in, one of a few classes comes out; class k is k * ``frames_a_class`` frames of ``HOP`` samples at ``RATE``
(the paper: 301 classes of 10 frames, 0.107 s each), and a renderer speaks the text in that time. The network is an
encoder over characters that ends in a question; its answer is the logits. Unlike the paper's it reads the text only,
not the spectrogram of a voice that is to be imitated.

    load(path, renderer=...)   a folder that ``save`` or ``tiny`` wrote
    tiny(folder)               a random one of the same architecture
    pretrain(network, ...)     cross-entropy to how long texts are at a given pace
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from mmgrpo.registry import nearest
from mmgrpo.runtime.files import write_text
from mmgrpo.runtime.randomness import derive, stream
from mmgrpo.types import Audio, Prompt, Reference
from pipelines.speech.renderers import Renderer, renderer
from pipelines.training import FrozenCopy

__all__ = ["Duration", "DurationNetwork", "Shape", "load", "pretrain", "tiny"]

RATE, HOP = 24_000, 256
"""Samples a second, and samples a frame."""

ALPHABET = " abcdefghijklmnopqrstuvwxyz0123456789.,?!;:'-"
PAD, QUESTION, UNKNOWN, FIRST = 0, 1, 2, 3
"""Numbers of what is no character; those of the alphabet follow."""


@dataclass(frozen=True)
class Shape:
    """Sizes of a network; the defaults are the paper's."""

    classes: int = 301
    frames_a_class: int = 10
    frames_of_zero: int = 50
    """Frames of class 0, since nothing can be said in no time."""
    width: int = 256
    layers: int = 4
    heads: int = 8
    inner: int = 512
    alphabet: str = ALPHABET

    def __post_init__(self) -> None:
        smallest = min(self.classes - 1, self.frames_a_class, self.frames_of_zero, self.layers, self.heads, self.inner)
        if smallest < 1 or self.width % (2 * self.heads):
            raise ValueError(
                f"a duration network needs at least 2 classes, sizes of at least 1, and a width that 2 x heads "
                f"divides; got {asdict(self)}"
            )

    def seconds(self, choice: int) -> float:
        """How long a class is."""
        return (choice * self.frames_a_class or self.frames_of_zero) * HOP / RATE

    def choice(self, seconds: float) -> int:
        """The class that a duration falls into: floor(frames / frames_a_class), at most the last."""
        return min(int(seconds * RATE / HOP / self.frames_a_class), self.classes - 1)


class DurationNetwork(nn.Module):
    """Characters to logits over classes."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.characters = nn.Embedding(FIRST + len(shape.alphabet), shape.width, padding_idx=PAD)
        layer = nn.TransformerEncoderLayer(
            shape.width, shape.heads, shape.inner, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, shape.layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.classes)

    def forward(self, ids: Int[Tensor, "rows length"]) -> Float[Tensor, "rows classes"]:
        """Logits at the last character of each row, which is the question; rows are padded on the right."""
        real: Bool[Tensor, "rows length"] = ids != PAD
        states = self.characters(ids) + positions(ids.shape[1], self.shape.width).to(ids.device)
        states = self.encoder(states, src_key_padding_mask=~real)
        last = real.sum(1) - 1
        return self.head(self.norm(states[torch.arange(len(ids), device=ids.device), last]))


def positions(length: int, width: int) -> Float[Tensor, "length width"]:
    """Sines and cosines of places at geometric frequencies (arXiv:1706.03762, section 3.5)."""
    place = torch.arange(length)[:, None] * torch.exp(torch.arange(0, width, 2) * (-math.log(10_000.0) / width))
    return torch.stack([place.sin(), place.cos()], -1).flatten(1)


def encode(texts: Sequence[str], alphabet: str) -> Int[Tensor, "rows length"]:
    """Numbers of the characters (small letters), the question behind them, padded on the right."""
    number = {character: FIRST + place for place, character in enumerate(alphabet)}
    rows = [[*(number.get(c, UNKNOWN) for c in " ".join(text.lower().split())), QUESTION] for text in texts]
    longest = max(map(len, rows))
    return torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])


@dataclass
class Duration:
    """The answers of a duration network and a renderer to a choice policy's questions; ``load`` makes one."""

    network: nn.Module
    shape: Shape
    voice: Renderer
    reference: Reference
    device: torch.device
    kept: dict[tuple[str, int], Audio] = field(default_factory=dict)
    """Every rendering by text and class: renderings repeat, and are the same every time."""

    def logits(self, network: nn.Module, prompts: Sequence[Prompt]) -> Float[Tensor, "P classes"]:
        """Unscaled scores of the classes."""
        return network(encode([prompt.text for prompt in prompts], self.shape.alphabet).to(self.device))

    def render(self, prompt: Prompt, choice: int) -> Audio:
        """The text, spoken in the time of the class."""
        name = (prompt.text, choice)
        if name not in self.kept:
            self.kept[name] = self.voice.render(prompt, self.shape.seconds(choice))
        return self.kept[name]

    def save(self, folder: Path, network: nn.Module) -> None:
        """Write config.json and model.safetensors."""
        from accelerate.utils import extract_model_from_parallel

        write(folder, extract_model_from_parallel(network), self.shape)


def write(folder: Path, network: nn.Module, shape: Shape) -> None:
    """A folder that ``load`` reads."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "config.json", json.dumps({"family": "duration", **asdict(shape)}, indent=2) + "\n")
    save_file({name: value.contiguous() for name, value in network.state_dict().items()}, folder / "model.safetensors")


def tiny(folder: str | Path, seed: int = 0, **sizes: Any) -> str:
    """Write a small random network: 24 classes of 40 frames (0.43 s), width 32; ``sizes`` are fields of ``Shape``."""
    small = {"classes": 24, "frames_a_class": 40, "width": 32, "layers": 1, "heads": 2, "inner": 64}
    shape = Shape(**{**small, **sizes})
    write(Path(folder), create(shape, seed), shape)
    return str(folder)


def create(shape: Shape, seed: int) -> DurationNetwork:
    """A random network; the seed alone decides its weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(seed, "duration"))
        return DurationNetwork(shape)


def load(path: str | Path, *, renderer_name: str = "hibari", device: str | torch.device = "cpu") -> Duration:
    """Read a duration network for training, with the renderer that speaks for it."""
    folder = Path(path)
    missing = [name for name in ("config.json", "model.safetensors") if not (folder / name).is_file()]
    if missing:
        raise FileNotFoundError(f"'{folder}' is no folder of a duration network: it lacks {' and '.join(missing)}")
    from safetensors.torch import load_file

    network = DurationNetwork(read_shape(folder / "config.json"))
    network.load_state_dict(load_file(folder / "model.safetensors"), strict=True)
    return family(network, renderer(renderer_name), device=device)


def read_shape(path: Path) -> Shape:
    """Sizes from a config.json; a key that is no size is an error."""
    settings = json.loads(path.read_text(encoding="utf-8"))
    if settings.pop("family", "") != "duration":
        raise ValueError(f"{path}: is not of a duration network; its family is not 'duration'")
    for name in settings:
        if name not in Shape.__dataclass_fields__:
            raise ValueError(f"{path}: a duration network has no '{name}'.{nearest(name, Shape.__dataclass_fields__)}")
    return Shape(**settings)


def family(network: DurationNetwork, voice: Renderer, *, device: str | torch.device = "cpu") -> Duration:
    """A network and a renderer as the two stand."""
    network = network.to(device).eval()
    return Duration(network, network.shape, voice, FrozenCopy(network), torch.device(device))


def pretrain(
    network: DurationNetwork,
    texts: Sequence[str],
    *,
    pace: float,
    spread: float = 0.25,
    steps: int = 300,
    batch: int = 64,
    lr: float = 1e-3,
    seed: int = 0,
) -> float:
    """Teach a network how long texts are at ``pace`` characters a second; returns the last cross-entropy in nats.

        seconds = characters / pace * exp(spread * standard normal)

    The examples are pieces of the texts of every length, so that lengths are learnt and not texts. Speakers differ,
    and a ``spread`` of 0 would teach a policy that tries nothing. ``pace`` may be wrong on purpose.
    """
    if pace <= 0 or spread < 0 or not texts:
        raise ValueError(f"pretraining needs texts, a pace above 0 and a spread of at least 0; got {pace=}, {spread=}")
    shape, random = network.shape, stream(seed, "pretrain")
    device = next(network.parameters()).device
    optimizer = torch.optim.AdamW(network.parameters(), lr=lr)
    loss = torch.tensor(math.nan)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = lr * min(1.0, 10 * (step + 1) / steps, 2 * (steps - step) / steps)
        picked = [piece(texts, random) for _ in range(batch)]
        factors = (spread * torch.randn(batch, generator=random)).exp().tolist()
        wanted = [shape.choice(len(text) / pace * factor) for text, factor in zip(picked, factors, strict=True)]
        logits = network(encode(picked, shape.alphabet).to(device))
        loss = nn.functional.cross_entropy(logits, torch.tensor(wanted, device=device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return float(loss.detach())


def piece(texts: Sequence[str], random: torch.Generator) -> str:
    """The first words of two texts in a row, as many as chance wants."""
    first, second = (texts[place] for place in torch.randint(len(texts), (2,), generator=random).tolist())
    words = f"{first} {second}".split()
    return " ".join(words[: 1 + int(torch.randint(len(words), (), generator=random))])
