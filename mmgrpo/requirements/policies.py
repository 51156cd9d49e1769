"""Whether an algorithm suits a policy and its prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from mmgrpo.advantages.baseline import COMPARISON_FIELDS
from mmgrpo.advantages.credit import REMARKED
from mmgrpo.advantages.estimate import AdvantageRecipe
from mmgrpo.advantages.gae import CRITIC_FIELDS
from mmgrpo.advantages.step_rewards import STEP_FIELDS
from mmgrpo.config.names import nearest
from mmgrpo.prompts.trackers import LEDGER_FIELDS
from mmgrpo.requirements.blocks import REQUIREMENTS, refuse_unmet
from mmgrpo.runtime.networks import (
    REFERENCE_NETWORK,
    is_action_value,
    is_critic,
    is_discriminator,
    is_guide,
    is_prompt_value,
    is_reward_model,
    is_turn_critic,
    name_of,
)
from mmgrpo.scoring import Scorer
from mmgrpo.types import RECORDS, Joint, Policy, Prompt
from mmgrpo.update import LossRecipe, all_fields, all_scores


def refuse_mismatch(
    policy: Policy, recipe: AdvantageRecipe, loss: LossRecipe, run: Mapping[str, bool] = MappingProxyType({})
) -> None:
    """Raise ValueError if the algorithm needs scores, fields or keys that the policy does not provide, or what the
    ``run`` has not, by the names of ``REQUIREMENTS``; what is not known of it is left open."""
    scores = all_scores(loss)
    under_changes = {name: f"{name.split('@')[0]} under a changed prompt" for name in scores if "@" in name}
    same = {name: under_changes.get(name, name) for name in scores}
    critics = {name_of(rule) for rule in loss.networks if is_critic(rule) and CRITIC_FIELDS & recipe.fields}
    critics |= {name_of(rule) for rule in loss.networks if is_action_value(rule) and "action_value" in recipe.fields}
    critics |= {name_of(rule) for rule in loss.networks if is_turn_critic(rule) and "turn_advantage" in recipe.fields}
    others = [
        name_of(rule)
        for rule in loss.networks
        if not (is_prompt_value(rule) or is_guide(rule) or is_reward_model(rule) or is_discriminator(rule))
    ]
    for other in [name for name in others if name not in critics]:
        asked = refuse_networks(loss, other)
        same |= {name: REFERENCE_NETWORK + under_changes.get(name, name).removeprefix(other) for name in asked}
    if missing := {under_changes.get(name, name) for name, one in same.items() if one not in policy.provides}:
        ends = tuple(
            n.removeprefix(REFERENCE_NETWORK) for n in policy.provides if n.startswith(f"{REFERENCE_NETWORK}.")
        )
        other = next((name[: -len(end)] for name in missing for end in ends if name.endswith(end)), "")
        raise ValueError(
            f"the algorithm (objective '{loss.objective.text}', terms {[term.text for term in loss.terms]}) needs "
            f"{', '.join(sorted(missing))}, which this policy does not provide (it provides "
            f"{', '.join(sorted(policy.provides))}); choose another preset or objective"
            + (f", or add a network of the name '{other}' to algorithm.networks" if other else "")
        )
    known = {**run, "tree": "tree" in policy.keys, "turns": "turn of samples" in policy.provides}
    known["positions"] = policy.kind != "tokens"
    known["hidden_states"] = "hidden_state" in policy.provides
    known["critic"] = any(is_critic(rule) and name_of(rule) in critics for rule in loss.networks)
    known["action_value"] = any(map(is_action_value, loss.networks))
    known["turn_critic"] = any(map(is_turn_critic, loss.networks))
    known["steps"] = known["turns"] or bool(policy.fields & STEP_FIELDS)
    refuse_unmet(recipe, loss, REQUIREMENTS.keys() - {name for name, there in known.items() if not there})
    if (
        absent := (recipe.fields | all_fields(loss))
        - policy.fields
        - COMPARISON_FIELDS
        - CRITIC_FIELDS
        - {"turn_advantage", "action_value", "cut"}
        - LEDGER_FIELDS
        - REMARKED
        - RECORDS.keys()
    ):
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


def parts_of(
    policy: Policy, recipe: AdvantageRecipe, loss: LossRecipe
) -> list[tuple[Any, AdvantageRecipe, LossRecipe]]:
    """What each part of the rows has (``Joint.parts``), with its blocks; of rows with decisions of one kind the policy
    and the blocks of the section. ValueError for parts of the algorithm that are not those of the policy."""
    if not loss.parts:
        return [(policy, recipe, loss)]
    there, names = policy.parts if isinstance(policy, Joint) else {}, [part.name for part in loss.parts]
    for name in names:
        if name not in there:
            has = f"trains {', '.join(there)}" if there else "has decisions of one kind"
            raise ValueError(f"algorithm.parts: got '{name}', and this policy {has}.{nearest(name, there)}")
    if left := [name for name in there if name not in names]:
        raise ValueError(f"algorithm.parts: nothing trains '{left[0]}'; add it, or freeze it (model.trained)")
    for part in recipe.parts:
        keys = there[part.name].keys
        if part.per and part.per not in keys:
            raise ValueError(f"algorithm.parts: per of {part.name}: unknown key '{part.per}'.{nearest(part.per, keys)}")
    rows = zip(recipe.parts, loss.parts, strict=True)
    return [(there[own.name], of_part.recipe, own.loss) for of_part, own in rows]


def refuse_networks(loss: LossRecipe, name: str) -> frozenset[str]:
    """The scores of the network ``name`` that the loss needs; ValueError for a network that nothing reads."""
    prefix = f"{name}."
    asked = frozenset(score for score in all_scores(loss) if score.startswith(prefix))
    samples = any(name_of(rule) == name and rule.parameters.get("samples") for rule in loss.networks)
    if not asked and not samples:
        raise ValueError(
            f"algorithm.networks: got '{name}', of which the objective '{loss.objective.text}' and the terms "
            f"{[term.text for term in loss.terms]} ask nothing, and which draws no samples; leave it out, or choose an "
            f"objective or a term that asks for {prefix}..."
        )
    return asked


def refuse_alone(size: int, recipe: AdvantageRecipe, loss: LossRecipe) -> None:
    """Raise ValueError for a group of one sample where a block compares the samples of a group."""
    comparing = [bound.text for bound in (*recipe.bounds, loss.objective, *loss.terms) if "key" in bound.block.needs]
    if size == 1 and loss.added({}).kind == "exits":  # they make it a group
        return
    if size < 1 or comparing:
        why = f"{', '.join(comparing)}: compares the samples of a group" if comparing else "a round has samples"
        raise ValueError(
            f"got data.group_size {size}, expected at least {min(2, size + 1)} ({why}); raise it, or choose blocks "
            "that do without, e.g. baseline tracker, static_reference or batch_mean, and scale batch_std or none"
        )


def refuse_tasks(loss: LossRecipe, prompts: Sequence[Prompt]) -> None:
    """Raise ValueError for a prompt whose task has no network where each task has its own."""
    own: dict[str, set[str]] = {}
    for rule in loss.networks:
        if task := rule.parameters.get("task", ""):
            own.setdefault(name_of(rule), set()).add(task)
    for name, tasks in own.items():
        if prompt := next((prompt for prompt in prompts if prompt.task not in tasks), None):
            raise ValueError(
                f"algorithm.networks: got networks '{name}' for the tasks {', '.join(sorted(tasks))}, and the prompt "
                f"'{prompt.id}' of task '{prompt.task}'; add frozen(path=..., task='{prompt.task}'), or leave it out"
            )


def refuse_records(policy: Policy, recipe: AdvantageRecipe, loss: LossRecipe, scorers: Sequence[Scorer]) -> None:
    """Raise ValueError for numbers that a reward or a block reads and that this policy cannot record."""
    asked = {name: f"the reward '{scorer.name}'" for scorer in scorers for name in scorer.records}
    asked |= dict.fromkeys(recipe.records | loss.records, "the algorithm")
    for name, who in sorted(asked.items()):
        if f"{name} of samples" not in policy.provides:
            raise ValueError(
                f"{who} reads {name} ({RECORDS[name]}), which a policy of {policy.kind} of this family does not "
                "record: token policies do; leave it out"
            )


def reads_answers(loss: LossRecipe) -> bool:
    """Whether a run reads the answers of prompts, also those of preference data."""
    return loss.added({}).kind == "answers" or bool(loss.supervised({}).count)
