"""Rewards from a judge whose answers are known."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from mmgrpo.rewards import scorer
from mmgrpo.types import Audio, Image, Prompt, Text, Video
from reward_models import REWARDS
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
    with pytest.warns(UserWarning, match="1.*2.*I would rather not."):
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


@pytest.mark.parametrize("reward", ["judge_score", "judge_rubric"])
def test_a_range_goes_from_less_to_more(reward):
    given = {"criteria": ["light"]} if reward == "judge_rubric" else {}
    for low, high in ((1, 1), (2, 1)):
        with pytest.raises(ValueError, match=f"{reward}.*{low}.*{high}"):
            getattr(pointwise, reward)([], [], judge="", low=low, high=high, **given)


@pytest.mark.parametrize(
    "criteria", ["hands", [], {}, {"a": 0}, {"a": -1}, {"a": math.inf}, {"a": math.nan}, {"a": "1"}, {"a": 1, "b": 0}]
)
def test_criteria_are_names_or_have_positive_weights(criteria):
    with pytest.raises(ValueError, match="judge_rubric.*criteria"):
        pointwise.judge_rubric([], [], judge="", criteria=criteria)


def test_a_rubric_is_the_weighted_mean_of_its_criteria(judged):
    judged(lambda text: "anatomy: 4\nlight: 1")
    assert pointwise.judge_rubric(prompts(1), [RED], judge="", criteria={"anatomy": 2, "light": 1}) == [
        pytest.approx(2 / 3)
    ]
    assert pointwise.judge_rubric(prompts(1), [RED], judge="", criteria=["anatomy", "light"]) == [0.5]
    assert pointwise.judge_rubric(prompts(1), [RED], judge="", criteria={"anatomy": 1.5, "light": 0.5}) == [0.75]
    assert pointwise.judge_rubric(prompts(1), [RED], judge="", criteria=["anatomy", "hands"]) == [NAN]


def test_expected_quality_is_that_of_the_five_words(judged):
    fake = judged(lambda text: [math.log(p) for p in (0.4, 0.2, 0.2, 0.1, 0.1)])
    assert pointwise.deqa(prompts(2), [RED, BROKEN], judge="") == [pytest.approx(3.7), NAN]
    # scorer.py of Q-Future/Q-Align at 14dfdffb and of zhiyuanyou/DeQA-Score at 8e4abc82: the image after the question
    assert fake.asked[0].parts == ("How would you rate the quality of this image?", RED)
    assert fake.asked[0].start == "The quality of the image is"
    judged(lambda text: [-1000.0, -1001.0, -2000.0, -2000.0, -2000.0])
    assert pointwise.deqa(prompts(1), [RED], judge="") == [pytest.approx(4 + 1 / (1 + math.exp(-1)))]


def test_vqascore_is_the_probability_of_yes(judged):
    fake = judged(lambda text: [math.log(0.25), math.log(0.5)] if "Describe it." in text else None)
    assert pointwise.vqascore([*prompts(1), Prompt("other")], [RED, RED], judge="") == [pytest.approx(0.25), NAN]
    # qwen2vl_model.py of linzhiqiu/t2v_metrics at 6ecb74f9
    assert fake.asked[0].parts == (RED, 'Does this figure show "Describe it."? Please answer Yes or No.')


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
    long = "Rate {prompt}" + "!" * 300
    unified.unified_reward(prompts(1), [RED], judge="", mode="v1.5", question=long)
    assert fake.asked[1].parts[-1] == "Rate Describe it." + "!" * 300, "longer than the name of a file"
    for wrong in ("Rate it.", "Rate it." * 50):
        with pytest.raises(ValueError, match="{prompt}"):
            unified.unified_reward(prompts(1), [RED], judge="", question=wrong)


@pytest.mark.parametrize("wrong", [{"mode": "v3"}, {"mode": "think"}, {"axis": "beauty"}, {"axis": "Style"}])
def test_modes_and_axes_that_there_are_not_are_refused(wrong):
    with pytest.raises(ValueError, match="unified_reward.*mode=.*axis="):
        unified.unified_reward([], [], judge="", **wrong)
    with pytest.raises(ValueError, match="unified_reward_pairs.*mode.*'v2'"):
        unified.unified_reward_pairs([], [], judge="", mode="v2")


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


def test_a_picture_that_is_broken_is_compared_with_none(judged):
    fake = judged(lambda text: "Verdict: 1")
    for several in ([BROKEN, RED, BLUE], [RED, BROKEN, BLUE]):
        fake.asked.clear()
        values = pairwise.judge_pairs(prompts(3), several, judge="")
        assert values == [NAN if output is BROKEN else 0.5 for output in several]
        assert [(q.parts[2], q.parts[4]) for q in fake.asked] == [(RED, BLUE), (BLUE, RED)]
    assert [q.parts[0] for q in fake.asked] == ["Prompt:\nDescribe it."] * 2


def test_pairs_that_one_order_cannot_tell_are_not_counted_as_consistent(judged):
    judged(lambda text: "?" if text.index("\n1\n") < text.index("\n2\n") else "Verdict: 1")
    assert pairwise.position_consistency(prompts(2), outputs("1", "2"), judge="") == [NAN, NAN]


def test_unified_reward_compares_with_reasons_or_in_json(judged):
    judged(lambda text: f"<think>Output 1?</think><answer>Output {longer_wins(text)[-1]} is better</answer>")
    assert unified.unified_reward_pairs(prompts(3), outputs("1", "3", "2"), judge="") == [0.0, 1.0, 0.5]
    judged(lambda text: '{"categories": [{"cat_winner": "Image 1"}, {"cat_winner": "Image 2"}], "winner": "Image 1"}')
    flex = unified.unified_reward_pairs(prompts(2), [RED, BLUE], judge="", mode="flex", both_orders=False)
    assert flex == [0.75, 0.25]


def test_unified_reward_compares_by_the_published_text_after_the_two_images(judged):
    fake = judged(lambda text: "<answer>Image 2 is better</answer>")
    text = "Which image is better for {prompt}?"
    made = unified.unified_reward_pairs(prompts(2), [RED, BLUE], judge="", both_orders=False, question=text)
    assert made == [0.0, 1.0] and fake.asked[0].parts == (RED, BLUE, "Which image is better for Describe it.?")
    with pytest.raises(ValueError, match="unified_reward_pairs.*question.*{prompt}"):
        unified.unified_reward_pairs(prompts(2), [RED, BLUE], judge="", question="Which?")


def test_win_rates_of_any_reward():
    grey = [Image(torch.full((3, 8, 8), level)) for level in (0.1, 0.9, 0.5, 0.5)]
    brightness = "win_rate(reward='tests.libraries.reward_models.judges.test_judges:brightness(process=False)')"
    one = scorer(brightness)
    assert one.fn(prompts(4), grey) == pytest.approx([0, 1, 0.5, 0.5])
    assert one.fn(prompts(4), [*grey[:3], BROKEN]) == pytest.approx([0, 1, 0.5, math.nan], nan_ok=True)
    close = scorer(brightness[:-1] + ", margin=0.41)")
    assert close.fn(prompts(4), grey) == pytest.approx([1 / 3, 2 / 3, 0.5, 0.5])
    with pytest.raises(ValueError, match="weight"):
        scorer("win_rate(reward='jpeg_compressibility(weight=2)')")
    for margin in (-0.5, math.nan):
        with pytest.raises(ValueError, match="win_rate.*margin"):
            pairwise.check_win_rate("jpeg_compressibility", margin)
    quarters = [Image(torch.full((3, 8, 8), level / 4)) for level in (0, 1, 3)]
    assert scorer(brightness[:-1] + ", margin=0.25)").fn(prompts(3), quarters) == [0.25, 0.25, 1.0], "a margin is a tie"
    assert scorer(brightness[:-1] + ", margin=2)").fn(prompts(3), quarters) == [0.5] * 3


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


def test_the_answer_that_was_not_needed_for_longest_is_forgotten():
    fake = FakeJudge(lambda text: text)
    judge = Remembering(fake, limit=2)
    for text in "ababcbca":
        assert judge.answers([Question((text,))], 8) == [text]
    assert [question.parts for question in fake.asked] == [("a",), ("b",), ("c",), ("a",)]
    assert judge.log_probs([Question(("b",))], [("Yes",)]) == ["b"] == judge.log_probs([Question(("b",))], [("No",)])
    assert len(fake.asked) == 6, "other words are another question"


def test_questions_differ_by_every_pixel_and_by_their_beginning():
    changed = RED.pixels.clone()
    changed[0, 0, 0] = 0.5
    several = [Question((RED,)), Question((Image(changed),)), Question((RED,), "It"), Question((RED, "It"))]
    assert len({question.digest for question in several}) == 4


def test_a_clip_is_shown_as_eight_frames_over_its_length_and_a_sound_is_refused():
    frames = torch.arange(15.0).div(14)[:, None, None, None].expand(15, 3, 2, 2)
    shown: Any = parts_of(Video(frames, 8.0), "Output", "r")
    assert [round(part.pixels[0, 0, 0].item() * 14) for part in shown[1:]] == [0, 2, 4, 6, 8, 10, 12, 14]
    with pytest.raises(TypeError, match="Text.*Image.*Video"):
        parts_of(Audio(torch.zeros(1, 8), 8), "Output", "r")


def test_a_short_clip_is_shown_whole_and_one_without_frames_or_with_a_broken_one_not_at_all():
    frames = torch.zeros(3, 3, 2, 2)
    assert len(parts_of(Video(frames, 8.0), "Output", "r") or ()) == 1 + 3
    assert parts_of(Video(frames[:0], 8.0), "Output", "r") is None
    for number in range(3):
        broken = frames.clone()
        broken[number, 0, 1, 1] = math.inf
        assert parts_of(Video(broken, 8.0), "Output", "r") is None
        assert parts_of(Image(broken[number]), "Output", "r") is None


def test_a_wrong_judge_is_an_error_before_the_run_starts():
    for name in [name for name, entry in REWARDS.items() if entry.check.endswith(":check_judge")]:
        given = ", criteria=['light']" if name == "judge_rubric" else ""
        with pytest.raises(ValueError, match="judge.*'gpt'"):
            scorer(f"{name}(judge='gpt(model=1)'{given})")
    with pytest.raises(ValueError, match="rewards.*'tusk'"):
        scorer("win_rate(reward='tusk')")
    with pytest.raises(ValueError, match="NO_KEY"):
        check_judge('chat(url="http://127.0.0.1:1/v1", model="m", key="NO_KEY")')
    check_judge('vlm(model="nobody/nothing")')


def test_each_picture_is_shown_before_what_is_asked_of_it(judged):
    fake = judged(lambda text: [0.0, -1.0, -2.0, -3.0, -4.0])
    for reward in (pointwise.vqascore, pointwise.artifact_free):
        values = reward(prompts(2), [RED, BROKEN], judge="")
        assert [*map(math.isnan, values)] == [False, True]
    assert [question.parts[1:] for question in fake.asked] == [
        ('Does this figure show "Describe it."? Please answer Yes or No.',),
        (pointwise.ARTIFACTS,),
    ]
    assert all(question.parts[0] is RED for question in fake.asked)


@pytest.mark.parametrize(
    "reward", [pointwise.deqa, pointwise.vqascore, pointwise.artifact_free, unified.unified_reward]
)
def test_what_is_no_picture_is_refused_with_what_to_do(reward, judged):
    judged(lambda text: None)
    with pytest.raises(TypeError, match=f"{reward.__name__}.*Text.*Image"):
        reward(prompts(1), outputs("a"), judge="")


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
