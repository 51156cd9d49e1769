"""The folder of a run, which is never overwritten or resumed with other settings by accident."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mmgrpo.runtime.config import Config
from mmgrpo.runtime.files import write_text
from mmgrpo.runtime.reading import load_yaml, write_yaml

if TYPE_CHECKING:
    from accelerate import Accelerator

    from mmgrpo.data.media import Skipped

FREE_ON_RESUME = {
    "resume",
    "overwrite",
    "dry_run",
    "steps",
    "save_every",
    "keep",
    "trackers",
    "threads",
    "deterministic",
    "output_dir",
}
"""Settings that may change when a run is resumed: its length, what it stores where, and how it uses the CPU."""


def run_folder(config: Config) -> Path:
    """The folder of the run, ``<output_dir>/<name>``."""
    return Path(config.output_dir) / config.name


def refuse_folder(config: Config) -> None:
    """Raise an error if the folder contains another run, or this run with other settings."""
    folder = run_folder(config)
    written = folder / "config.yaml"
    if not written.is_file():
        return
    if config.resume:
        before, now = load_yaml(written), dataclasses.asdict(config)
        changed = [key for key in now if key not in FREE_ON_RESUME and before.get(key) != now[key]]
        if changed:
            raise ValueError(
                f"{written} has other settings of {', '.join(changed)}; resume with the same settings, "
                "or start another run with --name"
            )
    elif not config.overwrite:
        raise FileExistsError(
            f"{folder} already contains a run; continue it with --resume, replace it with --overwrite, "
            "or choose another --name"
        )


def open_folder(config: Config, skipped: Sequence[Skipped], accelerator: Accelerator) -> None:
    """Create the run folder, with the resolved configuration, and with the skipped prompts in ``skipped.jsonl``.

    The files of an earlier run are removed unless that run is resumed.
    """
    folder = run_folder(config)
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        refuse_folder(config)
        if (folder / "config.yaml").is_file() and not config.resume:
            shutil.rmtree(folder)
        write_yaml(folder / "config.yaml", config)
        if skipped:
            lines = [json.dumps(dataclasses.asdict(one), ensure_ascii=False) for one in skipped]
            write_text(folder / "skipped.jsonl", "".join(f"{line}\n" for line in lines))
            print(f"{len(skipped)} prompts are skipped and listed in {folder / 'skipped.jsonl'}", flush=True)
    accelerator.wait_for_everyone()
