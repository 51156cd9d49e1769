"""Reading settings: dataclass defaults, overridden by a YAML recipe, overridden by the command line.

The preset lies between the defaults and the file, in the ``algorithm`` section and in those settings of ``sampling``
and ``data`` that make a run what its name says. Unknown keys, renamed keys, values of the wrong type and unknown
presets are errors that name the file, the key and the nearest valid name.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import typing
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from copy import deepcopy
from io import StringIO
from pathlib import Path
from typing import Any, TypeVar, cast

import yaml

from mmgrpo.config.advice import as_option, hint, usage_errors
from mmgrpo.config.names import nearest
from mmgrpo.config.presets import CATALOGUE, POLICIES, PRESETS
from mmgrpo.config.ranges import check_ranges, check_value, declarations, short_repr
from mmgrpo.config.schedules import move_schedules
from mmgrpo.config.settings import LAUNCH, Algorithm, Config
from mmgrpo.files import write_text

C = TypeVar("C")

MAX_BYTES = 1 << 20
"""Bytes of a file of settings."""

MAX_VALUES = 20_000
"""Values of a file of settings, once its aliases are expanded."""

MAX_DEPTH = 50
"""Levels of lists and sections within each other."""

MAX_DIGITS = 10_000
"""Characters of a number or a date in YAML."""

RENAMED = {
    "data.per_round": "data.prompts_per_step",
    "data.also": "data.extra_train",
    "data.references": "data.reference_in_group",
    "sampling.states_at_once": "sampling.forward_batch_size",
    "sampling.rows_at_once": "eval.batch_size",
    "sampling.tokens_at_once": "sampling.logits_chunk_size",
    "algorithm.weights": "algorithm.aggregation",
    "algorithm.given": "algorithm.off_policy",
    "optim.evaluations_at_once": "optim.micro_batch_size",
    "optim.blend": "optim.interpolation",
    "eval.also": "eval.extra",
    "data.picture_cache": "data.image_cache",
}
"""Old names of settings to their present names, read with a notice for one release."""

REPLACED = {"sampling.shift": "sampling.grid"}
"""Old names of settings whose values have another form now."""


def read_config(
    kind: type[C], arguments: Sequence[str], section: Mapping[str, Any], where: str, about: str, stored: bool = False
) -> C:
    """A configuration of dataclass ``kind`` from a YAML mapping (of file ``where``), overridden by a command line.
    ``stored``: the file is that of a run, whose settings are all there were, and whatever it lacks has its default."""
    section, arguments = present_section(section, where), present_options(arguments)
    section, arguments = move_schedules(drop_undecided(section, arguments, where), arguments, take_option)
    algorithm = section.get("algorithm", {})
    # The file's other algorithm keys override a preset, also one of the command line, so the preset is set first.
    preset, _ = take_option(arguments, "--algorithm.preset")
    if preset and isinstance(algorithm, Mapping):
        section = {**section, "algorithm": {**algorithm, "preset": preset}}
    if not stored:
        section = with_preset(kind, section, where, take_option(arguments, "--sampling.policy")[0])
    return from_arguments(build(kind, section, where), arguments, about)


def with_preset(kind: type, section: Mapping[str, Any], where: str, policy: str = "") -> dict[str, Any]:
    """A section with the settings of its preset (``preset_settings``) where it states none itself. ``policy``: the kind
    of decisions that the command line asks for; those of another kind leave the settings of the preset out."""
    algorithm, sampling = section.get("algorithm", {}), section.get("sampling", {})
    if not isinstance(algorithm, Mapping):
        return dict(section)
    settings = preset_settings(kind, str(algorithm.get("preset", Algorithm.preset)), where)
    requested = policy or (sampling.get("policy", "") if isinstance(sampling, Mapping) else "")
    if requested and "sampling" in settings and requested != settings["sampling"].get("policy", "transitions"):
        del settings["sampling"]
    changed = dict(section)
    for part, values in settings.items():
        stated = section.get(part, {})
        if isinstance(stated, Mapping):
            changed[part] = values | dict(stated)
    return changed


def preset_settings(kind: type, name: str, where: str) -> dict[str, dict[str, Any]]:
    """The settings ``sampling`` and ``data`` of a preset that a configuration of this kind has, at the values for the
    process of its family."""
    if name not in CATALOGUE:
        raise ValueError(f"{where}: unknown preset {name!r}.{nearest(name, PRESETS, 'mmgrpo presets')}")
    preset, hints = CATALOGUE[name], typing.get_type_hints(kind)
    chosen: dict[str, dict[str, Any]] = {}
    for part, values in (("sampling", preset.sampling), ("data", preset.data)):
        known = {f.name for f in dataclasses.fields(hints[part])} if dataclasses.is_dataclass(hints.get(part)) else {}
        for key, value in values.items():
            if key in known and isinstance(value, dict) and (process := getattr(kind, "process", "")) in value:
                chosen.setdefault(part, {})[key] = value[process]
            elif key in known and not isinstance(value, dict):
                chosen.setdefault(part, {})[key] = value
    return deepcopy(chosen)


def compare_with_preset(config: Config) -> dict[str, tuple[Any, Any]]:
    """The settings by which a preset samples, by dotted name: as they are in a run, and those of the preset."""
    settings = preset_settings(type(config), config.algorithm.preset, "the run")
    return {
        f"{part}.{key}": (getattr(getattr(config, part), key), value)
        for part, values in settings.items()
        for key, value in values.items()
    }


def sampled_as(config: Config) -> str:
    """The pairs of ``compare_with_preset`` in words; empty: the preset has no such settings."""
    return ", ".join(
        f"{name}={value}" + (f" (in place of {usual})" if value != usual else "")
        for name, (value, usual) in compare_with_preset(config).items()
    )


@contextmanager
def naming_preset(config: Config) -> Iterator[None]:
    """Errors of a setting that the user did not write also say that it is the preset's."""
    try:
        yield
    except ValueError as error:
        name, preset = str(error).partition(":")[0], config.algorithm.preset
        value, usual = compare_with_preset(config).get(name, (None, ""))
        if value == usual and len(error.args) == 1:
            error.args = (f"{error}; {name}={value} is that of the preset '{preset}', which --{name} overrides",)
        raise


