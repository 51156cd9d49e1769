"""What a recipe is told and what it asks for: mistakes, fields, keys and rewards."""

from __future__ import annotations

import pytest

from mmgrpo.advantages.estimate import AdvantageRecipe
from mmgrpo.config.settings import Algorithm


@pytest.mark.parametrize(
    "blocks, message",
    [
        ({"baseline": "group_man"}, "algorithm.baseline: there is no 'group_man'. Did you mean 'group_mean'"),
        ({"scale": "group_std(dof=1)"}, "algorithm.scale: 'group_std' has no parameter 'dof'. Did you mean 'ddof'"),
        ({"combine": "sum"}, "algorithm.combine: there is no 'sum'"),
        ({"shape": ["clamp(limits=5)"]}, "algorithm.shape: 'clamp' has no parameter 'limits'"),
        ({"credit": "tree"}, "algorithm.credit: there is no 'tree'"),
        ({"select": ["gfpo"]}, "algorithm.select: 'gfpo' needs the parameter 'count'"),
        ({"keys": []}, "algorithm.keys: got an empty list, expected at least one"),
        ({"keys": ["prompt(wait=2)"]}, "algorithm.keys: 'prompt' has no parameter 'wait'"),
        ({"keys": ["prompt(weight='two')"]}, "algorithm.keys: weight of prompt"),
        ({"baseline": "greedy", "combine": "minimum"}, "algorithm.combine: got 'minimum', expected the plain weighted"),
        ({"baseline": "greedy", "weighting": ["hypervolume"]}, "algorithm.weighting: got 'hypervolume', expected"),
        ({"baseline": "greedy", "transform": ["clip(low=0, high=1)"]}, "algorithm.transform: got"),
    ],
)
def test_a_mistake_in_the_recipe_is_found_at_the_start(blocks, message):
    with pytest.raises(ValueError) as error:
        AdvantageRecipe.of(Algorithm(**blocks))
    assert message in str(error.value)


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
        return AdvantageRecipe.of(Algorithm(transform=list(transform))).referenced({"a", "b"})

    assert referenced("clip(low=0, high=1, of='a')", "par(of='b')") == {"b"}
    assert referenced("clip(low=0, high=1)") == frozenset()
    assert referenced("par") == {"a", "b"}
