"""Results of a run for a terminal: tables, and the verdict in a sentence."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mmgrpo.terminal import paragraph, style_text, table

FEW = 3
"""Trained rewards that the verdict names."""

SIDES = ("before", "after", "difference")
"""Sections of an evaluation."""


def closing(summary: Mapping[str, Any]) -> str:
    """The results of a run, before and after, from its summary."""
    blind = {name: number(estimate["mean"]) for name, estimate in summary.get("blind", {}).items()}
    trained: Mapping[str, float] = summary.get("trained", {})
    early = ", stopped early (eval.patience)" * ("stopped" in summary)
    lines = [f"{summary['steps']} optimizer steps in {summary['seconds']:.0f} s of training{early}"]
    if summary["skipped_steps"]:
        lines.append(f"{summary['skipped_steps']} steps had no decision to train and were skipped")
    if summary["nonfinite_steps"]:
        lines.append(f"{summary['nonfinite_steps']} steps had a loss or gradient that is not finite and were skipped")
    if alarms := summary.get("alarms", ()):
        lines.append(
            style_text("ALARM", "bold", "red")
            + f": {', '.join(map(title, alarms))} (in words above and in report.html)"
        )
    if summary["eval"]:
        lines += ["", *comparison(summary["eval"], "reward", trained, "blind" if blind else "", blind)]
    for column, values in summary.get("groups", {}).items():
        for reward in summary["eval"]["difference"]:
            sides = {side: {value: group[side][reward] for value, group in values.items()} for side in summary["eval"]}
            directions = {value: trained.get(reward, 0.0) for value in values}
            lines += ["", *comparison(sides, f"{reward} by {column}", directions)]
    for name, section in summary.get("extra", {}).items():
        lines += ["", *comparison(section, f"reward on {name}", trained)]
    rates = {
        f"{rate} of {name}": estimates for rate in summary.get("rates", ()) for name, estimates in summary[rate].items()
    }
    if rates:
        sides = {side: {name: estimates[side] for name, estimates in rates.items()} for side in SIDES}
        relative = {
            name: f"{estimates['relative']:+.1%}"
            for name, estimates in rates.items()
            if estimates["relative"] is not None
        }
        lines += ["", *comparison(sides, "error rate (of all)", dict.fromkeys(rates, -1.0), "relative", relative)]
    return "\n".join(lines)


def verdict(summary: Mapping[str, Any], folder: str, heldout: str) -> str:
    """What was trained, from where to where, and whether it is better; for a run without an evaluation the command
    that makes one. ``heldout``: the run's file of held-out prompts, if any."""
    who = summary.get("family") or "the policy"
    about = f"{who} trained with {summary.get('preset', 'grpo')} for {summary['steps']} steps"
    sides, trained = summary["eval"], summary.get("trained", {})
    names = [name for name in trained if name in sides.get("difference", {})]
    if not names:
        prompts = "" if heldout else " --file PROMPTS"
        command = f"mmgrpo evaluate --run {shlex.quote(folder)}{prompts} --against untrained"
        on = f" on {', '.join(trained)}" if trained else ""
        return "\n".join([*paragraph(f"{about}{on}: not evaluated; run"), f"  {command}"])
    changes = [
        change(name, sides["before"][name], sides["after"][name], sides["difference"][name], trained[name])
        for name in names[:FEW]
    ]
    rest = [f"and {len(names) - FEW} more rewards, above"] if len(names) > FEW else []
    return "\n".join(paragraph(f"{about}: {'; '.join([*changes, *rest])}"))


def change(
    name: str, before: Mapping[str, Any], after: Mapping[str, Any], difference: Mapping[str, Any], direction: float = 1
) -> str:
    """A reward before and after, the paired difference, and whether it is better: its interval excludes 0."""
    if not difference["n"]:
        return f"{name} could not be scored on any prompt on both sides"
    gain, word = interval(difference, "+"), ("within noise", "better", "worse")[towards(difference, direction)]
    return (
        f"{name} from {before['mean']:.3f} to {after['mean']:.3f}, {gain} on {difference['n']} prompts: "
        f"{style_text(word, *style(difference, direction))}"
    )


def towards(difference: Mapping[str, Any], direction: float) -> int:
    """1 for a significant change in the direction of a reward, -1 for one against it, 0 where the interval has 0."""
    if not difference["n"] or difference["low"] <= 0 <= difference["high"]:
        return 0
    return 1 if difference["mean"] * direction > 0 else -1


def style(difference: Mapping[str, Any], direction: float) -> Sequence[str]:
    """How a difference is shown: bold where it is significant, green towards the direction of its reward and red away
    from it; 0: no direction, as of a reward that was only watched."""
    if not towards(difference, 1):
        return ()
    return ("bold", *(["green" if towards(difference, direction) > 0 else "red"] if direction else []))


def title(alarm: Mapping[str, Any]) -> str:
    """An alarm by its cause and the reward that it is about; in full it was printed when it was raised."""
    subject = alarm.get("subject") or alarm.get("held_out")
    return str(alarm.get("cause", alarm["kind"])) + (f" '{subject}'" if subject else "")


def comparison(
    sides: Mapping[str, Any],
    title: str,
    directions: Mapping[str, float],
    column: str = "",
    cells: Mapping[str, str] | None = None,
) -> Iterable[str]:
    """The lines of a table: before, after and difference by name, and optionally one more column."""
    rows = []
    for name, difference in sides["difference"].items():
        gain = style_text(interval(difference, "+"), *style(difference, directions.get(name, 0)))
        means = [number(sides[side][name]["mean"]) for side in SIDES[:2]]
        rows.append([name, *means, gain, str(difference["n"]), *([(cells or {}).get(name, "")] if column else [])])
    return table(
        [title, "before", "after", "difference (95 %, paired)", "prompts", *([column] if column else [])], rows
    )


def number(value: float | None) -> str:
    """A number; a dash where nothing could be scored."""
    return f"{value:.3f}" if value is not None else "–"


def interval(estimate: Mapping[str, Any], sign: str = "") -> str:
    """A mean and its interval; a dash without any prompt."""
    return (
        f"{estimate['mean']:{sign}.3f} [{estimate['low']:{sign}.3f}, {estimate['high']:{sign}.3f}]"
        if estimate["n"]
        else "–"
    )
