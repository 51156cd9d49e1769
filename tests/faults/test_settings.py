"""Wrong, huge, negative, non-finite, empty and misspelt values in every setting, from files and from the command line.

A trial ends in one line that names the key, or in settings that lie in their declared ranges: never in an error of a
built-in or of a library, and not in a hang. ``MMGRPO_FAULTS=full`` makes all trials; otherwise a few are drawn.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import io
import math
import os
import random
import typing
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Annotated, Any

import pytest
import yaml

import benchmarks
from mmgrpo.cli import bench, check_data
from mmgrpo.cli.errors import is_user_error
from mmgrpo.cli.evaluate import Evaluate
from mmgrpo.cli.sample import Sample
from mmgrpo.cli.source import Source, read_source, with_sections
from mmgrpo.cli.train import arithmetic, read
from mmgrpo.config.ranges import check_ranges, declarations, within
from mmgrpo.config.settings import Algorithm, Optim, Run, config_class
from mmgrpo.family import families

FULL = os.environ.get("MMGRPO_FAULTS") == "full"

NUMBERS = [0, -1, 2, 10**9, 10**9 + 1, 2**63, 10**400, -(10**30), 0.5, 1e300, -1e-300, 5e-324]
NUMBERS += [math.nan, math.inf, -math.inf, "1e999", "nan", "many", "", True, None, [], [1], {"a": 1}]
TEXTS = ["", "cdua", "x" * 5000, "a\0b", "\ud800", "../..", "-x", "x(", "x(a=nan)", "x(a=1e999)", "\n", "é" * 300]
TEXTS += [3, 0.5, math.nan, True, None, [], ["a"], {"a": 1}, 10**30]
LISTS = [[], "text", ["cdua"], ["x("], [""], ["x" * 5000], ["\ud800"], [None], [3], [["a"]], {}, None, 3, math.nan]
MAPPINGS: list[Any] = [{}, None, 3, "text", [], ["a"], {"a": math.nan}, {"a": math.inf}, {"a": "b\0"}, {"a": "\ud800"}]
MAPPINGS += [
    {"a\0": 1},
    {"\ud800": 1},
    {3: 1},
    {"a": None},
    {"a": [1]},
    {"a": {"b": 1}},
    {"a": 10**400},
    {"a": "x" * 5000},
    {"a\n": math.nan},
]
SWITCHES = [1, 0, "yes please", "", None, [], 2.5, math.nan]
SECTIONS = [None, 3, "text", [], [{}], True, math.nan]
WITHOUT_MODEL = ("image_text", "smolvlm", "qwen_omni", "qwen_audio", "audio_text", "codec_speech", "ctc", "var")
"""Families without an embedded model, whose path must be named; it is not read here."""
OPTIONS: dict[str, type[Source]] = {"sample": Sample, "evaluate": Evaluate}
"""Commands that use a model to their options, without those of a family."""


@dataclass(frozen=True)
class Trial:
    """One value of one field."""

    key: tuple[str, ...]
    value: Any

    @property
    def file(self) -> str:
        """As YAML."""
        section: Any = self.value
        for name in reversed(self.key):
            section = {name: section}
        return yaml.safe_dump(section)

    @property
    def option(self) -> list[str]:
        """On a command line."""
        name = "--" + ".".join(self.key).replace("_", "-")
        return [name, *map(str, self.value)] if isinstance(self.value, list) else [f"{name}={self.value}"]

    @property
    def is_flat(self) -> bool:
        """Whether a command line can express it."""
        items = self.value if isinstance(self.value, list) else [self.value]
        return all(isinstance(item, int | float | str) and "\0" not in str(item) for item in items)


def trials(kind: type, without: tuple[type, ...] = (), prefix: tuple[str, ...] = ()) -> Iterator[Trial]:
    """All trials of a dataclass and of its sections, ``without`` the fields of some classes."""
    example = kind(**{f.name: "x" for f in fields(kind) if f.default is f.default_factory})
    known = {f.name for one in without if issubclass(kind, one) for f in fields(one)}
    for name, (expected, _) in declarations(kind).items():
        if name in known or expected in without:
            continue
        yield from (Trial((*prefix, name), value) for value in values(expected, getattr(example, name)))
        if dataclasses.is_dataclass(expected):
            yield from trials(expected, without, (*prefix, name))  # type: ignore[arg-type]


def values(kind: Any, default: Any) -> list[Any]:
    """Values to try in a field; in a field of text also its default, spoilt."""
    if dataclasses.is_dataclass(kind):
        return SECTIONS
    if typing.get_origin(kind) is dict:
        return MAPPINGS
    if kind in (int, float, bool):
        return SWITCHES if kind is bool else NUMBERS
    text = default if kind is str else str((*default, "x")[0])
    spoilt = [text[1::-1] + text[2:], text.replace("(", "(no_such=1, "), text.replace("=", "=-1e999, a=")]
    return TEXTS + spoilt if kind is str else LISTS + [[one] for one in spoilt]


def drawn(every: Iterable[Trial], count: int, full: int = 10**9) -> list[Trial]:
    """``count`` of the trials in the short form, ``full`` in the long one."""
    every = list(every)
    return random.Random(len(every)).sample(every, min(full if FULL else count, len(every)))


def fault(trial: Trial, run: Callable[[Trial], Any]) -> str:
    """What went wrong in a trial; empty where it ended well."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed), contextlib.redirect_stdout(printed):
            settings = run(trial)
    except SystemExit as end:
        return f"status {end.code}: {printed.getvalue()}"
    except Exception as error:
        if not is_user_error(error):
            return f"{type(error).__name__}: {error}"
        unread = "unrecognized options" in str(error)  # which is what a value of a switch is
        named = names(trial, str(error)) or unread or (isinstance(error, OSError) and error.filename is not None)
        return "" if named and "\n" not in str(error) else f"says: {error}"
    try:
        check_ranges(settings)
    except ValueError as error:
        return f"accepted: {error}"
    return ""


