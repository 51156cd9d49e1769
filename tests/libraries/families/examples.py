"""What the battery needs to know of each family: prompts that its tiny model takes, and options that make it small."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch

from mmgrpo.family import families
from mmgrpo.types import Audio, Image, Media, Prompt, Turn, Video


@dataclass(frozen=True)
class Example:
    """A row of the battery."""

    prompts: Sequence[Prompt]
    model: Mapping[str, Any] = field(default_factory=dict)
    """Options of the section model."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Options of the section sampling."""
    latents: Sequence[int] = ()
    """Shape of a latent at the default size of the tiny model, which is that of the published pipeline; empty: not
    compared."""
    fps: float = 0
    """Frames per second of its videos."""
    inputs: tuple[float, float] | None = None
    """Time and scale of guidance that the network reads at noise level 0.7, in its own units; 0: no such scale."""
    layers: Sequence[str] = ()
    """Layers that adapters may be asked for and that are no projections of attention: convolutions, embeddings,
    norms, packed projections."""


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
SOUNDS = [replace(prompt, meta={"seconds": 0.1}) if prompt.id == "1" else prompt for prompt in TEXTS]

SQUARE = {"height": 16, "width": 16}
SMALL = SQUARE | {"max_sequence_length": 48}
TALL = {"height": 32, "width": 32, "frames": 5, "max_sequence_length": 48}
FIRST = [shown(n, Media("image", Image(noise(3, 20, 24, seed=4 + n))), text.text) for n, text in enumerate(TEXTS)]

FILMED = {"height": 16, "width": 32, "frames": 5}
SHORT = {"max_tokens": 5}
FEW = {"steps": 4, "evaluation_steps": 3}
FEWER = {"steps": 3, "evaluation_steps": 2}

