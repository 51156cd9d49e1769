"""The reward with which MagicMirror (arXiv:2509.10260) trains an assessor of generated images.

An assessor thinks, and then labels the artifacts of an image on three levels:

    <think>The left hand has six fingers.</think> \\boxed{{"Whether Normal": False,
    "Type of Abnormality": {"L2: Abnormal Human Anatomy": ["L3: Hand Structure Deformity"]}}}

The reward is 8 r0 + 4 r1 + 2 r2 + r3 (equation 3): r0 is 1 for an answer of this form, r1 for the right "Whether
Normal", and r2 and r3, of the labels of the second and third level, are 1 if all are right, 0 if there are none, and
else 0.6 right - 0.3 (missing + wrong), between 0 and 1 (equation 5). The paper multiplies it by the verdict of a
language model on whether thought and labels agree: gate it with a judge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mmgrpo.scoring.manifest import reward
from mmgrpo.types import Output, Prompt
from reward_models.rules.parsing import literal, texts

KINDS: Mapping[str, tuple[str, ...]] = {
    "Irrational Element Attributes": (
        "Abnormal Material Texture",
        "Abnormal Detail Drawing",
        "Abnormal Element Proportion",
        "Abnormal Color Combination",
    ),
    "Irrational Element Interaction": (
        "Abnormal Light and Shadow Effect",
        "Abnormal Element Overlap",
        "Abnormal Spatial Position",
    ),
    "Abnormal Human Anatomy": (
        "Limb Structure Deformity",
        "Trunk Structure Deformity",
        "Hand Structure Deformity",
        "Foot Structure Deformity",
        "Facial Structure Deformity",
        "Abnormal Human Anatomy",
        "Abnormal and Uncoordinated Posture",
    ),
    "Abnormal Animal Anatomy": ("Abnormal Limb Structure", "Abnormal Posture Presentation", "Abnormal Head Structure"),
    "Abnormal Object Morphology": (),
    "Other Irrationalities": (),
}
"""The labels of the second level, and of the third below each; written with "L2: " and "L3: " before them."""

TYPES = ("Type of Abnormality", "Type of Deformity")
"""The key of the labels: in the paper's template, and in its figures and released code."""

Labels = tuple[bool, frozenset[str], frozenset[tuple[str, str]]]
"""Whether an image is normal; its labels of the second level, and of the third with the one above."""


@reward("Text", range=(0, 15), reads=("answer",), source="MagicMirror, arXiv:2509.10260")
def artifact_labels(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    """MagicMirror's reward of 0 to 15 for the labels of a completion, against those of ``prompt.answer``, a mapping of
    the same form or its text."""
    values = []
    for prompt, text in zip(prompts, texts(outputs, "artifact_labels"), strict=True):
        truth = labels(prompt.answer if isinstance(prompt.answer, Mapping) else literal(str(prompt.answer)))
        if truth is None:
            raise ValueError(
                f"artifact_labels: prompt '{prompt.id}': got the answer {prompt.answer!r}, expected "
                '{"Whether Normal": ..., "Type of Abnormality": {...}} with MagicMirror\'s labels'
            )
        values.append(_reward(boxed_labels(text.whole), truth))
    return values


def boxed_labels(completion: str) -> Labels | None:
    """The labels in the last box after the thought; None where the completion has another form."""
    thought, _, answer = completion.rpartition("</think>")
    _, boxed, box = answer.rstrip().rpartition("boxed{")
    if not thought.lstrip().startswith("<think>") or not boxed or not box.endswith("}"):
        return None
    return labels(literal(box[:-1]))


def labels(answer: Any) -> Labels | None:
    """The labels of a mapping; None for one of another form, such as a label below one that it does not belong to."""
    if not isinstance(answer, Mapping) or type(normal := answer.get("Whether Normal")) is not bool:
        return None
    name = next((name for name in TYPES if name in answer), TYPES[0])
    types = answer.get(name, {})
    if not {*answer} <= {"Whether Normal", name}:
        return None
    if not isinstance(types, Mapping) or normal == bool(types):
        return None
    second, third = set(), set()
    for label, below in types.items():
        kind = str(label).removeprefix("L2: ")
        listed = [] if below is True else below
        if kind not in KINDS or not isinstance(listed, list):
            return None
        names = {str(name).removeprefix("L3: ") for name in listed}
        if not names <= {*KINDS[kind]}:
            return None
        second.add(kind)
        third |= {(kind, name) for name in names}
    return normal, frozenset(second), frozenset(third)


def _reward(answer: Labels | None, truth: Labels) -> float:
    if answer is None:
        return 0.0
    return 8.0 + 4 * (answer[0] == truth[0]) + 2 * _overlap(answer[1], truth[1]) + _overlap(answer[2], truth[2])


def _overlap(answer: frozenset[Any], truth: frozenset[Any]) -> float:
    if answer == truth:
        return 1.0
    return min(max(0.6 * len(answer & truth) - 0.3 * len(answer ^ truth), 0.0), 1.0)
