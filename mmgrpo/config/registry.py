"""Named, parametrized pure functions: how an algorithm is written down.

A table (``table_of``) maps names to ``Block`` rows, and ``block`` writes a function into it. A user writes ``name`` or
``name(parameter=value, ...)`` in a recipe or on the command line; ``bind`` turns that text into a function of the
table's inputs. ``package.module:function`` names a function of one's own.

    >>> from mmgrpo.config.registry import bind, block
    >>> table = {}
    >>> @block(table)
    ... def power(x, exponent=2.0):
    ...     return x**exponent
    >>> bind("power(exponent=3)", table, "demo")({"x": 2.0})
    8.0
"""

from __future__ import annotations

import ast
import inspect
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules, walk_packages
from types import MappingProxyType
from typing import Annotated, Any, TypeAlias, TypeVar, overload

from mmgrpo.config.names import nearest
from mmgrpo.config.needs import UNSET, Moot, Needs, refuse
from mmgrpo.config.plugins import load_object
from mmgrpo.config.ranges import ANY_TEXT, check_parameter, is_whole, metadata_of
from mmgrpo.config.schedules import RULES, SCHEDULES, Now, Schedule, of_call

SCORES_OF_NETWORKS = (
    *("log_probs", "shift", "kl", "divergence", "velocity_gap", "velocity_norm"),
    *("gap", "error", "normalized_error", "clean", "guided_clean", "direction"),
)
"""What a policy can score of any network; ``NETWORK.SCORE`` is the name of the number."""
_OF_NETWORK = re.compile(rf"([a-z]\w*?)_({'|'.join(sorted(SCORES_OF_NETWORKS, key=len, reverse=True))})")
_OF_ALL = frozenset(
    {"old_log_probs", "sampler_log_probs", "read_log_probs", "estimate_error", "order_gap", *SCORES_OF_NETWORKS}
)
"""Names of that form which are of no named network: records of the rollout, and scores of the present one."""


def networks_of(scores: Iterable[str]) -> list[str]:
    """Names of the networks that scores (``NETWORK.SCORE``) are of, in one order on all ranks."""
    return sorted({match[0] for score in scores if (match := re.match(r"\w+(?=\.)", score))})


F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Naming:
    """What the text of a parameter names, in its annotation (``by: Reward``), and each of its texts (``Rewards``)."""

    kind: str
    """``reward`` or ``network``, which is one of the run's; ``reference``: a parameter that needs the network before
    training where it is in use."""
    weight: bool | None = None
    """Whether such a reward must have a weight, or must have none; None: either."""


Reward: TypeAlias = Annotated[str, Naming("reward")]
Rewards: TypeAlias = Annotated[Sequence[str], Naming("reward")]
Members: TypeAlias = Annotated[Sequence[str], Naming("reward", weight=True)]
Rule: TypeAlias = Annotated[str, Naming("reward", weight=False)]
Network: TypeAlias = Annotated[str, ANY_TEXT, Naming("network")]
"""Types of parameters: the name of a reward, of several, of those of an ensemble, of one that has no weight, of a
network."""
COMPARED = Naming("reference")