OWN: Mapping[str, Example] = {
    "sd3": Example(
        TEXTS,
        SMALL,
        FEW,
        latents=(16, 8, 8),
        inputs=(700, 0),
        layers=["pos_embed.proj", "time_text_embed.timestep_embedder.linear_1", "ff.net.2"],
    ),
    "flux": Example(
        TEXTS,
        SMALL,
        FEW,
        latents=(4, 128, 128),
        inputs=(0.7, 3.5),
        layers=["x_embedder", "proj_mlp", "norm.linear"],
    ),
    "stable_diffusion": Example(TEXTS, SQUARE, FEW, latents=(4, 8, 8), layers=["conv1", "time_emb_proj", "conv_in"]),
    "sdxl": Example(TEXTS, SQUARE, FEW, latents=(4, 8, 8), layers=["conv2", "add_embedding.linear_1"]),
    "flux_kontext": Example(EDITED, SMALL | {"given_size": 64}, FEW, latents=(4, 128, 128), inputs=(0.7, 3.5)),
    "flux2_klein": Example(
        EDITED, SMALL, FEW, latents=(16, 64, 64), inputs=(0.7, 0), layers=["to_qkv_mlp_proj", "x_embedder"]
    ),
    "flux2": Example(
        EDITED,
        SQUARE | {"max_sequence_length": 96},
        FEW,
        latents=(16, 64, 64),
        inputs=(0.7, 4.0),
        layers=["to_qkv_mlp_proj", "time_guidance_embed.guidance_embedder.linear_1"],
    ),
    "sana": Example(
        TEXTS,
        SMALL,
        FEW,
        latents=(4, 4, 4),
        inputs=(0.5 * 700, 0),  # 0.5 is the scale of time of the tiny network
        layers=["conv_inverted", "caption_projection.linear_1"],
    ),
    "qwen_image": Example(
        TEXTS,
        SMALL,
        FEW,
        latents=(4, 128, 128),
        inputs=(0.7, 0),
        layers=["img_in", "img_mod.1", "txt_mlp.net.2"],
    ),
    "qwen_image_edit": Example(
        EDITED,
        SMALL | {"given_size": 64, "max_sequence_length": 128},
        FEW,
        latents=(4, 128, 128),
        inputs=(0.7, 0),
    ),
    "z_image": Example(
        TEXTS, SMALL, FEW, latents=(4, 512, 512), inputs=(1 - 0.7, 0), layers=["feed_forward.w1", "cap_embedder.1"]
    ),
    "qwen_image21": Example(
        TEXTS,
        {"height": 32, "width": 64, "max_sequence_length": 64, "guidance": 2.0},
        FEW,
        latents=(4, 64, 64),
        inputs=(0.7, 0),
        layers=("img_in", "txt_in.out_layer"),
    ),
    "longcat_image": Example(
        TEXTS,
        SQUARE,
        FEW,
        latents=(4, 128, 128),
        inputs=(0.7, 0),
        layers=["x_embedder", "proj_mlp", "time_embed.timestep_embedder.linear_1"],
    ),
    "sana_video": Example(
        TEXTS,
        TALL,
        FEWER,
        latents=(4, 21, 60, 104),
        fps=16,
        inputs=(700, 0),
        layers=["conv_inverted", "conv_temp", "patch_embedding"],
    ),
    "hunyuan_video": Example(
        TEXTS,
        {**SMALL, "frames": 5},
        FEWER,
        latents=(4, 33, 90, 160),
        fps=24,
        inputs=(700, 6000),
        layers=["x_embedder.proj", "norm1.linear"],
    ),
    "hunyuan_video15": Example(
        TEXTS,
        TALL,
        FEWER,
        latents=(4, 31, 6, 10),
        fps=24,
        inputs=(700, 0),
        layers=["x_embedder.proj", "norm1.linear", "proj_in"],
    ),
    "skyreels_i2v": Example(FIRST, {**SMALL, "frames": 5}, FEWER, latents=(4, 25, 68, 120), fps=24, inputs=(700, 1000)),
    "ltx_video": Example(
        TEXTS, TALL, FEWER, latents=(8, 41, 64, 88), fps=25, inputs=(700, 0), layers=["proj_in", "time_embed.linear"]
    ),
    "ltx2": Example(
        TEXTS,
        {"height": 64, "width": 32, "frames": 5, "max_sequence_length": 48},
        FEWER,
        latents=(4 * 61 * 64 * 96 + 126 * 4,),
        fps=24,
        inputs=(700, 0),
        layers=["proj_in", "audio_proj_in", "time_embed.linear"],
    ),
    "ltx_i2v": Example(FIRST, TALL, FEWER, latents=(8, 40, 64, 88), fps=25, inputs=(700, 0)),
    "wan": Example(
        TEXTS,
        {**FILMED, "max_sequence_length": 48},
        FEW,
        latents=(4, 21, 60, 104),
        fps=16,
        inputs=(700, 0),
        layers=["patch_embedding", "condition_embedder.time_embedder.linear_1", "ffn.net.2"],
    ),
    "wan_i2v": Example(
        FIRST,
        FILMED,
        FEW,
        latents=(4, 21, 60, 104),
        fps=16,
        inputs=(700, 0),
        layers=["patch_embedding", "add_k_proj"],
    ),
    "janus": Example([*TEXTS[:2], Prompt("a green circle left of a blue square", "2")], {"guidance": 2.0}),
    "var": Example(TEXTS, {"guidance": 3.0}),
    "amused": Example(TEXTS, SQUARE | {"guidance": 2.0}, FEW),
    "qwen_vl": Example(SEEN, sampling=SHORT),
    "smolvlm": Example(SEEN, sampling=SHORT),
    "qwen_omni": Example([*SEEN[:2], shown(2, PICTURE, hum(2), CLIP, "what is it ?")], sampling=SHORT),
    "image_text": Example(SEEN, {"max_frames": 4}, SHORT),
    "causal_lm": Example([Prompt("how many", "0"), Prompt("red", "1"), Prompt("is the a blue", "2")], sampling=SHORT),
    "whisper": Example(HEARD, {"seconds": 4.0}, SHORT),
    "ctc": Example(HEARD),
    "qwen_audio": Example(ASKED, sampling=SHORT),
    "audio_text": Example(ASKED, sampling=SHORT),
    "codec_speech": Example(TEXTS, {"vocoder": "tones"}, SHORT),
    "higgs_audio": Example(TEXTS, {"vocoder": "tones"}, {"steps": 9, "evaluation_steps": 7}),
    "flow_speech": Example(SPOKEN, {"seconds": 1.2, "guidance": 2.0}, FEW),
    "duration": Example(TEXTS, {"renderer": "tests.speaking:hummer"}),
    "stable_audio": Example(TEXTS, {"guidance": 2.0}, FEW),
    "stable_audio3": Example(SOUNDS, {"guidance": 2.0, "seconds": 0.12}, FEW),
}
"""The rows of families that need more than ``usual`` says."""


def usual(owner: Any) -> Example:
    """The row of a family that has none of its own: small samples of few steps, and prompts with an image where it
    takes one."""
    prompts = {"visual": EDITED if owner.image_input else TEXTS, "speech": ASKED}
    options, sampling = ({one.name for one in fields(kind)} for kind in (owner.sections.model, owner.sections.sampling))
    small = {**SMALL, "frames": 5}
    return Example(
        prompts.get(owner.modality, SEEN),
        {name: value for name, value in small.items() if name in options},
        SHORT if "max_tokens" in sampling else FEW,
    )


EXAMPLES: Mapping[str, Example] = {name: OWN.get(name) or usual(owner) for name, owner in families().items()}
"""Family to its row."""
