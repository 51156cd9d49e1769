"""Learn the direction by which ``d2_align`` corrects a reward, from pictures of the policy before it is trained:

    mmgrpo learn-direction --pictures drawn.jsonl --reward hpsv2 --out direction.safetensors

Each line of the file is {"text": a prompt, "image": a picture file beside it}: several pictures for each of many
prompts.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from mmgrpo.cli.errors import enter


def options() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=Path, required=True)
    parser.add_argument("--reward", default="hpsv2")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--omega", type=float, help="(default: that of the paper)")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--device", default="cpu")
    return parser


def main(arguments: list[str] | None = None) -> None:
    """Read the pictures, learn, and write the direction."""
    given = options().parse_args(arguments)
    from PIL import Image as Pil

    from mmgrpo.types import Image, Prompt
    from reward_models.clip import d2_align
    from reward_models.pixels import from_pil

    omega = d2_align.OMEGA if given.omega is None else given.omega
    rows = [json.loads(line) for line in given.pictures.read_text(encoding="utf-8").splitlines() if line.strip()]
    images = [Image(from_pil(Pil.open(given.pictures.parent / row["image"]))) for row in rows]
    prompts = [Prompt(row["text"]) for row in rows]
    match = d2_align.matched(given.reward, given.device)
    direction = d2_align.learn_direction(match, prompts, images, omega, given.steps, given.rate)
    d2_align.save_direction(direction, given.out, given.reward)
    print(f"{given.out}: a direction of length {direction.norm():.3f}, learned from {len(images)} pictures")


if __name__ == "__main__":
    enter(main)
