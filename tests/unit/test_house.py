"""The rules of the house that a machine can check, read from the sources without importing them."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from tests import ROOT

ROOMS = ("mmgrpo", "pipelines", "reward_models", "scripts", "benchmarks")
MODULES = [path.relative_to(ROOT).as_posix() for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]

CLI = "mmgrpo/cli/"
"""The outermost room: it imports everything, and only scripts and the programs in ``benchmarks`` import it."""

CORE_MAY_IMPORT = {
    *sys.stdlib_module_names,
    *("mmgrpo", "torch", "numpy", "accelerate", "safetensors", "jaxtyping"),
    *("yaml", "tyro", "matplotlib", "PIL", "tqdm", "jinja2"),
}
SERVING = {
    "mmgrpo/scoring/server.py": {"fastapi", "starlette", "uvicorn"},
    "mmgrpo/scoring/served.py": {"httpx", "tenacity"},
    "mmgrpo/scoring/envelope.py": {"soundfile"},
    "mmgrpo/engines/served.py": {"fastapi", "starlette", "httpx"},
    "mmgrpo/runtime/optimizers.py": {"bitsandbytes"},
}
"""What only servers, their clients and optimizers in 8 bits need: imported there alone, and when used."""

MAY_NOT_IMPORT = {
    "mmgrpo": {"pipelines", "reward_models", "scripts", "benchmarks"},
    "pipelines": {"reward_models", "scripts", "benchmarks"},
    "reward_models": {"pipelines", "scripts", "benchmarks"},
    "scripts": {"benchmarks"},
    "benchmarks": set(),
}
HEAVY = {
    "diffusers",
    "transformers",
    "peft",
    "open_clip",
    "rapidocr",
    "onnxruntime",
    "datasets",
    "decord",
    "av",
    "cv2",
    "gradio",
}
VAGUE = {"utils", "util", "helper", "helpers", "manager", "handler", "misc", "common"}


def imports(tree: ast.AST) -> Iterator[str]:
    """Top-level packages imported anywhere in the tree."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." if node.level else (node.module or "").split(".")[0]


def imported_at_start(tree: ast.Module) -> Iterator[str]:
    """Packages that are imported when the module is: outside functions and ``if TYPE_CHECKING``."""
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from imports(node)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting.extend(node.orelse)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            waiting.extend(ast.iter_child_nodes(node))


def unsafe(tree: ast.AST) -> Iterator[str]:
    """What could run code from data: pickle, eval, exec, remote code, torch.load of anything but tensors."""
    for name in imports(tree):
        if name in ("pickle", "dill", "cloudpickle", "shelve", "marshal", "joblib"):
            yield f"imports {name}"
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
        if name in ("eval", "exec", "compile", "__import__", "os.system", "yaml.load", "yaml.unsafe_load"):
            yield f"line {node.lineno}: {name}"
        if name == "torch.load" and given.get("weights_only") != "True":
            yield f"line {node.lineno}: torch.load without weights_only=True"
        if given.get("trust_remote_code", "False") != "False":
            yield f"line {node.lineno}: trust_remote_code"
        if given.get("shell", "False") != "False":
            yield f"line {node.lineno}: shell"
        if name.endswith("load") and given.get("allow_pickle", "False") != "False":
            yield f"line {node.lineno}: allow_pickle"


TREES = {module: ast.parse((ROOT / module).read_text(encoding="utf-8"), module) for module in MODULES}


def offenders(
    find: Callable[[ast.Module], Iterable[str]], *rooms: str, outermost: bool = False
) -> dict[str, list[str]]:
    """What ``find`` objects to in the modules of the rooms, by module; the commands count where they are asked for."""
    chosen = {m: tree for m, tree in TREES.items() if m.split("/")[0] in rooms and (outermost or CLI not in m)}
    found = {module: sorted(find(tree)) for module, tree in chosen.items()}
    return {module: objections for module, objections in found.items() if objections}


def test_the_core_imports_neither_model_libraries_nor_outer_rooms():
    beyond = offenders(lambda tree: set(imports(tree)) - CORE_MAY_IMPORT, "mmgrpo")
    assert {module: set(names) for module, names in beyond.items()} == SERVING
    assert not any(set(imported_at_start(TREES[module])) & names for module, names in SERVING.items())


@pytest.mark.parametrize("room", ROOMS)
def test_arrows_between_rooms_point_inward(room):
    assert offenders(lambda tree: set(imports(tree)) & MAY_NOT_IMPORT[room], room) == {}


def test_only_scripts_and_programs_of_developers_import_the_commands():
    def commands(tree: ast.Module) -> set[str]:
        return {name for name in modules_imported(tree) if name.startswith("mmgrpo.cli")}

    assert offenders(commands, "mmgrpo", "pipelines", "reward_models") == {}


