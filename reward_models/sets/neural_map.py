"""PISCES' quality reward (arXiv:2602.01624, section 3.1): is an output like real ones that its prompt asks for?

Embeddings of texts and of images or clips are two clouds, also in one space. A map T carries the first, mu, to the
second, nu, at the least cost (neural optimal transport, Korotin et al., arXiv:2201.12220; PISCES, equation 1):

    sup_f  inf_T   E_x~nu f(x) + E_y~mu [ |y - T(y)|^2 - f(T(y)) ]
    reward = cos(T(y), x)                                                     (equation 2)

T and the potential f are networks of three layers with LayerNorm and ReLU, trained in turn. No labels are needed: texts
and outputs need not be pairs.

    model = train_map(text_embeddings, real_embeddings)
    save_map(model, "map.safetensors")
    mmgrpo train --rewards "transported(map='map.safetensors', embed_text='my_clip:texts', embed='my_clip:clips')"
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from mmgrpo.config.plugins import load_object, locate
from mmgrpo.files import write_tensors
from mmgrpo.runtime.progress import progress_bar
from mmgrpo.scoring.manifest import reward
from mmgrpo.types import Output, Prompt
from reward_models.checkpoints import load_exactly, read_tensors
from reward_models.sets.embeddings import embeddings_of

INNER = 10
"""Steps of the map for one of the potential."""


def network(width: int, hidden: int, out: int) -> nn.Sequential:
    """Three linear layers with LayerNorm and ReLU between them."""
    layers: list[nn.Module] = []
    for size in (width, hidden):
        layers += [nn.Linear(size, hidden), nn.LayerNorm(hidden), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(hidden, out))


def map_loss(moved: Float[Tensor, "n width"], texts: Float[Tensor, "n width"], potential: Tensor) -> Tensor:
    """E |y - T(y)|^2 - f(T(y)), which the map minimizes. y = 0, T(y) = (3, 4), f = 5: 25 - 5 = 20."""
    return ((moved - texts).square().sum(1) - potential).mean()


def train_map(
    texts: Float[Tensor, "n width"],
    outputs: Float[Tensor, "m width"],
    steps: int = 1000,
    hidden: int = 256,
    rate: float = 1e-3,
    batch: int = 64,
    seed: int = 0,
) -> nn.Sequential:
    """The map from embeddings of texts to those of real outputs, by Adam; the generator of torch is left as it was.

    Step size, width and numbers of steps are ours.
    """
    if texts.shape[1] != outputs.shape[1] or not bool(texts.isfinite().all() and outputs.isfinite().all()):
        raise ValueError(
            f"transported: got texts {list(texts.shape)} and outputs {list(outputs.shape)}, expected finite embeddings "
            "of one width"
        )
    width = texts.shape[1]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        mapping, potential = network(width, hidden, width), network(width, hidden, 1)
        map_steps = torch.optim.Adam(mapping.parameters(), rate, betas=(0.5, 0.9))
        potential_steps = torch.optim.Adam(potential.parameters(), rate, betas=(0.5, 0.9))
        for _ in progress_bar(range(steps), "training the map"):
            for _ in range(INNER):
                sample = texts[torch.randint(len(texts), (batch,))]
                moved = mapping(sample)
                loss = map_loss(moved, sample, potential(moved)[:, 0])
                map_steps.zero_grad()
                loss.backward()
                map_steps.step()
            real = outputs[torch.randint(len(outputs), (batch,))]
            with torch.no_grad():
                moved = mapping(texts[torch.randint(len(texts), (batch,))])
            gain = potential(real).mean() - potential(moved).mean()
            potential_steps.zero_grad()
            (-gain).backward()
            potential_steps.step()
    return mapping.eval().requires_grad_(False)


def save_map(mapping: nn.Sequential, file: Path | str) -> None:
    """Write a map as safetensors."""
    weights = {name: value.detach().cpu().contiguous() for name, value in mapping.state_dict().items()}
    write_tensors(Path(file), weights)


@reward(
    "Text",
    "Image",
    "Video",
    "Audio",
    range=(-1, 1),
    scale="cosine of mapped text and output",
    reads=("text",),
    source="PISCES, arXiv:2602.01624, on embeddings that you name",
)
def transported(
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    map: str,
    embed_text: str,
    embed: str,
    device: str = "cpu",
) -> list[float]:
    """cos(T(y), x) of the embedding x of an output and the mapped embedding y of its prompt; NaN where x is not finite.

    ``map`` is a file of ``save_map``; ``embed_text`` takes prompts, ``embed`` outputs, both ``module:function`` that
    return [N, width].
    """
    texts = load_object(embed_text, "transported: embed_text")(prompts).detach().cpu().float()
    vectors = embeddings_of(outputs, embed, device, "transported").float()
    mapping = _map(locate(map))
    if texts.shape[-1] != mapping[0].in_features or texts.shape != vectors.shape:
        raise ValueError(
            f"transported: got texts {list(texts.shape)} and outputs {list(vectors.shape)}, expected "
            f"{len(prompts)} rows each, of the width {mapping[0].in_features} of {map}"
        )
    return functional.cosine_similarity(mapping(texts), vectors).tolist()


@functools.cache
def _map(file: str) -> nn.Sequential:
    tensors = read_tensors(Path(file).expanduser(), "transported")
    if "0.weight" not in tensors or tensors["0.weight"].ndim != 2:
        raise ValueError(f"transported: {file}: got {sorted(tensors)[:5]}, expected a map of save_map")
    hidden, width = tensors["0.weight"].shape
    return load_exactly(network(width, hidden, width), tensors, file, "transported")
