"""Check a data set before anything is trained on it: rows, pictures, clips, sounds, tasks, answers, and what they cost.

    mmgrpo check-data data.jsonl
    mmgrpo check-data data.jsonl --media-root /data/pictures --skipped bad.jsonl
    mmgrpo check-data data.jsonl --model Qwen/Qwen2.5-VL-3B-Instruct --max-pixels 401408
    mmgrpo check-data hf:hiyouga/geometry3k@train --limit 100

Every row is read and every picture and sound decoded; of a clip the first and the last frame. Tokens are worked out
from sizes: exactly with --model, whose processor and tokenizer are then read (its weights are not); without, as
Qwen2.5-VL sees media (a sound adds none), and four characters of text counted as a token. What is wrong is listed with
its place in the file, and the exit status is 1 where there is something wrong, 2 where there is no data set.
"""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from mmgrpo.cli.errors import enter
from mmgrpo.runtime.plugins import locate

if TYPE_CHECKING:
    from mmgrpo.data.media import Skipped
    from mmgrpo.types import Prompt
    from pipelines.vlm.media import Measure

SHOWN = 20
"""Problems that are printed; --skipped lists all."""


@dataclass
class Args:
    """Which data set is checked, and how its prompts would be read."""

    data: tyro.conf.Positional[str]
    """A .jsonl or .txt file, or hf:<folder or hub id>@<split>."""
    media_root: str = ""
    """Folder that relative paths of media start from; empty takes the file's own folder."""
    limit: int = 0
    """Only so many rows, from the first; 0 takes all."""
    workers: int = 2
    """Files that are opened at the same time."""
    check_tasks: bool = True
    """Whether the reward "task" must know every row's task and its gold answer. Rows without a task are not asked."""
    skip_limit: float = 0.0
    """The share of rows that may have something wrong before the exit status says so (data.skip_limit of a recipe)."""
    skipped: Annotated[str, tyro.conf.arg(help_behavior_hint="(default: none)")] = ""
    """File that is written with every row that has something wrong: id, file, reason."""
    model: Annotated[str, tyro.conf.arg(help_behavior_hint="(default: sizes of Qwen2.5-VL)")] = ""
    """Model whose tokens are counted: a folder or a hub id."""
    family: str = "qwen_vl"
    """Its family; only qwen_vl is known here."""
    min_pixels: int = 0
    """Least and largest picture in pixels, as in a recipe's model section; 0 takes the model's."""
    max_pixels: int = 0
    frame_pixels: int = 0
    """Largest frame of a clip."""
    max_frames: int = 0
    """Most frames of a clip."""
    fps: float = 0.0
    """Frames looked at per second of a clip."""
    max_prompt_tokens: int = 0
    """A longer prompt is something wrong; 0 allows any."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Check, print, and exit with 1 where something is wrong."""
    args = tyro.cli(Args, args=arguments, description=__doc__)
    if args.family != "qwen_vl":
        raise ValueError(f"--family: tokens are worked out for qwen_vl only, got '{args.family}'")
    from mmgrpo.runtime.files import write_text
    from pipelines.hub import attempts
    from pipelines.vlm.media import measure_all

    rows = list(islice(attempts(locate(args.data), args.media_root), args.limit or None))
    good = [(place, prompt) for place, prompt in rows if not isinstance(prompt, ValueError)]
    measures = measure_all([prompt for _, prompt in good], args.workers, "media")
    count = counter(args)
    wrong = {place: row_problem(place, prompt) for place, prompt in rows if isinstance(prompt, ValueError)}
    tokens = []
    for (place, prompt), known in zip(good, measures, strict=True):
        problem = media_problem(prompt, known) or (task_problem(prompt) if args.check_tasks else None)
        if not problem:
            problem, length = measured(prompt, known, count, args.max_prompt_tokens)  # type: ignore[arg-type]
            tokens += [length] if length else []
        if problem:
            wrong[place] = problem
    prompts = [prompt for _, prompt in good]
    print(f"{args.data}: {len(rows)} rows")
    print("\n".join(f"  {name:<10}{text}" for name, text in described(prompts, measures, tokens) if text))
    print_problems({place: wrong[place] for place, _ in rows if place in wrong})
    if args.skipped:
        lines = (json.dumps(asdict(problem), ensure_ascii=False) + "\n" for problem in wrong.values())
        write_text(Path(args.skipped), "".join(lines))
        print(f"written: {args.skipped}")
    if len(wrong) > args.skip_limit * len(rows):
        raise SystemExit(1)


def row_problem(place: str, error: ValueError) -> Skipped:
    """A row that cannot be read has no id but its place."""
    from mmgrpo.data.media import Skipped

    return Skipped(place, "", str(error).removeprefix(f"{place}: "))


def media_problem(prompt: Prompt, known: Sequence[Measure | ValueError]) -> Skipped | None:
    """The first medium that cannot be read."""
    from mmgrpo.data.media import Skipped, file_of

    bad = [(media, found) for media, found in zip(prompt.media, known) if isinstance(found, ValueError)]
    return Skipped(prompt.id, file_of(bad[0][0]), str(bad[0][1])) if bad else None


