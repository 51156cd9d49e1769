"""Whether an algorithm suits a policy: checked before anything is sampled."""

from __future__ import annotations

from mmgrpo.advantages.comparison import COMPARISON_FIELDS
from mmgrpo.advantages.estimate import AdvantageRecipe
from mmgrpo.types import Policy
from mmgrpo.update import LossRecipe


def refuse_mismatch(policy: Policy, recipe: AdvantageRecipe, loss: LossRecipe) -> None:
    """Raise ValueError if the algorithm needs scores, fields or keys that the policy does not provide."""
    if missing := loss.scores - policy.provides:
        raise ValueError(
            f"the algorithm (objective '{loss.objective.text}', terms {[term.text for term in loss.terms]}) needs "
            f"{', '.join(sorted(missing))}, which this policy does not provide (it provides "
            f"{', '.join(sorted(policy.provides))}); choose another preset or objective"
        )
    if absent := (recipe.fields | loss.fields) - policy.fields - COMPARISON_FIELDS:
        raise ValueError(
            f"the algorithm's advantages or aggregation need {', '.join(sorted(absent))}, which this policy does "
            f"not record (it records {', '.join(sorted(policy.fields))}); "
            "choose another preset, shape, credit or aggregation"
        )
    if unknown := {key.name for key in recipe.keys} - policy.keys:
        raise ValueError(
            f"algorithm.keys: got {', '.join(sorted(unknown))}, expected keys of this policy's samples "
            f"({', '.join(sorted(policy.keys))}); choose among these, or another sampling.plan or policy"
        )
