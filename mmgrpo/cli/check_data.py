"""Check a data set before training: rows, images, videos, recordings, tasks, answers, and their length in tokens.

    mmgrpo check-data data.jsonl
    mmgrpo check-data data.jsonl --media-root /data/images --skipped bad.jsonl
    mmgrpo check-data data.jsonl --model Qwen/Qwen2.5-VL-3B-Instruct --max-pixels 401408
    mmgrpo check-data hf:hiyouga/geometry3k@train --limit 100

Every row is read, every image and audio is decoded, and of every video the first and the last frame. Tokens are
computed from sizes: exactly with a --model of Qwen-VL's kind or a language model, whose processor and tokenizer are
read (but not its weights), not at all with another one (of a generator, prompts that its text encoders would cut are
problems); otherwise as for Qwen2.5-VL, with four characters of text per
token and no tokens for recordings. Problems are listed with their place in the file. The exit status is 1 if there are
problems, and 2 without a data set.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from mmgrpo.cli.errors import enter
from mmgrpo.cli.options import json_output, options
from mmgrpo.config.plugins import locate
from mmgrpo.config.ranges import ANY_NUMBER, ANY_TEXT, COUNT_OR_ZERO, FRACTION, one_of, within
from mmgrpo.terminal import definitions

if TYPE_CHECKING:
    from mmgrpo.data.media import Skipped
    from mmgrpo.scoring import Scorer
    from mmgrpo.types import Prompt
    from pipelines.vlm.media import Measure

SHOWN = 20
"""Number of problems to print; --skipped lists all."""

FEW = 4
"""Number of readers of a key to print."""


@dataclass
class Args:
    """The data set to check, and how a run would read its prompts."""

    data: Annotated[tyro.conf.Positional[str], ANY_TEXT]
    """A .jsonl, .json, .csv, .parquet, WebDataset .tar or .txt file, a folder of media with metadata.jsonl or .csv, or
    hf:<folder or hub id>@<split>."""
    media_root: Annotated[str, ANY_TEXT] = ""
    """Folder to which paths of media are relative; by default the folder of the file."""
    columns: Annotated[str, ANY_TEXT] = ""
    """Columns under our names, as data.columns of a run: theirs=ours,..., e.g. question=problem,solution=answer."""
    limit: Annotated[int, COUNT_OR_ZERO] = 0
    """Number of rows to check from the start; 0 checks all."""
    workers: Annotated[int, within("[1, 256]")] = 2
    """Number of files to read in parallel."""
    check_tasks: bool = True
    """Check that the reward "task" accepts the task and the reference answer of every row that has a task."""
    reward: Annotated[tyro.conf.UseAppendAction[list[str]], ANY_TEXT] = field(default_factory=list)
    """A reward of the run, written name(parameter=value), that must give every reference answer its maximum and an
    empty answer less; repeat the option for several. By default "task", for rows that have one."""
    skip_limit: Annotated[float, FRACTION] = 0.0
    """Largest fraction of rows with problems for an exit status of 0, as data.skip_limit of a recipe. A row that is
    none stops a run whatever the limit, and so does not count."""
    blind: Annotated[str, ANY_TEXT, tyro.conf.arg(help_behavior_hint="(default: none)")] = ""
    """File that mmgrpo evaluate wrote for this data (--file, --samples), with values for blank media: rows that are
    solved without their media are problems."""
    blind_limit: Annotated[float, ANY_NUMBER] = 0.5
    """Mean reward without media from which a row counts as solved."""
    kept: Annotated[str, ANY_TEXT, tyro.conf.arg(help_behavior_hint="(default: none)")] = ""
    """Output file (.jsonl) with the rows without a problem, as they are, to train on."""
    skipped: Annotated[str, ANY_TEXT, tyro.conf.arg(help_behavior_hint="(default: none)")] = ""
    """Output file with a line of JSON per row with a problem: id, file, reason."""
    model: Annotated[str, ANY_TEXT, tyro.conf.arg(help_behavior_hint="(default: sizes of Qwen2.5-VL)")] = ""
    """Model whose processor determines the number of tokens: a folder or a hub id."""
    family: Annotated[str, one_of("qwen_vl")] = "qwen_vl"
    """Model family; only qwen_vl is supported, the only one whose tokens can be counted here."""
    min_pixels: Annotated[int, COUNT_OR_ZERO] = 0
    """Smallest size of an image in pixels, to which it is enlarged (model.min_pixels); 0: the model's."""
    max_pixels: Annotated[int, COUNT_OR_ZERO] = 0
    """Largest size of an image in pixels, to which it is scaled down (model.max_pixels); 0: the model's."""
    frame_pixels: Annotated[int, COUNT_OR_ZERO] = 0
    """Largest size of a frame of a video in pixels; 0: the model's."""
    max_frames: Annotated[int, within("[0, 1e6]")] = 0
    """Largest number of frames per video; 0: the model's."""
    fps: Annotated[float, within("0", "[0.001, 1000]")] = 0.0
    """Frames to sample per second of a video; 0: the model's."""
    seconds: Annotated[float, within("[0.02, 1800]")] = 30.0
    """Maximum duration of a recording (model.seconds)."""
    windows: Annotated[int, within("[1, 60]")] = 1
    """Windows of that duration in which a recording is read (model.windows)."""
    video_reader: Annotated[str, one_of("av", "decord", "torchcodec")] = "av"
    """What decodes video files (data.video_reader)."""
    max_prompt_tokens: Annotated[int, COUNT_OR_ZERO] = 0
    """Largest length of a prompt in tokens, beyond which it is a problem; 0: no limit."""
    json: bool = False
    """Print the result as JSON, and all else to standard error."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Check a data set, print the result, and exit with 1 if there are more problems than allowed."""
    args = options(Args, arguments, __doc__)
    with json_output(args.json) as write:
        check(args, write)


