"""What ``mmgrpo train`` reads: recipes by name, files, families and their own options."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
import typing
from collections.abc import Iterator

import pytest

from mmgrpo.cli.train import arithmetic, main, read
from mmgrpo.family import families
from mmgrpo.runtime.config import config_class
from mmgrpo.runtime.reading import option_names


def test_a_recipe_is_named_with_its_modality_or_alone_where_only_one_is_called_so():
    assert read(["--recipe", "visual/demo"], "").name == "demo"
    assert read(["--recipe=whisper_adapt"], "") == read(["--recipe", "speech/whisper_adapt"], "")
    with pytest.raises(
        ValueError, match="several recipes have the name 'demo': visual/demo, vlm/demo; add the modality"
    ):
        read(["--recipe", "demo"], "")


def test_an_unknown_recipe_is_an_error_that_names_the_nearest():
    with pytest.raises(ValueError, match=r"--recipe: there is no 'vlm/vidoe_r1'\. Did you mean 'vlm/video_r1'\?"):
        read(["--recipe", "vlm/vidoe_r1"], "")
    with pytest.raises(ValueError, match=r"For a file of your own use --config\.$"):
        read(["--recipe", "mine.yaml"], "")


def test_a_recipe_and_a_file_together_are_refused(tmp_path):
    (tmp_path / "a.yaml").write_text("steps: 3\n")
    with pytest.raises(
        ValueError, match="--recipe names a recipe of mmgrpo and --config a file of your own; give only one"
    ):
        read(["--recipe", "visual/demo", "--config", str(tmp_path / "a.yaml")], "")


def test_the_family_is_that_of_the_command_line_or_of_the_file_or_the_default(tmp_path):
    (tmp_path / "a.yaml").write_text("model: {family: causal_lm, path: a/b}\n")
    given = ["--config", str(tmp_path / "a.yaml")]
    assert read([], "", "whisper").model.family == "whisper"
    assert read(given, "", "whisper").model.family == "causal_lm"
    chosen = read([*given, "--model.family=smolvlm"], "", "whisper").model
    assert (chosen.family, chosen.path) == ("smolvlm", "a/b")
    (tmp_path / "a.yaml").write_text("model: {}\n")
    assert read(given, "", "qwen_vl").model.family == "qwen_vl"
    (tmp_path / "a.yaml").write_text("model: qwen_vl\n")
    with pytest.raises(ValueError, match="'model' must be a section of keys, got 'qwen_vl'"):
        read(given, "")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model.family", "qwen_audo"], "model.family: there is no 'qwen_audo'. Did you mean 'qwen_audio'?"),
        (["--model.family", "qwen_lv"], "model.family: there is no 'qwen_lv'. Did you mean 'qwen_vl'?"),
        (["--model.family", "qwen_audio", "--model.task", "translate"], "there is no option '--model.task'"),
        (["--model.family", "qwen_audio", "--model.language", "de"], "there is no option '--model.language'"),
        (["--model.family", "causal_lm", "--model.max-pixels", "9"], "there is no option '--model.max-pixels'"),
        (["--model.family", "sd3", "--sampling.max-tokens", "9"], "there is no option '--sampling.max-tokens'"),
        (["--model.family", "duration", "--data.media-root", "a"], "there is no option '--data.media-root'"),
    ],
)
def test_an_option_that_the_family_does_not_have_is_refused(options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        read(options, "")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model.family", "qwen_audio"], "family 'qwen_audio' has no embedded model; name a folder or a hub id"),
        (
            ["--model.family", "whisper", "--sampling.truncated", "drop"],
            "--sampling.truncated: got 'drop', expected one of",
        ),
    ],
)
def test_an_option_that_makes_no_sense_is_refused_before_anything_is_loaded(options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        arithmetic(read(options, ""))


@pytest.mark.parametrize("name", families())
def test_help_lists_every_option_of_a_family_with_its_doc(name, capsys, monkeypatch):
    """A narrow terminal has one column; words are compared, for lines break where it ends."""
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main(["--model.family", name, "--help"])
    shown = " ".join(re.sub(r"[│╭╮╰╯─]", " ", capsys.readouterr().out).split())
    kind = config_class(families()[name].sections)
    docs = dict(documented(kind))
    assert set(docs) == set(option_names(kind))
    missing = [option for option, doc in docs.items() if not re.search(rf"{option}[ ,]", shown) or doc not in shown]
    assert missing == []


def documented(kind: type, prefix: str = "--") -> Iterator[tuple[str, str]]:
    """The options of a dataclass, each with what stands under its field in the source."""
    hints, docs = typing.get_type_hints(kind), {}
    for parent in reversed([one for one in kind.__mro__ if dataclasses.is_dataclass(one)]):
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(parent))).body
        assert isinstance(tree, ast.ClassDef)
        for field, doc in zip(tree.body, tree.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(doc, ast.Expr):
                docs[ast.unparse(field.target)] = " ".join(ast.literal_eval(doc.value).split())
    for field in dataclasses.fields(kind):
        name = prefix + field.name.replace("_", "-")
        if dataclasses.is_dataclass(hints[field.name]):
            yield from documented(hints[field.name], f"{name}.")
        else:
            yield name, docs[field.name]
