"""The words of a command line, and the options that they set."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import Any, TypeVar

from mmgrpo.config.advice import usage_errors
from mmgrpo.config.ranges import check_ranges
from mmgrpo.config.reading import take_option

C = TypeVar("C")


def words(arguments: Sequence[str] | None) -> list[str]:
    """The given words, else those of the process."""
    return list(sys.argv[1:] if arguments is None else arguments)


def run_first(arguments: Sequence[str] | None) -> list[str]:
    """The words of a command whose first one is a run folder, which may be named by --run as in other commands."""
    run, rest = take_option(words(arguments), "--run")
    return [*([run] if run else []), *rest]


@contextmanager
def json_output(asked: bool) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """A ``with`` block that yields what writes a result. Where JSON is ``asked`` for it is all that standard output
    has, for what else the block prints goes to standard error; otherwise nothing is written."""
    if not asked:
        yield lambda result: None
        return
    output = sys.stdout

    def write(result: Mapping[str, Any]) -> None:
        from mmgrpo.report.compare import plain

        print(json.dumps(plain(result), indent=1, ensure_ascii=False, allow_nan=False), file=output, flush=True)

    with redirect_stdout(sys.stderr):
        yield write


def options(kind: type[C], arguments: Sequence[str] | None, about: Any, program: str | None = None) -> C:
    """The options of a command that also takes positional words; ``about`` is the beginning of its help, and
    ``program`` its name there.

    ValueError for what is no option and for a value outside of its range; --help ends the process.
    """
    import tyro

    with usage_errors():
        chosen = tyro.cli(kind, args=words(arguments), description=str(about), prog=program)
    check_ranges(chosen, "the command line", "--", option=True)
    return chosen
