"""What tests of the tab Rewards upload: a picture, a clip, a sound, and a text that is mark-up."""

from __future__ import annotations

import torch

from mmgrpo.types import Audio, Image, Video

PICTURE = Image(torch.rand(3, 24, 32, generator=torch.Generator().manual_seed(0)))
CLIP = Video(torch.rand(5, 3, 16, 16, generator=torch.Generator().manual_seed(0)), 4.0)
SOUND = Audio(torch.sin(torch.arange(1600) / 5)[None] / 2, 16_000)
HOSTILE = "<img src=x onerror=alert(1)>"
