"""The states of texts between their steps: which they are, what they are worth, and what credits make of that."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
import torch

from mmgrpo.advantages.step_rewards import of_states
from mmgrpo.policies import text_states
from mmgrpo.policies.text_states import step_ends
from mmgrpo.policies.token import TokenPolicy
from mmgrpo.rollout import begin_rollout
from mmgrpo.scoring import Scorer
from mmgrpo.types import HINT, HINTED, Completions, Prompt, Request, Text
from pipelines.text.causal_lm import toy
from tests.building import algorithm_blocks, token_policy_over, trainer
from tests.trees import plain
from tests.unit.advantages.test_credit import credit, near
from tests.unit.policies.test_token_policy import PROMPTS, kept

pytest.importorskip("transformers")


def of_steps(**settings) -> TokenPolicy:
    """A policy whose words c and d are empty lines."""
    policy = token_policy_over(toy(["say", "a", "b", "c", "d"]), max_tokens=12, **settings)
    words = policy.model.decode
    policy.model.decode = lambda ids: re.sub(r"\b[cd]\b", "\n\n", words(ids))
    return policy


def letters(prompts, outputs):
    """1 for each a less .1 for each word."""
    return [one.text.count("a") - 0.1 * len(one.text.split()) for one in outputs]


def rolled(policy, prompts=PROMPTS, slots=(0, 1, 2), rewards=(), preset="vineppo"):
    rewards = rewards or (Scorer("letters", letters, 2.0),)
    request = Request(list(prompts), list(slots), 4, 3)
    made = policy.rollout(request)
    recipe, weights = algorithm_blocks(preset)["advantages"], torch.tensor([one.weight for one in rewards])
    decisions, scores = begin_rollout(rewards, recipe, request, made, [], weights)()
    return made, decisions, scores


def test_a_step_ends_at_its_last_token_and_further_ones_belong_to_the_last():
    segment = torch.tensor([[0, 0, 1, 2, 2, 0], [0, 0, 0, 0, 0, 0]])
    real = torch.tensor([[1, 1, 1, 1, 1, 0], [1, 1, 0, 0, 0, 0]]).bool()
    assert step_ends(segment, real, 20).int().tolist() == [[0, 1, 1, 0, 1, 0], [0, 1, 0, 0, 0, 0]]
    assert step_ends(segment, real, 2).int().tolist() == [[0, 1, 0, 0, 1, 0], [0, 1, 0, 0, 0, 0]]


@pytest.mark.parametrize(("by", "at_once"), [("", 64), ("letters", 64), ("", 5)])
def test_texts_so_far_are_judged_as_in_a_naive_loop(by, at_once, monkeypatch):
    monkeypatch.setattr(text_states, "AT_ONCE", at_once)
    policy = of_steps(states=f"judged(by='{by}')")
    more = Scorer("more", lambda prompts, outputs: [100.0] * len(outputs), 1.0)
    made, decisions, _ = rolled(policy, rewards=(Scorer("letters", letters, 2.0), *([more] if by else [])))
    factor, several = (1.0 if by else 2.0), 0
    for row, (ids, real) in enumerate(zip(kept(made).ids, kept(made).real, strict=True)):
        own, begun = ids[real].tolist(), 0
        ends = decisions.fields["step_ends"][row].nonzero()[:, 0].tolist()
        several += len(ends) > 1
        assert ends[-1] == len(own) - 1
        for end in ends:
            before, after = (letters([], [Text(policy.model.decode(own[:n]))])[0] for n in (begun, end + 1))
            if end < ends[-1]:
                assert policy.model.decode(own[: end + 1]).rstrip(" ").endswith("\n\n")
            assert float(decisions.fields["step_values"][row, end]) == pytest.approx(factor * before, abs=1e-5)
            assert float(decisions.fields["step_rewards"][row, end]) == pytest.approx(
                factor * (after - before), abs=1e-5
            )
            begun = end + 1
    others = decisions.fields["step_ends"] == 0
    assert several > 3 and not decisions.fields["step_rewards"][others].any()


def test_completions_go_on_from_their_state_whatever_else_is_sampled():
    policy = of_steps(states="completed(count=3)")
    made, decisions, _ = rolled(policy)
    every = [one for part in made.completions.parts() for one in part]
    ids = kept(made).ids
    assert len(every) == len(made.completions.rows) and len(every) % 3 == 0
    before = made.completions.before
    for row, place in (before >= 0).nonzero().tolist():
        ends = decisions.fields["step_ends"][row, :place].nonzero()[:, 0].tolist()
        begun = policy.model.decode(ids[row, : ends[-1] + 1].tolist()) if ends else ""
        drawn = every[3 * int(before[row, place]) : 3 * int(before[row, place]) + 3]
        assert all(one.text.startswith(begun.rstrip()) and one.tokens <= 12 for one in drawn)
        mean = sum(letters([], drawn)) / 3
        assert float(decisions.fields["step_values"][row, place]) == pytest.approx(2 * mean, abs=1e-5)
    # all samples of a prompt have one first state
    first = [int(before[row][decisions.fields["step_ends"][row] > 0][0]) for row in range(4)]
    assert len(set(first)) == 1
    alone, apart, _ = rolled(policy, PROMPTS[1:2], [1])
    width = min(apart.fields["step_values"].shape[1], decisions.fields["step_values"].shape[1])
    torch.testing.assert_close(apart.fields["step_values"][:, :width], decisions.fields["step_values"][4:8, :width])
    assert len([*alone.completions.parts()]) > 0


def test_a_beginning_is_no_text_that_was_cut_off():
    cut_off = Scorer("cut_off", lambda prompts, outputs: [float(one.truncated) for one in outputs], 1.0)
    _, decisions, scores = rolled(of_steps(states="judged()"), rewards=(cut_off,))
    assert float(scores.values.max()) == 1.0 and not decisions.fields["step_values"].any()


def test_rows_that_follow_a_hint_have_steps_too():
    hinted = [replace(prompt, meta={HINT: "say"}) for prompt in PROMPTS]
    _, decisions, _ = rolled(of_steps(states="judged()"), hinted)
    assert bool((decisions.origin == HINTED).all()) and bool((decisions.fields["step_ends"].sum(1) >= 1).all())


def test_each_state_is_completed_from_a_random_stream_of_its_own(monkeypatch):
    policy, queries = of_steps(states="completed(count=2)"), []
    made, _, _ = rolled(policy)
    generate = policy.generate
    monkeypatch.setattr(policy, "generate", lambda some, *rest: queries.extend(some) or generate(some, *rest))
    states = sum(len(part) for part in made.completions.parts()) // 2
    assert len(queries) == states > 8 and len({query.slot for query in queries}) == states


def test_completions_by_another_network_are_its_own():
    policy = of_steps(states="completed(count=2, network='reference')")
    policy.keep_reference()
    same = rolled(policy)[1].fields["step_values"]
    with torch.no_grad():
        for parameter in policy.network.parameters():
            parameter.zero_()
    made, decisions, _ = rolled(policy)
    begun = made.completions.before[:, :1] >= 0
    assert bool(decisions.fields["step_values"].isfinite().all()) and same.shape and begun.shape


@pytest.mark.parametrize(
    ("rewards", "eta", "value"),
    [
        ([1.0, 0.0], 0.0, 0.5),
        ([1.0, 0.0], 1.0, 0.62011),
        ([1.0, 0.0], 2.0, 0.71689),
        ([1.0, 0.0], 10.0, 0.93069),
        ([1.0, 0.0], -1.0, 0.37989),
        ([1.0, 0.0, 0.0, 0.0], 1.0, 0.35737),
        ([0.7, 0.7], 3.0, 0.7),
    ],
)
def test_the_value_of_a_state_is_the_mean_or_a_soft_maximum_of_its_completions(rewards, eta, value):
    nothing = torch.zeros(1, 1, dtype=torch.long)
    completions = Completions(lambda: iter(()), nothing[0], nothing, nothing, count=len(rewards) + 1, eta=eta)
    values = torch.tensor([*rewards, 9.0], dtype=torch.float64)
    known = torch.tensor([*[True] * len(rewards), False])
    got, scored = of_states(values, known, completions)  # the last one could not be scored
    assert float(got) == pytest.approx(value, abs=1e-5) and scored.tolist() == [True]
    assert of_states(values + 2, known, completions)[0] == pytest.approx(value + 2, abs=1e-5)
    assert of_states(values, ~known & False, completions)[1].tolist() == [False]


def stepped(values, ends=None, outcome=None):
    """One row of one token a step (or with the ends given), whose states have these values, the last the sample's."""
    values = torch.as_tensor(values, dtype=torch.float64)
    ends = torch.ones(1, len(values) - 1) if ends is None else torch.tensor([ends], dtype=torch.float64)
    rewards, before = torch.zeros(2, 1, ends.shape[1], dtype=torch.float64)
    rewards[ends > 0], before[ends > 0] = values.diff(), values[:-1]
    return plain([ends.shape[1]], step_rewards=rewards, step_values=before, step_ends=ends)


