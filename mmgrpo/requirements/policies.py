"""Whether an algorithm suits a policy and its prompts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from types import MappingProxyType
from typing import Any

from mmgrpo.advantages.baseline import COMPARISON_FIELDS
from mmgrpo.advantages.credit import REMARKED
from mmgrpo.advantages.estimate import AdvantageRecipe
from mmgrpo.advantages.step_rewards import STEP_FIELDS
from mmgrpo.config.names import nearest
from mmgrpo.prompts.trackers import LEDGER_FIELDS
from mmgrpo.requirements.blocks import OF_NETWORKS, REQUIREMENTS, of_algorithm, refuse_unmet
from mmgrpo.runtime.networks import REFERENCE_NETWORK, name_of
from mmgrpo.scoring import Scorer
from mmgrpo.types import RECORDS, Joint, Policy, Prompt
from mmgrpo.update import LossRecipe, all_fields, all_scores

OF_ROUNDS = COMPARISON_FIELDS | LEDGER_FIELDS | REMARKED | RECORDS.keys() | OF_NETWORKS.keys() | {"cut"}
"""Fields that a round adds to those that the policy records."""


def refuse_mismatch(
    policy: Policy,
    recipe: AdvantageRecipe,
    loss: LossRecipe,
    run: Mapping[str, bool] = MappingProxyType({}),
    scorers: Sequence[Scorer] = (),
) -> None:
    """Raise ValueError if the algorithm or a reward needs scores, records, fields or keys that the policy does not
    have, or what the ``run`` has not, by the names of ``REQUIREMENTS``; what is not known of it is left open."""
    given = of_algorithm(loss)
    known = {**run, "tree": "tree" in policy.keys, "turns": "turn of samples" in policy.provides}
    known |= {"positions": policy.kind != "tokens", "hidden_states": "hidden_state" in policy.provides}
    known |= {"steps": known["turns"] or bool(policy.fields & STEP_FIELDS)} | {
        trait: trait in given for trait in OF_NETWORKS
    }
    refuse_unmet(recipe, loss, REQUIREMENTS.keys() - {name for name, holds in known.items() if not holds})
    for who, needed, provided, remedy in policy_requirements(policy, recipe, loss, scorers):
        if lacking := sorted(needed - provided):
            raise ValueError(
                f"{who} {', '.join(lacking)}, which this policy of {policy.kind} does not record (it records "
                f"{', '.join(sorted(provided)) or 'nothing such'}); {remedy}"
            )


def policy_requirements(
    policy: Policy, recipe: AdvantageRecipe, loss: LossRecipe, scorers: Sequence[Scorer]
) -> Iterator[tuple[str, Set[str], Set[str], str]]:
    """What is asked of a policy: who asks, for what, what it has of this kind, and what to do without it."""
    others = {name_of(rule) for rule in loss.networks if not rule.block.method}
    names = {f"{name.split('@')[0]} under a changed prompt" if "@" in name else name for name in all_scores(loss)}

    def of_reference(name: str) -> str:
        return name.replace(name.partition(".")[0], REFERENCE_NETWORK, 1)

    # Any network may stand where the policy can compare with the reference.
    served = {name for name in names if name.partition(".")[0] in others and of_reference(name) in policy.provides}
    named = sorted(name.partition(".")[0] for name in names - policy.provides if of_reference(name) in policy.provides)
    yield (
        f"the algorithm (objective '{loss.objective.text}', terms {[term.text for term in loss.terms]}) needs",
        names - served,
        policy.provides,
        "choose another preset or objective"
        + (f", or add a network of the name '{named[0]}' to algorithm.networks" if named else ""),
    )
    yield (
        "the algorithm's advantages or aggregation need",
        (recipe.fields | all_fields(loss)) - OF_ROUNDS,
        policy.fields,
        "choose another preset, shape, credit or aggregation",
    )
    keys = {key.name for key in recipe.keys}
    yield "algorithm.keys: got", keys, policy.keys, "choose among these, or another sampling.plan or policy"
    readers = {name: f"the reward '{scorer.name}' reads" for scorer in scorers for name in scorer.records}
    readers |= dict.fromkeys(recipe.records | loss.records, "the algorithm reads")
    records = {name for name in RECORDS if f"{name} of samples" in policy.provides}
    for name, who in sorted(readers.items()):
        yield who, {name}, records, f"{name} is the {RECORDS[name]}; token policies record it; leave {who[:-6]} out"


def parts_of(
    policy: Policy, recipe: AdvantageRecipe, loss: LossRecipe
) -> list[tuple[Any, AdvantageRecipe, LossRecipe]]:
    """What each part of the rows has (``Joint.parts``), with its blocks; of rows with decisions of one kind the policy
    and the blocks of the section. ValueError for parts of the algorithm that are not those of the policy."""
    if not loss.parts:
        return [(policy, recipe, loss)]
    parts, names = policy.parts if isinstance(policy, Joint) else {}, [part.name for part in loss.parts]
    for name in names:
        if name not in parts:
            has = f"trains {', '.join(parts)}" if parts else "has decisions of one kind"
            raise ValueError(f"algorithm.parts: got '{name}', and this policy {has}.{nearest(name, parts)}")
    if left := [name for name in parts if name not in names]:
        raise ValueError(f"algorithm.parts: nothing trains '{left[0]}'; add it, or freeze it (model.trained)")
    for part in recipe.parts:
        keys = parts[part.name].keys
        if part.per and part.per not in keys:
            raise ValueError(f"algorithm.parts: per of {part.name}: unknown key '{part.per}'.{nearest(part.per, keys)}")
    rows = zip(recipe.parts, loss.parts, strict=True)
    return [(parts[part_loss.name], of_part.recipe, part_loss.loss) for of_part, part_loss in rows]


def refuse_alone(size: int, recipe: AdvantageRecipe, loss: LossRecipe) -> None:
    """Raise ValueError for a group of one sample where a block compares the samples of a group."""
    comparing = [bound.text for bound in (*recipe.bounds, loss.objective, *loss.terms) if "key" in bound.block.needs]
    if size >= 2 or (size == 1 and loss.added({}).grouping):
        return
    if size < 1 or comparing:
        why = f"{', '.join(comparing)}: compares the samples of a group" if comparing else "a round has samples"
        raise ValueError(
            f"got data.group_size {size}, expected at least {min(2, size + 1)} ({why}); raise it, or choose blocks "
            "that do without, e.g. baseline tracker, static_reference or batch_mean, and scale batch_std or none"
        )


def refuse_tasks(loss: LossRecipe, prompts: Sequence[Prompt]) -> None:
    """Raise ValueError for a prompt whose task has no network where each task has its own."""
    taught: dict[str, set[str]] = {}
    for rule in loss.networks:
        if task := rule.parameters.get("task", ""):
            taught.setdefault(name_of(rule), set()).add(task)
    for name, tasks in taught.items():
        if prompt := next((prompt for prompt in prompts if prompt.task not in tasks), None):
            raise ValueError(
                f"algorithm.networks: got networks '{name}' for the tasks {', '.join(sorted(tasks))}, and the prompt "
                f"'{prompt.id}' of task '{prompt.task}'; add frozen(path=..., task='{prompt.task}'), or leave it out"
            )


def reads_answers(loss: LossRecipe) -> bool:
    """Whether a run reads the answers of prompts, also those of preference data."""
    return loss.added({}).given or bool(loss.supervised({}).count)
