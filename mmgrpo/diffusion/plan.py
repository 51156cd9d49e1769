"""The plan of a denoising policy: each step is deterministic or stochastic, trained or not, branching or not.

One object expresses full SDE (Flow-GRPO), random subsets (DanceGRPO), windows (MixGRPO), one-step
branches (Granular-GRPO, TempFlow-GRPO, E-GRPO) and trees (BranchGRPO, TreeGRPO).

The rows of a group are the leaves of ``roots`` trees, in lexicographic order of (root, child at the
first split, child at the second, ...). An *edge* is one transition of that tree, a *forward* one
network evaluation; the children of a split share their parent's forward. Edges and forwards of a
step are numbered from 0 in the order of rows, so row r takes edge ``r * width // rows``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from mmgrpo.diffusion.schedules import Grid


@dataclass(frozen=True)
class Plan:
    """The steps of one group's rollout; per-step fields are indexed by the steps of ``plan.grid(base)``."""

    stochastic: tuple[bool, ...]
    """True where the step draws noise; elsewhere it follows the ODE. The last step never draws noise."""
    trained: tuple[bool, ...]
    """Steps whose transitions are decisions to train; all of them stochastic."""
    branches: tuple[int, ...]
    """Children of each frontier sample at each step; above 1 only where the step is stochastic."""
    roots: int
    """Distinct initial noises of a group."""
    sibling_scale: float = math.inf
    """s in the noise of siblings, (xi_0 + s eta_b) / sqrt(1 + s^2); correlation 1 / (1 + s^2), inf: independent."""
    fraction: float = 1.0
    """Every row trains int(n * fraction) of the n trained steps, drawn at random per row."""
    jump: int = 1
    """Steps of the base grid that the single stochastic step spans."""
    tail: str = "euler"
    """Solver of the steps after the last stochastic one, euler or dpmpp_2m; before it always euler.

    dpmpp_2m continues from the clean estimate of the last stochastic step, so its first step is already of second
    order (MixGRPO, arXiv:2507.21802, equation 19).
    """
    tail_steps: int = 0
    """Number of those steps on a re-spaced grid; 0 keeps the base grid."""
    intervals: tuple[int, ...] = (1,)
    """Grid intervals of the deterministic completions after the last stochastic step: 1 is the output
    itself, each further one a preview with fewer steps."""
    prune: tuple[tuple[int, int], ...] = ()
    """Pairs (step, count): before this step's transition only ``count`` rows of the group go on."""

    def __post_init__(self) -> None:
        steps = len(self.stochastic)
        if not (steps == len(self.trained) == len(self.branches)) or steps == 0:
            self.refuse("needs one entry of stochastic, trained and branches per step")
        if min((self.roots, self.jump, *self.branches, *self.intervals)) < 1:
            self.refuse("needs roots, jump, branches and intervals of at least 1")
        if self.stochastic[-1]:
            self.refuse("draws noise in its last step, which would stay in the output; make that step deterministic")
        if not any(self.trained):
            self.refuse("trains no step; give it more steps or a larger window")
        for step in range(steps):
            if self.trained[step] and not self.stochastic[step]:
                self.refuse(f"trains step {step}, which is deterministic")
            if self.branches[step] > 1 and not self.stochastic[step]:
                self.refuse(f"branches at step {step}, which is deterministic: the children would be equal")
        if not self.sibling_scale > 0:
            self.refuse("needs sibling_scale > 0: siblings that share all noise are equal")
        if self.fraction > 1 or self.trained_per_row < 1:
            self.refuse(f"trains int({sum(self.trained)} * {self.fraction}) steps of a row; raise fraction")
        if self.fraction < 1 and self.rows != self.edges[0]:
            self.refuse("splits after step 0, so rows share decisions: fraction must be 1")
        if self.jump > 1 and sum(self.stochastic) != 1:
            self.refuse("jumps, which needs exactly one stochastic step")
        if self.tail not in ("euler", "dpmpp_2m"):
            self.refuse(f"has the tail solver '{self.tail}'; known: euler, dpmpp_2m")
        if self.tail_steps not in (0, steps - self.end):
            self.refuse(f"needs tail_steps of 0 or {steps - self.end}, the steps after the last stochastic one")
        if self.intervals[0] != 1 or len(set(self.intervals)) != len(self.intervals):
            self.refuse("needs distinct intervals that begin with 1, the output itself")

        if self.prune:
            counts = [self.roots, *(count for _, count in self.prune)]
            if max(self.branches) > 1 or self.fraction < 1 or len(self.intervals) > 1 or self.jump > 1:
                self.refuse("prunes, which needs rows without splits, fractions, jumps and previews")
            if sorted({step for step, _ in self.prune}) != [step for step, _ in self.prune]:
                self.refuse(f"prunes at steps {[step for step, _ in self.prune]}, which need to rise")
            if not 0 < self.prune[0][0] <= self.prune[-1][0] < self.end:
                at = [step for step, _ in self.prune]
                self.refuse(
                    f"prunes at steps {at} of {self.steps}, expected steps from 1 to the last that draws noise, "
                    f"{self.end - 1}; use more sampling steps or prune earlier"
                )
            if counts != sorted(set(counts), reverse=True) or counts[-1] < 2:
                self.refuse(f"prunes from {self.roots} rows to {counts[1:]}, which need to fall and leave 2 at least")

    def refuse(self, reason: str) -> None:
        raise ValueError(f"this plan {reason}. {self}")

    @property
    def steps(self) -> int:
        return len(self.stochastic)

    @property
    def end(self) -> int:
        """The step after the last stochastic one: from here on the rollout is deterministic."""
        return self.steps - self.stochastic[::-1].index(True)

    @property
    def rows(self) -> int:
        """Rows of a group: roots times all branches. With ``prune`` those at its start."""
        return self.roots * math.prod(self.branches)

    @property
    def survivors(self) -> int:
        """Rows of a group that are sampled to the end."""
        return self.prune[-1][1] if self.prune else self.rows

    def _alive(self, step: int) -> int:
        """Rows of a group without splits at the transition of a step."""
        return min((count for at, count in self.prune if at <= step), default=self.roots)

    @property
    def forwards(self) -> tuple[int, ...]:
        """Distinct network evaluations at each step; the children of a split share their parent's."""
        if self.prune:  # the evaluation from which rows are judged is that of their transition
            return tuple(self._alive(step - 1) for step in range(self.steps))
        return tuple(self.roots * math.prod(self.branches[:step]) for step in range(self.steps))

    @property
    def edges(self) -> tuple[int, ...]:
        """Distinct transitions at each step."""
        if self.prune:
            return tuple(self._alive(step) for step in range(self.steps))
        return tuple(self.roots * math.prod(self.branches[: step + 1]) for step in range(self.steps))

    @property
    def evaluations(self) -> int:
        """Network evaluations of a group's rollout, previews included, guidance counted once."""
        previews = sum(self.rows * (len(self.points(interval)) - 1) for interval in self.intervals[1:])
        return sum(self.forwards) + previews

    @property
    def stochastic_evaluations(self) -> int:
        """Network evaluations of a group at the stochastic steps, guidance counted once."""
        widths = self.edges if self.prune else self.forwards
        return sum(width for width, drawn in zip(widths, self.stochastic, strict=True) if drawn)

    @property
    def trained_edges(self) -> int:
        """Trained decisions per group."""
        if self.prune:
            return self.survivors * sum(self.trained)
        if self.fraction < 1:
            return self.rows * self.trained_per_row
        return sum(width for width, trained in zip(self.edges, self.trained, strict=True) if trained)

    @property
    def training_evaluations(self) -> int:
        """Network evaluations to train a group once, at most; a random fraction may need fewer."""
        trained = [width for width, trained in zip(self.forwards, self.trained, strict=True) if trained]
        return min(sum(trained), self.trained_edges)

    @property
    def trained_per_row(self) -> int:
        """Trained steps of each row."""
        return int(sum(self.trained) * self.fraction)

    def edge(self, step: int) -> Int[Tensor, " G"]:
        """The number of the transition that each row takes at a step."""
        return torch.arange(self.rows) * self.edges[step] // self.rows

    def forward(self, step: int) -> Int[Tensor, " G"]:
        """The number of the network evaluation (of the sample before the step) of each row."""
        return torch.arange(self.rows) * self.forwards[step] // self.rows

    def loss_mask(self, generator: torch.Generator) -> Bool[Tensor, "G T"]:
        """The trained decisions that each row owns; a shared one is owned by the first row that takes it.

        With ``fraction`` < 1 every row owns its own random ``trained_per_row`` of the trained steps.
        """
        trained = torch.tensor(self.trained)
        if self.fraction < 1:
            order = torch.rand(self.rows, self.steps, generator=generator)
            order = order.masked_fill(~trained, -1).argsort(descending=True)
            nowhere = torch.zeros(self.rows, self.steps, dtype=torch.bool)
            return nowhere.scatter(1, order[:, : self.trained_per_row], True)
        return self._owned

    @cached_property
    def _owned(self) -> Bool[Tensor, "G T"]:
        """``loss_mask`` of whole rows, the same for every prompt."""
        trained = torch.tensor(self.trained)
        edges = torch.stack([self.edge(step) for step in range(self.steps)], dim=1)
        first = torch.ones(self.rows, self.steps, dtype=torch.bool)
        if self.prune:
            return first & trained
        first[1:] = edges[1:] != edges[:-1]
        return first & trained

    def points(self, interval: int) -> tuple[int, ...]:
        """Indices into the plan's grid that the completion with this interval visits, from ``end`` on."""
        return (*range(self.end, self.steps, interval), self.steps)

    def grid(self, base: Grid) -> Grid:
        """The grid of this plan: the base grid with the steps of its jump merged and its tail re-spaced."""
        head = self.end + self.jump - 1  # on the base grid, where the last stochastic step spans ``jump`` steps
        if self.tail_steps:
            base = base.with_tail(head, self.tail_steps)
        points = [*range(self.end), *range(head, base.steps + 1)]
        if len(points) != self.steps + 1:
            raise ValueError(
                f"got a noise grid of {base.steps} steps, expected the {self.steps} of this plan (one of them spanning "
                f"{self.jump}); build both from the same number of steps"
            )
        return base.pick(points)
