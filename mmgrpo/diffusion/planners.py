"""Planners: pure functions of steps, group size, round and a generator that return the plans of a round.

Plans are drawn once per round from a generator that is equal on all ranks, so all members of
a group, and all groups, share one window; with a window per sample, rewards within a group would
differ for a reason other than the policy. A round with several plans samples one group per prompt and plan.

    >>> import torch
    >>> from mmgrpo.diffusion.planners import planner
    >>> [plan] = planner("branch_tree(splits=[0, 3, 6, 9])")(20, 16, 0, torch.Generator())
    >>> sum(plan.edges), plan.evaluations
    (218, 203)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, TypeAlias

import torch

from mmgrpo.config.ranges import COUNT, FRACTION, POSITIVE_FRACTION, UPPER_BOUND, one_of, within
from mmgrpo.config.registry import bind, block, table_of
from mmgrpo.diffusion.kernels import Kernel, kernel, noise_table
from mmgrpo.diffusion.plan import Plan
from mmgrpo.diffusion.schedules import Grid, flow_grid

PLANS = table_of("plan")


Planner: TypeAlias = Callable[[int, int, int, torch.Generator], list[Plan]]
"""(steps, group_size, round, generator) to the plans of the round."""


@block(PLANS)
def every_step(
    steps: int,
    group_size: int,
    round: int,
    generator: torch.Generator,
    shared_noise: bool = False,
    skip: int = 0,
    train: int = 0,
) -> list[Plan]:
    """Draw noise in and train all steps but the last (Flow-GRPO, arXiv:2505.05470), and but the first ``skip``.

    ``train`` > 0 trains only so many of them, drawn at random; one in CM-GRPO (RAVEN, arXiv:2605.15190).
    """
    plan = spread(steps, range(skip, steps - 1), group_size, shared_noise)
    if not train:
        return [plan]
    drawing = steps - 1 - skip
    if train > drawing:
        raise ValueError(f"every_step: train: got {train}, expected at most the {drawing} steps that draw noise")
    chosen = {skip + place for place in torch.randperm(drawing, generator=generator)[:train].tolist()}
    return [replace(plan, trained=tuple(step in chosen for step in range(steps)))]


@block(PLANS)
def random_subset(
    steps: int,
    group_size: int,
    round: int,
    generator: torch.Generator,
    fraction: Annotated[float, POSITIVE_FRACTION] = 0.6,
    shared_noise: bool = True,
) -> list[Plan]:
    """Draw noise in all steps but the last; each row trains a random fraction of them.

    With shared noise the rows of a group start from one initial noise. DanceGRPO, arXiv:2505.07818.
    """
    return [replace(spread(steps, range(steps - 1), group_size, shared_noise), fraction=fraction)]


@block(PLANS)
def random_window(
    steps: int,
    group_size: int,
    round: int,
    generator: torch.Generator,
    size: Annotated[int, COUNT] = 2,
    before: Annotated[float, FRACTION] = 0.5,
    shared_noise: bool = True,
) -> list[Plan]:
    """Draw noise in and train ``size`` consecutive steps, the first uniform in [0, before * steps].

    With shared noise a group branches at the window's start and computes the ODE before it once
    (Flow-GRPO-Fast, arXiv:2505.05470).
    """
    last = min(int(before * steps), last_start(steps, size))
    start = int(torch.randint(last + 1, (), generator=generator))
    return [spread(steps, range(start, start + size), group_size, shared_noise)]


@block(PLANS)
def sliding_window(
    steps: int,
    group_size: int,
    round: int,
    generator: torch.Generator,
    size: Annotated[int, COUNT] = 4,
    interval: Annotated[int, COUNT] = 25,
    stride: Annotated[int, COUNT] = 1,
    schedule: Annotated[str, one_of("progressive", "decay", "exp_decay", "random", "frozen")] = "progressive",
    roll_back: bool = False,
    shared_noise: bool = True,
    tail: Annotated[str, one_of("euler", "dpmpp_2m")] = "euler",
    tail_ratio: Annotated[float, POSITIVE_FRACTION] = 1.0,
) -> list[Plan]:
    """Draw noise in and train a window that moves from noise to data over the rounds.

    ``progressive`` moves by ``stride`` every ``interval`` rounds, ``decay`` stays
    max(floor(10 - 9 start / (T - 2)), 1) rounds at a start, ``exp_decay`` ceil(interval exp(-0.1 max(start - 13, 0))),
    ``random`` draws the start every round, ``frozen`` stays at step 0. At the last start the window
    stays, or returns to step 0 with ``roll_back``; the last of the T steps is never in it. With
    ``tail_ratio`` r < 1 the n steps after the window become ceil(n r) on a re-spaced grid (Flash: tail
    dpmpp_2m, ratio 0.4; Flash*: frozen, 0.2). MixGRPO, arXiv:2507.21802, equations 11 and 23.

    The paper's window may include the last step. The released code takes floor((n + 1) r) - 1 steps
    after the window, at most two fewer, and its window shrinks at the end of the grid. ``decay`` is
    that of the released code, with the 10 and 1 of its scripts; the paper gives no formula for it.
    """
    last = last_start(steps, size)
    starts = range(0, last + 1, stride)
    if schedule == "random":
        start = int(torch.randint(last + 1, (), generator=generator))
    elif schedule == "frozen":
        start = 0
    elif schedule == "progressive":
        start = start_at(starts, [interval] * len(starts), round, roll_back)
    elif schedule == "decay":
        span = max(steps - 2, 1)
        start = start_at(starts, [(10 * span - 9 * s) // span for s in starts], round, roll_back)
    else:  # exp_decay
        stays = [math.ceil(interval * math.exp(-0.1 * max(s - 13, 0))) for s in starts]
        start = start_at(starts, stays, round, roll_back)
    end = start + size
    # Minus 1e-9, so a whole number of steps is not rounded up: 50 * 0.14 is 7.000000000000001.
    after = math.ceil((steps - end) * tail_ratio - 1e-9)
    plan = spread(end + after, range(start, end), group_size, shared_noise)
    return [replace(plan, tail=tail, tail_steps=after if tail_ratio < 1 else 0)]


@block(PLANS)
def one_step_branch(
    steps: int,
    group_size: int,
    round: int,
    generator: torch.Generator,
    first: Annotated[float, POSITIVE_FRACTION] = 0.5,
    draw: Annotated[str, one_of("one", "all")] = "one",
    roots: Annotated[int, COUNT] = 1,
    jump: Annotated[int, COUNT] = 1,
    intervals: Annotated[Sequence[int], COUNT] = (1,),
) -> list[Plan]:
    """Branch at one step, the only stochastic one, so rewards within a tree differ by its noise alone.

    The step is within the first fraction ``first`` of all steps; ``draw`` "one" draws one step per round,
    "all" makes one plan per step. ``intervals`` add previews from coarser completions (Granular-GRPO,
    arXiv:2510.01982: first=0.5, intervals=[1, 2, 3]); roots=4 is TempFlow-GRPO (arXiv:2508.04324);
    ``jump`` merges steps into a longer one (E-GRPO, arXiv:2601.00423).
    """
    eligible = min(int(steps * first), steps - jump)
    if eligible < 1:
        raise ValueError(
            f"one_step_branch(first={first}, jump={jump}) leaves no step of {steps} to branch at; "
            "raise first or the number of steps, or lower jump"
        )
    starts = range(eligible) if draw == "all" else [int(torch.randint(eligible, (), generator=generator))]
    children = children_per_root(group_size, roots)
    return [
        replace(
            tree(steps - jump + 1, [start], [start], {start: children}, roots),
            jump=jump,
            intervals=tuple(intervals),
        )
        for start in starts
    ]


@block(PLANS)
def expand_prune(
    steps: int,
    group_size: int,
    round: int,
    generator: torch.Generator,
    at: Annotated[Sequence[int], COUNT] = (5, 7),
    keep: Annotated[Sequence[int], COUNT] = (24, 12),
) -> list[Plan]:
    """``every_step`` of ``group_size`` rows, of which ``keep[i]`` go on from step ``at[i]``.

    Rows are judged by the rewards of their clean estimates, and those of largest variance go on. 48 rows with the
    defaults are the 10 steps of Pro-GRPO (arXiv:2512.15347), 24 with keep=[16, 12] its Flash.
    """
    if len(at) != len(keep) or not at:
        raise ValueError(
            f"expand_prune: got at={list(at)} and keep={list(keep)}, expected as many of both, one at least"
        )
    return [replace(spread(steps, range(steps - 1), group_size, False), prune=tuple(zip(at, keep, strict=True)))]


@block(PLANS)
def entropy_branch(
    steps: int,
    group_size: int,
    round: int,
    generator: torch.Generator,
    entropy: Callable[[int, int], float],
    first: Annotated[float, POSITIVE_FRACTION] = 0.5,
    draw: Annotated[str, one_of("one", "all")] = "one",
    roots: Annotated[int, COUNT] = 1,
    least: int = 2,
    most: Annotated[int, COUNT] = 4,
) -> list[Plan]:
    """``one_step_branch`` whose step spans as many steps of the grid as give it the entropy of step ``least``.

    The smallest m <= ``most`` with entropy(step, m) >= entropy(least, 1), of the Gaussian from the level at the step to
    that m steps later. E-GRPO (arXiv:2601.00423) merges consecutive steps of low entropy; its threshold was not found
    (its released code has lists by hand, which ``one_step_branch(jump=...)`` expresses), so the rule is ours.
    """
    children = children_per_root(group_size, roots)
    threshold = entropy(least, 1)
    starts = range(max(1, min(int(steps * first), steps - 1)))
    starts = starts if draw == "all" else [int(torch.randint(len(starts), (), generator=generator))]
    plans = []
    for start in starts:
        spans = range(1, max(1, min(most, steps - 1 - start)) + 1)
        jump = next((span for span in spans if entropy(start, span) >= threshold), spans[-1])
        plan = tree(steps - jump + 1, [start], [start], {start: children}, roots)
        plans.append(replace(plan, jump=jump))
    return plans


@block(PLANS)
def branch_tree(
    steps: int,
    group_size: int,
    round: int,
    generator: torch.Generator,
    splits: Sequence[int] = (0, 3, 6, 9),
    factor: Annotated[int, within("[1, 64]")] = 2,
    sibling_scale: Annotated[float, UPPER_BOUND] = 4.0,
    prune: int = 0,
    prune_every: Annotated[int, COUNT] = 30,
    prune_stop: int = 16,
) -> list[Plan]:
    """A tree that splits ``factor``-fold at each of ``splits``; all steps but the last are stochastic and trained.

    ``prune`` > 0 (4 in the paper) leaves a window of that many depths untrained; it starts at the last
    split and moves by one depth every ``prune_every`` rounds until it starts at ``prune_stop``.
    The tree is always sampled completely. BranchGRPO, arXiv:2509.06040.
    """
    require_size(group_size, factor ** len(splits), f"branch_tree(splits={list(splits)}, factor={factor})")
    stochastic = range(steps - 1)
    skipped = range(0)
    if prune:
        start = min(max(splits) + round // prune_every, max(prune_stop, max(splits)))
        skipped = range(start, start + prune)
    trained = [step for step in stochastic if step not in skipped]
    plan = tree(steps, stochastic, trained, dict.fromkeys(splits, factor), 1)
    return [replace(plan, sibling_scale=sibling_scale)]


@block(PLANS)
def branch_mix(
    steps: int,
    group_size: int,
    round: int,
    generator: torch.Generator,
    splits: Sequence[int] = (0, 3, 6, 9),
    factor: Annotated[int, within("[1, 64]")] = 2,
    sibling_scale: Annotated[float, UPPER_BOUND] = 4.0,
    window: Annotated[int, COUNT] = 4,
    interval: Annotated[int, COUNT] = 30,
) -> list[Plan]:
    """The same tree with noise only at the splits and in a sliding window; both are trained.

    The window starts after the last split and moves by one step every ``interval`` rounds
    (BranchGRPO-Mix, arXiv:2509.06040).
    """
    require_size(group_size, factor ** len(splits), f"branch_mix(splits={list(splits)}, factor={factor})")
    start = min(max(splits) + 1 + round // interval, last_start(steps, window))
    stochastic = {*splits, *range(start, start + window)}
    plan = tree(steps, stochastic, stochastic, dict.fromkeys(splits, factor), 1)
    return [replace(plan, sibling_scale=sibling_scale)]


@block(PLANS)
def tree_window(
    steps: int,
    group_size: int,
    round: int,
    generator: torch.Generator,
    children: Annotated[int, within("[1, 64]")] = 3,
    depth: Annotated[int, within("[1, 64]")] = 3,
    r: Annotated[float, within("(0, 1)")] = 0.5,
) -> list[Plan]:
    """Split every frontier sample into ``children`` at ``depth`` consecutive steps; the ODE elsewhere.

    The window starts at i with probability (1 - r) r^i / (1 - r^(steps - depth)), i < steps - depth
    (TreeGRPO, ICLR 2026).
    """
    require_size(group_size, children**depth, f"tree_window(children={children}, depth={depth})")
    last_start(steps, depth)
    start = int(torch.multinomial(window_starts(steps, depth, r), 1, generator=generator))
    window = range(start, start + depth)
    return [tree(steps, window, window, dict.fromkeys(window, children), 1)]


def window_starts(steps: int, depth: int, r: float) -> torch.Tensor:
    """Truncated geometric distribution of a window's start: (1 - r) r^i / (1 - r^n), n = steps - depth."""
    if not 0 < r < 1:
        raise ValueError(f"tree_window: got r {r}, expected 0 < r < 1")
    count = steps - depth
    return (1 - r) * r ** torch.arange(count, dtype=torch.float64) / (1 - r**count)


