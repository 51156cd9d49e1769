"""Numbers that change during a run: schedules of the optimizer step, and rules that follow a measured number.

    algorithm.terms: ["kl_k3(coef=cosine(0.04, 0, 500))"]           a parameter of a block
    algorithm.objective: ppo(low=0.2, high=stages(0.28, (200, 0.4)))
    rewards: ["accuracy", "length(weight=cycle(100, 500, 0.1))"]    the weight of a reward
    sampling.temperature: linear(1.2, 1.0, 300)                     a setting of ``SETTINGS``

A schedule is a pure function of the optimizer step s, counted from 0, and of the number of steps of the run; ``steps``
left out or 0 is the whole run. A rule is a pure function of its own last numbers and of one metric of
``metrics.jsonl``, which is the same on all ranks; what it remembers is in the checkpoint. Numbers that shape a round
(advantages, weights of rewards, sampling) are those at the first optimizer step of the round, numbers of the loss those
of each step. For a parameter that is a whole number the value is rounded.

    >>> from mmgrpo.config.schedules import Now, read
    >>> [read("cosine(0.04, 0, 500)", "demo").at(Now(step, 1000)) for step in (0, 250, 900)]
    [0.04, 0.02, 0.0]
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol, TypeVar, runtime_checkable

from mmgrpo.config.names import nearest
from mmgrpo.config.ranges import (
    ANY_NUMBER,
    COUNT,
    COUNT_OR_ZERO,
    POSITIVE,
    UPPER_BOUND,
    check_parameter,
    check_value,
    declarations,
    short_repr,
    within,
)

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
Level = Annotated[float | int, ANY_NUMBER]

SCHEDULES: dict[str, Callable[..., float]] = {}
"""Functions of (step, steps of the run, parameters)."""
RULES: dict[str, Callable[..., tuple[float, ...]]] = {}
"""Functions from (what the rule remembers, the measured number, parameters) to what it remembers next, of which the
first number is the value. It remembers nothing, ``()``, and measured NaN before the first step."""
SETTINGS = ("data.group_size", "data.prompts_per_step", "sampling.temperature", "sampling.max_tokens")
"""Settings that may follow a schedule. Evaluation, and estimates of memory, use its largest value."""


def _in(table: dict[str, Any]) -> Callable[[F], F]:
    def register(fn: F) -> F:
        table[fn.__name__] = fn
        return fn

    return register


@_in(SCHEDULES)
def linear(step: int, total: int, start: Level, end: Level, steps: int = 0, after: int = 0) -> float:
    """start + (end - start) min(1, (s - after) / steps), and start before step ``after``."""
    share = min(1.0, max(0, step - after) / (steps or max(1, total - after)))
    return start + (end - start) * share


@_in(SCHEDULES)
def cosine(step: int, total: int, start: Level, end: Level, steps: int = 0, warmup: int = 0) -> float:
    """end + (start - end) (1 + cos(pi min(1, (s - warmup) / steps))) / 2, after a linear rise from 0 to start in
    ``warmup`` steps (CHORD, arXiv:2508.11408: 0.9 to 0.05)."""
    if step < warmup:
        return start * step / warmup
    share = min(1.0, (step - warmup) / (steps or max(1, total - warmup)))
    return end + (start - end) * 0.5 * (1 + math.cos(math.pi * share))


@_in(SCHEDULES)
def dip(
    step: float | int,
    total: int,
    low: Level,
    high: Level,
    down: Annotated[float, within("(0, 1)")] = 0.3,
    steps: int = 0,
) -> float:
    """From (low + high) / 2 to low in the share ``down`` of the steps, then up to high, in straight lines: the KL
    weight of GRPO-D (OThink-MR1, arXiv:2503.16081)."""
    share = min(1.0, step / (steps or total))
    if share <= down:
        return (low + high) / 2 - (high - low) / 2 * share / down
    return low + (high - low) * (share - down) / (1 - down)


@_in(SCHEDULES)
def power(step: int, total: int, start: Level, factor: Annotated[float, POSITIVE], steps: int = 0) -> float:
    """start factor^min(1, s / steps): the length budget 800 * 0.2^(s / steps) of RMT (arXiv:2509.24375)."""
    return start * factor ** min(1.0, step / (steps or total))


@_in(SCHEDULES)
def stages(step: int, total: int, first: Level, *changes: tuple[int, int | float]) -> int | float:
    """``first``, and from each (step, value) on its value: stages(4096, (100, 8192)) is 8192 from step 100 on."""
    return [first, *(value for start, value in changes if start <= step)][-1]


@_in(SCHEDULES)
def cycle(
    step: int, total: int, on: Annotated[int, COUNT], off: Annotated[int, COUNT], value: Level, otherwise: Level = 0.0
) -> float:
    """``value`` for ``on`` steps and ``otherwise`` for ``off`` steps, repeated: the length penalty of ProRL v2 is on
    for 100 steps of 600."""
    return value if step % (on + off) < on else otherwise


@_in(RULES)
def adaptive(
    memory: tuple[float, ...],
    measured: float,
    start: Annotated[float, POSITIVE],
    target: Annotated[float, POSITIVE],
    by: str = "kl",
    rate: Annotated[float, within("(0, 1]")] = 0.1,
    limit: Annotated[float, within("(0, 1)")] = 0.2,
    least: float = 0.0,
    most: Annotated[float, UPPER_BOUND] = math.inf,
) -> tuple[float, ...]:
    """value <- value (1 + rate clip(measured / target - 1, -limit, limit)) within [least, most]: the adaptive KL
    coefficient of Ziegler et al. (arXiv:1909.08593, section 2.2). ``kl`` of metrics.jsonl contains the coefficient;
    for a KL without it log a term of a constant coefficient."""
    if not memory:
        return (start,)
    error = min(max(measured / target - 1, -limit), limit)
    return (min(max(memory[0] * (1 + rate * error), least), most),)


@_in(RULES)
def shortfall(
    memory: tuple[float, ...],
    measured: float,
    start: float,
    target: Level,
    by: str,
    most: Annotated[float, UPPER_BOUND] = 1.0,
) -> tuple[float, ...]:
    """max(0, target - measured), at most ``most``; ``start`` before the first step: the supervised share that CHORD
    (arXiv:2508.11408) lets fall with the mean reward."""
    return (min(max(target - measured, 0.0), most),) if memory else (start,)


@_in(RULES)
def guidance(
    memory: tuple[float, ...],
    measured: float,
    start: Annotated[float, POSITIVE],
    by: str,
    most: Annotated[float, POSITIVE] = 3072.0,
) -> tuple[float, ...]:
    """The guidance length l of G2RPO-A (arXiv:2508.13023): at every third measured number a, with the mean m of the two
    before, l <- int(l m / a), between 1 and ``most``; as it was where a = m or either is not positive. The cycle, int
    and the bounds are those of its released code: 100, [.2, .4], .6 makes 50, and .15 makes 200."""
    if not memory:
        return (start,)
    length, *before = memory
    if len(before) < 2:
        return (length, *before, measured)
    mean = sum(before) / 2
    if mean > 0 and measured > 0 and mean != measured:
        length = float(min(max(int(length * mean / measured), 1), int(most)))
    return (length,)


@_in(RULES)
def recent(
    memory: tuple[float, ...],
    measured: float,
    start: Annotated[float, POSITIVE],
    by: str = "group/uncertainty",
    rate: Annotated[float, within("(0, 1)")] = 0.1,
    window: Annotated[int, COUNT] = 20,
    least: float = 0.02,
    most: Annotated[float, UPPER_BOUND] = 0.2,
) -> tuple[float, ...]:
    """value <- value (1 + rate) where the measured number exceeds the largest of the last ``window``, value (1 - rate)
    where it is below their smallest, within [least, most]: the fraction of samples that GARDO (arXiv:2512.24138, its
    released code) gates. Up, up, down: .1, .1 (the first number), .11, .121, .1089."""
    if not memory:
        return (start,)
    value, *before = memory
    if before and measured > max(before):
        value *= 1 + rate
    elif before and measured < min(before):
        value *= 1 - rate
    return (min(max(value, least), most), *[*before, measured][-window:])


@dataclass(frozen=True)
class Now:
    """The time at which schedules are read."""

    step: float | int
    """Optimizer steps so far."""
    total: int
    """Optimizer steps of the run."""
    memory: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """What rules remember, by their text."""


@dataclass(frozen=True, repr=False)
class Schedule:
    """A schedule or a rule with its parameters."""

    text: str
    name: str
    arguments: tuple[Any, ...]
    named: Mapping[str, Any]

    def __repr__(self) -> str:
        return self.text

    def at(self, now: Now) -> float:
        """Its value."""
        if self.name in RULES:
            return next(iter(now.memory.get(self.text, ()) or self.next((), math.nan)))
        return float(SCHEDULES[self.name](now.step, now.total, *self.arguments, **self.named))

    def next(self, memory: Sequence[float], measured: float) -> tuple[float, ...]:
        """What a rule remembers after a measured number; one that is not finite changes nothing."""
        if memory and not math.isfinite(measured):
            return tuple(memory)
        return RULES[self.name](tuple(memory), measured, *self.arguments, **self.named)

    @property
    def by(self) -> str:
        """The metric that a rule follows; empty for a schedule."""
        bound = _signature(self.name).bind(None, None, *self.arguments, **self.named)
        bound.apply_defaults()
        return str(bound.arguments["by"]) if self.name in RULES else ""

    @property
    def levels(self) -> list[float]:
        """Values among which are the smallest and the largest: a schedule is monotone between the steps that it is
        given; of a rule those that its parameters bound it by."""
        if self.name in RULES:
            bound = _signature(self.name).bind(None, None, *self.arguments, **self.named)
            bound.apply_defaults()
            given = bound.arguments
            low = given.get("least", 1.0 if self.name == "guidance" else 0.0)
            return [float(bound) for bound in (given["start"], low, given["most"]) if math.isfinite(bound)]
        numbers = [*self.arguments, *self.named.values()]
        flat = [item for number in numbers for item in (number if isinstance(number, tuple) else (number,))]
        whole = [1, *(item for item in flat if isinstance(item, int))]
        joints = {0, sum(whole), sum(whole[1:]), *(max(0, count + side) for count in whole for side in (-1, 0, 1))}
        if self.name == "dip":
            joints |= {share * count for count in whole for share in (0.3, *flat) if 0 < share < 1}
        return sorted({self.at(Now(step, 1)) for step in joints})  # type: ignore[arg-type]


@runtime_checkable
class Resolvable(Protocol):
    """What may hold schedules, such as a block with its parameters (``registry.Bound``)."""

    def at(self, now: Now) -> Any:
        """The same with numbers in their place."""
        ...


@runtime_checkable
class Scheduled(Protocol):
    """What says which schedules it holds."""

    @property
    def schedules(self) -> Mapping[str, Schedule]:
        """By ``block.parameter``."""
        ...


def schedules_of(*recipes: Any) -> dict[str, Schedule]:
    """The schedules of recipes, dataclasses of blocks, as ``block.parameter``; ``block#2.parameter`` for a block that
    stands twice in one."""
    schedules: dict[str, Schedule] = {}
    for recipe in recipes:
        of_recipe: dict[str, Schedule] = {}
        for f in dataclasses.fields(recipe):
            value = getattr(recipe, f.name)
            parts = value if isinstance(value, tuple) else (value,)
            for part in parts:
                for name, schedule in (part.schedules if isinstance(part, Scheduled) else {}).items():
                    block, _, parameter = name.partition(".")
                    names = [name, *(f"{block}#{count}.{parameter}" for count in range(2, 100))]
                    of_recipe[next(free for free in names if free not in of_recipe)] = schedule
        schedules |= of_recipe
    return schedules


@functools.cache
def _resolvable(kind: type) -> bool:
    """Whether values of a type are; a step asks this of every field of its recipe."""
    return issubclass(kind, Resolvable)


def of_call(node: ast.Call, what: str) -> Schedule:
    """The schedule that a call stands for; ValueError for an unknown name and for wrong parameters."""
    known, text = {**SCHEDULES, **RULES}, ast.unparse(node)
    name = node.func.id if isinstance(node.func, ast.Name) else ast.unparse(node.func)
    if name not in known:
        raise ValueError(f"{what}: unknown schedule '{name}' in {short_repr(text)}.{nearest(name, known)}")
    arguments = tuple(ast.literal_eval(argument) for argument in node.args)
    named = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in node.keywords}
    try:
        bound = _signature(name).bind(None, None, *arguments, **named)
    except TypeError as error:
        raise ValueError(f"{what}: {text}: {error}; its parameters are {_parameters(name)}") from error
    for parameter, value in list(bound.arguments.items())[2:]:
        place = f"{what}: {parameter} of {name}"
        if parameter == "changes":
            _check_changes(value, place)
        else:
            check_parameter(known[name], parameter, value, place)
    return Schedule(text, name, arguments, named)


def _check_changes(changes: Sequence[Any], what: str) -> None:
    for change in changes:
        if not (isinstance(change, tuple) and len(change) == 2):
            raise ValueError(f"{what}: got {short_repr(change)}, expected a pair (step, value)")
        check_value(change[0], int, COUNT_OR_ZERO, what)
        check_value(change[1], float, ANY_NUMBER, what)
    starts = [start for start, _ in changes]
    if starts != sorted({*starts}):
        raise ValueError(f"{what}: got steps {starts}, expected each after the one before")


def _signature(name: str) -> inspect.Signature:
    return inspect.signature({**SCHEDULES, **RULES}[name])


def _parameters(name: str) -> str:
    return ", ".join(str(parameter).split(":")[0] for parameter in [*_signature(name).parameters.values()][2:])


def read(text: str, what: str) -> Schedule | None:
    """The schedule that a text states, None for a text of another form, such as a number."""
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    if not isinstance(node, ast.Call):
        return None
    try:
        return of_call(node, what)
    except (ValueError, TypeError, SyntaxError, RecursionError) as error:
        if str(error).startswith(what):
            raise
        raise ValueError(f"{what}: got {short_repr(text)}, expected numbers as parameters of a schedule") from error


def at(value: T, now: Now) -> T:
    """The same value with numbers in the place of schedules, through tuples, blocks and recipes (dataclasses of them);
    the object itself where it has none, so a run without schedules is what it was."""
    changed: Any = value
    if _resolvable(type(value)):
        return changed.at(now)
    if isinstance(value, tuple):
        parts = tuple(at(part, now) for part in value)
        changed = value if all(a is b for a, b in zip(parts, value, strict=True)) else parts
        return changed
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        new = {name: at(part, now) for name, part in fields.items()}
        if any(new[name] is not fields[name] for name in fields):
            return dataclasses.replace(value, **new)  # type: ignore[return-value]
    return value


def of_settings(config: Any) -> dict[str, Schedule]:
    """The schedules of ``config.schedules``, each ``setting=schedule``, by setting; ValueError for a setting that may
    not follow one, or that the model family does not have, and for a value outside of its range."""
    schedules: dict[str, Schedule] = {}
    for text in config.schedules:
        name, _, value = (part.strip() for part in text.partition("="))
        schedule = read(value, f"schedules: {name}")
        if name not in SETTINGS or name in schedules:
            raise ValueError(f"schedules: {short_repr(text)}: got '{name}' twice, or unknown.{nearest(name, SETTINGS)}")
        if schedule is None:
            raise ValueError(f"schedules: {name}: got {short_repr(value)}, expected a schedule, e.g. linear(1, 2, 100)")
        section, _, key = name.partition(".")
        kinds = declarations(type(getattr(config, section)))
        if key not in kinds:
            raise ValueError(f"schedules: got '{name}', which this model family does not have; leave it out")
        for level in schedule.levels:
            number = round(level) if kinds[key][0] is int else level
            check_value(number, *kinds[key], f"schedules: {name}: {schedule.text}")
        schedules[name] = schedule
    return schedules


def move_schedules(section: Mapping[str, Any], arguments: Sequence[str], take: Any) -> tuple[dict[str, Any], list[str]]:
    """A file's settings and a command line with the schedules that stand in the place of numbers moved to
    ``schedules``; the setting itself becomes the largest value. ``take(arguments, option)`` takes an option out."""
    arguments, moved = list(arguments), []
    section = {key: dict(value) if isinstance(value, Mapping) else value for key, value in section.items()}
    for name in SETTINGS:
        part, _, key = name.partition(".")
        inside = section.get(part)
        option = "--" + name.replace("_", "-")
        spelled = next((form for form in (option, f"--{name}") if take(arguments, form)[0]), option)
        given, rest = take(arguments, spelled)
        value = given or (inside.get(key) if isinstance(inside, dict) else "")
        schedule = read(value, name) if isinstance(value, str) else None
        if schedule is None:
            continue
        moved.append(f"{name}={schedule.text}")
        most = max(schedule.levels)
        number = round(most) if most == round(most) else most
        if given:
            arguments = [*rest, option, str(number)]
        elif isinstance(inside, dict):
            inside[key] = number
    if moved:
        section["schedules"] = [*section.get("schedules", []), *moved]
    return section, arguments
