"""What migrate reads, at the limits: scripts, sections, Python files, the tables and the page of the documentation."""

from __future__ import annotations

import re
from typing import Any

import pytest

from docs.site import migration as page
from mmgrpo.cli.migrate.draft import Draft
from mmgrpo.cli.migrate.python_file import from_python
from mmgrpo.cli.migrate.script import command_of
from mmgrpo.cli.migrate.sources import Source, from_script, from_words
from mmgrpo.cli.migrate.tables import PROJECTS, table


def settings(script: str) -> dict[str, Any]:
    source = Source("a.sh")
    from_words(source, command_of(script, "a.sh").words)
    return source.values


# ---- scripts


@pytest.mark.parametrize(
    ("script", "values"),
    [
        ("python a.py --x 1 \\", {"x": 1}),
        ("export\npython a.py --x 1", {"x": 1}),
        ("set -e\nexport A=1\nB=2\nenv C=3 python a.py --x $A --y ${B}", {"x": 1, "y": 2}),
        ("python a.py --name git --x pip", {"name": "git", "x": "pip"}),
        ('python a.py --x "" --y 1', {"x": "", "y": 1}),
        ("git add a.py\ncp a.py b.py\npip install b.py\npython c.py --x 1", {"x": 1}),
        ("trl grpo --x 1", {"x": 1}),
        ("megatron rlhf --x 1", {"x": 1}),
        ("python -m swift.cli.rlhf --x 1", {"x": 1}),
        ("python -m trl.scripts.grpo --x 1", {"x": 1}),
        ("# comment \\\npython a.py --x 1", {"x": 1}),
        ("python a.py --x 'a\nb'", {"x": "a\nb"}),
        ("echo a; python a.py --x 1 && echo b || echo c & python -V", {"x": 1}),
        ("python a.py \\\n  --x 1 \\\n  # --y 2", {"x": 1}),
        (
            "python a.py --d me/set#1000 \\\n  --x 1 --y 'a # b' # it's --z 3",
            {"d": "me/set#1000", "x": 1, "y": "a # b"},
        ),
    ],
)
def test_the_command_of_a_script(script: str, values: dict[str, Any]):
    assert settings(script) == values


@pytest.mark.parametrize(
    "program",
    [
        *("-m verl.trainer.fsdp_sft_trainer", "-m verl.trainer.main_generation", "fastvideo/distill.py"),
        *(
            "fastvideo/data_preprocess/preprocess_vae_latents.py",
            "fastvideo/sample/sample_t2v_mochi.py",
            "train_dpo.py",
        ),
    ],
)
def test_a_script_of_another_method_is_refused_by_its_program(program: str):
    with pytest.raises(ValueError, match=re.escape(program.split()[-1])):
        from_script(Source("a.sh"), f"torchrun {program} --x 1")
    for right in ("-m verl.trainer.main_ppo", "train_grpo_flux.py", "sft_then_grpo.py"):
        from_script(Source("a.sh"), f"python {right} --x 1")


# ---- settings


def test_a_later_setting_overrides_an_earlier_one_read_or_not():
    source = Source("a")
    for value in (1, "${X}", "2"):
        source.put("a", value)
        source.put("b", 0)
    assert source.values == {"a": "2", "b": 0} and source.unread == {}
    source.put("a", ["x", "$(y)"])
    assert [*source.values] == ["b"] and source.unread == {"a": "x $(y)"}
    source.put("c", ["x", 1])
    assert source.values["c"] == ["x", 1]


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (["--a", "b.c=1"], {"a": True, "b.c": 1}),
        (["--a", "+b=1"], {"a": True, "b": 1}),
        (["--a", "-1", "-.5"], {"a": [-1, -0.5]}),
        (["--a", "b=1"], {"a": "b=1"}),
        (["--a-b", "1", "-c-d", "2"], {"a_b": 1, "c-d": 2}),
        (["--a="], {"a": ""}),
        (["~a=1"], {"a": None}),
        (["a.b=1", "a.c.d=2", "~a"], {}),
        (["a={x:1,y:two}", "b='c'"], {"a": {"x": 1, "y": "two"}, "b": "c"}),
        (["--config.a.b=x\ny"], {"a.b": "x\ny"}),
    ],
)
def test_words_are_settings(words: list[str], values: dict[str, Any]):
    source = Source("a")
    from_words(source, words)
    assert source.values == values


