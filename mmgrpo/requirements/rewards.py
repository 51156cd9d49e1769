"""Whether the rewards of a run suit its algorithm, and whether all of it goes together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mmgrpo.advantages.baseline import reference_rewards, reference_values
from mmgrpo.advantages.estimate import AdvantageRecipe
from mmgrpo.config.conflicts import DECISIONS
from mmgrpo.config.registry import Bound, parse, refuse_names, refuse_unknown
from mmgrpo.requirements.blocks import lines_of, refuse_beside
from mmgrpo.requirements.policies import parts_of, refuse_alone, refuse_mismatch, refuse_tasks
from mmgrpo.runtime.networks import REFERENCE_NETWORK, name_of
from mmgrpo.scoring import Scorer
from mmgrpo.scoring.remarks import marking
from mmgrpo.types import ByHand, Policy, Prompt
from mmgrpo.update import LossRecipe


def refuse_start(
    size: int, recipe: AdvantageRecipe, loss: LossRecipe, scorers: Sequence[Scorer], offline: float
) -> None:
    """Raise ValueError for groups and rewards that cannot train, and for names of rewards and networks that the run has
    not, whatever the prompts and the policy; ``offline``: the fraction of a run on given answers, which needs no
    reward."""
    refuse_alone(size, recipe, loss)
    if offline < 1:
        refuse_unweighted(scorers)
    weights, networks = (
        {scorer.name: scorer.weight for scorer in scorers},
        {REFERENCE_NETWORK, *map(name_of, loss.networks)},
    )
    parts = {f"parts: {part.name}": part for part in recipe.parts}
    lines = lines_of(recipe, loss) | {name: part.recipe.bounds for name, part in parts.items()}
    for line, bound in [(line, bound) for line, of_line in lines.items() for bound in of_line]:
        refuse_names(f"algorithm.{line}", bound, weights, networks)
    for line, name in [(line, name) for line, part in parts.items() for name in part.weights]:
        refuse_unknown(f"algorithm.{line}", "reward", name, weights)


def refuse_unweighted(scorers: Sequence[Scorer]) -> None:
    """Raise ValueError for rewards that train nothing, since the weight of each is 0."""
    if not any(scorer.weight for scorer in scorers):
        raise ValueError("rewards: all weights are 0; give at least one reward a nonzero weight")


def refuse_ranges(recipe: AdvantageRecipe, trackers: Sequence[Bound], scorers: Sequence[Scorer]) -> None:
    """Raise ValueError for a block that cannot read the rewards in the range that they declare (``Manifest.low`` and
    ``high``): their weighted sum, of scales that compare each by itself their own. What is not known beforehand, as
    after a transform, the block refuses in the round."""
    weighted = [(scorer, scorer.manifest) for scorer in scorers if scorer.weight]
    known = [(scorer, manifest) for scorer, manifest in weighted if manifest is not None and not manifest.delegates]
    summed = parse(recipe.combine.text)[0] == "weighted_sum" or recipe.separate
    if not known or len(known) < len(weighted) or recipe.transform or recipe.weighting or not summed:
        return
    ends = [sorted((scorer.weight * manifest.low, scorer.weight * manifest.high)) for scorer, manifest in known]
    total = [(sum(low for low, _ in ends), sum(high for _, high in ends))]
    alone = [(float(manifest.low), float(manifest.high)) for _, manifest in known] if recipe.separate else total
    read = [("scale", recipe.scale, alone), *(("shape", bound, total) for bound in recipe.shape)]
    for line, bound, ranges in [*read, *(("trackers", bound, total) for bound in trackers)]:
        low, high = bound.rewards
        if outside := [ends for ends in ranges if ends[0] < low or ends[1] > high]:
            declared = ", ".join(
                f"{scorer.name}: {manifest.range}, weight {scorer.weight:g}" for scorer, manifest in known
            )
            raise ValueError(
                f"algorithm.{line}: got '{bound.text}', which reads rewards in [{low:g}, {high:g}], and those of this "
                f"run are in [{outside[0][0]:g}, {outside[0][1]:g}] ({declared}); bring them into this range with "
                f"their weights or algorithm.transform, e.g. clip(low=0, high=1), or choose another block"
            )


def refuse_rewards(recipe: AdvantageRecipe, scorers: Sequence[Scorer], prompts: Sequence[Prompt]) -> None:
    """Raise ValueError for a credit that reads what no judge says, and for prompts without values to compare with."""
    if recipe.marking:
        marking(scorers, recipe.marking)
    if "reference_value" in recipe.fields:
        reference_values(prompts)
    if "reference_rewards" in recipe.fields:
        weights = {scorer.name: scorer.weight for scorer in scorers}
        reference_rewards(
            prompts, list(weights), recipe.rewards_with_references({name for name, w in weights.items() if w})
        )


def refuse_unsuited(
    policy: Policy,
    recipe: AdvantageRecipe,
    loss: LossRecipe,
    scorers: Sequence[Scorer],
    prompts: Sequence[Prompt],
    evaluates: bool,
    used: Mapping[str, Any],
) -> None:
    """ValueError for an algorithm that does not suit a run, however it was made. ``evaluates``: held-out prompts are
    evaluated during it. ``used``: settings for which callbacks stand; the policy may stand for others (``ByHand``)."""
    run = {"evaluations": evaluates, "positive_weights": all(scorer.weight >= 0 for scorer in scorers)}
    of_policy = policy.used if isinstance(policy, ByHand) else {}
    for traits, of_part, part_loss in parts_of(policy, recipe, loss):
        refuse_mismatch(traits, of_part, part_loss, run, scorers)
        refuse_beside(of_part, part_loss, {DECISIONS: traits.kind, **of_policy, **used})
    refuse_tasks(loss, prompts)
    refuse_rewards(recipe, scorers, prompts)
