"""A training group as a page shows it, member by member."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from mmgrpo.report.group_page import Card, _card, colour, group_page, widest_group_page
from mmgrpo.report.groups import group_steps, read_group
from mmgrpo.report.media import MediaFolder
from tests.unit.report.test_group_runs import strange


def shown(folder: Path, **fields: Any) -> Card:
    """The card of a member with these fields, of a group whose largest advantage is 2."""

    def change(record, member):
        record["members"] = [member | fields, member | {"advantage": -2.0}]

    group = read_group(strange(folder, change), 0)
    return _card(MediaFolder(folder / "groups" / "step-000000"), group, group.members[0])


@pytest.mark.parametrize(
    ("output", "size", "text", "media"),
    [
        ({"kind": "text", "text": "said", "tokens": 7}, "7 tokens", "said", 0),
        ({"kind": "text", "text": "", "tokens": None}, "", "", 0),
        ({"kind": "text", "text": "a", "seconds": 2.0}, "", "a", 0),
        ({"kind": "audio", "file": "000.wav", "seconds": 1.25}, "1.2 s", None, 1),
        ({"kind": "audio", "file": "", "seconds": 2}, "2.0 s", "(audio, not kept)", 0),
        ({"kind": "video", "file": "000.webp"}, "", None, 1),
        ({"kind": "video", "file": "000.webp", "sound": "000-0.wav"}, "", None, 2),
        ({"kind": "image", "file": "000.png", "seconds": "x"}, "", None, 1),
        ({"kind": "image", "file": "000.png", "words": "a plan"}, "", "a plan", 1),
    ],
)
def test_a_member_has_its_text_or_its_file_and_its_length(tmp_path, output, size, text, media):
    card = shown(tmp_path, output=output)
    assert (card.size, card.text, len(card.media)) == (size, text, media)


def test_a_member_has_its_numbers_or_dashes_and_the_colour_of_its_advantage(tmp_path):
    card = shown(tmp_path / "a", member=4, reward=0.5, advantage=1.0, rewards={"r": 0.25, "s": None})
    assert (card.reward, card.advantage, card.rewards) == ("0.500", "+1.000", [("r", "0.250"), ("s", "–")])
    assert card.colour == colour(1.0, 2.0) and card.member.number == 4
    none = shown(tmp_path / "b", reward=None, advantage=None)
    assert (none.reward, none.advantage, none.colour) == ("–", "–", "rgb(255, 255, 255)")


def test_media_of_a_group_are_told_apart_by_their_names(tmp_path):
    def change(record, member):
        record["prompt"]["media"] = ["prompt-0.WAV"]
        member.update(output={"kind": "audio", "file": "000.wav"}, member=2)

    folder = strange(tmp_path, change)
    for name in ("prompt-0.WAV", "000.wav"):
        (folder / "groups" / "step-000000" / name).write_bytes(b"sound")
    page = widest_group_page(folder)
    assert re.findall(r'<audio[^>]*src="(data:audio/wav)', page) == ["data:audio/wav"] * 2
    assert "medium of the prompt" in page and "sample 3" in page


@pytest.mark.parametrize("link", ["groups", "groups/step-000000"])
def test_a_group_that_has_become_a_link_to_elsewhere_is_not_shown(tmp_path, link):
    folder, other = strange(tmp_path / "run", lambda record, member: None), tmp_path / "other"
    group = read_group(folder, 0)
    assert "<li" in group_page(folder, group)
    (folder / link).rename(other)
    (folder / link).symlink_to(other)
    with pytest.raises(ValueError, match="groups.*outside"):
        group_page(folder, group)


@pytest.mark.slow
def test_ten_thousand_folders_of_groups_are_listed(monkeypatch):
    def many(self, pattern):
        return (Path(pattern.replace("*", f"{number:06d}")) for number in range(10_001))

    monkeypatch.setattr(Path, "glob", many)
    monkeypatch.setattr("mmgrpo.report.groups.resolve_within", lambda folder, name: Path(name))
    assert group_steps(Path()) == list(range(10_000))
