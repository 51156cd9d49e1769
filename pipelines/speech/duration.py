"""The duration policy of DMOSpeech 2 (arXiv:2507.14988): a text to a distribution over the duration of its utterance.

Class k stands for k * ``frames_a_class`` frames of ``HOP`` samples at ``RATE`` (the paper: 301 classes of 10 frames,
0.107 s each), and a renderer speaks the text in that time. The network is a transformer encoder over characters and a
query token, whose last state is projected to the logits. Unlike the paper's network it reads the text only, not the
spectrogram of a reference voice.

    load(options)                   a folder that ``save`` wrote
    pretrain(network, ...)          cross-entropy to the durations of texts at a given pace
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from mmgrpo.config.names import nearest
from mmgrpo.files import write_tensors, write_text
from mmgrpo.randomness import derive, stream
from mmgrpo.runtime.devices import put
from mmgrpo.runtime.progress import progress_bar
from mmgrpo.runtime.weight_files import read_object
from mmgrpo.types import Audio, Prompt, Reference
from pipelines.pretrained import reading
from pipelines.speech.options import DurationOptions
from pipelines.speech.renderers import Renderer, renderer
from pipelines.training import PLAIN, FrozenCopy, Training

__all__ = ["Duration", "DurationNetwork", "Shape", "load", "pretrain"]

RATE, HOP = 24_000, 256
"""Sampling rate in Hz, and samples per frame."""

ALPHABET = " abcdefghijklmnopqrstuvwxyz0123456789.,?!;:'-"
PAD, QUERY, UNKNOWN, FIRST = 0, 1, 2, 3
"""Ids of padding, query and unknown characters, and of the first character of the alphabet."""


@dataclass(frozen=True)
class Shape:
    """Sizes of a network; the defaults are the paper's."""

    classes: int = 301
    frames_a_class: int = 10
    frames_of_zero: int = 50
    """Frames of class 0, since no text can be spoken in 0 seconds."""
    width: int = 256
    layers: int = 4
    heads: int = 8
    inner: int = 512
    alphabet: str = ALPHABET

    def __post_init__(self) -> None:
        smallest = min(self.classes - 1, self.frames_a_class, self.frames_of_zero, self.layers, self.heads, self.inner)
        if smallest < 1 or self.width % (2 * self.heads):
            raise ValueError(
                f"duration network: got {asdict(self)}, expected at least 2 classes, sizes of at least 1, and a width "
                "that is a multiple of 2 x heads"
            )

    def seconds(self, choice: int) -> float:
        """The duration of a class."""
        return (choice * self.frames_a_class or self.frames_of_zero) * HOP / RATE

    def choice(self, seconds: float) -> int:
        """The class of a duration: floor(frames / frames_a_class), at most the last one."""
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
        """Logits from the state of the query, the last token of each row; rows are padded on the right."""
        real: Bool[Tensor, "rows length"] = ids != PAD
        states = self.characters(ids) + put(positions(ids.shape[1], self.shape.width), ids.device)
        states = self.encoder(states, src_key_padding_mask=~real)
        last = real.sum(1) - 1
        return self.head(self.norm(states[torch.arange(len(ids), device=ids.device), last]))


def positions(length: int, width: int) -> Float[Tensor, "length width"]:
    """Sinusoidal position encodings (arXiv:1706.03762, section 3.5), sines and cosines interleaved."""
    place = torch.arange(length)[:, None] * torch.exp(torch.arange(0, width, 2) * (-math.log(10_000.0) / width))
    return torch.stack([place.sin(), place.cos()], -1).flatten(1)


def encode(texts: Sequence[str], alphabet: str) -> Int[Tensor, "rows length"]:
    """Ids of the characters (in lower case) and the query, padded on the right."""
    ids = {character: FIRST + place for place, character in enumerate(alphabet)}
    rows = [[*(ids.get(c, UNKNOWN) for c in " ".join(text.lower().split())), QUERY] for text in texts]
    longest = max(map(len, rows))
    return torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])


@dataclass
class Duration:
    """A duration network and a renderer as the model of a categorical policy; ``load`` returns one."""

    network: nn.Module
    shape: Shape
    voice: Renderer
    reference: Reference
    device: torch.device
    renderings: dict[tuple[str, int], Audio] = field(default_factory=dict)
    """Cache of renderings by text and class: a rendering is deterministic, and a policy repeats its choices."""

    def logits(self, network: nn.Module, prompts: Sequence[Prompt]) -> Float[Tensor, "P classes"]:
        """Logits of the classes."""
        return network(put(encode([prompt.text for prompt in prompts], self.shape.alphabet), self.device))

    def render(self, prompt: Prompt, choice: int) -> Audio:
        """The text, spoken in the duration of the class."""
        key = (prompt.text, choice)
        if key not in self.renderings:
            self.renderings[key] = self.voice.render(prompt, self.shape.seconds(choice))
        return self.renderings[key]

    def save(self, folder: Path, network: nn.Module) -> None:
        """Write config.json and model.safetensors."""
        from accelerate.utils import extract_model_from_parallel

        write(folder, extract_model_from_parallel(network), self.shape)


