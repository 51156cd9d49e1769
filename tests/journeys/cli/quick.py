"""Options that make runs quick: tiny models, few steps."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import av
import numpy as np
import yaml
from PIL import Image as Pil

from mmgrpo.config.plugins import recipes
from mmgrpo.family import families
from tests.journeys.cli.running import write_rows
from tests.libraries.families.examples import EXAMPLES

RECIPES = recipes()
"""Recipes by ``<modality>/<name>``."""


def names(modality: str) -> list[str]:
    """The recipes of a modality, without it."""
    return [name.partition("/")[2] for name in RECIPES if name.startswith(f"{modality}/")]


def contents(recipe: str) -> dict[str, Any]:
    """What the file of a recipe says."""
    return yaml.safe_load(RECIPES[recipe].read_text())


# ---- pictures that are drawn


def visual_recipe(name: str, model: Path, output: Path, media: Path) -> list[object]:
    """Two optimizer steps of a recipe on the tiny model of its family; trees keep their groups, others have four."""
    recipe = contents(f"visual/{name}")
    family, plan = recipe["model"]["family"], recipe.get("sampling", {}).get("plan", "every_step")
    tree = plan.startswith(("branch", "tree"))
    reward = 'frames(reward="jpeg_compressibility")' if generates_video(family) else "jpeg_compressibility"
    groups = [] if tree else ["--data.group-size", 4]
    if name == "sol_rl":
        groups = ["--data.group-size", 24]  # as many as it keeps
    if name == "pro_grpo":
        groups = ["--data.group-size", 48]  # as many as its plan begins with
    if name == "vgpo":
        reward = "jpeg_incompressibility"  # not negative, as its credit needs
    rewards, more = [reward], []
    if "gradient" in recipe.get("sampling", {}):  # of a reward that has one, for scenes of 32 x 32
        rewards, groups = ["scene_clean"], ["--data.group-size", 1]
        more = ["--model.height", 32, "--model.width", 32]
    if name == "gardo":  # judges that disagree with the reward, and a distance
        rewards += ["jpeg_incompressibility(weight=0)", "nearest_distance(weight=0)"]
        parts = f"of='{reward}', auxiliary=['jpeg_incompressibility'], fraction=recent(0.1)"
        more = ["--algorithm.kl-weight", f"uncertain_part({parts})"]
    if name == "flow_opd":  # a teacher that is there
        more = ["--algorithm.networks", f"frozen(path='{output / 'flow_grpo' / 'model'}')"]
    # With a visible step and no average, so the LoRA that is saved draws something else.
    tokens = families()[family].sections.process == "tokens"
    steps = [] if tokens else ["--sampling.evaluation-steps", 2, "--sampling.forward-batch-size", 256]
    visible = ["--optim.lr", 0.1, "--optim.ema", 0] if name == "flow_grpo" else []
    small = dict(EXAMPLES[family].model)
    if "max_sequence_length" in small:
        small["max_sequence_length"] = 64
    if "transformer" in recipe["model"]:
        small["transformer"] = ""  # published by itself; the tiny model has its own
    return [
        *("--recipe", f"visual/{name}", "--output-dir", output, "--model.path", model),
        *(word for key, value in small.items() for word in (f"--model.{key.replace('_', '-')}", value)),
        *("--model.dtype", "float32", "--data.prompts-per-step", recipe["optim"].get("updates", 1)),
        *groups,
        *steps,
        *("--optim.micro-batch-size", 64, "--steps", 2, "--threads", 1),
        *("--eval.prompts", 2, "--samples-shown", 2),
        *("--rewards", *rewards, *visible, *more),
        *few_prompts(output / name, media if families()[family].image_input == "required" else None),  # type: ignore
        *(given_pairs(output / name, media) if recipe["data"].get("offline") else []),
    ]


def generates_video(family: str) -> bool:
    """True for a family whose samples are clips."""
    return "frames" in {field.name for field in fields(families()[family].sections.model)}


def few_prompts(output: Path, media: Path | None) -> list[object]:
    """Options that name four prompts for training and two others, each with a picture if there is a folder of media.

    Recipes name hundreds, all of which would be encoded first.
    """
    for split, numbers in {"train": range(4), "heldout": (4, 5)}.items():
        picture = {number: {"image": str(media / f"{number}.png")} if media else {} for number in numbers}
        rows = [{"text": f"a square {number}", "answer": "square", **picture[number]} for number in numbers]
        write_rows(output.parent / f"{output.name}-{split}.jsonl", rows)
    return [
        option
        for split in ("train", "heldout")
        for option in (f"--data.{split}", output.parent / f"{output.name}-{split}.jsonl")
    ]


def given_pairs(output: Path, media: Path) -> list[object]:
    """Options that name four pairs of pictures for training."""
    pair = {"chosen_image": str(media / "0.png"), "rejected_image": str(media / "1.png")}
    write_rows(path := output.parent / f"{output.name}-pairs.jsonl", [{"text": f"a {n}", **pair} for n in range(4)])
    return ["--data.train", path]


SCENES = [
    "--data.train",
    "embedded:visual/scenes/train.jsonl",
    "--data.heldout",
    "embedded:visual/scenes/heldout.jsonl",
]
"""The embedded prompts, which a run of a model of one's own names."""


