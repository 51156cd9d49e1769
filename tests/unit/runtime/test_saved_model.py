"""``model/`` of a run: whole or as before, wherever a process is killed, and a user's files in it for ever."""

from __future__ import annotations

import errno
from functools import partial

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from mmgrpo.files import target_of
from mmgrpo.runtime.saved_model import add_card, check_model, write_model, written_files
from tests.faults.trials import Fault, in_child
from tests.unit.runtime.trees import tree


def saves(*names):
    def save(folder):
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(f"{name} of {len(names)}")

    return save


def test_a_model_is_replaced_and_its_files_have_hashes(tmp_path):
    folder = tmp_path / "model"
    write_model(folder, saves("a", "sub/b", "old"), "run", 1)
    check_model(folder)
    write_model(folder, saves("a", "sub/b"), "run", 2)
    assert tree(tmp_path).keys() == {"model/run.json", "model/a", "model/sub/b"}
    (folder / "a").write_text("a of 3")
    with pytest.raises(ValueError, match="model/a.*run.json.*SHA-256"):
        check_model(folder)
    (folder / "a").unlink()
    with pytest.raises(ValueError, match="model/a"):
        check_model(folder)
    (folder / "run.json").write_text("{")
    with pytest.raises(ValueError, match="run.json"):
        check_model(folder)
    (folder / "run.json").unlink()
    check_model(folder)  # of an earlier version, or saved by hand


@pytest.mark.parametrize("text", ["[]", "{}", "3", "null", '{"files": 3}', '{"files": [1]}', '{"files": null}', "\xff"])
def test_a_list_of_files_that_is_none_is_told_as_damaged(text, tmp_path):
    (tmp_path / "run.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=r"run\.json"):
        check_model(tmp_path)


def test_a_full_disk_while_a_model_is_saved_names_it(tmp_path):
    for error in (OSError(errno.ENOSPC, "No space left on device"), SafetensorError("I/O error: full (os error 28)")):

        def save(folder, error=error):
            folder.mkdir(exist_ok=True)
            raise error

        with pytest.raises(OSError, match="model") as caught:
            write_model(tmp_path / "model", save, "run", 1)
        assert caught.value.errno == errno.ENOSPC


def test_what_a_library_saves_for_its_owner_alone_gets_the_permissions_of_other_files(tmp_path):
    def save(folder):
        folder.mkdir()
        save_file({"a": torch.zeros(1)}, folder / "model.safetensors")  # 0600, whatever the umask

    write_model(tmp_path / "model", save, "run", 1)
    modes = {path.name: path.stat().st_mode for path in (tmp_path / "model").iterdir()}
    assert modes["model.safetensors"] == modes["run.json"]


def test_a_file_of_a_users_whose_name_the_new_model_takes_is_kept_under_another(tmp_path):
    folder = tmp_path / "model"
    write_model(folder, saves("a"), "run", 1)
    (folder / "card").write_text("mine")
    write_model(folder, saves("a", "card"), "run", 2)
    assert (folder / "card").read_text() == "card of 2" and (folder / "card.earlier").read_text() == "mine"


def test_a_card_is_the_runs_until_a_user_writes_in_it(tmp_path):
    folder = tmp_path / "model"
    for content in (b"before", b"after"):
        write_model(folder, saves("a"), "run", 1)
        add_card(folder, {"README.md": content})
        assert tree(folder).keys() == {"run.json", "a", "README.md"} and tree(folder)["README.md"] == content
    (folder / "README.md").write_text("mine")
    check_model(folder)
    write_model(folder, saves("a"), "run", 2)
    assert tree(folder)["README.md"] == b"mine"
    add_card(folder, {"README.md": b"new"})
    assert (tree(folder)["README.md"], tree(folder)["README.md.earlier"]) == (b"new", b"mine")


@pytest.mark.slow
@pytest.mark.parametrize("users", [False, True])
def test_wherever_it_is_killed_the_next_one_ends_the_same(users, tmp_path):
    """Every operation on files in turn; the third model and its card are written after the second was cut off."""

    def written(folder):
        write_model(folder, saves("a", "sub/b"), "run", 2)
        add_card(folder, {"README.md": b"new"})

    at = 0
    while True:
        at += 1
        run = tmp_path / f"at-{at}"
        run.mkdir()
        folder = run / "model"
        write_model(folder, saves("a", "old"), "run", 1)
        add_card(folder, {"README.md": b"old"})
        if users:
            (folder / "sub").mkdir()
            (folder / "sub" / "mine").write_text("mine")
        ended = in_child(partial(written, folder), run, Fault(at))
        states = [name for name in ("model", ".model-replaced") if (run / name / "a").exists()]
        assert states  # one of the two models is there, whole
        check_model(run / states[0])
        for left in [path for path in folder.glob(".*") if target_of(path.name)]:  # a run that is resumed removes them
            assert target_of(left.name) in written_files(folder)
            left.unlink()
        written(folder)
        check_model(folder)
        mine = {"model/sub/mine"} if users else set()
        assert tree(run).keys() == {"model/a", "model/sub/b", "model/run.json", "model/README.md"} | mine, at
        if ended.status == 0:
            break
    assert at > 10
