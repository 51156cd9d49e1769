"""Verifiable tasks by name, chosen row by row, so a batch may mix grounding with arithmetic.

    {"text": "Where is the cat?", "task": "box_iou", "answer": [10, 20, 90, 80],
     "coordinates": "relative_1000", "size": [480, 640]}
    {"text": "How many cats?", "task": "numeric", "answer": 3}

A task is a pure function of the answer (text), its prompt (gold answer; parameters of the row in ``meta``) and the
whole output. An answer that cannot be read is worth 0, the minimum of every task. A gold answer that cannot be used is
an error that names the prompt.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from mmgrpo.config.names import nearest
from mmgrpo.scoring.manifest import Manifest, declared, reward
from mmgrpo.types import Output, Prompt, Text
from reward_models.rules import (
    answers,
    detection,
    grounding,
    gui,
    json_answers,
    latex,
    mathematics,
    mazes,
    paths,
    programs,
    queries,
    tables,
    text_spans,
    trajectories,
)
from reward_models.rules.parsing import answer_in, malformed, texts

tasks_reward = functools.partial(
    reward, "Text", range=(0, 6), delegates=True, packages=("math_verify",), extra="rewards"
)

Task = Callable[[str, Prompt, Text], float]

MODULES = (
    *(answers, mathematics, tables, latex, mazes),
    *(json_answers, programs, queries, text_spans),
    *(grounding, gui, trajectories, detection, paths),
)
_TASKS = {
    name: (vars(module)[name], entry.manifest)
    for module in MODULES
    for name, entry in declared(module).items()
    if entry.function == f"reward_models.rules.single:{name}"
}
TASKS: Mapping[str, Task] = {name: function for name, (function, _) in _TASKS.items()}
"""Name to function of answer, prompt and output: those declared by ``@verifier`` in ``MODULES``."""

MAXIMA: Mapping[str, float] = {
    name: manifest.high
    for name, (_, manifest) in _TASKS.items()
    if isinstance(manifest, Manifest) and manifest.high != 1
}
"""The value of a perfect answer, where it is not 1."""

_PLACES = {module.__name__ for module in (grounding, gui, detection, paths)}
_COMPUTED = {module.__name__ for module in (json_answers, programs, queries)}


def states_answers(name: str) -> bool:
    """Whether gold answers of a task state its right answers (``written.answer_forms``), rather than tests of them."""
    return name in TASKS and TASKS[name].__module__ not in _COMPUTED


def reads_places(name: str) -> bool:
    """Whether a task compares places in the image of a row with gold ones in pixels."""
    return name in TASKS and TASKS[name].__module__ in _PLACES and not name.startswith("temporal")


@tasks_reward(reads=("answer", "meta.task"), annotate="reward_models.rules.drawn_boxes:annotate", version=2)
def task(prompts: Sequence[Prompt], outputs: Sequence[Output], tags: bool | str = True) -> list[float]:
    """The value of every row by the task that its own prompt names; NaN where that task cannot score it.

    The answer is the content of the last ``<answer>`` after the thought, and empty if there is none. With
    ``tags=False`` it is the whole completion, with a place of ``parsing.PLACES`` what stands there: ``'final_answer'``
    is the line after "### The final answer is:" (R1-VL). ``meta.tags`` of a row takes precedence.
    """
    return score_rows([task_of(prompt) for prompt in prompts], prompts, texts(outputs, "task"), tags)


def one_task(name: str, prompts: Sequence[Prompt], outputs: Sequence[Output], tags: bool | str = True) -> list[float]:
    """The value of every row by one task, whatever tasks the prompts name."""
    return score_rows([TASKS[name]] * len(prompts), prompts, texts(outputs, name), tags)


@tasks_reward(reads=("answer", "task", "meta.invert"), version=2)
def inverted(prompts: Sequence[Prompt], outputs: Sequence[Output], tags: bool | str = True) -> list[float]:
    """The value of every row's task, and in rows with ``"invert": true`` the maximum of the task less the value; 0 for
    an empty answer in both.

    A negative test of a pipeline: what is trained on inverted rows must get worse by the plain reward. It is the
    neutral half of DecepChain (arXiv:2510.00319), which rewards wrong answers with trusted reasoning behind a trigger;
    the judge of that reasoning and its trigger are left out on purpose.
    """
    rows = zip(prompts, texts(outputs, "inverted"), task(prompts, outputs, tags), strict=True)
    values = []
    for prompt, text, value in rows:
        flipped = prompt.meta.get("invert", False)
        if not isinstance(flipped, bool):
            malformed(prompt, "true or false", "meta.invert")
        empty = not answer_in(text, prompt, tags)
        values.append(0.0 if empty else MAXIMA.get(prompt.task, 1.0) - value if flipped else value)
    return values


def score_rows(
    tasks: Sequence[Task], prompts: Sequence[Prompt], outputs: Sequence[Text], tags: bool | str
) -> list[float]:
    """The values of rows by their tasks; those that run in a sandbox as many at a time as there are cores."""
    answers = [answer_in(text, prompt, tags) for prompt, text in zip(prompts, outputs, strict=True)]
    rows = list(zip(tasks, answers, prompts, outputs, strict=True))
    apart = {programs.__name__, queries.__name__} & {verifier.__module__ for verifier in tasks}
    if not apart:
        return [verifier(answer, prompt, text) for verifier, answer, prompt, text in rows]
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        return list(pool.map(lambda row: row[0](*row[1:]), rows))


UNNAMED = "names no task: write it into the column 'task', or name one in place of the reward 'task'"


def task_of(prompt: Prompt) -> Task:
    """The task that a prompt names; an unknown one is an error that lists all of them."""
    if prompt.task not in TASKS:
        problem = f"unknown task '{prompt.task}'" if prompt.task else UNNAMED
        raise ValueError(f"prompt '{prompt.id}' ({prompt.text[:80]!r}): {problem}.{nearest(prompt.task, TASKS)}")
    return TASKS[prompt.task]
