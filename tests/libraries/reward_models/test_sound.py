"""Rewards of recordings, lifted to videos that are heard."""

from __future__ import annotations

import pytest
import torch

from mmgrpo.rewards import scorer
from mmgrpo.scoring import score_outputs
from mmgrpo.types import Audio, Prompt, Video

ASKED = [Prompt("loud", answer=0.5), Prompt("quiet", answer=0.25)]
OWN = "tests.libraries.reward_models.test_sound:nearness(process=False)"


def heard(level: float) -> Video:
    return Video(torch.zeros(2, 3, 4, 4), 4.0, Audio(torch.full((2, 80), level), 160))


def nearness(prompts, outputs):
    """1 - |mean - answer|; it also spoils its input, which is a copy."""
    values = [1 - abs(float(o.samples.mean()) - p.answer) for p, o in zip(prompts, outputs, strict=True)]
    for output in outputs:
        output.samples.zero_()
    return values


def test_the_sound_of_every_video_is_scored_with_its_own_prompt():
    one, clips = scorer(f"sound(reward='{OWN}')"), [heard(0.5), heard(0.25)]
    assert list(one.fn(ASKED, clips)) == [1.0, 1.0]
    assert list(one.fn(ASKED, clips[::-1])) == [0.75, 0.75]


@pytest.mark.parametrize(
    ("output", "message"),
    [(Video(torch.zeros(1, 3, 4, 4), 4.0), "Video without sound"), (Audio(torch.zeros(1, 4), 4), "Audio")],
)
def test_what_is_not_heard_with_frames_is_refused(output, message):
    with pytest.raises(RuntimeError, match=f"sound.*{message}"):
        score_outputs([scorer(f"sound(reward='{OWN}')")], ASKED[:1], [output])


def test_a_weight_in_the_lifted_reward_is_refused():
    with pytest.raises(ValueError, match=r"sound\(weight=2.0"):
        scorer(f"sound(reward='{OWN[:-1]}, weight=2)')")
