"""Which prompts of a file a run can show: those whose media can be read, and which are not too long.

What is left out is counted aloud and listed in skipped.jsonl with its reason; nothing is ever put in its place.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mmgrpo.data.media import Skipped
    from mmgrpo.types import Prompt

WORKERS = 4
"""Media that are opened at a time."""


def read_file(path: str, media_root: str) -> list[Prompt]:
    """The prompts of a file or data set; relative paths of media start from ``media_root``, or from its folder."""
    from pipelines.hub import load_prompts

    return load_prompts(path, media_root)


def readable(prompts: Sequence[Prompt], file: str, limit: float) -> tuple[list[Prompt], list[Skipped]]:
    """The prompts whose media can be read, and the others; an error if these are more than the share ``limit``."""
    from pipelines.vlm.media import check_media

    if not any(prompt.media for prompt in prompts):
        return list(prompts), []
    kept, skipped = check_media(prompts, workers=WORKERS, title=f"media of {file}")
    refuse_many(skipped, len(prompts), limit, file, "prompts show something that cannot be read")
    return kept, skipped


def refuse_many(skipped: Sequence[Skipped], of: int, limit: float, file: str, told: str) -> None:
    """ValueError where more than the share ``limit`` of a file is left out, or all; ``told`` is what is wrong."""
    if len(skipped) > limit * of or len(skipped) == of:
        raise ValueError(
            f"{file}: {len(skipped)} of {of} {told}, more than data.skip_limit={limit:g} allows; the first: "
            f"{'; '.join(one.reason for one in skipped[:3])}"
        )


def short_enough(
    prompts: Sequence[Prompt], length: Callable[[Prompt], int], most: int
) -> tuple[list[Prompt], list[Skipped]]:
    """The prompts of at most so many tokens, media included, and the others; an error where none is left."""
    from tqdm import tqdm

    from mmgrpo.data.media import Skipped, file_of

    kept, skipped = [], []
    for prompt in tqdm(prompts, "lengths of prompts", leave=False):
        tokens = length(prompt)
        if tokens <= most:
            kept.append(prompt)
        else:
            file = file_of(prompt.media[0]) if prompt.media else ""
            skipped.append(Skipped(prompt.id, file, f"{tokens} tokens, more than max_prompt_tokens={most}"))
    if prompts and not kept:
        raise ValueError(f"no prompt has at most model.max_prompt_tokens={most} tokens; the first: {skipped[0].reason}")
    return kept, skipped


def then_list(open_run: Callable[[], Path], skipped: Sequence[Skipped], main: bool) -> Callable[[], Path]:
    """``open_run``, which makes the run folder; then the main process lists in it what was left out, and says so."""
    from mmgrpo.runtime.files import write_text

    def opened() -> Path:
        folder = open_run()
        if main and skipped:
            lines = [json.dumps(asdict(one), ensure_ascii=False) for one in skipped]
            write_text(folder / "skipped.jsonl", "".join(f"{line}\n" for line in lines))
            print(f"{len(skipped)} prompts are left out, listed in {folder / 'skipped.jsonl'}", flush=True)
        return folder

    return opened
