"""FLUX.2 klein: equal to diffusers' own pipeline, with and without a given picture; positions, statistics, levels."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image as Pil

from mmgrpo.types import Image, Media, Prompt
from pipelines.visual import flux2_klein
from pipelines.visual.families import FAMILIES
from pipelines.visual.flow import FlowModel
from tests.building import load, refuse_foreign
from tests.libraries.families.examples import SEEN, shown
from tests.libraries.families.examples import noise as drawn
from tests.libraries.families.test_battery import config_of
from tests.libraries.pipelines.visual.drawing import (
    PROMPTS,
    STEPS,
    check_adapters,
    check_sample,
    draw,
    load_pipeline,
    noise,
)
from tests.tiny import maker, tiny_checkpoint

SIDE = 64
"""Pixels; the pipeline takes no smaller pictures."""


@pytest.fixture(scope="module")
def base() -> Path:
    return tiny_checkpoint(maker("flux2_klein"))


@pytest.fixture(scope="module")
def distilled() -> Path:
    return tiny_checkpoint(maker("flux2_klein"), distilled=True)


def ours(folder: Path, **options) -> FlowModel:
    return load(flux2_klein, folder, **{"height": 16, "width": 24, "max_sequence_length": 48, **options})


@pytest.fixture(scope="module")
def pipe(base) -> Any:
    return load_pipeline("Flux2KleinPipeline", base)


def theirs(pipe: Any, x: torch.Tensor, prompts, output: str = "latent", **options):
    """What diffusers' pipeline makes of the same noise, on its own noise levels."""
    return pipe(
        prompt=[prompt.text for prompt in prompts],
        height=4 * x.shape[2],
        width=4 * x.shape[3],
        latents=x.clone(),
        num_inference_steps=STEPS,
        max_sequence_length=48,
        output_type=output,
        **options,
    ).images


def denormalized(model: FlowModel, latents: torch.Tensor) -> torch.Tensor:
    """As the pipeline returns them."""
    return flux2_klein.denormalize(model.architecture.pipeline.vae, latents)


def pil(pixels: torch.Tensor) -> Pil.Image:
    return Pil.fromarray((pixels * 255).round().to(torch.uint8).permute(1, 2, 0).numpy())


@pytest.mark.parametrize("guidance", [1.0, 4.0])
def test_a_sample_equals_the_pipeline_of_diffusers(base, pipe, guidance):
    model = ours(base, guidance=guidance)
    library = lambda x, output: theirs(pipe, x, PROMPTS, output, guidance_scale=guidance)  # noqa: E731
    check_sample(model, library, lambda latents: denormalized(model, latents))


@pytest.mark.parametrize("guidance", [1.0, 4.0])
def test_a_given_picture_is_read_as_by_the_pipeline_beside_prompts_without_one(base, pipe, guidance):
    model = ours(base, height=SIDE, width=SIDE, guidance=guidance)
    pictures = [drawn(3, SIDE, SIDE, seed=1) / 4, 1 - drawn(3, SIDE, SIDE, seed=2) / 4]  # dark and light
    given = [shown(i, Media("image", Image(pixels)), "make it red") for i, pixels in enumerate(pictures)]
    prompts = [given[0], Prompt("make it red"), given[1]]
    start = noise(model, 1).expand(3, -1, -1, -1)
    ends = denormalized(model, draw(model, model.network, start, prompts))
    for end, picture in zip(ends, (pictures[0], None, pictures[1]), strict=True):
        image = None if picture is None else pil(picture)
        expected = theirs(pipe, start[:1], prompts[:1], guidance_scale=guidance, image=image)
        torch.testing.assert_close(end[None], expected, atol=1e-5, rtol=0)
    assert min((ends[0] - ends[1]).abs().max(), (ends[0] - ends[2]).abs().max()) > 2e-4


def several(*sizes: tuple[int, int]) -> tuple[Prompt, list[Pil.Image]]:
    """A prompt with images of these heights and widths, each of another brightness, and the images."""
    pixels = [(place + drawn(3, *size, seed=place)) / (len(sizes) + 1) for place, size in enumerate(sizes)]
    return shown(0, *[Media("image", Image(one)) for one in pixels], "make it red"), [pil(one) for one in pixels]


@pytest.mark.parametrize("guidance", [1.0, 4.0])
def test_several_pictures_are_read_in_their_order_as_by_the_pipeline(base, pipe, guidance):
    """Of other proportions each, beside rows with one and with none, whose passes are their own."""
    model = ours(base, height=SIDE, width=SIDE, guidance=guidance)
    two, three = several((64, 96), (100, 64)), several((64, 64), (64, 96), (100, 64))
    swapped = shown(0, *reversed(two[0].media), "make it red"), two[1][::-1]
    rows = [two, several((64, 64)), three, swapped, (Prompt("make it red"), [])]
    start = noise(model, 1)
    model.check(rows[0][0])
    ends = denormalized(model, draw(model, model.network, start.expand(5, -1, -1, -1), [row[0] for row in rows]))
    for end, (prompt, pictures) in zip(ends, rows, strict=True):
        expected = theirs(pipe, start, [prompt], guidance_scale=guidance, image=pictures or None)
        torch.testing.assert_close(end[None], expected, atol=1e-5, rtol=0)
    assert min((ends[0] - ends[i]).abs().max() for i in range(1, 5)) > 1e-4