def check(args: Args, write: Callable[[Mapping[str, Any]], None]) -> None:
    """Check as the options say; ``write`` also gets the result. SystemExit(1) for more problems than allowed."""
    from mmgrpo.cli.prompts import rows_of
    from mmgrpo.cli.prompts import write as write_rows
    from mmgrpo.data.columns import columns_for
    from mmgrpo.data.media import Skipped
    from mmgrpo.data.splits import describe_repeats
    from mmgrpo.files import write_text
    from pipelines.containers import READER
    from pipelines.hub import attempts
    from pipelines.vlm.media import measure_all

    READER.use(args.video_reader)
    rows = list(
        islice(attempts(locate(args.data), args.media_root, columns_for(args.data, args.columns)), args.limit or None)
    )
    readable = [(place, prompt) for place, prompt in rows if not isinstance(prompt, ValueError)]
    measures = measure_all([prompt for _, prompt in readable], args.workers, "media", args.seconds * args.windows)
    shown = [media_of_answers(prompt) for _, prompt in readable]
    compared = measure_all(shown, args.workers, "answers", args.seconds * args.windows)
    (count, note), golds = counter(args), gold_rewards([spec for spec in args.reward if is_verifier(spec)])
    others = row_rewards([spec for spec in args.reward if not is_verifier(spec)])
    refuse_columns([*(reward for reward, _ in golds), *others], [prompt for _, prompt in readable])
    guesses = blind_scores(args.blind) if args.blind else {}
    problems = {place: row_problem(place, prompt) for place, prompt in rows if isinstance(prompt, ValueError)}
    tokens = []
    for (place, prompt), sizes, given, answer_sizes in zip(readable, measures, shown, compared, strict=True):
        problem = media_problem(prompt, sizes) or media_problem(given, answer_sizes) or equal_answers(prompt)
        problem = problem or (task_problem(prompt) if args.check_tasks else None)
        problem = problem or row_problems(prompt, [*(reward for reward, _ in golds if args.check_tasks), *others])
        problem = problem or guessed_problem(prompt, guesses, args.blind_limit)
        if not problem and args.check_tasks and (golds or not others):
            problem = gold_problem(prompt, golds, sizes)  # type: ignore[arg-type]
        if not problem and count is not None:
            problem, length = length_problem(prompt, sizes, count, args.max_prompt_tokens)  # type: ignore[arg-type]
            tokens += [length] if length else []
        if problem:
            problems[place] = problem
    prompts = [prompt for _, prompt in readable]
    if not args.reward and args.check_tasks and (reason := answerless(prompts)):
        problems |= {place: Skipped(prompt.id, "", reason) for place, prompt in readable if place not in problems}
    print(f"{args.data}: {len(rows)} rows")
    keys = readers_of(prompts, args.reward)
    forms = unasked_forms(prompts, [reward for reward, _ in golds])
    facts = [*statistics_of(prompts, measures, tokens), ("tokens", note), ("repeated", describe_repeats(prompts))]
    facts += [*describe_keys(keys), *(("format", text) for text in forms)]
    print("\n".join(definitions([(name, text) for name, text in facts if text], "  ")))
    ordered = {place: problems[place] for place, _ in rows if place in problems}
    print_problems(ordered)
    if args.skipped:
        lines = (json.dumps(asdict(problem), ensure_ascii=False) + "\n" for problem in problems.values())
        write_text(Path(args.skipped), "".join(lines))
        print(f"written: {args.skipped}")
    if args.kept:
        wrong = {problem.id for problem in problems.values()}
        rows_kept = islice(rows_of(args.data, args.media_root, args.columns), len(readable))
        write_rows(Path(args.kept), rows_kept, lambda prompt: prompt.id not in wrong)
    accepted = len(problems) <= args.skip_limit * len(rows) and len(readable) == len(rows)
    write(
        {
            "data": args.data,
            "accepted": accepted,
            "rows": len(rows),
            "readable": len(readable),
            **numbers_of(prompts, measures, tokens),
            "keys": {key: {"rows": count, "read_by": names} for key, (count, names) in keys.items()},
            "notes": [*filter(None, [note, describe_repeats(prompts)]), *forms],
            "problems": [{"place": place, **asdict(problem)} for place, problem in ordered.items()],
        }
    )
    if not accepted:
        raise SystemExit(1)