def planner(text: str, entropy: Callable[[int, int], float] | None = None) -> Planner:
    """The planner of ``name(parameter=value)``, whose errors begin with its setting; ``entropy`` as in
    ``step_entropy``, by default of ``flow_sde`` on levels of shift 3."""
    bound = bind(text, PLANS, "sampling.plan")

    def plans(steps: int, group_size: int, round: int, generator: torch.Generator) -> list[Plan]:
        known = entropy or (lambda step, span: step_entropy(kernel("flow_sde"), flow_grid(steps), step, span))
        inputs = {"steps": steps, "group_size": group_size, "round": round, "generator": generator}
        try:
            return bound({**inputs, "entropy": known})
        except ValueError as error:
            raise ValueError(f"sampling.plan: {error}") from error

    return plans


def step_entropy(kernel: Kernel, grid: Grid, step: int, span: int) -> float:
    """Entropy per latent dimension, 1/2 ln(2 pi e std^2), of the transition that spans ``span`` steps of a grid."""
    points = [*range(step + 1), *range(step + span, grid.steps + 1)]
    std = float(noise_table(kernel, grid.pick(points))[step])
    return 0.5 * math.log(2 * math.pi * math.e) + math.log(std) if std > 0 else -math.inf


def tree(steps: int, stochastic: Iterable[int], trained: Iterable[int], splits: Mapping[int, int], roots: int) -> Plan:
    """A plan from the sets of stochastic and trained steps and the number of children at each split."""
    noise, training = set(stochastic), set(trained)
    outside = sorted(step for step in noise | training | set(splits) if not 0 <= step < steps - 1)
    if outside:
        raise ValueError(
            f"got noise at steps {outside}, expected it within steps 0 to {steps - 2} of {steps} (the last one is "
            "deterministic); use more sampling steps or earlier splits and windows"
        )
    return Plan(
        stochastic=tuple(step in noise for step in range(steps)),
        trained=tuple(step in training for step in range(steps)),
        branches=tuple(splits.get(step, 1) for step in range(steps)),
        roots=roots,
    )


