"""Score files with rewards: images, videos, recordings and texts.

    mmgrpo score --reward jpeg_compressibility image.png other.png
    mmgrpo score --reward ocr --prompt "a sign that says exit" --answer exit *.png
    mmgrpo score --reward dnsmos --reward seconds --json speech.wav
    mmgrpo score --reward "served(reward='ocr')" --prompt "a sign" image.png

The kind of a file is that of its suffix; a .txt file is one text. Of a video all frames are read. What a reward
cannot score is shown as failed, and as null in JSON; the exit status is then 1.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from mmgrpo.cli.errors import enter
from mmgrpo.cli.options import options
from mmgrpo.config.ranges import ANY_TEXT, COUNT, LONG_TEXT, THREADS
from mmgrpo.data.limits import SUFFIXES

if TYPE_CHECKING:
    from mmgrpo.types import Output

KINDS = {**SUFFIXES, "text": (".txt",)}
"""The kinds of files by suffix."""


@dataclass
class Args:
    """The files to score, and with what."""

    files: Annotated[tyro.conf.Positional[list[str]], ANY_TEXT]
    """Images, videos, recordings or texts."""
    reward: Annotated[tyro.conf.UseAppendAction[list[str]], ANY_TEXT] = field(default_factory=list)
    """A reward, written name(parameter=value) as in a recipe; repeat the option for several."""
    prompt: Annotated[str, LONG_TEXT] = ""
    """The text of the prompt, the same for all files."""
    answer: Annotated[str, LONG_TEXT] = ""
    """The reference answer, for rewards that read one: JSON, or else a text."""
    task: Annotated[str, ANY_TEXT] = ""
    """The task of the prompt, for the reward "task"."""
    json: bool = False
    """Print a line of JSON per file instead of a table."""
    batch_size: Annotated[int, COUNT] = 16
    """Files to read and score at a time."""
    device: Annotated[str, ANY_TEXT] = "auto"
    """Device of the rewards that do not name their own."""
    threads: Annotated[int, THREADS] = 0
    """CPU threads of torch; 0 leaves the choice to torch."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the values of all files, and exit with 1 if one could not be scored."""
    args = options(Args, arguments, __doc__)
    if not args.reward:
        raise ValueError("got no reward, expected at least one, e.g. --reward ocr; 'mmgrpo rewards' lists them")
    if not args.files:
        raise ValueError("got no files, expected at least one image, video, audio or text")
    for file in args.files:
        kind_of(file)
    import torch

    from mmgrpo.rewards import scorers
    from mmgrpo.runtime import devices
    from mmgrpo.scoring import score_outputs
    from mmgrpo.types import Prompt

    if args.threads:
        torch.set_num_threads(args.threads)
    rewards = scorers(args.reward, str(devices.accelerator(args.device).device))
    names, width = [reward.name for reward in rewards], max(map(len, args.files))
    if not args.json:
        print("  ".join([f"{'file':{width}}", *(f"{name:>{max(9, len(name))}}" for name in names)]))
    failed = 0
    prompt = Prompt(args.prompt, answer=answer_of(args.answer), task=args.task)
    for start in range(0, len(args.files), args.batch_size):
        files = args.files[start : start + args.batch_size]
        # A prompt of its own for each file: they are not samples of one group.
        prompts = [Prompt(prompt.text, file, prompt.answer, prompt.task) for file in files]
        scores = score_outputs(rewards, prompts, [read_output(file) for file in files])
        for file, values, valid in zip(files, scores.values.tolist(), scores.valid.tolist(), strict=True):
            row = [value if there else math.nan for value, there in zip(values, valid, strict=True)]
            failed += any(map(math.isnan, row))
            print(line_of(file, dict(zip(names, row, strict=True)), width, args.json), flush=True)
    if failed:
        print(f"{failed} of {len(args.files)} files could not be scored by every reward", file=sys.stderr)
        raise SystemExit(1)


def line_of(file: str, values: dict[str, float], width: int, as_json: bool) -> str:
    """The values of a file, NaN where there is none, as a line of JSON or of the table."""
    if as_json:
        numbers = {name: None if math.isnan(value) else value for name, value in values.items()}
        return json.dumps({"file": file, "rewards": numbers}, ensure_ascii=False)
    cells = [
        f"{'failed' if math.isnan(value) else f'{value:.6g}':>{max(9, len(name))}}" for name, value in values.items()
    ]
    return "  ".join([f"{file:{width}}", *cells])


def answer_of(text: str) -> object:
    """The value of JSON, else the text itself; None if it is empty."""
    try:
        return json.loads(text) if text else None
    except ValueError:
        return text


def kind_of(file: str) -> str:
    """``image``, ``video``, ``audio`` or ``text``; ValueError for another suffix, and for a folder."""
    if Path(file).is_dir():
        raise ValueError(f"{file}: is a folder, expected files; name those inside: {file.rstrip('/')}/*")
    suffix = Path(file).suffix.lower()
    for kind, suffixes in KINDS.items():
        if suffix in suffixes:
            return kind
    known = ", ".join(suffix for suffixes in KINDS.values() for suffix in suffixes)
    raise ValueError(f"{file}: got the suffix '{suffix}', expected one of {known}; convert the file")


def read_output(file: str) -> Output:
    """A file as what a model could have made; a file that cannot be read is an error that names it."""
    kind = kind_of(file)
    if kind == "image":
        from mmgrpo.data.images import decode_image

        return decode_image(file)
    if kind == "audio":
        from mmgrpo.types import Media
        from pipelines.speech.audio import read_audio

        return read_audio(Media("audio", file))
    if kind == "video":
        from mmgrpo.types import Video
        from pipelines.containers import decode
        from pipelines.speech.audio import sound_of_clip

        video = decode(file, lambda frames, fps: range(frames))
        return Video(video.frames.float() / 255, video.fps, sound_of_clip(file))
    from mmgrpo.types import Text

    try:
        return Text(Path(file).read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}: got bytes that are not UTF-8 ({error}); convert the file") from error


if __name__ == "__main__":
    enter(main)
