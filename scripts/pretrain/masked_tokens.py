"""Pretrain the small model that draws masked tokens, several at a time (family amused).

    python -m scripts.pretrain.masked_tokens

What it is: a ``UVit2DModel`` of 0.6 M parameters that fills in masked codes of an image, with cross-entropy on the
masked ones. Its scenes, prompts and image tokenizer are those of ``scripts.pretrain.tokens``; a word encoder, which is
trained with it, reads the prompts. Of each image a fraction cos(pi u / 2) is masked, u uniform in [0, 1], as in aMUSEd
(arXiv:2401.01808). The weights are saved in half precision.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmgrpo.cli.errors import enter
from scripts.pretrain.tokens import SHARES, Schedule, image_tokenizer, optimize

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


@dataclass
class Args(Schedule):
    """How the model is pretrained."""

    output: Path = Path("pipelines/visual/assets/tokens/masked")
    steps: int = 2000
    codes: int = 256
    """Patches of the tokenizer."""
    width: int = 80
    """Width of the network, twice that of the words."""
    layers: int = 2
    """Its layers."""


def build(args: Args) -> tuple[Any, Any]:
    """The untrained network and word encoder."""
    import torch
    from diffusers import UVit2DModel

    from mmgrpo.randomness import derive
    from mmgrpo.toy import scenes
    from pipelines.visual.words import WordEncoder

    torch.manual_seed(derive(args.seed, "weights"))
    network = UVit2DModel(
        hidden_size=args.width,
        cond_embed_dim=args.width // 2,
        micro_cond_encode_dim=4,
        micro_cond_embed_dim=20,
        encoder_hidden_size=args.width // 2,
        vocab_size=args.codes + 1,
        codebook_size=args.codes,
        in_channels=args.width,
        block_out_channels=args.width,
        num_res_blocks=1,
        block_num_heads=4,
        num_hidden_layers=args.layers,
        num_attention_heads=4,
        intermediate_size=2 * args.width,
        sample_size=8,
    )
    words = WordEncoder(scenes.vocabulary(), length=12, width=args.width // 2, pooled_width=args.width // 2)
    return network, words


def loss_of(network: Any, words: Any, patches: Any, args: Args, random: Any) -> Float[Tensor, ""]:
    """Mean cross-entropy of the masked codes of a new batch, in nats."""
    import torch
    from torch import nn

    from pipelines.visual.amused import AESTHETIC
    from scripts.pretrain.visual import draw

    texts, (pixels,) = draw(torch.tensor(SHARES), args.batch, random)
    codes = patches.encode(pixels)
    dropped = torch.rand(args.batch, generator=random) < args.dropout
    hidden, pooled = words(
        words.tokenize(["" if drop else text for text, drop in zip(texts, dropped.tolist(), strict=True)])
    )
    share = torch.cos(torch.rand(args.batch, 1, generator=random) * math.pi / 2)
    uniform = torch.rand(codes.shape, generator=random)
    masked = (uniform < share) | (uniform == uniform.min(1, keepdim=True).values)
    logits = network(
        torch.where(masked, args.codes, codes).view(-1, patches.side, patches.side),
        encoder_hidden_states=hidden,
        pooled_text_emb=pooled,
        micro_conds=torch.tensor([[patches.size, patches.size, 0, 0, AESTHETIC]]).expand(args.batch, -1),
    )
    return nn.functional.cross_entropy(logits.flatten(2).transpose(1, 2)[masked], codes[masked])


def train(args: Args) -> None:
    """Train, evaluate regularly, and save."""
    from mmgrpo.randomness import stream

    patches = image_tokenizer(args.codes, args.seed)
    network, words = build(args)
    random = stream(args.seed, "pretrain")
    optimize(
        [*network.parameters(), *words.parameters()],
        lambda: loss_of(network, words, patches, args, random),
        lambda: save(args.output, network, words, patches),
        args,
    )


def save(folder: Path, network: Any, words: Any, patches: Any) -> None:
    """Write a model folder; the transformer in half precision, the small parts in full."""
    import copy

    copy.deepcopy(network).half().save_pretrained(folder / "transformer")
    words.save(folder / "words")
    patches.save(folder / "patches")


def main() -> None:
    import torch
    import tyro

    args = tyro.cli(Args, description=__doc__)
    torch.set_num_threads(args.threads)
    train(args)


if __name__ == "__main__":
    enter(main)
