"""Pretrain the small video model of the demo and the tests.

    python -m scripts.pretrain.video --output /tmp/half
    python -m scripts.pretrain.video --start /tmp/half --shift 1.5 --steps 1800 --lr 1.5e-3 --seed 1
    python -m scripts.pretrain.video --measure

Rectified flow (``scripts.pretrain.flow``) on rendered videos with the transformer of Wan in pixel space, patches of
2 frames x 4 x 4 pixels, and learned word vectors. All clips are right. The second part has more small times, at which
the edges of shapes are determined.

It is not trained to convergence: reinforcement learning amplifies what a model does sometimes, so the aim is a model
that fails for natural reasons. It takes 6 and 6 CPU minutes on one core (1.7 M parameters, 3.5 MB; torch 2.9 or newer,
for Muon): 51,200 and 57,600 clips. Of 180 held-out prompts .372 are entirely right (one sample each, 10 Euler steps of
the ODE): move .67, many .61, order .50, speed .47, both .00; the cleanness is .863. All sentences occur: the held-out
prompts are held out from reinforcement learning and from the choice of its settings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmgrpo.cli.errors import enter
from mmgrpo.config.plugins import locate
from scripts.pretrain.flow import Loop, describe, fit, flow_loss, sample, save

if TYPE_CHECKING:
    import torch
    from jaxtyping import Float
    from torch import Tensor

    from mmgrpo.types import Prompt
    from scripts.pretrain.flow import Measures

ASSETS = Path(locate("embedded:visual/films"))

SHARES = {"move": 0.15, "speed": 0.2, "many": 0.15, "both": 0.25, "order": 0.25}
"""Fraction of the clips of each kind."""


@dataclass
class Args(Loop):
    """How the model is pretrained."""

    output: Path = ASSETS / "base"
    length: int = 12
    """Maximum number of words of a prompt; sentences have at most eleven."""
    width: int = 160
    """Channels of the transformer and of the word vectors."""
    layers: int = 4
    """Blocks of the transformer."""
    heads: int = 5
    """Attention heads per block."""


def build(args: Args) -> tuple[Any, Any]:
    """The transformer and its word encoder, from ``start`` or untrained."""
    import torch
    from diffusers.models import WanTransformer3DModel
    from torch import nn

    from mmgrpo.randomness import derive
    from mmgrpo.toy import videos
    from pipelines.visual.words import WordEncoder

    if args.start:
        return read(Path(args.start))
    torch.manual_seed(derive(args.seed, "weights"))
    transformer = WanTransformer3DModel(
        patch_size=(2, 4, 4),
        num_attention_heads=args.heads,
        attention_head_dim=args.width // args.heads,
        in_channels=3,
        out_channels=3,
        text_dim=args.width,
        freq_dim=args.width,
        ffn_dim=3 * args.width,
        num_layers=args.layers,
        rope_max_seq_len=32,
    )
    nn.init.zeros_(transformer.proj_out.weight)
    nn.init.zeros_(transformer.proj_out.bias)
    return transformer, WordEncoder(videos.vocabulary(), args.length, args.width, 1)


def read(folder: Path) -> tuple[Any, Any]:
    """A saved transformer, in full precision, and its word encoder."""
    from diffusers.models import WanTransformer3DModel

    from pipelines.visual.words import WordEncoder

    transformer: Any = WanTransformer3DModel.from_pretrained(str(folder / "transformer"), use_safetensors=True)
    return transformer.float(), WordEncoder.load(folder / "words")


def draw(count: int, random: torch.Generator) -> tuple[list[str], Float[Tensor, "count 3 4 16 16"]]:
    """Sentences and a clip of each, in [-1, 1]."""
    import numpy as np
    import torch

    from mmgrpo.toy import videos

    texts, pixels, shares = [], [], torch.tensor([SHARES[kind] for kind in videos.KINDS])
    for kind in torch.multinomial(shares, count, replacement=True, generator=random).tolist():
        among = videos.scenes(videos.KINDS[kind])
        which, seed = torch.randint(2**40, (2,), generator=random).tolist()
        texts.append(videos.text(among[which % len(among)]))
        pixels.append(videos.render(among[which % len(among)], seed))
    return texts, torch.from_numpy(np.stack(pixels)).permute(0, 4, 1, 2, 3).float() / 127.5 - 1


def velocity_of(transformer: Any) -> Any:
    """The transformer's prediction at time 1000 t; it takes no pooled vector."""

    def velocity(x: Tensor, t: Tensor, conditions: tuple[Tensor, Tensor]) -> Tensor:
        return transformer(x, t * 1000, conditions[0], return_dict=False)[0]

    return velocity


def measure(transformer: Any, words: Any, prompts: Sequence[Prompt], samples: int) -> Measures:
    """All verifiers on samples of the Euler ODE without guidance, from fixed noise."""
    import numpy as np

    from mmgrpo.toy.videos import FPS, FRAMES, SIZE
    from mmgrpo.types import Video
    from reward_models.rules.toy_videos import REWARDS

    rows = [prompt for prompt in prompts for _ in range(samples)]
    clips = sample(velocity_of(transformer), words, [p.text for p in rows], (3, FRAMES, SIZE, SIZE))
    outputs = [Video(clip, FPS) for clip in (clips.transpose(1, 2) / 2 + 0.5).clamp(0, 1)]
    return {name: np.reshape(reward(rows, outputs), (-1, samples)) for name, reward in REWARDS.items()}


def save_clips(folder: Path, transformer: Any, words: Any) -> None:
    """Write a model folder with the form of its clips."""
    from mmgrpo.toy.videos import FPS, FRAMES, SIZE
    from pipelines.visual.wan_small import Clip

    save(folder, transformer, words)
    Clip(FRAMES, SIZE, SIZE, FPS).write(folder)


def train(args: Args) -> None:
    """Train, evaluate regularly, and save."""
    from mmgrpo.data.prompts import load_prompts

    transformer, words = build(args)
    tune = load_prompts(ASSETS / "tune.jsonl")
    matrices = [weight for weight in transformer.blocks.parameters() if weight.ndim == 2]
    chosen = {id(weight) for weight in matrices}
    others = [weight for weight in transformer.parameters() if id(weight) not in chosen]
    fit(
        matrices,
        [*others, *words.table.parameters(), words.place],
        lambda random: flow_loss(velocity_of(transformer), words, *draw(args.batch, random), args, random),
        lambda: measure(transformer, words, tune, samples=1),
        lambda folder: save_clips(folder, transformer, words),
        args,
    )


def report(folder: Path, samples: int = 16) -> None:
    """Evaluate a saved model on the held-out prompts and print rewards and success rates."""
    from mmgrpo.data.prompts import load_prompts

    prompts = load_prompts(ASSETS / "heldout.jsonl")
    values = measure(*read(folder), prompts, samples)
    print(describe(values, "film_all", prompts))


def main() -> None:
    import tyro

    args = tyro.cli(Args, description=__doc__)

    import torch

    torch.set_num_threads(args.threads)
    report(args.output) if args.measure else train(args)


if __name__ == "__main__":
    enter(main)
