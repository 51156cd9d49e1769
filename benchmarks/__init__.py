"""Programs that developers run in a checkout; beside them lie the results of all benchmarks.

    python -m benchmarks twins              # every recipe scaled down to CPU-seconds: does it learn? (minutes)
    python -m benchmarks algorithms         # 24 presets on equal budgets, three tasks, three seeds (hours)
    python -m benchmarks critics            # PPO with a critic, GRPO, RLOO and VinePPO at equal completions (minutes)
    python -m benchmarks visual_learning    # reward against CPU time, every method, 5 seeds (days; --resume)
    python -m benchmarks scale              # bytes that sharding moves and holds, against the formulas (minutes)
    python -m benchmarks rewards            # rewards in process, in a process of their own, served; overlap
    python -m benchmarks judging            # a policy that judges itself beside one that only answers (minutes)
    python -m benchmarks waits              # how often the host would wait for a device (minutes)

What a user measures on their own machine is ``mmgrpo bench``.
"""

from __future__ import annotations

from collections.abc import Sequence

PROGRAMS = ("twins", "algorithms", "critics", "judging", "visual_learning", "scale", "rewards", "waits")
"""Modules with the options of a program (``Args``) and the function ``run``."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the program that the first argument names; without one print what there is."""
    from mmgrpo.cli.bench import start
    from mmgrpo.cli.options import words

    given = words(arguments)
    if not given or given[0].startswith("-"):
        print(__doc__)
        return
    start(__name__, PROGRAMS, given, __doc__, "python -m benchmarks")
