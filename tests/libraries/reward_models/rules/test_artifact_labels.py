"""MagicMirror's reward of labels: 8 r0 + 4 r1 + 2 r2 + r3, with numbers to check in the head."""

from __future__ import annotations

from types import MappingProxyType

import pytest

from mmgrpo.types import Prompt, Text
from reward_models.rules.artifact_labels import KINDS, TYPES, artifact_labels, labels

HUMAN, ANIMAL, OBJECT = "L2: Abnormal Human Anatomy", "L2: Abnormal Animal Anatomy", "L2: Abnormal Object Morphology"
HAND, FOOT, HEAD = "L3: Hand Structure Deformity", "L3: Foot Structure Deformity", "L3: Abnormal Head Structure"
LIMB, TRUNK = "L3: Limb Structure Deformity", "L3: Trunk Structure Deformity"
NORMAL = {"Whether Normal": True}


def flawed(**kinds):
    names = {"human": HUMAN, "animal": ANIMAL, "object": OBJECT}
    return {"Whether Normal": False, "Type of Abnormality": {names[kind]: below for kind, below in kinds.items()}}


def value(answer, truth):
    text = answer if isinstance(answer, str) else f"<think>Look.</think> \\boxed{{{answer}}}"
    return artifact_labels([Prompt("p", answer=truth)], [Text(text)])[0]


@pytest.mark.parametrize(
    ("answer", "truth", "expected"),
    [
        (NORMAL, NORMAL, 15),
        (flawed(human=[HAND]), flawed(human=[HAND]), 15),
        (flawed(object=True), flawed(object=True), 15),
        # r1 = 0; of one label none is right: r2 = r3 = 0.
        (NORMAL, flawed(human=[HAND]), 8),
        # r1 = 0 and a label too many: r2 = r3 = 0 rather than -0.3.
        (flawed(human=[HAND]), NORMAL, 8),
        # Both kinds right; r3 = 0.6 - 0.3.
        (flawed(human=[HAND], object=True), flawed(human=[HAND, FOOT], object=True), 8 + 4 + 2 + 0.3),
        # r2 = 0.6 - 0.3 missing; r3 = 0.6 - 0.3 missing.
        (flawed(human=[HAND]), flawed(human=[HAND], animal=[HEAD]), 8 + 4 + 2 * 0.3 + 0.3),
        # r2 = 1.2 - 0.3 of one that is wrong; r3 = 1.2 - 0.
        (flawed(human=[HAND], animal=[HEAD], object=True), flawed(human=[HAND], animal=[HEAD]), 8 + 4 + 2 * 0.9 + 1),
        # r2 = 0.6 - 0.3 - 0.3; r3 = 0.6 - 0.3 of FOOT, which is missing.
        (flawed(human=[HAND], object=True), flawed(human=[HAND, FOOT], animal=True), 8 + 4 + 0 + 0.3),
        # r3 = 1.8 - 0.3 of LIMB, but at most 1.
        (flawed(human=[HAND, FOOT, TRUNK]), flawed(human=[HAND, FOOT, TRUNK, LIMB]), 15),
        # the other key, and a space before the thought
        ({"Whether Normal": False, "Type of Deformity": {HUMAN: [HAND]}}, flawed(human=[HAND]), 15),
        (f" <think>Look.</think> \\boxed{{{NORMAL}}} ", NORMAL, 15),
    ],
)
def test_rewards_of_labels(answer, truth, expected):
    assert value(answer, truth) == pytest.approx(expected)


@pytest.mark.parametrize(
    "answer",
    [
        "",
        f"\\boxed{{{NORMAL}}}",
        f"<think>Look.</think> {NORMAL}",
        f"<think>Look.</think> {NORMAL}}}",
        f"Look.</think> \\boxed{{{NORMAL}}}",
        f"<think>Look.</think> \\boxed{{{NORMAL}.",
        {"Whether Normal": False, "Type of Abnormality": [HUMAN]},
        {"Whether Normal": False, "Type of Abnormality": [], "Type of Deformity": {}},
        flawed(object=False),
        flawed(object=""),
        f"<think>Look. \\boxed{{{NORMAL}}}</think>",
        "<think>Look.</think> \\boxed{normal}",
        {"Whether Normal": "yes"},
        {"Whether Normal": True, "Score": 1},
        {"Whether Normal": False},
        {**flawed(object=True), "Whether Normal": True},
        flawed(human=[HEAD]),
        flawed(human="L3: Hand Structure Deformity"),
        {"Whether Normal": False, "Type of Abnormality": {"L2: Ugly": True}},
    ],
)
def test_an_answer_of_another_form_is_worth_nothing(answer):
    assert value(answer, flawed(human=[HAND])) == 0
    assert value(answer, NORMAL) == 0


def test_the_truth_may_be_a_text_and_must_be_labels():
    assert value(NORMAL, MappingProxyType(NORMAL)) == 15
    assert value(flawed(object=True), str(flawed(object=True))) == 15
    for wrong in (None, "cat", {"Whether Normal": 1}):
        with pytest.raises(ValueError, match="artifact_labels.*''"):
            value(NORMAL, wrong)


def test_a_label_of_the_third_level_belongs_to_one_above():
    assert len(KINDS) == 6 and sum(map(len, KINDS.values())) == 17


def test_a_nameless_list_of_types_is_of_another_form():
    kind = next(iter(KINDS))
    assert labels({"Whether Normal": False, TYPES[0]: {kind: True}}) is not None
    assert labels({"Whether Normal": False, "": {kind: True}}) is None
