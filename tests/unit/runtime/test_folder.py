"""What a start may do to a folder: nothing to one that is not a run's, and nothing to what a run did not write."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from accelerate import Accelerator

from mmgrpo.api import PLAIN
from mmgrpo.config.settings import config_class
from mmgrpo.data.media import Skipped
from mmgrpo.runtime.folder import claim, discard_replaced, open_folder, refuse_folder, replaced_runs
from mmgrpo.runtime.identity import Identity
from tests.unit.runtime.trees import tree

INPUTS = {"train": "t", "network": "n"}


def config(output: Path, **changes):
    return replace(config_class(PLAIN)(), output_dir=str(output), name="demo", **changes)


def start(settings, inputs=INPUTS):
    accelerator = Accelerator(cpu=True)
    refuse_folder(settings)
    with claim(settings, accelerator):
        return open_folder(settings, inputs, [], accelerator)


def a_run(output: Path) -> Path:
    """A finished run with one file of every kind, and files of the user's among them."""
    identity = start(config(output))
    folder = output / "demo"
    files = {"summary.json", "report.html", "metrics.jsonl", "skipped.jsonl", "evaluations/before-natural.json"}
    files |= {
        "samples/before.png",
        "samples/step-000050.jsonl",
        "samples/after/000-said.wav",
        "samples/after/001-0.jpg",
    }
    files |= {"checkpoints/step-000050/state.json", "checkpoints/step-000050/weights.safetensors"}
    files |= {"checkpoints/damaged-step-000040/state.json", "checkpoints/.writing-x1/ema.safetensors"}
    files |= {"tracker/events.out.tfevents.1", "tracker/17.5/hparams.yml", "model/adapter_config.json"}
    files |= {
        "evaluation.json",
        "evaluation-heldout-1.json",
        "drawn/grid.png",
        "drawn/003-0-before.png",
        "drawn/after/001-said.wav",
        "drawn/before.jsonl",
    }
    files |= {"groups/step-000040/group.json", "groups/step-000040/003-1.png", "groups/step-000040/prompt-0.jpg"}
    files |= {"groups/step-000040/.003.png.ab12ab12ab12", "groups/.writing-x1/000.webp"}
    files |= {".metrics.jsonl.ab12ab12ab12", "model/sub/weights.safetensors"}
    model = {"run": identity.run, "step": 1, "files": {"adapter_config.json": "", "sub/weights.safetensors": ""}}
    write(folder, files)
    (folder / "model" / "run.json").write_text(json.dumps(model))
    return folder


USERS = {
    "notes.txt",
    "samples/best.png",
    "samples/after/mine.wav",
    "model/README.md",
    "checkpoints/step-000050/copy.bin",
    "src/a.py",
    "drawn/chosen.png",
    "before.json",
    ".git/HEAD",
}


def write(folder, names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


def test_a_resume_removes_what_a_killed_process_left_half_written_and_nothing_else(tmp_path):
    folder = a_run(tmp_path)
    half = {".prompts.jsonl.0123456789ab", f"replay/.{'0' * 32}.safetensors.0123456789ab", ".run.json.0123456789ab"}
    half |= {
        "model/.adapter_config.json.0123456789ab",
        "checkpoints/.writing-removed-step-000010-x/weights.safetensors",
    }
    users = {".prompts.jsonl.original", ".prompts.jsonl.bak", ".notes.txt.0123456789ab", "model/.mine.0123456789ab"}
    write(folder, {*half, *users, *USERS, f"replay/{'0' * 32}.safetensors"})
    (folder / "summary.json").unlink()
    before = tree(folder).keys()
    start(config(tmp_path, resume=True))
    gone = before - tree(folder).keys()
    marks = ("0123456789ab", "ab12ab12ab12", "checkpoints/.writing-")
    assert gone == {name for name in before - users if any(mark in name for mark in marks)} >= half


def test_a_folder_that_no_run_wrote_is_refused_and_left_as_it_is(tmp_path):
    project = tmp_path / "demo"
    write(project, {"src/main.py", "config.yaml", "checkpoints/step-000001/state.json"})
    before = tree(tmp_path)
    for settings in (config(tmp_path), config(tmp_path, overwrite=True), config(tmp_path, resume=True)):
        with pytest.raises(FileExistsError, match="demo.*folder of a run"):
            start(settings)
    assert tree(tmp_path) == before
    (tmp_path / "other").write_text("a file")
    with pytest.raises(FileExistsError, match="other"):
        refuse_folder(replace(config(tmp_path, overwrite=True), name="other"))


def test_going_back_in_a_run_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="--resume-from step-000040.*--name"):
        start(config(tmp_path, resume_from="step-000040"))
    assert list(tmp_path.iterdir()) == []