def write(folder: Path, network: nn.Module, shape: Shape) -> None:
    """A folder that ``load`` reads."""
    write_text(folder / "config.json", json.dumps({"family": "duration", **asdict(shape)}, indent=2) + "\n")
    weights = {name: value.contiguous() for name, value in network.state_dict().items()}
    write_tensors(folder / "model.safetensors", weights)


def create(shape: Shape, seed: int) -> DurationNetwork:
    """A random network, a function of shape and seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(seed, "duration"))
        return DurationNetwork(shape)


def refuse_incomplete(folder: Path) -> None:
    """Raise FileNotFoundError for a folder that lacks one of the two files of a duration network."""
    missing = [name for name in ("config.json", "model.safetensors") if not (folder / name).is_file()]
    if missing:
        raise FileNotFoundError(
            f"'{folder}' is no folder of a duration network: {' and '.join(missing)} missing; name a folder that a run "
            "saved, or none for a new network"
        )


def load(options: DurationOptions, training: Training = PLAIN) -> Duration:
    """Load a duration network for training, with the renderer of its choices."""
    folder = Path(options.path)
    refuse_incomplete(folder)
    from safetensors.torch import load_file

    network = DurationNetwork(read_shape(folder / "config.json"))
    with reading(str(folder)):
        network.load_state_dict(load_file(folder / "model.safetensors"), strict=True)
    return family(network, renderer(options.renderer), device=training.device)


def read_shape(path: Path) -> Shape:
    """The shape in a config.json; an unknown key is an error."""
    settings = read_object(path)
    if (declared := settings.pop("family", "")) != "duration":
        raise ValueError(f"{path}: got the family '{declared}', expected 'duration'; name the folder of such a network")
    for name in settings:
        if name not in Shape.__dataclass_fields__:
            raise ValueError(f"{path}: a duration network has no '{name}'.{nearest(name, Shape.__dataclass_fields__)}")
    for name, value in settings.items():
        kind = type(Shape.__dataclass_fields__[name].default)
        if type(value) is not kind:
            raise ValueError(f"{path}: {name}: got {str(value)[:80]!r}, expected {kind.__name__}")
    return Shape(**settings)


def family(network: DurationNetwork, voice: Renderer, *, device: str | torch.device = "cpu") -> Duration:
    """The model of a network and a renderer."""
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
    """Fit a network to durations at ``pace`` characters per second; returns the last cross-entropy in nats.

        seconds = characters / pace * exp(spread * N(0, 1))

    The examples are pieces of the texts of all lengths, so the network learns durations rather than texts. A
    ``spread`` of 0 would leave a policy without exploration. ``pace`` may be wrong on purpose.
    """
    if pace <= 0 or spread < 0 or not texts:
        raise ValueError(
            f"pretraining: got pace={pace:g}, spread={spread:g} and {len(texts)} texts, expected pace > 0, spread >= 0 "
            "and at least one text"
        )
    shape, random = network.shape, stream(seed, "pretrain")
    device = next(network.parameters()).device
    optimizer = torch.optim.AdamW(network.parameters(), lr=lr)
    loss = torch.tensor(math.nan)
    for step in progress_bar(range(steps), "pretrain"):
        for group in optimizer.param_groups:  # warm-up over a tenth of the steps, linear decay over the second half
            group["lr"] = lr * min(1.0, 10 * (step + 1) / steps, 2 * (steps - step) / steps)
        pieces = [piece(texts, random) for _ in range(batch)]
        factors = (spread * torch.randn(batch, generator=random)).exp().tolist()
        targets = [shape.choice(len(text) / pace * factor) for text, factor in zip(pieces, factors, strict=True)]
        logits = network(encode(pieces, shape.alphabet).to(device))
        loss = nn.functional.cross_entropy(logits, torch.tensor(targets, device=device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return float(loss.detach())


def piece(texts: Sequence[str], random: torch.Generator) -> str:
    """A random number of the first words of two concatenated random texts."""
    first, second = (texts[place] for place in torch.randint(len(texts), (2,), generator=random).tolist())
    words = f"{first} {second}".split()
    return " ".join(words[: 1 + int(torch.randint(len(words), (), generator=random))])