def task_problem(prompt: Prompt) -> Skipped | None:
    """What the reward "task" says against the row: its task, or its gold answer.

    What is heard is judged by rewards of its own, whatever its task is called, as long as the answer is a text.
    """
    from mmgrpo.data.media import Skipped
    from mmgrpo.types import Text
    from reward_models.rules.tasks import TASKS, task

    if prompt.task not in TASKS and any(media.kind == "audio" for media in prompt.media):
        texts = prompt.answer if isinstance(prompt.answer, list) else [prompt.answer]
        if all(isinstance(text, str) for text in texts):
            return None
        return Skipped(prompt.id, "", f"its answer is {prompt.answer!r}; wanted what is said, or to be said, as a text")
    try:
        if prompt.task:
            task([prompt], [Text("<answer>1</answer>")])
    except ValueError as error:
        return Skipped(prompt.id, "", str(error))
    return None


def measured(
    prompt: Prompt, known: Sequence[Measure], count: Callable[[Prompt, Sequence[Measure]], int], limit: int
) -> tuple[Skipped | None, int]:
    """What is wrong with the size of a prompt, and its tokens."""
    from mmgrpo.data.media import Skipped

    try:
        length = count(prompt, known)
    except ValueError as error:
        return Skipped(prompt.id, "", str(error)), 0
    if 0 < limit < length:
        return Skipped(prompt.id, "", f"has {length} tokens, more than --max-prompt-tokens {limit}"), length
    return None, length


def counter(args: Args) -> Callable[[Prompt, Sequence[Measure]], int]:
    """Tokens of a prompt whose media have been measured."""
    from pipelines.vlm.estimate import Sizes, of_model, tokens_of

    given = {name: getattr(args, name) for name in ("min_pixels", "max_pixels", "frame_pixels", "max_frames", "fps")}
    given = {name: value for name, value in given.items() if value}
    words: Callable[[Prompt], int] = lambda prompt: len(prompt.text) // 4 + 1  # noqa: E731
    sizes = Sizes(**given)
    if args.model:
        sizes, words = of_model(args.model, **given)

    def count(prompt: Prompt, known: Sequence[Measure]) -> int:
        shown = [(media, found) for media, found in zip(prompt.media, known, strict=True) if media.kind != "audio"]
        return words(prompt) + sum(tokens_of(media, found, sizes) for media, found in shown)

    return count


def described(
    prompts: Sequence[Prompt], measures: Sequence[Sequence[Any]], tokens: Sequence[int]
) -> list[tuple[str, str]]:
    """What the data set holds, by name."""
    from pipelines.vlm.media import Measure

    kinds = Counter(" + ".join(sorted({media.kind for media in prompt.media})) or "text" for prompt in prompts)
    tasks = Counter(prompt.task for prompt in prompts if prompt.task)
    found: dict[str, list[Measure]] = {"image": [], "video": [], "audio": []}
    for prompt, known in zip(prompts, measures, strict=True):
        for media, measure in zip(prompt.media, known, strict=True):
            if isinstance(measure, Measure):
                found[media.kind].append(measure)
    pictures, clips, sounds = found["image"], found["video"], found["audio"]
    replies = sum("reply" in prompt.meta for prompt in prompts)
    return [
        ("rows of", counted(kinds)),
        ("tasks", counted(tasks)),
        ("answers", f"{sum(prompt.answer is not None for prompt in prompts)} rows have one"),
        ("replies", f"{replies} rows end with the assistant; that turn is not shown" if replies else ""),
        ("pictures", sizes_of(pictures)),
        ("clips", sizes_of(clips)),
        ("", spread("seconds", [clip.seconds for clip in clips])),
        ("", spread("frames a second", [clip.frames / clip.seconds for clip in clips])),
        ("sounds", spread(f"{len(sounds)}, seconds", [sound.seconds for sound in sounds])),
        ("tokens", spread("a prompt", tokens)),
    ]


def counted(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.most_common())


def sizes_of(measures: Sequence[Measure]) -> str:
    """How many there are and how large they are."""
    if not measures:
        return ""
    sides = [side for one in measures for side in (one.height, one.width)]
    area = statistics.median(one.height * one.width for one in measures)
    return f"{len(measures)}, sides from {min(sides)} to {max(sides)} pixels, median area {area / 1e6:.3g} megapixels"


def spread(unit: str, values: Sequence[float | int]) -> str:
    """Least, median, 95th percentile and largest of some numbers."""
    if not values:
        return ""
    ordered = sorted(values)
    high = ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
    least, middle, high, most = (
        f"{value:.4g}" for value in (ordered[0], statistics.median(ordered), high, ordered[-1])
    )
    return f"{unit}: least {least}, median {middle}, 95 of 100 below {high}, most {most}"


def print_problems(wrong: dict[str, Skipped]) -> None:
    print(f"something is wrong with {len(wrong)} rows" if wrong else "nothing is wrong")
    for place, problem in islice(wrong.items(), SHOWN):
        print(f"  {place}: {problem.reason}")
    if len(wrong) > SHOWN:
        print(f"  ... and {len(wrong) - SHOWN} more; --skipped FILE lists all")


if __name__ == "__main__":
    enter(main)