def spread(steps: int, window: Sequence[int], group_size: int, shared_noise: bool) -> Plan:
    """A plan that draws noise in and trains one window; with shared noise the group branches at its first step."""
    if not window:
        raise ValueError(f"got steps={steps}, expected at least 2, since the last one is deterministic; use more steps")
    if shared_noise:
        return tree(steps, window, window, {window[0]: group_size}, 1)
    return tree(steps, window, window, {}, group_size)


def start_at(starts: Sequence[int], stays: Sequence[int], round: int, roll_back: bool) -> int:
    """Start in the given round of a window that stays ``stays[i]`` rounds at ``starts[i]``."""
    if roll_back:
        round %= sum(stays)
    for start, stay in zip(starts, stays, strict=True):
        if round < stay:
            return start
        round -= stay
    return starts[-1]


def last_start(steps: int, size: int) -> int:
    """The last start at which a window of this size leaves out the last step."""
    if not 1 <= size <= steps - 1:
        raise ValueError(
            f"got a window of {size} steps, expected 1 to {steps - 1}: of {steps} steps all but the last can draw noise"
        )
    return steps - 1 - size


def children_per_root(group_size: int, roots: int) -> int:
    """Children per root."""
    if roots < 1 or group_size % roots:
        raise ValueError(f"got group_size={group_size} with roots={roots}, expected a multiple of roots; change either")
    return group_size // roots


def require_size(group_size: int, rows: int, what: str) -> None:
    if group_size != rows:
        raise ValueError(
            f"{what}: group_size={group_size}, but the plan makes {rows} samples; set group_size={rows} or change it"
        )
