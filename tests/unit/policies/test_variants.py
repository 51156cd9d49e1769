"""A group divided among forms of its prompt: all are trained, compared with each other, and known by their number."""

from __future__ import annotations

import math

import pytest
import torch

from mmgrpo.advantages.shape import SHAPES
from mmgrpo.config.registry import bind
from mmgrpo.policies.variants import VARIANTS
from mmgrpo.types import Prompt, Request, Text, Turn
from pipelines.text.causal_lm import toy
from reward_models.rules.groups import order_consistency
from reward_models.rules.lengths import auxiliary, budget_length, budget_value, triangle_length
from tests.building import token_policy_over

WORDS = ["say", "a", "b", "with", "2", "3", "tokens", "no"]
PROMPTS = [Prompt("say a", "0"), Prompt("say b", "1")]
BUDGETS = "budgets(tokens=[2, 3], text='with {tokens} tokens')"


def forms(text, prompt):
    return bind(text, VARIANTS, "variants")({"prompt": prompt})


def test_a_form_is_the_question_with_a_sentence_after_it():
    prompt = Prompt("q", "7", turns=(Turn("system", ("s",)), Turn("user", ("q",))))
    (small, number), (large, _) = forms(BUDGETS, prompt)
    assert (small.text, small.id, small.meta["budget"], number) == ("q with 2 tokens", "7", 2, 2.0)
    assert large.turns[1].parts == ("q", " with 3 tokens") and large.turns[0] == prompt.turns[0]
    (plain, zero), (told, one) = forms("instructions(texts=['', 'no'])", prompt)
    assert (plain.text, plain.turns, told.text, zero, one) == ("q", prompt.turns, "q no", 0.0, 1.0)
    assert told.meta["variant"] == 1
    for wrong, named in (("budgets(tokens=[])", "tokens"), ("instructions(texts=['a'])", "'a'")):
        with pytest.raises(ValueError, match=named):
            forms(wrong, prompt)


def test_a_group_is_divided_and_stays_one_group():
    policy = token_policy_over(toy(WORDS), max_tokens=4, variants=BUDGETS)
    made = policy.rollout(Request(PROMPTS, [0, 1], 5, 3))
    assert made.decisions.keys["prompt"].tolist() == [0] * 5 + [1] * 5
    assert made.decisions.fields["variant"].tolist() == [2, 2, 2, 3, 3] * 2
    assert (
        made.decisions.fields.keys() == policy.fields and made.decisions.loss_mask[made.decisions.decision_mask].all()
    )
    [part] = made.steps.split(made.decisions.loss_mask, 100)
    again = policy.score(made, part, frozenset({"log_probs"}))["log_probs"]
    torch.testing.assert_close(again, made.decisions.log_probs[part.rows, part.positions], rtol=0, atol=1e-5)
    alone = policy.rollout(Request(PROMPTS[1:], [1], 5, 3))  # the other prompt of another process
    assert [one.text for one in alone.outputs] == [one.text for one in made.outputs[5:]]
    with pytest.raises(ValueError, match="variants.*2 forms for 1"):
        policy.rollout(Request(PROMPTS, [0, 1], 1, 3))
    with pytest.raises(ValueError, match="variants.*reference_in_group"):
        token_policy_over(toy(WORDS), max_tokens=4, variants=BUDGETS, reference_in_group=True)


def test_forms_of_one_text_are_drawn_independently():
    policy = token_policy_over(toy(WORDS), max_tokens=4, variants="instructions(texts=['', ''])")
    texts = [one.text for one in policy.rollout(Request(PROMPTS[:1], [0], 16, 3)).outputs]
    assert texts[:8] != texts[8:]


def rows(*answers, budget=512, variants=None):
    meta = {"task": "exact", "budget": budget}
    prompts = [
        Prompt("q", "0", answer="a", task="exact", meta=meta | ({"variant": variants[n]} if variants else {}))
        for n in range(len(answers))
    ]
    return prompts, [Text(text, tokens) for text, tokens in answers]


RIGHT, WRONG = "<answer>a</answer>", "<answer>b</answer>"


def test_a_right_answer_within_its_budget_is_worth_most():
    assert [budget_value(b, 4, 8192) for b in (512, 1024, 2048, 2560)] == pytest.approx(
        [3.92314, 3.69552, 2.82843, 2.22228], abs=5e-6
    )
    made = budget_length(*rows((RIGHT, 1000), (RIGHT, 400), (RIGHT, 5000), (WRONG, 10), ("none", 10)))
    assert made == pytest.approx([3.59031, 3.92314, 0, 0, -1], abs=5e-6)
    assert budget_length(*rows((RIGHT, 2000), budget=2048)) == pytest.approx([2.82843], abs=5e-6)
    with pytest.raises(ValueError, match="'0'.*budget.*None"):
        budget_length(*rows((RIGHT, 10), budget=None))


def test_the_length_reward_is_largest_at_the_budget():
    """RMT, arXiv:2509.24375, of 800 tokens."""
    made = triangle_length(*rows((RIGHT, 400), (WRONG, 800), (RIGHT, 1200), ("none", 1700), budget=800))
    assert made == [0.5, 1.0, 0.5, 0.0]
    with pytest.raises(ValueError, match="'0'.*budget.*None"):
        triangle_length(*rows((RIGHT, 10), budget=None))


def test_a_budget_that_fails_is_pushed_down_as_a_whole():
    best = [4 * math.cos(math.pi * b / 8192) for b in (512, 2560)]
    values = torch.tensor([best[0], 0.0, best[1], best[1]], dtype=torch.float64)
    inputs = {"values": values, "key": torch.zeros(4).long(), "stat": torch.ones(4).bool()}
    inputs |= {"variant": torch.tensor([512.0, 512, 2560, 2560]), "advantages": torch.zeros(4, dtype=torch.float64)}
    made = bind("budget_offset", SHAPES, "shape")(inputs)
    assert made.tolist() == pytest.approx([-1.96157, -1.96157, 0, 0], abs=5e-6)


@pytest.mark.parametrize(("gap", "wanted"), [(0.1, [0, 0, 0, 0, 1, 1, 0, 0]), (0.3, [0] * 8)])
def test_constructions_are_rewarded_where_they_help(gap, wanted):
    told = [0] * 4 + [1] * 4
    answers = [(WRONG, 1), (RIGHT, 1), (WRONG, 1), (WRONG, 1)]
    answers += [("<aux>x</aux>" + RIGHT, 1), ("<aux>x</aux>" + RIGHT, 1), (WRONG, 1), (WRONG, 1)]
    assert auxiliary(*rows(*answers, variants=told), gap=gap) == wanted
    swapped = auxiliary(*rows(*answers, variants=[1 - one for one in told]), gap=gap)
    assert swapped == [-one for one in wanted]


def test_a_verdict_is_consistent_where_it_is_right_in_both_orders():
    """J1, arXiv:2505.10320: sample k of one order beside sample k of the other."""

    def consistent(kept, turned):
        answers = [({"1": RIGHT, "0": WRONG}[one], 1) for one in kept + turned]
        return order_consistency(*rows(*answers, variants=[0] * len(kept) + [1] * len(turned)))

    assert consistent("10", "01") == [0, 0, 0, 0]  # each is right in one order
    assert consistent("10", "10") == [1, 0, 1, 0]
    assert consistent("11", "00") == [0, 0, 0, 0]  # always the first answer
    assert consistent("101", "11") == [1, 0, 1, 1, 0]  # the third belongs to the first of the other order again
    assert all(map(math.isnan, order_consistency(*rows((RIGHT, 1)))))  # evaluation
