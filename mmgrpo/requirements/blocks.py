"""What blocks require of a run, checked in one place before anything is loaded.

A block declares what it cannot do without (``Block.requires``), or shows it by an input (``OF_INPUTS``): samples that
share decisions, rewards of single steps, a second sampler. A run has what its settings give it; a block whose
requirement is not among that would compute with numbers that mean something else, so the run is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from mmgrpo.advantages.estimate import AdvantageRecipe
from mmgrpo.config.conflicts import refuse_values
from mmgrpo.config.names import nearest
from mmgrpo.config.needs import moot, refuse
from mmgrpo.config.registry import TABLES, Block, Bound
from mmgrpo.config.schedules import Schedule
from mmgrpo.config.settings import DECLARED, DEFAULTS, Algorithm
from mmgrpo.runtime.networks import NETWORKS, name_of
from mmgrpo.update import LossRecipe, all_scores


@dataclass(frozen=True)
class Requirement:
    """Something that a run has or has not."""

    what: str
    """It in words."""
    how: str
    """The settings that give it."""
    of_policy: bool = True
    """Whether the policy decides on it, so it is unknown of one that does not say what it has."""


def example_of(name: str, block: Block, under: str) -> str:
    """A block as a recipe may write it, with its parameter ``under`` in use."""
    given = [key for key, parameter in block.parameters.items() if parameter.default is parameter.empty or key == under]
    return f"{name}({', '.join(f'{key}=...' for key in given)})"


OF_NETWORKS: Mapping[str, Requirement] = {
    name: Requirement(f"{name} of a network", f"algorithm.networks, e.g. {example_of(text, block, under)}", False)
    for text, block in NETWORKS.items()
    for name, under in block.gives.items()
}
"""Inputs of blocks that networks give (``Block.gives``), each required by its own name."""

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
    "conditionals": Requirement(
        "probabilities of single tokens given all others", "sampling.likelihood=conditional of masked image tokens"
    ),
    "hidden_states": Requirement("hidden states before its decisions", "model.family to one of token models"),
    "cut": Requirement("completions that go on in a later round", "sampling.total_tokens of texts"),
    **OF_NETWORKS,
}
"""What blocks may require, by name."""

OF_INPUTS: Mapping[str, str] = {
    "evaluation_means": "evaluations",
    "turn": "turns",
    "cut": "cut",
    "step_rewards": "steps",
    "step_values": "steps",
    "step_ends": "steps",
    "teacher.log_probs": "teacher",
    "teacher.shift": "teacher",
    "conditional_entropy": "conditionals",
    **{name: name for name in OF_NETWORKS},
}
"""Inputs of blocks to what provides them; what says most stands first."""


NO_SCHEDULES: Mapping[str, Schedule] = {}


def lines_of(recipe: AdvantageRecipe, loss: LossRecipe, samplers: Sequence[Bound] = ()) -> dict[str, tuple[Bound, ...]]:
    """The lines of an algorithm and their blocks, with those of ``algorithm.sampler`` where they are given."""
    drawing = {"sampler": tuple(samplers)} if samplers else {}
    return drawing | {
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


def requirements_of(
    recipe: AdvantageRecipe, loss: LossRecipe, samplers: Sequence[Bound] = ()
) -> Iterator[tuple[str, str, str]]:
    """What the blocks of an algorithm require: its line, the block as it is written, and the name."""
    for line, bounds in lines_of(recipe, loss, samplers).items():
        for bound in bounds:
            inputs = [trait for name, trait in OF_INPUTS.items() if name in bound.needs]
            yield from ((line, bound.text, name) for name in dict.fromkeys([*bound.requires, *inputs]))
    if any(key.name == "tree" for key in recipe.keys):
        yield "keys", "tree", "subtrees"


def traits_of(
    recipe: AdvantageRecipe, loss: LossRecipe, schedules: Mapping[str, Schedule] = NO_SCHEDULES
) -> dict[tuple[str, str], frozenset[str]]:
    """What the blocks of an algorithm, and the schedules of settings, have by which others exclude them."""
    bounds = [(f"algorithm.{line}", bound) for line, of_line in lines_of(recipe, loss).items() for bound in of_line]
    blocks = {
        (name, bound.text): {*bound.needs, f"level={bound.block.level}", *bound.assignments}
        | ({f"method={bound.block.method}"} if bound.block.method else set())
        for name, bound in bounds
    }
    changing = {
        ("schedules", f"{name}={schedule.text}"): {f"by={schedule.by}"}
        for name, schedule in schedules.items()
        if schedule.by
    }
    return {at: frozenset(traits) for at, traits in (blocks | changing).items()}


def refuse_beside(recipe: AdvantageRecipe, loss: LossRecipe, used: Mapping[str, Any]) -> None:
    """ValueError for blocks of an algorithm that do not go together, or not with the values ``used`` of other settings
    and facts, all others having their defaults; and for a block without effect."""
    lines = {line: [bound.text for bound in of_line] for line, of_line in lines_of(recipe, loss).items()}
    single = {line for line in lines if isinstance(DEFAULTS[f"algorithm.{line}"], str)}
    texts: dict[str, Any] = {line: of_line[0] if line in single else of_line for line, of_line in lines.items()}
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
    }
    networks = frozenset[str]().union(*(rule.gives for rule in loss.networks))
    return networks | {name for name, holds in given.items() if holds}


def refuse_unmet(
    recipe: AdvantageRecipe, loss: LossRecipe, has: Set[str], stated: bool = True, samplers: Sequence[Bound] = ()
) -> None:
    """ValueError for a block that requires what is not among ``has``; ``stated``: whether that tells all that the
    policy has, without which only the other requirements are checked."""
    for line, text, name in requirements_of(recipe, loss, samplers):
        if name not in REQUIREMENTS:
            raise ValueError(f"algorithm.{line}: '{text}' requires '{name}'.{nearest(name, REQUIREMENTS)}")
        requirement = REQUIREMENTS[name]
        if name not in has and (stated or not requirement.of_policy):
            raise ValueError(
                f"algorithm.{line}: got '{text}', which needs {requirement.what}, and this run has none; set "
                f"{requirement.how}, or choose another {line}"
            )


def refuse_unread(recipe: AdvantageRecipe, loss: LossRecipe, samplers: Sequence[Bound] = ()) -> None:
    """ValueError for a network, or a parameter of it, of whose numbers nothing reads any."""
    blocks = [bound for group in lines_of(recipe, loss, samplers).values() for bound in group]
    read = recipe.fields.union(*(bound.needs for bound in blocks))
    networks = {score.partition(".")[0] for score in all_scores(loss) if "." in score}
    for rule in loss.networks:
        gives, name = rule.block.gives, name_of(rule)
        if not (rule.block.method or rule.parameters.get("samples") or name in networks):
            raise ValueError(
                f"algorithm.networks: got '{name}', of which the objective '{loss.objective.text}' and the terms "
                f"{[term.text for term in loss.terms]} ask nothing, and which draws no samples; leave it out, or "
                f"choose an objective or a term that asks for {name}...."
            )
        for under in dict.fromkeys(gives[name] for name in rule.gives):
            given = {name for name in gives if under in ("", gives[name])}
            if not read & given:
                tables = [table for group in TABLES.values() for table in group]
                readers = sorted(name for table in tables for name, block in table.items() if given & {*block.needs})
                raise ValueError(
                    f"algorithm.networks: got '{rule.text}', and no block reads {' or '.join(sorted(given))}; leave "
                    f"{under or 'it'} out, or choose one that does: {', '.join(readers)}"
                )
