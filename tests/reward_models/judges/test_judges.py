"""Rewards from a judge whose answers are known."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch

from mmgrpo.rewards import scorer
from mmgrpo.types import Audio, Image, Prompt, Text, Video
from reward_models.judges import pairwise, pointwise, question, unified
from reward_models.judges.named import Remembering, check_judge
from reward_models.judges.question import Question, parts_of

NAN = pytest.approx(math.nan, nan_ok=True)
BLUE, RED = Image(torch.zeros(3, 2, 2)), Image(torch.ones(3, 2, 2))
BROKEN = Image(torch.full((3, 2, 2), torch.nan))


class FakeJudge:
    """A judge that answers by a function of the texts of a question; it counts its questions."""

    def __init__(self, answer):
        self.answer, self.asked = answer, []

    def answers(self, questions, tokens):
        self.asked += questions
        return [self.answer(_texts(question)) for question in questions]

    def log_probs(self, questions, words):
        self.asked += questions
        return [self.answer(_texts(question)) for question in questions]


def _texts(question):
    return "\n".join(part for part in question.parts if isinstance(part, str))


@pytest.fixture
def judged(monkeypatch):
    """Let all rewards ask a fake judge, with ``judged(answer)``."""

    def use(answer):
        fake = FakeJudge(answer)
        for module in (pointwise, pairwise, unified):
            monkeypatch.setattr(module, "judge_named", lambda text, device: fake)
        return fake

    return use


def outputs(*texts):
    return [Text(text) for text in texts]


def prompts(count, ids="a"):
    return [Prompt("Describe it.", id=ids[n % len(ids)]) for n in range(count)]


def test_a_number_is_mapped_to_zero_to_one_and_the_judge_sees_prompt_and_output(judged):
    fake = judged(lambda text: "Score: 2" if "poor" in text else "Score: 5")
    assert pointwise.judge_score(prompts(2), outputs("poor", "rich"), judge="") == [0.25, 1.0]
    assert fake.asked[0].parts[:2] == ("Prompt:\nDescribe it.", "Output:\npoor")


def test_an_answer_that_cannot_be_read_is_asked_for_once_more_and_then_nan(judged, monkeypatch):
    monkeypatch.setattr(question, "_warned", set())
    fake = judged(lambda text: "Score: 3" if "rich" in text else "I would rather not.")
    with pytest.warns(UserWarning, match="1 of 2 answers cannot be read .* 'I would rather not.'"):
        assert pointwise.judge_score(prompts(2), outputs("rich", "poor"), judge="") == [0.5, NAN]
    assert len(fake.asked) == 3 and fake.asked[2].parts[:-1] == fake.asked[1].parts
    assert "Score: <number>" in fake.asked[2].parts[-1]


def test_the_reminder_may_help(judged):
    judged(lambda text: "Score: 5" if text.count("Score: <number>") == 2 else "fine")
    assert pointwise.judge_score(prompts(1), outputs("a"), judge="") == [1.0]


def test_pixels_that_are_not_finite_are_nan_and_are_not_shown(judged):
    fake = judged(lambda text: "Score: 5")
    assert pointwise.judge_score(prompts(2), [BROKEN, RED], judge="") == [NAN, 1.0]
    assert [question.parts[2] for question in fake.asked] == [RED]


def test_a_rubric_is_the_weighted_mean_of_its_criteria(judged):
    judged(lambda text: "anatomy: 4\nlight: 1")
    assert pointwise.judge_rubric(prompts(1), [RED], judge="", criteria={"anatomy": 2, "light": 1}) == [
        pytest.approx(2 / 3)
    ]
    assert pointwise.judge_rubric(prompts(1), [RED], judge="", criteria=["anatomy", "light"]) == [0.5]
    assert pointwise.judge_rubric(prompts(1), [RED], judge="", criteria=["anatomy", "hands"]) == [NAN]


def test_expected_quality_is_that_of_the_five_words(judged):
    fake = judged(lambda text: [math.log(p) for p in (0.4, 0.2, 0.2, 0.1, 0.1)])
    assert pointwise.deqa(prompts(2), [RED, BROKEN], judge="") == [pytest.approx(3.7), NAN]
    assert fake.asked[0].start == "The quality of the image is" and fake.asked[0].parts[0] is RED
    judged(lambda text: [-1000.0, -1001.0, -2000.0, -2000.0, -2000.0])
    assert pointwise.deqa(prompts(1), [RED], judge="") == [pytest.approx(4 + 1 / (1 + math.exp(-1)))]


def test_vqascore_is_the_probability_of_yes(judged):
    judged(lambda text: [math.log(0.25), math.log(0.5)] if "Describe it." in text else None)
    assert pointwise.vqascore([*prompts(1), Prompt("other")], [RED, RED], judge="") == [pytest.approx(0.25), NAN]


def test_artifacts_worked_number_of_the_paper(judged):
    judged(lambda text: [-2.0, 0.0])
    assert pointwise.artifact_free(prompts(1), [RED], judge="") == [pytest.approx(0.880797, abs=1e-6)]
    judged(lambda text: [0.0, -1e9])
    assert pointwise.artifact_free(prompts(1), [RED], judge="") == [pytest.approx(0, abs=1e-300)]


def test_the_modes_of_unified_reward(judged):
    three = "Alignment Score (1-5): 5\nCoherence Score (1-5): 3\nStyle Score (1-5): 1"
    fake = judged(lambda text: three if "alignment" in text else "Final Score: 4.0")
    assert unified.unified_reward(prompts(1), [RED], judge="") == [0.5]
    assert unified.unified_reward(prompts(1), [RED], judge="", axis="alignment") == [1.0]
    assert unified.unified_reward(prompts(1), [RED], judge="", axis="style") == [0.0]
    assert unified.unified_reward(prompts(1), [RED], judge="", mode="v1.5") == [0.75]
    assert fake.asked[-1].parts[0].pixels.shape == (3, 512, 512) and fake.asked[0].parts[0] is RED
    judged(lambda text: "Alignment: 5\nCoherence: 5\nStyle: 2")
    assert unified.unified_reward(prompts(1), [RED], judge="") == [0.75]
    for mode in ("v2", "v1.5"):
        assert unified.unified_reward(prompts(1), [BROKEN], judge="", mode=mode) == [NAN]
    judged(lambda text: "Alignment: 5\nCoherence: 5")
    assert unified.unified_reward(prompts(1), [RED], judge="") == [NAN]
    assert unified.unified_reward(prompts(1), [RED], judge="", axis="coherence") == [1.0]


def test_the_published_wording_may_be_given_as_a_file(judged, tmp_path):
    fake = judged(lambda text: "Final Score: 1")
    (tmp_path / "asked.txt").write_text("Rate {prompt} with {braces}.")
    asked = str(tmp_path / "asked.txt")
    assert unified.unified_reward(prompts(1), [RED], judge="", mode="v1.5", question=asked) == [0.0]  # 1 of 1 to 5
    assert fake.asked[0].parts[-1] == "Rate Describe it. with {braces}."
    with pytest.raises(ValueError, match="expected a text with {prompt}"):
        unified.unified_reward(prompts(1), [RED], judge="", question="Rate it.")


def longer_wins(text):
    first, second = (int(text.split(f"Output {n}:\n")[1].split("\n")[0]) for n in (1, 2))
    return "Verdict: tie" if first == second else f"Verdict: {1 if first > second else 2}"


def test_win_rates_of_a_group_by_a_judge_that_knows(judged):
    fake = judged(longer_wins)
    assert pairwise.judge_pairs(prompts(4), outputs("1", "3", "2", "3"), judge="") == pytest.approx(
        [0, 5 / 6, 1 / 3, 5 / 6]
    )
    assert len(fake.asked) == 12, "both orders of six pairs"
    assert pairwise.position_consistency(prompts(4), outputs("1", "3", "2", "3"), judge="") == [1.0] * 4


def test_a_judge_that_always_prefers_the_first_says_nothing(judged):
    fake = judged(lambda text: "Verdict: 1")
    assert pairwise.judge_pairs(prompts(3), outputs("1", "2", "3"), judge="") == [0.5] * 3
    assert pairwise.position_consistency(prompts(3), outputs("1", "2", "3"), judge="") == [0.0] * 3
    fake.asked.clear()
    rates = pairwise.judge_pairs(prompts(3), outputs("1", "2", "3"), judge="", both_orders=False)
    assert rates == [1.0, 0.5, 0.0] and len(fake.asked) == 3


def test_only_outputs_of_one_prompt_are_compared(judged):
    fake = judged(longer_wins)
    values = pairwise.judge_pairs(prompts(5, "ab"), outputs("1", "9", "2", "8", "3"), judge="")
    assert values == [0.0, 1.0, 0.5, 0.0, 1.0] and len(fake.asked) == 2 * (3 + 1)


def test_a_comparison_that_cannot_be_read_counts_for_nobody(judged):
    judged(lambda text: "?" if "\n3" in text and "\n2" in text else longer_wins(text))
    assert pairwise.judge_pairs(prompts(3), outputs("1", "2", "3"), judge="") == [0.0, 1.0, 1.0]
    assert pairwise.judge_pairs(prompts(1), outputs("1"), judge="") == [NAN]
    judged(lambda text: None)
    assert pairwise.judge_pairs(prompts(2), outputs("1", "2"), judge="") == [NAN, NAN]
    assert pairwise.position_consistency(prompts(2), outputs("1", "2"), judge="") == [NAN, NAN]


def test_unified_reward_compares_with_reasons_or_in_json(judged):
    judged(lambda text: f"<think>Output 1?</think><answer>Output {longer_wins(text)[-1]} is better</answer>")
    assert unified.unified_reward_pairs(prompts(3), outputs("1", "3", "2"), judge="") == [0.0, 1.0, 0.5]
    judged(lambda text: '{"categories": [{"cat_winner": "Image 1"}, {"cat_winner": "Image 2"}], "winner": "Image 1"}')
    flex = unified.unified_reward_pairs(prompts(2), [RED, BLUE], judge="", mode="flex", both_orders=False)
    assert flex == [0.75, 0.25]


def test_win_rates_of_any_reward():
    grey = [Image(torch.full((3, 8, 8), level)) for level in (0.1, 0.9, 0.5, 0.5)]
    brightness = "win_rate(reward='tests.reward_models.judges.test_judges:brightness(process=False)')"
    one = scorer(brightness)
    assert one.fn(prompts(4), grey) == pytest.approx([0, 1, 0.5, 0.5])
    assert one.fn(prompts(4), [*grey[:3], BROKEN]) == pytest.approx([0, 1, 0.5, math.nan], nan_ok=True)
    close = scorer(brightness[:-1] + ", margin=0.41)")
    assert close.fn(prompts(4), grey) == pytest.approx([1 / 3, 2 / 3, 0.5, 0.5])
    with pytest.raises(ValueError, match="expected no weight in it"):
        scorer("win_rate(reward='jpeg_compressibility(weight=2)')")


def brightness(prompts, outputs):
    return [float(output.pixels.mean()) for output in outputs]


def test_a_question_is_asked_once_and_an_answer_that_failed_again():
    fake = FakeJudge(lambda text: None if text == "c" else text)
    judge = Remembering(fake, limit=2)
    questions = [Question((text,)) for text in "aba"]
    assert judge.answers(questions, 8) == ["a", "b", "a"] and len(fake.asked) == 2
    assert judge.answers(questions[:1], 9) == ["a"] and len(fake.asked) == 3, "another length is another question"
    assert judge.answers([Question(("c",))] * 2, 8) == [None, None] and len(fake.asked) == 4
    assert judge.answers([Question(("c",))], 8) == [None] and len(fake.asked) == 5
    assert judge.answers(questions, 8) == ["a", "b", "a"] and len(fake.asked) > 5, "the limit forgets the oldest"


def test_questions_differ_by_every_pixel_and_by_their_beginning():
    changed = RED.pixels.clone()
    changed[0, 0, 0] = 0.5
    several = [Question((RED,)), Question((Image(changed),)), Question((RED,), "It"), Question((RED, "It"))]
    assert len({question.digest for question in several}) == 4


def test_a_clip_is_shown_as_eight_frames_over_its_length_and_a_sound_is_refused():
    frames = torch.arange(15.0).div(14)[:, None, None, None].expand(15, 3, 2, 2)
    shown: Any = parts_of(Video(frames, 8.0), "Output", "r")
    assert [round(part.pixels[0, 0, 0].item() * 14) for part in shown[1:]] == [0, 2, 4, 6, 8, 10, 12, 14]
    with pytest.raises(TypeError, match="expected a Text, Image or Video"):
        parts_of(Audio(torch.zeros(1, 8), 8), "Output", "r")


def test_a_wrong_judge_is_an_error_before_the_run_starts():
    with pytest.raises(ValueError, match="judge: there is no 'gpt'"):
        scorer("judge_score(judge='gpt(model=1)')")
    with pytest.raises(ValueError, match="no variable NO_KEY"):
        check_judge('chat(url="http://127.0.0.1:1/v1", model="m", key="NO_KEY")')
    check_judge('vlm(model="nobody/nothing")')


def test_each_picture_is_shown_before_what_is_asked_of_it(judged):
    fake = judged(lambda text: [0.0, -1.0, -2.0, -3.0, -4.0])
    for reward in (pointwise.deqa, pointwise.vqascore, pointwise.artifact_free):
        reward(prompts(1), [RED], judge="")
    assert [question.parts[1:] for question in fake.asked] == [
        ("How would you rate the quality of this image?",),
        ('Does this figure show "Describe it."? Please answer yes or no.',),
        (pointwise.ARTIFACTS,),
    ]
    assert all(question.parts[0] is RED for question in fake.asked)


@pytest.mark.filterwarnings("ignore:judge")
@pytest.mark.parametrize("number", [0, 1, 5, 6])
def test_a_number_beyond_its_range_is_none(number, judged):
    wanted = [(number - 1) / 4 if 1 <= number <= 5 else NAN]
    judged(lambda text: f"Score: {number}")
    assert pointwise.judge_score(prompts(1), [RED], judge="") == wanted
    for form in ("{} Score (1-5): {}", "{}: {}"):
        judged(lambda text, form=form: "\n".join(form.format(name, number) for name in unified.AXES))
        for axis in ("mean", "alignment", "coherence", "style"):
            assert unified.unified_reward(prompts(1), [RED], judge="", axis=axis) == wanted
    judged(lambda text: f"Final Score: {number}")
    assert unified.unified_reward(prompts(1), [RED], judge="", mode="v1.5") == wanted


def test_of_a_reward_one_is_warned_once(judged, monkeypatch):
    monkeypatch.setattr(question, "_warned", set())
    judged(lambda text: "no")
    with pytest.warns(UserWarning, match="1 of 1 answers cannot be read"):
        pointwise.judge_score(prompts(1), [RED], judge="")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pointwise.judge_score(prompts(1), [RED], judge="")
    with pytest.warns(UserWarning, match="1 of 1 answers cannot be read"):
        pointwise.judge_score(prompts(1), [RED], judge="", label="Mark")
