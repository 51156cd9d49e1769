"""What all generators share: encodings in memory and on disk, prompts that are too long, given pictures, sizes."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image as Pil

from mmgrpo.config.settings import config_class
from mmgrpo.family import families
from mmgrpo.types import Audio, Image, Media, Prompt, Turn
from pipelines.conditions import Encodings, negative_of
from pipelines.visual import sd3
from pipelines.visual.conditioning_image import by_size, check_images, conditioning_image
from pipelines.visual.flow import refuse_overflow
from pipelines.visual.options import FlowOptions
from pipelines.visual.sizes import Sides, latent_frames, latent_size, nearest_multiple
from tests.building import load
from tests.libraries.pipelines.visual.drawing import ours

CPU = torch.device("cpu")


def counted(calls: list[str], size: int = 4):
    def encode(prompt: Prompt):
        calls.append(prompt.text)
        return torch.full((size,), float(len(prompt.text))), torch.ones(1)

    return encode


def picture(value: float) -> Media:
    return Media("image", Image(torch.full((3, 2, 2), value)))


def with_media(text: str, *media: Media) -> Prompt:
    return Prompt(text, "7", turns=(Turn("user", (*media, text)),))


# ---- encodings on disk


def encodings(folder: Path, calls: list[str], identity: str = "a", disk_bytes: int = 10_000) -> Encodings:
    return Encodings(counted(calls), CPU, folder=folder, disk_bytes=disk_bytes, identity=identity)


def test_another_model_or_other_settings_share_no_encodings(tmp_path):
    calls: list[str] = []
    encodings(tmp_path, calls, "a").rows([Prompt("one")])
    encodings(tmp_path, calls, "b").rows([Prompt("one")])
    assert calls == ["one", "one"]


@pytest.mark.parametrize("make", [sd3.tiny, sd3.tiny_words])
def test_another_checkpoint_under_the_same_name_shares_no_encodings(make, tmp_path):
    rows = []
    for seed in (0, 0, 1):
        model = load(sd3, make(tmp_path / "model", seed=seed), height=16, width=16)
        model.limit_memory(FlowOptions(encodings_folder=str(tmp_path / "kept")), "one name")
        rows.append(model.encode([Prompt("a")]).tensors[0])
    assert torch.equal(rows[0], rows[1]) and not torch.equal(rows[1], rows[2])
    assert len(list((tmp_path / "kept").iterdir())) == 2


def test_encodings_are_kept_in_a_folder_only_where_one_is_named(words_folder, tmp_path):
    plain, kept = ours(words_folder), ours(words_folder)
    plain.limit_memory(FlowOptions(), "one name")
    kept.limit_memory(FlowOptions(encodings_folder=str(tmp_path), encodings_gb=2.5), "one name")
    assert plain.encodings.folder is None and kept.encodings.folder == tmp_path
    assert kept.encodings.disk_bytes == 2_500_000_000


def test_a_negative_prompt_keeps_the_picture_and_a_row_s_own_comes_first():
    prompt = with_media("a", picture(0.5))
    for meta, default, text in (({}, "", ""), ({}, "b", "b"), ({"negative_prompt": "c"}, "b", "c")):
        negative = negative_of(replace(prompt, meta=meta), default)
        assert negative.text == text and len(negative.media) == 1
    assert negative_of(replace(prompt, meta={"negative_prompt": ""}), "b").text == ""
    with pytest.raises(ValueError, match="'7'.*negative_prompt.*3"):
        negative_of(replace(prompt, meta={"negative_prompt": 3}))


def test_forgotten_encoders_are_no_longer_in_memory(folder):
    model = ours(folder)
    model.forget_encoders([Prompt("a red circle")])
    pipeline = model.architecture.pipeline
    assert pipeline.text_encoder is None and pipeline.text_encoder_3 is None
    assert pipeline.vae is not None and pipeline.transformer is model.network
    assert len(model.encode([Prompt("a red circle")]).tensors) == 2


# ---- prompts that would be cut


def test_a_prompt_is_never_cut(folder):
    long = Prompt("a " * 60)
    with pytest.raises(ValueError, match=r"\d+.*48.*T5"):
        ours(folder).encode([long])


def test_a_run_skips_prompts_that_would_be_cut_and_says_so(folder):
    family = families()["sd3"]
    config = config_class(family.sections)()
    config.model = replace(config.model, path=str(folder), height=16, width=16, max_sequence_length=48)
    policy = family.policy(config, "cpu")
    fine = [Prompt(f"a {number}", str(number)) for number in range(19)]
    usable, skipped = family.accept(config, policy, [*fine, Prompt("a " * 60, "long")])
    assert [prompt.id for prompt in usable] == [prompt.id for prompt in fine]
    assert [(one.id, "which T5 reads" in one.reason) for one in skipped] == [("long", True)]
    with pytest.raises(ValueError, match="2.*20.*data.skip_limit=0.05"):
        family.accept(config, policy, [*fine[:18], Prompt("a " * 60, "x"), Prompt("b " * 60, "y")])


# ---- images next to the words


def test_the_given_picture_is_the_prompts_one_picture(tmp_path):
    Pil.new("RGB", (3, 2), (10, 20, 30)).save(tmp_path / "x.png")
    for media, expected in ((Media("image", str(tmp_path / "x.png")), (10, 20, 30)), (picture(1.0), (255, 255, 255))):
        assert conditioning_image(with_media("a", media), "wan").getpixel((0, 0)) == expected
    for got, wrong in WRONG.items():
        with pytest.raises(ValueError, match=f"'7'.*{got}.*'wan'"):
            conditioning_image(with_media("a", *wrong), "wan")


WRONG = {
    "none": (),
    "image, image": (picture(0.0), picture(0.0)),
    "audio": (Media("audio", Audio(torch.zeros(1, 4), 8)),),
}
"""How media are listed that are not one picture."""


@pytest.mark.parametrize("required", [False, True])
@pytest.mark.parametrize("got", ["image, image", "audio"])
def test_other_media_than_one_picture_are_refused_even_where_none_is_required(got, required):
    with pytest.raises(ValueError, match=f"f.jsonl.*'7'.*{got}"):
        check_images([with_media("a", *WRONG[got])], "wan", required, "f.jsonl", 0.5)


def test_several_pictures_are_taken_where_a_family_takes_them_and_nothing_else():
    rows = [with_media("a", picture(0.5), picture(0.2)), with_media("b", picture(0.5)), Prompt("c")]
    assert check_images(rows, "flux2", False, "f.jsonl", 0.0, several=True) == (rows, [])
    with pytest.raises(ValueError, match="'': .*media none.*images"):
        check_images(rows, "flux2", True, "f.jsonl", 0.0, several=True)
    with pytest.raises(ValueError, match="media image, image.*one image"):
        check_images(rows, "flux2", False, "f.jsonl", 0.0)
    with pytest.raises(ValueError, match="media image, video"):
        mixed = with_media("a", picture(0.5), Media("video", "a.mp4"))
        check_images([mixed], "flux2", False, "f.jsonl", 0.0, several=True)


def test_a_picture_of_several_files_is_skipped():
    prompts = [with_media("a", Media("image", ("a.png", "b.png"))), with_media("b", picture(0.5))]
    usable, [skipped] = check_images(prompts, "wan", True, "f.jsonl", 0.5)
    assert usable == prompts[1:] and skipped.reason == "a.png: expected a file"


def test_rows_with_unreadable_pictures_are_skipped_and_rows_without_are_an_error(tmp_path):
    rows = [with_media("a", picture(0.5))] * 19
    missing = with_media("b", Media("image", str(tmp_path / "none.png")))
    usable, skipped = check_images([*rows, missing], "wan", True, "f.jsonl", 0.05)
    assert usable == rows and [one.id for one in skipped] == ["7"]
    with pytest.raises(ValueError, match="f.jsonl.*1.*20"):
        check_images([*rows, missing], "wan", True, "f.jsonl", 0.04)
    with pytest.raises(ValueError, match="'': .*media none"):
        check_images([*rows, Prompt("c")], "wan", True, "f.jsonl", 0.5)
    assert check_images([*rows, Prompt("c")], "wan", False, "f.jsonl", 0.5)[0] == [*rows, Prompt("c")]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([[2, 3], [2, 3]], [([0, 1], 2, 3)]),
        ([[0, 0]], [([0], 0, 0)]),
        ([[0, 0], [2, 3], [0, 0], [3, 2]], [([0, 2], 0, 0), ([1], 2, 3), ([3], 3, 2)]),
    ],
)
def test_rows_with_pictures_of_one_size_are_predicted_together_and_come_back_in_their_order(sizes, expected):
    calls = []

    def predict(here: torch.Tensor, rows: torch.Tensor, height: int, width: int) -> torch.Tensor:
        assert torch.equal(here, rows)
        calls.append((rows.tolist(), height, width))
        return 10 * rows

    made = by_size(torch.tensor(sizes), torch.device("cpu"), predict)
    assert made.tolist() == [10 * row for row in range(len(sizes))]
    assert calls == expected


def test_a_family_of_words_takes_no_pictures():
    family = families()["sd3"]
    with pytest.raises(ValueError, match="1 media"):
        family.readable(config_class(family.sections)(), [with_media("a", picture(0.5))], "f.jsonl")


# ---- checkpoints and sizes


def test_a_checkpoint_of_another_family_is_named_with_the_family_to_take(folder):
    family = families()["flux"]
    config = config_class(family.sections)()
    config.model = replace(config.model, path=str(folder))
    with pytest.raises(ValueError, match="StableDiffusion3Pipeline.*'flux'.*family=sd3"):
        family.policy(config, "cpu")


@pytest.mark.parametrize(
    ("size", "unit", "most", "nearest"),
    [
        (-16, 16, 64, 16),
        (128, 16, 64, 64),
        (17, 16, 64, 16),
        (25, 16, 64, 32),
        (1, 16, 64, 16),
        (100, 16, 64, 64),
        (100, 16, 70, 64),
    ],
)
def test_the_nearest_size_is_a_multiple_within_the_limit(size, unit, most, nearest):
    assert nearest_multiple(size, unit, most) == nearest
    with pytest.raises(ValueError, match=f"width.*{size}.*{nearest}"):
        latent_size(unit, size, Sides(unit, most), factor=8, default=4)


def test_a_size_of_zero_is_the_default_of_each_side():
    assert latent_size(0, 0, Sides(8), factor=8, default=(32, 48)) == (4, 6)
    assert latent_size(0, 16, Sides(8), factor=8, default=32) == (4, 2)


@pytest.mark.parametrize(("frames", "nearest"), [(2, 1), (4, 5), (7, 9), (0, 1), (-3, 1)])
def test_the_nearest_number_of_frames_is_one_more_than_a_multiple(frames, nearest):
    with pytest.raises(ValueError, match=f"frames.*{frames}.*{nearest}"):
        latent_frames(frames, 4)


def test_the_largest_size_and_the_longest_clip_are_possible():
    assert latent_size(64, 16, Sides(16, 64), factor=8, default=4) == (8, 2)
    assert latent_frames(13, 4, most=4) == 4
    most = 2**30  # where no network says less
    assert latent_frames(4 * most - 3, 4) == most
    with pytest.raises(ValueError, match=f"frames.*{4 * most + 1}.*{4 * most - 3}"):
        latent_frames(4 * most + 1, 4)


def test_a_clip_of_4k_plus_1_frames_has_k_plus_1_latent_frames():
    assert [latent_frames(frames, 4) for frames in (1, 5, 81)] == [1, 2, 21]


# ---- the VAE


def test_a_vae_that_overflows_is_named_with_its_precision(folder):
    model = ours(folder)
    refuse_overflow(torch.ones(2), model.architecture.pipeline)
    model.architecture.pipeline.vae.half()
    with pytest.raises(ValueError, match="VAE.*float16.*NaN"):
        refuse_overflow(torch.tensor([0.0, math.inf]), model.architecture.pipeline)
    with pytest.raises(ValueError, match="VAE.*float32"):  # of a small model, which has none
        refuse_overflow(torch.tensor([0.0, math.nan]), None)


def test_half_precision_decodes_nearly_the_same_and_tiling_is_switched_on(folder):
    family = families()["sd3"]
    config = config_class(family.sections)()
    small = {"path": str(folder), "height": 16, "width": 16, "max_sequence_length": 48}
    config.model = replace(config.model, **small)
    whole = family.policy(config, "cpu").model
    config.model = replace(config.model, vae_dtype="bfloat16", vae_tiling=True, decode_batch_size=3)
    half = family.policy(config, "cpu").model
    assert half.architecture.pipeline.vae.use_tiling and not whole.architecture.pipeline.vae.use_tiling
    assert half.decode_batch_size == 3
    latents = torch.randn(2, *whole.latent_shape(), generator=torch.Generator().manual_seed(0))
    for a, b in zip(whole.decode(latents), half.decode(latents), strict=True):
        assert 0 < (a.pixels - b.pixels).abs().max() < 0.05
