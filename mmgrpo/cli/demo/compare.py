"""Compare: what both sides of a pair make of one prompt from the same noise, with the rewards of the pair.

The tabs Visual, Vision-language, Speech and Vote draw here, and show the result each in its own way.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import gradio as gr
import torch

from mmgrpo.cli.demo import parts
from mmgrpo.cli.demo.kept import Question, with_kept
from mmgrpo.cli.demo.models import AFTER, BEFORE, Opened, Pair, failure
from mmgrpo.evaluation import annotate
from mmgrpo.policies.token import TokenPolicy
from mmgrpo.scoring import Scorer
from mmgrpo.scoring.isolation import score_or_abstain
from mmgrpo.types import Output, Policy, Prompt, Request, Turn

TITLES = {BEFORE: "Base", AFTER: "Trained"}
"""Headings of the sides of a pair."""
AT_ONCE = 4
"""Samples between two looks at Cancel; a larger model then waits for at most so many."""
MOST = 16
"""Largest number of samples of a side."""
EXAMPLES = 24
"""Held-out prompts that are offered, evenly spaced over the file."""
MAX_TEXT = 4000
"""Characters of a question or an answer that a visitor writes."""
OWN = ""
"""The key of no example: a visitor's own prompt."""


@dataclass(frozen=True)
class Side:
    """Samples of one side; without rewards as long as they are not computed."""

    outputs: Sequence[Output]
    rewards: Sequence[Mapping[str, float]] = ()
    """Values by name for each sample; NaN where a reward failed, and without a reason where it does not apply."""
    notes: Sequence[Mapping[str, Any]] = ()
    """Annotations (``Scorer.annotate``) of each sample."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Why a reward failed, by its name."""

    def means(self) -> dict[str, float]:
        """The mean of every reward over the samples that it scored; NaN where there are none."""
        names = self.rewards[0] if self.rewards else {}
        columns = {name: [row[name] for row in self.rewards if not math.isnan(row[name])] for name in names}
        return {name: sum(column) / len(column) if column else math.nan for name, column in columns.items()}


