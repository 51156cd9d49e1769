"""Which intermediate states of a plan are completed without noise, so rewards can judge single decisions.

The states before and after every decision are completed in at most ``limit`` deterministic steps to the end of the
grid, and each distinct state once: the state after a decision is that before the next one, the children of a split
share their parent, and a whole remaining ODE after the last decision is the rollout's own, whose output is there.

    >>> from mmgrpo.diffusion.planners import spread
    >>> stages, _ = completion_stages(spread(4, range(3), 2, False), limit=4)
    >>> [(stage.point, stage.width) for stage in stages]  # the third decision leads to the output
    [(0, 2), (1, 2), (2, 2)]
"""

from __future__ import annotations

from dataclasses import dataclass

from mmgrpo.diffusion.plan import Plan

OUTPUT = -1
"""In place of a stage's number: the state leads to the output of the row itself."""


@dataclass(frozen=True)
class Stage:
    """Distinct states of a plan, at one point of its grid, that are completed."""

    step: int
    """The step of the decision that they stand before or after."""
    after: bool
    point: int
    """Index of their noise level in the plan's grid."""
    width: int
    """Distinct states of a group."""


def points_to_end(start: int, steps: int, limit: int) -> tuple[int, ...]:
    """Points of a grid of ``steps`` steps from ``start`` to its end, in at most ``limit``, as even as indices are."""
    count = min(limit, steps - start)
    return tuple(start + round(i * (steps - start) / count) for i in range(count + 1))


def completion_stages(plan: Plan, limit: int) -> tuple[list[Stage], dict[int, tuple[int, int]]]:
    """The stages of a plan, and by the step of each decision the numbers of the stages before and after it."""
    stages: list[Stage] = []
    around: dict[int, tuple[int, int]] = {}
    exact = plan.tail == "euler"  # as completions are solved
    previous = -1
    for step in (step for step in range(plan.steps) if plan.stochastic[step]):
        # Between two decisions the rollout follows the ODE, which a completion of the earlier state follows too.
        follows = previous >= 0 and (previous == step - 1 or limit >= plan.steps - previous - 1)
        if follows:
            before = around[previous][1]
        else:
            before = len(stages)
            stages.append(Stage(step, False, step, plan.forwards[step]))
        if step == plan.end - 1 and exact and limit >= plan.steps - plan.end:
            after = OUTPUT
        else:
            after = len(stages)
            stages.append(Stage(step, True, step + 1, plan.edges[step]))
        around[step], previous = (before, after), step
    return stages, around


def completion_evaluations(plan: Plan, limit: int) -> int:
    """Network evaluations of a group's completions, guidance counted once."""
    stages, _ = completion_stages(plan, limit)
    return sum(stage.width * (len(points_to_end(stage.point, plan.steps, limit)) - 1) for stage in stages)
