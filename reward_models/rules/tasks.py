"""Verifiable tasks by name, chosen row by row, so that a batch may mix grounding with arithmetic.

    {"text": "Where is the cat?", "task": "box_iou", "answer": [10, 20, 90, 80],
     "coordinates": "relative_1000", "size": [480, 640]}
    {"text": "How many cats?", "task": "numeric", "answer": 3}

A task is a pure function of the answer (text), its prompt (gold answer; parameters of the row in ``meta``) and the
whole output. An answer that cannot be read is worth 0, the minimum of every task. A gold answer that cannot be used is
an error that names the prompt.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from mmgrpo.config.names import nearest
from mmgrpo.types import Output, Prompt, Text
from reward_models.rules import (
    answers,
    boxes,
    detection,
    gui,
    json_answers,
    latex,
    mathematics,
    mazes,
    paths,
    programs,
    queries,
    tables,
    times,
    trajectories,
)
from reward_models.rules.parsing import malformed
from reward_models.rules.tags import answer_in, texts

Task = Callable[[str, Prompt, Text], float]

TASKS: Mapping[str, Task] = {
    check.__name__: check
    for check in (
        # words, letters and numbers
        answers.exact,
        answers.classification,
        answers.choice,
        answers.choices,
        answers.yes_no,
        answers.numeric,
        answers.numeric_video_r1,
        answers.regression,
        answers.relative_accuracy,
        answers.count_fuzzy,
        answers.jaccard,
        answers.ranking,
        answers.edit,
        answers.edit_ratio,
        answers.ocr_wer,
        answers.rouge,
        answers.rouge_l,
        mathematics.math,
        mathematics.vlm_r1,
        tables.teds,
        latex.latex_structure,
        latex.latex_picture,
        mazes.maze,
        # forms, programs and queries
        json_answers.json_schema,
        json_answers.json_fields,
        programs.code,
        programs.code_share,
        queries.sql,
        queries.sql_partial,
        # places in an image
        boxes.box_iou,
        boxes.box_giou,
        boxes.box_gui_g1,
        boxes.point_in_box,
        gui.ui_r1,
        gui.gui_r1,
        gui.ton,
        trajectories.affordance,
        trajectories.trajectory,
        detection.detection_visual_rft,
        detection.detection_ap,
        detection.detection_ap50,
        detection.detection_od_length,
        detection.detection_weighted,
        # places in time
        times.temporal_iou,
        times.temporal_time_r1,
        times.temporal_multi,
        times.tracking_iou,
        paths.tracking_frames,
        paths.spatio_temporal,
        paths.segmentation_points,
    )
}
"""Name to function of answer, prompt and output. The maximum of a task is 1, except for ``MAXIMA``."""

MAXIMA: Mapping[str, float] = {
    "count_fuzzy": 1.5,
    "box_giou": 2.0,
    "box_gui_g1": 1.375,
    "ui_r1": 2.0,
    "ton": 2.0,
    "detection_visual_rft": 2.0,
    "sql_partial": 6.0,
}
"""The value of a perfect answer, where it is not 1."""


_IN_WORDS = {module.__name__ for module in (answers, latex, mathematics, mazes, tables)}


def written_in_words(name: str) -> bool:
    """Whether the right answer of a task is its gold answer as it stands, no box or time in another form."""
    return name in TASKS and TASKS[name].__module__ in _IN_WORDS


def task(prompts: Sequence[Prompt], outputs: Sequence[Output], tags: bool | str = True) -> list[float]:
    """The value of every row by the task that its own prompt names; NaN where that task cannot score it.

    The answer is the content of the last ``<answer>`` after the thought, and empty if there is none. With
    ``tags=False`` it is the whole completion, with a place of ``tags.PLACES`` what stands there: ``'final_answer'`` is
    the line after "### The final answer is:" (R1-VL). ``meta.tags`` of a row takes precedence.
    """
    return scored([task_of(prompt) for prompt in prompts], prompts, texts(outputs, "task"), tags)


def one_task(name: str, prompts: Sequence[Prompt], outputs: Sequence[Output], tags: bool | str = True) -> list[float]:
    """The value of every row by one task, whatever tasks the prompts name."""
    return scored([TASKS[name]] * len(prompts), prompts, texts(outputs, name), tags)


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


def scored(tasks: Sequence[Task], prompts: Sequence[Prompt], outputs: Sequence[Text], tags: bool | str) -> list[float]:
    """The values of rows by their tasks; those that run in a sandbox as many at a time as there are cores."""
    answers = [answer_in(text, prompt, tags) for prompt, text in zip(prompts, outputs, strict=True)]
    rows = list(zip(tasks, answers, prompts, outputs, strict=True))
    apart = {programs.__name__, queries.__name__} & {one.__module__ for one in tasks}
    if not apart:
        return [one(answer, prompt, text) for one, answer, prompt, text in rows]
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        return list(pool.map(lambda row: row[0](*row[1:]), rows))


UNNAMED = "names no task: write it into the column 'task', or name one in place of the reward 'task'"


def task_of(prompt: Prompt) -> Task:
    """The task that a prompt names; an unknown one is an error that lists all of them."""
    if prompt.task not in TASKS:
        problem = f"unknown task '{prompt.task}'" if prompt.task else UNNAMED
        raise ValueError(f"prompt '{prompt.id}' ({prompt.text[:80]!r}): {problem}.{nearest(prompt.task, TASKS)}")
    return TASKS[prompt.task]