def test_every_token_of_a_step_has_what_the_step_gained():
    got = credit("step_gain", [1.0], stepped([0.25, 0.5, 0.5, 0.125, 1.0], [0, 1, 1, 0, 0, 1, 1]))
    assert got.numpy() == near([[0.25, 0.25, 0, -0.375, -0.375, -0.375, 0.875]])
    assert float(credit("step_gain", [1.0], stepped([0.25, 0.5, 0.5, 0.125, 1.0])).sum()) == pytest.approx(0.75)


@pytest.mark.parametrize(
    ("parameters", "returns"),
    [
        ("delta=False, clip=0.7", [-0.5, -0.5, -0.4, -0.4]),  # 0, -.1, 0, -.4
        ("delta=True", [0.9, 0.6, 0.8, 0.0]),  # .3, -.2, .8, 0: from step k on q_k
        ("delta=True, clip=0.7", [0.0, -0.1, 0.0, 0.0]),  # .1, -.1, 0, 0
    ],
)
def test_process_rewards_are_clipped_and_telescope(parameters, returns):
    made = stepped([0.0, 0.9, 0.6, 0.8, 0.3])
    got = credit(f"process_reward(alpha=1, outcome=0, {parameters}, eps=0)", [1.0], made)
    wanted = torch.tensor(returns, dtype=torch.float64)
    assert got[0].numpy() == near(((wanted - wanted.mean()) / wanted.std()).tolist())
    # The reward of the sample is at the last step, so it is part of all returns: of one row it cancels.
    more = credit(f"process_reward(alpha=1, outcome=5, {parameters}, eps=0)", [1.0], made)
    assert more.numpy() == near(got.tolist())