# ---- Python


def python(text: str, chosen: str = "") -> Source:
    source = Source("a.py")
    from_python(source, text, chosen)
    return source


def test_only_functions_that_assign_are_configurations():
    assert python("def f(x):\n    print(x)\n\ndef g():\n    config.a = 1\n").values == {"a": 1}
    assert python("config.a = 1\nconfig.b = config.a + 1").values == {"a": 1, "b": 2}


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("1_000_000_000 * 2", 2_000_000_000),
        ("1_000_000_001 * 2", None),
        ("7 // 2", 3),
        ("7 / 2", 3.5),
        ("7 - 2 + 1", 6),
        ("int(7 / 2)", 3),
        ("int('7')", 7),
        ("int(7, 8)", None),
        ("float(7)", 7.0),
        ("(1, 7 // 2)", (1, 3)),
        ("(1, f())", None),
        ("1 / 0", None),
        ("True + 1", None),
        ("2 ** 3", None),
        ("'a' + 'b'", "ab"),
        ("os.path.join(os.getcwd(), 'x')", "x"),
        ("os.path.join(os.getcwd(), 'x', 'y')", "x/y"),
        ("f'{n}{m}'", None),
        ("f'{n}b'", "4b"),
        ("os.path.join('x', 'y')", "x/y"),
        ("n * 2", 8),
        ("config.seed + 1", 4),
        ("m", None),
    ],
)
def test_sizes_are_computed_and_nothing_else(expression: str, value: Any):
    source = python(f"def f():\n    config.seed = 3\n    n = 4\n    config.a = {expression}\n")
    assert source.values.get("a") == value and ("a" in source.unread) is (value is None)


@pytest.mark.parametrize("name", ["gpu_number", "n_gpus", "num_gpus"])
def test_the_number_of_processes_is_one_of_three_names(name: str):
    assert python(f"{name} = 8\nconfig.a = 1").processes == 8
    assert python(f"{name} = 8\n{name} = 9\nconfig.a = 1").processes == 8
    assert python(f"{name} = 'x'\nconfig.a = 1").processes == python("n = 8\nconfig.a = 1").processes == 0


def test_sections_can_have_names_of_their_own():
    text = "config.a = a = ml.ConfigDict()\na.b = 1\nconfig.c = ml.ConfigDict({'x': 1})\nother.d = 2\nconfig.e = None"
    source = python(text)
    assert source.values == {"a.b": 1, "e": None} and [*source.unread] == ["c"]


# ---- the tables and the page


def test_a_pattern_of_a_table_stands_for_settings_that_have_no_row_of_their_own():
    verl = table("verl")
    found = verl.find("critic.model.path")
    assert found is not None and found.key == "critic.*" and verl.find("critics") is None
    own = verl.find("data.seed")
    assert own is not None and own.key == "data.seed" and "data.seed" in verl.names
    assert not any("*" in name for name in verl.names) and len(verl.names) < len(verl.rows)
    assert Draft(verl, Source("a"), "qwen_vl").rows == 0


def test_the_page_of_a_project_has_its_columns_and_settings():
    text = page.tables("trl")
    assert "| `loss_type: cispo` | `cispo" in text and "`num_generations`" in text
    assert [*page.TABLES] == [f"migration from {name}" for name in PROJECTS]

    assert (
        page.ours("a.b, c") == "`a.b`, `c`"
        and page.code_of_default(None) == ""
        and page.code_of_default([1]) == "`[1]`"
    )
