"""How often an attack raises a score: the share per attack, of rewards that nobody has trained against yet."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Float

from mmgrpo.runtime.progress import progress_bar
from mmgrpo.scoring import Scorer
from mmgrpo.scoring.isolation import score_column
from mmgrpo.types import Output, Prompt
from reward_models.evaluation.attacks import DAMAGES, damage_output, repeat_text
from reward_models.evaluation.comparison import Comparison
from reward_models.evaluation.evaluate import plain, score

Case: TypeAlias = tuple[Prompt, Output]


def robustness(scorer: Scorer, comparisons: Sequence[Comparison], seed: int = 0, batch: int = 16) -> dict[str, Any]:
    """For each attack {share, equal, n}: the shares of the n scored cases in which the attacked output scores higher
    than before, and exactly as before.

    The case of a comparison is its best output. Images and clips are damaged, texts say everything twice, and
    ``prompt_swap`` scores the output for the next comparison's prompt. ``reading_order`` is the share of comparisons
    in which a score's order changes when the outputs are read backwards, which only rewards that compare outputs can.
    """
    best = [(c.to_prompt(), c.outputs()[int(np.argmin(c.ranks))]) for c in comparisons]
    before = _values(scorer, best, "before", batch)
    shares = {
        name: _share(before, _values(scorer, cases, name, batch)) for name, cases in _variants(best, seed).items()
    }
    shares["reading_order"] = _reading_order(scorer, comparisons)
    return plain({name: share for name, share in shares.items() if share["n"]})


def _variants(best: Sequence[Case], seed: int) -> Mapping[str, Sequence[Case | None]]:
    """The attacked cases by attack; None where an attack does not apply."""

    def case(prompt: Prompt, output: Output | None) -> Case | None:
        return None if output is None else (prompt, output)

    draws = {name: [np.random.default_rng([seed, row]) for row in range(len(best))] for name in DAMAGES}
    return {
        **{
            name: [
                case(prompt, damage_output(output, name, draws[name][row])) for row, (prompt, output) in enumerate(best)
            ]
            for name in DAMAGES
        },
        "padding": [case(prompt, repeat_text(output)) for prompt, output in best],
        "prompt_swap": [
            case(other, output if other.text != prompt.text else None)
            for (prompt, output), (other, _) in zip(best, [*best[1:], *best[:1]], strict=True)
        ],
    }


def _values(scorer: Scorer, cases: Sequence[Case | None], name: str, batch: int) -> Float[np.ndarray, "N"]:
    """Scores of the cases; NaN for None."""
    values = np.full(len(cases), math.nan)
    present = [(row, case) for row, case in enumerate(cases) if case is not None]
    for start in progress_bar(range(0, len(present), batch), f"{scorer.name}, {name}"):
        rows = [row for row, _ in present[start : start + batch]]
        prompts, outputs = ([case[side] for _, case in present[start : start + batch]] for side in (0, 1))
        values[rows] = score_column(scorer.name, scorer.fn, prompts, outputs, scorer.trusted)  # type: ignore[arg-type]
    return values


def _share(before: Float[np.ndarray, "N"], after: Float[np.ndarray, "N"]) -> dict[str, float]:
    scored = ~np.isnan(before) & ~np.isnan(after)
    if not scored.any():
        return {"share": math.nan, "equal": math.nan, "n": 0}
    return {
        "share": float((after > before)[scored].mean()),
        "equal": float((after == before)[scored].mean()),
        "n": int(scored.sum()),
    }


def _reading_order(scorer: Scorer, comparisons: Sequence[Comparison]) -> dict[str, float]:
    backwards = [replace(c, candidates=c.candidates[::-1], ranks=c.ranks[::-1]) for c in comparisons]
    readings = zip(score([scorer], comparisons)[scorer.name], score([scorer], backwards)[scorer.name], strict=True)
    changed = [
        _order(first) != _order(second[::-1]) for first, second in readings if not np.isnan([*first, *second]).any()
    ]
    return {"share": float(np.mean(changed)) if changed else math.nan, "equal": math.nan, "n": len(changed)}


def _order(values: Sequence[float]) -> list[list[float]]:
    return np.sign(np.subtract.outer(values, values)).tolist()
