"""Faults in the formulas of papers, each written by hand, and the one test that has to turn red.

    python -m tests.mutants.planted                 # all of tests/mutants/planted.yaml; exit code 1 where one lives
    python -m tests.mutants.planted ppo_max salt    # those of some papers

A record of the table stands under the id of the paper:

    salt:
    - file: mmgrpo/advantages/credit.py
      text: merged.mean()           what stands there, once in the file, as it is written
      becomes: merged.sum()
      test: unit/advantages/test_turn_credit.py::test_what_good_and_bad_samples_do_alike_is_not_credited

Works in a copy of the repository in a temporary folder, as the mutants do that are drawn.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mmgrpo.config.records import records
from tests import ROOT
from tests.mutants.__main__ import Worker, copied
from tests.mutants.operators import Mutant

TABLE = Path(__file__).with_name("planted.yaml")
SECONDS = 60.0
"""Of one test."""


@dataclass(frozen=True)
class Planted:
    """A fault, the paper whose formula it breaks, and the test that names the formula."""

    paper: str
    mutant: Mutant
    test: str


def planted(path: Path = TABLE) -> list[Planted]:
    """All faults of a table; ValueError where a text does not stand in its file, or stands there more than once."""
    found = []
    for paper, faults in records(path).items():
        for fault in faults:
            file, text = fault["file"], fault["text"].encode()
            before, *after = (ROOT / file).read_bytes().split(text)
            if len(after) != 1:
                raise ValueError(
                    f"{path.name}: {paper}: '{fault['text']}' stands {len(after)} times in {file}, expected 1"
                )
            start, line = len(before), before.count(b"\n") + 1
            mutant = Mutant(file, line, "planted", start, start + len(text), fault["becomes"], fault["text"])
            found.append(Planted(paper, mutant, f"tests/{fault['test']}"))
    return found


def living(faults: Sequence[Planted]) -> list[Planted]:
    """The faults that their tests do not see; RuntimeError where a test fails without a fault, or is not there."""
    tests = {one.test: SECONDS for one in faults}
    with copied() as copy:
        worker = Worker(copy, sorted({name.split("::")[0] for name in tests}), ["torch", "diffusers", "transformers"])
        broken = worker.cold.ask({"tests": tests, "limit": 3600, "keep_going": True})["failed"]
        if broken:
            raise RuntimeError(f"without a fault: {', '.join(broken)}")
        found = []
        for one in faults:
            text = one.mutant.text((copy / one.mutant.file).read_bytes()).hex()
            job = {"file": one.mutant.file, "text": text, "tests": {one.test: SECONDS}, "limit": 60 + SECONDS}
            killer, seconds = worker.killer(job, twice=True)
            word = "found" if killer else "LIVES"
            print(f"{word} {seconds:.1f}s {one.paper} {one.mutant.file}:{one.mutant.line} {one.test}", flush=True)
            found += [] if killer else [one]
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("papers", nargs="*", help="ids of papers; without any, all")
    parser.add_argument("--table", type=Path, default=TABLE)
    options = parser.parse_args()
    table = planted(options.table)
    if unknown := {*options.papers} - {one.paper for one in table}:
        parser.error(f"{options.table} has no fault of {', '.join(sorted(unknown))}")
    faults = [one for one in table if not options.papers or one.paper in options.papers]
    alive = living(faults)
    print(f"{len(faults)} faults in the formulas of {len({one.paper for one in faults})} papers, {len(alive)} live")
    sys.exit(bool(alive))


if __name__ == "__main__":
    main()