def test_an_empty_folder_and_what_a_killed_start_left_in_it_can_be_used(tmp_path):
    write(tmp_path / "demo", {".run.json.ab12ab12ab12"})
    assert start(config(tmp_path)) == Identity.read(tmp_path / "demo")


def test_overwriting_keeps_the_old_run_until_the_new_one_has_a_checkpoint_and_the_users_files_for_ever(tmp_path):
    folder = a_run(tmp_path)
    write(folder, USERS)
    old = Identity.read(folder)
    new = start(config(tmp_path, overwrite=True))
    assert new.run != old.run and tree(folder).keys() == {"run.json", "config.yaml"}
    (aside,) = replaced_runs(folder)
    assert Identity.read(aside) == old and (aside / "model" / "sub" / "weights.safetensors").is_file()
    discard_replaced(folder)
    assert replaced_runs(folder) == [] and sorted(path.name for path in tmp_path.iterdir()) == ["demo"]
    assert tree(folder).keys() == {"run.json", "config.yaml", *USERS}
    assert {name: content for name, content in tree(folder).items() if name in USERS} == {n: n.encode() for n in USERS}


def test_a_link_in_a_run_folder_is_kept_and_what_it_points_to_is_never_entered(tmp_path):
    folder, outside = a_run(tmp_path), tmp_path / "outside"
    write(outside, {"samples/before.png", "run.json"})
    (folder / "data").symlink_to(outside, target_is_directory=True)
    (folder / "samples" / "after.png").symlink_to(outside / "run.json")
    before = tree(outside)
    start(config(tmp_path, overwrite=True))
    discard_replaced(folder)
    assert tree(outside) == before and (folder / "data").is_symlink() and not replaced_runs(folder)


def test_a_run_folder_that_is_a_link_is_not_replaced(tmp_path):
    a_run(tmp_path / "real")
    (tmp_path / "demo").symlink_to(tmp_path / "real" / "demo", target_is_directory=True)
    before = tree(tmp_path / "real")
    with pytest.raises(ValueError, match="--overwrite"):
        start(config(tmp_path, overwrite=True))
    assert tree(tmp_path / "real") == before


def test_a_start_that_was_cut_off_while_it_replaced_a_run_is_undone(tmp_path, capsys):
    folder = a_run(tmp_path)
    before = tree(folder)
    folder.rename(tmp_path / ".demo.replaced-1")
    write(folder, {".run.json.ab12ab12ab12"})
    with pytest.raises(FileExistsError, match="already contains a run"):
        start(config(tmp_path))
    assert tree(folder) == before and "as it was before --overwrite" in capsys.readouterr().out


def test_a_second_replacement_before_the_first_checkpoint_loses_neither_run(tmp_path):
    folder = a_run(tmp_path)
    first = Identity.read(folder)
    second = start(config(tmp_path, overwrite=True))
    third = start(config(tmp_path, overwrite=True))
    assert [Identity.read(aside) for aside in replaced_runs(folder)] == [first, second] and Identity.read(
        folder
    ) == third
    discard_replaced(folder)
    assert replaced_runs(folder) == []