def present_section(section: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A file's section with the present names of settings in the place of old ones (``RENAMED``), each named
    in a warning; ValueError for a file that has both."""
    changed = deepcopy(dict(section))
    for old, new in RENAMED.items():
        (part, key), (now_part, now_key) = old.split("."), new.split(".")
        if isinstance(changed.get(part), dict) and key in changed[part]:
            target = changed.setdefault(now_part, {})
            if not isinstance(target, dict) or now_key in target:
                raise ValueError(f"{where}: '{old}' is called '{new}' now, and '{new}' is given too; remove '{old}'")
            target[now_key] = changed[part].pop(key)
            warnings.warn(f"{where}: '{old}' is called '{new}' now", stacklevel=3)
    return changed


def present_options(arguments: Sequence[str]) -> list[str]:
    """A command line with the present names of options in the place of old ones, each named in a warning."""
    options = {f"--{old}".replace("_", "-"): f"--{new}".replace("_", "-") for old, new in RENAMED.items()}
    words = []
    for word in arguments:
        name, equals, value = word.partition("=")
        option = options.get(name.replace("_", "-")) if word.startswith("--") else None
        if option:
            warnings.warn(f"the command line: '{name}' is called '{option}' now", stacklevel=3)
        words.append(f"{option}{equals}{value}" if option else word)
    return words


UNDECIDED = "???"
"""Beginning of a value that is still to be written, as in OmegaConf; what follows says why (``mmgrpo migrate``)."""


def undecided_settings(section: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """The settings of a file that are not decided yet, with what each still needs.

    These are values that begin with ``???``, or that contain such a one, and all entries of a section ``undecided``,
    which holds settings of another project that no setting of ours stands for.
    """
    undecided: dict[str, str] = {}
    for key, value in section.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            if name == "undecided":
                undecided |= {
                    f"{name}.{inner}": reason if isinstance(reason, str) else short_repr(reason)
                    for inner, reason in value.items()
                }
            else:
                undecided |= undecided_settings(value, f"{name}.")
            continue
        several = value if isinstance(value, list) else [value]
        words = [item for item in several if isinstance(item, str) and item.startswith(UNDECIDED)]
        texts = [word.removeprefix(UNDECIDED).strip() for word in words]
        if texts:
            undecided[name] = "; ".join(texts)
    return undecided


def drop_undecided(section: Mapping[str, Any], arguments: Sequence[str], where: str) -> dict[str, Any]:
    """The settings of a file without those that the command line decides; ValueError that lists what nobody decides."""
    given = {word.partition("=")[0].removeprefix("--").replace("-", "_") for word in arguments if word[:2] == "--"}
    left = undecided_settings(section)
    if missing := {name: text for name, text in left.items() if name not in given}:
        lines = "; ".join(f"{name} ({text[:300]})" if text else name for name, text in missing.items())
        raise ValueError(
            f"{where}: not decided yet: {lines}. Write a value in the place of each ???, and delete each line of "
            "'undecided' once it is dealt with"
        )
    return without(section, left.keys())


def without(section: Mapping[str, Any], names: Collection[str], prefix: str = "") -> dict[str, Any]:
    """A section without the settings of these dotted names, and without the section ``undecided``."""
    return {
        key: without(value, names, f"{prefix}{key}.") if isinstance(value, Mapping) else value
        for key, value in section.items()
        if f"{prefix}{key}" not in names and f"{prefix}{key}" != "undecided"
    }


def from_arguments(default: C, arguments: Sequence[str], about: str) -> C:
    """Override a configuration by a command line; an unknown option is an error that names the nearest one, and a value
    outside of its range one that names the option."""
    config, unknown = _parse_options(default, arguments, about)
    if unknown:
        if not unknown[0].startswith("-"):
            whole = next((argument for argument in arguments if argument.endswith(f"={unknown[0]}")), unknown[0])
            raise ValueError(
                f"the command line: unexpected value in '{whole}'; a switch takes no value, write --x or --no-x"
            )
        name = unknown[0].split("=")[0]
        key = name.removeprefix("--").replace("-", "_")
        if key in REPLACED:
            raise ValueError(f"the command line: '{name}' became --{REPLACED[key].replace('_', '-')}; see --help")
        likely = hint(key, setting_names(type(default)), as_option)
        raise ValueError(f"the command line: unknown option '{name}'.{likely} --help lists all options.")
    check_ranges(config, "the command line", "--", option=True)
    return config


def _parse_options(default: C, arguments: Sequence[str], about: str) -> tuple[C, list[str]]:
    """A configuration with the options of a command line, and the words of it that are none.

    A parser of all options takes a tenth of a second to make, so first one of those is made that are given; the
    other says what is wrong with a line that cannot be read, and prints the help.
    """
    import tyro

    if isinstance(default, Config) and (names := _given_options(type(default), arguments)) is not None:
        few = _few(default, names)
        try:
            with redirect_stderr(StringIO()), redirect_stdout(StringIO()):
                read, unknown = tyro.cli(type(few), args=list(arguments), default=few, return_unknown_args=True)
        except SystemExit:
            unknown = ["a value that is none of its option"]
        if not unknown:
            return _merge(default, read), []
    with usage_errors():
        return tyro.cli(
            type(default), args=list(arguments), default=default, description=about, return_unknown_args=True
        )


def _given_options(kind: type, arguments: Sequence[str]) -> set[str] | None:
    """The options that a command line names, a switch that it turns off by its name; None where one is not known."""
    known, given = set(option_names(kind)), set()
    for word in arguments:
        if word.startswith("--"):
            name = word.partition("=")[0].replace("_", "-")
            section, _, last = name.removeprefix("--").rpartition(".")
            name = name if name in known else f"--{section}{'.' * bool(section)}{last.removeprefix('no-')}"
            if name not in known:
                return None
            given.add(name)
    return given


def _few(default: Any, names: Collection[str], prefix: str = "--") -> Any:
    """Those settings of a configuration whose options are in ``names``, as a configuration of their own."""
    types, values = [], {}
    hints = _hints(type(default))
    for f in dataclasses.fields(default):
        option, value = prefix + f.name.replace("_", "-"), getattr(default, f.name)
        if dataclasses.is_dataclass(value):
            if any(name.startswith(f"{option}.") for name in names):
                values[f.name] = _few(value, names, f"{option}.")
                types.append((f.name, type(values[f.name])))
        elif option in names:
            values[f.name] = value
            types.append((f.name, hints[f.name]))
    # As a class without source, in which no help is looked for: that takes longer than all the rest.
    return dataclasses.make_dataclass(type(default).__name__, types, namespace={"__module__": "builtins"})(**values)


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    """The annotations of a dataclass, with the ranges that they state."""
    return typing.get_type_hints(kind, include_extras=True)


def _merge(default: C, few: Any) -> C:
    """A configuration with those values that ``few`` has."""
    values = {f.name: getattr(few, f.name) for f in dataclasses.fields(few)}
    inner_values = {
        name: _merge(getattr(default, name), section)
        for name, section in values.items()
        if dataclasses.is_dataclass(section)
    }
    return dataclasses.replace(cast(Any, default), **{**values, **inner_values})


@functools.cache
def option_names(kind: type, prefix: str = "--") -> tuple[str, ...]:
    """The command-line options of a dataclass, nested sections included."""
    hints = typing.get_type_hints(kind)
    names: list[str] = []
    for f in dataclasses.fields(kind):
        name = prefix + f.name.replace("_", "-")
        names += option_names(hints[f.name], f"{name}.") if dataclasses.is_dataclass(hints[f.name]) else [name]
    return tuple(names)


def setting_names(kind: type) -> list[str]:
    """The settings of a dataclass by their dotted names, nested sections included."""
    return [name[2:].replace("-", "_") for name in option_names(kind)]


def build(
    kind: type[C], section: Mapping[str, Any], where: str, prefix: str = "", spelled: Callable[[str], str] = str
) -> C:
    """A dataclass from a mapping; ValueError for an unknown key (the one that is meant is named, ``spelled`` as where
    the mapping was written), type or value."""
    section = section if prefix else present_section(section, where)
    hints = typing.get_type_hints(kind)
    names = [f.name for f in dataclasses.fields(kind)]  # type: ignore[arg-type]
    for key in section:
        if key not in names:
            if f"{prefix}{key}" in RENAMED:  # of a call from Python, whose sections come one by one
                raise ValueError(f"{where}: '{prefix}{key}' is called '{spelled(RENAMED[f'{prefix}{key}'])}' now")
            if f"{prefix}{key}" in REPLACED:
                raise ValueError(
                    f"{where}: '{prefix}{key}' became '{REPLACED[f'{prefix}{key}']}'; see 'mmgrpo train --help'"
                )
            inside = [f"{prefix}{name}" for name in setting_names(kind)]
            raise ValueError(
                f"{where}: unknown key '{prefix}{key}'.{hint(f'{prefix}{key}', inside, spelled)} Known here: "
                f"{', '.join(names)}."
            )
    values: dict[str, Any] = {}
    if kind is Algorithm:
        values.update(preset_values(str(section.get("preset", Algorithm.preset)), where))
    # A file without an algorithm section uses the whole default preset, and not the defaults of single fields.
    absent: dict[str, Any] = {name: {} for name in names if hints[name] is Algorithm}
    for name, value in {**absent, **section}.items():
        expected = hints[name]
        if dataclasses.is_dataclass(expected):
            if not isinstance(value, Mapping):
                raise ValueError(f"{where}: '{prefix}{name}' must be a section of keys, got {short_repr(value)}")
            values[name] = build(expected, value, where, f"{prefix}{name}.", spelled)  # type: ignore[arg-type]
        else:
            values[name] = _number(value) if expected is float else value
            check_value(values[name], *declarations(kind)[name], f"{where}: {prefix}{name}")
    return kind(**values)


def usual(kind: type[C], preset: str) -> C:
    """The configuration of a run whose user gave nothing but a preset."""
    return build(kind, with_preset(kind, {"algorithm": {"preset": preset}}, "the preset"), "the preset")


def preset_values(name: str, where: str) -> dict[str, Any]:
    """The fields of ``Algorithm`` that a preset sets."""
    if name not in PRESETS:
        raise ValueError(f"{where}: unknown preset {name!r}.{nearest(name, PRESETS, 'mmgrpo presets')}")
    return deepcopy(PRESETS[name])


def refuse_preset(name: str, kind: str) -> None:
    """Raise ValueError if a preset requires another kind of policy, with the reason and the suitable presets."""
    expected = CATALOGUE[name].policies
    if expected not in ("any", kind):
        suitable = sorted(other for other, preset in CATALOGUE.items() if preset.policies in ("any", kind))
        raise ValueError(
            f"preset '{name}' is for {expected} policies ({POLICIES[expected]}); this policy's decisions are {kind}."
            f"{nearest(name, suitable, 'mmgrpo presets').replace(' Known: ', ' Suitable presets: ')}"
        )


def load_yaml(path: str | Path) -> dict[str, Any]:
    """Read a YAML mapping; a missing file, invalid YAML and other values are errors that name the file."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"no such file: {path}; 'mmgrpo recipes' lists the recipes that mmgrpo includes")
    if (size := Path(path).stat().st_size) > MAX_BYTES:
        raise ValueError(f"{path} has {size:,} bytes, expected at most {MAX_BYTES:,}; this is no configuration")
    try:
        loader = _Loader(Path(path).read_text(encoding="utf-8"))
        root = loader.get_single_node()
        if root is not None:
            _refuse_large(root)
        section = loader.construct_document(root) if root is not None else None
    # Of values under a tag that they do not fit (!!int "", !!bool x, !!timestamp x) PyYAML raises whatever comes up.
    except (
        yaml.YAMLError,
        ValueError,
        RecursionError,
        ArithmeticError,
        LookupError,
        AttributeError,
        TypeError,
    ) as error:
        problem = " ".join(
            (str(error) if isinstance(error, yaml.YAMLError | ValueError | RecursionError) else "").split()
        )
        raise ValueError(f"{path} is not valid YAML: {problem or 'a value does not fit its tag (!!...)'}") from error
    if not isinstance(section, dict):
        raise ValueError(f"{path} must hold a mapping of keys to values, got {type(section).__name__}")
    return section


def write_yaml(path: Path, config: Any) -> None:
    """Write a configuration with all of its fields but those of a start (``LAUNCH``)."""
    section = {name: value for name, value in dataclasses.asdict(config).items() if name not in LAUNCH}
    write_text(path, yaml.safe_dump(section, sort_keys=False, allow_unicode=True))


def flatten(section: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as one level of ``section.key``."""
    values: dict[str, Any] = {}
    for key, value in section.items():
        values |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return values


def without_launch(section: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The settings of a file without those of a start, which older files hold; ValueError for one that is set, since a
    run that reads the file would replace or continue another without being asked."""
    for name in LAUNCH:
        if section.get(name):
            option = f"--{name.replace('_', '-')}"
            raise ValueError(
                f"{where}: got {name}: {short_repr(section[name])}, which is an option of the command line only; "
                f"remove the line, and write {option} where it is wanted"
            )
    return {name: value for name, value in section.items() if name not in LAUNCH}


def take_option(arguments: Sequence[str], option: str) -> tuple[str, list[str]]:
    """The last value of ``--option value`` or ``--option=value`` (empty if absent), and the other arguments."""
    value, rest, skip = "", [], False
    for i, argument in enumerate(arguments):
        if skip:
            skip = False
        elif argument == option:
            if i + 1 == len(arguments):
                raise ValueError(f"{option} needs a value")
            value, skip = arguments[i + 1], True
        elif argument.startswith(option + "="):
            value = argument[len(option) + 1 :]
        else:
            rest.append(argument)
    return value, rest


def _number(value: Any) -> Any:
    """A number as a float, also one that YAML 1.1 reads as a string (1e-4 has no dot); other values unchanged."""
    try:
        return float(value) if isinstance(value, int | str) and not isinstance(value, bool) else value
    except OverflowError:  # of an integer beyond all floats
        return math.inf if int(value) > 0 else -math.inf
    except ValueError:
        return value


class _Loader(yaml.SafeLoader):
    """YAML whose size once aliases are expanded is known before anything is made of it (``_refuse_large``).

    A key that a mapping repeats is an error (PyYAML takes the last), and so is a key that is no plain value.
    """

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        lines: dict[str, int] = {}
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise ValueError(f"line {line}: got a {key.id} as a key, expected the name of a setting")
            name = str(key.value)
            if name in lines:
                raise ValueError(
                    f"line {line}: the key '{name[:100]}' is already in line {lines[name]}; remove one of them"
                )
            lines[name] = line
        return node


def _refuse_large(root: yaml.Node) -> None:
    """ValueError for aliases that contain themselves or that expand to more than ``MAX_VALUES`` values, for numbers
    of more than ``MAX_DIGITS`` characters (``1:1:...`` is one, and its time grows with the square), and for texts that
    no file can hold (lone surrogates). Errors name the line and the key, ``model.device``."""
    sizes: dict[int, int] = {}
    open_nodes: set[int] = set()

    def size(node: yaml.Node, key: str = "") -> int:
        line = node.start_mark.line + 1
        place = f"line {line}: {key}" if key else f"line {line}"
        if id(node) in open_nodes:
            raise ValueError(f"line {line}: an alias inside of what it stands for; write the value out")
        if id(node) not in sizes:
            if isinstance(node, yaml.ScalarNode):
                kind = node.tag.rpartition(":")[2]
                if kind in ("int", "float", "timestamp") and len(node.value) > MAX_DIGITS:
                    raise ValueError(
                        f"{place}: got a number of {len(node.value):,} characters, expected at most {MAX_DIGITS}"
                    )
                if any("\ud800" <= character <= "\udfff" for character in node.value):
                    raise ValueError(f"{place}: got a lone surrogate in a text, which is no character; remove it")
                return 1
            open_nodes.add(id(node))
            if len(open_nodes) > MAX_DEPTH:
                raise ValueError(f"line {line}: got values in more than {MAX_DEPTH} levels; this is no configuration")
            if isinstance(node, yaml.MappingNode):
                sizes[id(node)] = 1 + sum(size(name, key) + size(part, inner(key, name)) for name, part in node.value)
            else:
                sizes[id(node)] = 1 + sum(size(part, key) for part in node.value)
            open_nodes.discard(id(node))
            if sizes[id(node)] > MAX_VALUES:
                raise ValueError(
                    f"line {line}: got more than {MAX_VALUES:,} values once aliases are expanded; this is no "
                    "configuration"
                )
        return sizes[id(node)]

    def inner(key: str, name: yaml.Node) -> str:
        plain = "".join(letter if letter.isprintable() else "?" for letter in str(name.value)[:100])
        return f"{key}.{plain}" if key else plain

    size(root)
