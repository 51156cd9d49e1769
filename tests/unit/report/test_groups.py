"""Training groups in the run folder: what is written, what is read of them, and how they are drawn."""

from __future__ import annotations

import json
import re
from contextlib import nullcontext
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest
import torch
from PIL import Image as Pil

from mmgrpo.policies.denoising import Walks
from mmgrpo.report import run_record
from mmgrpo.report.group_page import branching, colour, group_page, widest_group_page
from mmgrpo.report.groups import group_steps, read_group
from mmgrpo.report.media import MediaFolder, image_within, jpeg_within, webp_within
from mmgrpo.report.run_record import GroupRecord, display_form, write_group
from mmgrpo.rollout import Round
from mmgrpo.scoring import RewardScores
from mmgrpo.types import REFERENCE, Audio, Image, Media, Prompt, Rollout, Text, Turn, Video
from mmgrpo.update import Batch
from tests.trees import binary_tree, decisions, plain

NAN = float("nan")


def rolled(outputs, numbers, totals, *, prompt=None, previews=None, advantages=None, values=None) -> Round:
    """A round of the given rows; reward ``r`` is their total, and advantages count from 1 in steps of a quarter."""
    rows = len(outputs)
    totals = torch.tensor(totals)
    prompts = [prompt or Prompt("a red circle", id="red", answer="one", task="shapes")] * rows
    rollout = Rollout(prompts, outputs, numbers, Walks([]), previews or {})
    if advantages is None:
        advantages = 1 + torch.arange(numbers.loss_mask.numel()).view(numbers.loss_mask.shape) / 4
    batch = Batch([rollout], [torch.arange(rows)], numbers, advantages, numbers.loss_mask)
    values = totals[:, None] if values is None else torch.tensor(values)
    scores = RewardScores(values.nan_to_num(), values.isfinite())
    return Round(batch, [rollout], scores, ["r", "s"][: values.shape[1]], 0, {}, totals)


def pictures(count: int) -> list[Image]:
    return [Image(torch.full((3, 4, 6), i / count)) for i in range(count)]


def tree_round() -> Round:
    """Four leaves: two nodes at step 0, then each its own; the last step is without a decision."""
    node = torch.nn.functional.pad(binary_tree(2, (0, 1)), (0, 1))
    mask = torch.tensor([[True, True, False]] * 4)
    keys = {"prompt": [7] * 4, "tree": [3] * 4}
    numbers = decisions(node, keys=keys, decision_mask=mask, std=torch.tensor([[0.5, 0.25, 0.0]] * 4))
    return rolled(pictures(4), numbers, [1.0, 0.0, NAN, 0.5], values=[[1, 1], [0, NAN], [NAN, 1], [0.5, 0]])


def write(folder: Path, round: Round, step: int = 0) -> dict:
    write_group(folder / "groups" / f"step-{step:06d}", step, round, display_form)
    return json.loads((folder / "groups" / f"step-{step:06d}" / "group.json").read_text())


def test_the_record_takes_an_advantage_that_is_not_finite_and_a_reward_that_abstains(tmp_path):
    made = tree_round()
    advantages = made.batch.advantages.clone()
    advantages[0, 0] = torch.nan
    abstained = torch.zeros_like(made.reward_scores.valid)
    abstained[1, 1] = True
    scores = replace(made.reward_scores, valid=made.reward_scores.valid & ~abstained, abstained=abstained)
    members = write(tmp_path, replace(made, batch=replace(made.batch, advantages=advantages), reward_scores=scores))[
        "members"
    ]
    assert members[0]["advantage"] is None and members[0]["advantages"][0] is None
    assert members[1]["rewards"]["s"] is None and members[1]["abstained"] == ["s"] and "abstained" not in members[0]
    group = read_group(tmp_path, 0)
    assert group.members[1].abstained == ("s",) and "abstains" in group_page(tmp_path, group)


def test_the_record_of_a_tree_number_by_number(tmp_path):
    record = write(tmp_path, tree_round(), step=40)
    members = record.pop("members")
    assert record == {
        "step": 40,
        "steps": 3,
        "size": 4,
        "equal_rewards": False,
        "prompt": {"id": "red", "task": "shapes", "text": "a red circle", "answer": "one", "media": []},
        # 0: samples 0 and 1; 1: samples 2 (without a reward) and 3; then each sample by itself.
        "nodes": [{"value": 0.5}, {"value": 0.5}, {"value": 1.0}, {"value": 0.0}, {"value": None}, {"value": 0.5}],
        "left_out": [],
    }
    assert members[0] == {
        "member": 0,
        "tree": 0,
        "flags": [],
        "output": {"kind": "image", "file": "000.png"},
        "previews": {},
        "reward": 1.0,
        "rewards": {"r": 1.0, "s": 1.0},
        "advantage": 1.125,  # of 1 and 1.25; the third entry is no decision
        "advantages": [1.0, 1.25],
        "std": [0.5, 0.25],
        "decisions": [1, 1],
        "trained": [1, 1],
        "nodes": [0, 2],
    }
    assert members[1]["trained"] == [0, 1] and members[1]["nodes"] == [0, 3]  # sample 0 trains what both share
    assert members[1]["rewards"] == {"r": 0.0, "s": None} and members[1]["flags"] == []
    assert members[2]["reward"] is None and members[2]["flags"] == ["invalid reward"]
    assert Pil.open(tmp_path / "groups/step-000040/003.png").getpixel((0, 0)) == (191, 191, 191)