def test_a_run_is_resumed_with_its_settings_and_inputs_only(tmp_path):
    identity = start(config(tmp_path, steps=4))
    assert start(config(tmp_path, steps=9, resume=True, keep=5)).run == identity.run
    with pytest.raises(ValueError, match="seed=0.*3"):
        start(config(tmp_path, steps=4, resume=True, seed=3))
    with pytest.raises(ValueError, match="'train'"):
        start(config(tmp_path, resume=True), {**INPUTS, "train": "u"})
    with pytest.raises(ValueError, match="'heldout'"):
        start(config(tmp_path, resume=True), {**INPUTS, "heldout": "h"})
    with pytest.raises(ValueError, match="model.path"):
        start(config(tmp_path, resume=True), {**INPUTS, "network": "m"})
    with pytest.raises(FileExistsError, match="--resume"):
        start(config(tmp_path))


def test_a_start_that_was_cut_off_before_the_configuration_was_written_is_resumed(tmp_path):
    identity = start(config(tmp_path))
    (tmp_path / "demo" / "config.yaml").unlink()
    with pytest.raises(ValueError, match="run.json"):
        start(config(tmp_path, seed=1, resume=True))
    assert start(config(tmp_path, resume=True)).run == identity.run
    assert (tmp_path / "demo" / "config.yaml").is_file()


def test_what_may_change_on_resume_is_stated_and_recorded(tmp_path):
    from mmgrpo.config.settings import Optim

    start(config(tmp_path))
    lower = config(tmp_path, resume_from="step-000040", optim=Optim(lr=1e-5, max_grad_norm=0.5))
    start(lower)
    (entry,) = Identity.read(tmp_path / "demo").resumed
    assert entry["changed"]["optim.lr"] == [1e-4, 1e-5] and entry["changed"]["optim.max_grad_norm"] == [1.0, 0.5]
    with pytest.raises(ValueError, match="optim.beta1"):
        start(config(tmp_path, resume=True, optim=Optim(beta1=0.5)))


def test_a_run_records_the_processes_and_the_sharding_that_it_starts_with(tmp_path, monkeypatch):
    from mmgrpo.config.settings import Distributed

    monkeypatch.setattr(Accelerator, "num_processes", 4)
    monkeypatch.setattr(Accelerator, "wait_for_everyone", lambda self: None)
    begun = start(config(tmp_path, distributed=Distributed(shard="full")))
    monkeypatch.setattr(Accelerator, "num_processes", 2)
    found = start(config(tmp_path, resume=True))
    assert (found.run, found.processes, found.shard) == (begun.run, 4, "full")
    assert found.resumed[0]["processes"] == 2
    assert found.resumed[0]["changed"]["distributed.shard"] == ["full", "none"]
    path = tmp_path / "demo" / "run.json"
    earlier = {key: one for key, one in json.loads(path.read_text()).items() if key not in ("processes", "shard")}
    path.write_text(json.dumps(earlier))  # of a version that did not record them
    assert Identity.read(tmp_path / "demo").processes == 0


@pytest.mark.parametrize("decay", ["linear", "cosine"])
def test_the_number_of_steps_cannot_change_where_it_decides_the_learning_rates(decay, tmp_path):
    from mmgrpo.config.settings import Optim

    start(config(tmp_path, steps=4, optim=Optim(decay=decay)))
    start(config(tmp_path, steps=4, optim=Optim(decay=decay), resume=True))
    with pytest.raises(ValueError, match=f"--steps.*8.*4.*optim.decay={decay}"):
        start(config(tmp_path, steps=8, optim=Optim(decay=decay), resume=True))


def test_a_configuration_that_was_edited_is_refused_on_resume(tmp_path):
    start(config(tmp_path))
    path = tmp_path / "demo" / "config.yaml"
    path.write_text(path.read_text().replace("seed: 0", "seed: 1"))
    with pytest.raises(ValueError, match="run.json"):
        start(config(tmp_path, seed=1, resume=True))


