"""Whether the rewards of a run suit its algorithm, and whether all of it goes together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mmgrpo.advantages.baseline import reference_rewards, reference_values
from mmgrpo.advantages.estimate import AdvantageRecipe
from mmgrpo.config.conflicts import DECISIONS
from mmgrpo.config.names import nearest
from mmgrpo.config.registry import Bound, parse
from mmgrpo.requirements.blocks import refuse_beside
from mmgrpo.requirements.policies import parts_of, refuse_alone, refuse_mismatch, refuse_records, refuse_tasks
from mmgrpo.scoring import Scorer
from mmgrpo.scoring.remarks import marking
from mmgrpo.types import ByHand, Policy, Prompt
from mmgrpo.update import LossRecipe


def refuse_start(
    size: int, recipe: AdvantageRecipe, loss: LossRecipe, scorers: Sequence[Scorer], offline: float
) -> None:
    """Raise ValueError for groups and rewards that cannot train, whatever the prompts and the policy; ``offline``: the
    fraction of a run on given answers, which needs no reward."""
    if size < 2:
        refuse_alone(size, recipe, loss)
    if offline < 1:
        refuse_unweighted(scorers)


def refuse_unweighted(scorers: Sequence[Scorer]) -> None:
    """Raise ValueError for rewards that train nothing, since the weight of each is 0."""
    if not any(scorer.weight for scorer in scorers):
        raise ValueError("rewards: all weights are 0; give at least one reward a nonzero weight")


def refuse_ranges(recipe: AdvantageRecipe, trackers: Sequence[Bound], scorers: Sequence[Scorer]) -> None:
    """Raise ValueError for a block that cannot read the rewards in the range that they declare (``Manifest.low`` and
    ``high``): their weighted sum, of scales that compare each by itself their own. What is not known beforehand, as
    after a transform, the block refuses in the round."""
    weighted = [(one, one.manifest) for one in scorers if one.weight]
    known = [(one, there) for one, there in weighted if there is not None and not there.delegates]
    summed = parse(recipe.combine.text)[0] == "weighted_sum" or recipe.separate
    if not known or len(known) < len(weighted) or recipe.transform or recipe.weighting or not summed:
        return
    ends = [sorted((one.weight * there.low, one.weight * there.high)) for one, there in known]
    total = [(sum(low for low, _ in ends), sum(high for _, high in ends))]
    alone = [(float(there.low), float(there.high)) for _, there in known] if recipe.separate else total
    read = [("scale", recipe.scale, alone), *(("shape", one, total) for one in recipe.shape)]
    for line, bound, ranges in [*read, *(("trackers", one, total) for one in trackers)]:
        low, high = bound.rewards
        if outside := [one for one in ranges if one[0] < low or one[1] > high]:
            declared = ", ".join(f"{one.name}: {there.range}, weight {one.weight:g}" for one, there in known)
            raise ValueError(
                f"algorithm.{line}: got '{bound.text}', which reads rewards in [{low:g}, {high:g}], and those of this "
                f"run are in [{outside[0][0]:g}, {outside[0][1]:g}] ({declared}); bring them into this range with "
                f"their weights or algorithm.transform, e.g. clip(low=0, high=1), or choose another block"
            )


def refuse_rewards(
    recipe: AdvantageRecipe,
    scorers: Sequence[Scorer],
    prompts: Sequence[Prompt],
    evaluates: bool,
    rules: Sequence[Bound] = (),
) -> None:
    """Raise ValueError if blocks name rewards that the run has not, need reference values that the prompts lack, or
    weigh rewards by what is not observed. ``evaluates``: held-out prompts are evaluated during the run."""
    weights = {scorer.name: scorer.weight for scorer in scorers}
    for name in sorted(recipe.named_rewards - weights.keys()):
        raise ValueError(
            f"algorithm: a block names the reward '{name}', which this run has not.{nearest(name, weights)} "
            "Add it to rewards, with weight=0 if it is not to be summed"
        )
    if recipe.marking:
        marking(scorers, recipe.marking)
    blocks = (("combine", recipe.combine), ("kl_weight", recipe.kl_weight))
    for line, block, name in [(line, b, name) for line, b in blocks for name in b.parameters.get("members", ())]:
        if not weights[name]:
            raise ValueError(
                f"algorithm.{line}: {block.text}: got the member '{name}' of weight 0, expected another "
                "weight; it puts the member on the scale of the others, e.g. weight=1"
            )
    for rule in rules:
        if rule.parameters.get("stall") and not evaluates:
            raise ValueError(
                f"algorithm.networks: {rule.text} follows the evaluations during the run, of which there are none; set "
                "eval.every and data.heldout"
            )
        if (by := rule.parameters.get("by", "")) and by not in weights:
            raise ValueError(f"algorithm.networks: {rule.text}: unknown reward '{by}'.{nearest(by, weights)}")
    if len(recipe.weighting) > 1 and any("evaluation_means" in rule.block.needs for rule in recipe.weighting):
        raise ValueError("algorithm.weighting: got hypervolume with other rules, expected it alone; choose one")
    if "reference_value" in recipe.fields:
        reference_values(prompts)
    if "reference_rewards" in recipe.fields:
        reference_rewards(prompts, list(weights), recipe.referenced({name for name, w in weights.items() if w}))


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
    run = {"evaluations": evaluates, "positive_weights": all(one.weight >= 0 for one in scorers)}
    of_policy = policy.used if isinstance(policy, ByHand) else {}
    for traits, of_part, own in parts_of(policy, recipe, loss):
        refuse_mismatch(traits, of_part, own, run)
        refuse_records(traits, of_part, own, scorers)
        refuse_beside(of_part, own, {DECISIONS: traits.kind, **of_policy, **used})
    refuse_tasks(loss, prompts)
    refuse_rewards(recipe, scorers, prompts, evaluates, loss.networks)
