"""What a recipe is told and what it asks for: mistakes, fields, keys and rewards."""

from __future__ import annotations

import pytest

from mmgrpo.advantages.estimate import AdvantageRecipe
from mmgrpo.config.settings import Algorithm


@pytest.mark.parametrize(
    "blocks, message",
    [
        ({"baseline": "group_man"}, "algorithm.baseline.*'group_man'.*'group_mean'"),
        ({"scale": "group_std(dof=1)"}, "algorithm.scale.*'group_std'.*'dof'.*'ddof'"),
        ({"combine": "sum"}, "algorithm.combine.*'sum'"),
        ({"shape": ["clamp(limits=5)"]}, "algorithm.shape.*'clamp'.*'limits'"),
        ({"credit": "tree"}, "algorithm.credit.*'tree'"),
        ({"select": ["gfpo"]}, "algorithm.select.*'gfpo'.*'count'"),
        ({"keys": []}, "algorithm.keys"),
        ({"keys": ["prompt(wait=2)"]}, "algorithm.keys.*'prompt'.*'wait'"),
        ({"keys": ["prompt(weight='two')"]}, "algorithm.keys.*weight.*prompt"),
    ],
)
def test_a_mistake_in_the_recipe_is_found_at_the_start(blocks, message):
    with pytest.raises(ValueError, match=message):
        AdvantageRecipe.of(Algorithm(**blocks))


def test_a_recipe_knows_the_fields_and_keys_it_needs():
    recipe = AdvantageRecipe.of(
        Algorithm(baseline="greedy", credit="top_entropy", select=["drop_truncated"], keys=["prompt", "tree"])
    )
    assert recipe.fields == {"greedy_value", "entropy", "truncated"}
    assert recipe.key_names == ("prompt", "tree")
    assert AdvantageRecipe.of(Algorithm()).fields == frozenset()


def test_every_selector_acts_once_before_the_statistics_or_after_them():
    recipe = AdvantageRecipe.of(Algorithm(select=["best_worst(best=1, worst=1)", "gfpo(count=2)"]))
    assert [one.text for one in recipe.before] == ["gfpo(count=2)"]
    assert [one.text for one in recipe.after] == ["best_worst(best=1, worst=1)"]


def test_only_transforms_that_compare_with_references_ask_for_them():
    def referenced(*transform: str) -> frozenset[str]:
        return AdvantageRecipe.of(Algorithm(transform=list(transform))).rewards_with_references({"a", "b"})

    assert referenced("clip(low=0, high=1, of='a')", "par(of='b')") == {"b"}
    assert referenced("clip(low=0, high=1)") == frozenset()
    assert referenced("par") == {"a", "b"}
