"""What the battery needs to know of each family: prompts that its tiny model takes, and options that make it small."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from mmgrpo.types import Audio, Image, Media, Prompt, Turn, Video


@dataclass(frozen=True)
class Example:
    """A row of the battery."""

    prompts: Sequence[Prompt]
    model: Mapping[str, Any] = field(default_factory=dict)
    """Options of the section model."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Options of the section sampling."""


def shown(number: int, *parts: str | Media) -> Prompt:
    """A conversation of one turn."""
    words = " ".join(part for part in parts if isinstance(part, str))
    return Prompt(words, str(number), turns=(Turn("user", parts),))


def noise(*shape: int, seed: int) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def hum(number: int, seconds: float = 1.0) -> Media:
    """A tone at 16 kHz, each number's a third higher than the last."""
    return Media("audio", Audio(torch.sin(torch.arange(int(seconds * 16_000)) * 0.02 * 1.3**number)[None] / 2, 16_000))


TEXTS = [Prompt("a red square", "0"), Prompt("blue", "1"), Prompt("a green circle left of a blue square .", "2")]
PICTURE = Media("image", Image(noise(3, 16, 16, seed=0)))
CLIP = Media("video", Video(noise(16, 3, 16, 24, seed=3), 4.0), {"fps": 2.0})
SEEN = [shown(0, PICTURE, "what is it ?"), shown(1, CLIP, "where is the circle ?"), Prompt("yes and no ?", "2")]
WIDE = Media("image", Image(noise(3, 16, 40, seed=1)))
EDITED = [shown(0, PICTURE, "a red square"), shown(1, WIDE, "blue"), shown(2, PICTURE, "a green circle")]
HEARD = [shown(number, hum(number, 1.0 + number / 2)) for number in range(3)]
ASKED = [shown(number, hum(number, 1.0 + number / 2), "what is said ?") for number in range(3)]

SPOKEN = [
    replace(shown(0, hum(0, 0.3), "a red square"), meta={"reference_text": "hum", "seconds": 0.4}),
    Prompt("blue", "1"),
    replace(shown(2, hum(1, 0.5), "five"), meta={"reference_text": "Hum hum"}),
]

SQUARE = {"height": 16, "width": 16}
SMALL = SQUARE | {"max_sequence_length": 48}
FIRST = [shown(n, Media("image", Image(noise(3, 20, 24, seed=4 + n))), text.text) for n, text in enumerate(TEXTS)]

FILMED = {"height": 16, "width": 32, "frames": 5}
SHORT = {"max_tokens": 5}

EXAMPLES: Mapping[str, Example] = {
    "sd3": Example(TEXTS, SMALL, {"steps": 4, "evaluation_steps": 3}),
    "flux": Example(TEXTS, SMALL, {"steps": 4, "evaluation_steps": 3}),
    "stable_diffusion": Example(TEXTS, SQUARE, {"steps": 4, "evaluation_steps": 3}),
    "sdxl": Example(TEXTS, SQUARE, {"steps": 4, "evaluation_steps": 3}),
    "flux_kontext": Example(EDITED, SMALL, {"steps": 4, "evaluation_steps": 3}),
    "flux2_klein": Example(EDITED, SMALL, {"steps": 4, "evaluation_steps": 3}),
    "sana": Example(TEXTS, SMALL, {"steps": 4, "evaluation_steps": 3}),
    "qwen_image": Example(TEXTS, SMALL, {"steps": 4, "evaluation_steps": 3}),
    "qwen_image_edit": Example(
        EDITED, SMALL | {"given_size": 64, "max_sequence_length": 128}, {"steps": 4, "evaluation_steps": 3}
    ),
    "z_image": Example(TEXTS, SMALL, {"steps": 4, "evaluation_steps": 3}),
    "hunyuan_video": Example(TEXTS, {**SMALL, "frames": 5}, {"steps": 3, "evaluation_steps": 2}),
    "skyreels_i2v": Example(FIRST, {**SMALL, "frames": 5}, {"steps": 3, "evaluation_steps": 2}),
    "ltx_video": Example(TEXTS, {**SMALL, "height": 32, "width": 32, "frames": 5}, {"steps": 3, "evaluation_steps": 2}),
    "ltx_i2v": Example(FIRST, {**SMALL, "height": 32, "width": 32, "frames": 5}, {"steps": 3, "evaluation_steps": 2}),
    "wan": Example(TEXTS, {**FILMED, "max_sequence_length": 48}, {"steps": 4, "evaluation_steps": 3}),
    "wan_i2v": Example(FIRST, FILMED, {"steps": 4, "evaluation_steps": 3}),
    "qwen_vl": Example(SEEN, sampling=SHORT),
    "smolvlm": Example(SEEN, sampling=SHORT),
    "image_text": Example(SEEN, {"max_frames": 4}, SHORT),
    "causal_lm": Example([Prompt("how many", "0"), Prompt("red", "1"), Prompt("is the a blue", "2")], sampling=SHORT),
    "whisper": Example(HEARD, {"seconds": 4.0}, SHORT),
    "ctc": Example(HEARD),
    "qwen_audio": Example(ASKED, sampling=SHORT),
    "audio_text": Example(ASKED, sampling=SHORT),
    "codec_speech": Example(TEXTS, {"vocoder": "tones"}, SHORT),
    "flow_speech": Example(SPOKEN, {"seconds": 1.2, "guidance": 2.0}, {"steps": 4, "evaluation_steps": 3}),
    "duration": Example(TEXTS, {"renderer": "tests.speaking:hummer"}),
    "stable_audio": Example(TEXTS, {"guidance": 2.0}, {"steps": 4, "evaluation_steps": 3}),
}
"""Family to its row."""
