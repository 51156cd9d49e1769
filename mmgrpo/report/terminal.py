"""Results as text tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def closing(summary: Mapping[str, Any]) -> str:
    """The results of a run, before and after, from its summary."""
    blind = {name: number(one["mean"]) for name, one in summary.get("blind", {}).items()}
    early = ", stopped early (eval.patience)" * ("stopped" in summary)
    lines = [f"{summary['steps']} optimizer steps in {summary['seconds']:.0f} s of training{early}"]
    if summary["skipped_steps"]:
        lines.append(f"{summary['skipped_steps']} steps had no decision to train and were skipped")
    if summary["nonfinite_steps"]:
        lines.append(f"{summary['nonfinite_steps']} steps had a loss or gradient that is not finite and were skipped")
    if alarms := summary.get("alarms", ()):
        lines.append(f"ALARM: {', '.join(map(title, alarms))} (in words above and in report.html)")
    if summary["eval"]:
        lines += comparison(summary["eval"], "reward", "blind" if blind else "", blind)
    for column, values in summary.get("groups", {}).items():
        for reward in summary["eval"]["difference"]:
            sides = {side: {value: one[side][reward] for value, one in values.items()} for side in summary["eval"]}
            lines += ["", *comparison(sides, f"{reward} by {column}")]
    for name, section in summary.get("extra", {}).items():
        lines += ["", *comparison(section, f"reward on {name}")]
    rates = {f"{rate} of {name}": one for rate in summary.get("rates", ()) for name, one in summary[rate].items()}
    if rates:
        sides = {side: {name: one[side] for name, one in rates.items()} for side in ("before", "after", "difference")}
        relative = {name: f"{one['relative']:+8.1%}" for name, one in rates.items() if one["relative"] is not None}
        lines += ["", *comparison(sides, "error rate (of all)", "relative", relative)]
    return "\n".join(lines)


def title(alarm: Mapping[str, Any]) -> str:
    """An alarm by its cause and the reward that it is about; in full it was printed when it was raised."""
    subject = alarm.get("subject") or alarm.get("held_out")
    return str(alarm.get("cause", alarm["kind"])) + (f" '{subject}'" if subject else "")


def comparison(
    sides: Mapping[str, Any], title: str, column: str = "", cells: Mapping[str, str] | None = None
) -> Iterator[str]:
    """The lines of a table: before, after and difference by name, and optionally one more column."""
    heading = f"{title:24} {'before':>8} {'after':>8} {'difference (95 %, paired)':>30}   prompts   {column}"
    yield heading.rstrip()
    for name, difference in sides["difference"].items():
        before, after = number(sides["before"][name]["mean"]), number(sides["after"][name]["mean"])
        cell, gain = (cells or {}).get(name, ""), interval(difference, "+")
        yield f"{name:24} {before} {after} {gain:>30}   {difference['n']:<7}{cell}".rstrip()


def number(value: float | None) -> str:
    """A number in eight columns; a dash where nothing could be scored."""
    return f"{value:8.3f}" if value is not None else f"{'–':>8}"


def interval(one: Mapping[str, Any], sign: str = "") -> str:
    """A mean and its interval; a dash without any prompt."""
    return f"{one['mean']:{sign}.3f} [{one['low']:{sign}.3f}, {one['high']:{sign}.3f}]" if one["n"] else "–"
