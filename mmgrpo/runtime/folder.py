"""The folder of a run: never overwritten, nor continued with other settings, by accident."""

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

CONTINUES = {
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
"""Fields that may differ when a run is resumed."""


def run_folder(config: Config) -> Path:
    """Where the run lives."""
    return Path(config.output_dir) / config.name


def refuse_folder(config: Config) -> None:
    """An error for a folder that holds another run, or this one with other settings."""
    folder = run_folder(config)
    kept = folder / "config.yaml"
    if not kept.is_file():
        return
    if config.resume:
        before, now = load_yaml(kept), dataclasses.asdict(config)
        changed = [key for key in now if key not in CONTINUES and before.get(key) != now[key]]
        if changed:
            raise ValueError(
                f"{kept} was written with other settings of {', '.join(changed)}; resume with the same ones, "
                "or start another run with --name"
            )
    elif not config.overwrite:
        raise FileExistsError(
            f"{folder} already holds a run; continue it with --resume, start afresh with --overwrite, "
            "or choose another --name"
        )


def open_folder(config: Config, skipped: Sequence[Skipped], accelerator: Accelerator) -> None:
    """Make the run folder, with the resolved config in it, and the prompts that are left out in ``skipped.jsonl``.

    What an earlier run left there goes, unless it is resumed.
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
            print(f"{len(skipped)} prompts are left out, listed in {folder / 'skipped.jsonl'}", flush=True)
    accelerator.wait_for_everyone()
