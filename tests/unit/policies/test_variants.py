"""A group divided among forms of its prompt: all are trained, compared with each other, and known by their number."""

from __future__ import annotations

import math

import pytest
import torch

from mmgrpo.advantages.baseline import BASELINES, project_onto_order, staged_pairs
from mmgrpo.advantages.shape import SHAPES
from mmgrpo.config.registry import bind
from mmgrpo.policies.variants import VARIANTS
from mmgrpo.types import Prompt, Request, Text, Turn
from pipelines.text.causal_lm import toy
from reward_models.rules.groups import order_consistency
from reward_models.rules.lengths import auxiliary, budget_length, budget_value, triangle_length
from tests.building import algorithm_blocks, rounds_of, token_policy_over, trainer

WORDS = ["say", "a", "b", "with", "2", "3", "tokens", "no"]
PROMPTS = [Prompt("say a", "0"), Prompt("say b", "1")]
BUDGETS = "budgets(tokens=[2, 3], text='with {tokens} tokens')"


def forms(text, prompt):
    return bind(text, VARIANTS, "variants")({"prompt": prompt})


def test_a_form_is_the_question_with_a_sentence_after_it():
    prompt = Prompt("q", "7", turns=(Turn("system", ("s",)), Turn("user", ("q",))))
    (small, number, *_), (large, *_) = forms(BUDGETS, prompt)
    assert (small.text, small.id, small.meta["budget"], number) == ("q with 2 tokens", "7", 2, 2.0)
    assert large.turns[1].parts == ("q", " with 3 tokens") and large.turns[0] == prompt.turns[0]
    (plain, zero, *_), (told, one, *_) = forms("instructions(texts=['', 'no'])", prompt)
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


TREE = [("", 3, 8), ("a ", 2, 4), ("a b ", 2, 2), ("b ", 1, 2), ("b a ", 0, 1)]
"""Beginnings with the right and all solutions of a teacher below each."""
NODES = [{"text": text, "wins": wins, "visits": visits} for text, wins, visits in reversed(TREE)]
STORED = [Prompt("say a", "0", "a", meta={"prefixes": NODES}), Prompt("say b", "1", "b", meta={"prefixes": NODES})]


