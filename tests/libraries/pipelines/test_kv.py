"""Keys and values of prompts that the completions of a group share while they are drawn."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from pipelines.kv import Owners, Shared, attend_by_prompt

SLOTS = [2, 0, 0, 2, 0]
"""The prompt of each slot; nobody continues prompt 1."""


def shared(heads: int, length: int, total: int, width: int, seed: int, dtype: torch.dtype) -> Shared:
    made = torch.Generator().manual_seed(seed)
    prompts = torch.randn(3, heads, length, width, generator=made).to(dtype)
    own = torch.randn(len(SLOTS), heads, total, width, generator=made).to(dtype)
    return Shared(prompts, own, Owners.of(SLOTS, 3, torch.device("cpu")))


def naive(query: Tensor, keys: Shared, values: Shared, real: Tensor, scaling: float) -> Tensor:
    """Softmax attention of each slot, head by head, in double precision."""
    out = torch.zeros(len(SLOTS), 1, query.shape[1], values.own.shape[3], dtype=torch.double)
    ratio = query.shape[1] // keys.own.shape[1]
    for slot, prompt in enumerate(SLOTS):
        for head in range(query.shape[1]):
            own = head // ratio
            k = torch.cat([keys.prompts[prompt, own], keys.own[slot, own]])[real[slot, 0, 0]].double()
            v = torch.cat([values.prompts[prompt, own], values.own[slot, own]])[real[slot, 0, 0]].double()
            out[slot, 0, head] = (scaling * (k @ query[slot, head, 0].double())).softmax(0) @ v
    return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("heads", "length", "total"), [(4, 7, 5), (2, 7, 1), (1, 1, 9)])
def test_attention_to_a_shared_prompt_is_that_to_its_copies(heads, length, total, dtype):
    """Prompts are padded on the left, completions have different lengths, and 4 / ``heads`` queries share a key."""
    keys, values = shared(heads, length, total, 6, 0, dtype), shared(heads, length, total, 8, 1, dtype)
    query = 3 * torch.randn(len(SLOTS), 4, 1, 6, generator=torch.Generator().manual_seed(2)).to(dtype)
    begins = torch.tensor([0, 0, 3 if length > 3 else 0])[SLOTS]
    ends = length + 1 + torch.tensor([0, 4, 2, 8, 1]) % total
    columns = torch.arange(length + total)
    real = ((columns >= begins[:, None]) & (columns < ends[:, None]))[:, None, None]
    out, _ = attend_by_prompt(nn.Module(), query, keys, values, real, scaling=0.3)
    expected = naive(query, keys, values, real, 0.3)
    assert out.dtype == dtype
    # The result alone is rounded to half precision.
    torch.testing.assert_close(out.double(), expected, rtol=2**-8 if dtype == torch.bfloat16 else 0, atol=2e-6)


def test_keys_that_are_not_shared_are_attended_to_with_the_same_scale():
    key, value = torch.randn(2, 3, 2, 4, 6, generator=torch.Generator().manual_seed(0))
    query = key[:, :, :1]
    out, _ = attend_by_prompt(nn.Module(), query, key, value, None, scaling=0.3)
    expected = ((0.3 * query @ key.mT).softmax(-1) @ value).transpose(1, 2)
    torch.testing.assert_close(out, expected)


def test_scores_that_no_exponential_holds_give_the_attention_to_the_largest():
    keys, values = shared(1, 2, 1, 4, 0, torch.float32), shared(1, 2, 1, 4, 1, torch.float32)
    query = 1e4 * keys.own[:, 0, :1].view(len(SLOTS), 1, 1, 4)  # of which the own key is the largest
    keys = Shared(0 * keys.prompts, keys.own, keys.owners)
    real = torch.ones(len(SLOTS), 1, 1, 3, dtype=torch.bool)
    out, _ = attend_by_prompt(nn.Module(), query, keys, values, real)
    torch.testing.assert_close(out[:, 0], values.own[:, :, 0])


def test_a_network_that_attends_by_itself_reads_the_prompt_of_each_slot_before_its_own_tokens():
    keys = shared(1, 2, 1, 1, 0, torch.float32)
    table = torch.stack(
        [torch.cat([keys.prompts[prompt], own], 1) for prompt, own in zip(SLOTS, keys.own, strict=True)]
    )
    assert keys.shape == (5, 1, 3, 1)
    assert torch.equal(keys.transpose(1, 2), table.transpose(1, 2))
    assert torch.equal(torch.cat([keys, keys]), torch.cat([table, table]))
    assert torch.equal(torch.matmul(table.mT, keys), table.mT @ table)


def test_what_is_drawn_with_a_shared_prompt_is_what_is_drawn_with_its_copies(monkeypatch):
    from pipelines import decoder, kv
    from tests.unit.policies.test_token_policy import rollout, token_policy

    pytest.importorskip("transformers")
    policy = token_policy(draw_batch_size=5)
    rooms: list[kv.Room] = []
    made_room = kv.Room.of

    def of(*given, **how):
        rooms.append(made_room(*given, **how))
        return rooms[-1]

    monkeypatch.setattr(kv.Room, "of", staticmethod(of))
    once = rollout(policy, group_size=6)
    monkeypatch.setattr(decoder, "shareable", lambda body: False)
    copies = rollout(policy, group_size=6)
    assert torch.equal(once.steps.ids, copies.steps.ids)
    torch.testing.assert_close(once.decisions.log_probs, copies.decisions.log_probs, rtol=0, atol=1e-5)
    (own, *_), (whole, *_) = (room.cache.layers[0].tables for room in rooms)
    assert whole.shape[2] - own.shape[2] == rooms[0].cache.layers[0].prompts[0].shape[2] > 0
    config = policy.model.body(policy.model.network).config
    assert config._attn_implementation == "sdpa"  # as before the completions were drawn
