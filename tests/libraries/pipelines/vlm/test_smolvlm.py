"""SmolVLM's pictures and words are those of the library's own processor."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image as Pil
from torch import Tensor

pytest.importorskip("transformers")


from mmgrpo.types import Image, Media, Prompt, Turn, Video
from pipelines.vlm import qwen_vl, smolvlm
from tests.building import load
from tests.tiny import maker, tiny_checkpoint

WORDS = (4, smolvlm.FAKE, smolvlm.IMAGE, smolvlm.WHOLE)


@pytest.fixture(scope="module")
def folder() -> str:
    return tiny_checkpoint(maker("smolvlm"))


@pytest.fixture(scope="module")
def family(folder) -> smolvlm.SmolVlm:
    return load(smolvlm, folder)


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def image(height: int, width: int, seed: int = 0, **options) -> Media:
    return Media("image", Image(noise(3, height, width, seed=seed)), options)


def video(frames: int, **options) -> Media:
    return Media("video", Video(noise(frames, 3, 16, 24), fps=4.0), options)


def asked(*parts: str | Media, id: str = "0") -> Prompt:
    return Prompt("", id, turns=(Turn("user", parts),))


def bytes_tokenizer():
    """Letters as they are, new lines too, of which two are one token as in SmolVLM's own."""

    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    from transformers.models.smolvlm import processing_smolvlm as library

    vocabulary = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    inner = Tokenizer(models.BPE({**vocabulary, "ĊĊ": 256}, merges=[("Ċ", "Ċ")]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.add_special_tokens([AddedToken(token, special=True) for token in smolvlm_special()])
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        eos_token="<end_of_utterance>",
        pad_token="<|im_end|>",
        chat_template=library.DEFAULT_CHAT_TEMPLATE,
    )


def smolvlm_special() -> tuple[str, ...]:
    from tests.tiny.smolvlm import SPECIAL

    return SPECIAL


def with_bytes(family: smolvlm.SmolVlm) -> smolvlm.SmolVlm:
    """The same family over bytes; its network keeps the id of the picture's place."""
    made = dataclasses.replace(family, tokenizer=bytes_tokenizer())
    made.image_id = made.tokenizer.convert_tokens_to_ids(smolvlm.IMAGE)
    return made


@pytest.mark.parametrize(
    ("size", "rows", "columns"), [((32, 32), 2, 2), ((16, 32), 1, 2), ((40, 10), 2, 1), ((7, 9), 2, 2)]
)
def test_a_picture_is_written_and_cut_as_by_the_library(size, rows, columns, family):
    from transformers.models.smolvlm import processing_smolvlm as library

    over_bytes, medium = with_bytes(family), image(*size)
    prompt = asked("see ", medium, "\nwhat?\n\n", image(*size, seed=1))
    found = over_bytes.encode([prompt])
    written = library.get_image_prompt_string(rows, columns, *WORDS)
    text = f"<|im_start|>User: see {written}\nwhat?\n\n{written}<end_of_utterance>\nAssistant:"
    assert found.ids[0].tolist() == over_bytes.tokenizer(text)["input_ids"]
    pixels = (medium.source.pixels.permute(1, 2, 0).numpy() * 255).round().astype(np.uint8)
    wanted = family.processor([Pil.fromarray(pixels)], return_row_col_info=True, return_tensors="pt")
    shown = found.media[0][0]
    assert (wanted["rows"], wanted["cols"]) == ([[rows]], [[columns]]) == ([[shown.rows]], [[shown.columns]])
    assert torch.equal(shown.tiles, wanted["pixel_values"][0])
    assert found.seen[0] == ((16 * rows, 16 * columns),) * 2


def test_tiles_are_read_row_by_row_and_the_whole_comes_last(family):
    colours = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 1]])
    quarters = colours.T.view(3, 2, 2).repeat_interleave(16, 1).repeat_interleave(16, 2)
    (shown,) = family.encode([asked(Media("image", Image(quarters)))]).media[0]
    assert shown.tiles.shape == (5, 3, 16, 16)
    # (pixel - 0.5) / 0.5: 0 becomes -1 and 1 stays 1.
    for tile, colour in zip(shown.tiles[:4], colours, strict=True):
        assert torch.equal(tile, (2 * colour - 1)[:, None, None].expand(-1, 16, 16))
    corners = shown.tiles[4][:, [0, 0, -1, -1], [0, -1, 0, -1]].T
    torch.testing.assert_close(corners, 2 * colours - 1, rtol=0, atol=0.02)


def test_a_clip_is_written_as_by_the_library(family):
    from transformers.models.smolvlm import processing_smolvlm as library

    over_bytes = with_bytes(family)
    found = over_bytes.encode([asked(video(286, fps=0.2), "when?")])
    (shown,) = found.media[0]
    # 286 frames at 4 a second last 71.5 s; 0.2 of them a second are 14, the last at 285 / 4 = 71.25 s.
    assert len(shown.tiles) == 14 and shown.times[0] == 0 and shown.times[-1] == 71.25 and shown.duration == 71.5
    processor = SimpleNamespace(
        image_seq_len=4, image_token=smolvlm.IMAGE, fake_image_token=smolvlm.FAKE, global_image_token=smolvlm.WHOLE
    )
    metadata = SimpleNamespace(fps=4.0, timestamps=list(shown.times), duration=71.5)
    inputs = {"pixel_values": shown.tiles[None], "video_metadata": [metadata]}
    written = library.SmolVLMProcessor.replace_video_token(processor, inputs, 0)
    assert "fourteen frames from a 0:01:11 " in written and "Frame from 01:05:" in written
    text = f"<|im_start|>User: {written}when?<end_of_utterance>\nAssistant:"
    assert found.ids[0].tolist() == over_bytes.tokenizer(text)["input_ids"]


