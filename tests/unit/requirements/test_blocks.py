"""A block says what it requires of a run, in one way for all, also one of a user's own."""

from __future__ import annotations

import pytest

import mmgrpo
from mmgrpo.advantages.estimate import AdvantageRecipe
from mmgrpo.config.settings import Algorithm
from mmgrpo.requirements.blocks import of_algorithm, refuse_unmet, requirements_of
from mmgrpo.update import LossRecipe


def of(**blocks):
    algorithm = Algorithm(**blocks)
    return AdvantageRecipe.of(algorithm), LossRecipe.read(algorithm)


@mmgrpo.block(level="decision", requires={"tree": {}})
def grown(advantages):
    return advantages


@mmgrpo.block(level="decision", requires={"tee": {}})
def misspelt(advantages):
    return advantages


OWN = grown.__module__


def test_a_plain_algorithm_requires_nothing():
    assert [*requirements_of(*of())] == []
    refuse_unmet(*of(), frozenset())


def test_a_block_of_a_users_own_is_refused_as_ours_are():
    with pytest.raises(ValueError, match=r"algorithm\.shape.*:grown'.*sampling\.plan"):
        refuse_unmet(*of(shape=[f"{OWN}:grown"]), frozenset())
    refuse_unmet(*of(shape=[f"{OWN}:grown"]), {"tree"})
    with pytest.raises(ValueError, match=r"algorithm\.shape.*:misspelt'.*'tee'.*'tree'"):
        refuse_unmet(*of(shape=[f"{OWN}:misspelt"]), {"tree"})


def test_of_a_policy_that_does_not_say_what_it_has_only_the_algorithm_is_checked():
    refuse_unmet(*of(mismatch="tis"), frozenset(), stated=False)
    with pytest.raises(ValueError, match=r"algorithm\.off_policy.*luffy.*data\.reference_in_group"):
        refuse_unmet(*of(off_policy="luffy"), frozenset(), stated=False)


@pytest.mark.parametrize(
    ("blocks", "given"),
    [
        ({}, set()),
        ({"replay": "replay(count=4)"}, {"replay"}),
        ({"replay": "replay(count=0)"}, set()),
        ({"added": "answers(old='one')"}, {"answers"}),
        ({"added": "answers"}, set()),  # their old log-probs are the policy's, so off_policy is not asked
        ({"networks": ["average(name='teacher', start=0.9)"]}, {"teacher"}),
    ],
)
def test_what_an_algorithm_gives_to_its_own_blocks(blocks, given):
    assert of_algorithm(of(**blocks)[1]) == given


def test_a_requirement_may_depend_on_a_parameter():
    assert [*requirements_of(*of(supervised="nll(coef=0.1)"))] == [("supervised", "nll(coef=0.1)", "supervised")]
    assert [*requirements_of(*of(supervised="nll(coef=0.1, source='failed')"))] == []