@pytest.mark.parametrize("content", ["", "{", "[]", '{"run": "a"}', '{"run": "a", "config": "b", "resumed": 3}'])
def test_a_damaged_marker_is_an_error_that_names_it(content, tmp_path):
    start(config(tmp_path))
    (tmp_path / "demo" / "run.json").write_text(content)
    for settings in (config(tmp_path, resume=True), config(tmp_path, overwrite=True)):
        with pytest.raises(ValueError, match="demo/run.json"):
            start(settings)


def test_a_run_that_has_other_settings_is_refused_before_a_model_is_loaded(tmp_path):
    start(config(tmp_path))
    refuse_folder(config(tmp_path, resume=True))
    with pytest.raises(ValueError, match="seed"):
        refuse_folder(config(tmp_path, resume=True, seed=7))


def test_runs_moved_aside_are_in_the_order_of_their_numbers(tmp_path):
    for number in (10, 9, 100):
        (tmp_path / f".demo.replaced-{number}").mkdir()
    assert [aside.name.rpartition("-")[2] for aside in replaced_runs(tmp_path / "demo")] == ["9", "10", "100"]


@pytest.mark.parametrize(("steps", "kept"), [(4, "summary.json"), (9, "summary-000004.json")])
def test_the_summary_of_a_finished_run_is_renamed_where_it_goes_on(steps, kept, tmp_path):
    start(config(tmp_path, steps=4))
    [folder] = tmp_path.iterdir()
    (folder / "summary.json").write_text('{"steps": 4}')
    start(config(tmp_path, steps=steps, resume=True))
    assert [path.name for path in folder.glob("summary*")] == [kept]


def test_an_interrupted_removal_can_be_repeated_since_the_marker_goes_last(tmp_path, monkeypatch):
    folder, removed = a_run(tmp_path), []
    start(config(tmp_path, overwrite=True))
    unlink = Path.unlink
    monkeypatch.setattr(Path, "unlink", lambda path, **options: (removed.append(path.name), unlink(path, **options)))
    discard_replaced(folder)
    assert len(removed) > 10 and removed[-1] == "run.json" and removed.count("run.json") == 2  # and the model's


def test_prompts_that_are_left_out_are_listed_as_they_are(tmp_path, capsys):
    settings = config(tmp_path)
    lines = [Skipped("3", "ä.png", "no picture")]
    accelerator = Accelerator(cpu=True)
    with claim(settings, accelerator):
        open_folder(settings, INPUTS, lines, accelerator)
    text = (tmp_path / "demo" / "skipped.jsonl").read_text(encoding="utf-8")
    assert '"ä.png"' in text and text.count("\n") == 1
    assert "1 prompts are skipped and listed in" in capsys.readouterr().out


def test_a_process_that_is_not_the_main_one_neither_locks_nor_writes(tmp_path, monkeypatch):
    monkeypatch.setattr(Accelerator, "is_main_process", False)
    settings, accelerator = config(tmp_path), Accelerator(cpu=True)
    with claim(settings, accelerator):
        assert open_folder(settings, INPUTS, [], accelerator) is None
        assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(Accelerator, "is_main_process", True)
    identity = start(settings)
    monkeypatch.setattr(Accelerator, "is_main_process", False)
    assert open_folder(settings, INPUTS, [], accelerator) == identity, "what the main process wrote is read"


def test_a_users_file_that_the_new_run_has_too_stays_in_the_old_one_which_is_told(tmp_path, capsys):
    folder = a_run(tmp_path)
    write(folder, {"notes.txt"})
    start(config(tmp_path, overwrite=True))
    (folder / "notes.txt").write_text("of the new run")
    discard_replaced(folder)
    (aside,) = replaced_runs(folder)
    assert tree(aside) == {"notes.txt": b"notes.txt"} and (folder / "notes.txt").read_text() == "of the new run"
    assert "keeps files that the replaced run did not write, but this one did" in capsys.readouterr().out