def answerless(prompts: Sequence[Prompt]) -> str:
    """Why rows with media or tasks cannot train where none has an answer but another column looks like it; empty
    otherwise."""
    from mmgrpo.data.columns import likely
    from mmgrpo.data.limits import SUFFIXES

    if any(prompt.answer is not None or prompt.answers for prompt in prompts):
        return ""
    if not any(prompt.media or prompt.task for prompt in prompts):
        return ""
    endings = tuple(suffix for suffixes in SUFFIXES.values() for suffix in suffixes)
    keys = [
        key
        for prompt in prompts[:1]
        for key, value in prompt.meta.items()
        if not (isinstance(value, str) and value.lower().endswith(endings))
    ]
    pair = likely("answer", keys)
    return f"cannot train: no answers; perhaps --data.columns {pair} (of check-data: --columns {pair})" if pair else ""


def readers_of(prompts: Sequence[Prompt], rewards: Sequence[str]) -> dict[str, tuple[int, list[str]]]:
    """Every key of the rows that is not one of ours, with its rows, and what would read it: families, and the given
    rewards or any."""
    from mmgrpo.data.pairs import KEYS
    from mmgrpo.data.unread import keys_of, unread
    from mmgrpo.family import families
    from mmgrpo.inputs import keys_of_family, keys_of_reward
    from mmgrpo.rewards import entries

    keys = unread(keys_of(prompts), [])
    if not keys:
        return {}
    readers = {f"family {name}": keys_of_family(family) for name, family in families().items()}
    readers |= {f"reward {name}": keys_of_reward(name) for name in rewards or entries()}
    readers |= {"a run with data.offline or data.comparison": KEYS}
    ordered = sorted(keys.items(), key=lambda pair: (-pair[1], pair[0]))
    return {key: (n, [name for name, read in readers.items() if read and key in read]) for key, n in ordered}


def describe_keys(keys: Mapping[str, tuple[int, Sequence[str]]]) -> Iterator[tuple[str, str]]:
    """The keys of ``readers_of``, and what to do about those that nothing reads."""
    from mmgrpo.data.unread import HINT

    if not keys:
        return
    for key, (count, names) in keys.items():
        more = f" and {len(names) - FEW} more" * (len(names) > FEW)
        by = f"read by {', '.join(names[:FEW])}{more}" if names else "read by nothing, so ignored"
        yield "key", f"'{key[:60]}' in {count} rows: {by}"
    yield "", HINT


FORMS = {
    (): "{}",
    ("<answer>",): "<answer>{}</answer>",
    ("boxed",): "\\boxed{{{}}}",
    ("<think>",): "<think>thought</think>{}",
    ("<think>", "<answer>"): "<think>thought</think><answer>{}</answer>",
    ("<think>", "boxed"): "<think>thought</think>\\boxed{{{}}}",
}
"""Marks to the form of a completion that has them."""

PLAIN = (("<answer>",), ())
"""Forms in which a verifier accepts an answer, if it accepts it at all; one that reads the thought wants another."""

PROBED = 32
"""Rows whose answers are tried in every form."""


