"""Judges of edits: two questions and their geometric mean, VIEScore's form, four aspects."""

from __future__ import annotations

import math

import pytest
import torch

from mmgrpo.rewards import scorer
from mmgrpo.scoring.fitting import row_objection
from mmgrpo.types import Image, Media, Prompt, Turn, Video
from reward_models.judges import edits
from reward_models.judges.question import KEEP, Question


def flat(level: float) -> Image:
    return Image(torch.full((3, 4, 4), level))


DAY, NIGHT = flat(0.9), flat(0.1)


def edit(*sources: Image, text: str = "make it night") -> Prompt:
    media = tuple(Media("image", one) for one in sources)
    return Prompt(text, "row 7", turns=(Turn("user", (*media, text)),))


class Scripted:
    """A judge that says what stands here of each kind of question; it keeps its questions."""

    def __init__(self, yes: dict[str, float] | None = None, said: dict[str, str] | None = None) -> None:
        self.yes, self.said = yes or {}, said or {}
        self.asked: list[Question] = []

    def _chosen(self, question: Question, table: dict) -> object:
        self.asked.append(question)
        return next(value for key, value in table.items() if key in question.parts[-1])

    def answers(self, questions, tokens):
        return [self._chosen(question, self.said) for question in questions]

    def log_probs(self, questions, words):
        values = [self._chosen(question, self.yes) for question in questions]
        return [[math.log(value / 2), math.log((1 - value) / 2)] for value in values]  # half of it on other words


@pytest.fixture
def judged(monkeypatch):
    def use(**script) -> Scripted:
        one = Scripted(**script)
        monkeypatch.setattr(edits, "judge_named", lambda text, device: one)
        return one

    return use


def test_two_questions_and_their_geometric_mean(judged):
    judge = judged(yes={"Does the output do": 0.9, "Is everything": 0.4})
    prompts, outputs = [edit(DAY)], [NIGHT]
    assert edits.edit_following(prompts, outputs, "") == pytest.approx([0.9])
    assert edits.edit_preserving(prompts, outputs, "") == pytest.approx([0.4])
    assert edits.edit_success(prompts, outputs, "") == pytest.approx([0.6])  # sqrt(.36); the mean is .65
    for question in judge.asked:
        assert question.parts[:-1] == ("Instruction:\nmake it night", "Source image:", DAY, "Output:", NIGHT)
        assert KEEP not in question.parts and '"make it night"' in question.parts[-1]


def test_the_source_itself_preserves_exactly_and_has_no_success(judged):
    judged(yes={"Does the output do": 1e-9, "Is everything": 0.7})
    prompts, outputs = [edit(DAY), edit(NIGHT), edit(DAY, NIGHT)], [DAY, DAY, DAY]
    assert edits.edit_preserving(prompts, outputs, "") == pytest.approx([1, 0.7, 0.7])
    assert edits.edit_success(prompts[:1], outputs[:1], "") == pytest.approx([0], abs=1e-4)


def test_editscore_is_the_root_of_the_least_numbers(judged):
    judge = judged(
        said={"Consistency": "Following: 18\nConsistency: 12", "Artifacts": "Naturalness: 20\nArtifacts: 15"}
    )
    assert edits.edit_score([edit(DAY)], [NIGHT], "") == pytest.approx([5.366563])  # sqrt(12 / 2.5 x 15 / 2.5)
    images = [[part for part in one.parts if isinstance(part, Image)] for one in judge.asked]
    assert images == [[DAY, NIGHT], [NIGHT]], "quality is that of the edit alone"


@pytest.mark.parametrize(
    ("numbers", "value"),
    [
        ("Text faithfulness: 3.5\nImage faithfulness: 2\nPhysical quality: 4\nText rendering: N/A", 0.722222),
        ("Text faithfulness: 4\nImage faithfulness: 4\nPhysical quality: 4\nText rendering: 1", 0.75),  # 2.25 / 3
        ("Text faithfulness: 4\nImage faithfulness: N/A\nPhysical quality: 4\nText rendering: 1", math.nan),
        ("Text faithfulness: 5\nImage faithfulness: 4\nPhysical quality: 4\nText rendering: N/A", math.nan),
        ("Very good.", math.nan),
    ],
)
@pytest.mark.filterwarnings("ignore:judge")
def test_four_aspects_of_which_the_last_may_not_apply(judged, numbers, value):
    judged(said={"": numbers})
    assert edits.edit_aspects([edit(DAY)], [NIGHT], "") == pytest.approx([value], nan_ok=True)


NAMES = ("edit_following", "edit_preserving", "edit_success", "edit_score", "edit_aspects")


@pytest.mark.parametrize("name", NAMES)
def test_every_one_shows_the_source_and_refuses_rows_without_one(name, judged):
    judge = judged(
        yes={"": 0.5}, said={"": "\n".join(f"{one}: 4" for one in (*edits.ASPECTS, *edits.SEMANTIC, *edits.QUALITY))}
    )
    function = getattr(edits, name)
    clip = Video(torch.rand(2, 3, 4, 4), 8.0)
    assert all(value > 0 for value in function([edit(DAY)] * 2, [NIGHT, clip], ""))
    assert any(part is DAY for part in judge.asked[0].parts)
    broken = Image(torch.full((3, 4, 4), math.nan))
    assert math.isnan(function([edit(DAY)], [broken], "")[0]) and math.isnan(function([edit(broken)], [DAY], "")[0])
    one = scorer(f"{name}(judge=\"chat(url='http://127.0.0.1:1/v1', model='m')\")")
    for prompt in (Prompt("make it night", "row 7"), edit(DAY, text="")):
        assert "row 7" in row_objection(one, prompt)
    assert not row_objection(one, edit(DAY))