def test_no_module_imports_one_that_imports_it():
    """Not even for types, nor inside functions."""
    names = {module.removesuffix(".py").removesuffix("/__init__").replace("/", "."): module for module in TREES}
    arrows = {
        name: {other for other in modules_imported(TREES[module], names) if other in names and other != name}
        for name, module in names.items()
    }
    assert [cycle for cycle in cycles(arrows)] == []


def modules_imported(tree: ast.AST, known: Iterable[str] = ()) -> set[str]:
    """Full names of the modules imported anywhere in the tree; ``from package import module`` names the module."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= inner & set(known) or {node.module}
    return found


def cycles(arrows: dict[str, set[str]]) -> Iterator[list[str]]:
    """Sets of modules that lead back to each other: the strongly connected components of more than one."""
    order: list[str] = []
    seen: set[str] = set()

    def visit(name: str, edges: dict[str, set[str]], into: list[str]) -> None:
        waiting = [(name, iter(sorted(edges[name])))]
        seen.add(name)
        while waiting:
            here, further = waiting[-1]
            following = next((other for other in further if other not in seen), None)
            if following is None:
                into.append(here)
                waiting.pop()
            else:
                seen.add(following)
                waiting.append((following, iter(sorted(edges[following]))))

    for name in arrows:
        if name not in seen:
            visit(name, arrows, order)
    back = {name: {other for other in arrows if name in arrows[other]} for name in arrows}
    seen.clear()
    for name in reversed(order):
        if name not in seen:
            component: list[str] = []
            visit(name, back, component)
            if len(component) > 1:
                yield sorted(component)


def test_a_cycle_is_found():
    assert list(cycles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}})) == [["a", "b", "c"]]
    assert list(cycles({"a": {"b"}, "b": set()})) == []


def test_inside_the_core_no_arrow_runs_up():
    """Rooms of the core stand on floors: one above the highest room that a room imports. Configuration, files,
    randomness and statistics are the ground, and the commands the roof."""
    arrows = room_arrows(TREES)
    floors = floors_of(arrows)
    above = {room: others - floors.keys() for room, others in arrows.items() if room not in floors}
    assert above == {}, "these rooms import each other in a circle, so an arrow between them runs up"
    assert {room for room in ("files", "randomness", "statistics", "types") if floors[room]} == set()
    assert floors["config"] == 1 and arrows["config"] <= {"files", "randomness", "statistics", "types"}
    assert max(floors, key=floors.__getitem__) == "cli"


def test_the_core_stays_small():
    """Modules at the root of ``mmgrpo/``, lines of the trainer, and parameters of constructors."""
    assert len([module for module in MODULES if Path(module).parent == Path("mmgrpo")]) <= 14
    assert len((ROOT / "mmgrpo/trainer.py").read_text().splitlines()) <= 350
    large = {
        f"{module}: {one.name}": count
        for module, tree in TREES.items()
        if module == "mmgrpo/trainer.py" or module.startswith("mmgrpo/policies/")
        for one in ast.walk(tree)
        if isinstance(one, ast.ClassDef)
        for count in [parameters_of(one)]
        if count > (10 if one.name == "Trainer" else 12)
    }
    assert large == {}


def parameters_of(kind: ast.ClassDef) -> int:
    """How many parameters the constructor that a class writes has, without ``self``."""
    made = [one.args for one in kind.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"]
    return max((len([*one.posonlyargs, *one.args, *one.kwonlyargs]) - 1 for one in made), default=0)


def room_arrows(trees: dict[str, ast.Module]) -> dict[str, set[str]]:
    """From each room of the core to the rooms that it imports anywhere, also in functions and for types. A room is a
    folder of ``mmgrpo/`` or a file at its root; ``mmgrpo/__init__.py`` is the door to the API and none."""
    rooms: dict[str, set[str]] = {}
    for module, tree in trees.items():
        if module.startswith("mmgrpo/") and module != "mmgrpo/__init__.py":
            room = room_of(module.removesuffix(".py").replace("/", "."))
            reached = {room_of(name) for name in modules_imported(tree, KNOWN) if name.startswith("mmgrpo.")}
            rooms.setdefault(room, set()).update(reached - {room})
    return rooms


def room_of(name: str) -> str:
    return name.split(".")[1]


KNOWN = {module.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for module in TREES}


def floors_of(arrows: dict[str, set[str]]) -> dict[str, int]:
    """The floor of each room, without those in a circle and those above one."""
    floors: dict[str, int] = {}
    while ready := {r: o for r, o in arrows.items() if r not in floors and o <= floors.keys()}:
        floors |= {room: 1 + max((floors[other] for other in others), default=-1) for room, others in ready.items()}
    return floors


def test_an_arrow_that_runs_up_is_found():
    sources = {"mmgrpo/types.py": "", "mmgrpo/data/rows.py": "from mmgrpo import types\nimport mmgrpo.data.files"}
    sources["mmgrpo/api.py"] = "def f():\n    from mmgrpo.data.rows import Row"
    arrows = room_arrows({module: ast.parse(text) for module, text in sources.items()})
    assert arrows == {"types": set(), "data": {"types"}, "api": {"data"}}
    assert floors_of(arrows) == {"types": 0, "data": 1, "api": 2}
    assert floors_of(arrows | {"types": {"api"}}) == {}


@pytest.mark.slow
def test_scripts_are_imported_by_their_whole_names_and_paths_are_left_alone():
    scripts = {Path(module).stem for module in MODULES if module.startswith("scripts/")}

    def bare(tree: ast.Module) -> set[str]:
        return {name for name in modules_imported(tree) if name in scripts} | (
            {"sys.path"} if "sys.path" in ast.unparse(tree) else set()
        )

    assert offenders(bare, *ROOMS, outermost=True) == {}


def test_model_libraries_are_imported_only_when_they_are_needed():
    assert (
        offenders(
            lambda tree: set(imported_at_start(tree)) & HEAVY,
            "pipelines",
            "reward_models",
            "scripts",
            "benchmarks",
            outermost=True,
        )
        == {}
    )


def test_imports_are_absolute():
    assert offenders(lambda tree: {"."} & set(imports(tree)), *ROOMS, outermost=True) == {}


SANDBOXED = "reward_models/rules/sandboxed.py"
"""The one module that runs text, of models, in a process that can do nothing but compute."""


@pytest.mark.slow
def test_nothing_runs_code_that_came_as_data_but_the_sandbox():
    found = offenders(unsafe, *ROOMS, outermost=True)
    assert sorted(what.split(": ")[1] for what in found.pop(SANDBOXED)) == ["compile", "compile", "exec", "exec"]
    assert found == {}
    starts_it = {module for module in MODULES if "sandboxed" in (ROOT / module).read_text(encoding="utf-8")}
    assert starts_it == {"reward_models/rules/sandbox.py"}


def test_names_say_what_is_inside():
    words = {module: {w for part in Path(module).with_suffix("").parts for w in part.split("_")} for module in MODULES}
    assert [module for module in MODULES if words[module] & VAGUE] == []


def test_every_module_and_class_says_what_it_is():
    assert offenders(without_docstring, *ROOMS, outermost=True) == {}


def without_docstring(tree: ast.Module) -> Iterator[str]:
    """The module itself and its public classes, where they say nothing."""
    if not ast.get_docstring(tree):
        yield "the module"
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and not ast.get_docstring(node):
            yield node.name


def test_protocols_of_the_core_can_be_checked_while_tests_run():
    assert offenders(uncheckable, "mmgrpo") == {}


def uncheckable(tree: ast.Module) -> Iterator[str]:
    """Protocols that are not ``runtime_checkable``: a signature that names one could not be checked."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and any(ast.unparse(base).startswith("Protocol") for base in node.bases):
            if "runtime_checkable" not in {ast.unparse(decorator) for decorator in node.decorator_list}:
                yield node.name


