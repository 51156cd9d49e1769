"""The settings of a Python script that trains with TRL, read from its syntax tree: no line of it is run.

Read are the keywords of ``GRPOConfig``, ``LoraConfig`` and ``GRPOTrainer``, wherever they are written, where each is a
literal or follows from literals: a variable that is assigned once, an argument's default (``argparse``, ``dataclass``,
parameters of a function), an entry of a dictionary, an f-string, sums and products of numbers. Everything else is
listed as text, so the recipe asks for it.
"""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmgrpo.cli.migrate.expressions import Unread, name_of, value
from mmgrpo.cli.migrate.python_file import parse
from mmgrpo.cli.migrate.sources import Source, plain
from mmgrpo.cli.migrate.tables import table

CONFIGS = ("GRPOConfig", "ModelConfig", "ScriptArguments", "GRPOScriptArguments")
"""Classes of TRL whose fields are settings of its table."""

WORDS = table("trl").words
"""Parameters of functions as TRL's command line calls them."""


@dataclass(frozen=True)
class Theirs:
    """The value of a setting of TRL's own dataclasses, which the command line gives or a default of TRL is."""

    name: str


@dataclass
class Script:
    """One script: what its names stand for."""

    source: Source
    tree: ast.Module
    flags: Mapping[str, Any]
    """What is given behind --; it replaces defaults of the script's own arguments."""
    names: dict[str, list[ast.expr]] = field(default_factory=dict)
    """Name to all expressions that are assigned to it."""
    branched: set[str] = field(default_factory=set)
    """Names that are assigned in a branch or a loop."""
    imports: dict[str, str] = field(default_factory=dict)
    """Name to the module that it is imported from."""
    functions: dict[str, ast.FunctionDef | ast.AsyncFunctionDef] = field(default_factory=dict)
    definitions: dict[str, ast.stmt] = field(default_factory=dict)
    """Name to the function or class that is defined by it."""
    arguments: dict[str, ast.expr | None] = field(default_factory=dict)
    """Arguments of ``argparse`` and fields of dataclasses, with their defaults."""
    parsers: dict[str, str] = field(default_factory=dict)
    """Variables that hold parsed arguments, with the class of their fields; empty: of argparse."""
    used: set[str] = field(default_factory=set)
    """The flags that were taken for arguments of the script."""
    attributes: list[tuple[str, str, ast.expr]] = field(default_factory=list)
    """``name.attribute = value``."""

    # ---- what the names stand for

    def collect(self) -> None:
        """Read assignments, imports, functions and arguments of the whole file."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom):
                self.imports |= {alias.asname or alias.name: node.module or "" for alias in node.names}
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self.functions.setdefault(node.name, node)
                self.definitions.setdefault(node.name, node)
                self.parameters(node)
            elif isinstance(node, ast.ClassDef):
                self.definitions.setdefault(node.name, node)
                self.fields(node)
            elif isinstance(node, ast.Call) and name_of(node.func).endswith(".add_argument"):
                self.argument(node)
        self.assignments(self.tree.body, False)

    def parameters(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """Defaults of a function's parameters, and what its only call gives instead."""
        order = [*node.args.posonlyargs, *node.args.args]
        given = dict(zip([p.arg for p in order[len(order) - len(node.args.defaults) :]], node.args.defaults))
        given |= {
            p.arg: value
            for p, value in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
            if value is not None
        }
        calls = [call for call in ast.walk(self.tree) if isinstance(call, ast.Call) and name_of(call.func) == node.name]
        if len(calls) == 1:
            given |= {p.arg: value for p, value in zip(order, calls[0].args, strict=False)}
            given |= {keyword.arg: keyword.value for keyword in calls[0].keywords if keyword.arg}
        if not is_reward(node):
            for name, value in given.items():
                self.names.setdefault(name, []).append(value)

    def fields(self, node: ast.ClassDef) -> None:
        """The defaults of a dataclass's fields, and of class attributes that are constants."""
        for statement in node.body:
            target = statement.target if isinstance(statement, ast.AnnAssign) else None
            if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
                target = statement.targets[0]
            if not isinstance(target, ast.Name) or not isinstance(statement, ast.AnnAssign | ast.Assign):
                continue
            value = statement.value
            if isinstance(value, ast.Call) and name_of(value.func).rpartition(".")[2] == "field":
                options = {keyword.arg: keyword.value for keyword in value.keywords}
                value = options.get("default", options.get("default_factory"))
                value = value.body if isinstance(value, ast.Lambda) else value
            self.arguments[f"{node.name}.{target.id}"] = value
            self.arguments.setdefault(target.id, value)

    def argument(self, node: ast.Call) -> None:
        """An argument of argparse."""
        texts = [
            argument.value
            for argument in node.args
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
        ]
        options = {keyword.arg: keyword.value for keyword in node.keywords}
        long = next((text for text in texts if text.startswith("--")), texts[0] if texts else "")
        target = options.get("dest")
        name = str(target.value) if isinstance(target, ast.Constant) else long.lstrip("-").replace("-", "_")
        action = options.get("action")
        default: ast.expr | None = options.get("default")
        if default is None and isinstance(action, ast.Constant) and action.value in ("store_true", "store_false"):
            default = ast.Constant(action.value == "store_false")
        if name:
            self.arguments[name] = default

    def assignments(self, body: Sequence[ast.stmt], branch: bool) -> None:
        """The assignments of some statements, in their order."""
        for node in body:
            targets = node.targets if isinstance(node, ast.Assign) else []
            if isinstance(node, ast.AnnAssign) and node.value is not None:
                targets = [node.target]
            value = getattr(node, "value", None)
            for target in targets:
                if isinstance(target, ast.Name) and isinstance(value, ast.expr):
                    self.names.setdefault(target.id, []).append(value)
                    self.branched |= {target.id} if branch else set()
                    if isinstance(value, ast.Call) and re.search(r"\.parse_(known_)?args$", name_of(value.func)):
                        self.parsers[target.id] = ""
                    elif isinstance(value, ast.Call) and "parse_args" in name_of(value.func):
                        self.parsers |= dict(zip([target.id], self.classes(value), strict=False))
                elif isinstance(target, ast.Tuple) and isinstance(value, ast.Call):
                    several = [element.id if isinstance(element, ast.Name) else "" for element in target.elts]
                    if "parse_args" in name_of(value.func):
                        self.parsers |= dict(zip(several, self.classes(value), strict=False))
                    elif name_of(value.func).endswith("from_pretrained") and several[0]:  # model, tokenizer of unsloth
                        self.names.setdefault(several[0], []).append(value)
                elif isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
                    self.attributes.append((target.value.id, target.attr, value))  # type: ignore[arg-type]
            guard = isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)
            for name in ("body", "orelse", "finalbody"):
                inner = getattr(node, name, None)
                if isinstance(inner, list) and not isinstance(node, ast.ClassDef):
                    plainly = guard or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.With | ast.Try)
                    if not (isinstance(node, ast.FunctionDef) and is_reward(node)):
                        self.assignments(inner, branch or not plainly)

    def classes(self, call: ast.Call) -> list[str]:
        """The dataclasses of ``HfArgumentParser((A, B)).parse_args_into_dataclasses()`` and of ``TrlParser``."""
        made = call.func.value if isinstance(call.func, ast.Attribute) else None
        if isinstance(made, ast.Name) and len(self.names.get(made.id, [])) == 1:
            made = self.names[made.id][0]
        if not isinstance(made, ast.Call) or not (made.args or made.keywords):
            return []
        several = made.args[0] if made.args else made.keywords[0].value
        items = several.elts if isinstance(several, ast.Tuple | ast.List) else [several]
        return [name_of(item).rpartition(".")[2] for item in items]

    # ---- values

    def value(self, node: ast.expr | None, depth: int = 0) -> Any:
        """The value of an expression; ``Unread`` where the text does not say it."""
        return value(node, self.look_up, depth)

    def look_up(self, node: ast.expr, depth: int) -> Any:
        """What a name or an attribute stands for."""
        if isinstance(node, ast.Attribute):
            return self.attribute(node, depth)
        return self.value(self.only(node.id) if isinstance(node, ast.Name) else None, depth + 1)

    def only(self, name: str) -> ast.expr:
        """What a name is assigned, where that is known."""
        several = self.names.get(name, [])
        if not several or (name in self.branched and len({ast.dump(value) for value in several}) > 1):
            raise Unread
        return several[-1]

    def attribute(self, node: ast.Attribute, depth: int) -> Any:
        """``args.learning_rate``, ``torch.bfloat16``, ``Settings.lr``, ``config.output_dir``."""
        text = name_of(node)
        if re.fullmatch(r"torch\.(bfloat16|float16|float32)", text):
            return node.attr
        holder = node.value.id if isinstance(node.value, ast.Name) else ""
        kind = self.parsers.get(holder)
        if kind in CONFIGS:
            return Theirs(node.attr)
        if kind is None and holder in self.names:
            made = self.only(holder)
            if isinstance(made, ast.Call):
                inner = name_of(made.func).rpartition(".")[2]
                keywords = {keyword.arg: keyword.value for keyword in made.keywords}
                if node.attr in keywords:
                    return self.value(keywords[node.attr], depth + 1)
                kind = inner
        qualified = f"{kind or holder}.{node.attr}"
        if kind == "" or qualified in self.arguments or (kind is not None and node.attr in self.arguments):
            if node.attr in self.flags:
                self.used.add(node.attr)
                return self.flags[node.attr]
            default = self.arguments.get(qualified, self.arguments.get(node.attr))
            if kind == "" and node.attr in self.arguments and default is None:
                return None  # argparse's default
            return self.value(default, depth + 1)
        raise Unread

    def call_of(self, node: ast.expr | None, depth: int = 0) -> ast.Call | None:
        """The call that an expression is, or that its name is assigned; ``f(x).to("cuda")`` is that of ``f``."""
        if isinstance(node, ast.Name) and depth < 10:
            with contextlib.suppress(Unread):
                return self.call_of(self.only(node.id), depth + 1)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and depth < 10:
            if node.func.attr in ("to", "cuda", "cpu", "eval", "train", "half", "bfloat16", "float"):
                return self.call_of(node.func.value, depth + 1)
        return node if isinstance(node, ast.Call) else None

    # ---- what becomes a setting

    def put(self, key: str, node: ast.expr | None) -> None:
        """A setting of TRL from an expression."""
        try:
            value = self.value(node)
        except Unread:
            value = None
            text = ast.unparse(node)[:200] if node is not None else "nothing"
            self.source.values.pop(key, None)
            self.source.unread[key] = f"{text} (line {getattr(node, 'lineno', 0)})"
            return
        if isinstance(value, Theirs):
            if value.name != key and value.name in self.flags:
                self.source.put(key, self.flags[value.name])
            return
        self.source.put(key, list(value) if isinstance(value, tuple | set) else value)

    def keywords(self, call: ast.Call, renamed: Mapping[str, str] | None = None, where: str = "") -> None:
        """The keywords of a configuration, and of a dictionary that it is unpacked from."""
        for keyword in call.keywords:
            if keyword.arg is not None:
                key = keyword.arg if renamed is None else renamed.get(keyword.arg, f"{where}{keyword.arg}")
                if key:
                    self.put(key, keyword.value)
                continue
            inner = keyword.value
            with contextlib.suppress(Unread):
                inner = self.only(inner.id) if isinstance(inner, ast.Name) else inner
            if isinstance(inner, ast.Call) and name_of(inner.func) == "dict":
                self.keywords(inner, renamed, where)
            elif isinstance(inner, ast.Dict) and all(isinstance(key, ast.Constant) for key in inner.keys):
                pairs = [ast.keyword(str(k.value), v) for k, v in zip(inner.keys, inner.values, strict=True)]  # type: ignore[union-attr]
                self.keywords(ast.Call(inner, [], pairs), renamed, where)
            else:
                self.source.unread[f"{where}**{ast.unparse(keyword.value)[:60]}"] = f"(line {call.lineno})"

    def run(self) -> None:
        """Put all settings of the script."""
        self.collect()
        calls = [node for node in ast.walk(self.tree) if isinstance(node, ast.Call)]
        trainers = [call for call in calls if name_of(call.func).endswith("GRPOTrainer")]
        if len(trainers) != 1:
            lines = ", ".join(str(call.lineno) for call in trainers)
            raise ValueError(
                f"{self.source.name}: got {len(trainers)} calls of GRPOTrainer{f' (lines {lines})' * bool(lines)}, "
                "expected one; a script without it is no script of TRL's GRPO"
            )
        trainer = trainers[0]
        given: dict[str, ast.expr] = dict(zip(("model", "reward_funcs", "args"), trainer.args, strict=False))
        given |= {keyword.arg: keyword.value for keyword in trainer.keywords if keyword.arg}
        for keyword in trainer.keywords:
            if keyword.arg is None:
                self.source.unread[f"GRPOTrainer.**{ast.unparse(keyword.value)[:60]}"] = f"(line {trainer.lineno})"
        self.configuration(given.get("args"))
        self.model(given.get("model"))
        self.adapters(given.get("peft_config"), calls)
        self.rewards(given.get("reward_funcs"), trainer)
        for key in ("tools", "environment_factory"):
            value = given.get(key)
            if value is not None and not (isinstance(value, ast.Constant) and value.value is None):
                self.source.put(key, self.names_of(value, trainer))
        self.data(given.get("train_dataset"), given.get("eval_dataset"))
        for key, value in given.items():
            if key not in WORDS["GRPOTrainer"]:
                self.put(key if key in table("trl").rows else f"GRPOTrainer.{key}", value)

    def configuration(self, node: ast.expr | None) -> None:
        """``args=GRPOConfig(...)``, or the dataclass of a parser; then ``name.attribute = value``."""
        call = self.call_of(node)
        if call is not None and name_of(call.func).rpartition(".")[2] == "GRPOConfig":
            if call.args:
                self.put("output_dir", call.args[0])
            self.keywords(call)
        elif node is not None and not (isinstance(node, ast.Name) and self.parsers.get(node.id) == "GRPOConfig"):
            self.source.unread["GRPOTrainer.args"] = f"{ast.unparse(node)[:200]} (line {node.lineno})"
        if isinstance(node, ast.Name):
            for holder, name, value in self.attributes:
                if holder == node.id:
                    self.put(name, value)

    def model(self, node: ast.expr | None) -> None:
        """``model="id"`` or a model of ``from_pretrained``, through ``get_peft_model`` too."""
        call = self.call_of(node)
        for _ in range(3):
            if call is None or not name_of(call.func).endswith("get_peft_model"):
                break
            inner = call.args[0] if call.args else None
            # model = get_peft_model(model, ...): the name stands for both
            several = self.names.get(inner.id, []) if isinstance(inner, ast.Name) else []
            made = [
                value
                for value in several
                if isinstance(value, ast.Call) and not ast.unparse(value.func).endswith("peft_model")
            ]
            call = made[-1] if made else self.call_of(inner)
        if call is not None and name_of(call.func).endswith("from_pretrained"):
            keywords = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
            named = (
                call.args[0] if call.args else keywords.get("model_name", keywords.get("pretrained_model_name_or_path"))
            )
            self.put("model_name_or_path", named)
            self.keywords(call, WORDS["from_pretrained"], "from_pretrained.")
        elif node is not None:
            self.put("model_name_or_path", node)

    def adapters(self, node: ast.expr | None, calls: Sequence[ast.Call]) -> None:
        """``peft_config=LoraConfig(...)``, or the one that ``get_peft_model`` is given."""
        wrapped = [call for call in calls if name_of(call.func).endswith("get_peft_model")]
        if node is None and len(wrapped) == 1:
            call = wrapped[0]
            keywords = {keyword.arg: keyword.value for keyword in call.keywords}
            node = call.args[1] if call.args[1:] else keywords.get("peft_config")
            if node is None:  # of unsloth, which has the parameters of LoraConfig
                self.source.put("use_peft", True)
                self.keywords(call, WORDS["get_peft_model"], "get_peft_model.")
                return
        if node is None or (isinstance(node, ast.Constant) and node.value is None):
            return
        call = self.call_of(node)
        kind = name_of(call.func).rpartition(".")[2] if call is not None else ""
        if call is not None and kind == "LoraConfig":
            self.source.put("use_peft", True)
            self.keywords(call, WORDS["LoraConfig"], "LoraConfig.")
            self.source.values.setdefault("lora_r", 8)  # peft's defaults, which are not those of TRL's command line
            self.source.values.setdefault("lora_alpha", 8)
        elif kind != "get_peft_config":  # of ModelConfig, whose settings the command line gives
            self.source.unread["peft_config"] = f"{ast.unparse(node)[:200]} (line {node.lineno})"

    def rewards(self, node: ast.expr | None, trainer: ast.Call) -> None:
        """``reward_funcs``: functions of the script, of a module, of TRL, or the name of a reward model."""
        if node is not None:
            self.source.put("reward_funcs", self.names_of(node, trainer))

    def names_of(self, node: ast.expr, trainer: ast.Call) -> list[str]:
        """The names of one function or class, or of several."""
        with contextlib.suppress(Unread):
            while isinstance(node, ast.Name) and node.id not in self.definitions and node.id in self.names:
                node = self.only(node.id)
        several = node.elts if isinstance(node, ast.List | ast.Tuple) else [node]
        return [self.reward(item, trainer) for item in several]

    def reward(self, node: ast.expr, trainer: ast.Call) -> str:
        """The name of one reward, as a recipe names it; what has none is in parentheses."""
        if isinstance(node, ast.Name):
            if node.id in self.definitions:
                return self.function_of_script(node.id, trainer)
            if node.id in self.imports:
                module = self.imports[node.id]
                return node.id if module.startswith("trl") else f"{module}:{node.id}"
            if len(self.names.get(node.id, [])) == 1:
                return self.reward(self.names[node.id][0], trainer)
        with contextlib.suppress(Unread):
            value = self.value(node)
            if isinstance(value, str):
                return f"(the reward model {value})"
        return f"({ast.unparse(node)[:100]}, line {node.lineno})"

    def function_of_script(self, name: str, trainer: ast.Call) -> str:
        """A function of the script itself. To name it imports the script, which must not train then."""
        path = Path(self.source.name)
        parts = list(path.with_suffix("").parts)
        nested = self.definitions[name] not in self.tree.body
        guarded = any(
            isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.If)
            and (not isinstance(statement, ast.If) or "__name__" in ast.unparse(statement.test))
            and any(inner is trainer for inner in ast.walk(statement))
            for statement in self.tree.body
        )
        if path.is_absolute():
            with contextlib.suppress(ValueError):
                parts = list(path.relative_to(Path.cwd()).with_suffix("").parts)
        if nested or not guarded or not all(part.isidentifier() for part in parts):
            why = "which is inside of another function" if nested else "which trains when it is imported"
            why = why if nested or not guarded else "which is no name of a module"
            return f"({name} of {path.name}, {why}: move it to a file of its own in the working directory)"
        return f"{'.'.join(parts)}:{name}"

    def data(self, train: ast.expr | None, held: ast.expr | None) -> None:
        """The data sets: ``load_dataset(...)`` behind ``map``, ``filter`` and the like, which are listed."""
        place = self.place(train, "train_dataset", ())
        if place:
            name, config, split = place
            self.source.put("dataset_name", name)
            if config:
                self.source.put("dataset_config", config)
            if split and not name.endswith((".json", ".jsonl", ".parquet", ".txt")):
                self.source.put("dataset_train_split", split)
        elif train is not None and "dataset_name" not in self.flags:
            self.source.unread["train_dataset"] = f"{ast.unparse(train)[:200]} (line {train.lineno})"
        if held is None or (isinstance(held, ast.Constant) and held.value is None):
            return
        other = self.place(held, "eval_dataset", ())
        if other and place and other[:2] == place[:2] and other[2] not in ("", place[2]):
            self.source.values.setdefault("eval_strategy", "steps")
            self.source.put("dataset_test_split", other[2])
        elif self.source.values.get("eval_strategy", "no") != "no":
            self.source.unread["eval_dataset"] = f"{ast.unparse(held)[:200]} (line {held.lineno})"

    def place(self, node: ast.expr | None, what: str, seen: tuple[str, ...]) -> tuple[str, str, str] | None:
        """Name, configuration and split of a data set; steps that change its rows are listed as not read."""
        if isinstance(node, ast.Name) and len(seen) < 20:
            several = [value for value in self.names.get(node.id, []) if f"{node.id}{value.lineno}" not in seen]
            if not several:
                return None
            # dataset = dataset.map(...): each assignment stands on the one before
            return self.place(several[-1], what, (*seen, f"{node.id}{several[-1].lineno}"))
        if isinstance(node, ast.Subscript):
            location = self.place(node.value, what, seen)
            if location and isinstance(node.slice, ast.Constant):
                return (location[0], location[1], str(node.slice.value)) if not location[2] else location
            return (
                (location[0], location[1], "")
                if location and isinstance(self.attempt(node.slice), Theirs)
                else location
            )
        if not isinstance(node, ast.Call):
            return None
        name = name_of(node.func).rpartition(".")[2]
        if name == "load_dataset":
            return self.dataset_of_call(node)
        if isinstance(node.func, ast.Attribute):
            if name in ("map", "filter", "select", "rename_column", "add_column", "cast_column", "train_test_split"):
                text = ast.unparse(node)[len(ast.unparse(node.func.value)) :][:200]
                self.source.unread[f"{what}.{name} (line {node.lineno})"] = text
            return self.place(node.func.value, what, seen)
        inner = self.functions.get(name)
        if inner is not None and len(seen) < 20:  # get_dataset(split) of the script itself
            made = [
                statement.value
                for statement in ast.walk(inner)
                if isinstance(statement, ast.Return) and statement.value is not None
            ]
            if len(made) == 1:
                return self.place(made[0], what, (*seen, name))
        return None

    def attempt(self, node: ast.expr) -> Any:
        try:
            return self.value(node)
        except Unread:
            return None

    def dataset_of_call(self, node: ast.Call) -> tuple[str, str, str] | None:
        """``load_dataset("id", "config", split="train")``, or the file of ``load_dataset("json", data_files=...)``."""
        keywords = {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
        given = [*node.args, None, None][:2]
        values = [self.attempt(argument) if argument is not None else None for argument in given]
        name = values[0] if values[0] is not None else self.attempt(keywords.get("path", ast.Name("")))
        if isinstance(name, Theirs):
            name = self.flags.get(name.name)
        config = values[1] if values[1] is not None else self.attempt(keywords.get("name", ast.Name("")))
        split = self.attempt(keywords.get("split", ast.Name("")))
        files = self.attempt(keywords.get("data_files", ast.Name("")))
        if isinstance(files, dict):
            files = files.get("train")
        if isinstance(files, list) and len(files) == 1:
            files = files[0]
        if name in ("json", "parquet", "csv", "text"):
            return (files, "", "") if isinstance(files, str) else None
        if not isinstance(name, str):
            return None
        return name, config if isinstance(config, str) else "", split if isinstance(split, str) else ""


def from_trl_script(source: Source, text: str, flags: Mapping[str, Any]) -> set[str]:
    """Put the settings of a script; returns the ``flags`` that are arguments of the script itself."""
    script = Script(source, parse(source, text), flags)
    try:
        script.run()
    except RecursionError as error:
        raise ValueError(f"{source.name}: is nested too deeply to be read") from error
    return script.used - {*table("trl").rows}


def is_reward(node: ast.AST) -> bool:
    """Whether a function is a reward in TRL's form."""
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and any(
        argument.arg == "completions" for argument in (*node.args.args, *node.args.kwonlyargs)
    )


def flags_of(words: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Flags behind -- by name, for arguments of a script."""
    source = Source("the command line")
    from mmgrpo.cli.migrate.sources import from_words

    from_words(source, words)
    for key, theirs in source.values.items():
        yield key, plain(theirs) if isinstance(theirs, str) else theirs
