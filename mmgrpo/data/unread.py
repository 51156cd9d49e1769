"""Keys of rows that nothing reads: neither the reader of rows, nor the model family, nor a reward, nor a block.

What reads a key is not listed anywhere: it is found in the source of the function or module that would read it
(``keys_read``), as ``prompt.meta["key"]``, ``prompt.meta.get("key")``, ``"key" in prompt.meta`` or ``f(prompt,
"key")``, and in what that calls inside of its own package or of ``mmgrpo.data.chat``. No module is imported for it. A
system prompt and earlier answers (``ROLES``) are read where the roles of turns are (``turn.role``).
"""

from __future__ import annotations

import ast
import importlib.util
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from mmgrpo.data.streaming import Joined, StoredPrompts, keys_with_values
from mmgrpo.types import Prompt

READERS = ("mmgrpo.data.columns", "mmgrpo.data.messages")
"""Modules of the reader of rows, which take keys of other projects and may leave them in ``meta``."""

CHAT = "mmgrpo.data.chat"
"""The module by which models of any package read conversations."""

ROLES = frozenset({"system", "assistant"})
"""Roles of turns that only models read that read conversations; all others are given the text of the user."""

MADE = frozenset({"reply", "better", "comparison"})
"""Keys of ``meta`` that the reader of rows and ``data.comparison`` add themselves."""


HINT = (
    "--data.columns theirs=ours gives a column a name that is read (docs/data.md), --eval.groups reports rewards by it"
)


@dataclass(frozen=True)
class Source:
    """The syntax tree of a module."""

    definitions: Mapping[str, ast.stmt] = field(default_factory=dict)
    """Functions, classes and constants of its top level."""
    imports: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Local name to the module and the name that it was imported from, the latter empty for a whole module."""
    whole: ast.Module = field(default_factory=lambda: ast.Module([], []))


@cache
def source_of(module: str) -> Source | None:
    """The syntax tree of a module that is written in Python; None where it has no source that can be found."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        return None
    return parse_source(Path(spec.origin))


@cache
def parse_source(path: Path) -> Source | None:
    """The syntax tree of a file; None where it is none of Python."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None
    definitions: dict[str, ast.stmt] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            definitions[node.name] = node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [child.id for target in targets for child in ast.walk(target) if isinstance(child, ast.Name)]
            definitions |= dict.fromkeys(names, node)
    imports: dict[str, tuple[str, str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            imports |= {alias.asname or alias.name: (node.module, alias.name) for alias in node.names}
        elif isinstance(node, ast.Import):
            imports |= {alias.asname or alias.name: (alias.name, "") for alias in node.names}
    return Source(definitions, imports, tree)


def keys_read(module: str, name: str = "") -> frozenset[str] | None:
    """The keys of ``Prompt.meta`` that an object of a module reads (the whole module where no name is given), with all
    that it uses in the same package, and to read conversations; None where there is no source."""
    if source_of(module) is None:
        return None
    package = module.partition(".")[0]
    waiting, seen, keys = [(module, name)], set[tuple[str, str]](), set[str]()
    while waiting:
        place = waiting.pop()
        if place not in seen:
            seen.add(place)
            mine, used = scan_object(*place, package)
            keys |= mine
            waiting += used
    return frozenset(keys)


@cache
def scan_object(module: str, name: str, package: str) -> tuple[frozenset[str], tuple[tuple[str, str], ...]]:
    """The keys that one object of a module reads itself, and the objects of the package that it uses."""
    source = source_of(module)
    if source is None:
        return frozenset(), ()
    if name and name not in source.definitions and name not in source.imports:
        name = "__getattr__" if "__getattr__" in source.definitions else name
    if name and name not in source.definitions:
        origin = source.imports.get(name) or (f"{module}.{name}", "")
        return frozenset(), (origin,) if origin[0].partition(".")[0] == package or origin[0] == CHAT else ()
    tree = source.definitions[name] if name else source.whole
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    used = [(module, n) for n in names if n in source.definitions or n in source.imports]
    # Tables of the house name functions as text, module:function.
    used += [(path.partition(":")[0], path.partition(":")[2]) for path in objects_in(tree, package)]
    return frozenset(keys_in(tree)), tuple(used)


def objects_in(tree: ast.AST, package: str) -> Iterator[str]:
    """Objects of the package that a tree names as texts."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if re.fullmatch(rf"{re.escape(package)}(\.\w+)+:\w+", node.value):
                yield node.value


