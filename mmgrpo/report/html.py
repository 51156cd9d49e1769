"""The report of a run: one HTML file that needs nothing else and shows what became better, and how surely.

It is made from what the run folder holds, so a run that was killed has one too:

    config.yaml              the configuration
    metrics.jsonl            a line per optimizer step
    evaluations/<title>.json values per held-out prompt: before, after, step-000050, ...
    samples/<title>.png      grids of samples, where they are pictures
    samples/<title>.jsonl    completions, where they are texts (mmgrpo/report/completions.py)
    summary.json             written at the end of a run only
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from mmgrpo.evaluation import HELDOUT, parted
from mmgrpo.report.completions import completions_html
from mmgrpo.report.plots import curve_figure, figure_png, sample_grid, series
from mmgrpo.report.statistics import bootstrap_mean
from mmgrpo.runtime.files import write_text
from mmgrpo.runtime.metrics import read_metrics

__all__ = ["curve_figure", "sample_grid", "write_report"]

ALWAYS = ("group/zero_std_fraction", "grad_norm")
"""Metrics that are plotted besides the rewards."""
IF_NOT_ZERO = ("kl", "clip/low", "clip/high")
"""Metrics that are plotted when they ever leave zero."""

BLIND = " Blind: the same prompts with every picture and clip blank; what is left was guessed and not seen."
WHOLE = (
    "All errors divided by all units (words of the references, or characters); less is better. Intervals are 95 % "
    "bootstrap intervals over prompts, the difference is paired; it is no mean of the prompts' own rates."
)
SIDES = ("before", "after", "difference")
SUPERVISED = " Supervised instead: the same model after as many seconds more of its supervised training."

Means = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class RunFolder:
    """What was found; every part may be missing."""

    name: str
    config_text: str
    config: dict[str, Any]
    metrics: list[dict[str, Any]]
    summary: dict[str, Any]
    samples: dict[str, Path]
    rates: list[dict[str, Any]]
    """``step`` and the held-out error rates of every evaluation, in order of steps."""
    evaluation: dict[str, Means]
    """``before``, ``after``, ``difference`` to reward name to mean, low, high, n."""

    @property
    def finished(self) -> bool:
        return bool(self.summary)

    @property
    def last_step(self) -> int:
        return self.metrics[-1]["step"] if self.metrics else 0


def write_report(folder: str | Path) -> Path:
    """Write ``report.html`` into a run folder. Parts that the run did not come to are named as missing."""
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: there is no such run folder")
    run = read_run(folder)
    answers = completions_html(folder / "samples")
    parts = [_header(run), _results(run), _curves(run), _samples(run), answers, _numbers(run), _config(run)]
    path = folder / "report.html"
    write_text(path, page(run.name, parts))
    return path


def page(title: str, sections: Sequence[str]) -> str:
    """A whole HTML page that needs nothing else; the title is escaped, the sections are HTML already."""
    style = Path(__file__).with_name("report.css").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(section for section in sections if section)
        + "\n</main>\n</body>\n</html>\n"
    )


def read_run(folder: Path) -> RunFolder:
    """Read what a run folder holds."""
    config_text = _text(folder / "config.yaml")
    config = yaml.safe_load(config_text) or {}
    summary = json.loads(_text(folder / "summary.json") or "{}")
    metrics = read_metrics(folder / "metrics.jsonl") if (folder / "metrics.jsonl").is_file() else []
    order = {"before": (0, ""), "after": (2, "")}
    found = sorted((folder / "samples").glob("*.png"), key=lambda path: order.get(path.stem, (1, path.stem)))
    return RunFolder(
        name=str(config.get("name") or folder.resolve().name),
        config_text=config_text,
        config=config,
        metrics=metrics,
        summary=summary,
        samples={path.stem: path for path in found},
        rates=_rates_so_far(folder / "evaluations"),
        evaluation=summary.get("eval") or _evaluated_so_far(folder / "evaluations"),
    )


def _evaluated_so_far(folder: Path) -> dict[str, Means]:
    """Intervals from the values that a run wrote before it ended early."""
    found: dict[str, Means] = {}
    for title in ("before", "after"):
        if text := _text(folder / f"{title}.json"):
            scored = {
                name: [value for value in values if value is not None and np.isfinite(value)]
                for name, values in json.loads(text)["values"].items()
            }
            found[title] = {name: bootstrap_mean(values).as_dict() for name, values in scored.items() if values}
    return found


def _rates_so_far(folder: Path) -> list[dict[str, Any]]:
    """Held-out error rates of whole files, at every step at which they were counted."""
    found: dict[int, dict[str, float]] = {}
    for path in folder.glob("*.json"):
        moment, name = parted(path.stem)
        if name != HELDOUT or not (moment in SIDES or moment.startswith("step-")):
            continue
        told = json.loads(path.read_text("utf-8"))
        for rate, counted in told.get("counts", {}).items():
            if units := np.nansum(counted["units"]):
                found.setdefault(told["step"], {})[rate] = float(np.nansum(counted["errors"]) / units)
    return [{"step": step, **found[step]} for step in sorted(found)]


def _header(run: RunFolder) -> str:
    steps = run.config.get("steps")
    facts = {
        "model": run.summary.get("family") or _inner(run.config, "model", "family"),
        "algorithm": run.summary.get("preset") or _inner(run.config, "algorithm", "preset"),
        "optimizer steps": f"{run.last_step} of {steps}" if steps else run.last_step,
        "training time": _duration(run),
        "learning rate": _inner(run.config, "optim", "lr"),
        "seed": run.config.get("seed"),
        "first |ratio − 1|": _largest(run, "ratio/first_minus_one"),
    }
    rows = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(str(value))}</dd></div>"
        for name, value in facts.items()
        if value not in (None, "")
    )
    notice = ""
    if not run.finished:
        reached = f"Its last recorded step is {run.last_step}" if run.metrics else "It recorded no step"
        notice = (
            f'<p class="notice">This run has not finished (there is no summary.json). {reached}'
            f"{f' of {steps}' if steps else ''}; what follows is what it wrote until then.</p>"
        )
    modality = run.summary.get("modality", "")
    return (
        f'<header><h1>{escape(run.name)}</h1><p class="soft">Group-relative reinforcement learning'
        f"{f', {escape(str(modality))}' if modality else ''}</p>{notice}<dl>{rows}</dl></header>"
    )


def _results(run: RunFolder) -> str:
    title = "<section><h2>Held-out prompts, before and after</h2>"
    if not run.evaluation:
        return f'{title}<p class="soft">This run was not evaluated.</p></section>{_further(run)}'
    before, after, difference = (run.evaluation.get(key, {}) for key in ("before", "after", "difference"))
    blind = run.summary.get("blind", {})
    supervised = run.summary.get("supervised", {}).get("after", {})
    names = dict.fromkeys([*before, *after])
    rows = []
    for name in names:
        cells = [_interval(before.get(name)), _interval(after.get(name)), _difference(difference.get(name))]
        cells += [_interval(blind.get(name))] if blind else []
        cells += [_interval(supervised.get(name))] if supervised else []
        count = (difference.get(name) or after.get(name) or before.get(name) or {}).get("n", "–")
        rows.append(f"<tr><td>{escape(name)}</td>{''.join(f'<td>{cell}</td>' for cell in cells)}<td>{count}</td></tr>")
    return (
        f'{title}<div class="wide"><table><thead><tr><th>reward</th><th>before</th><th>after</th><th>difference</th>'
        f"{'<th>blind, after</th>' if blind else ''}{'<th>supervised instead</th>' if supervised else ''}"
        f"<th>prompts</th></tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
        '<p class="soft"><small>Means over prompts with 95 % bootstrap intervals; the difference is paired prompt by '
        "prompt, and coloured where its interval leaves out zero."
        f"{BLIND if blind else ''}{SUPERVISED if supervised else ''}</small></p></section>{_further(run)}"
    )


def _further(run: RunFolder) -> str:
    """Error rates of whole files, and the rewards on further files of prompts."""
    parts = []
    rates = [(rate, name, one) for rate in run.summary.get("rates", ()) for name, one in run.summary[rate].items()]
    if rates:
        rows = "".join(
            f"<tr><td>{escape(rate)}, {escape(name)}</td><td>{_interval(one['before'])}</td>"
            f"<td>{_interval(one['after'])}</td><td>{_difference(one['difference'], less_is_better=True)}</td>"
            f"<td>{_share(one['relative'])}</td><td>{one['units']:.0f}</td><td>{one['difference']['n']}</td></tr>"
            for rate, name, one in rates
        )
        parts.append(
            f"<section><h2>Error rates of whole files</h2>{_table([*SIDES, 'relative', 'units', 'prompts'], rows)}"
            f'<p class="soft"><small>{WHOLE}</small></p></section>'
        )
    for name, found in run.summary.get("extra", {}).items():
        rows = "".join(
            f"<tr><td>{escape(reward)}</td><td>{_interval(found['before'][reward])}</td>"
            f"<td>{_interval(found['after'][reward])}</td><td>{_difference(one)}</td><td>{one['n']}</td></tr>"
            for reward, one in found["difference"].items()
        )
        heading = f"Prompts of {escape(name)}, before and after"
        parts.append(f"<section><h2>{heading}</h2>{_table([*SIDES, 'prompts'], rows)}</section>")
    return "".join(parts)


def _table(columns: Sequence[str], rows: str) -> str:
    heads = "".join(f"<th>{column}</th>" for column in ["", *columns])
    return f'<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>'


def _curves(run: RunFolder) -> str:
    if not run.metrics:
        return '<section><h2>Training</h2><p class="soft">No optimizer step was recorded.</p></section>'
    names = list(dict.fromkeys(name for row in run.metrics for name in row))
    keys = [name for name in names if name.startswith("reward/") and name.endswith("/mean")]
    keys += [name for name in ALWAYS if name in names]
    keys += [name for name in IF_NOT_ZERO if np.nan_to_num(series(run.metrics, name)[1]).any()]
    keys = keys or [name for name in names if name == "loss"]
    # A picture each, so that a narrow window shows one below the other.
    pictures = [_embedded(figure_png(curve_figure(run.metrics, [key])), f"Curve of {key}") for key in keys]
    if len(run.rates) > 2:  # two points are in the table already
        rates = [{f"held-out {n}" if n != "step" else n: value for n, value in row.items()} for row in run.rates]
        names = list(dict.fromkeys(name for row in rates for name in row if name != "step"))
        pictures = [_embedded(figure_png(curve_figure(rates, [n])), f"Curve of {n}") for n in names] + pictures
    if not pictures:
        return ""
    return (
        '<section><h2>Training</h2><p class="soft"><small>Over optimizer steps; thin: every step, thick: running '
        f'mean.</small></p><div class="curves">{"".join(pictures)}</div></section>'
    )


def _samples(run: RunFolder) -> str:
    if not run.samples:
        return ""
    ends = {title: path for title, path in run.samples.items() if title in ("before", "after")}
    further = {title: path for title, path in run.samples.items() if parted(title)[1] != HELDOUT}
    between = {title: path for title, path in run.samples.items() if title not in {**ends, **further}}
    shown = f'<div class="pair">{_figures(ends)}</div>' if ends else ""
    for summary, pictures in (("prompts of further files", further), ("during the run", between)):
        if pictures:
            shown += f'<details><summary>{summary}</summary><div class="pair">{_figures(pictures)}</div></details>'
    return f'<section class="samples"><h2>Samples of held-out prompts</h2>{shown}</section>'


def _figures(samples: Mapping[str, Path]) -> str:
    return "".join(
        f"<figure><figcaption>{escape(title)}</figcaption>{_embedded(path.read_bytes(), f'Samples, {title}')}</figure>"
        for title, path in samples.items()
    )


def _numbers(run: RunFolder) -> str:
    """First and last values of every metric: means of a tenth of the run (at least one step)."""
    names = list(dict.fromkeys(name for row in run.metrics for name in row if name != "step"))
    rows = []
    for name in names:
        if any(not isinstance(row.get(name), int | float | None) for row in run.metrics):
            continue
        values = series(run.metrics, name)[1]
        tenth = max(1, len(values) // 10)
        ends = [_mean(values[:tenth]), _mean(values[-tenth:])]
        rows.append(f"<tr><td>{escape(name)}</td>{''.join(f'<td>{end}</td>' for end in ends)}</tr>")
    if not rows:
        return ""
    return (
        '<section><details><summary>all metrics, first and last tenth of the run</summary><div class="wide"><table>'
        "<thead><tr><th>metric</th><th>first</th><th>last</th></tr></thead><tbody>"
        f"{''.join(rows)}</tbody></table></div></details></section>"
    )


def _config(run: RunFolder) -> str:
    text = escape(run.config_text) or "config.yaml is missing"
    return f"<section><details><summary>configuration</summary><pre>{text}</pre></details></section>"


def _embedded(png: bytes, description: str) -> str:
    return f'<img alt="{escape(description)}" src="data:image/png;base64,{b64encode(png).decode()}">'


def _interval(found: Mapping[str, float] | None) -> str:
    if not found:
        return "–"
    return f"{found['mean']:.3f} <small>{found['low']:.3f} to {found['high']:.3f}</small>"


def _difference(found: Mapping[str, float] | None, less_is_better: bool = False) -> str:
    if not found:
        return "–"
    kinds = ("bad", "good") if less_is_better else ("good", "bad")
    kind = kinds[0] if found["low"] > 0 else kinds[1] if found["high"] < 0 else ""
    return (
        f'<span class="{kind}">{_signed(found["mean"])}</span> '
        f"<small>{_signed(found['low'])} to {_signed(found['high'])}</small>"
    )


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:+.1%}".replace("-", "\N{MINUS SIGN}")


def _signed(value: float) -> str:
    return f"{value:+.3f}".replace("-", "\N{MINUS SIGN}")


def _mean(values: Sequence[float] | np.ndarray) -> str:
    finite = np.asarray(values)[np.isfinite(values)]
    return f"{finite.mean():.4g}" if finite.size else "–"


def _largest(run: RunFolder, name: str) -> str:
    values = series(run.metrics, name)[1]
    return f"{np.nanmax(values):.1e}" if np.isfinite(values).any() else ""


def _duration(run: RunFolder) -> str:
    last = run.metrics[-1].get("seconds") if run.metrics else None
    seconds = run.summary.get("seconds", last)
    if not isinstance(seconds, int | float):
        return ""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _inner(config: Mapping[str, Any], section: str, key: str) -> Any:
    inner = config.get(section)
    return inner.get(key) if isinstance(inner, Mapping) else None


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""
