"""Log-probs without copies of logits, rows that completions share, and slots that they take over from each other."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mmgrpo.policies.token_scores import Packed, Sampled, chosen_log_probs
from tests.seeing import distance, gradient

WORDS, WIDTH, COUNT = 7, 5, 9


def scored(head: nn.Linear, states: Tensor, chunk: int, sampled: Sampled) -> tuple[Tensor, Tensor, list[int]]:
    """Log-probs of words, their gradient, and the sizes of what is stored for it."""
    hidden = states.clone().requires_grad_()
    head.zero_grad()
    tokens, first = torch.arange(COUNT) % 4, torch.arange(COUNT) % 3 == 0
    value = chosen_log_probs(head, hidden, tokens, first, sampled, chunk)
    function: Any = value.grad_fn
    stored = [one.numel() for one in getattr(function, "saved_tensors", ())]
    (value * torch.linspace(-1, 2, COUNT)).sum().backward()
    return value.detach(), hidden.grad, stored  # type: ignore[return-value]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("chunk", [2, 100])
@pytest.mark.parametrize("frozen", [True, False])
def test_log_probs_and_gradients_are_those_of_log_softmax(frozen, chunk, temperature):
    torch.manual_seed(0)
    head, states = nn.Linear(WIDTH, WORDS).requires_grad_(not frozen), torch.randn(COUNT, WIDTH)
    sampled = Sampled(temperature, torch.tensor([5]), torch.tensor([6]))
    value, slope, stored = scored(head, states, chunk, sampled)
    weights = None if frozen else head.weight.grad.clone()  # type: ignore[union-attr]
    hidden = states.clone().requires_grad_()
    logits = head(hidden) / temperature
    never = torch.zeros(COUNT, WORDS, dtype=torch.bool)
    never[:, 5], never[::3, 6] = True, True
    wanted = logits.masked_fill(never, -torch.inf).log_softmax(-1)[torch.arange(COUNT), torch.arange(COUNT) % 4]
    torch.testing.assert_close(value, wanted.detach())
    head.zero_grad()
    (wanted * torch.linspace(-1, 2, COUNT)).sum().backward()
    torch.testing.assert_close(slope, hidden.grad)
    if weights is not None:
        torch.testing.assert_close(weights, head.weight.grad)
    # one table of tokens x words at most, and none behind a frozen layer
    assert stored == ([COUNT * WIDTH] if frozen else [COUNT * WORDS, COUNT, COUNT] if chunk == 100 else [])


def test_a_suppressed_word_has_no_gradient_and_hidden_states_that_are_logits_are_left_alone():
    states = torch.randn(2, WORDS, requires_grad=True)
    before, sampled = states.detach().clone(), Sampled(1.0, torch.tensor([5]), torch.tensor([], dtype=torch.long))
    value = chosen_log_probs(lambda one: one, states, torch.tensor([5, 1]), torch.zeros(2) > 0, sampled, 10)
    assert value[0] == -torch.inf and torch.equal(states.detach(), before)


def test_completions_of_a_prompt_share_rows():
    """Of lengths 5, 2, 4 and 2, so 4, 1, 3 and 1 tokens are read; the third is of another prompt. A row has 4."""
    packed = Packed.of([0, 0, 1, 0], [5, 2, 4, 2], 2, torch.device("cpu"), size=1)
    assert packed.prompt.tolist() == [0, 1, 0]
    assert packed.part.tolist() == [[0, 0, 0, 0], [2, 2, 2, -1], [1, 3, -1, -1]]
    assert packed.place.tolist() == [[0, 1, 2, 3], [0, 1, 2, 0], [0, 0, 0, 0]]
    # behind the states of two prompts, those of three rows of four
    assert packed.index.tolist() == [[0, 2, 3, 4, 5], [0, 10, 0, 0, 0], [1, 6, 7, 8, 0], [0, 11, 0, 0, 0]]
    seen = packed.attention_mask(torch.tensor([[False, True]] * 3), whole=False)
    assert seen[2].long().tolist() == [[0, 1, 1, 0, 0, 0], [0, 1, 0, 1, 0, 0], [0, 1, 0, 0, 1, 0], [0, 1, 0, 0, 1, 1]]
    whole = packed.attention_mask(torch.tensor([[False, True]] * 3), whole=True)[2].long()
    assert whole[:2].tolist() == [[1, 0, 0, 0, 0, 0], [0, 1, 0, 0, 0, 0]] and torch.equal(whole[2:], seen[2].long())


def spied(policy: Any, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Rows and tokens of every pass of the network."""
    own, seen = policy.model.hidden, []

    def hidden(network: Any, ids: Tensor, *others: Any) -> Any:
        seen.append(tuple(ids.shape))
        return own(network, ids, *others)

    monkeypatch.setattr(policy.model, "hidden", hidden)
    return seen


@pytest.mark.parametrize("limit", [0, 1, 4, 7])
def test_finished_completions_leave_at_once_and_others_take_their_slots(limit, monkeypatch):
    from tests.unit.policies.test_token_policy import rollout, token_policy

    pytest.importorskip("transformers")
    policy = token_policy(draw_batch_size=limit)
    seen = spied(policy, monkeypatch)
    made = rollout(policy, group_size=6)
    lengths = made.decisions.decision_mask.sum(1)
    assert len(set(lengths.tolist())) > 2
    # one pass for every token but the first; a row that takes over a slot waits there for one pass
    taken = len(lengths) - limit if limit else 0
    spent = sum(rows for rows, tokens in seen[1:])
    assert int((lengths - 1).sum()) <= spent <= int((lengths - 1).sum()) + taken
    monkeypatch.setattr(type(policy.model), "masks", False)
    grown = rollout(policy, group_size=6)
    assert torch.equal(grown.steps.ids, made.steps.ids)  # type: ignore[attr-defined]
    torch.testing.assert_close(grown.decisions.log_probs, made.decisions.log_probs, rtol=0, atol=1e-5)


@pytest.mark.parametrize("checkpointing", [True, False])
def test_packed_rows_have_the_gradient_of_padded_ones_from_fewer_tokens(checkpointing, monkeypatch):
    from tests.unit.policies.test_token_policy import rollout, token_policy

    pytest.importorskip("transformers")
    policy = token_policy()
    made = rollout(policy, group_size=6)
    monkeypatch.setattr(policy.model, "checkpointing", checkpointing)
    seen = spied(policy, monkeypatch)
    packed = gradient(policy, made)
    read = sum(rows * tokens for rows, tokens in seen)
    seen.clear()
    monkeypatch.setattr(type(policy.model), "masks", False)
    padded = gradient(policy, made)
    assert distance(packed, padded) < 1e-5
    assert read < sum(rows * tokens for rows, tokens in seen)
