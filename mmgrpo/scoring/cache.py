"""Scores that were computed before: keyed by content, bounded, in memory or also in a file.

The key of a score is the SHA-256 of the reward's name, its parameters and the version of its manifest, of the whole
prompt, and of the bytes of the output as the reward receives it. Values that are not finite are failures, and are tried
again; so are outputs from which the reward abstained (None). Only rewards may be cached whose value depends on nothing
else: not on the other outputs, and not on chance.
"""

from __future__ import annotations

import hashlib
import math
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mmgrpo.scoring.isolation import column
from mmgrpo.scoring.manifest import Manifest
from mmgrpo.scoring.wire import frames
from mmgrpo.types import Output, Prompt

MOST = 200_000
"""Scores that a cache keeps; the ones that were used (in a file: written) longest ago are removed."""


class Cached:
    """A reward that computes each score once."""

    def __init__(
        self, function: Callable[..., Any], identity: Mapping[str, Any], file: str | Path = "", most: int = MOST
    ) -> None:
        """``identity`` is all on which the reward's values depend besides prompts and outputs."""
        self._function, self._most, self._lock = function, most, threading.Lock()
        self._identity = b"".join(frames(dict(identity)))
        self._memory: OrderedDict[bytes, float] = OrderedDict()
        self._file = ScoreFile(Path(file), most) if file else None

    def __call__(self, prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float | None]:
        """One value per output, of which only those are computed that are not known; equal outputs once."""
        keys = [self._key(prompt, output) for prompt, output in zip(prompts, outputs, strict=True)]
        with self._lock:
            values: dict[bytes, float | None] = {**self._look_up(dict.fromkeys(keys))}
        rows = {key: row for row, key in reversed([*enumerate(keys)]) if key not in values}
        chosen = sorted(rows.values())
        if chosen:
            new = column(self._function([prompts[r] for r in chosen], [outputs[r] for r in chosen]), len(chosen))
            computed = {keys[row]: value for row, value in zip(chosen, new, strict=True)}
            with self._lock:
                self._keep({k: value for k, value in computed.items() if value is not None and math.isfinite(value)})
            values |= computed
        return [values[key] for key in keys]

    def close(self) -> None:
        """End the reward's process, if it has one."""
        if close := getattr(self._function, "close", None):
            close()

    def _key(self, prompt: Prompt, output: Output) -> bytes:
        digest = hashlib.sha256(self._identity)
        for part in frames([prompt, output]):
            digest.update(part)
        return digest.digest()

    def _look_up(self, keys: Mapping[bytes, None]) -> dict[bytes, float]:
        values = {}
        for key in keys:
            value = self._memory.get(key)
            if value is None and self._file is not None:
                value = self._file.read(key)
            if value is not None:
                values[key] = value
        self._remember(values)
        return values

    def _keep(self, values: Mapping[bytes, float]) -> None:
        self._remember(values)
        if self._file is not None:
            self._file.write(values)

    def _remember(self, values: Mapping[bytes, float]) -> None:
        for key, value in values.items():
            self._memory[key] = value
            self._memory.move_to_end(key)
        while len(self._memory) > self._most:
            self._memory.popitem(last=False)


class ScoreFile:
    """Scores in a file of SQLite, which several processes may share; of more than ``most`` the oldest are removed."""

    def __init__(self, path: Path, most: int) -> None:
        self._path, self._most = path.expanduser(), most
        self._path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._connection = sqlite3.connect(self._path, timeout=60, check_same_thread=False)
            with self._connection as connection:
                connection.execute(
                    "CREATE TABLE IF NOT EXISTS scores (number INTEGER PRIMARY KEY, key BLOB UNIQUE, value REAL)"
                )
                connection.execute("SELECT number, key, value FROM scores LIMIT 1")
        except sqlite3.Error as error:
            raise ValueError(
                f"{self._path}: got no cache of scores ({error}); remove it, or name another file as cache"
            ) from error

    def read(self, key: bytes) -> float | None:
        """The value of a key, None if it is not in the file."""
        row = self._connection.execute("SELECT value FROM scores WHERE key = ?", (key,)).fetchone()
        return row and row[0]

    def write(self, values: Mapping[bytes, float]) -> None:
        """Add values, and remove the oldest ones above the bound."""
        with self._connection as connection:
            connection.executemany("INSERT OR IGNORE INTO scores (key, value) VALUES (?, ?)", list(values.items()))
            newest = "SELECT number FROM scores ORDER BY number DESC LIMIT 1 OFFSET ?"
            connection.execute(f"DELETE FROM scores WHERE number <= ({newest})", (self._most,))


def with_cache(
    name: str,
    function: Callable[..., Any],
    parameters: Mapping[str, Any],
    manifest: Manifest | None,
    cache: bool | str,
) -> Callable[..., Any]:
    """The reward with a cache, in memory (True) or in a file; ValueError for one that cannot have it.

    The code of a reward without a manifest may change between runs, so it is cached in memory only; whether it
    scores every output by itself and without chance is for its author to know.
    """
    if cache is False:
        return function
    if manifest is not None and manifest.group:
        raise ValueError(f"rewards: '{name}': got cache, but it compares the outputs of a prompt; leave cache out")
    if manifest is not None and not manifest.deterministic:
        raise ValueError(f"rewards: '{name}': got cache, but its values depend on chance; leave cache out")
    if manifest is None and cache is not True:
        raise ValueError(
            f"rewards: '{name}': got cache={cache!r}, but only a reward with a manifest has a version by which a later "
            "run knows that its values are the same; use cache=True, which keeps them during the run"
        )
    identity = {"reward": name, "parameters": dict(parameters), "version": manifest and manifest.version}
    return Cached(function, identity, "" if cache is True else cache)