def test_repeating_a_good_step_earns_nothing_by_delta():
    """Six steps of .9: their sum is 5.4, that of the deltas .9."""
    long, short = stepped([0.0, *[0.9] * 6]), stepped([0.0, *[0.9] * 2])
    kinds = {}
    for name, made in (("long", long), ("short", short)):
        kinds[name] = credit("process_reward(alpha=1, outcome=0, eps=1e9)", [1.0], made) * 1e9
    # centred returns .9 ... .9, 0 in both: from the first step on .9 whatever follows
    assert float(kinds["long"][0, 0] - kinds["long"][0, -1]) == pytest.approx(0.9)
    assert float(kinds["short"][0, 0] - kinds["short"][0, -1]) == pytest.approx(0.9)


def test_gains_of_a_set_function_are_those_of_new_items():
    """{1, 2}, {2, 3}, {1, 3}: 2, 1 and 0 new ones, 3, 1 and 0 from there on."""
    from reward_models.sets.diversity import step_coverage

    texts = [Text("\n\n".join(["1 2", "2 3", "1 3"][:n])) for n in range(4)]
    values = step_coverage([Prompt("")] * 4, texts, of="words")
    assert values == [0, 2, 3, 3]
    made = stepped(values)
    sums = torch.tensor([3.0, 1, 0], dtype=torch.float64)
    got = credit("step_return(gamma=1, over='group', eps=0)", [3.0], made)
    assert got[0].numpy() == near(((sums - sums.mean()) / sums.std(correction=0)).tolist())


@pytest.mark.parametrize("preset", ["vineppo", "clip_delta", "subpo"])
def test_a_run_reads_its_states(preset, tmp_path):
    states = "completed(count=2)" if preset == "vineppo" else "judged()"
    policy = of_steps(states=states)
    policy.keep_reference()
    made = trainer(
        policy, tmp_path, PROMPTS, reward=letters, group_size=4, steps=2, lr=1e-3, **algorithm_blocks(preset)
    )
    made.fit()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) == 2 and all(line["grad_norm"] > 0 and line["decisions"] > 0 for line in lines)
