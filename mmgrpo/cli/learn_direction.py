"""Learn the direction by which ``d2_align`` corrects a reward, from images of the policy before it is trained:

    mmgrpo learn-direction --images drawn.jsonl --reward hpsv2 --out direction.safetensors

Each line of the file is {"text": a prompt, "image": an image file next to it}: several images for each of many
prompts.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from mmgrpo.cli.errors import enter
from mmgrpo.config.advice import usage_errors

if TYPE_CHECKING:
    from mmgrpo.types import Image


def options() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", "--pictures", type=Path, required=True, help="JSONL file of captioned images")
    parser.add_argument(
        "--reward", default="hpsv2", help="reward to correct: hpsv2, pickscore or clip_score (default: hpsv2)"
    )
    parser.add_argument("--out", type=Path, required=True, help="safetensors file to write")
    parser.add_argument("--omega", type=float, help="extrapolation beyond the direction (default: that of the paper)")
    parser.add_argument("--steps", type=int, default=2000, help="optimizer steps (default: 2000)")
    parser.add_argument("--rate", type=float, default=1e-3, help="learning rate (default: 1e-3)")
    parser.add_argument("--device", default="cpu", help="device of the reward and of training (default: cpu)")
    return parser


def read_captions(file: Path) -> tuple[list[str], list[Image]]:
    """The texts and images of a file of lines {"text": ..., "image": a file, relative to the folder of this one}.

    ValueError that names the file and the line of what cannot be read.
    """
    from mmgrpo.data.images import decode_image

    texts, images = [], []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{file}:{number}: no JSON ({error})") from error
        if not isinstance(row, dict) or not all(isinstance(row.get(key), str) for key in ("text", "image")):
            raise ValueError(f'{file}:{number}: got {line:.80}, expected {{"text": a prompt, "image": an image file}}')
        try:
            images.append(decode_image(file.parent / row["image"]))
        except (ValueError, OSError) as error:
            raise ValueError(f"{file}:{number}: {error}") from error
        texts.append(row["text"])
    return texts, images


def main(arguments: list[str] | None = None) -> None:
    """Read the images, learn, and write the direction."""
    with usage_errors():
        given = options().parse_args(arguments)
    from mmgrpo.types import Prompt
    from reward_models.clip import d2_align

    omega = d2_align.OMEGA if given.omega is None else given.omega
    texts, images = read_captions(given.images)
    prompts = [Prompt(text) for text in texts]
    match = d2_align.load_match(given.reward, given.device)
    direction = d2_align.learn_direction(match, prompts, images, omega, given.steps, given.rate)
    d2_align.save_direction(direction, given.out, given.reward)
    print(f"{given.out}: a direction of length {direction.norm():.3f}, learned from {len(images)} images")


if __name__ == "__main__":
    enter(main)