def unasked_forms(prompts: Sequence[Prompt], rewards: Sequence[Scorer]) -> list[str]:
    """For each reward (by default "task", of rows with a task) that gives right answers more in a form than without
    it, a warning where no prompt mentions the marks of that form: a model that is not asked for them earns nothing."""
    from mmgrpo.rewards import scorer
    from mmgrpo.scoring.isolation import in_words
    from mmgrpo.types import Text

    texts = [prompt.text + " ".join(str(part) for turn in prompt.turns for part in turn.parts) for prompt in prompts]
    warnings = []
    for reward in rewards or ([scorer("task")] if any(prompt.task for prompt in prompts) else []):
        tried = [prompt for prompt in prompts if reward.name != "task" or prompt.task][:PROBED]
        means = {}
        for marks, form in FORMS.items():
            answers = [
                prompt.answer[0] if isinstance(prompt.answer, list) and prompt.answer else prompt.answer
                for prompt in tried
            ]
            outputs = [Text(form.format("a" if answer is None else answer)) for answer in answers]
            try:
                given = reward.fn(tried, outputs) if tried else []
                values = [math.nan if value is None else float(value) for value in given]  # None abstains
            except ValueError:  # of a row, which is listed among the problems
                break
            except Exception as error:
                warnings.append(
                    f"reward '{reward.name}' fails on a text ({in_words(error)}): only verifiers of texts are tried "
                    "here; leave out one of images, videos or audio"
                )
                break
            known = [value for value in values if not math.isnan(value)]
            means[marks] = sum(known) / len(known) if known else -math.inf
        if len(means) < len(FORMS) or max(means.values()) <= means[()]:
            continue
        marks = next(marks for marks, mean in means.items() if mean == max(means.values()))
        if missing := [mark for mark in marks if not any(mark in text for text in texts)]:
            plain, best = means[()], means[marks]
            warnings.append(
                f"reward '{reward.name}' gives right answers {best:.3g} in {' and '.join(marks)} and {plain:.3g} "
                f"without, but no prompt mentions {' or '.join(missing)}: ask for it in the prompts, or by "
                "data.system or data.template of the run"
            )
    return warnings


def row_problem(place: str, error: ValueError) -> Skipped:
    """The problem of a row that cannot be read; its place stands for its id."""
    from mmgrpo.data.media import Skipped

    return Skipped(place, "", str(error).removeprefix(f"{place}: "))


def media_problem(prompt: Prompt, measures: Sequence[Measure | ValueError]) -> Skipped | None:
    """The first medium of a prompt that cannot be read, if any."""
    from mmgrpo.data.media import Skipped, file_of

    errors = [(media, error) for media, error in zip(prompt.media, measures) if isinstance(error, ValueError)]
    return Skipped(prompt.id, file_of(errors[0][0]), str(errors[0][1])) if errors else None


def media_of_answers(prompt: Prompt) -> Prompt:
    """A prompt with the media of a row's answers in place of its own."""
    from mmgrpo.types import Turn

    media = tuple(answer.media for answer in prompt.answers if answer.media is not None)
    return replace(prompt, turns=(Turn("assistant", media),))


def equal_answers(prompt: Prompt) -> Skipped | None:
    """A row of preference data whose answers are the same, so there is nothing to prefer."""
    from mmgrpo.data.media import Skipped

    same = len(prompt.answers) > 1 and all(
        (answer.text, answer.media) == (prompt.answers[0].text, prompt.answers[0].media) for answer in prompt.answers
    )
    return Skipped(prompt.id, "", "its answers are all the same; remove the row") if same else None


def task_problem(prompt: Prompt) -> Skipped | None:
    """The objection of the reward "task" to the task of a row or to its reference answer, if any.

    Speech has rewards of its own, which do not depend on the task, and need the reference as a text.
    """
    from mmgrpo.data.media import Skipped
    from mmgrpo.types import Text
    from reward_models.rules.tasks import TASKS, task

    if prompt.task not in TASKS and any(media.kind == "audio" for media in prompt.media):
        texts = prompt.answer if isinstance(prompt.answer, list) else [prompt.answer]
        if all(isinstance(text, str) for text in texts):
            return language_problem(prompt, texts)
        return Skipped(
            prompt.id,
            "",
            f"'answer': got {prompt.answer!r}, expected the transcript or translation as a string or a list of strings",
        )
    try:
        if prompt.task:
            task([prompt], [Text("<answer>1</answer>")])
    except ValueError as error:
        return Skipped(prompt.id, "", str(error))
    return None