@dataclass(frozen=True)
class Block:
    """One row of a table: a pure function, and what it must see together (``level``): ``decision`` (elementwise),
    ``row`` (all decisions of a sample) or ``group`` (all samples of a group)."""

    fn: Callable[..., Any]
    level: str = "decision"
    inputs: tuple[str, ...] | None = None
    """Names of its inputs; None for those of its signature, and empty for what has none, as a class that is made."""
    inner: Mapping[str, Mapping[str, Block]] = field(default_factory=dict)
    """Its parameters that are themselves the text of a block, and the table of that."""
    requires: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What a run must have for the block to be what it says (``mmgrpo.requirements.blocks``), each with the
    parameters under which it is needed (True: in use); empty: under all."""
    rewards: tuple[float | str, float | str] = (-math.inf, math.inf)
    """The range of rewards that it can read; a name is that of the parameter that holds the bound."""
    method: str = ""
    """The module of ``mmgrpo.rounds`` that does what it asks for, where a table has blocks of several."""
    gives: Mapping[str, str] = field(default_factory=dict)
    """Inputs of other blocks that a run has by it, each with the parameter that has to be in use for it; empty: none
    has to. A run without it is refused blocks that read them, and it is refused where none does."""
    single: str = ""
    """``kind``: a run has one of its kind at most; ``line``: its line has no other block at all."""

    @cached_property
    def names(self) -> Mapping[str, Naming]:
        """Its parameters that name something."""
        known = {name: metadata_of(self.fn, name) for name in self.parameters}
        return {name: naming for name, metadata in known.items() for naming in metadata if isinstance(naming, Naming)}

    @cached_property
    def needs(self) -> tuple[str, ...]:
        """Names of its inputs in order: the positional parameters without a default. All others are the user's; one
        that the user must give is keyword-only."""
        if self.inputs is not None:
            return self.inputs
        parameters = inspect.signature(self.fn).parameters.values()
        return tuple(p.name for p in parameters if p.default is p.empty and p.kind is not p.KEYWORD_ONLY)

    @cached_property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """The parameters that a user may set, by name."""
        return {name: p for name, p in inspect.signature(self.fn).parameters.items() if name not in self.needs}


TABLES: dict[str, list[dict[str, Block]]] = {}
"""The tables of blocks that a recipe may name, by the kind of their rows, as far as their modules are imported."""


def table_of(kind: str) -> dict[str, Block]:
    """A new table of blocks, listed under its kind: what ``mmgrpo explain`` and records of papers call its rows."""
    table: dict[str, Block] = {}
    TABLES.setdefault(kind, []).append(table)
    return table


def all_blocks() -> dict[str, dict[str, Block]]:
    """All blocks by kind and name. The rooms of the package are imported for it, but not its commands."""
    _import_rooms()
    return {kind: {name: row for table in tables for name, row in table.items()} for kind, tables in TABLES.items()}


@cache
def _import_rooms() -> None:
    package = Path(__file__).parents[1]
    for room in iter_modules([str(package)], "mmgrpo."):
        if room.name != "mmgrpo.cli":
            import_module(room.name)
            for module in walk_packages([str(package / room.name.partition(".")[2])], f"{room.name}."):
                import_module(module.name)


table_of("schedule").update(
    {name: Block(function, inputs=("step", "total")) for name, function in SCHEDULES.items()}
    | {name: Block(function, inputs=("memory", "measured")) for name, function in RULES.items()}
)

LEVELS = ("decision", "row", "group")
_DECORATED: dict[Callable[..., Any], Block] = {}


@overload
def block(table: F, /) -> F: ...
@overload
def block(
    table: dict[str, Block] | None = None,
    name: str = "",
    level: str = "decision",
    inner: Mapping[str, Mapping[str, Block]] = MappingProxyType({}),
    requires: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    rewards: tuple[float | str, float | str] = (-math.inf, math.inf),
    method: str = "",
    gives: Mapping[str, str] = MappingProxyType({}),
    single: str = "",
) -> Callable[[F], F]: ...
def block(
    table: Any = None,
    name: str = "",
    level: str = "decision",
    inner: Mapping[str, Mapping[str, Block]] = MappingProxyType({}),
    requires: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    rewards: tuple[float | str, float | str] = (-math.inf, math.inf),
    method: str = "",
    gives: Mapping[str, str] = MappingProxyType({}),
    single: str = "",
) -> Any:
    """Write the decorated function into ``table`` under its own name, or under ``name``; all else as in ``Block``.
    ``@block`` is ``@block()``.

    With or without a table, a recipe may also name it as ``package.module:function``.
    """
    if callable(table):
        return block()(table)
    if level not in LEVELS:
        raise ValueError(f"block: level is {level!r}; it is one of {', '.join(LEVELS)}")

    def register(fn: F) -> F:
        _DECORATED[fn] = Block(fn, level, None, inner, requires, rewards, method, gives, single)
        if table is not None:
            table[name or fn.__name__] = _DECORATED[fn]
        return fn

    return register


@dataclass(frozen=True)
class Bound:
    """A block with its parameters, to be called with a mapping that contains at least its inputs."""

    text: str
    block: Block
    parameters: Mapping[str, Any]

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of its inputs. ``changed_NAME`` is ``NAME@CHANGE``, NAME under the parameter ``change``; where the
        block has a parameter X, ``X_log_probs`` are the log-probs of the network that it names (``old``, and ``none``:
        those of the rollout). ``NETWORK_SCORE`` is ``NETWORK.SCORE`` (``SCORES_OF_NETWORKS``), a name that no record of
        the batch can have: ``old_log_probs`` are always the rollout's, ``old.log_probs`` those of a network named old.
        """
        return tuple(self._input_name(name) for name in self.block.needs)

    def _input_name(self, name: str) -> str:
        if name.startswith("changed_"):
            return f"{self._input_name(name[8:])}@{self._parameter('change')}"
        network, _, what = name.partition("_")
        if what == "log_probs" and network in self.block.parameters:
            network = self._parameter(network)
            return "old_log_probs" if network in ("none", "old") else f"{network}.log_probs"
        of_network = _OF_NETWORK.fullmatch(name)
        return f"{of_network[1]}.{of_network[2]}" if of_network and name not in _OF_ALL else name

    def _parameter(self, name: str) -> Any:
        return self.parameters.get(name, self.block.parameters[name].default)

    def __call__(self, inputs: Mapping[str, Any]) -> Any:
        missing = [name for name in self.needs if name not in inputs]
        if missing:
            raise KeyError(f"'{self.text}' needs {', '.join(missing)}; got only {', '.join(sorted(inputs))}")
        return self.block.fn(*(inputs[name] for name in self.needs), **self.parameters)

    @property
    def assignments(self) -> tuple[str, ...]:
        """Its parameters with their values, those that are not given included: ``name=value``."""
        return tuple(f"{name}={self._parameter(name)}" for name in self.block.parameters)

    @property
    def settings(self) -> dict[str, Any]:
        """All its parameters, those that are not given with their defaults."""
        return {name: self._parameter(name) for name in self.block.parameters}

    def names_of(self, kind: str) -> list[tuple[str, Naming]]:
        """The names in its parameters that are of a kind, and what is said of them."""
        there = [(self._parameter(name), naming) for name, naming in self.block.names.items() if naming.kind == kind]
        each = [(value if isinstance(value, list | tuple) else [value], naming) for value, naming in there]
        return [(str(name), naming) for several, naming in each for name in several if name]

    @property
    def gives(self) -> frozenset[str]:
        """Inputs of other blocks that a run has by it."""
        return frozenset(name for name, under in self.block.gives.items() if not under or self._parameter(under))

    @property
    def requires(self) -> tuple[str, ...]:
        """What a run must have, under the parameters that are set."""
        return tuple(
            name
            for name, under in self.block.requires.items()
            if all(_is(self._parameter(parameter), value) for parameter, value in under.items())
        )

    @property
    def rewards(self) -> tuple[float, float]:
        """The range of rewards that it can read; a bound that follows a schedule is left open."""
        named = [self._parameter(bound) if isinstance(bound, str) else bound for bound in self.block.rewards]
        low, high = (end if isinstance(bound, Schedule) else bound for bound, end in zip(named, (-math.inf, math.inf)))
        return low, high

    @property
    def schedules(self) -> dict[str, Schedule]:
        """The parameters that follow a schedule, as ``block.parameter``."""
        name = parse(self.text)[0]
        return {
            f"{name}.{key}": schedule
            for parameter in self.parameters
            for key, schedule in self._schedules_of(parameter)
        }

    def _schedules_of(self, parameter: str) -> Iterator[tuple[str, Schedule]]:
        """The schedules of a parameter: its own, or those of the numbers of a mapping, as ``parameter.key``."""
        value = self.parameters[parameter]
        numbers = {f"{parameter}.{key}": number for key, number in value.items()} if isinstance(value, dict) else {}
        yield from (
            (key, number) for key, number in (numbers or {parameter: value}).items() if isinstance(number, Schedule)
        )

    def at(self, now: Now) -> Bound:
        """The same block with the numbers of its schedules at a time; itself if it has none."""
        changed: dict[str, Any] = {}
        for parameter, value in self.parameters.items():
            schedules = {key: schedule.at(now) for key, schedule in self._schedules_of(parameter)}
            if schedules and isinstance(value, dict):
                changed[parameter] = {key: schedules.get(f"{parameter}.{key}", item) for key, item in value.items()}
            elif schedules:
                number = schedules[parameter]
                changed[parameter] = round(number) if is_whole(self.block.fn, parameter) else number
        return replace(self, parameters={**self.parameters, **changed}) if changed else self