def names(trial: Trial, text: str) -> bool:
    """Whether an error names the key, however it is broken into lines."""
    return trial.key[-1] in "".join(text.split()).replace("-", "_")


def faults(chosen: Iterable[Trial], run: Callable[[Trial], Any]) -> list[str]:
    """All trials that went wrong."""
    ends = ((trial, fault(trial, run)) for trial in chosen)
    return [f"{'.'.join(trial.key)} = {str(trial.value)[:60]!r}: {end[:300]}" for trial, end in ends if end]


def of_family(name: str) -> list[Trial]:
    """The trials of the settings of a family; of what all families share, with one of them only."""
    return list(trials(config_class(families()[name].sections), () if name == "sd3" else (Run, Algorithm, Optim)))


def settings(name: str, trial: Trial, *arguments: str) -> Any:
    """The settings of ``mmgrpo train``, read and checked up to where something would be loaded."""
    given = ["--model.family", name] if trial.key != ("model", "family") else []
    given += ["--model.path", "a/b"] if name in WITHOUT_MODEL and trial.key != ("model", "path") else []
    config = read([*given, *arguments], "")
    arithmetic(config)
    return config


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", families())
def test_a_value_in_a_file_is_right_or_refused_in_one_line_that_names_its_key(name, tmp_path):
    path = tmp_path / "recipe.yaml"

    def run(trial: Trial) -> Any:
        path.write_text(trial.file, encoding="utf-8")
        return settings(name, trial, "--config", str(path))

    assert faults(drawn(of_family(name), 8), run) == []


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", families())
def test_an_option_is_right_or_refused_in_one_line_that_names_it(name):
    flat = [trial for trial in of_family(name) if trial.is_flat and trial.value not in ([], "")]
    whole = config_class(families()[name].sections)
    leaves = [trial for trial in flat if not dataclasses.is_dataclass(trial_kind(whole, trial))]
    assert faults(drawn(leaves, 2, full=300), lambda trial: settings(name, trial, *trial.option)) == []


def trial_kind(kind: Any, trial: Trial) -> Any:
    """The type of the field of a trial of the settings of this kind."""
    for part in trial.key:
        kind = declarations(kind)[part][0]
    return kind


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("command", OPTIONS)
def test_options_of_commands_that_use_a_model_are_right_or_refused(command):
    kind = OPTIONS[command]
    flat = [trial for trial in trials(kind) if trial.is_flat]
    run = lambda trial: read_source(kind, trial.option, "")[0]  # noqa: E731
    assert faults(drawn(flat, 15), run) == []


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("package", "name"),
    [*((bench, name) for name in bench.BENCHMARKS), *((benchmarks, name) for name in benchmarks.PROGRAMS)],
)
def test_options_of_benchmarks_are_right_or_refused(package, name, monkeypatch):
    module = importlib.import_module(f"{package.__name__}.{name}")
    read_args: list[Any] = []
    monkeypatch.setattr(module, "run", lambda args, machine, command: read_args.append(args))
    monkeypatch.setattr("torch.set_num_threads", lambda threads: None)

    def run(trial: Trial) -> Any:
        package.main([name, *trial.option])
        return read_args.pop()

    assert faults(drawn((trial for trial in trials(module.Args) if trial.is_flat), 10), run) == []


@pytest.mark.timeout(3600)
def test_options_of_check_data_are_right_or_refused(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "a"}\n')
    flat = [trial for trial in trials(check_data.Args) if trial.is_flat and trial.key[0] not in ("data", "model")]

    def run(trial: Trial) -> Any:
        with contextlib.chdir(tmp_path):
            check_data.main([str(path), *trial.option])
        return check_data.Args("x")

    assert faults(drawn(flat, 15), run) == []


def undeclared(kind: type, prefix: str = "") -> list[str]:
    """Fields without a range, other than switches and sections."""
    found: list[str] = []
    for name, (expected, declared) in declarations(kind).items():
        if dataclasses.is_dataclass(expected):
            found += undeclared(expected, f"{prefix}{name}.")  # type: ignore[arg-type]
        elif expected is not bool and declared is None:
            found.append(prefix + name)
    return found


@pytest.mark.parametrize("name", families())
def test_every_setting_has_a_range_in_which_its_default_lies(name):
    sections = families()[name].sections
    kinds = [config_class(sections), *(with_sections(kind, sections) for kind in OPTIONS.values())]
    assert [undeclared(kind) for kind in kinds] == [[], [], []]
    for kind in kinds:
        check_ranges(kind())


def test_every_option_of_benchmarks_and_of_check_data_has_a_range_in_which_its_default_lies():
    names = [f"mmgrpo.cli.bench.{name}" for name in bench.BENCHMARKS]
    names += [f"benchmarks.{name}" for name in benchmarks.PROGRAMS]
    for module in (check_data, *map(importlib.import_module, names)):
        assert undeclared(module.Args) == []
        check_ranges(module.Args("x") if module is check_data else module.Args())


def test_a_new_field_without_a_range_is_seen_and_one_that_changes_a_default_keeps_its_range():
    @dataclass
    class Parent:
        count: Annotated[int, within("[1, 2]")] = 1

    @dataclass
    class Child(Parent):
        count: int = 2
        new: int = 0

    assert undeclared(Child) == ["new"]
    with pytest.raises(ValueError, match=r"count.*3.*\[1, 2\]"):
        check_ranges(Child(3))
