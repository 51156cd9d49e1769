"""Which prompts of a file a run can show."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from PIL import Image as Pil

from mmgrpo.data.media import Skipped
from mmgrpo.types import Image, Media, Prompt, Turn
from pipelines import readable
from pipelines.readable import check_skip_limit, filter_readable, same_medium
from pipelines.vlm.media import measure


def showing(id, *media):
    return Prompt("What is it?", id, turns=(Turn("user", (*media, "What is it?")),))


def test_what_can_be_read_is_kept_in_order_and_the_rest_is_listed_with_its_reason(tmp_path):
    Pil.new("RGB", (9, 9)).save(tmp_path / "good.png")
    (tmp_path / "bad.png").write_bytes(b"no")
    good, bad, missing = (Media("image", str(tmp_path / name)) for name in ("good.png", "bad.png", "none.png"))
    prompts = [
        showing("text"),
        showing("picture", good),
        showing("damaged", good, bad),
        showing("memory", Media("image", Image(torch.rand(3, 4, 5))), good),
        showing("missing", missing, bad),
        showing("sound", Media("audio", str(tmp_path / "none.wav"))),
    ]
    kept, skipped = filter_readable(prompts, measure)
    assert kept == [prompts[0], prompts[1], prompts[3]]
    assert [one.id for one in skipped] == ["damaged", "missing", "sound"]
    assert [one.file.rsplit("/")[-1] for one in skipped] == ["bad.png", "none.png", "none.wav"]
    assert "read" in skipped[0].reason
    assert all("no such file" in one.reason for one in skipped[1:])


def test_a_file_that_many_prompts_show_is_opened_once():
    opened = []
    prompts = [showing(str(k), Media("image", "good.png")) for k in range(5)]
    further = [showing("clip", Media("video", "a.mp4", {"start": start})) for start in (1.0, 2.0)]
    assert filter_readable([*prompts, *further], opened.append)[0] == [*prompts, *further]
    assert len(opened) == 3  # the picture, and the clip as it is seen twice


def test_a_wrong_program_is_no_unreadable_file():
    with pytest.raises(ZeroDivisionError):
        filter_readable([showing("a", Media("image", "good.png"))], lambda media: 1 / 0)


def test_media_are_equal_by_kind_source_and_options_in_any_order():
    first, second = Image(torch.zeros(3, 2, 2)), Image(torch.zeros(3, 2, 2))
    assert same_medium(Media("image", first)) == same_medium(Media("image", first))
    assert same_medium(Media("image", first)) != same_medium(Media("image", second))
    one, other = Media("video", "a", {"start": 1, "end": 2}), Media("video", "a", {"end": 2, "start": 1})
    assert same_medium(one) == same_medium(other) != same_medium(Media("video", "a", {"end": 2}))
    assert same_medium(Media("image", "a")) != same_medium(Media("audio", "a"))
    files = (tuple(f"{name}.png" for name in names) for names in ("ab", "ab"))
    assert len({same_medium(Media("video", some)) for some in files}) == 1
    assert len({same_medium(Media("image", f"{name}.png")) for name in "aa"}) == 1, "by the text, not its object"


def test_a_file_may_lack_the_fraction_of_the_limit_but_not_all_of_it():
    one = Skipped("0", "", "is silent")
    check_skip_limit([], 0, 0.0, "a.jsonl", "cannot be read")
    check_skip_limit([one], 4, 0.25, "a.jsonl", "cannot be read")
    check_skip_limit([one] * 3, 4, 1.0, "a.jsonl", "cannot be read")
    for skipped, of, limit in (([one], 4, 0.24), ([one] * 4, 4, 1.0), ([one], 1, 1.0)):
        with pytest.raises(ValueError, match=f"a.jsonl.*{len(skipped)}.*{of}"):
            check_skip_limit(skipped, of, limit, "a.jsonl", "cannot be read")


def test_each_process_opens_its_share_and_all_know_every_reason(monkeypatch):
    """The second of two processes opens the second of three files."""
    files = [Media("image", name) for name in ("a.png", "b.png", "c.png")]
    state = SimpleNamespace(num_processes=2, process_index=1, is_main_process=False)
    monkeypatch.setattr(readable, "is_initialized", lambda: True)
    monkeypatch.setattr(readable, "PartialState", lambda: state)
    shared = lambda local, state: ["first", "third", *local]  # noqa: E731
    monkeypatch.setattr("mmgrpo.runtime.distributed.gather_texts", shared)
    found = readable._on_all_ranks(files, lambda medium: f"not {medium.source}", 1, "")
    assert found == ["first", "not b.png", "third"]
