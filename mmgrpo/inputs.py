"""What a run starts from: its policy, its prompts of files or from Python, and the keys of rows that nothing reads."""

from __future__ import annotations

import inspect
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any

from mmgrpo.config import plugins
from mmgrpo.config.needs import HELDOUT, IMAGES, MEDIA, REFERENCE, VIDEOS, refuse_moot
from mmgrpo.config.plugins import EMBEDDED, definition, locate
from mmgrpo.config.reading import usual
from mmgrpo.config.registry import parse
from mmgrpo.config.settings import Config
from mmgrpo.data.columns import columns_for
from mmgrpo.data.media import Skipped
from mmgrpo.data.prompts import load_prompts
from mmgrpo.data.rows import as_prompts
from mmgrpo.data.splits import Splits, read_splits
from mmgrpo.data.streaming import in_blocks
from mmgrpo.data.unread import HINT, in_words, keys_of, keys_read, named_in, unread, words_of
from mmgrpo.evaluation import members
from mmgrpo.family import Family
from mmgrpo.rewards import entries
from mmgrpo.runtime.networks import REFERENCE_NETWORK
from mmgrpo.scoring import Scorer, trl
from mmgrpo.scoring.fitting import refuse_rows
from mmgrpo.types import Policy, Prompt
from mmgrpo.update import LossRecipe


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
    inherited: Collection[str] = (),
) -> RunInputs:
    """The prompts of a run, and the policy that ``make`` makes for them.

    ``rows`` are prompts that lie in no file, under the names ``prompts`` and ``heldout``. ValueError for a setting that
    has no effect with these prompts, but for those that are ``inherited`` (``mmgrpo.config.needs``).
    """
    read = read_prompts(config, owner, rows)
    refuse_moot(config, usual(type(config), config.algorithm.preset), inherited, facts(config, read.splits))
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
    limits = {"limit": evaluation.prompts, "unlabelled": data.unlabelled, "supervised": data.supervised}
    splits = read_splits(read, [train, *data.extra_train], *files, **limits)
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


def facts(config: Config, splits: Splits) -> dict[str, bool]:
    """What settings may depend on and do not show themselves (``mmgrpo.config.needs.FACTS``)."""
    kinds = {medium.kind for prompt in splits.every() for medium in prompt.media}
    return {
        HELDOUT: bool(splits.heldout or any(splits.extra.values())),
        IMAGES: "image" in kinds,
        VIDEOS: "video" in kinds,
        MEDIA: bool(kinds),
        REFERENCE: any(name.startswith(f"{REFERENCE_NETWORK}.") for name in LossRecipe.read(config.algorithm).scores),
    }


def keys_of_family(owner: Family) -> frozenset[str] | None:
    """The keys of ``Prompt.meta`` that a family reads; None where it has no source."""
    used = [
        entry for entry in fields(owner) if entry.name != "library"
    ]  # which reads no rows of a run, but all families
    answers = [value for entry in used if (value := getattr(owner, entry.name)) is not entry.default]
    functions = [function for answer in answers for function in functions_in(answer)]
    places = {(owner.module, ""), *((function.__module__, function.__name__) for function in functions)}
    known = [keys for place in places if (keys := keys_read(*place)) is not None]
    return frozenset[str]().union(*known) if known else None


def functions_in(value: Any) -> Iterator[FunctionType]:
    """The functions of a field, those inside of partial applications included."""
    if isinstance(value, partial):
        yield from (function for part in (value.func, *value.args) for function in functions_in(part))
    elif isinstance(value, FunctionType):
        yield value


def keys_of_reward(spec: Any) -> frozenset[str] | None:
    """The keys of ``Prompt.meta`` that a reward reads, as its source shows; None where that cannot be known.

    Of a function of the user's own these are all its words. A reward that asks for another one reads what that
    reads.
    """
    if not isinstance(spec, str):
        function = definition(trl.inside(spec.fn if isinstance(spec, Scorer) else spec))
        try:
            file = inspect.getsourcefile(function)
        except TypeError:
            return None
        return words_of(Path(file), getattr(function, "__name__", "")) if file else None
    name, parameters = parse(spec, "rewards")
    if ":" in name:
        file = plugins.file_of(name.partition(":")[0])
        return words_of(file, name.partition(":")[2]) if file else None
    if name not in entries():
        return None
    entry, inner = entries()[name], [value for value in parameters.values() if isinstance(value, str)]
    inner_keys = [keys_of_reward(value) for value in inner if value.partition("(")[0] in entries()]
    if entry.elsewhere and not inner_keys:
        return None
    module, _, function = entry.function.partition(":")
    manifest = entry.read_manifest()
    stated = named_in(manifest.reads) if manifest else frozenset[str]()
    parts = [keys_read(module, function), stated, named_in(parameters), *inner_keys]
    known = [part for part in parts if part is not None]
    return None if len(known) < len(parts) else frozenset().union(*known)


def unread_keys(
    keys: Mapping[str, int],
    rows: int,
    readers: Sequence[Any],
    fields: Set[str],
    owner: Family | None,
    policy: object = None,
) -> str:
    """The keys of rows that neither the family (or the ``policy`` of no family), nor a reward or tool of ``readers``,
    nor algorithm or evaluation (their ``fields``) reads, in words; empty if there are none."""
    if not keys:
        return ""
    read = keys_of_family(owner) if owner else words_of(Path(inspect.getfile(type(policy))))
    left = unread(keys, [read, frozenset(fields), *map(keys_of_reward, readers)])
    if not left:
        return ""
    return f"data: {in_words(left, rows)}: read by nothing, neither the model nor a reward, so ignored; {HINT}"