def blind_scores(path: str) -> dict[str, float]:
    """The mean reward without media of each prompt, by its id, from a file of mmgrpo evaluate."""
    try:
        rows = json.loads(Path(path).read_text(encoding="utf-8"))["values"]
        values = {row["id"]: [v for scores in row["blind"].values() for v in scores if v is not None] for row in rows}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"--blind {path}: got another content, expected values without media; write it with mmgrpo evaluate, of "
            "prompts with images, videos or audio"
        ) from error
    return {key: statistics.mean(scored) for key, scored in values.items() if scored}


def guessed_problem(prompt: Prompt, guesses: Mapping[str, float], limit: float) -> Skipped | None:
    """The problem of a row that is solved without its media, if it is."""
    from mmgrpo.data.media import Skipped

    score = guesses.get(prompt.id)
    if score is None or score < limit:
        return None
    return Skipped(
        prompt.id, "", f"has a mean reward of {score:.3g} without its media, at least --blind-limit {limit:g}"
    )


def is_verifier(spec: str) -> bool:
    """Whether a reward scores one text, so it can be tried with a reference answer."""
    from mmgrpo.rewards import entries
    from mmgrpo.scoring.manifest import Manifest

    entry = entries().get(spec.partition("(")[0])
    manifest = entry.read_manifest() if entry else None
    return not isinstance(manifest, Manifest) or ("Text" in manifest.scores and not manifest.group)


def language_problem(prompt: Prompt, texts: Sequence[str]) -> Skipped | None:
    """A row of spoken English whose transcript is in letters of another script, if it is one."""
    from mmgrpo.data.letters import script_rule
    from mmgrpo.data.media import Skipped

    english = str(prompt.meta.get("language") or "").lower() in ("en", "english")
    if not english or prompt.task == "translate" or all(script_rule(text) == "english" for text in texts):
        return None
    reason = f"'language': got {prompt.meta['language']!r}, and the answer is in letters of another script"
    return Skipped(prompt.id, "", f"{reason}; correct the language, by which transcripts are compared")


def gold_rewards(specs: Sequence[str]) -> list[tuple[Scorer, float]]:
    """The rewards that reference answers are tried with, and their maxima, -inf where there is none; only verifiers of
    texts can be."""
    if unfit := [spec for spec in specs if not is_verifier(spec)]:
        raise ValueError(
            f"--reward {unfit[0]}: got a reward that cannot score one answer, expected a verifier of texts"
        )
    rewards = row_rewards(specs)
    highs = [1.0 if reward.manifest is None else reward.manifest.high for reward in rewards]
    return [(reward, high if math.isfinite(high) else -math.inf) for reward, high in zip(rewards, highs, strict=True)]


def row_rewards(specs: Sequence[str]) -> list[Scorer]:
    """The rewards of some texts; ValueError for one that cannot be imported, or lacks a package."""
    from mmgrpo.rewards import scorers
    from mmgrpo.scoring.isolation import RewardFailure
    from mmgrpo.scoring.manifest import obstacle
    from mmgrpo.scoring.served import ask_once

    try:
        with ask_once():
            made = scorers(specs, "cpu") if specs else []
        for reward in made:
            if reward.manifest is not None and (reason := obstacle(reward.manifest)).startswith("needs"):
                raise ValueError(f"rewards: '{reward.name}' {reason}")
    except (ValueError, RewardFailure) as error:
        raise ValueError(f"--reward: {error}") from error
    return made


def refuse_columns(rewards: Sequence[Scorer], prompts: Sequence[Prompt]) -> None:
    """ValueError for a column that a reward in TRL's form needs and that no row has."""
    from mmgrpo.scoring.trl import missing_column

    for reward in rewards:
        if objection := missing_column(reward.name, reward.needs, prompts):
            raise ValueError(f"--reward: {objection}")


def row_problems(prompt: Prompt, rewards: Sequence[Scorer]) -> Skipped | None:
    """The first objection of some rewards to a row whose outputs they could not score, whatever these are."""
    from mmgrpo.data.media import Skipped
    from mmgrpo.scoring.fitting import row_objection

    reasons = [f"reward '{reward.name}': {reason}" for reward in rewards if (reason := row_objection(reward, prompt))]
    return Skipped(prompt.id, "", reasons[0]) if reasons else None


