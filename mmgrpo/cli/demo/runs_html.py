"""The parts of the tab Runs that are mark-up; every value is escaped by the templates of mmgrpo/report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from mmgrpo.cli.demo.runs_read import Look, differences, heading
from mmgrpo.report.cards import Section, section
from mmgrpo.report.html import Table, correlation_table, error_rate_table, extra_tables, facts, reward_table, verdict
from mmgrpo.report.media import MediaFolder, Medium, contained, picture
from mmgrpo.report.render import render

MEDIA = 32 * 1024 * 1024
"""Bytes of images and audio of a run that are shown at once."""
PROMPTS = 6
"""Completions that are shown at once."""


@dataclass(frozen=True)
class Details:
    """A run with its facts and tables; without, if it cannot be read."""

    name: str
    look: Look
    facts: Mapping[str, str] = field(default_factory=dict)
    tables: Sequence[Table] = ()
    verdict: str = ""
    problem: str = ""

    @property
    def run(self) -> object:
        """What was read; None if there is a problem."""
        return None if self.problem else self.look.run


@dataclass
class Samples:
    """The samples of a run before training and at one moment."""

    name: str
    notes: list[str] = field(default_factory=list)
    pictures: dict[str, Medium] = field(default_factory=dict)
    prompt_files: list[Section] = field(default_factory=list)


def style() -> str:
    """The style of all parts, which is that of a report in the colours of the page."""
    return render("demo_style.html", {})


def details_html(looks: Sequence[Look]) -> str:
    """For every run its facts, alarms, and results before and after."""
    return render("demo_details.html", {"looks": [details(look) for look in looks]})


def details(look: Look) -> Details:
    """The facts and tables of a run; the files can be of any form, so that a table can be impossible."""
    if look.run is None:
        return Details(look.name, look, problem=look.problem)
    try:
        further = [error_rate_table(look.run), *extra_tables(look.run), correlation_table(look.run)]
        tables = [reward_table(look.run), *(table for table in further if table.rows)]
        return Details(look.name, look, facts(look.run), tables, verdict(look.run))
    except ValueError as error:
        return Details(look.name, look, problem=f"This run cannot be shown: {error}.")


def differences_html(looks: Sequence[Look]) -> str:
    """The settings that differ among the runs."""
    read = [look for look in looks if look.run]
    return render("demo_differences.html", {"names": [look.name for look in read], "rows": differences(looks)})


def samples_html(looks: Sequence[Look], moment: str) -> str:
    """The samples of every run at a moment, beside those before training."""
    return render("demo_samples.html", {"shown": [samples(look, moment) for look in looks] if moment else []})


def samples(look: Look, moment: str) -> Samples:
    """Samples of each prompt before training and at a moment; grids where a run has nothing else."""
    shown = Samples(look.name)
    if look.run is None or not contained(look.folder, "samples"):
        shown.notes.append(look.problem or "The samples are a link out of the run folder, which is not followed.")
        return shown
    folder = MediaFolder(look.folder / "samples", MEDIA)
    for when in dict.fromkeys(["before", moment]):
        for title, name in look.titles(when):
            if when in look.completions.get(name, {}):
                continue  # shown below, each sample of its own
            text = heading(when, name)
            shown.pictures[text] = picture(folder, look.run.samples[title], f"Samples of {look.name}, {text}")
    for name, moments in look.completions.items():
        chosen = {when: moments[when][:PROMPTS] for when in dict.fromkeys(["before", moment]) if when in moments}
        if moment in chosen:
            shown.prompt_files.append(section(folder, name, chosen))
    if moment not in look.moments():
        known = ", ".join(heading(when) for when in islice(sorted(look.moments()), 20))
        shown.notes.append(f"No samples: {heading(moment)}. " + (f"There are: {known}." if known else ""))
    return shown