def begun(prompt, count=9, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return bind("prefixes", VARIANTS, "variants")({"prompt": prompt, "count": count, "generator": generator})


def test_stored_beginnings_are_the_nodes_of_a_tree():
    """Tree-OPO, arXiv:2509.09284: whose text another continues is above it."""
    made = begun(STORED[0])
    assert [(one.beginning, one.number) for one in made] == [(text, n) for n, (text, _, _) in enumerate(TREE)]
    assert [one.numbers["prefix_end"] for one in made] == [4, 2, 2, 4, 4]
    assert [one.numbers["prefix_parent"] for one in made] == [-1, 0, 1, 0, 3]
    assert [one.numbers["prefix_value"] for one in made] == [0.375, 0.5, 1, 0.5, 0]
    some = [[one.number for one in begun(STORED[0], 3, seed)] for seed in range(20)]
    assert {len(one) for one in some} == {3} and set().union(*some) == {0, 1, 2, 3, 4}
    wrong = [{"text": "a", "wins": 2, "visits": 1}]
    for meta in ({}, {"prefixes": wrong}, {"prefixes": [*NODES, NODES[0]]}, {"prefixes": "a"}):
        with pytest.raises(ValueError, match="prompt '0'.*prefixes"):
            begun(Prompt("say a", "0", meta=meta))


def test_a_group_goes_on_from_stored_beginnings_which_are_given():
    policy = token_policy_over(toy(WORDS), max_tokens=4, variants="prefixes()")
    made = policy.rollout(Request(STORED, [0, 1], 5, 3))
    fields = made.decisions.fields
    assert fields.keys() == policy.fields >= {"prefix_end", "prefix_parent", "prefix_value"}
    assert fields["prefix_value"].tolist() == [0.375, 0.5, 1, 0.5, 0] * 2
    for output, (text, _, _) in zip(made.outputs, TREE * 2, strict=True):
        assert output.text.startswith(text.strip())
    words = [len(text.split()) for text, _, _ in TREE * 2]
    own = made.decisions.decision_mask.sum(1).tolist()
    assert [len(one.text.split()) for one in made.outputs] <= [a + b for a, b in zip(words, own, strict=True)]
    [part] = made.steps.split(made.decisions.loss_mask, 100)
    again = policy.score(made, part, frozenset({"log_probs"}))["log_probs"]
    torch.testing.assert_close(again, made.decisions.log_probs[part.rows, part.positions], rtol=0, atol=1e-5)


def staged_inputs(values, **fields):
    given = {name: torch.tensor(one, dtype=torch.float64) for name, one in fields.items()}
    size = len(values)
    return given | {
        "values": torch.tensor(values).double(),
        "key": torch.zeros(size).long(),
        "stat": torch.ones(size) > 0,
    }


@pytest.mark.parametrize(
    ("how", "wanted"),
    [
        ("expectation", [-0.375, 0.5, -0.375, 0.25]),
        ("optimistic", [-0.5, 0.5, -0.5, 0.5]),
        ("pessimistic", [-0.375, 0.625, -0.375, 0.125]),  # r - V / 2 = 0 1 0 .5, mean .375
    ],
)
def test_what_the_teacher_expects_from_a_beginning_is_subtracted(how, wanted):
    inputs = staged_inputs([0, 1, 0, 1], prefix_value=[0.25, 0.5, 0.25, 1])
    made = bind(f"prefix_value(how='{how}')", BASELINES, "baseline")(inputs)
    assert (inputs["values"] - made).tolist() == pytest.approx(wanted)
    plain = bind("prefix_value(alpha=0)", BASELINES, "baseline")(inputs)
    assert plain.tolist() == [0.5] * 4


def test_staged_advantages_are_in_the_order_of_the_tree():
    """Rows 0 and 2 fail at siblings, and row 1 succeeds below row 0, whose advantage becomes the least: pairs (0, 1)
    and (0, 2); of the violated one each side gives way by half of delta. Row 3 is farther away."""
    tree = {"variant": [1, 2, 4, 9], "prefix_end": [3, 3, 5, 9], "prefix_parent": [0, 1, 0, 8]}
    inputs = staged_inputs([0, 1, 0, 0], **tree)
    made = inputs["values"] - bind("staged(delta=0.1)", BASELINES, "baseline")(inputs)
    assert made.tolist() == pytest.approx([-0.3, 0.75, -0.2, -0.25], abs=1e-9)
    right = staged_inputs([0, 1, 0, 1], **tree)  # nothing is violated: r - mean
    right["prefix_parent"][2] = 7.0
    assert (right["values"] - bind("staged", BASELINES, "baseline")(right)).tolist() == [-0.5, 0.5, -0.5, 0.5]
    args = inputs["values"] > 0, *(inputs[name] for name in ("variant", "prefix_end", "prefix_parent"))
    assert staged_pairs(*args) == [(0, 1), (0, 2)]
    # a success below both siblings, at nodes 2 and 5: neither is below the other
    places = (torch.tensor(one).double() for one in ([1, 2, 4, 5], [3, 3, 6, 6], [0, 1, 0, 4]))
    assert staged_pairs(torch.tensor([False, True, False, True]), *places) == [(0, 1), (2, 3)]


def test_staged_advantages_are_the_nearest_that_are_allowed():
    """Of 4000 allowed points none is nearer; a chain of pairs, and squares that must shrink."""
    generator = torch.Generator().manual_seed(0)
    start = torch.tensor([3.0, -1, 2, -4, 0.0]).double()
    pairs, delta = [(0, 1), (1, 2), (3, 4)], 0.2
    made = project_onto_order(start, pairs, delta)

    def allowed(a):
        return float(a.square().sum()) <= 5 + 1e-9 and all(float(a[j] - a[i]) >= delta - 1e-9 for i, j in pairs)

    assert allowed(made) and float(made.sum()) == pytest.approx(0, abs=1e-9)
    near = made + 0.3 * torch.randn(4000, 5, generator=generator).double()
    near = near - near.mean(1, keepdim=True)
    others = [one for one in near if allowed(one)]
    assert len(others) > 20
    assert min(float((one - start).norm()) for one in others) >= float((made - start).norm()) - 1e-9


def test_a_run_trains_on_stored_beginnings(tmp_path):
    policy = token_policy_over(toy(WORDS), max_tokens=4, variants="prefixes()")
    blocks = algorithm_blocks("dr_grpo", baseline="staged", scale="none")
    made = trainer(
        policy,
        tmp_path,
        STORED,
        reward=lambda p, o: [float("a b" in x.text) for x in o],
        group_size=4,
        steps=1,
        **blocks,
    )
    rounds = rounds_of(made)
    made.run_round()
    [batch] = [one.batch for one in rounds]
    assert batch.loss_mask.any() and batch.advantages.abs().max() > 0
    for name in (0, 1):
        rows = batch.decisions.keys["prompt"] == name
        assert float(batch.advantages[rows, 0].sum()) == pytest.approx(0, abs=1e-6)