def test_texts_with_their_flags(tmp_path):
    numbers = plain([2, 3, 1], entropy=torch.tensor([[1.0, 2.0, 0.0], [3.0, 4.0, 5.0], [6.0, 0.0, 0.0]]))
    numbers.origin[2] = REFERENCE
    numbers.loss_mask[1] = False
    outputs = [Text("one", 2), Text("two <b>", 3, truncated=True), Text("three", 1)]
    record = write(tmp_path, rolled(outputs, numbers, [0.5, 0.5, 0.5]))
    first, second, third = record["members"]
    assert read_group(tmp_path, 0).equal_rewards is True
    assert record["equal_rewards"] is True and record["nodes"] == [] and first["nodes"] == []
    assert [one["flags"] for one in (first, second, third)] == [[], ["truncated", "not trained"], ["reference"]]
    assert (first["entropy"], second["entropy"], third["entropy"]) == ([1.0, 2.0], [3.0, 4.0, 5.0], [6.0])
    assert second["output"] == {"kind": "text", "text": "two <b>", "tokens": 3}
    assert sorted(path.name for path in (tmp_path / "groups").rglob("*")) == ["group.json", "step-000000"]


def test_a_shared_decision_that_another_sample_trains_counts_as_trained(tmp_path):
    numbers = decisions([[0], [0]], keys={"prompt": [0, 0], "tree": [0, 0]})
    assert numbers.loss_mask.tolist() == [[True], [False]]
    assert [one["flags"] for one in write(tmp_path, rolled(pictures(2), numbers, [1.0, 0.0]))["members"]] == [[], []]


def test_only_the_first_group_of_the_round_is_written(tmp_path):
    numbers = plain([1, 1, 1, 1], keys={"prompt": [5, 5, 2, 2]})
    record = write(tmp_path, rolled(pictures(4), numbers, [1.0, 0.0, 3.0, 4.0]))
    assert [one["reward"] for one in record["members"]] == [1.0, 0.0]


def test_clips_sounds_previews_and_media_of_the_prompt(tmp_path):
    picture, sound = Image(torch.zeros(3, 8, 8)), Audio(torch.zeros(1, 800), 1600)
    turn = Turn("user", (Media("image", picture), Media("audio", sound), Media("image", "gone.png"), "what?"))
    outputs = [Video(torch.rand(5, 3, 8, 8, generator=torch.Generator().manual_seed(0)), fps=2.0), sound]
    previews = {"interval2": pictures(2)}
    round = rolled(outputs, plain([1, 1]), [1.0, 2.0], prompt=Prompt("what?", turns=(turn,)), previews=previews)
    record = write(tmp_path, round)
    first, second = record["members"]
    assert record["prompt"]["media"] == ["prompt-0.jpg", "prompt-1.wav"]
    assert record["left_out"] == [
        "prompt-2: ValueError: gone.png: files are read by the policy's family, and this policy has none"
    ]
    assert first["output"] == {"kind": "video", "file": "000.webp", "seconds": 2.5}
    assert second["output"] == {"kind": "audio", "file": "001.wav", "seconds": 0.5}
    assert first["previews"] == {"interval2": "000-1.png"}
    assert Pil.open(tmp_path / "groups/step-000000/000.webp").n_frames == 5  # type: ignore[attr-defined]


@pytest.mark.parametrize(("answer", "written"), [(None, None), ("one", "one"), ([1, "ä"], '[1, "ä"]'), (2.5, "2.5")])
def test_an_answer_is_written_as_a_text(answer, written, tmp_path):
    round_ = rolled(pictures(1), plain([1]), [1.0], prompt=Prompt("a", answer=answer))
    assert write(tmp_path, round_)["prompt"]["answer"] == written


