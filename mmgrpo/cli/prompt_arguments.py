"""Prompts of the command line: texts, and images, videos and audio in files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from mmgrpo.config.ranges import ANY_TEXT, LONG_TEXT

if TYPE_CHECKING:
    from mmgrpo.config.settings import Config
    from mmgrpo.family import Family
    from mmgrpo.types import Prompt

KINDS = ("image", "video", "audio")


@dataclass
class Given:
    """Prompts in place of those of a file."""

    prompts: Annotated[list[str], LONG_TEXT] = field(default_factory=list)
    """Prompts, or audio files for speech recognition; if empty, the prompts of --file are used."""
    image: Annotated[list[str], ANY_TEXT] = field(default_factory=list)
    """Images that every prompt shows, in this order; <image> in a prompt is the place of each."""
    video: Annotated[list[str], ANY_TEXT] = field(default_factory=list)
    """Videos that every prompt shows."""
    audio: Annotated[list[str], ANY_TEXT] = field(default_factory=list)
    """Recordings that every prompt plays; without --prompts each is a prompt of its own, for speech recognition."""
    answers: Annotated[list[str], LONG_TEXT] = field(default_factory=list)
    """Reference answers, one for each prompt, for rewards that compare."""
    task: Annotated[str, ANY_TEXT] = ""
    """The task of the prompts, for the reward task."""


def is_given(args: Given) -> bool:
    """Whether the command line has prompts of its own."""
    return bool(args.prompts or any(getattr(args, kind) for kind in KINDS))


def given_prompts(args: Given, config: Config, model_family: Family) -> list[Prompt]:
    """The prompts of the command line; ValueError for a file that the family cannot read, and for answers that are not
    one for each."""
    media = {kind: list(getattr(args, kind)) for kind in KINDS if getattr(args, kind)}
    if not (media or args.answers or args.task):
        return model_family.prompts(config, args.prompts)
    rows = rows_of(args.prompts, media)
    if args.answers and len(args.answers) != len(rows):
        raise ValueError(f"--answers: got {len(args.answers)} answers, expected {len(rows)}, one for each prompt")
    for row, answer in zip(rows, args.answers):
        row["answer"] = answer
    from mmgrpo.data.rows import as_prompts

    prompts = as_prompts([{**row, "task": args.task} for row in rows], "--prompts")
    readable, skipped = model_family.readable(config, prompts, "--prompts")
    if skipped:
        raise ValueError(f"--prompts: {skipped[0].reason}")
    return list(readable)


def rows_of(texts: Sequence[str], media: dict[str, list[str]]) -> list[dict[str, Any]]:
    """Rows of each text with all media, or with each recording by itself where there are no texts."""
    if texts:
        return [{"text": text, **{f"{kind}s": files for kind, files in media.items()}} for text in texts]
    if media.keys() != {"audio"}:
        raise ValueError(f"--{next(iter(media))}: got no question about it; give --prompts as well")
    return [{"text": "", "audio": file} for file in media["audio"]]