def keys_in(tree: ast.AST, names: tuple[str, ...] = ("meta",)) -> Iterator[str]:
    """The keys that the lines of a tree read of a prompt's ``meta``, or of variables of these ``names``, and ``ROLES``
    where they read the roles of turns."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            if (
                isinstance(node.func, ast.Attribute)
                and node.func.attr in ("get", "pop")
                and is_meta(node.func.value, names)
            ):
                yield from texts(node.args[:1])
            elif any(isinstance(argument, ast.Name) and argument.id == "prompt" for argument in node.args):
                yield from texts(node.args)
        elif isinstance(node, ast.Subscript) and is_meta(node.value, names):
            yield from texts([node.slice])
        elif isinstance(node, ast.Compare) and any(is_meta(operand, names) for operand in node.comparators):
            yield from texts([node.left])
        elif isinstance(node, ast.Attribute) and node.attr == "role":
            yield from ROLES


def is_meta(node: ast.expr, names: tuple[str, ...]) -> bool:
    """Whether an expression is the ``meta`` of a prompt, or a variable of one of the ``names``."""
    return node.attr == "meta" if isinstance(node, ast.Attribute) else isinstance(node, ast.Name) and node.id in names


def texts(nodes: Iterable[ast.expr]) -> Iterator[str]:
    """The constant texts among expressions that can be keys, without the ``meta.`` of errors."""
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if re.fullmatch(r"[\w-]+", key := node.value.removeprefix("meta.")):
                yield key


def words_of(path: Path, name: str = "") -> frozenset[str] | None:
    """All texts, parameters and keywords of a function in a user's own file, and of what it uses there and in files
    next to it; any of them may be a key that it reads. Without a ``name`` those of the whole file."""
    words, waiting, seen = set[str](), [(path, name)], set[tuple[Path, str]]()
    while waiting:
        place = waiting.pop()
        if place in seen:
            continue
        seen.add(place)
        source = parse_source(place[0])
        if source is None:
            return None
        tree = source.definitions.get(place[1], source.whole)
        constants = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
        words |= {word for word in constants if isinstance(word, str)}
        if any(isinstance(node, ast.Attribute) and node.attr == "role" for node in ast.walk(tree)):
            words |= ROLES
        words |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg | ast.keyword) and node.arg}
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        waiting += [(place[0], n) for n in names if n in source.definitions]
        nearby = [(place[0].with_name(f"{source.imports[n][0]}.py"), n) for n in names if n in source.imports]
        waiting += [(file, n) for file, n in nearby if file.is_file()]
    return frozenset(words)


def named_in(value: Any) -> frozenset[str]:
    """Keys that parameters of a reward or a block name as ``meta.<key>``."""
    return frozenset(re.findall(r"\bmeta\.(\w+)", repr(value)))


def keys_of(prompts: Sequence[Prompt]) -> Counter[str]:
    """The keys in ``meta``, and the roles of turns that are not the user's, with the number of rows that have a value
    there; of prompts in files, of all rows that were read at the start."""
    if isinstance(prompts, StoredPrompts):
        return prompts.keys
    if isinstance(prompts, Joined):
        return sum((keys_of(part) for part in prompts.parts), Counter())
    return Counter(key for prompt in prompts for key in keys_with_values(prompt))


def unread(keys: Mapping[str, int], read: Iterable[frozenset[str] | None]) -> dict[str, int]:
    """The keys that none of the readers reads, with their numbers of rows; none where a reader is unknown (None)."""
    readers = list(read)
    if any(reader is None for reader in readers):
        return {}
    known = MADE.union(*(reader for reader in readers if reader is not None), keys_of_rows())
    return {key: count for key, count in keys.items() if key not in known}


@cache
def keys_of_rows() -> frozenset[str]:
    """The keys that the reader of rows takes itself; not ``ROLES``, of which it makes turns that few models read."""
    trees = [source.whole for module in READERS if (source := source_of(module)) is not None]
    return frozenset(key for tree in trees for key in keys_in(tree, ("meta", "row"))) - ROLES


def in_words(keys: Mapping[str, int], rows: int) -> str:
    """``'system' (12 of 40 rows), 'tools' (40 rows)``, the most frequent first."""
    ordered = sorted(keys.items(), key=lambda pair: (-pair[1], pair[0]))
    return ", ".join(f"'{key[:60]}' ({count} {f'of {rows} ' * (count < rows)}rows)" for key, count in ordered)