@dataclass(frozen=True)
class Comparison:
    """Samples of a prompt by the sides of a pair; those of one place come from the same noise."""

    name: str
    prompt: Prompt
    seed: int
    count: int
    """Samples of each side when all are drawn."""
    models: Sequence[str]
    """The sides that there are."""
    trained: str = ""
    """Which weights those after training are: ``model``, the step of a checkpoint, or a path."""
    sides: Mapping[str, Side] = field(default_factory=dict)
    """Samples so far."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """Weight in training of every reward, in the order of the run."""
    doing: str = ""
    """What comes next."""

    @property
    def drawn(self) -> int:
        """Samples that there are, of all sides."""
        return sum(len(side.outputs) for side in self.sides.values())

    @property
    def total(self) -> int:
        """Samples of all sides when all are drawn."""
        return self.count * len(self.models)

    @property
    def scored(self) -> list[str]:
        """Sides whose rewards are computed."""
        return [name for name, side in self.sides.items() if side.rewards]

    @property
    def done(self) -> bool:
        """Whether all samples are drawn and scored."""
        return len(self.scored) == len(self.models)

    @property
    def failures(self) -> dict[str, str]:
        """Why a reward could not be loaded or computed."""
        return {name: why for side in self.sides.values() for name, why in side.reasons.items()}


def look_up(opened: Opened, name: Any) -> Pair:
    """A pair by the name that the page shows; nothing else opens anything."""
    if name not in opened.pairs:
        raise ValueError(f"model: got {name!r:.80}, expected one of {', '.join(opened.pairs) or 'none'}; choose one")
    return opened.pairs[name]


def compare(
    opened: Opened, name: str, prompt: Prompt, *, count: int = 1, temperature: float | None = None, seed: int = 0
) -> Iterator[Comparison]:
    """Sample ``count`` outputs of every side of a pair and score them with its rewards; what there is at each step.

    Equal seeds have equal noise on both sides; ``temperature`` None is that of the family's evaluation. Between two
    results nothing is locked. ValueError for a prompt that the model cannot read.
    """
    if not 1 <= count <= MOST:
        raise ValueError(f"samples: got {count}, expected 1 to {MOST}")
    if not 0 <= seed < 1 << 32:
        raise ValueError(f"the seed: got {seed}, expected 0 to {2**32 - 1:,}")
    pair = look_up(opened, name)
    made = Comparison(name, prompt, seed, count, pair.sides, pair.trained)
    for side in made.models:
        outputs: list[Output] = []
        while len(outputs) < count:
            verb = "is sampling" if opened.holds(name, side) else "is being loaded"
            yield replace(made, doing=f"{TITLES[side]} {verb}: {len(outputs)} of {count}")
            with opened.lock, torch.no_grad():
                policy = opened.policy(name, side)
                _, skipped = pair.family.accept(pair.config, policy, [prompt])
                if skipped:
                    raise ValueError(f"the prompt: {skipped[0].reason}")
                size = min(AT_ONCE, pair.config.eval.batch_size, count - len(outputs))
                outputs += sample(policy, request(policy, prompt, len(outputs), size, seed), temperature)
            made = replace(made, sides={**made.sides, side: Side(outputs.copy())})
        yield replace(made, doing=f"the rewards of {TITLES[side]} are being computed")
        with opened.lock:
            scored, weights = score(opened, name, prompt, outputs)
        made = replace(made, sides={**made.sides, side: scored}, weights=weights)
    yield made


def request(policy: Policy, prompt: Prompt, start: int, size: int, seed: int) -> Request:
    """Samples ``start`` to ``start + size - 1`` of a prompt.

    Every sample has a slot of its own, so the noise of sample k does not depend on the count, and is that of
    ``mmgrpo sample`` for equal prompts. A policy of tokens draws a batch as one group, whose prompt is encoded once.
    """
    if isinstance(policy, TokenPolicy):
        return Request([prompt], [start // AT_ONCE], size, seed)
    return Request([prompt] * size, range(start, start + size), 1, seed)


def sample(policy: Policy, request: Request, temperature: float | None) -> Sequence[Output]:
    """The outputs of a request, at another temperature where one is given."""
    if not isinstance(policy, TokenPolicy):
        return policy.sample(request)
    usual = policy.evaluation_temperature
    policy.evaluation_temperature = usual if temperature is None else temperature
    try:
        return policy.sample(request)
    finally:
        policy.evaluation_temperature = usual
        policy.feature_cache.entries.clear()  # visitors' prompts do not recur


def score(opened: Opened, name: str, prompt: Prompt, outputs: Sequence[Output]) -> tuple[Side, dict[str, float]]:
    """Outputs with the rewards of a pair, and their weights; hold ``opened.lock``. A reward that fails has no value,
    and its reason is kept."""
    rewards, missing = opened.scorers(name)
    reasons, prompts = dict(missing), [prompt] * len(outputs)
    columns: dict[str, list[float]] = {}
    for scorer in rewards:
        columns[scorer.name], reason = values_of(scorer, prompts, outputs)
        reasons |= {scorer.name: reason} if reason else {}
    columns |= {title: [math.nan] * len(outputs) for title in missing}
    rows = [{title: column[place] for title, column in columns.items()} for place in range(len(outputs))]
    weights = {**{scorer.name: scorer.weight for scorer in rewards}, **dict.fromkeys(missing, 0.0)}
    return Side(list(outputs), rows, annotate(rewards, prompts, outputs), reasons), weights


def values_of(reward: Scorer, prompts: Sequence[Prompt], outputs: Sequence[Output]) -> tuple[list[float], str]:
    """The values of a reward, NaN where there is none, and why it failed and what to do; no reason where it only does
    not apply."""
    nothing = [math.nan] * len(outputs)
    if reward.reads_rollout:
        reason = "it reads the decisions of training, which these samples do not have; its curve is in the tab Runs"
        return nothing, reason
    try:
        values = score_or_abstain(reward.name, reward.fn, prompts, outputs, reward.trusted, reward.elsewhere)
    except (RuntimeError, ValueError) as error:  # whatever the reward raised
        return nothing, failure(error.__cause__ or error, reward.name)
    invalid = [value for value in values if value is not None and not math.isfinite(value)]
    reason = ""
    if invalid:
        reason = f"it returned {invalid[0]} for {len(invalid)} of {len(values)} outputs, which it could not score; "
        reason += f"'mmgrpo rewards {reward.name}' says what it reads of a prompt"
    return [math.nan if value is None or not math.isfinite(value) else value for value in values], reason


# ---- what the tabs of the modalities share


@dataclass
class Examples:
    """Held-out prompts of pairs, read when they are first needed."""

    opened: Opened
    known: dict[str, dict[str, Question]] = field(default_factory=dict)

    def of(self, name: str) -> dict[str, Prompt]:
        """Examples of a pair by key, at most ``EXAMPLES`` of its held-out file besides those of which its run has kept
        samples, which come first; none if neither can be read here."""
        pair = look_up(self.opened, name)
        if name not in self.known:
            prompts = pair.examples(None)
            spaced = [prompts[place] for place in parts.evenly_spaced(len(prompts), EXAMPLES)]
            known = with_kept(pair.run, prompts, spaced, EXAMPLES)
            self.known[name] = {str(i): question for i, question in enumerate(known)}
        return {key: question.prompt for key, question in self.known[name].items()}

    def kept_comparison(self, name: str, key: str) -> Comparison | None:
        """What the run of a pair has kept of an example, as a comparison of one sample; None where it has not."""
        self.of(name)
        question, pair = self.known[name].get(key), look_up(self.opened, name)
        if question is None or question.outputs is None:
            return None
        sides = {
            side: Side([question.output(place)], [{title: two[place] for title, two in question.values.items()}])
            for place, side in enumerate((BEFORE, AFTER))
        }
        weights = {title: pair.weights_of_rewards().get(title, 0.0) for title in question.values}
        return Comparison(name, question.prompt, pair.config.eval.seed, 1, [*sides], question.moment, sides, weights)

    def get(self, name: str, key: str) -> Prompt | None:
        """An example; None for ``OWN``."""
        if key == OWN:
            return None
        if key not in (known := self.of(name)):
            raise ValueError(f"example: got {key!r:.80}, expected one of the {len(known)} examples; choose one again")
        return known[key]

    def offer(
        self,
        pair: gr.Dropdown,
        example: gr.Dropdown,
        label: Callable[[Prompt], str],
        fill: Callable[[str, str], list[Any]],
        fields: Sequence[Any],
    ) -> gr.State:
        """Fill the list of examples when the page opens or another pair is chosen, and ``fields`` with the chosen
        example; the state that holds it."""
        typed = example.choices[0]

        def choose_pair(name: str) -> list[Any]:
            with parts.one_line_errors():
                known = self.of(name)
            choices = [typed, *((f"{i}. {label(prompt)}", key) for i, (key, prompt) in enumerate(known.items(), 1))]
            first = next(iter(known), OWN)
            return [gr.Dropdown(choices, value=first), first, *fill(name, first)]

        shown = gr.State(OWN)
        gr.on(None, choose_pair, [pair], [example, shown, *fields], **parts.QUIET)
        parts.at_choice(example, shown, fill, [pair, example], fields, **parts.QUIET)
        return shown


def running(verb: str, name: str) -> tuple[gr.Button, gr.Button, gr.HTML]:
    """Build the buttons that start and cancel, and what is being done, for ``at_run``."""
    with gr.Row():
        run = gr.Button(verb, variant="primary", size="md", elem_id=name)
        cancel = gr.Button("Cancel", variant="stop", size="md", elem_id=f"{name}-cancel")
    return run, cancel, gr.HTML(elem_id=f"{name}-status", min_height=52)


def at_run(
    controls: tuple[gr.Button, gr.Button, gr.HTML],
    inputs: Sequence[Any],
    results: Sequence[Any],
    answer: Callable[..., Iterator[tuple[Any, ...]]],
    file: int | None = None,
    also: Sequence[Any] = (),
) -> None:
    """Show what ``answer`` yields when the first of the controls is pressed, or at one of the events ``also``: a
    comparison, of which the last control tells, and what ``results`` show of it. ``file`` is the place of an upload
    among the inputs, whose path errors do not show."""
    run, cancel, said = controls
    last = gr.State(None, time_to_live=3600)

    def show(progress: Any = parts.PROGRESS, *values: Any) -> Iterator[tuple[Any, ...]]:
        with parts.one_line_errors((values[file] or "") if file is not None else ""):
            try:
                for made, *shown in answer(*values):
                    progress((made.drawn, made.total), desc=made.doing, unit="samples")
                    yield made, status_of(made, made.doing), *shown
            except Exception:
                yield gr.skip(), "", *[gr.skip()] * len(results)
                raise

    busy = parts.computing(str(run.elem_id), show_progress_on=said)
    events = [start(show, list(inputs), [last, said, *results], **busy) for start in (run.click, *also)]
    parts.at_cancel(cancel, events, partial(status_of, doing="Cancelled."), [last], [said], **parts.QUIET)


def status_of(made: Comparison | None, doing: str = "") -> str:
    """What is going on, in a line; of a pair without a trained model, that only the base is shown."""
    if made is None:
        return parts.status(doing)
    both = len(made.models) == 2
    noise = f"seed {made.seed}, noise 1 to {made.count}" if made.count > 1 else f"seed {made.seed}"
    same = ", the same for both models" if both else ""
    several = "1 sample" if made.total == 1 else f"{made.total} samples"
    text = f"{several}, {noise}{same}." if made.done else f"{made.drawn} of {several} drawn."
    alone = "" if both else " There is no trained model here, so only the base is shown."
    return parts.status(f"{text}{alone} {doing}".strip())


def sections(columns: Mapping[str, str]) -> str:
    """Mark-up of the sides next to each other, below each other on a narrow screen."""
    inside = [
        f'<section aria-label="{TITLES[side]}"><h3>{TITLES[side]}</h3>{text}</section>'
        for side, text in columns.items()
    ]
    return f'<div class="sides">{"".join(inside)}</div>' if inside else ""


def card(side: Side, place: int, parts_of: Sequence[str], *facts: str) -> str:
    """Mark-up of a sample: what is shown of it, then its rewards and ``facts``."""
    values = side.rewards[place] if side.rewards else {}
    return f"<article>{''.join(parts_of)}{parts.rewards_list(values, side.reasons, *facts)}</article>"


def shown_answer(answer: Any) -> str:
    """A reference answer as the page shows it; empty for none."""
    return "" if answer is None else answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)


def edit_example(example: Prompt, question: str, answer: str, reference: Any) -> Prompt:
    """An example with the question and the reference answer as the visitor left them: the text of the field of the
    answer, and what it means."""
    if question != example.text:
        system = [turn for turn in example.turns if turn.role == "system"]
        example = replace(example, text=question, turns=(*system, Turn("user", (*example.media, question))))
    return example if answer == shown_answer(example.answer) else replace(example, answer=reference)
