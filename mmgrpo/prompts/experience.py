"""Training-free GRPO (arXiv:2510.08191): a frozen policy improves by a list of experiences in its prompts.

    library = learn(policy, prompts, scorers, group_size=5, batch=50).library
    library.write(Path("experiences.json"));  improved = library.prompt(prompt)

Each prompt is sampled as a group with the present list. Only where some samples are right and some wrong, the same
policy is shown both and asked what made the difference, as operations on the list (``Operation``). No weight changes:
what a gradient would do to the policy, the list does to its prompts. Rollouts and rewards are those of training.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from mmgrpo.files import write_text
from mmgrpo.prompts.drawing import PromptOrder
from mmgrpo.randomness import derive
from mmgrpo.scoring import Scorer, score_outputs
from mmgrpo.types import Output, Policy, Prompt, Request, Text

Ask: TypeAlias = Callable[[str, Prompt], str]
"""``ask(question, prompt)``: an answer in words; ``prompt`` is the one that the question is about, with its media."""

HEADER = "Experience with questions of this kind:"
QUESTION = """{prompt}

{experiences}
Some attempts at this question were right and some wrong.

{attempts}
What did the right ones do that the wrong ones did not? Answer with a JSON list of at most {most} changes of the list of
experiences, each {{"do": "add", "text": "..."}}, {{"do": "modify", "number": 1, "text": "..."}},
{{"do": "delete", "number": 1}} or {{"do": "keep"}}. An experience is one general sentence without the answer."""
LONGEST = 400
"""Characters of an experience; longer ones are not taken."""


@dataclass(frozen=True)
class Library:
    """Experiences, in the order in which they are numbered from 1."""

    experiences: tuple[str, ...] = ()
    largest: int = 50
    """Most experiences; further ones are not added."""

    def prompt(self, prompt: Prompt) -> Prompt:
        """The prompt with the experiences before its last user turn; itself where there are none."""
        if not self.experiences:
            return prompt
        words = self.words()
        last = max((place for place, turn in enumerate(prompt.turns) if turn.role == "user"), default=-1)
        turns = tuple(
            replace(turn, parts=(words, *turn.parts)) if place == last else turn
            for place, turn in enumerate(prompt.turns)
        )
        return replace(prompt, text=f"{words}{prompt.text}", turns=turns)

    def words(self) -> str:
        lines = [f"{number}. {text}" for number, text in enumerate(self.experiences, 1)]
        return "\n".join([HEADER, *lines, ""]) + "\n" if lines else ""

    def apply_operations(self, answer: str, most: int) -> Library:
        """The library after the operations of an answer; what is no valid operation is ignored, and an answer that is
        no list of them changes nothing."""
        kept: list[str | None] = list(self.experiences)
        added: list[str] = []
        for operation in operations(answer)[:most]:
            given, text = operation.get("number"), operation.get("text")
            number = given if type(given) is int else 0
            known = 1 <= number <= len(kept)
            fits = isinstance(text, str) and 0 < len(text.strip()) <= LONGEST
            if operation.get("do") == "add" and fits:
                added.append(str(text).strip())
            elif operation.get("do") == "modify" and known and fits:
                kept[number - 1] = str(text).strip()
            elif operation.get("do") == "delete" and known:
                kept[number - 1] = None
        entries = dict.fromkeys([entry for entry in kept if entry is not None] + added)  # each once, in order
        return replace(self, experiences=tuple(entries)[: self.largest])

    def write(self, path: Path) -> None:
        write_text(path, json.dumps({"experiences": list(self.experiences)}, indent=1))

    @staticmethod
    def read(path: Path) -> Library:
        """ValueError for a file that is no library."""
        try:
            texts = json.loads(path.read_text(encoding="utf-8"))["experiences"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path}: expected a JSON object with a list experiences") from error
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise ValueError(f"{path}: experiences: got {texts!r:.200}, expected a list of texts")
        return Library(tuple(texts))


def operations(answer: str) -> list[Mapping[str, Any]]:
    """The JSON objects of the last list in an answer; none where it holds no list."""
    start, end = answer.find("["), answer.rfind("]")
    try:
        entries = json.loads(answer[start : end + 1]) if 0 <= start < end else []
    except (ValueError, RecursionError):
        return []
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []


@dataclass(frozen=True)
class Round:
    """What one batch of prompts changed."""

    mean: float
    """Mean reward of the samples; NaN where none was scored."""
    asked: int
    """Groups with right and with wrong samples."""
    library: Library
    """After the batch."""


@dataclass
class Learning:
    """A finished run without gradient."""

    library: Library
    rounds: list[Round] = field(default_factory=list)


def learn(
    policy: Policy,
    prompts: Sequence[Prompt],
    scorers: Sequence[Scorer],
    *,
    ask: Ask | None = None,
    library: Library | None = None,
    epochs: int = 1,
    batch: int = 50,
    group_size: int = 5,
    right: float = 0.5,
    most: int = 1,
    seed: int = 0,
) -> Learning:
    """The library after ``epochs`` over the prompts, ``batch`` of them at a time with ``group_size`` samples each.

    A sample is right if the weighted sum of its rewards is at least ``right``; ``most`` changes a prompt. ``ask`` is by
    default the policy itself, at its temperature of evaluation, which must not be 0 for samples to differ. Batch, group
    size and one experience a prompt are those of the released configuration for mathematics, at temperature .7.
    """
    learning = Learning(library or Library())
    for epoch in range(epochs):
        order = PromptOrder(len(prompts), derive(seed, "experience", epoch)).take(0, len(prompts))
        for start in range(0, len(order), batch):
            chunk = [prompts[place] for place in order[start : start + batch]]
            number = derive(seed, "experience", epoch, start)
            given = [learning.library.prompt(prompt) for prompt in chunk]
            slots = list(range(len(given)))
            outputs = policy.sample(Request(given, slots, group_size, number, len(learning.rounds)))
            rows = [prompt for prompt in chunk for _ in range(group_size)]
            scores = score_outputs(scorers, rows, outputs)
            weights = [scorer.weight for scorer in scorers]
            values = [sum(w * v for w, v in zip(weights, row, strict=True)) for row in scores.values.tolist()]
            valid = [all(row) for row in scores.valid[:, [bool(w) for w in weights]].tolist()]
            mixed, present = 0, learning.library
            for place, prompt in enumerate(chunk):
                members = range(place * group_size, (place + 1) * group_size)
                group = [(outputs[row], values[row] >= right) for row in members if valid[row]]
                if len({good for _, good in group}) < 2:
                    continue
                mixed += 1
                question = difference(prompt, group, present, most)
                answer = ask(question, prompt) if ask else _ask(policy, question, prompt, derive(number, "ask", place))
                present = present.apply_operations(answer, most)
            scored = [value for value, is_valid in zip(values, valid, strict=True) if is_valid]
            learning.rounds.append(Round(sum(scored) / len(scored) if scored else float("nan"), mixed, present))
            learning.library = present
    return learning


def difference(prompt: Prompt, group: Sequence[tuple[Output, bool]], library: Library, most: int) -> str:
    """The question about a group with right and with wrong samples."""
    attempts = [
        f"{'Right' if good else 'Wrong'} attempt: {output.text if isinstance(output, Text) else '(no text)'}"
        for output, good in group
    ]
    return QUESTION.format(
        prompt=prompt.text, experiences=library.words(), attempts="\n".join(attempts) + "\n", most=most
    )


def _ask(policy: Policy, question: str, prompt: Prompt, seed: int) -> str:
    turns = tuple(
        replace(turn, parts=(*(part for part in turn.parts if not isinstance(part, str)), question))
        for turn in prompt.turns
        if turn.role == "user"
    )[-1:]
    [output] = policy.sample(Request([replace(prompt, text=question, turns=turns)], [0], 1, seed))
    return output.text if isinstance(output, Text) else ""