def gold_problem(
    prompt: Prompt, rewards: Sequence[tuple[Scorer, float]], measures: Sequence[Measure] = ()
) -> Skipped | None:
    """Why the reference answer of a row would not be rewarded, if it would not.

    Every form in which a completion may give it (``answer_forms``) is scored in tags and as it stands, and so is an
    empty one; where that is not enough, in the other forms too. Places are compared with the size of the medium.
    """
    from mmgrpo.data.media import Skipped
    from mmgrpo.rewards import scorer
    from mmgrpo.scoring.isolation import in_words
    from mmgrpo.types import Text
    from reward_models.rules.tasks import MAXIMA, reads_places, states_answers
    from reward_models.rules.written import answer_forms, has_boxes

    for reward, best in rewards or ([(scorer("task"), 1.0)] if states_answers(prompt.task) else []):
        name = prompt.task if reward.name == "task" else reward.name
        best = MAXIMA.get(prompt.task, 1.0) if reward.name == "task" else best
        golds = prompt.answer if isinstance(prompt.answer, list) else [prompt.answer]
        if not states_answers(name) and not all(isinstance(gold, str | int | float) for gold in golds):
            continue
        row = replace(prompt, meta={key: value for key, value in prompt.meta.items() if key != "rate"})
        try:
            if reads_places(name) and has_boxes(prompt.answer):
                row = with_size(row, measures)
            height, width = (reads_places(name) and row.meta.get("size")) or (1, 1)
            seen = ((height, width),) * max(1, len(measures))
            right = answer_forms(row, Text("", seen=seen))
            gold, empty = (best_value(reward, row, answers, PLAIN, seen) for answers in (right, [""]))
            if gold is None or empty is None:
                continue  # it abstains from this row
            if not gold >= best - 1e-6:  # it may be the thought that is missing
                more = best_value(reward, row, right, [form for form in FORMS if form not in PLAIN], seen)
                gold = more if more is not None and (more > gold or math.isnan(gold)) else gold
        except ValueError as error:
            return Skipped(prompt.id, "", str(error))
        except Exception as error:
            return Skipped(prompt.id, "", f"reward '{reward.name}' failed: {in_words(error)}")
        if not gold >= best - 1e-6:
            reason = f"reward '{reward.name}' gives the reference answer {right[0][:80]!r} itself {gold:g}"
            return Skipped(prompt.id, "", f"'answer': {reason}, expected {best:g}; correct the answer or the task")
        if empty >= gold:
            reason = f"reward '{reward.name}' gives an empty answer {empty:g}, as much as the reference answer"
            return Skipped(prompt.id, "", f"'answer': {reason}; choose another reward")
    return None


SAME_SHAPE = 0.02
"""Relative difference of two ratios of height to width that rounding a scaled size explains."""


def with_size(prompt: Prompt, measures: Sequence[Measure]) -> Prompt:
    """A row about places with the size of its medium, number ``meta.media``, as ``meta.size``. ValueError where it has
    a size of another shape; the size of a scaled copy is one of the same shape."""
    visual = [(measure.height, measure.width) for measure in measures if measure.height and measure.width]
    if "media" in prompt.meta and isinstance(place := prompt.meta["media"], int) and place < len(measures):
        visual = [(measures[place].height, measures[place].width)]
    size = prompt.meta.get("size")
    if not visual:
        return prompt
    if size is None:  # whose absence is an error where coordinates are converted
        converted = prompt.meta.get("coordinates", "absolute") != "absolute"
        if converted or len(set(visual)) > 1:
            return prompt
        return replace(prompt, meta={**prompt.meta, "size": list(visual[0])})
    known = (
        isinstance(size, list) and len(size) == 2 and all(isinstance(side, int | float) and side > 0 for side in size)
    )
    if known and not any(same_shape(size, shape) for shape in visual):
        height, width = visual[0]
        swapped = "; these are [width, height], or of the image before its EXIF orientation" * same_shape(
            size[::-1], visual[0]
        )
        raise ValueError(
            f"'size': got {size}, expected [{height}, {width}], [height, width] of the image as it is shown{swapped}"
        )
    return prompt


def same_shape(size: Sequence[float], other: Sequence[float]) -> bool:
    """Whether one size is the other, or that of a scaled copy."""
    turned = sorted(size) == sorted(other) and tuple(size) != tuple(other)
    return not turned and abs(size[0] * other[1] / (size[1] * other[0]) - 1) <= SAME_SHAPE