def _is(given: Any, wanted: Any) -> bool:
    return bool(given) if wanted is True else given == wanted


def parse(text: str, what: str = "") -> tuple[str, dict[str, Any]]:
    """Split ``name(parameter=literal, ...)`` into name and parameters. Nothing is evaluated; ``what`` begins errors.

    A value of the form of a call is a schedule (``schedules.py``): ``kl_k3(coef=cosine(0.04, 0, 500))``. A name may be
    dotted and may hold one colon (``package.module:function``).
    """
    message = f"{what}: got {text!r}, expected the form name or name(parameter=value, ...)".removeprefix(": ")
    match = re.fullmatch(r"\s*([\w.\-]+(?::[\w.]+)?)\s*(\(.*\))?\s*", text, re.DOTALL)
    if match is None:
        raise ValueError(message)
    name, arguments = match.groups()
    try:
        call = ast.parse(f"f{arguments or '()'}", mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
            raise ValueError(message)
        names = [k.arg for k in call.keywords]
        if None in names or len({*names}) < len(names):
            raise ValueError(message)
        values = {str(k.arg): _literal(k.value) for k in call.keywords}
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        raise ValueError(f"{message} with numbers, strings, lists or booleans as values") from error
    return name, {key: _read(value, f"{what}: {key} of {name}".removeprefix(": ")) for key, value in values.items()}


def _literal(node: ast.expr) -> Any:
    """The value of an expression; that of a call is its node, also among the values of a mapping."""
    if isinstance(node, ast.Call):
        return node
    if isinstance(node, ast.Name) and node.id == "inf":
        return float("inf")
    if isinstance(node, ast.Dict) and None not in node.keys:
        pairs = zip(node.keys, node.values, strict=True)
        return {ast.literal_eval(key): _literal(value) for key, value in pairs if key is not None}
    return ast.literal_eval(node)


def _read(value: Any, what: str) -> Any:
    """A value with the schedules that its calls stand for."""
    if isinstance(value, dict):
        return {key: _read(item, f"{what}.{key}") for key, item in value.items()}
    return of_call(value, what) if isinstance(value, ast.Call) else value


def bind(text: str, table: Mapping[str, Block], what: str, scheduled: bool = False) -> Bound:
    """Bind the text to a block of the table; unknown names and parameters are errors that name the nearest, and so are
    values of a wrong type or out of range. A whole number for a parameter that is declared ``float`` is converted.
    Parameters may follow schedules where the caller resolves them (``scheduled``), all whose values are checked."""
    name, parameters = parse(text, what)
    row = _block_of_user(name, what) if ":" in name else table.get(name)
    if row is None:
        raise ValueError(f"{what}: unknown block '{name}'.{nearest(name, table)} One of your own is module:function.")
    for parameter in parameters:
        if parameter not in row.parameters:
            raise ValueError(f"{what}: '{name}' has no parameter '{parameter}'.{nearest(parameter, row.parameters)}")
    for parameter, declared in row.parameters.items():
        if declared.default is declared.empty and parameter not in parameters:
            raise ValueError(f"{what}: '{name}' needs the parameter '{parameter}', e.g. {name}({parameter}=...)")
    for parameter, value in parameters.items():
        place = f"{what}: {parameter} of {name}"
        for number in (value.values() if isinstance(value, dict) else [value]) if not scheduled else ():
            if isinstance(number, Schedule):
                raise ValueError(f"{place}: got {number.text}, expected one value for the whole run")
        parameters[parameter] = check_scheduled(row.fn, parameter, value, place)
    for parameter, inner in row.inner.items():
        bind(parameters.get(parameter, row.parameters[parameter].default), inner, f"{what}: {parameter} of {name}")
    bound = Bound(text, row, parameters)
    _refuse_moot(bound, what)
    return bound


def _refuse_moot(bound: Bound, what: str) -> None:
    """ValueError for a parameter that needs another of its block (``needs`` in its annotation) which is not in use."""
    values, fn = bound.settings, bound.block.fn
    given = [name for name in bound.parameters if values[name] not in (*UNSET, bound.block.parameters[name].default)]
    needs = [(name, need) for name in given for need in metadata_of(fn, name) if isinstance(need, Needs)]
    unmet = [(name, need) for name, need in needs if need.is_met(values, ()) is False]
    refuse([Moot(f"{what}: {name}", values[name], need, values) for name, need in unmet])


def refuse_names(where: str, bound: Bound, rewards: Mapping[str, float], networks: Collection[str] = ()) -> None:
    """ValueError for a parameter of a block that names a reward or a network that the run has not, or a reward whose
    weight cannot be (``Naming``). ``rewards``: their weights by name."""
    for kind, known in (("reward", rewards), ("network", networks)):
        for name, naming in bound.names_of(kind):
            refuse_unknown(f"{where}: {bound.text}", kind, name, known)
            if naming.weight is not None and naming.weight != bool(rewards[name]):
                why = "puts it on the scale of the others" if naming.weight else "would count it twice"
                raise ValueError(
                    f"{where}: {bound.text}: got '{name}' of weight {rewards[name]:g}, which {why}; "
                    f"give it {'another weight, e.g. weight=1' if naming.weight else 'weight=0'}"
                )


ADD = {"reward": "rewards, with weight=0 if it is not to be summed", "network": "algorithm.networks"}


def refuse_unknown(where: str, kind: str, name: str, known: Collection[str]) -> None:
    """ValueError for the name of a reward or a network that is not among those of the run."""
    if name not in known:
        raise ValueError(f"{where}: unknown {kind} '{name}'.{nearest(name, known)} Add it to {ADD[kind]}")


def bind_several(texts: Sequence[str], table: Mapping[str, Block], what: str) -> tuple[Bound, ...]:
    """``bind_scheduled`` of the blocks of a line; ValueError for two of which one stands alone (``Block.single``)."""
    bounds = tuple(bind_scheduled(text, table, what) for text in texts)
    for bound in bounds:
        alike = [other for other in bounds if bound.block.single == "line" or other.block is bound.block]
        if bound.block.single and len(alike) > 1:
            raise ValueError(f"{what}: got {' and '.join(other.text for other in alike)}, expected one of them")
    return bounds


def bind_scheduled(text: str, table: Mapping[str, Block], what: str) -> Bound:
    """``bind`` for a block that is resolved at every step, so its parameters may follow schedules."""
    return bind(text, table, what, scheduled=True)


def check_scheduled(function: Callable[..., Any], parameter: str, value: Any, what: str) -> Any:
    """``check_parameter`` of a value, or of all values of a schedule; of a mapping with schedules, of each of its own
    values."""
    if isinstance(value, dict) and any(isinstance(item, Schedule) for item in value.values()):
        for key, item in value.items():
            for level in item.levels if isinstance(item, Schedule) else [item]:
                check_parameter(function, parameter, {key: level}, what)
        return value
    if not isinstance(value, Schedule):
        return check_parameter(function, parameter, value, what)
    for level in value.levels:
        number = round(level) if is_whole(function, parameter) else level
        check_parameter(function, parameter, number, f"{what}: {value.text}")
    return value


def _block_of_user(name: str, what: str) -> Block:
    fn = load_object(name, what)
    if fn not in _DECORATED:
        raise ValueError(
            f"{what}: '{name}' does not say what it must see together; decorate it with @mmgrpo.block(level=...): "
            f"{', '.join(LEVELS)}"
        )
    return _DECORATED[fn]
