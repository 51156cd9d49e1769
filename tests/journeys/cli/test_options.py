"""What ``mmgrpo train`` reads: recipes by name, files, families and their own options."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
import typing
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import pytest
import tyro

from mmgrpo.cli.train import KEYS, arithmetic, main, read
from mmgrpo.config.extras import install
from mmgrpo.config.ranges import within
from mmgrpo.config.reading import option_names
from mmgrpo.config.settings import config_class
from mmgrpo.family import families
from tests.journeys.cli.quick import SCENES


def test_a_recipe_is_named_with_its_modality_or_alone_where_only_one_is_called_so():
    assert read(["--recipe", "visual/demo"], "").name == "demo"
    assert read(["--recipe=whisper_adapt"], "") == read(["--recipe", "speech/whisper_adapt"], "")
    with pytest.raises(ValueError, match="'demo'.*visual/demo.*vlm/demo"):
        read(["--recipe", "demo"], "")


def test_an_unknown_recipe_is_an_error_that_names_the_nearest():
    with pytest.raises(ValueError, match=r"--recipe.*'vlm/vidoe_r1'.*'vlm/video_r1'\?"):
        read(["--recipe", "vlm/vidoe_r1"], "")
    with pytest.raises(ValueError, match=r"--config\."):
        read(["--recipe", "mine.yaml"], "")


def test_a_recipe_and_a_file_together_are_refused(tmp_path):
    (tmp_path / "a.yaml").write_text("steps: 3\n")
    with pytest.raises(ValueError, match="--recipe.*--config"):
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
    with pytest.raises(ValueError, match="'model'.*'qwen_vl'"):
        read(given, "")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model.family", "qwen_audo"], r"model.family.*'qwen_audo'.*'qwen_audio'\?"),
        (["--model.family", "qwen_lv"], r"model.family.*'qwen_lv'.*'qwen_vl'\?"),
        (["--model.family", "qwen_audio", "--model.task", "translate"], "'--model.task'"),
        (["--model.family", "qwen_audio", "--model.language", "de"], "'--model.language'"),
        (["--model.family", "causal_lm", "--model.max-pixels", "9"], "'--model.max-pixels'"),
        (["--model.family", "sd3", "--sampling.max-tokens", "9"], "'--sampling.max-tokens'"),
        (["--model.family", "duration", "--data.media-root", "a"], "'--data.media-root'"),
    ],
)
def test_an_option_that_the_family_does_not_have_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        read(options, "")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model.family", "qwen_audio"], "'qwen_audio'"),
        (
            ["--model.family", "whisper", "--sampling.truncated", "drop"],
            "--sampling.truncated.*'drop'",
        ),
    ],
)
def test_an_option_that_makes_no_sense_is_refused_before_anything_is_loaded(options, message):
    with pytest.raises(ValueError, match=message):
        arithmetic(read(options, ""))


def test_a_single_sample_beside_the_reference_answer_is_refused_where_it_could_never_train():
    options = ["--recipe", "whisper_adapt", "--data.group-size"]
    with pytest.raises(ValueError, match="data.group_size.*2.*data.reference_in_group.*3"):
        arithmetic(read([*options, "2"], ""))
    for trains in (["3"], ["2", "--algorithm.select"], ["2", "--algorithm.keys", "prompt(own=False)"]):
        assert "50 optimizer steps" in arithmetic(read([*options, *trains], ""))
    assert arithmetic(read([*options, "2", "--data.no-reference-in-group", "--algorithm.off-policy", "importance"], ""))


def test_a_tracker_that_is_not_installed_is_refused_before_anything_is_loaded(monkeypatch):
    config = read(["--trackers", "comet_ml"], "")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="trackers.*'comet_ml'"):
        arithmetic(config)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--algorithm.sampler", "dynamic_sampling(rounds=0)"], "dynamic_sampling.*rounds 0"),
        (["--algorithm.objective", "pppo"], r"algorithm.objective.*'pppo'.*'ppo'\?"),
        (["--algorithm.objective", "ppo(low=-1)"], "algorithm.objective.*ppo.*-1.0"),
        (["--algorithm.objective", "ppo(low=nan)"], r"algorithm.objective.*'ppo\(low=nan\)'"),
        (["--algorithm.scale", "group_std(eps=-1)"], "algorithm.scale.*group_std.*-1.0"),
        (
            ["--algorithm.added", "answers", "--algorithm.off-policy", "luffi"],
            r"algorithm.off_policy.*'luffi'.*'luffy'\?",
        ),
        (["--sampling.rollout-guidance", "2", "--algorithm.mismatch", "tsi"], r"algorithm.mismatch.*'tsi'.*'tis'\?"),
        (["--algorithm.keys", "prompt(weight='a')"], "algorithm.keys.*prompt.*'a'"),
        (["--algorithm.preset", "gfpo"], "'gfpo'"),
        (["--rewards", "scene_al"], r"rewards.*'scene_al'.*'scene_all'\?"),
        (["--rewards", "scene_all(weight=inf)"], "rewards.*'scene_all'.*inf"),
        (["--sampling.plan", "every_stp"], r"sampling.plan.*'every_stp'.*'every_step'\?"),
        (["--sampling.policy", "matching", "--sampling.error", "velocty"], r"sampling.error.*'velocty'.*'velocity'\?"),
        (["--sampling.policy", "matching", "--sampling.draws", "11"], "sampling.draws.*11"),
        (["--model.device", "cdua"], "--model.device.*'cdua'"),
        (["--eval.samples", "0"], r"--eval.samples.*0.*\[1, 1e6\]"),
        (["--name=../src"], "--name.*'../src'"),
        (
            ["--model.family", "duration", "--model.width", "100"],
            "model.width.*100.*model.heads=8",
        ),
        (
            ["--model.family", "qwen_vl", "--sampling.contrast", "shuffled_frame"],
            r"sampling.contrast.*'shuffled_frame'.*'shuffled_frames'\?",
        ),
        (
            ["--model.family", "qwen_vl", "--sampling.contrast", "shuffled_frames", "--sampling.search", "beam"],
            "sampling.contrast.*'shuffled_frames'.*sampling.search",
        ),
        (["--model.family", "qwen_vl", "--sampling.temperature=nan"], "--sampling.temperature.*nan"),
        (["--eval.skip=2.5"], "'--eval.skip=2.5'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_dry_run_refuses_what_a_run_would_refuse(options, message):
    with pytest.raises(ValueError, match=message):
        main([*options, "--dry-run"])


TEXT = ["--model.family", "qwen_vl", "--sampling.max-tokens", "10", "--data.group-size", "2"]
TEXT += ["--data.prompts-per-step", "4", "--optim.epochs", "3", "--steps", "13"]


def test_the_costs_of_a_run_are_those_of_its_rollouts():
    """Six optimizer steps each, so thirteen need three."""
    assert arithmetic(read([*TEXT, "--optim.updates", "2"], "")).splitlines() == [
        "a rollout: 4 prompts x 2 samples = 8 completions of at most 10 tokens, 80 in all",
        "           80 tokens sampled, 24 completions forward and backward",
        "           split into 2 updates x 3 epochs = 6 optimizer steps",
        "the run:   13 optimizer steps = 3 rollouts = "
        "24 completions, 240 tokens sampled at most, 72 completions to train",
        "evaluated: on data/questions/heldout.jsonl",
    ]
    assert "split into 4 updates" in arithmetic(read([*TEXT, "--optim.updates", "4"], ""))
    with pytest.raises(ValueError, match="rollout.*4.*optim.updates=5"):
        arithmetic(read([*TEXT, "--optim.updates", "5"], ""))


def test_a_reward_may_be_a_function_or_have_any_weight():
    assert arithmetic(read(["--rewards", "own:reward", "scene_all(weight=-2)", "scene_score"], ""))
    with pytest.raises(ValueError, match="rewards.*'own:reward'.*'x'"):
        arithmetic(read(["--rewards", "own:reward(weight='x')"], ""))


def test_a_mistake_is_that_of_the_file_or_of_the_command_line(tmp_path):
    with pytest.raises(ValueError, match="'gpro'"):
        read(["--algorithm.preset", "gpro"], "")
    (tmp_path / "a.yaml").write_text("stepps: 3\n")
    with pytest.raises(ValueError, match=f"^{tmp_path}/a.yaml.*'stepps'"):
        read(["--config", str(tmp_path / "a.yaml")], "")


@pytest.fixture
def trained(monkeypatch, capsys):
    """What a training prints whose run does nothing, and the configurations of such runs."""
    ran: list[Any] = []

    def run_config(config: Any, inherited: Any) -> Any:
        ran.append(config)
        summary = {"steps": 3, "eval": {}, "trained": {"exact": 1.0}}
        return SimpleNamespace(summary=summary, folder=Path("runs/my run"))

    monkeypatch.setattr("mmgrpo.api.run_config", run_config)
    monkeypatch.setattr("mmgrpo.report.terminal.closing", lambda summary: f"{summary['steps']} steps")
    monkeypatch.delenv("RANK", raising=False)

    def train(*arguments: Any) -> tuple[str, list[Any]]:
        ran.clear()
        main(*arguments)
        return capsys.readouterr().out, ran

    return train


@pytest.mark.parametrize(("found", "extra"), [(None, f", after {install('demo')}"), (object(), "")])
def test_a_run_ends_with_its_results_and_where_to_look_at_them(trained, found, extra, monkeypatch):
    monkeypatch.setattr("mmgrpo.cli.train.find_spec", lambda name: found)
    said, ran = trained(TEXT)
    assert (
        said.startswith(f"{arithmetic(read(TEXT, ''))}\n3 steps\n\n") and "mmgrpo evaluate --run 'runs/my run'" in said
    )
    assert said.endswith(f"\nreport: runs/my run/report.html\ndemo:   mmgrpo demo 'runs/my run'{extra}\n")
    assert ran == [read(TEXT, "")]
    assert trained([])[1][0].model.family == "sd3" and trained([], "", "whisper")[1][0].model.family == "whisper"


def test_a_dry_run_prints_the_costs_and_runs_nothing(trained, capsys):
    with pytest.raises(ValueError, match="data/questions/train.jsonl"):
        trained([*TEXT, "--dry-run"])
    capsys.readouterr()
    said, ran = trained(["--dry-run"])
    assert said.startswith(f"{arithmetic(read([], ''))}\nprompts: ") and "data.train 718" in said and ran == []
    assert "memory: " in said and "GB with 8 processes" in said


def test_only_the_first_process_prints(trained, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    assert trained(TEXT)[0].startswith("3 steps")
    monkeypatch.setattr("accelerate.PartialState", lambda: SimpleNamespace(is_main_process=False))
    assert trained(TEXT)[0] == "" and len(trained(TEXT)[1]) == 1
    monkeypatch.setenv("RANK", "0")
    assert trained(TEXT)[0].startswith("a rollout: ")


def test_the_keys_of_samples_are_those_of_the_policies():
    from mmgrpo.policies.categorical import CategoricalPolicy
    from mmgrpo.policies.denoising import DenoisingPolicy
    from mmgrpo.policies.flow_matching import FlowMatchingPolicy
    from mmgrpo.policies.token import TokenPolicy

    assert set(KEYS["gaussian"]) == DenoisingPolicy.keys
    assert set(KEYS["matching"]) == FlowMatchingPolicy.keys
    assert set(KEYS["tokens"]) == TokenPolicy.keys == CategoricalPolicy.keys


@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
def test_a_launcher_that_would_shard_is_refused_before_all_else(dry, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    with pytest.raises(ValueError, match=r"configuration.*DeepSpeed.*distributed\.shard=full"):
        main(["--model.path", "nowhere", *SCENES, "--rewards", "jpeg_compressibility", *dry])
    assert list(tmp_path.iterdir()) == [] and capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lora_rank": -1}, r"model.lora_rank.*-1.*\[0, 65536\]"),
        ({"device": "cdua"}, "model.device.*'cdua'"),
        ({"steps": 0}, r"sampling.steps.*0.*\[1, 10000\]"),
        ({"guidance": float("nan")}, r"model.guidance.*nan.*\[1, 1000\]"),
        ({"kernel": "flow_sd"}, "sampling.kernel.*'flow_sd'"),
    ],
)
def test_a_policy_from_python_refuses_the_same(options, message):
    from pipelines import visual

    with pytest.raises(ValueError, match=message):
        visual.policy("nowhere", family="sd3", **options)


@pytest.mark.parametrize("name", families())
def test_every_option_of_a_family_has_its_doc(name):
    kind = config_class(families()[name].sections)
    assert {option for option, _ in documented(kind)} == set(option_names(kind))


@pytest.mark.parametrize("name", ["flux", "image_text", "whisper", "duration"])
def test_help_lists_every_option_of_a_family_with_its_doc(name, capsys, monkeypatch):
    """A narrow terminal has one column; words are compared, for lines break where it ends."""
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main(["--model.family", name, "--help"])
    shown = " ".join(re.sub(r"[│╭╮╰╯─]", " ", capsys.readouterr().out).split())
    kind = config_class(families()[name].sections)
    docs = documented(kind)
    missing = [option for option, doc in docs if not re.search(rf"{option}[ ,]", shown) or doc not in shown]
    assert missing == []


@dataclasses.dataclass
class Few:
    """Few options."""

    words: tyro.conf.Positional[list[str]]
    """Some words."""
    count: Annotated[int, within("[0, 9]")] = 4
    """A count."""


@cache
def docs_in(kind: type) -> dict[str, str]:
    """What stands under the fields in the source of a class, of which families have most in common."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(tree, ast.ClassDef)
    return {
        ast.unparse(field.target): " ".join(ast.literal_eval(doc.value).split())
        for field, doc in zip(tree.body, tree.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign) and isinstance(doc, ast.Expr)
    }


def documented(kind: type, prefix: str = "--") -> Iterator[tuple[str, str]]:
    """The options of a dataclass, each with what stands under its field in the source."""
    hints, docs = typing.get_type_hints(kind), {}
    for parent in reversed([one for one in kind.__mro__ if dataclasses.is_dataclass(one)]):
        docs |= docs_in(parent)
    for field in dataclasses.fields(kind):
        name = prefix + field.name.replace("_", "-")
        if dataclasses.is_dataclass(hints[field.name]):
            yield from documented(hints[field.name], f"{name}.")
        else:
            yield name, docs[field.name]
