"""What a run starts from: a policy, and prompts of files or from Python."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from mmgrpo.config.plugins import EMBEDDED, locate
from mmgrpo.config.settings import Config
from mmgrpo.data.columns import columns_for
from mmgrpo.data.media import Skipped
from mmgrpo.data.prompts import load_prompts
from mmgrpo.data.rows import as_prompts
from mmgrpo.data.splits import Splits, read_splits
from mmgrpo.data.streaming import in_blocks
from mmgrpo.data.unread import keys_of
from mmgrpo.evaluation import members
from mmgrpo.family import Family
from mmgrpo.scoring.fitting import refuse_rows
from mmgrpo.types import Policy, Prompt


@dataclass(frozen=True)
class RunInputs:
    """The policy and the prompts of a run."""

    policy: Policy
    splits: Splits
    skipped: Sequence[Skipped] = ()
    keys: Mapping[str, int] = field(default_factory=dict)
    """Keys in ``meta`` of the rows that are no embedded ones, with the number of rows that have a value there."""
    rows: int = 0
    """The number of these rows."""


@dataclass(frozen=True)
class RunPrompts:
    """The prompts of a run before its policy is loaded."""

    splits: Splits
    skipped: list[Skipped]
    keys: Mapping[str, int]
    """See ``RunInputs``."""
    rows: int


def load(
    config: Config,
    owner: Family | None,
    make: Callable[[Sequence[Prompt]], Policy],
    rows: Mapping[str, Any] | None = None,
) -> RunInputs:
    """The prompts of a run, and the policy that ``make`` makes for them.

    ``rows`` are prompts that lie in no file, under the names ``prompts`` and ``heldout``.
    """
    read = read_prompts(config, owner, rows)
    skipped = list(read.skipped)
    policy = make(read.splits.every())

    def accept(prompts: Sequence[Prompt]) -> Sequence[Prompt]:
        if owner is None:
            return prompts
        accepted, unfit = in_blocks(prompts, partial(owner.accept, config, policy))
        skipped.extend(unfit)
        return accepted

    return RunInputs(policy, read.splits.map(accept), skipped, read.keys, read.rows)


def read_prompts(config: Config, owner: Family | None, rows: Mapping[str, Any] | None = None) -> RunPrompts:
    """The prompts of a run, of its files or of ``rows`` (``load``); nothing else is loaded for it."""
    skipped: list[Skipped] = []
    keys, sizes = Counter[str](), list[int]()
    rows = rows or {}

    def read(path: str) -> Sequence[Prompt]:
        columns, given = columns_for(path, config.data.columns), path in rows
        prompts: Sequence[Prompt] = as_prompts(rows[path], path, columns) if given else []
        if owner is None:
            prompts = prompts if given else load_prompts(locate(path), columns=columns)
        else:
            prompts, unreadable = owner.readable(config, prompts, path) if given else owner.read(config, path)
            skipped.extend(unreadable)
        if not path.startswith(EMBEDDED):
            keys.update(keys_of(prompts))
            sizes.append(len(prompts))
        return prompts

    data, evaluation = config.data, config.eval
    train = "prompts" if "prompts" in rows else data.train
    heldout = "heldout" if "heldout" in rows else data.heldout
    files = ("", ()) if evaluation.skip else (heldout, evaluation.extra)
    splits = read_splits(read, [train, *data.extra_train], *files, limit=evaluation.prompts)
    outputs, allowed = (owner.sections.outputs if owner else ""), float(vars(data).get("skip_limit", 0.0))
    named = {"data.train": splits.train, "data.heldout": splits.heldout, **splits.extra}
    notes = refuse_rows({name: prompts for name, prompts in named.items() if prompts}, outputs, allowed)
    if evaluation.groups and splits.heldout:
        columns = members(splits.heldout)
        lacking = ", ".join(f"'{column}'" for column in evaluation.groups if column not in columns)
        notes = [*notes, f"eval.groups: no held-out row has a text or number in {lacking}"] if lacking else notes
    if notes and os.environ.get("RANK", "0") == "0":  # set by launchers; only the first process prints
        print("\n".join(notes), flush=True)
    return RunPrompts(splits, skipped, keys, sum(sizes))
