"""What reads the keys of rows in a run: its family, its rewards and its algorithm, as their sources show."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from mmgrpo.config import plugins
from mmgrpo.config.plugins import definition
from mmgrpo.config.registry import parse
from mmgrpo.data.unread import HINT, in_words, keys_read, named_in, unread, words_of
from mmgrpo.family import Family
from mmgrpo.rewards import entries
from mmgrpo.scoring import Scorer, trl


def keys_of_family(owner: Family) -> frozenset[str] | None:
    """The keys of ``Prompt.meta`` that a family reads; None where it has no source."""
    kind = type(owner)
    own, model = keys_read(kind.__module__, kind.__name__), keys_read(owner.module)
    return own if model is None else model if own is None else own | model


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
    asked = [keys_of_reward(value) for value in inner if value.partition("(")[0] in entries()]
    if entry.elsewhere and not asked:
        return None
    module, _, function = entry.function.partition(":")
    manifest = entry.read_manifest()
    stated = named_in(manifest.reads) if manifest else frozenset[str]()
    parts = [keys_read(module, function), stated, named_in(parameters), *asked]
    known = [part for part in parts if part is not None]
    return None if len(known) < len(parts) else frozenset().union(*known)


def ignored(
    keys: Mapping[str, int],
    rows: int,
    rewards: Sequence[Any],
    fields: Set[str],
    owner: Family | None,
    policy: object = None,
) -> str:
    """The keys of rows that neither the family (or the ``policy`` of no family), nor a reward, nor the algorithm or the
    evaluation (their ``fields``) reads, in words; empty if there are none."""
    if not keys:
        return ""
    read = keys_of_family(owner) if owner else words_of(Path(inspect.getfile(type(policy))))
    left = unread(keys, [read, frozenset(fields), *map(keys_of_reward, rewards)])
    if not left:
        return ""
    return f"data: {in_words(left, rows)}: read by nothing, neither the model nor a reward, so ignored; {HINT}"
