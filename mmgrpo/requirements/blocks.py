"""What blocks require of a run, checked in one place before anything is loaded.

A block declares what it cannot do without (``Block.requires``), or shows it by an input (``OF_INPUTS``): samples that
share decisions, rewards of single steps, a second sampler. A run has what its settings give it; a block whose
requirement is not among that would compute with numbers that mean something else, so that the run is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any

from mmgrpo.advantages.estimate import AdvantageRecipe
from mmgrpo.config.conflicts import refuse_values
from mmgrpo.config.names import nearest
from mmgrpo.config.needs import moot, refuse
from mmgrpo.config.registry import Bound
from mmgrpo.config.schedules import Schedule
from mmgrpo.config.settings import DECLARED, DEFAULTS, Algorithm
from mmgrpo.runtime.networks import is_action_value, is_critic, is_turn_critic, name_of
from mmgrpo.update import LossRecipe


@dataclass(frozen=True)
class Requirement:
    """Something that a run has or has not."""

    what: str
    """It in words."""
    how: str
    """The settings that give it."""
    of_policy: bool = True
    """Whether the policy decides on it, so that it is unknown of one that does not say what it has."""


REQUIREMENTS: Mapping[str, Requirement] = {
    "tree": Requirement(
        "samples that share decisions",
        "sampling.plan of denoising models, e.g. branch_tree, branch_mix or tree_window, or sampling.tree of texts",
    ),
    "subtrees": Requirement(
        "several trees of several samples in a group",
        "sampling.plan of denoising models, e.g. one_step_branch(roots=4), or sampling.tree of texts",
    ),
    "later_steps": Requirement(
        "a step that is trained after the last split of a tree",
        "sampling.plan of denoising models to one that splits earlier",
    ),
    "positions": Requirement(
        "decisions that are the same step at one position of every sample",
        "a family of denoising models, or of texts the credit tree_siblings, or the keys prompt and tree",
    ),
    "evaluations": Requirement("evaluations during the run", "eval.every and data.heldout", of_policy=False),
    "positive_weights": Requirement(
        "weights of rewards of which none is negative", "them to at least 0", of_policy=False
    ),
    "steps": Requirement(
        "rewards of single steps",
        "sampling.completion_steps of denoising models, sampling.states, sampling.tools or sampling.program of texts",
    ),
    "turns": Requirement("completions of several turns", "sampling.tools or sampling.program of texts"),
    "beam": Requirement("groups from a beam search", "sampling.search=beam of texts"),
    "sampler": Requirement(
        "a second sampler, whose probabilities differ from the trainer's",
        "rollout.engine, sampling.dtype or temperature_by_entropy of texts, or sampling.rollout_guidance of images",
    ),
    "answers": Requirement(
        "reference answers in the groups",
        "data.reference_in_group, or algorithm.added with old='one'",
        of_policy=False,
    ),
    "replay": Requirement("rows of earlier rounds", "algorithm.replay, e.g. replay(count=4)", of_policy=False),
    "supervised": Requirement("rows of given answers", "data.supervised", of_policy=False),
    "teacher": Requirement(
        "a network of the name 'teacher'", "algorithm.networks, e.g. frozen(path=...)", of_policy=False
    ),
    "critic": Requirement("a value network", "algorithm.networks, e.g. critic(lr=1e-5)", of_policy=False),
    "action_value": Requirement(
        "a value of actions", "algorithm.networks, e.g. action_value(lr=1e-5)", of_policy=False
    ),
    "turn_critic": Requirement("a critic of turns", "algorithm.networks, e.g. turn_critic(lr=1e-4)", of_policy=False),
    "conditionals": Requirement(
        "probabilities of single tokens given all others", "sampling.likelihood=conditional of masked image tokens"
    ),
    "hidden_states": Requirement("hidden states before its decisions", "model.family to one of token models"),
}
"""What blocks may require, by name."""

OF_INPUTS: Mapping[str, str] = {
    "evaluation_means": "evaluations",
    "turn_advantage": "turn_critic",
    "action_value": "action_value",
    "turn": "turns",
    "step_rewards": "steps",
    "step_values": "steps",
    "step_ends": "steps",
    "value": "critic",
    "group_share": "critic",
    "greedy_margin": "critic",
    "teacher.log_probs": "teacher",
    "teacher.shift": "teacher",
    "conditional_entropy": "conditionals",
}
"""Inputs of blocks to what provides them; what says most stands first."""


NO_SCHEDULES: Mapping[str, Schedule] = {}


def lines_of(recipe: AdvantageRecipe, loss: LossRecipe) -> dict[str, tuple[Bound, ...]]:
    """The lines of an algorithm and their blocks."""
    return {
        "transform": recipe.transform,
        "weighting": recipe.weighting,
        "combine": (recipe.combine,),
        "baseline": (recipe.baseline,),
        "scale": (recipe.scale,),
        "shape": recipe.shape,
        "credit": (recipe.credit,),
        "select": (*recipe.before, *recipe.after),
        "objective": (loss.objective,),
        "off_policy": (loss.off_policy,),
        "mismatch": (loss.mismatch,),
        "aggregation": (loss.aggregation,),
        "terms": loss.terms,
        "supervised": (loss.supervised,),
        "replay": (loss.replay,),
        "hint": (loss.hint,),
        "added": (loss.added,),
        "judging": loss.judging,
        "kl_weight": (recipe.kl_weight,),
        "networks": loss.networks,
    }


def required(recipe: AdvantageRecipe, loss: LossRecipe) -> Iterator[tuple[str, str, str]]:
    """What the blocks of an algorithm require: its line, the block as it is written, and the name."""
    for line, bounds in lines_of(recipe, loss).items():
        for bound in bounds:
            inputs = [one for name, one in OF_INPUTS.items() if name in bound.needs]
            yield from ((line, bound.text, name) for name in dict.fromkeys([*bound.requires, *inputs]))
    if any(key.name == "tree" for key in recipe.keys):
        yield "keys", "tree", "subtrees"


def traits_of(
    recipe: AdvantageRecipe, loss: LossRecipe, schedules: Mapping[str, Schedule] = NO_SCHEDULES
) -> dict[tuple[str, str], frozenset[str]]:
    """What the blocks of an algorithm, and the schedules of settings, have by which others exclude them."""
    bounds = [(f"algorithm.{line}", one) for line, several in lines_of(recipe, loss).items() for one in several]
    blocks = {(name, one.text): {*one.needs, f"level={one.block.level}", *one.written} for name, one in bounds}
    changing = {("schedules", f"{name}={one.text}"): {f"by={one.by}"} for name, one in schedules.items() if one.by}
    return {at: frozenset(traits) for at, traits in (blocks | changing).items()}


def refuse_beside(recipe: AdvantageRecipe, loss: LossRecipe, used: Mapping[str, Any]) -> None:
    """ValueError for blocks of an algorithm that do not go together, or not with the values ``used`` of other settings
    and facts, all others having their defaults; and for a block without effect."""
    lines = {line: [one.text for one in several] for line, several in lines_of(recipe, loss).items()}
    single = {line for line in lines if isinstance(DEFAULTS[f"algorithm.{line}"], str)}
    texts: dict[str, Any] = {line: several[0] if line in single else several for line, several in lines.items()}
    algorithm = Algorithm(**texts)
    refuse(moot({"algorithm": algorithm}))
    blocks = {f"algorithm.{line}": text for line, text in texts.items()}
    refuse_values({**DEFAULTS, **used, **blocks}, DECLARED, traits_of(recipe, loss))


def of_algorithm(loss: LossRecipe) -> frozenset[str]:
    """What an algorithm itself gives to a run."""
    added = loss.added({})
    given = {
        "replay": bool(loss.replay({}).count),
        "answers": added.active and added.old == "one",
        "teacher": any(name_of(rule) == "teacher" for rule in loss.networks),
        "critic": any(map(is_critic, loss.networks)),
        "action_value": any(map(is_action_value, loss.networks)),
        "turn_critic": any(map(is_turn_critic, loss.networks)),
    }
    return frozenset(name for name, there in given.items() if there)


def refuse_unmet(recipe: AdvantageRecipe, loss: LossRecipe, has: Set[str], stated: bool = True) -> None:
    """ValueError for a block that requires what is not among ``has``; ``stated``: whether that tells all that the
    policy has, without which only the other requirements are checked."""
    for line, text, name in required(recipe, loss):
        if name not in REQUIREMENTS:
            raise ValueError(f"algorithm.{line}: '{text}' requires '{name}'.{nearest(name, REQUIREMENTS)}")
        one = REQUIREMENTS[name]
        if name not in has and (stated or not one.of_policy):
            raise ValueError(
                f"algorithm.{line}: got '{text}', which needs {one.what}, and this run has none; set {one.how}, or "
                f"choose another {line}"
            )
