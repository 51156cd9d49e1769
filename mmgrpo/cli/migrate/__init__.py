"""Read the configuration of another project and print it as a recipe of mmgrpo.

    mmgrpo migrate trl config.yaml > recipe.yaml                        # a file of 'trl grpo --config'
    mmgrpo migrate trl train_grpo.py --processes 8 -- --learning_rate 2e-6     # a script; flags behind -- override it
    mmgrpo migrate ms_swift train.sh --rows 12000                       # a shell script with 'swift rlhf'
    mmgrpo migrate easyr1 examples/config.yaml -- worker.rollout.n=8    # overrides as EasyR1 and verl write them
    mmgrpo migrate flow_grpo config/grpo.py:general_ocr_sd3_4gpu --processes 4
    mmgrpo migrate dance_grpo scripts/finetune/finetune_flux_grpo.sh
    mmgrpo train --config recipe.yaml --dry-run                         # what the recipe would cost

Every setting of the input appears in the recipe: as a setting of mmgrpo with its origin in a comment; as a value ??? or
a line of the section 'undecided', which 'mmgrpo train' refuses until you decide it; or, where it does not affect
training, in the comment at the top. Defaults that differ from those of mmgrpo are written out. Nothing is executed:
shell scripts and Python files are read as text. docs/migration.md lists all settings and data columns side by side.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from mmgrpo.cli.options import options, words
from mmgrpo.config.ranges import ANY_TEXT, COUNT_OR_ZERO, within


@dataclass
class Args:
    """The project, and what its configuration does not say."""

    project: Annotated[tyro.conf.Positional[str], ANY_TEXT]
    """trl, ms_swift, easyr1, verl, flow_grpo or dance_grpo."""
    file: Annotated[tyro.conf.Positional[str], ANY_TEXT, tyro.conf.arg(help_behavior_hint="(default: flags only)")] = ""
    """Its configuration: .yaml, .json, .sh, .py of trl, or .py:FUNCTION of flow_grpo. Flags stand behind --."""
    family: Annotated[str, ANY_TEXT, tyro.conf.arg(help_behavior_hint="(default: by the name of the model)")] = ""
    """Our model family; 'mmgrpo families' lists them."""
    processes: Annotated[int, within("[0, 1e6]")] = 0
    """Number of processes (GPUs) that theirs runs on; 0: as its launcher says, else 1."""
    rows: Annotated[int, COUNT_OR_ZERO] = 0
    """Number of training prompts, from which epochs become steps; 0: unknown."""
    output: Annotated[str, ANY_TEXT, tyro.conf.arg(help_behavior_hint="(default: standard output)")] = ""
    """File to write the recipe to."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the recipe; what must be decided first goes to standard error too."""
    given = words(arguments)
    end = given.index("--") if "--" in given else len(given)
    args = options(Args, given[:end], __doc__)
    from mmgrpo.cli.migrate.recipe import recipe_of
    from mmgrpo.files import write_text

    text, warnings = recipe_of(
        args.project, args.file, given[end + 1 :], args.family, processes=args.processes, rows=args.rows
    )
    if args.output:
        write_text(Path(args.output), text)
        print(f"written: {args.output}")
    else:
        print(text, end="")
    for warning in warnings:
        print(f"(!) {warning}", file=sys.stderr)