def test_a_clip_plays_as_long_as_its_frames_last():
    frames = [Pil.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    content, suffix, note = webp_within(frames, 0.5, 1 << 20)
    with Pil.open(BytesIO(content)) as clip:
        clip.load()
        assert (clip.info["duration"], suffix, note) == (2000, ".webp", "")


def test_what_does_not_fit_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(run_record, "MAX_MEMBERS", 2)
    monkeypatch.setattr(run_record, "MAX_ENTRIES", 4)
    monkeypatch.setattr(run_record, "MAX_LETTERS", 3)
    record = write(tmp_path, rolled([Text("abcd"), Text("abc"), Text("a")], plain([3, 1, 1]), [1.0, 2.0, 3.0]))
    assert record["left_out"][:2] == ["1 of 3 members", "the numbers of decisions after the first 2 of a member"]
    assert [one["output"]["text"] for one in record["members"]] == ["abc", "abc"]
    assert [note for note in record["left_out"] if "characters" in note] == [
        "9 characters of a text",  # of the prompt, which has 12
        "1 characters of a text",
    ]
    assert len(record["members"][0]["advantages"]) == 2 and record["size"] == 3
    assert record["members"][0]["advantage"] == 1.25  # of all three


def test_a_sound_beyond_its_share_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(run_record, "MAX_MEDIA", 2000)
    sounds = [Audio(torch.zeros(1, 100), 1600), Audio(torch.zeros(1, 1600), 1600)]
    record = write(tmp_path, rolled(sounds, plain([1, 1]), [1.0, 2.0]))
    assert [one["output"]["file"] for one in record["members"]] == ["000.wav", ""]
    assert record["left_out"] == ["001.wav: 3,244 bytes, at most 1,000 here"]
    assert not (tmp_path / "groups/step-000000/001.wav").exists()


def noise(side: int) -> Pil.Image:
    levels = torch.randint(256, (side, side, 3), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    return Pil.fromarray(levels.numpy())


def test_pictures_and_clips_get_smaller_until_they_fit():
    exact, suffix, note = image_within(noise(64), 64 * 64 * 4)
    assert (suffix, note) == (".png", "") and exact.startswith(b"\x89PNG")
    content, suffix, note = image_within(noise(256), 100_000)
    assert suffix == ".jpg" and len(content) <= 100_000 and note == "images are compressed with losses"
    playing = Pil.open(BytesIO(webp_within([noise(16), Pil.new("RGB", (16, 16))] * 2, 8.0, 100_000)[0]))
    playing.seek(1)
    playing.load()
    assert playing.info["duration"] == 125
    content, _, note = jpeg_within(noise(512), 20_000)
    assert len(content) <= 20_000 and note == "images are made smaller"
    clip, suffix, note = webp_within([noise(300)] * 3, 8.0, 30_000)
    assert len(clip) <= 30_000 and (suffix, note) == (".webp", "clips are made smaller")


@pytest.mark.parametrize(
    ("kept", "steps", "per_round", "due"),
    [
        (0, 10, 1, []),
        (2, 10, 1, [0, 5]),
        (20, 10, 1, list(range(10))),
        (3, 10, 1, [0, 4, 8]),
        (2, 12, 4, [0, 4]),  # step 6 is in the round of steps 4 to 7
    ],
)
def test_groups_are_kept_at_equal_distances(kept, steps, per_round, due):
    record = GroupRecord(Path(), kept, steps, per_round)
    assert [step for step in range(0, steps, per_round) if record.due(step)] == due


def test_members_are_shown_by_reward_with_the_advantage_as_colour(tmp_path):
    advantages = torch.tensor([[0.0], [2.0], [-1.0], [-2.0]])
    write(tmp_path, rolled(pictures(4), plain([1] * 4), [0.5, 2.0, NAN, 0.25], advantages=advantages), step=3)
    group = read_group(tmp_path, 3)
    assert group.equal_rewards is False
    assert [member.number for member in group.ranked] == [1, 0, 3, 2] and group.largest == 2.0
    assert colour(0.0, 0.0) == colour(NAN, 0.0) == "rgb(255, 255, 255)"
    assert colour(5.0, 2.0) == colour(2.0, 2.0) and colour(-5.0, 2.0) == colour(-2.0, 2.0)
    assert [colour(a, 2.0) for a in (0.0, 2.0, -2.0, -1.0, NAN)] == [
        "rgb(255, 255, 255)",
        "rgb(107, 167, 224)",
        "rgb(240, 150, 110)",
        "rgb(248, 202, 182)",
        "rgb(255, 255, 255)",
    ]
    page = group_page(tmp_path, group)
    assert page.index("sample 2\n") < page.index("sample 1\n") < page.index("sample 4\n") < page.index("sample 3\n")
    assert 'style="background: rgb(107, 167, 224)">+2.000<' in page and "+0.000" not in page
    assert "invalid reward" in page and "<svg" not in page
    assert re.findall(r'"chip" style="background: (rgb[^"]+)">([^<]+)<', page)[:5] == [
        ("rgb(240, 150, 110)", "−2"),
        ("rgb(248, 202, 182)", "−1"),
        ("rgb(255, 255, 255)", "0"),
        (colour(1.0, 2.0), "+1"),
        ("rgb(107, 167, 224)", "+2"),
    ]


@pytest.mark.parametrize(
    ("name", "value", "refused"),
    [
        ("std", [0.5], True),
        ("std", [], False),
        ("nodes", [0], True),
        ("nodes", [], False),
        ("nodes", [0.5, 0], True),
        ("nodes", [-2, 0], True),
        ("nodes", [-1, 0], False),
        ("trained", [], True),
        ("trained", [1, 0], False),
    ],
)
def test_numbers_of_decisions_are_as_many_as_their_advantages_and_nodes_are_integers(name, value, refused, tmp_path):
    record = write(tmp_path, tree_round())
    assert len(record["members"][0]["advantages"]) == 2
    record["members"][0][name] = value
    (tmp_path / "groups/step-000000/group.json").write_text(json.dumps(record))
    with pytest.raises(ValueError, match=f"members.*{name}") if refused else nullcontext():
        read_group(tmp_path, 0)


def test_what_no_run_wrote_stays_in_the_folder_of_a_group(tmp_path):
    for step in (2, 3, 4):
        write(tmp_path, rolled(pictures(2), plain([1, 1]), [1.0, 0.0]), step)
    (tmp_path / "groups/step-000003/notes of mine.txt").touch()
    GroupRecord(tmp_path, 1).truncate(3)
    left = {path.relative_to(tmp_path / "groups").as_posix() for path in (tmp_path / "groups").rglob("*")}
    write(tmp_path, rolled(pictures(2), plain([1, 1]), [1.0, 0.0]), 3)
    assert sorted(path.name for path in (tmp_path / "groups").iterdir()) == ["step-000002", "step-000003"]
    assert (tmp_path / "groups/step-000003/notes of mine.txt").exists() and group_steps(tmp_path) == [2, 3]
    assert {"step-000002/group.json", "step-000003/notes of mine.txt"} <= left
    assert "step-000003/group.json" not in left and "step-000004" not in left


def test_the_tree_is_drawn_with_node_values_advantages_and_descendants(tmp_path):
    write(tmp_path, tree_round())
    group = read_group(tmp_path, 0)
    tree = branching(group, MediaFolder(tmp_path / "groups/step-000000"))
    assert tree is not None
    upper, lower, *leaves = tree.nodes
    assert [node.parent for node in tree.nodes] == [-1, -1, upper.id, upper.id, lower.id, lower.id]
    assert {node.sign for node in tree.nodes} == {"positive"}, "the least is 1"
    assert [node.samples for node in tree.nodes] == [[0, 1], [2, 3], [0], [1], [2], [3]]
    assert upper.y == (leaves[0].y + leaves[1].y) / 2 and leaves[0].x - upper.x == upper.x - 16
    assert upper.about == "step 0 · value 0.500 · advantage +1.000 · sigma 0.500 · 2 decisions below it · samples 1, 2"
    assert leaves[2].about == "step 1 · value – · advantage +2.750 · sigma 0.250 · 0 decisions below it · sample 3"
    # Advantages of the drawn edges: 1 and 2.5, then 1.25, 2, 2.75 and 3.5, the widest.
    assert [round(node.width, 3) for node in tree.nodes] == [2.429, 4.571, 2.786, 3.857, 4.929, 6.0]
    assert all(leaf.uri.startswith("data:image/jpeg") and leaf.idle for leaf in tree.leaves)
    page = group_page(tmp_path, group, interactive=True)
    assert page.count('role="button"') == 6 and page.count('tabindex="0"') == 1
    assert 'tabindex="0"' not in group_page(tmp_path, group)  # without a script nothing can be chosen


def test_the_newest_complete_group_is_shown(tmp_path):
    assert widest_group_page(tmp_path) == "" and group_steps(tmp_path) == []
    for step in (0, 40, 7):
        write(tmp_path, tree_round(), step)
    (tmp_path / "groups/step-000050").mkdir()  # of a run that is writing
    assert group_steps(tmp_path) == [0, 7, 40] and "after 40 optimizer steps" in widest_group_page(tmp_path)


def test_decisions_below_a_node_are_those_of_all_depths(tmp_path):
    numbers = decisions(binary_tree(3, (0, 1, 2)), keys={"prompt": [0] * 8, "tree": [0] * 8})
    write(tmp_path, rolled(pictures(8), numbers, [float(i) for i in range(8)]))
    tree = branching(read_group(tmp_path, 0), MediaFolder(tmp_path))
    assert tree is not None
    assert [node.about.split(" · ")[3] for node in tree.nodes[:3]] == ["6 decisions below it"] * 2 + [
        "2 decisions below it"
    ]