def best_value(
    reward: Scorer,
    prompt: Prompt,
    answers: Sequence[str],
    forms: Sequence[tuple[str, ...]],
    seen: tuple[tuple[int, int], ...] = (),
) -> float | None:
    """The largest reward of some answers to a prompt, each in some of ``FORMS``; NaN where none could be scored, None
    where the reward abstains."""
    from mmgrpo.types import Text

    texts = [Text(FORMS[form].format(answer), seen=seen) for answer in answers for form in forms]
    given = [float(value) for value in reward.fn([prompt] * len(texts), texts) if value is not None]
    return max((value for value in given if not math.isnan(value)), default=math.nan) if given else None


def length_problem(
    prompt: Prompt, measures: Sequence[Measure], count: Callable[[Prompt, Sequence[Measure]], int], limit: int
) -> tuple[Skipped | None, int]:
    """The problem with the length of a prompt, if any, and its number of tokens."""
    from mmgrpo.data.media import Skipped

    try:
        length = count(prompt, measures)
    except ValueError as error:
        return Skipped(prompt.id, "", str(error)), 0
    if 0 < limit < length:
        return Skipped(prompt.id, "", f"has {length} tokens, more than --max-prompt-tokens {limit}"), length
    return None, length


def counter(args: Args) -> tuple[Callable[[Prompt, Sequence[Measure]], int] | None, str]:
    """A function that counts the tokens of a prompt, from the sizes of its media; or None, and why they are not
    counted."""
    from pipelines.vlm.estimate import NotCounted, Sizes, of_model, tokens_of

    limits = {name: getattr(args, name) for name in ("min_pixels", "max_pixels", "frame_pixels", "max_frames", "fps")}
    limits = {name: value for name, value in limits.items() if value}
    words: Callable[[Prompt], int] = lambda prompt: len(prompt.text) // 4 + 1  # noqa: E731
    sizes = Sizes(**limits)
    if args.model:
        if check := generator_check(args.model, args.max_prompt_tokens):
            return lambda prompt, measures: check(prompt) or 0, "not counted: read by text encoders, whole or not"
        try:
            sizes, words = of_model(args.model, **limits)
        except NotCounted as error:
            if args.max_prompt_tokens:
                raise ValueError(f"--max-prompt-tokens: {error}") from error
            return None, f"not counted: {error}"

    def count(prompt: Prompt, measures: Sequence[Measure]) -> int:
        visual = [
            (media, measure) for media, measure in zip(prompt.media, measures, strict=True) if media.kind != "audio"
        ]
        return words(prompt) + sum(tokens_of(media, measure, sizes) for media, measure in visual)

    return (
        count,
        "" if args.model else "estimated, a token for four letters and images as Qwen2.5-VL has them; --model counts",
    )


def generator_check(path: str, most: int) -> Callable[[Prompt], None] | None:
    """What raises ValueError for a prompt of which the text encoders of a generator of images or clips would cut
    something: those that read at most ``most`` tokens, 0: as many as by default. None for another model."""
    from pipelines.pretrained import architecture
    from pipelines.visual.families import FAMILIES
    from pipelines.visual.tokenizers import word_check

    kind = architecture(locate(path))
    family = next((candidate for candidate in FAMILIES.values() if kind in candidate.architectures), None)
    if family is None:
        return None
    return word_check(family.module, locate(path), most or family.sections.model.max_sequence_length)


def statistics_of(
    prompts: Sequence[Prompt], measures: Sequence[Sequence[Any]], tokens: Sequence[int]
) -> list[tuple[str, str]]:
    """Statistics of the data set, by name."""
    from pipelines.vlm.media import Measure

    kinds = Counter(" + ".join(sorted({media.kind for media in prompt.media})) or "text" for prompt in prompts)
    tasks = Counter(prompt.task for prompt in prompts if prompt.task)
    by_kind: dict[str, list[Measure]] = {"image": [], "video": [], "audio": []}
    for prompt, sizes in zip(prompts, measures, strict=True):
        for media, measure in zip(prompt.media, sizes, strict=True):
            if isinstance(measure, Measure):
                by_kind[media.kind].append(measure)
    images, videos, audios = by_kind["image"], by_kind["video"], by_kind["audio"]
    replies = sum("reply" in prompt.meta for prompt in prompts)
    return [
        ("media", counts_text(kinds)),
        ("tasks", counts_text(tasks)),
        ("answers", f"{sum(prompt.answer is not None for prompt in prompts)} rows have one"),
        ("options", options_of_rows(prompts)),
        ("compared", compared_answers(prompts)),
        ("replies", f"{replies} rows end with an assistant turn, which is removed" if replies else ""),
        ("images", sizes_of(images)),
        ("videos", sizes_of(videos)),
        ("", spread("seconds", [video.seconds for video in videos])),
        ("", spread("frames per second", [video.frames / video.seconds for video in videos])),
        ("audio", spread(f"{len(audios)}, seconds", [audio.seconds for audio in audios])),
        ("tokens", spread("per prompt", tokens)),
    ]


