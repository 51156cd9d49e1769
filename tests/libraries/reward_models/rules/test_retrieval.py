"""Steps of retrieval (R1-Router), with numbers in the head."""

from __future__ import annotations

import numpy as np
import pytest

from mmgrpo.types import Prompt, Text
from reward_models.rules.retrieval import recall, routed_step

HERE = "tests.libraries.reward_models.rules.test_retrieval"


def letters(texts, device):
    """[number of a, number of b]"""
    return np.array([[text.count("a") - text.count("c"), text.count("b")] for text in texts], dtype=float)


def short(texts, device):
    return np.zeros((1, 2))


STEP = Prompt("q", "1", meta={"sub_question": "a", "retriever": "Table Retriever"})


@pytest.mark.parametrize(
    ("question", "retrievers", "value"),
    [
        ("aaaabbb", ["Table Retriever"], 0.9),  # cosine 4 / 5
        ("aaaabbb", ["Text Retriever"], 0.4),
        ("aaaabbb", ["Table Retriever", "Text Retriever"], 0.4),
        ("aaaabbb", [], 0.4),
        ("bbb", ["Table Retriever"], 0.5),
        ("aaaaccccc", ["Table Retriever"], 0.5),  # a cosine below 0 counts 0
        (None, ["Table Retriever"], 0.5),
        (None, [], 0.0),
    ],
)
def test_a_step_is_half_its_question_and_half_its_retriever(question, retrievers, value):
    asked = "" if question is None else f"<sub-question>{question}</sub-question>"
    text = f"<think>t</think>{asked}" + "".join(f"<ret> {name} </ret>" for name in retrievers)
    assert routed_step([STEP], [Text(text)], f"{HERE}:letters") == pytest.approx([value])


def test_an_answer_is_worth_what_it_recalls_and_a_short_one_all_or_nothing():
    assert recall("It was Gustave Eiffel.", "gustave eiffel") == 1 and recall("Gustave", "Gustave Eiffel") == 0
    assert recall("a b c", "a b c d e f") == 0.5 and recall("a a a a a a", "a b c d e f") == pytest.approx(1 / 6)
    rows = [Prompt("q", "1", answer="Paris"), STEP]
    texts = [Text("<think>Rome</think><answer>Paris</answer>"), Text("<ret>Table Retriever</ret>")]
    assert routed_step(rows, texts, f"{HERE}:letters") == [1.0, 0.5]


def test_rows_and_embeddings_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"'1'.*meta.sub_question"):
        routed_step([Prompt("q", "1", meta={"retriever": "a"})], [Text("x")], f"{HERE}:letters")
    asked = Text("<sub-question>a</sub-question>")
    with pytest.raises(ValueError, match=r":short.*\[1, 2\]"):
        routed_step([STEP], [asked], f"{HERE}:short")
    with pytest.raises(ValueError, match="norm 0"):
        routed_step([STEP], [Text("<sub-question>d</sub-question>")], f"{HERE}:letters")
