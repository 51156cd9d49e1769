"""Attention of several transcripts to one clip, whose keys and values are there once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from mmgrpo.policies.token import TokenPolicy
from mmgrpo.types import Request
from pipelines.speech import whisper
from pipelines.speech.by_clip import Clips, attend
from tests.building import load
from tests.libraries.pipelines.speech.test_whisper import PROMPTS


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def test_rows_attend_to_their_own_clip_as_if_they_had_a_copy_of_it():
    module: Any = SimpleNamespace(is_causal=False)
    query, key, value = drawn(5, 2, 3, 4), drawn(3, 2, 7, 4).requires_grad_(), drawn(3, 2, 7, 4)
    clip = torch.tensor([2, 0, 2, 2, 0])  # in any order; nobody attends to the second
    found, _ = attend(module, query, key, value, None, clip=Clips.of(clip, clip.device), scaling=0.5)
    wanted = scaled_dot_product_attention(query, key[clip], value[clip], scale=0.5).transpose(1, 2)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)
    gradients = [torch.autograd.grad(out.square().sum(), key, retain_graph=True)[0] for out in (found, wanted)]
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-5)
    assert gradients[0][1].eq(0).all() and gradients[0][0].abs().max() > 0


def test_as_many_rows_as_clips_are_still_told_apart_by_their_clip():
    module: Any = SimpleNamespace(is_causal=False)
    query, key, value = drawn(2, 1, 1, 4), drawn(2, 1, 5, 4), drawn(2, 1, 5, 4)
    clip = Clips.of(torch.tensor([1, 1]), torch.device("cpu"))
    found, _ = attend(module, query, key, value, None, clip=clip, scaling=1.0)
    wanted = scaled_dot_product_attention(query, key[[1, 1]], value[[1, 1]], scale=1.0).transpose(1, 2)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)


def test_a_group_does_not_copy_the_keys_of_its_clip(tmp_path, monkeypatch):
    policy = TokenPolicy(load(whisper, whisper.tiny(tmp_path)), max_tokens=4)
    clips, hidden = [], policy.model.hidden

    def seen(network, ids, real, positions, features, cache):
        if cache:
            clips.append((len(ids), len(cache.cache.cross_attention_cache.layers[0].keys)))
        return hidden(network, ids, real, positions, features, cache)

    monkeypatch.setattr(policy.model, "hidden", seen)
    policy.rollout(Request(PROMPTS, [0, 1, 2], 4, 0))
    assert clips[0] == (12, 3) and all(count == 3 for _, count in clips)


def test_a_saved_model_says_nothing_of_it(tmp_path):
    family = load(whisper, whisper.tiny(tmp_path / "tiny"))
    family.save(tmp_path / "saved", family.network)
    assert "by_clip" not in (tmp_path / "saved" / "config.json").read_text()
