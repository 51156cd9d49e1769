"""What the settings of sampling do not go with.

Families annotate their options with these (``pipelines/options.py``), and a policy or a trainer that was made by hand
is refused by the same (``mmgrpo.config.settings.DECLARED``).
"""

from __future__ import annotations

from collections.abc import Mapping

from mmgrpo.config.conflicts import DECISIONS, PROCESS, STREAMS, Declaration, at_most, excludes, reading, where

BEAM = where("sampling.search", "beam")
OF_DIFFUSION = where(PROCESS, "diffusion")
SUPPRESSING = "one that suppresses first tokens"
"""What ``model.family`` is of a policy by hand over such a model (Whisper)."""
FURTHER_ROWS = ("algorithm.replay", "algorithm.supervised", "algorithm.hint", "algorithm.added", "algorithm.judging")
"""Settings that give a round rows besides those that the policy draws."""
UNREAD = excludes(
    where("algorithm.credit", lacking="step_rewards"), why="states are completed for credits that read step_rewards"
)
"""Of settings by which the states between decisions are completed and scored."""

SAMPLING: Mapping[str, tuple[Declaration, ...]] = {
    "sampling.draw_batch_size": (
        excludes(BEAM, *reading("divergence"), why="the samples of a group are drawn together there"),
    ),
    "sampling.contrast": (excludes(BEAM, why="contrasts are of samples"),),
    "sampling.variants": (excludes(BEAM, "data.reference_in_group", why="only samples of the policy are divided"),),
    "sampling.states": (UNREAD,),
    "sampling.total_tokens": (
        excludes(
            *("sampling.tree", "sampling.tools", "sampling.states", "sampling.contrast", "sampling.variants", BEAM),
            *(where("sampling.truncated", "mask"), where("rollout.engine", but="policy"), "rollout.max_staleness"),
            *("data.reference_in_group", "data.offline", *FURTHER_ROWS),
            why="what is cut off goes on in the next round",
        ),
        excludes(where(DECISIONS, but="tokens"), why="only texts are cut off"),
        excludes(
            where("algorithm.credit", lacking="cut"),
            why="that takes what is cut off for finished, which window_gae does not",
        ),
    ),
    "sampling.temperature_by_entropy": (
        excludes(
            *("sampling.tree", "sampling.tools", "sampling.program", "sampling.states", "sampling.contrast", BEAM),
            *(where("rollout.engine", but="policy"), "rollout.max_staleness"),
            why="every token of a plain completion is drawn at a temperature of its own",
        ),
    ),
    "sampling.tree": (
        excludes(
            *("sampling.states", "sampling.contrast", "sampling.variants", "sampling.context_tokens"),
            *("sampling.dtype", "sampling.draw_batch_size", BEAM, *reading("divergence")),
            *(where("sampling.truncated", "mask"), where("rollout.engine", but="policy")),
            *("data.reference_in_group", *FURTHER_ROWS),
            why="samples of a tree share their beginnings",
        ),
    ),
    "sampling.tools": (
        excludes(
            where("sampling.tree", "text_tree"),
            *("sampling.states", "sampling.contrast", BEAM, where("sampling.variants", "prefixes")),
            *("data.reference_in_group", "data.offline", "rollout.max_staleness", *FURTHER_ROWS),
            where("model.family", SUPPRESSING),
            *reading(
                "answer_probability",
                "segment",
                "marks",
                "shares",
                "gradient_feature",
                "visual_dependency",
                "divergence",
            ),
            why="its completions have turns that others wrote",
        ),
        excludes(
            where("algorithm.credit", having=("step_rewards", "step_values"), lacking="turn"),
            why="its rewards of steps are those of turns, for credits such as turn_return",
        ),
    ),
    "sampling.program": (
        excludes(
            *("sampling.tools", "sampling.tree", "sampling.states", "sampling.variants", "sampling.contrast", BEAM),
            *("data.reference_in_group", "data.offline", "rollout.max_staleness", *FURTHER_ROWS),
            *reading("answer_probability", "segment", "marks", "shares", "gradient_feature"),
            *reading("visual_dependency", "divergence"),
            why="its samples are several calls with prompts of their own",
        ),
        excludes(
            where("algorithm.credit", having=("step_rewards", "step_values"), lacking="turn"),
            why="its rewards of steps are those of calls, for credits of turns such as turn_return",
        ),
    ),
    "sampling.completion_steps": (
        UNREAD,
        excludes(where("sampling.plan", "expand_prune"), why="no states of groups that are pruned are completed"),
        excludes(STREAMS, why="states of several streams are not completed one by one"),
    ),
    "sampling.reward_drift": (
        excludes(
            where("rollout.engine", but="policy"), why="it moves the states that the policy draws, by its own decoder"
        ),
    ),
    "sampling.solver": (
        excludes("sampling.explore_steps", why="exploration draws by euler", but="euler"),
        excludes(OF_DIFFUSION, why="it is defined for flows only", but="euler"),
    ),
    "sampling.grid": (excludes(OF_DIFFUSION, why="it is defined for flows only", but="checkpoint"),),
    "sampling.plan": (
        excludes(OF_DIFFUSION, why="a tail is defined for flows only", having=("tail=dpmpp_2m", "tail_ratio=*")),
    ),
    "sampling.explore_keep": (
        at_most("data.group_size", why="the samples that are explored", given="sampling.explore_steps"),
    ),
    "sampling.anchors": (
        at_most(
            "data.group_size",
            why="the samples among which anchors are drawn",
            given=where("sampling.policy", "neighbors"),
        ),
    ),
    "sampling.gradient": (
        excludes(
            where("algorithm.objective", lacking="gradient_reward"),
            why="a policy that draws with gradient has no log-probs to train on (presets draft, refl and srpo)",
            given=where("sampling.policy", "gradients"),
        ),
    ),
    "sampling.boundaries": (
        excludes(
            *("sampling.explore_steps", where("sampling.solver", "dpmpp_2m"), OF_DIFFUSION),
            why="its states are those of Euler steps of a flow",
        ),
    ),
}
"""By setting; those of other sections stand at their fields (``mmgrpo/config/settings.py``)."""
