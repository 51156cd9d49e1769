"""What packages offer by entry point, what users name in their own files, and where embedded files are."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol, runtime_checkable

import pytest

from mmgrpo.config import plugins
from mmgrpo.config.names import nearest
from mmgrpo.family import families, family
from mmgrpo.rewards import entries, scorer
from mmgrpo.types import Prompt, Text


@pytest.fixture
def fresh() -> Iterator[None]:
    """What is remembered of installed packages is forgotten before and after."""
    remembered = (plugins.entry_points_of, plugins.table, plugins.packages)
    for function in remembered:
        function.cache_clear()
    yield
    for function in remembered:
        function.cache_clear()


@pytest.fixture
def package(tmp_path, monkeypatch, fresh) -> Iterator[Path]:
    """An installed package that offers a family and a reward: ``greeting``, with its recipes and files."""
    folder = tmp_path / "greeting_package"
    for name in ("recipes", "assets"):
        (folder / name).mkdir(parents=True)
    (folder / "__init__.py").write_text(
        "from dataclasses import replace\n"
        "from pipelines.text.families import FAMILIES as THEIRS\n"
        "FAMILIES = {'greeter': replace(THEIRS['causal_lm'], name='greeter', modality='greeting')}\n"
        "REWARDS = {'politeness': 'greeting_package:politeness'}\n"
        "def politeness(prompts, outputs, word='please'):\n"
        "    'How often the word is said.'\n"
        "    return [float(output.text.count(word)) for output in outputs]\n"
    )
    (folder / "recipes" / "hello.yaml").write_text("model: {family: greeter, path: a/b}\nrewards: [politeness]\n")
    (folder / "assets" / "hello.txt").write_text("hello\n")
    write_entry_points(tmp_path, "greeting", GREETING)
    monkeypatch.syspath_prepend(tmp_path)
    yield folder
    sys.modules.pop("greeting_package", None)


GREETING = """
[mmgrpo.families]
greeting = greeting_package:FAMILIES
[mmgrpo.rewards]
greeting = greeting_package:REWARDS
"""


def write_entry_points(folder: Path, name: str, text: str) -> None:
    """What pip leaves of an installed package."""
    metadata = folder / f"{name}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(text)


# ---- packages


def test_a_package_offers_a_family_with_recipes_and_files_by_entry_point(package):
    assert family("greeter").modality == "greeting" and {"sd3", "qwen_vl", "whisper"} < set(families())
    assert plugins.recipe("hello") == plugins.recipe("greeting/hello") == package / "recipes" / "hello.yaml"
    assert plugins.locate("embedded:greeting/hello.txt") == str(package / "assets" / "hello.txt")
    from mmgrpo.cli.train import read

    assert read(["--recipe", "hello"], "").model.family == "greeter"


def test_what_a_package_offers_as_a_family_is_one(package):
    (package / "__init__.py").write_text("FAMILIES = {'greeter': print}\nREWARDS = {}\n")
    with pytest.raises(ValueError, match="builtin_function_or_method.*'greeter'"):
        family("greeter")


def test_a_package_offers_a_reward_by_entry_point(package):
    assert entries()["politeness"].function == "greeting_package:politeness" and "scene_all" in entries()
    reward = scorer("politeness(weight=2, word='thanks')")
    assert (reward.name, reward.weight) == ("politeness", 2.0)
    assert reward.fn([Prompt("")], [Text("thanks, thanks")]) == [2.0]


@pytest.mark.parametrize(("old", "new"), plugins.MOVED.items())
def test_a_former_name_is_read_and_the_present_one_told(old, new):
    plugins.present_name.cache_clear()
    with pytest.warns(UserWarning, match=f"'{old}'.*'{new}'"):
        if "/" in old:
            assert plugins.recipe(old) == plugins.recipe(new)
        else:
            names = {"calculator": "calculate", "rooms": "Rooms"}
            name = names[new.rpartition(".")[2]]
            assert plugins.load_object(f"{old}:{name}", "sampling.tools", kind=lambda value: "").__module__ == new


def test_a_name_that_two_packages_offer_is_an_error(package, tmp_path):
    (tmp_path / "other_package.py").write_text("REWARDS = {'scene_all': 'other_package:scene_all'}\n")
    write_entry_points(tmp_path, "other", "[mmgrpo.rewards]\nother = other_package:REWARDS\n")
    with pytest.raises(ValueError, match=r"'scene_all'.*mmgrpo\.rewards"):
        entries()
    sys.modules.pop("other_package", None)


def test_the_same_row_of_two_entry_points_counts_once(package, tmp_path):
    """As where a package is installed twice, in a checkout and elsewhere."""
    write_entry_points(tmp_path, "again", GREETING.replace("greeting = ", "again = "))
    assert {"greeter", "sd3"} < set(families()) and "politeness" in entries()


def test_without_any_package_the_error_says_what_to_install(monkeypatch, fresh):
    monkeypatch.setattr(plugins, "entry_points", lambda group: [])
    with pytest.raises(ModuleNotFoundError, match=r"'mmgrpo\.families'.*pip install"):
        families()


# ---- embedded files


def test_an_embedded_file_that_is_not_there_is_an_error_that_names_the_nearest():
    with pytest.raises(ValueError, match="'visul'.*'visual'"):
        plugins.locate("embedded:visul/scenes/train.jsonl")
    with pytest.raises(FileNotFoundError, match="'train.jsonl'"):
        plugins.locate("embedded:speech/trian.jsonl")
    with pytest.raises(FileNotFoundError, match=r"'scenes/train\.jsonl'"):
        plugins.locate("embedded:visual/scenes/trian.jsonl")
    with pytest.raises(ValueError, match="'pypi:whisper-tiny'.*'whisper-tiny.en'"):
        plugins.locate("pypi:whisper-tiny")


def test_other_paths_are_left_as_they_are():
    for path in ("", "data/train.jsonl", "hf:me/data@train", "Qwen/Qwen2.5-VL-3B-Instruct"):
        assert plugins.locate(path) == path


# ---- functions of the user's

REWARD = "def best(prompts, outputs):\n    return [{} for _ in outputs]\n"


@pytest.mark.parametrize(
    ("file", "module"),
    [
        ("visual.py", "visual"),
        ("evaluate.py", "evaluate"),
        ("reward_models/mine.py", "reward_models.mine"),
        ("mmgrpo/rewards.py", "mmgrpo.rewards"),
        ("math.py", "math"),
        ("mine/__init__.py", "mine"),
        ("folder_of_mine/reward.py", "folder_of_mine.reward"),
    ],
)
def test_a_file_of_the_working_directory_is_found_whatever_it_is_called(file, module, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(REWARD.format(7.0))
    before = sys.modules.get(module)
    assert scorer(f"{module}:best(process=False)").fn([Prompt("")], [Text("")]) == [7.0]
    assert sys.modules.get(module) is before  # and nothing of that name is replaced


def test_a_package_of_the_working_directory_imports_what_lies_inside(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "inside.py").write_text(REWARD.format(3.0))
    (tmp_path / "mine" / "__init__.py").write_text("from .inside import best\n")
    assert scorer("mine:best(process=False)").fn([Prompt("")], [Text("")]) == [3.0]


def test_a_function_of_an_installed_module_is_found_where_no_file_has_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert plugins.load_object("mmgrpo.config.registry:nearest", "a test")("a", ["b"]) == nearest("a", ["b"])
    (tmp_path / "mmgrpo" / "config").mkdir(parents=True)
    (tmp_path / "mmgrpo" / "config" / "registry.py").write_text("def nearest(*arguments): return 'own'\n")
    assert plugins.load_object("mmgrpo.config.registry:nearest", "a test")("a", ["b"]) == "own"
    assert plugins.load_object("mmgrpo.config.registry:nearest", "a row of our own", own=False) is nearest


def test_a_file_that_is_changed_in_another_folder_is_another_module(tmp_path, monkeypatch):
    for number in (1.0, 2.0):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "own.py").write_text(REWARD.format(number))
        monkeypatch.chdir(folder)
        assert scorer("own:best(process=False)").fn([Prompt("")], [Text("")]) == [number]


def test_what_a_file_needs_and_is_not_there_is_an_error_that_says_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text("import no_such_module\n")
    with pytest.raises(ValueError, match="rewards.*'owm'.*'own'"):
        scorer("owm:f(process=False)")
    with pytest.raises(ValueError, match=r"rewards.*own\.py.*'no_such_module'"):
        scorer("own:best(process=False)")
    (tmp_path / "own.py").write_text("from .beside import best\n")
    with pytest.raises(
        ValueError,
        match=r"own\.py.*imported.*PYTH",
    ):
        scorer("own:best(process=False)")
    (tmp_path / "own.py").write_text(REWARD.format(1.0))  # and once it is mended it is read again
    assert scorer("own:best(process=False)").fn([Prompt("")], [Text("")]) == [1.0]
    with pytest.raises(ValueError, match=r"'own'.*'bset'.*'best'\?"):
        scorer("own:bset(process=False)")
    with pytest.raises(ValueError, match="'nowhere:best'.*'nowhere'"):
        scorer("nowhere:best(process=False)")
    with pytest.raises(ValueError, match=r"'own\.py:best'.* own:best"):
        scorer("own.py:best(process=False)")


@runtime_checkable
class Greeter(Protocol):
    """What greets."""

    name: str

    def greet(self) -> str: ...


def test_an_object_or_a_class_of_ones_own_is_one_where_it_has_all_that_it_needs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(
        "class Friend:\n    name = 'a'\n    def greet(self):\n        return 'hello'\n"
        "class Stranger:\n    name = 'b'\nFRIEND = Friend()\n"
    )
    made, given = (plugins.load_instance(f"own:{name}", "a test", Greeter) for name in ("Friend", "FRIEND"))
    assert made.greet() == given.greet() == "hello" and made is not given
    with pytest.raises(ValueError, match="test.*'own:Stranger'"):
        plugins.load_instance("own:Stranger", "a test", Greeter)


def test_a_model_of_the_package_index_is_made_by_its_function(tmp_path, monkeypatch, fresh):
    (tmp_path / "weights_package.py").write_text("def tiny():\n    return '/models/tiny'\n")
    write_entry_points(tmp_path, "weights", "[mmgrpo.weights]\ntiny = weights_package:tiny\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert plugins.locate("pypi:tiny") == "/models/tiny"
    sys.modules.pop("weights_package", None)


def test_an_error_inside_of_an_installed_module_stays_what_it_is(tmp_path, monkeypatch):
    (tmp_path / "broken_package.py").write_text("from math import no_such_name\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError, match="'no_such_name'"):
        plugins.load_object("broken_package:reward", "a test", own=False)


def test_a_file_of_the_working_directory_that_is_the_installed_one_is_imported_as_such(monkeypatch):
    monkeypatch.chdir(Path(plugins.__file__).parents[2])
    assert plugins.load_object("mmgrpo.config.registry:nearest", "a test") is nearest


def test_a_package_that_is_gone_or_has_no_file_of_its_own_has_no_folder(package, tmp_path):
    (tmp_path / "namespace_package").mkdir()
    write_entry_points(tmp_path, "odd", "[mmgrpo.families]\ngone = gone_package:F\nspace = namespace_package:F\n")
    assert plugins.packages()["greeting"] == package and not {"gone", "space"} & plugins.packages().keys()


def test_a_file_in_the_working_directory_is_not_taken_for_a_package_that_registers_weights(
    package, tmp_path, monkeypatch
):
    write_entry_points(tmp_path, "weights", "[mmgrpo.weights]\nten = greeting_package:ten\n")
    (package / "__init__.py").write_text("def ten():\n    return 'ten'\n")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "greeting_package.py").write_text("1 / 0")
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert plugins.locate("pypi:ten") == "ten"
