"""What the demo opens: runs, pairs of models, and what it does with those that cannot be opened."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mmgrpo.cli.demo import Args
from mmgrpo.cli.demo import models as opening
from mmgrpo.cli.demo.kept import kept_questions
from mmgrpo.cli.demo.models import (
    AFTER,
    BEFORE,
    NAMED,
    STORED,
    STORED_RUN,
    Opened,
    Pair,
    find_runs,
    open_all,
    run_pair,
    trained_model,
)
from mmgrpo.cli.demo.runs import metrics_of, read_look
from mmgrpo.cli.train import read
from mmgrpo.config.reading import write_yaml
from mmgrpo.family import Family, family
from mmgrpo.report.groups import group_steps
from mmgrpo.types import Image, Policy, Request
from tests.journeys.cli import quick
from tests.journeys.cli.demo.fakes import Model
from tests.journeys.cli.demo.fakes import pair as pair_of


def make_run(folder: Path, words: Path, *more: object) -> Path:
    """A run folder whose model is not trained yet."""
    arguments = [str(word) for word in (*quick.visual(words, folder.parent), *more)]
    config = read(["--model.family", "sd3", *arguments], "")
    folder.mkdir(parents=True)
    write_yaml(folder / "config.yaml", config)
    (folder / "run.json").write_text("{}")
    return folder


def train(folder: Path) -> None:
    """Write a model into a run folder that draws something else than the untrained one."""
    pair = run(folder)
    policy = pair.load(BEFORE, "cpu")
    with torch.no_grad():
        for parameter in policy.network.parameters():
            parameter.add_(0.01)
    policy.save(folder / "model")


def run(folder: Path) -> Pair:
    """The pair of a run."""
    return opened(folder).pairs[folder.name]


def opened(*folders: Path, **options: object) -> Opened:
    """What the demo opens of these folders."""
    return open_all(Args(runs=[str(folder) for folder in folders], **options), "cpu")  # type: ignore[arg-type]


def draw(policy: Policy, pair: Pair) -> torch.Tensor:
    """One picture."""
    prompt = pair.examples(1)
    (picture,) = policy.sample(Request(prompts=prompt, slots=[0], group_size=1, seed=1))
    return picture.pixels  # type: ignore[union-attr]


@pytest.fixture(autouse=True)
def few_embedded(monkeypatch):
    """Reading five embedded recipes takes most of the time of a test that is about others."""
    monkeypatch.setattr(opening, "EMBEDDED", ())


@pytest.fixture
def folder(words_folder, tmp_path) -> Path:
    """A run folder without a model."""
    return make_run(tmp_path / "runs" / "first", words_folder)


def test_folders_of_runs_and_runs_are_found_once_each(words_folder, tmp_path):
    first = make_run(tmp_path / "runs" / "first", words_folder)
    second = make_run(tmp_path / "runs" / "second", words_folder)
    make_run(tmp_path / "runs" / ".hidden", words_folder)
    other = make_run(tmp_path / "other" / "first", words_folder)
    (tmp_path / "runs" / "link").symlink_to(first)
    found = find_runs([str(first), str(tmp_path / "runs"), str(other)])
    assert found == {"first": first, "second": second, str(other): other}


def test_a_folder_without_runs_is_an_error_unless_it_is_the_default(tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"empty'.*run\.json"):
        opened(tmp_path / "empty")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match="'runs'"):
        open_all(Args(runs=["runs"]), "cpu")
    found = open_all(Args(), "cpu")
    assert found.runs == {STORED: STORED_RUN} and found.pairs[STORED].sides == (BEFORE,)


def test_the_stored_run_is_small_and_shows_what_training_changed():
    assert sum(path.stat().st_size for path in STORED_RUN.rglob("*") if path.is_file()) <= 300_000
    pairs = kept_questions(STORED_RUN, 99)
    assert len(pairs) >= 8 and all(isinstance(one.output(place), Image) for one in pairs for place in (0, 1))
    found = read_look("a", STORED_RUN)
    (first, before), *_, (last, after) = found.held_out("scene_all")
    assert metrics_of([found])[0] == "held-out scene_all" and first == 0 < last and after.mean > before.mean
    assert group_steps(STORED_RUN)


def test_without_options_the_runs_of_the_working_directory_are_opened(folder, monkeypatch):
    monkeypatch.chdir(folder.parents[1])
    assert open_all(Args(), "cpu").runs == {"first": folder}


@pytest.mark.parametrize("content", ["a: [", "- a list\n", "a: 1\na: 2\n"])
def test_a_damaged_run_among_others_is_left_out_and_one_that_is_named_is_an_error(folder, words_folder, content):
    damaged = make_run(folder.parent / "damaged", words_folder)
    (damaged / "config.yaml").write_text(content)
    both = opened(folder.parent)
    assert list(both.runs) == ["first"] and "damaged" not in both.pairs
    assert list(both.left_out) == ["damaged"] and "config.yaml" in both.left_out["damaged"]
    with pytest.raises(ValueError, match=r"damaged'.*opened.*config\.yaml"):
        opened(damaged)
    (damaged / "config.yaml").unlink()
    assert list(opened(folder.parent).left_out) == ["damaged"]


@pytest.mark.parametrize("content", ["model: {family: nobody}\n", "model: {family: sd3}\nsteps: many\n"])
def test_a_run_whose_models_cannot_be_opened_keeps_its_curves(folder, content):
    (folder / "config.yaml").write_text(content)
    found = opened(folder)
    assert list(found.runs) == ["first"] and "first" not in found.pairs
    assert found.left_out["first"].startswith("its models: ")


def test_a_run_of_a_policy_from_python_has_no_models_here(folder):
    (folder / "config.yaml").write_text("steps: 3\n")
    found = opened(folder)
    assert list(found.runs) == ["first"] and "first" not in found.pairs and not found.left_out


def test_a_run_that_is_written_has_the_models_that_there_are(folder):
    pair = run(folder)
    assert pair.sides == (BEFORE,) and pair.trained == ""
    (folder / "checkpoints").mkdir()
    assert pair.sides == (BEFORE,)
    for step in (4, 12):
        (folder / "checkpoints" / f"step-{step:06d}").mkdir()
    assert pair.sides == (BEFORE, AFTER) and pair.trained == "12"
    (folder / "model").mkdir()
    assert pair.trained == "model"


@pytest.mark.slow
def test_the_weights_of_a_checkpoint_are_those_of_its_step(folder, monkeypatch):
    (folder / "checkpoints" / "step-000012").mkdir(parents=True)
    asked = []
    monkeypatch.setattr("mmgrpo.cli.demo.models.load_weights", lambda source, *_: asked.append(source.weights))
    run(folder).load(AFTER, "cpu")
    run(folder).load(BEFORE, "cpu")
    assert asked == ["12", "untrained"]


@pytest.mark.slow
def test_models_are_loaded_when_they_are_needed_and_the_last_two_are_kept(folder, words_folder):
    train(folder)
    found = opened(folder, before=str(words_folder), family="sd3")
    assert not found.loaded
    before, after = found.policy("first", BEFORE), found.policy("first", AFTER)
    pair = found.pairs["first"]
    assert not torch.equal(draw(before, pair), draw(after, pair))
    assert found.policy("first", BEFORE) is before and found.policy("first", AFTER) is after
    found.policy("first", BEFORE)
    found.policy(NAMED, BEFORE)
    assert [key[:2] for key in found.loaded] == [("first", BEFORE), (NAMED, BEFORE)]


@pytest.mark.slow
def test_a_model_that_another_run_has_replaced_is_loaded_again(folder):
    train(folder)
    found = opened(folder)
    old = found.policy("first", AFTER)
    os.utime(folder / "model", ns=(1, 1))
    assert found.policy("first", AFTER) is not old
    assert [key[:2] for key in found.loaded] == [("first", AFTER)]


def test_names_and_sides_that_are_not_open_load_nothing(folder):
    found = opened(folder)
    with pytest.raises(KeyError):
        found.policy(str(folder), BEFORE)
    with pytest.raises(ValueError, match="'after'"):
        found.policy("first", AFTER)
    with pytest.raises(ValueError, match="side '../x'"):
        found.policy("first", "../x")
    assert not found.loaded


@pytest.mark.parametrize(
    "options",
    [{"before": "a/b"}, {"family": "sd3"}, {"after": "a/b"}, {"after": "a/b", "family": "sd3"}],
)
def test_a_pair_without_a_family_or_a_base_is_refused(tmp_path, options, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="--before.*--family.*--after"):
        open_all(Args(**options), "cpu")


def test_a_pair_has_the_rewards_that_are_named_and_others_have_their_own(words_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    args = Args(before=str(words_folder), family="sd3", rewards=["jpeg_compressibility"])
    pair = open_all(args, "cpu").pairs[NAMED]
    assert list(pair.config.rewards) == ["jpeg_compressibility"] and pair.sides == (BEFORE,)
    with pytest.raises(ValueError, match="--rewards.*--before.*--after"):
        open_all(Args(rewards=["jpeg_compressibility"]), "cpu")


@pytest.mark.slow
def test_weights_that_were_saved_can_stand_after_training(folder, words_folder):
    train(folder)
    trained = run(folder)
    expected = draw(trained.load(AFTER, "cpu"), trained)
    small = ["--model.height", "16", "--model.width", "16", "--sampling.evaluation-steps", "2"]
    config = read(["--model.family", "sd3", "--model.path", str(words_folder), *small], "")
    pair = Pair(NAMED, config, family("sd3"), weights=str(folder / "model"))
    assert torch.equal(draw(pair.load(AFTER, "cpu"), pair), expected)
    assert not torch.equal(draw(pair.load(BEFORE, "cpu"), pair), expected)


def test_a_whole_model_after_training_is_loaded_as_one(tmp_path):
    config = read(["--model.family", "sd3", "--model.path", "a/base"], "")
    saved, whole = tmp_path / "saved", tmp_path / "whole"
    for folder in (saved, whole):
        folder.mkdir()
    (saved / "pytorch_lora_weights.safetensors").touch()
    (whole / "model_index.json").touch()
    assert trained_model(config, str(saved)) == (config, str(saved))
    for name in ("b/tuned", str(whole)):
        other, weights = trained_model(config, name)
        assert (other.model.path, weights) == (name, "") and config.model.path == "a/base"


@pytest.mark.slow
def test_a_reward_that_cannot_be_loaded_does_not_keep_the_others(folder, words_folder, copied):
    other = make_run(folder.parent / "second", words_folder, "--rewards", "nobody:here", "jpeg_compressibility")
    found = opened(other)
    scorers, missing = found.scorers("second")
    assert [one.name for one in scorers] == ["jpeg_compressibility"]
    assert (
        list(missing) == ["nobody:here"] and "nobody" in missing["nobody:here"] and "\n" not in missing["nobody:here"]
    )
    assert found.scorers("second")[0] is scorers


def test_prompts_that_cannot_be_read_are_no_examples(folder, words_folder):
    assert len(run(folder).examples(3)) == 3
    other = make_run(folder.parent / "second", words_folder, "--data.heldout", "nowhere.jsonl")
    assert run(other).examples(3) == []


def loader(asked: list[Any]) -> Family:
    """A family that notes which models it is asked for, and makes one that does nothing of each."""

    def load(config: Any, device: str, prompts: Any = (), *, training: bool = True, weights: str = "") -> Any:
        asked.append((config.model.path, device, training, weights))
        return Model()

    return replace(family("sd3"), load=load)


def loading(name: str, owner: Any, weights: str = "") -> Pair:
    """A pair of the model ``name`` and its ``weights`` after training, if there are any."""
    return Pair(name, read(["--model.family", "sd3", "--model.path", name], ""), owner, weights=weights)


def test_a_pair_without_a_run_is_loaded_to_be_sampled_from(tmp_path):
    asked: list[Any] = []
    one = loading("a/base", loader(asked), str(tmp_path))
    one.load(BEFORE, "cpu")
    one.load(AFTER, "cuda:1")
    one.load(AFTER, "cpu", "b/tuned")
    assert asked == [
        ("a/base", "cpu", False, ""),
        ("a/base", "cuda:1", False, str(tmp_path)),
        ("b/tuned", "cpu", False, ""),
    ]


def test_of_three_models_the_one_that_was_used_longest_ago_is_given_up(monkeypatch):
    asked, freed = [], []
    monkeypatch.setattr(opening, "free_memory", freed.append)
    found = Opened({}, {name: loading(name, loader(asked)) for name in "abc"}, Path("v"), device="cuda:0")
    assert not found.holds("a", BEFORE)
    first = found.policy("a", BEFORE)
    found.policy("b", BEFORE)
    assert found.policy("a", BEFORE) is first and list(found.loaded) == [("b", BEFORE, ""), ("a", BEFORE, "")]
    found.policy("c", BEFORE)
    assert list(found.loaded) == [("a", BEFORE, ""), ("c", BEFORE, "")] and found.policy("a", BEFORE) is first
    assert [path for path, *_ in asked] == ["a", "b", "c"] and freed == ["cuda:0"] * 3
    assert found.holds("a", BEFORE) and not found.holds("a", AFTER) and not found.holds("b", BEFORE)


def test_the_version_of_weights_is_when_the_model_of_a_run_was_written(tmp_path):
    (tmp_path / "model").mkdir()
    os.utime(tmp_path / "model", ns=(5, 7))
    without = loading("p", loader([]))
    of_run = replace(without, run=tmp_path)
    assert (of_run.version("model"), of_run.version("12"), without.version("model")) == ("model 7", "12", "model")
    assert without.run is None and without.weights == without.trained == ""


def test_a_reward_that_ends_the_process_is_one_that_cannot_be_loaded(monkeypatch):
    def ending(spec: str, device: str) -> Any:
        raise SystemExit(f"{device}\n ends")

    monkeypatch.setattr("mmgrpo.rewards.scorer", ending)
    found = Opened({}, {"a": pair_of(rewards=["mine:own(weight=2)"])}, Path("v"), device="cuda:3")
    loaded, failed = found.scorers("a")
    assert not loaded and (loaded, failed) == found.rewards["a"]
    assert [*failed] == ["mine:own"] and "SystemExit: cuda:3 ends" in failed["mine:own"]


@pytest.mark.parametrize("section", [{}, {"model": "sd3"}, {"model": {}}, {"model": {"family": ""}}])
def test_a_run_without_a_family_has_no_pair(section, tmp_path):
    assert run_pair("a", tmp_path, section) is None
