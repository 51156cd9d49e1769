"""Rewards as differentiable functions of pixels: their values are those of the rewards, and their slopes those of the
values."""

from __future__ import annotations

import inspect
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mmgrpo.config.plugins import load_object
from mmgrpo.rewards import scorer
from mmgrpo.toy.scenes import image, parse, prompt
from mmgrpo.types import Image
from reward_models import REWARDS
from reward_models.clip.d2_align import save_direction
from reward_models.clip.head import Head, HeadFacts, save_head
from reward_models.pixels import CLIP_MEAN, CLIP_STD, crop_of, padding_to, stretch_to
from reward_models.preference import Description, PreferenceModel, save
from tests.libraries.reward_models.clip.test_mps import written
from tests.libraries.reward_models.clip.tiny import PROMPTS, clip_folder, pictures
from tests.libraries.reward_models.vlm.test_imagereward import folder as image_reward_folder

ABLE = [name for name, entry in REWARDS.items() if entry.gradient]
SCENES = [
    prompt(parse(text)) for text in ("a red circle on the left", "two blue squares", "a green triangle at the top")
]


def parameters(name: str, folder: Path) -> dict[str, Any]:
    """Parameters of a reward with tiny weights."""
    head = str(folder / "head.safetensors")
    if name in ("aesthetic", "artifact"):
        facts = HeadFacts(str(folder), ("artifact",), loss="binary") if name == "artifact" else HeadFacts(str(folder))
        torch.manual_seed(0)
        save_head(Head([32, 1], facts), head)
        clip_folder(folder)
        return {"head": head} | ({"weights": str(folder)} if name == "aesthetic" else {})
    if name in ("clip_score", "clip_iqa", "pickscore", "hpsv2", "d2_align"):
        clip_folder(folder)
        places = {"weights": str(folder)} | ({} if name == "clip_iqa" else {"tokenizer": str(folder)})
        if name == "d2_align":
            save_direction(torch.linspace(-1, 1, 32), folder / "direction.safetensors", "clip_score")
            return {
                "direction": str(folder / "direction.safetensors"),
                "reward": f"clip_score(weights='{folder}', scale='cosine')",
            }
        return places | ({"scale": "cosine"} if name == "clip_score" else {})
    if name == "mps":
        return written(folder, 1)[0]
    if name == "image_reward":
        return {"weights": str(image_reward_folder.__wrapped__(folder))}  # type: ignore[attr-defined]
    if name == "preference":
        torch.manual_seed(0)
        save(PreferenceModel(Description()), folder)
        return {"weights": str(folder)}
    return {}


FACTORS = {"pickscore": 14.3, "mps": 14.3}
"""Of the cosine in rewards that are logits."""


def drawn(text: str, seed: int = 3) -> Image:
    return image(parse(text), seed)


@pytest.mark.parametrize("name", ABLE)
def test_the_differentiable_form_has_the_values_of_the_reward_and_a_gradient(name, tmp_path):
    given = parameters(name, tmp_path)
    of_scenes = name.startswith("scene_") or name == "preference"
    prompts = SCENES if of_scenes else PROMPTS
    images = [drawn(one.text) for one in SCENES] if of_scenes else pictures()
    images = [Image((one.pixels * 0.9 + 0.04).clamp(0, 1)) for one in images]
    one = scorer(f"{name}({', '.join(f'{key}={value!r}' for key, value in given.items())})")
    values = one.fn(prompts, images)
    assert one.gradient is not None
    differentiable = one.gradient()
    for row, output in enumerate(images):
        pixels = output.pixels[None].clone().requires_grad_()
        value = differentiable([prompts[row]], pixels)
        assert value.shape == (1,)
        assert float(value.detach()) == pytest.approx(values[row], abs=1e-3 * FACTORS.get(name, 1)), row
        (slope,) = torch.autograd.grad(value.sum(), pixels)
        assert bool(slope.isfinite().all()) and bool(slope.any())


@pytest.mark.parametrize("name", ABLE)
def test_the_differentiable_form_takes_the_parameters_of_the_reward(name):
    """So that what a recipe says of the reward holds for its gradient."""
    entry = REWARDS[name]
    asked = [*inspect.signature(load_object(entry.function, "test", own=False)).parameters.values()][2:]
    assert [*inspect.signature(load_object(entry.gradient, "test", own=False)).parameters.values()] == asked


@pytest.mark.parametrize("name", ["scene_palette", "scene_clean"])
def test_slopes_of_scenes_are_the_differences_of_their_values(name):
    differentiable = scorer(name).gradient()  # type: ignore[misc]
    pixels = (drawn(SCENES[0].text).pixels * 0.8 + 0.07)[None].double().requires_grad_()
    direction = torch.randn(pixels.shape, generator=torch.Generator().manual_seed(0)).double()
    (slope,) = torch.autograd.grad(differentiable(SCENES[:1], pixels).sum(), pixels)
    ahead, behind = (differentiable(SCENES[:1], pixels.detach() + by * direction) for by in (1e-5, -1e-5))
    assert float((slope * direction).sum()) == pytest.approx(float((ahead - behind).sum()) / 2e-5, rel=1e-2)


def test_the_palette_pays_the_requested_colours_and_clean_pixels():
    reward = scorer("scene_palette").fn
    images = [
        drawn(text)
        for text in ("a red circle on the left", "a blue circle at the top", "a red circle and a blue square")
    ]
    right, wrong, half = reward([SCENES[0]] * 3, images)
    assert right > 0.9 > 0.6 > half > 0.3 > wrong > -0.1 and right <= 1
    (blank,) = reward([SCENES[0]], [Image(torch.ones(3, 32, 32))])
    assert abs(blank) < 0.05
    # Colours are those of the text, so descriptions can be compared (SRPO): a second colour may be there.
    both = replace(SCENES[0], text=f"blue {SCENES[0].text}")
    assert reward([both] * 3, images) == pytest.approx([right, reward([both], images[1:2])[0], right], abs=0.1)
    with pytest.raises(ValueError, match="'a cat'.*red"):
        reward([replace(SCENES[0], text="a cat")], images[:1])
    # White at .85 lies .26 from white.
    assert reward([SCENES[0]], [Image(0.85 * images[0].pixels)])[0] < right - 0.15


@pytest.mark.parametrize("size", [(64, 64), (50, 91), (512, 512), (20, 24)])
@pytest.mark.parametrize(
    "made",
    [crop_of(32), crop_of(32, corner=int), stretch_to((32, 24), CLIP_MEAN, CLIP_STD, 2), padding_to(32, True)],
    ids=["round", "int", "stretch", "pad"],
)
def test_preprocessing_with_gradient_is_that_of_pillow_but_for_ties(size, made):
    """A value of 8 bits more or less, 1 / 255 over the std .26, in few places."""
    pixels = torch.rand(3, *size, generator=torch.Generator().manual_seed(1))
    gap = (made.differentiable(pixels[None])[0] - made(Image(pixels))).abs()
    assert float(gap.max()) < 0.016 and float(gap.mean()) < 1e-3


def test_a_threshold_and_other_filters_have_no_gradient(tmp_path):
    given = parameters("artifact", tmp_path)
    with pytest.raises(ValueError, match="threshold.*0.5"):
        scorer(f"artifact(head='{given['head']}', threshold=0.5)").gradient()  # type: ignore[misc]
    with pytest.raises(ValueError, match="lanczos"):
        crop_of(8, resample=1).differentiable(torch.rand(1, 3, 16, 16))