def test_rows_of_a_file_keep_the_order_of_their_pictures(base, tmp_path):
    names = ["b.png", "a.png", "c.png"]
    for name in names:
        Pil.new("RGB", (64, 64)).save(tmp_path / name)
    lines = [{"text": "both", "images": names}, {"text": "one", "image": "a.png"}, {"text": "none"}]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, lines)))
    rows, skipped = FAMILIES["flux2_klein"].read(config_of("flux2_klein", str(base)), str(tmp_path / "rows.jsonl"))
    assert [[Path(str(one.source)).name for one in row.media] for row in rows] == [names, ["a.png"], []] and not skipped


@pytest.mark.parametrize(("height", "width"), [(64, 160), (160, 64), (70, 90)])
def test_pictures_keep_their_own_proportions_as_in_the_pipeline(base, pipe, height, width):
    model = ours(base, height=SIDE, width=SIDE, guidance=1.0)
    picture = drawn(3, height, width, seed=1)
    start = noise(model, 1)
    shaped = shown(0, Media("image", Image(picture)), "make it red")
    square = shown(1, Media("image", Image(drawn(3, SIDE, SIDE, seed=2))), "make it red")
    both = draw(model, model.network, start.expand(2, -1, -1, -1), [shaped, square])
    end = denormalized(model, both)[:1]
    expected = theirs(pipe, start, [shaped], guidance_scale=1.0, image=pil(picture))
    torch.testing.assert_close(end, expected, atol=1e-5, rtol=0)


def test_a_picture_of_too_many_pixels_is_reduced_in_its_proportions_and_a_strip_is_refused(base):
    made = ours(base).architecture.pipeline
    assert flux2_klein.resize(made, Pil.new("RGB", (320, 80)), 64).shape == (1, 3, 32, 128)
    assert flux2_klein.resize(made, Pil.new("RGB", (50, 30)), 64).shape == (1, 3, 28, 48)
    with pytest.raises(ValueError, match="90 x 10.*8"):
        flux2_klein.resize(made, Pil.new("RGB", (90, 10)), 64)
    with pytest.raises(ValueError, match="20 x 3.*4"):
        flux2_klein.resize(made, Pil.new("RGB", (20, 3)), 64)


def test_a_distilled_model_takes_no_guidance(distilled):
    model = ours(distilled, guidance=1.0)
    start = noise(model)
    end = denormalized(model, draw(model, model.network, start))
    expected = theirs(load_pipeline("Flux2KleinPipeline", distilled), start, PROMPTS, guidance_scale=4.0)
    torch.testing.assert_close(end, expected, atol=1e-5, rtol=0)
    with pytest.raises(ValueError, match="guidance.*4.0.*1"):
        ours(distilled)


def test_levels_of_the_schedulers_own_are_asked_for_by_number(base):
    scheduler = SimpleNamespace(config={"use_flow_sigmas": True})
    model = ours(base)
    mu = model.architecture.spacing(model.scheduler, 7)["mu"]
    assert model.architecture.spacing(scheduler, 7) == {"num_inference_steps": 7, "mu": mu}


def test_positions_have_four_axes():
    assert flux2_klein.places(10, 2, 2).tolist() == [[10, 0, 0, 0], [10, 0, 1, 0], [10, 1, 0, 0], [10, 1, 1, 0]]
    assert flux2_klein.places(words=3).tolist() == [[0, 0, 0, 0], [0, 0, 0, 1], [0, 0, 0, 2]]


def test_latents_of_a_picture_undo_the_statistics_of_the_vae(base):
    vae = ours(base).architecture.pipeline.vae
    pixels = 2 * drawn(1, 3, 16, 24, seed=4) - 1
    own = vae.encode(pixels).latent_dist.mode()
    again = flux2_klein.denormalize(vae, flux2_klein.latents_of(vae, pixels))
    torch.testing.assert_close(again, own, atol=1e-5, rtol=0)


def test_saved_adapters_give_diffusers_the_same_picture(base, pipe, tmp_path):
    model = ours(base, lora_rank=2, lora_alpha=6)
    # 8 projections of the block of two streams, 1 of the block of one stream, of A and B each
    assert sum(parameter.requires_grad for parameter in model.network.parameters()) == (8 + 1) * 2
    library = lambda x, lora: theirs(load_pipeline("Flux2KleinPipeline", base, lora), x, PROMPTS)  # noqa: E731
    check_adapters(model, tmp_path, library, lambda latents: denormalized(model, latents))


def test_what_the_model_cannot_do_is_refused(base):
    model = ours(base)
    model.encode([Prompt("a" * 44)])  # 4 tokens of the chat template
    with pytest.raises(ValueError, match="49.*48.*Qwen"):
        model.encode([Prompt("a" * 45)])
    with pytest.raises(ValueError, match="height.*18.*16"):
        ours(base, height=18)
    with pytest.raises(ValueError, match="media video"):
        model.encode(SEEN[1:2])
    with pytest.raises(ValueError, match="Flux2KleinPipeline.*model.family=flux2_klein"):
        refuse_foreign(FAMILIES["flux"], str(base))
    parts = (model.architecture.pipeline.vae, model.architecture.pipeline.text_encoder)
    assert not any(parameter.requires_grad for part in parts for parameter in part.parameters())
    assert not any(part.training for part in parts)