def test_seconds_that_a_division_left_short_are_whole():
    text = "".join(part.get("text", "<image>") for part in smolvlm.clip_parts((0.0, 2.9999999), 3.9999999))
    assert "two frames from a 0:00:04 " in text and "00:03:" in text and text.count("<image>") == 2


def test_features_are_those_of_the_library(family):
    prompts = [asked(image(32, 32)), asked("no picture", id="1"), asked(video(16), image(16, 32, 1), id="2")]
    context = family.encode(prompts)
    with torch.no_grad():
        features = family.features(family.network, context)
        assert [len(rows) for rows in features] == [5 * 4, 0, (4 + 3) * 4]
        for row in (0, 2):
            tiles = torch.cat([shown.tiles for shown in context.media[row]])
            (wanted,) = family.network.get_image_features(tiles[None]).pooler_output
            torch.testing.assert_close(features[row], wanted, rtol=0, atol=1e-6)


def test_the_limit_on_pixels_is_a_square_of_whole_tiles(folder, family):
    # 31 * 31 = 961 <= 1023 holds one tile of 16 a side, 32 * 32 = 1024 two.
    assert [smolvlm.edge_within(pixels, 16) for pixels in (256, 1023, 1024, 5000)] == [16, 16, 32, 64]
    with pytest.raises(ValueError, match="max_pixels.*255"):
        load(smolvlm, folder, max_pixels=255)
    assert load(smolvlm, folder, max_pixels=256).encode([asked(image(32, 32))]).seen == [((16, 16),)]
    assert family.encode([asked(image(32, 32, max_pixels=300))]).seen == [((16, 16),)]
    assert family.encode([asked(image(32, 32, max_pixels=10**6))]).seen == [((32, 32),)]


def test_what_smolvlm_cannot_do_is_said(folder, family, tmp_path):
    with pytest.raises(ValueError, match="small.*min_pixels"):
        family.encode([asked(image(8, 8, min_pixels=4), id="small")])
    with pytest.raises(ValueError, match="'loud'.*audio"):
        family.encode([asked(Media("audio", "a.wav"), id="loud")])
    with pytest.raises(ValueError, match="qwen2_5_vl.*idefics3"):
        load(smolvlm, qwen_vl.tiny(tmp_path))


def test_a_template_without_places_for_pictures_is_an_error(family):
    made = dataclasses.replace(family, tokenizer=bytes_tokenizer())
    made.tokenizer.chat_template = "{{ messages[0]['content'][0]['type'] }}"
    with pytest.raises(ValueError, match="'p'.*0.*1"):
        made.encode([asked(image(8, 8), id="p")])


def test_marks_and_ends_are_read_from_the_vocabulary(family):
    ids = family.tokenizer.get_vocab()
    silent = {ids[mark] for mark in ("<image>", "<fake_token_around_image>", "<global-img>", "<row_6_col_1>")}
    assert silent < family.suppress_tokens and family.media_tokens == {ids["<image>"]}
    # The padding token also ends, as the generation config says, and what ends must be sayable.
    assert family.end_ids == {ids["<end_of_utterance>"], ids["<|im_end|>"]}
    assert not family.suppress_tokens & family.end_ids and ids["red"] not in family.suppress_tokens


def test_idefics3_is_read_too_and_saved_as_its_own(tmp_path):
    source = maker("smolvlm")(tmp_path / "first", kind="idefics3")
    family = load(smolvlm, source)
    assert type(family.network).__name__ == "Idefics3ForConditionalGeneration"
    family.save(tmp_path / "second", family.network)
    settings = json.loads((tmp_path / "second" / "processor_config.json").read_text())
    assert settings == {"processor_class": "Idefics3Processor", "image_seq_len": 4}
    again, prompts = load(smolvlm, tmp_path / "second"), [asked(image(32, 16), "what is it ?")]
    contexts = [one.encode(prompts) for one in (family, again)]
    assert torch.equal(contexts[0].ids, contexts[1].ids)
    pairs = [one.features(one.network, context)[0] for one, context in zip((family, again), contexts, strict=True)]
    assert torch.equal(*pairs)


def test_a_template_kept_in_a_file_of_the_processor_is_found(tmp_path):
    source = Path(maker("smolvlm")(tmp_path))
    template = source / "chat_template.jinja"
    text = template.read_text()
    template.unlink()
    with pytest.raises(ValueError, match="chat template"):
        load(smolvlm, source).encode([asked("what")])
    (source / "chat_template.json").write_text(json.dumps({"chat_template": text}))
    assert len(load(smolvlm, source).encode([asked("what")]).ids[0]) > 0


def test_a_tile_has_a_token_for_each_merged_square_and_a_limit_is_that_of_its_edge(folder):
    model = load(smolvlm, folder, max_pixels=16 * 16)
    assert model.limits.edge == model.side == 16
    config: Any = model.network.config
    for scale in (1, 2):
        config.scale_factor = scale
        model.__post_init__()
        across = 16 // (config.vision_config.patch_size * scale)
        assert model.tile_tokens == across * across


def test_media_are_not_frozen_where_some_of_their_weights_train(folder):
    adapted = {"lora_rank": 2, "lora_targets": ("self_attn.q_proj",)}
    assert load(smolvlm, folder, freeze_vision=True, **adapted).frozen_media
    assert not load(smolvlm, folder, freeze_vision=False, **adapted).frozen_media
