"""Which groups are written, and how their folder comes to be."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mmgrpo.report import run_record
from mmgrpo.report.groups import group_steps
from mmgrpo.report.run_record import GroupFolder, GroupRecord, display_form, tree_of
from mmgrpo.types import Audio, Image, Media, Prompt, Turn, Video
from tests.trees import plain
from tests.unit.report.test_groups import pictures, rolled, write

NAN = float("nan")
ASKED = Prompt("what?", turns=(Turn("user", (Media("image", Image(torch.zeros(3, 4, 4))), "what?")),))


def pair(**more):
    return rolled(pictures(2), plain([1, 1]), [1.0, 0.0], **more)


def test_only_groups_that_are_due_are_written_and_media_as_the_family_shows_them(tmp_path):
    shown = []

    def family(medium):
        shown.append(medium)
        return display_form(medium)

    record = GroupRecord(tmp_path / "run", 2, 4, displayed=family)
    for step in range(4):
        record.write(step, pair(prompt=ASKED))
    assert group_steps(tmp_path / "run") == [0, 2] and shown == [*ASKED.media] * 2


def test_a_group_is_written_beside_its_place_and_nothing_is_left_there(tmp_path):
    groups, names = tmp_path / "groups", []

    def family(medium):
        names.extend(path.name for path in groups.iterdir())
        return display_form(medium)

    GroupRecord(tmp_path, 1, displayed=family).write(0, pair(prompt=ASKED))
    assert len(names) == 1 and names[0].startswith(".writing-")
    assert [path.name for path in groups.iterdir()] == ["step-000000"]


def test_the_record_of_a_group_is_moved_after_all_of_its_media(tmp_path, monkeypatch):
    write(tmp_path, pair(prompt=ASKED))
    place = tmp_path / "groups" / "step-000000"
    (place / "note.txt").touch()
    rename, moved = Path.rename, []

    def noted(self, target):
        moved.append(Path(target))
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", noted)
    write(tmp_path, pair(prompt=ASKED))
    names = [path.name for path in moved if path.parent == place]
    assert names[-1] == "group.json" and {*names[:-1]} == {"000.png", "001.png", "prompt-0.jpg"}


def test_a_number_that_json_lacks_is_an_error_and_leaves_no_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(run_record, "describe", lambda *_: {"reward": NAN})
    with pytest.raises(ValueError, match="JSON"):
        write(tmp_path, pair())
    assert not list((tmp_path / "groups").iterdir())


def test_the_first_group_is_that_of_the_first_sample(tmp_path):
    numbers = plain([1, 1, 1], keys={"prompt": [5, 2, 2]})
    record = write(tmp_path, rolled(pictures(3), numbers, [1.0, 0.5, 0.25]))
    assert [one["reward"] for one in record["members"]] == [1.0] and record["size"] == 1


def test_members_have_the_numbers_of_their_places_in_the_batch(tmp_path):
    round_ = pair(advantages=torch.tensor([[1.0], [2.0]]))
    round_.batch.places[0] = torch.tensor([1, 0])
    first, second = write(tmp_path, round_)["members"]
    assert [(one["reward"], one["advantage"]) for one in (first, second)] == [(0.0, 2.0), (1.0, 1.0)]


def test_a_group_that_is_written_again_has_nothing_of_the_first(tmp_path):
    write(tmp_path, rolled(pictures(3), plain([1] * 3), [1.0, 0.0, 0.5]))
    write(tmp_path, pair())
    names = {path.name for path in (tmp_path / "groups" / "step-000000").iterdir()}
    assert names == {"000.png", "001.png", "group.json"}


def test_a_sample_that_begins_later_than_the_next_keeps_none_of_its_decisions_away():
    table, nodes = tree_of(torch.tensor([[0, 1], [2, 3]]), torch.tensor([[False, True], [True, True]]), [1.0, 0.0])
    assert table == [[-1, 1], [0, 2]] and nodes == [{"value": 0.0}, {"value": 1.0}, {"value": 0.0}]


def test_the_sound_of_a_video_is_kept_beside_it_and_told_apart_from_previews(tmp_path):
    video = Video(torch.zeros(2, 3, 4, 4), 4.0, Audio(torch.zeros(1, 80), 160))
    written = GroupFolder(tmp_path, display_form).output("000", video)
    assert written == {"kind": "video", "file": "000.webp", "seconds": 0.5, "sound": "000-0.wav"}
    assert all(run_record.FILE.fullmatch(path.name) for path in tmp_path.iterdir())
