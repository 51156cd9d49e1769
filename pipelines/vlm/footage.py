"""Frames on request: tools that show parts of the clip in the prompt, of which the model chooses when and how much.

    sampling:
      tools: [pipelines.vlm.footage:Footage]

They are those of FrameMind (arXiv:2509.24008): one frame at a time, or 8 to 20 frames of an interval, each at the
resolution of ``model.max_pixels``. Its groups begin on the rungs of a ladder from few large frames to many small ones:
``sampling.variants: frame_ladder(...)``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mmgrpo.types import Image, Media, Prompt
from pipelines.vlm.media import Clip, read_video

FEWEST, MOST = 8, 20
"""Frames of an interval, where it has so many."""

FPS = 2.0
"""Frames of an interval per second, between these bounds."""


class Footage:
    """The clip of a prompt, and how often its frames were shown. Times are those of its file."""

    def reset(self, prompt: Prompt) -> None:
        self.clip = next((medium for medium in prompt.media if medium.kind == "video"), None)
        if self.clip is None:
            raise ValueError("got a prompt without a video, expected one with a video")
        self.requests = 0

    def frame_at(self, second: float) -> list[str | Image]:
        """Look at one frame of the video in full resolution.

        Args:
            second: The time of the frame in seconds.
        """
        clip = self._read({"start": second, "frames": 2})
        return [f"{clip.seconds[0]:g} s", _image(clip, 0)]

    def video_clip(self, start: float, end: float) -> list[str | Image]:
        """Look at the frames of a part of the video.

        Args:
            start: Where it begins, in seconds.
            end: Where it ends, in seconds.
        """
        clip = self._read({"start": start, "end": end})
        return [f"{clip.seconds[0]:g} s to {clip.seconds[-1]:g} s", *(_image(clip, k) for k in range(len(clip.frames)))]

    def reward(self) -> float:
        """1 after one or two requests, so the answer comes in the second or third turn, else 0; FrameMind adds it
        with weight 0.5."""
        return float(1 <= self.requests <= 2)

    def _read(self, options: Mapping[str, Any]) -> Clip:
        """Frames of the clip, of whose own options only those count that say when its frames are."""
        assert isinstance(self.clip, Media)
        dated = {"times", "fps"} if isinstance(self.clip.source, tuple) else {"times"}
        kept = {name: value for name, value in self.clip.options.items() if name in dated}
        read = read_video(replace(self.clip, options={**kept, **options}), fps=FPS, min_frames=FEWEST, max_frames=MOST)
        self.requests += 1
        return read


def _image(clip: Clip, number: int) -> Image:
    return Image(clip.frames[number].float() / 255)