def test_the_checks_see_what_they_look_for():
    start = "import torch\nif TYPE_CHECKING:\n    import peft\ntry:\n    import cv2\nexcept ImportError: ...\n"
    tree = ast.parse(start + "class A:\n    import av\n    def f(self):\n        from diffusers.x import y\n")
    assert sorted(imported_at_start(tree)) == ["av", "cv2", "torch"]
    assert sorted(imports(tree)) == ["av", "cv2", "diffusers", "peft", "torch"]
    assert list(imports(ast.parse("from . import a\nfrom ..b import c"))) == [".", "."]
    bad = ["import pickle", "eval('1')", "torch.load(f)", "f(trust_remote_code=True)", "np.load(f, allow_pickle=True)"]
    assert all(len(list(unsafe(ast.parse(line)))) == 1 for line in bad)
    good = "torch.load(f, weights_only=True)\nf(trust_remote_code=False)\nmodel.eval()\nast.literal_eval('1')"
    assert list(unsafe(ast.parse(good))) == []


def test_the_rooms_are_not_empty():
    assert {module.split("/")[0] for module in MODULES} == set(ROOMS)


def test_silent_classes_and_protocols_without_check_are_seen():
    tree = ast.parse(
        "class A: ...\nclass _B: ...\nclass C(Protocol):\n    'Says.'\n@runtime_checkable\nclass D(Protocol): ..."
    )
    assert list(without_docstring(tree)) == ["the module", "A", "D"]
    assert list(uncheckable(tree)) == ["C"]


if __name__ == "__main__":
    for room, floor in sorted(floors_of(room_arrows(TREES)).items(), key=lambda pair: pair[::-1]):
        print(floor, room)
