"""Completions of several contexts: when one is summed up, what the next reads, and that all of them are one sample."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch

from mmgrpo.advantages.estimate import estimate
from mmgrpo.config.presets import CATALOGUE, PRESETS
from mmgrpo.config.registry import bind
from mmgrpo.data.messages import append_text
from mmgrpo.objectives.aggregation import AGGREGATIONS
from mmgrpo.policies.chains import Chains
from mmgrpo.policies.exploring import sampling_metrics
from mmgrpo.policies.tools import ENDS, Summaries
from mmgrpo.types import Request, Rollout, Turn
from tests.building import recipe, rescored
from tests.unit.policies.test_token_policy import kept
from tests.unit.policies.test_tools import (
    BEGIN,
    CLOSE,
    END,
    OPEN,
    PEEK,
    PROMPTS,
    conversed,
    peek,
    policy_of,
    rollout,
    spelled,
    texts,
)

pytest.importorskip("transformers")

NEVER = Summaries(10**6, 1, "say a")
REPLY = [BEGIN, "user", OPEN, "seven", "eight", CLOSE, END, BEGIN, "assistant"]
ASKED = [BEGIN, "user", OPEN, "seven", "eight", "say", "a", CLOSE, END, BEGIN, "assistant"]


def test_a_worked_completion_of_two_contexts():
    """A call and its answer are 11 tokens; beyond 10 the answer asks for a summary, behind which the next begins."""
    script = [[PEEK, END], ["b", "seven", END], ["a", END]]
    found, asked = conversed(script, summaries=Summaries(10, 1, "say a"))
    (one,) = found.episodes
    first = spelled(PEEK, END, *ASKED, "b", "seven", END)
    assert one.ids == first + spelled("a", END)
    assert one.observed == [False] * 2 + [True] * 11 + [False] * 5
    assert (one.end, one.turn, one.text) == ("answered", 3, "a")
    assert [query.forced for query in asked] == [tuple(first[:13]), ()]
    summed = asked[1].prompt
    assert summed.text == f"{PROMPTS[0].text}\n\nSummary of the work so far:\nb seven" and asked[0].prompt is PROMPTS[0]
    assert [(span.row, span.prompt, span.begin, span.length) for span in found.spans] == [
        (0, PROMPTS[0], 0, 16),
        (0, summed, 16, 2),
    ]
    assert one.turns[1:] == [Turn("tool", ("seven eight\n\nsay a",)), Turn("assistant", ("b seven",))]


@pytest.mark.parametrize(
    ("tokens", "most", "limits", "end", "contexts", "calls"),
    [
        (11, 1, {}, "turns", 1, 2),  # the answers of two calls are 22 tokens: the second asks for a summary
        (10, 1, {}, "summaries", 2, 2),
        (10, 2, {}, "turns", 3, 2),
        (10, 2, {"turns": 2}, "turns", 1, 1),
        (10, 2, {"most": 13}, "tokens", 1, 1),
        (10, 2, {"most": 15}, "tokens", 2, 1),
    ],
)
def test_limits_end_a_completion_of_contexts(tokens, most, limits, end, contexts, calls):
    """Calls, and a summary of one word where one is asked for."""
    script, left = [[PEEK, END], ["b", END], [PEEK, END], ["b", END], [PEEK, END]], {"turns": 5, **limits}
    if tokens == 11:
        script = [[PEEK, END], [PEEK, END], ["b", END], [PEEK, END], ["b", END]]
        left["turns"] = 3
    found, _ = conversed(script, summaries=Summaries(tokens, most, "say a"), **left)
    (one,) = found.episodes
    assert (one.end, len(one.contexts), len(one.calls)) == (end, contexts, calls)
    assert bool(found.ended) == (end not in ("tokens", "summaries"))


@pytest.fixture(scope="module")
def made() -> tuple[Any, Rollout]:
    policy = policy_of(summaries=Summaries(12, 2, "say a"), max_tokens=60, turns=6)
    return policy, policy.rollout(Request(PROMPTS, [0, 1, 2], 8, seed=3, records=frozenset({"turn"})))


def test_each_context_is_scored_behind_its_own_prompt(made):
    """The oracle: every context alone, without padding, cache or packing."""
    policy, rolled = made
    chains, mask = rolled.steps, rolled.decisions.decision_mask
    assert isinstance(chains, Chains) and len(chains.row) > 24 + 8
    sequences, network = chains.sequences, cast(Any, policy.network)
    later = 0
    for number, row in enumerate(chains.row.tolist()):
        begin, length = int(chains.begin[number]), int(sequences.lengths[number])
        later += begin > 0
        place = int(sequences.prompt[number])
        read = sequences.context.ids[place][sequences.context.real[place]]
        prompt = rolled.prompts[row]
        if begin:
            before = rolled.decisions.fields["turn"][row, :begin]
            summary = policy.model.decode(chains.ids[row, :begin][before == before.max()].tolist())
            prompt = append_text(prompt, f"\n\nSummary of the work so far:\n{summary}")
        assert read.tolist() == policy.model.encode([prompt]).ids[0].tolist()
        own = sequences.ids[number][:length]
        with torch.no_grad():
            hidden = network.base_model(torch.cat([read, own])[None]).last_hidden_state[0]
            logits = policy.model.logits(network, hidden).index_fill(1, policy.suppressed, -torch.inf)
        wanted = logits.log_softmax(-1)[len(read) - 1 : -1].gather(1, own[:, None])[:, 0]
        here = mask[row, begin : begin + length]
        found = rolled.decisions.log_probs[row, begin : begin + length]
        torch.testing.assert_close(found[here], wanted[here], rtol=0, atol=1e-5)
    assert later > 8
    torch.testing.assert_close(rescored(policy, rolled)[mask], rolled.decisions.log_probs[mask], rtol=0, atol=1e-5)


def test_all_contexts_of_a_sample_have_its_advantage_and_it_counts_once(made):
    """1 for one sample in several contexts, 0 for the others of its prompt: .875 and -.125, not its share of rows."""
    _, rolled = made
    contexts = torch.bincount(rolled.steps.row)
    best = int(contexts[:8].argmax())
    assert contexts[best] > 1
    rewards = torch.zeros(24, 1)
    rewards[best] = 1.0
    found = estimate(rewards, rewards > -1, torch.ones(1), rolled.decisions, recipe(scale="none"))
    mask = rolled.decisions.decision_mask
    assert found.advantages[best][mask[best]].tolist() == [0.875] * int(mask[best].sum())
    other = (best + 1) % 8
    assert found.advantages[other][mask[other]].tolist() == [-0.125] * int(mask[other].sum())


def test_the_preset_counts_tokens_alike_and_learns_nothing_from_what_is_cut_off():
    """Of three tokens and one each counts a quarter; a sample without an answer is drawn, and not trained."""
    mask = torch.tensor([[True, True, True], [True, False, False]])
    share = bind(PRESETS["supo"]["aggregation"], AGGREGATIONS, "test")({"loss_mask": mask})
    assert share[mask].tolist() == [0.25] * 4
    trained = CATALOGUE["supo"].sampling["truncated"] == "train"
    policy = policy_of(summaries=Summaries(12, 2, "say a"), max_tokens=30, turns=6, train_truncated=trained)
    found = policy.rollout(Request(PROMPTS, [0, 1, 2], 8, seed=3)).decisions
    cut = found.fields["truncated"] > 0
    assert 0 < int(cut.sum()) < 24 and bool(found.decision_mask[cut].any())
    assert not found.loss_mask[cut].any() and bool(found.loss_mask[~cut].any(1).all())


def test_what_is_recorded_goes_on_over_contexts(made):
    _, rolled = made
    fields, mask = rolled.decisions.fields, rolled.decisions.decision_mask
    assert torch.equal(fields["turn"] >= 0, mask)
    assert torch.equal(fields["turn"].amax(1) + 1, fields["turns"].long())
    for row, output in enumerate(texts(rolled)):
        assert output.tokens == int(mask[row].sum())
        cut = ENDS[int(fields["turns_end"][row])] in ("tokens", "summaries")
        assert output.truncated == cut and bool(fields["truncated"][row]) == cut
    metrics = sampling_metrics(rolled.decisions, torch.zeros(24))
    assert 0 <= metrics["rollout/ended_summaries"] < 1


def test_without_a_full_context_it_is_a_conversation():
    plain, summing = rollout(policy_of()), rollout(policy_of(summaries=NEVER))
    chains = summing.steps
    assert isinstance(chains, Chains) and chains.row.tolist() == [*range(24)]
    real = kept(plain).real
    assert torch.equal(chains.ids[real], kept(plain).ids[real])
    for name in ("log_probs", "loss_mask", "decision_mask", "node"):
        assert torch.equal(getattr(summing.decisions, name), getattr(plain.decisions, name))
    assert [one.transcript for one in texts(summing)] == [one.transcript for one in texts(plain)]
    mask = plain.decisions.loss_mask
    gradients = []
    for made in (plain, summing):
        policy = policy_of() if made is plain else policy_of(summaries=NEVER)
        for part in made.steps.split(mask, 7):
            policy.score(made, cast(Any, part), frozenset({"log_probs"}))["log_probs"].sum().backward()
        gradients.append(torch.cat([one.grad.flatten() for one in policy.network.parameters() if one.grad is not None]))
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)


def test_evaluations_sum_up_too():
    outputs = policy_of(summaries=Summaries(10, 2, "say a"), max_tokens=60, turns=6).sample(
        Request(PROMPTS, [0, 1, 2], 1, seed=0)
    )
    assert len(outputs) == 3 and peek() == "seven eight"
