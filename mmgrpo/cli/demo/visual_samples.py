"""Samples of the tab Visual: both models from the same noise, with their rewards, in batches."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from mmgrpo.cli.demo.models import Opened, Pair, in_a_line
from mmgrpo.types import Image, Media, Output, Prompt, Request, Turn, Video

if TYPE_CHECKING:
    from PIL import Image as Pil

    from mmgrpo.scoring import Scorer

MOST = 16
"""Most samples of a side."""
AT_ONCE = 4
"""Most samples that are drawn at a time, after which one can cancel."""
LARGE = 448
"""Height in pixels to which small images are enlarged, by a whole factor."""
MAX_TEXT = 2_000
"""Characters of a prompt."""
HELDOUT = 200
"""Held-out prompts that are offered."""


@dataclass(frozen=True)
class Sample:
    """An image or a clip, as it is shown."""

    picture: Pil.Image
    """The image, or the first frame; small ones with every pixel repeated."""
    clip: bytes = b""
    """An mp4 file, where it is a clip."""
    values: Mapping[str, float] = field(default_factory=dict)
    """Its rewards; NaN for one that failed."""


@dataclass(frozen=True)
class Comparison:
    """Samples of a prompt by both models; those of one place come from the same noise."""

    name: str
    prompt: str
    seed: int
    count: int
    """Samples of each side when all are drawn."""
    models: Sequence[str]
    """The sides that there are."""
    sides: Mapping[str, Sequence[Sample]]
    """Samples so far."""
    scored: Sequence[str] = ()
    """Sides whose rewards are computed."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """Weight in training of every reward, in the order of the run."""
    failures: Mapping[str, str] = field(default_factory=dict)
    """Why a reward could not be loaded or computed."""
    trained: str = ""
    """Which weights those after training are: ``model``, the step of a checkpoint, or a path."""

    @property
    def drawn(self) -> int:
        """Samples that there are, of all sides."""
        return sum(len(samples) for samples in self.sides.values())

    @property
    def total(self) -> int:
        """Samples of all sides when all are drawn."""
        return self.count * len(self.models)

    @property
    def done(self) -> bool:
        """Whether all samples are drawn and scored."""
        return set(self.scored) == set(self.models)

    def wants_lowest(self, reward: str) -> bool:
        """Whether training lowers a reward."""
        return self.weights[reward] < 0

    @property
    def are_clips(self) -> bool:
        """Whether samples are clips."""
        return any(sample.clip for samples in self.sides.values() for sample in samples)


def picture_use(pair: Pair) -> str:
    """The image beside the words of a prompt: ``required``, ``optional``, or empty where the model takes none."""
    return getattr(pair.family, "pictures", "")


def prompt_of(pair: Pair, text: str, picture: str = "") -> Prompt:
    """The prompt of a text and, where the model takes one, of the file of an image.

    A text of the held-out prompts is that prompt, with what rewards compare with and its image.
    """
    text, use = text.strip(), picture_use(pair)
    if not text:
        raise ValueError("the prompt is empty: type one, or choose a held-out prompt")
    if len(text) > MAX_TEXT:
        raise ValueError(f"the prompt: got {len(text):,} characters, expected at most {MAX_TEXT:,}; shorten it")
    known = [prompt for prompt in pair.examples(HELDOUT) if prompt.text == text]
    found = known[0] if known else embedded_prompt(pair, text)
    if picture and not use:
        raise ValueError(f"the family '{pair.family.name}' draws from words alone; remove the image")
    if picture:
        from mmgrpo.data.images import read_picture

        return replace(found, turns=(Turn("user", (Media("image", read_picture(picture)), text)),))
    if use == "required" and not found.media:
        raise ValueError(
            f"the family '{pair.family.name}' starts from an image: upload one, or choose a held-out prompt "
            "that has its own"
        )
    return found


def embedded_prompt(pair: Pair, text: str) -> Prompt:
    """The prompt of a text. Rewards of embedded scenes and videos compare with what its words say."""
    from mmgrpo.toy import scenes, videos

    for reward in pair.config.rewards:
        try:
            if reward.startswith("scene_"):
                return scenes.prompt(scenes.parse(text))
            if reward.startswith("film_"):
                return videos.prompt(videos.parse(text))
        except ValueError:
            break  # another sentence: those rewards fail, and say so
    return Prompt(text, id="demo")


def draw_sides(opened: Opened, name: str, prompt: Prompt, seed: int, count: int) -> Iterator[Comparison]:
    """Draw ``count`` samples of every side and score them; what there is after each batch.

    Sample k of either side comes from the noise of (``seed``, slot k), whatever ``count`` is, as those of
    ``mmgrpo sample`` for ``count`` equal prompts. ValueError for a prompt that the model cannot read.
    """
    if not 1 <= count <= MOST:
        raise ValueError(f"samples: got {count}, expected 1 to {MOST}")
    if not 0 <= seed < 2**32:
        raise ValueError(f"the seed: got {seed}, expected 0 to {2**32 - 1}")
    pair = opened.pairs[name]
    drawn = Comparison(name, prompt.text, seed, count, pair.sides, {}, trained=pair.trained)
    for side in drawn.models:
        outputs: list[Output] = []
        samples: list[Sample] = []
        while len(outputs) < count:
            slots = range(len(outputs), min(count, len(outputs) + min(AT_ONCE, pair.config.eval.batch_size)))
            with opened.lock, torch.no_grad():
                policy = opened.policy(name, side)
                pair.family.accept(pair.config, policy, [prompt])
                more = policy.sample(Request(prompts=[prompt] * len(slots), slots=slots, group_size=1, seed=seed))
            outputs += more
            samples += [shown(output) for output in more]
            drawn = replace(drawn, sides={**drawn.sides, side: samples.copy()})
            yield drawn
        with opened.lock:
            scorers, missing = opened.scorers(name)
            columns, failures = score(scorers, prompt, outputs)
        rows = [{reward: column[k] for reward, column in columns.items()} for k in range(count)]
        rows = [{**row, **dict.fromkeys(missing, math.nan)} for row in rows]
        drawn = replace(
            drawn,
            sides={**drawn.sides, side: [replace(s, values=row) for s, row in zip(samples, rows, strict=True)]},
            scored=(*drawn.scored, side),
            weights={**{one.name: one.weight for one in scorers}, **dict.fromkeys(missing, 0.0)},
            failures={**drawn.failures, **missing, **failures},
        )
        yield drawn


def score(
    scorers: Sequence[Scorer], prompt: Prompt, outputs: Sequence[Output]
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """The values of all rewards for all outputs of a prompt, NaN where one failed, and the reasons of failures."""
    from mmgrpo.scoring.isolation import score_column

    columns: dict[str, list[float]] = {}
    failures: dict[str, str] = {}
    for one in scorers:
        columns[one.name] = [math.nan] * len(outputs)
        if one.reads_rollout:
            failures[one.name] = "it is defined for training rollouts only"
            continue
        try:
            values = score_column(one.name, one.fn, [prompt] * len(outputs), outputs, one.trusted, one.elsewhere)
        except (RuntimeError, ValueError) as error:
            failures[one.name] = in_a_line(error.__cause__ or error)
        else:
            columns[one.name] = [value if math.isfinite(value) else math.nan for value in values]
    return columns, failures


def shown(output: Output) -> Sample:
    """An image or a clip as it is shown."""
    from mmgrpo.report.plots import to_pil
    from pipelines.visual.clips import enlarged, mp4

    if isinstance(output, Video):
        return Sample(enlarged(to_pil(Image(output.frames[0])), LARGE), mp4(output))
    if not isinstance(output, Image):
        raise TypeError(f"got {type(output).__name__}, expected an image or a clip")
    return Sample(enlarged(to_pil(output), LARGE))


def best(samples: Sequence[Sample], reward: str, count: int, lowest: bool = False) -> tuple[int, float] | None:
    """Place and value of the highest (or ``lowest``) of the first ``count`` values of a reward, the first of equal
    ones; None if none of them could be computed."""
    values = [(place, sample.values.get(reward, math.nan)) for place, sample in enumerate(samples[:count])]
    scored = [(place, value) for place, value in values if not math.isnan(value)]
    return (min if lowest else max)(scored, key=lambda one: one[1], default=None)


def command(pair: Pair, drawn: Comparison) -> str:
    """The command that draws the same samples, by the models of a run; empty where there is no run."""
    import shlex

    if pair.run is None:
        return ""
    folder = pair.run.relative_to(Path.cwd()) if pair.run.is_relative_to(Path.cwd()) else pair.run
    weights = f" --weights {drawn.trained}" if drawn.trained.isdecimal() else "" if drawn.trained else None
    sides = " --weights untrained" if weights is None else f"{weights} --before"
    words = " ".join([shlex.quote(drawn.prompt)] * drawn.count)
    return f"mmgrpo sample --run {shlex.quote(str(folder))}{sides} --seed {drawn.seed} --prompts {words}"