def numbers_of(prompts: Sequence[Prompt], measures: Sequence[Sequence[Any]], tokens: Sequence[int]) -> dict[str, Any]:
    """What ``statistics_of`` has in words, as numbers; null where nothing was measured."""
    from pipelines.vlm.media import Measure

    kinds = Counter(media.kind for prompt in prompts for media in prompt.media)
    known = [
        (media.kind, measure)
        for prompt, sizes in zip(prompts, measures, strict=True)
        for media, measure in zip(prompt.media, sizes, strict=True)
        if isinstance(measure, Measure)
    ]
    sized = {kind: [measure for name, measure in known if name == kind] for kind in ("image", "video", "audio")}
    return {
        "media": dict(kinds),
        "tasks": dict(Counter(prompt.task for prompt in prompts if prompt.task)),
        "answers": sum(prompt.answer is not None for prompt in prompts),
        "pixels": distribution(
            [measure.height * measure.width for kind in ("image", "video") for measure in sized[kind]]
        ),
        "seconds": distribution([measure.seconds for kind in ("video", "audio") for measure in sized[kind]]),
        "tokens": distribution(tokens),
    }


def options_of_rows(prompts: Sequence[Prompt]) -> str:
    """The rows with options of a multiple choice, and their numbers; empty where there are none."""
    from mmgrpo.data.options import options_in

    counts = [len(options) for named, options in (options_in(prompt.meta) for prompt in prompts) if named]
    return f"{len(counts)} rows have {min(counts)} to {max(counts)}, shown as A., B., ..." if counts else ""


def compared_answers(prompts: Sequence[Prompt]) -> str:
    """The rows of preference data, in words; empty where there are none."""
    from mmgrpo.data.pairs import is_tied

    rows = [prompt for prompt in prompts if prompt.answers]
    kinds = Counter(answer.media.kind if answer.media else "text" for prompt in rows for answer in prompt.answers)
    ties = sum(map(is_tied, rows))
    return f"{len(rows)} rows with answers to compare ({counts_text(kinds)}), {ties} of them ties" if rows else ""


def counts_text(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.most_common())


def sizes_of(measures: Sequence[Measure]) -> str:
    """The number of images or videos, and their sizes."""
    if not measures:
        return ""
    sides = [side for measure in measures for side in (measure.height, measure.width)]
    area = statistics.median(measure.height * measure.width for measure in measures)
    return f"{len(measures)}, sides from {min(sides)} to {max(sides)} pixels, median area {area / 1e6:.3g} megapixels"


def spread(unit: str, values: Sequence[float | int]) -> str:
    """Minimum, median, 95th percentile and maximum of some numbers."""
    known = distribution(values)
    if known is None:
        return ""
    low, middle, high, top = (f"{value:.4g}" for value in known.values())
    return f"{unit}: minimum {low}, median {middle}, 95th percentile {high}, maximum {top}"


def distribution(values: Sequence[float | int]) -> dict[str, float] | None:
    """Minimum, median, 95th percentile and maximum of some numbers; None without any."""
    if not values:
        return None
    ordered = sorted(values)
    high = ordered[int(0.95 * len(ordered))]
    return {"minimum": ordered[0], "median": statistics.median(ordered), "p95": high, "maximum": ordered[-1]}


def print_problems(problems: dict[str, Skipped]) -> None:
    """Print the problems, once each for all rows that have the same one."""
    print(f"{len(problems)} rows have problems" if problems else "no problems")
    alike: dict[str, list[str]] = {}
    for place, problem in problems.items():
        alike.setdefault(problem.reason.replace(f"'{problem.id}'", "").replace(place, ""), []).append(place)
    for places in islice(alike.values(), SHOWN):
        others = f" (and {len(places) - 1} other rows, up to {places[-1]})" if len(places) > 1 else ""
        reason = problems[places[0]].reason
        print(f"  {places[0]}: {reason}{others}")
    if len(alike) > SHOWN:
        print(f"  ... and {len(alike) - SHOWN} more; --skipped FILE lists all")


if __name__ == "__main__":
    enter(main)
