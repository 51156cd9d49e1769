"""How much recipes compute at the published sizes of their models, and for how long: the table of docs/scaling.md.

    python -m scripts.hours

The arithmetic is that of a dry run (``mmgrpo.runtime.work``), on modules without storage: nothing is downloaded.
"""

from __future__ import annotations

from dataclasses import replace

from mmgrpo.cli.train import counted_in, read
from mmgrpo.family import family
from mmgrpo.runtime.memory import Folder
from mmgrpo.runtime.work import PEAKS, SHARES, in_flop, work
from scripts.memory import QWEN, folder_of

CARD = "H100"
MODELS = {
    "visual/flow_grpo": "SD 3.5 Medium",
    "visual/flow_grpo_fast": "SD 3.5 Medium",
    "visual/diffusion_nft": "SD 3.5 Medium",
    "visual/mix_grpo": "FLUX.1-dev",
    "visual/branch_grpo": "FLUX.1-dev",
    "visual/flow_grpo_wan": "Wan 2.1 1.3B",
    "visual/dance_grpo_hunyuan_video": "HunyuanVideo",
    "vlm/geometry3k": "3B",
}
"""Recipes, and the models of ``scripts.memory`` that they train."""


def folder(model: str) -> Folder:
    """The shapes of a published model, as its files would state them."""
    made = folder_of(model)
    # All of these have VAEs of eight pixels and four frames for each of sixteen channels.
    vae = {"block_out_channels": [128, 256, 512, 512], "latent_channels": 16}
    clip = {"others": {"text_encoder_3": 0}, "prompt": 77} if model.startswith("SD 3") else {}
    return replace(made, vae=vae, **clip)


def row(recipe: str, model: str) -> str:
    """One line of the table."""
    config = read(["--recipe", recipe], "")
    known, arithmetic = counted_in(config, folder(model)), family(config.model.family).arithmetic(config)
    sampled, trained = work(known["counts"], config, arithmetic.totals, known["reference"])
    rollouts = -(-config.steps // (config.optim.updates * config.optim.epochs))
    whole = rollouts * (sampled + trained)
    hours = " to ".join(f"{whole / (PEAKS[CARD] * share * 3600):,.0f}" for share in SHARES)
    title = f"Qwen2.5-VL-{model}" if model in QWEN else model
    cells = [
        f"`{recipe}`",
        title,
        f"{rollouts:,}",
        in_flop(sampled),
        in_flop(trained),
        in_flop(whole),
        hours,
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the table."""
    shares = " to ".join(f"{100 * share:.0f}" for share in SHARES)
    cells = ["recipe", "model", "rollouts", "to sample one", "to train on it", "in all"]
    cells += [f"{CARD} hours at {shares} % of its peak"]
    print(f"| {' | '.join(cells)} |")
    print("|" + " --- |" * len(cells))
    for recipe, model in MODELS.items():
        print(row(recipe, model), flush=True)


if __name__ == "__main__":
    main()