def visual(words: Path, output: Path, *more: object) -> list[object]:
    """A run of the model without VAE: 12 steps, a checkpoint every 4."""
    return [
        *("--output-dir", output, "--name", "run", *SCENES),
        *("--model.path", words, "--model.height", 16, "--model.width", 16),
        *("--steps", 12, "--save-every", 4, "--threads", 1, "--trackers", "--rewards", "jpeg_compressibility"),
        *("--data.prompts-per-step", 2, "--data.group-size", 4),
        *("--sampling.steps", 4, "--sampling.evaluation-steps", 2),
        *("--eval.prompts", 3, "--optim.ema", 0.5, "--optim.lr", 0.01, *more),
    ]


# ---- pictures and clips that are looked at

ANSWERS = {
    "box_iou": [4, 4, 20, 20],
    "box_gui_g1": [4, 4, 20, 20],
    "detection_od_length": [{"bbox_2d": [4, 4, 20, 20], "label": "cup"}],
    "detection_visual_rft": [[4, 4, 20, 20]],
    "choice": "B",
    "temporal_time_r1": [0.5, 1.5],
    "count_fuzzy": 3,
    "math": "\\sqrt{2}",
    "exact": "red",
    "detection_ap50": [{"bbox_2d": [4, 4, 20, 20], "label": "cup"}],
    "trajectory": [[0.1, 0.2], [0.5, 0.5]],
    "ton": {"action": "click", "position": [0.2, 0.3]},
    "numeric": 6,
}
"""Task to a gold answer."""


def write_media(folder: Path) -> Path:
    """Six pictures and six videos, 32 x 24."""
    for number in range(6):
        noise = np.random.default_rng(number).integers(0, 255, (24, 32, 3), dtype=np.uint8)
        Pil.fromarray(noise).save(folder / f"{number}.png")
        write_video(folder / f"{number}.mp4", number)
    return folder


def write_video(path: Path, shade: int) -> None:
    """Two seconds of four frames each, lighter and lighter."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=4)
        stream.width, stream.height, stream.pix_fmt = 32, 24, "yuv420p"
        for frame in range(8):
            pixels = np.full((24, 32, 3), 25 * frame + shade, dtype=np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())


def row(number: int, task: str, kind: str) -> dict[str, Any]:
    """A question about one picture or video."""
    file = f"{number}.mp4" if kind == "video" else f"{number}.png"
    blocks = [{"type": kind, kind: file}, {"type": "text", "text": "which box is red?"}]
    meta = {"coordinates": "resized", "size": [24, 32], "duration": 2.0}
    columns = {"id": f"{kind}-{number}", "task": task, "answer": ANSWERS[task], "meta": meta}
    return {"messages": [{"role": "user", "content": blocks}], **columns}


def questions(folder: Path, task: str, kinds: tuple[str, ...]) -> list[object]:
    """Options that name four training prompts and two held-out ones, of the kinds in turn."""
    splits = {
        "train": [row(number, task, kinds[number % len(kinds)]) for number in range(4)],
        "heldout": [row(number, task, kinds[number % len(kinds)]) for number in (4, 5)],
    }
    for name, rows in splits.items():
        write_rows(folder / f"{name}.jsonl", rows)
    clips = ["--model.frame-pixels", 256, "--model.max-frames", 4, "--model.fps", 2] if "video" in kinds else []
    return clips + [option for name in splits for option in (f"--data.{name}", folder / f"{name}.jsonl")]


def vlm(model: str, media: Path, output: Path, *more: object) -> list[object]:
    """Options that make any recipe for models that look quick."""
    return [
        *("--model.path", model, "--model.dtype", "float32", "--model.min-pixels", 64, "--model.max-pixels", 1024),
        *("--data.media-root", media, "--output-dir", output, "--steps", 2, "--threads", 1),
        *("--trackers", "--samples-shown", 2),
        *("--sampling.max-tokens", 6, "--eval.prompts", 2, "--eval.every", 0, *more),
    ]


LETTERS = """
def ones(prompts, outputs):
    return [output.text.count("e") / max(1, len(output.text)) for output in outputs]
"""
"""A reward of the user's: the fraction of the letter e."""


def vlm_run(model: str, media: Path, output: Path, *more: object) -> list[object]:
    """A run of six steps on pictures and videos, a checkpoint every two; its reward is ``own.py`` in ``output``."""
    (output / "own.py").write_text(LETTERS)
    options = [
        *questions(output, "exact", ("image", "video")),
        *("--data.prompts-per-step", 2, "--data.group-size", 4, "--optim.lr", 0.01, "--save-every", 2, "--steps", 6),
    ]
    small = vlm(model, media, output, *options)
    return [
        "--model.family",
        "qwen_vl",
        "--name",
        "run",
        *small,
        "--rewards",
        "own:ones(process=False)",
        "task(weight=0)",
        *more,
    ]


# ---- clips that are heard

SPEECH = ["--steps", 2, "--data.prompts-per-step", 2, "--data.group-size", 4, "--sampling.max-tokens", 6]
SPEECH += ["--eval.prompts", 4, "--threads", 1, "--trackers"]
