"""Frames on request, in groups that begin on the rungs of a ladder of frames and resolutions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from mmgrpo.config.registry import bind
from mmgrpo.policies.tool_table import returning_images
from mmgrpo.policies.variants import VARIANTS
from mmgrpo.types import Image, Media, Prompt, Request, Text, Turn, Video
from pipelines.tools import schemas
from pipelines.vlm import qwen_vl_tiny
from pipelines.vlm.footage import Footage
from tests.building import rescored
from tests.libraries.pipelines.test_tools import policy_of
from tests.tiny import maker

LADDER = "frame_ladder(frames=[2, 8], pixels=[1024, 256])"


def clip(seconds: int, rate: float = 4.0, **options: float) -> Media:
    """Frame k is grey of k / 255."""
    count = round(seconds * rate)
    grey = (torch.arange(count).view(-1, 1, 1, 1) / 255).expand(count, 3, 32, 32)
    return Media("video", Video(grey.clone(), rate), options)


def asked(*media: Media) -> Prompt:
    return Prompt("how many", "0", turns=(Turn("user", (*media, "how many")),))


def begun(*media: Media) -> Footage:
    made = Footage()
    made.reset(asked(*media))
    return made


def greys(shown: Sequence[object]) -> list[int]:
    """The numbers of the frames that were shown."""
    return [round(float(one.pixels.mean()) * 255) for one in shown if isinstance(one, Image)]


@pytest.mark.parametrize(("second", "frame"), [(0, 0), (2, 8), (2.1, 9), (14.75, 59)])
def test_a_frame_is_the_first_from_its_time_on(second, frame):
    """Four frames a second: second 2.1 lies between frames 8 and 9. What the row says of how many frames the prompt
    shows, and how large, is not meant for them."""
    made = begun(Media("image", Image(torch.zeros(3, 8, 8))), clip(15, frames=4, max_pixels=256, fps=1))
    shown = made.frame_at(second)
    assert shown[0] == f"{frame / 4:g} s" and greys(shown) == [frame]
    assert isinstance(shown[1], Image) and shown[1].pixels.shape == (3, 32, 32)


@pytest.mark.parametrize(
    ("start", "end", "count", "first", "last"),
    [(1, 3, 8, 4, 12), (0, 7, 14, 0, 28), (0, 15, 20, 0, 59), (2, 2.5, 2, 8, 10), (3, 3.2, 2, 12, 12)],
)
def test_a_part_has_two_frames_a_second_within_8_to_20_if_it_has_so_many(start, end, count, first, last):
    """7 s: 29 frames at 2 a second are 14.5, rounded down to an even number; 2 to 2.5 s has 3 frames, of which 2."""
    shown = begun(clip(15)).video_clip(start, end)
    assert len(greys(shown)) == count and (greys(shown)[0], greys(shown)[-1]) == (first, last)
    assert shown[0] == f"{first / 4:g} s to {last / 4:g} s"


def test_what_is_not_there_is_an_error_and_no_request():
    made = begun(clip(2))
    for wrong in (lambda: made.frame_at(9), lambda: made.video_clip(1.5, 1), lambda: made.frame_at(-1)):
        with pytest.raises(ValueError, match="2 s|1 s"):
            wrong()
    assert made.reward() == 0 and made.requests == 0
    with pytest.raises(ValueError, match="without a video"):
        begun(Media("image", Image(torch.zeros(3, 8, 8))))


def test_one_or_two_requests_are_rewarded():
    """Answers in turn 1, 2, 3 and 4: with weight 0.5 a right one is worth 1, 1.5, 1.5 and 1."""
    made, values = begun(clip(2)), []
    for _ in range(4):
        values.append(1 + 0.5 * made.reward())
        made.frame_at(0)
    assert values == [1, 1.5, 1.5, 1]


def test_they_are_described_as_tools_that_show_images():
    assert [one["function"]["name"] for one in schemas([Footage])] == ["frame_at", "video_clip"]
    assert returning_images([Footage]) == ["frame_at", "video_clip"]


# ---- the ladder


def rungs(prompt: Prompt, text: str = LADDER) -> list[tuple[Prompt, float]]:
    inputs = {"prompt": prompt, "count": 8, "generator": torch.Generator()}
    return [(form.prompt, form.number) for form in bind(text, VARIANTS, "sampling.variants")(inputs)]


def test_a_rung_changes_how_videos_are_read_and_nothing_else():
    image = Media("image", Image(torch.zeros(3, 8, 8)))
    prompt = asked(image, clip(4, fps=2, start=1))
    (few, zero), (many, one) = rungs(prompt)
    assert (zero, one) == (0.0, 1.0) and (few.meta["variant"], many.meta["variant"]) == (0, 1)
    assert few.media[0] is image and few.text == prompt.text
    assert few.media[1].options == {"start": 1, "frames": 2, "max_pixels": 1024}
    assert many.media[1].options == {"start": 1, "frames": 8, "max_pixels": 256}
    files = asked(Media("video", ("a.png", "b.png"), {"fps": 2}))
    assert rungs(files)[0][0].media[0].options == {"fps": 2, "frames": 2, "max_pixels": 1024}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("frame_ladder(frames=[2, 3], pixels=[64, 64])", r"\[2, 3\]"),
        ("frame_ladder(frames=[2], pixels=[64, 64])", r"\[64, 64\]"),
        ("frame_ladder(frames=[], pixels=[])", "frames"),
        ("frame_ladder(frames=[2], pixels=[0])", r"\[0\]"),
    ],
)
def test_a_ladder_that_is_none_is_refused(text, named):
    with pytest.raises(ValueError, match=f"frame_ladder.*{named}"):
        rungs(asked(clip(1)), text)


def test_a_prompt_without_a_video_has_no_rungs():
    with pytest.raises(ValueError, match="frame_ladder.*'0'.*video"):
        rungs(asked(Media("image", Image(torch.zeros(3, 8, 8)))))


CALL = '<tool_call>{"name": "frame_at", "arguments": {"second": 0.5}}</tool_call>'


def footage_policy(folder: object, **sampling: object):
    tools = ["pipelines.vlm.footage:Footage"]
    return policy_of("qwen_vl", str(folder), call=CALL, tools=tools, max_tokens=300, **sampling)


def test_a_group_begins_on_its_rungs_requests_frames_and_is_compared_as_one(tmp_path, monkeypatch, copied):
    """Rung 0 has 2 frames of 32 x 32 pixels, 16 tokens, rung 1 has 8 of 16 x 16, also 16: four pairs of 4 tokens. A
    rung is the prompt with these options of its video."""
    monkeypatch.setattr(qwen_vl_tiny, "TAGS", (*qwen_vl_tiny.TAGS, "<tool_call>", "</tool_call>"))
    folder = maker("qwen_vl")(tmp_path / "model")
    prompt = asked(clip(4))
    policy = footage_policy(folder, variants=LADDER)
    made = policy.rollout(Request([prompt], [0], 8, seed=1))
    assert made.decisions.fields["variant"].tolist() == [0.0] * 4 + [1.0] * 4
    assert made.decisions.keys["prompt"].tolist() == [0] * 8
    grids = [policy.model.encode([one]).media[0][0].grid for one in made.prompts]
    assert grids == [(1, 8, 8)] * 4 + [(4, 4, 4)] * 4
    texts = [one for one in made.outputs if isinstance(one, Text)]
    assert any(one.calls for one in texts[:4]) and any(one.calls for one in texts[4:])
    for one in texts:
        assert all(greys([image.source for image in call.images]) == [2] for call in one.calls if not call.error)
        answered = sum(not call.error for call in one.calls)
        assert one.tool_reward == (1 <= answered <= 2)
    mask = made.decisions.decision_mask
    torch.testing.assert_close(rescored(policy, made)[mask], made.decisions.log_probs[mask], rtol=0, atol=2e-4)

    read = asked(replace(clip(4), options={"frames": 8, "max_pixels": 256}))
    plain, rung = (policy.model.encode([one]) for one in (read, rungs(prompt)[1][0]))
    assert torch.equal(plain.ids, rung.ids) and torch.equal(plain.positions, rung.positions)
    assert torch.equal(plain.media[0][0].patches, rung.media[0][0].patches)
