"""Which features of media are kept between rounds."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from mmgrpo.policies.token import TokenPolicy
from mmgrpo.policies.token_model import Context, FeatureCache, ShownCache
from mmgrpo.types import Image, Media, Prompt, Turn


def shown(name: str) -> Prompt:
    return Prompt("", name, turns=(Turn("user", (Media("image", f"{name}.png"),)),))


def test_features_of_recurring_prompts_are_computed_once_up_to_the_capacity():
    cache, computed = FeatureCache(2), []
    prompts = [shown("a"), Prompt("text", "t"), shown("b"), shown("c")]

    def features(*chosen: int, recurring: bool = True) -> list[list[float]]:
        some = [prompts[i] for i in chosen]

        def compute(indices: list[int]) -> list[torch.Tensor]:
            computed.append([some[i].id for i in indices])
            return [torch.full((1, 2), float(ord(some[i].id))) for i in indices]

        made = cache.features(some, compute, [recurring] * len(some))
        return [one.tolist() for one in made]

    a, b, c = ([[float(ord(letter))] * 2] for letter in "abc")
    assert features(1) == [] and computed == []  # nothing to see, nothing to compute
    assert features(0, 1, 2) == [a, [], b] and computed == [["a", "b"]]
    assert features(2, 0) == [b, a] and len(computed) == 1
    assert features(3, recurring=False) == [c] and features(3) == [c] and computed[1:] == [["c"], ["c"]]
    # The third pushes the first out.
    assert [prompt.id for prompt, _ in cache.entries.values()] == ["b", "c"]
    assert features(0, 3) == [a, c] and computed[3:] == [["a"]]
    assert [prompt.id for prompt, _ in cache.entries.values()] == ["c", "a"]


def test_nothing_is_kept_without_capacity():
    cache = FeatureCache(0)
    [one] = cache.features([shown("a")], lambda indices: [torch.ones(1, 1)], [True])
    assert one.tolist() == [[1]] and cache.entries == {}


def test_no_media_are_no_features():
    assert FeatureCache(1).features([Prompt("text", "t")], lambda indices: [], [True]) == ()


@pytest.mark.parametrize(("counts", "refused"), [((2, 1), ""), ((2, 2), "b"), ((1, 1), "a")])
def test_every_placeholder_has_one_feature(counts, refused):
    """Prompt a has two placeholders (7) and prompt b one."""
    policy = object.__new__(TokenPolicy)
    features = [torch.zeros(count, 3) for count in counts]
    policy.model = SimpleNamespace(frozen_media=True, features=lambda network, context: features)
    policy.placeholders = torch.tensor([7])
    ids, network = torch.tensor([[7, 7, 1], [2, 7, 1]]), nn.Identity()
    context = Context(ids, torch.ones_like(ids, dtype=torch.bool), ids[:, None], [None, None])
    if refused:
        with pytest.raises(ValueError, match=f"'{refused}'"):
            policy._features(network, context, ["a", "b"])
    else:
        assert policy._features(network, context, ["a", "b"]) is features
    policy.placeholders = torch.tensor([], dtype=torch.long)  # a model without any
    assert policy._features(network, context, ["a", "b"]) is features


def test_shown_media_are_kept_by_identity_up_to_a_size():
    cache, encoded = ShownCache(most=2 * 4 * 3), []
    image = Image(torch.zeros(3, 1, 1))
    one, same, other = (Media("image", image) for _ in range(3))

    def compute(reads):
        encoded.append(list(reads))
        return [torch.full((3, 1), float(len(read))) for read in reads]

    def read(some):
        return ["whole"] * len(some)

    def found(*media):
        return [
            float(part[0, 0]) for part in cache.features([list(zip(media, cache.reads(media, read)))], len, compute)[0]
        ]

    assert found(one, same, one) == [5, 5, 5] and encoded == [["whole", "whole"]]
    assert cache.reads([one, other], read) == [5, "whole"]
    assert found(one, other) == [5, 5] and encoded[1:] == [["whole"]]
    cache.trim()
    assert [id(one) for one, _, _ in cache.entries.values()] == [id(same), id(other)]
