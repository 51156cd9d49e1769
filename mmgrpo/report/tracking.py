"""Experiment trackers of accelerate: how a run is named there, and what is sent besides the metrics of its steps."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from mmgrpo.config.settings import Config, flat

if TYPE_CHECKING:
    from accelerate import Accelerator

    from mmgrpo.evaluation import Evaluation

PROJECT = "mmgrpo"
"""Name of the project in a tracker, and of TensorBoard's folder inside of ``tensorboard/``."""
RUN_NAME = {"wandb": "name", "trackio": "name", "swanlab": "experiment_name", "mlflow": "run_name"}
"""Argument of each tracker that names the run; the others have none."""
SINGLE = ("aim", "clearml")
"""Trackers that take an image instead of several."""
MOMENT = re.compile(r"(before|after|step-\d+)-?")


def begin(accelerator: Accelerator, config: Config, step: int) -> None:
    """Start the trackers of a run whose next step is ``step + 1``.

    TensorBoard then hides what an interrupted run wrote of the steps that are repeated now.
    """
    options: dict[str, dict[str, Any]] = {name: {key: config.name} for name, key in RUN_NAME.items()}
    options["tensorboard"] = {"purge_step": step + 1}
    if config.trackers:
        accelerator.init_trackers(PROJECT, config=flat(config), init_kwargs=options)


def send_evaluation(
    accelerator: Accelerator,
    title: str,
    result: Evaluation,
    image: Path,
    step: int,
    numbers: Mapping[str, float] | None = None,
) -> None:
    """Send the means of an evaluation as ``eval/<reward>``, of one on a further file, as ``after-natural``, as
    ``eval-natural/<reward>``, further ``numbers`` likewise, and its samples, where an image was written."""
    files = "-".join(filter(None, ["eval", MOMENT.sub("", title, count=1)]))
    scored = {name: np.asarray(values)[~np.isnan(values)] for name, values in result.values.items()}
    means = {name: float(some.mean()) for name, some in scored.items() if some.size}
    accelerator.log({f"{files}/{name}": value for name, value in {**means, **(numbers or {})}.items()}, step=step)
    if not accelerator.trackers or not image.is_file():
        return
    pixels = np.asarray(Image.open(image).convert("RGB"))[None]
    for tracker in accelerator.trackers:
        if hasattr(tracker, "log_images"):
            layout = {"dataformats": "NHWC"} if tracker.name == "tensorboard" else {}
            shown = pixels[0] if tracker.name in SINGLE else pixels
            tracker.log_images({f"{files}/samples": shown}, step=step, **layout)
