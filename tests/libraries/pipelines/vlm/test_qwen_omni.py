"""Qwen2.5-Omni sees, hears and reads in one prompt: its completions are those of the library's own."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mmgrpo.config.settings import config_class
from mmgrpo.family import family
from mmgrpo.policies.token import TokenPolicy
from mmgrpo.types import Media, Prompt, Request
from pipelines import speech, vlm
from pipelines.training import Training
from pipelines.vlm import qwen_omni
from pipelines.vlm.media import eight_bits, read_video
from tests.building import load, rescored
from tests.libraries.families.examples import CLIP, PICTURE, hum
from tests.seeing import asked, image, kept, rollout, video
from tests.tiny import maker, tiny_checkpoint
from tests.tiny.qwen_omni import TEMPLATE

SOUND = hum(1, 1.5)
ALL = asked("all", PICTURE, SOUND, CLIP, "what is it?")
PROMPTS = [
    asked("picture", PICTURE, "what is it?"),
    asked("sound", SOUND, "what is said?"),
    asked("clip", CLIP, "where is it?"),
    ALL,
    asked("turned", "hear", hum(0), "and", hum(2), "see", CLIP, PICTURE, image(60, 90, 4), "which?"),
    Prompt("yes or no?", "words"),
]
EACH = pytest.mark.parametrize("prompt", PROMPTS, ids=lambda prompt: prompt.id)


@pytest.fixture(scope="module")
def folder() -> str:
    return tiny_checkpoint(maker("qwen_omni"))


@pytest.fixture(scope="module")
def model(folder) -> Any:
    """Never trained, so all tests may use it."""
    return load(qwen_omni, folder)


def clip_patches(images: Any, medium: Media) -> tuple[torch.Tensor, list[int]]:
    """Patches of a clip of evenly many frames and their grid, by the library's image processor: of each pair, the first
    half of the patches of the one frame and the second half of those of the other."""
    frames = eight_bits(read_video(medium, fps=2.0).frames)
    read = [images(images=[frame.permute(1, 2, 0).numpy()], return_tensors="pt") for frame in frames]
    halves = [one["pixel_values"].unflatten(1, (3, images.temporal_patch_size, -1)) for one in read]
    pairs = [torch.stack([one[:, :, 0], two[:, :, 1]], 2) for one, two in zip(halves[::2], halves[1::2], strict=True)]
    return torch.cat(pairs).flatten(1), [len(pairs), *read[0]["image_grid_thw"][0, 1:].tolist()]


def library_inputs(folder: str, prompt: Prompt) -> dict[str, torch.Tensor]:
    """A prompt by the library's image processor, feature extractor, tokenizer and chat template."""
    from transformers import AutoImageProcessor, AutoTokenizer, WhisperFeatureExtractor

    tokenizer, images = AutoTokenizer.from_pretrained(folder), AutoImageProcessor.from_pretrained(folder)
    extractor = WhisperFeatureExtractor.from_pretrained(folder)
    text = tokenizer.apply_chat_template(
        [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": part} if isinstance(part, str) else {"type": part.kind}
                    for part in (prompt.turns[0].parts if prompt.turns else (prompt.text,))
                ],
            }
        ],
        chat_template=TEMPLATE,
        add_generation_prompt=True,
        tokenize=False,
    )
    found: dict[str, list[Any]] = {}
    for medium in prompt.media:
        source: Any = medium.source
        if medium.kind == "audio":
            given = extractor(
                source.samples[0].numpy(),
                sampling_rate=16_000,
                padding="max_length",
                return_attention_mask=True,
                return_tensors="pt",
            )
            count = ((int(given["attention_mask"].sum()) - 1) // 2 + 1 - 2) // 2 + 1
            parts = {"input_features": given["input_features"], "feature_attention_mask": given["attention_mask"]}
            mark = "<|AUDIO|>"
        elif medium.kind == "image":
            pixels = eight_bits(source.pixels).permute(1, 2, 0).numpy()
            parts = dict(images(images=[pixels], return_tensors="pt"))
            count, mark = int(parts["image_grid_thw"].prod()) // 4, "<|IMAGE|>"
        else:
            patches, grid = clip_patches(images, medium)
            parts = {"pixel_values_videos": patches, "video_grid_thw": torch.tensor([grid])}
            parts["video_second_per_grid"] = torch.tensor([2 / 2.0])
            count, mark = len(patches) // 4, "<|VIDEO|>"
        text = text.replace(f"s|>{mark}<|", f"s|>{mark.lower() * count}<|", 1)
        for name, value in parts.items():
            found.setdefault(name, []).append(value)
    for mark in ("<|AUDIO|>", "<|IMAGE|>", "<|VIDEO|>"):
        text = text.replace(mark.lower(), mark)
    return dict(tokenizer(text, return_tensors="pt")) | {name: torch.cat(values) for name, values in found.items()}


# --- what is computed -------------------------------------------------------------------------------------------------


@EACH
def test_greedy_completions_are_those_of_the_librarys_generate(prompt, model, folder):
    found: Any = TokenPolicy(model, max_tokens=8).sample(Request([prompt], [0], 1, 0))[0]
    inputs = library_inputs(folder, prompt)
    made = model.network.generate(
        **inputs, max_new_tokens=8, do_sample=False, suppress_tokens=sorted(model.suppress_tokens)
    )[0, inputs["input_ids"].shape[1] :]
    assert (found.text, found.tokens) == (model.decode(made.tolist()), len(made))


def test_log_probs_are_those_of_the_librarys_forward_pass_and_of_scoring_shared_or_replayed(model, folder, monkeypatch):
    made = rollout(TokenPolicy(model, max_tokens=5), PROMPTS)
    assert model.shared and made.decisions.log_probs[made.decisions.loss_mask].std() > 0.1
    for row, prompt in enumerate(made.prompts):
        inputs, said = library_inputs(folder, prompt), kept(made).ids[row][kept(made).real[row]]
        ids = torch.cat([inputs["input_ids"], said[None]], 1)
        with torch.no_grad():
            out = model.network(**inputs | {"input_ids": ids, "attention_mask": torch.ones_like(ids)})
        logits = out.logits[0, -len(said) - 1 : -1].index_fill(1, torch.tensor([*model.suppress_tokens]), -torch.inf)
        wanted = logits.log_softmax(-1).gather(1, said[:, None])[:, 0]
        torch.testing.assert_close(made.decisions.log_probs[row, : len(said)], wanted, rtol=0, atol=1e-5)
    for way in (True, False):
        monkeypatch.setattr(model, "shared", way)
        scores = rescored(TokenPolicy(model, max_tokens=5), made, limit=4)
        torch.testing.assert_close(scores, made.decisions.log_probs, rtol=0, atol=1e-5)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_each_medium_of_a_prompt_counts(place, model):
    """Another picture, sound or clip, of the same size, changes what is said."""
    other = (image(16, 16, 9), replace(SOUND, source=hum(3, 1.5).source), video(16, 8))[place]
    parts = [*ALL.turns[0].parts]
    parts[place] = other
    one, two = (model.encode([prompt]) for prompt in (ALL, asked("all", *parts)))
    assert torch.equal(one.ids, two.ids) and torch.equal(one.positions, two.positions)
    said = [model.own_logits(context.ids[0], context.media[0])[-1] for context in (one, two)]
    assert (said[0] - said[1]).abs().max() > 1e-2


def test_only_the_thinker_is_read_and_by_default_only_its_language_model_trains(folder, model, tmp_path):
    assert not [name for name, value in model.network.named_parameters() if value.requires_grad and "tower" in name]
    network = load(qwen_omni, folder, freeze_vision=False).network
    assert {name.split(".")[1] for name, value in network.named_parameters() if value.requires_grad} >= {
        *("audio_tower", "visual", "language_model")
    }
    adapted = load(qwen_omni, folder, Training(lora_rank=2)).network
    trained = [name for name, value in adapted.named_parameters() if value.requires_grad]
    assert trained and all("language_model" in name for name in trained)
    model.save(tmp_path, model.network)
    one, two = (read.encode([ALL]) for read in (load(qwen_omni, tmp_path), model))
    assert torch.equal(one.ids, two.ids) and torch.equal(one.positions, two.positions)
    again, first = (read.own_logits(one.ids[0], one.media[0]) for read in (load(qwen_omni, tmp_path), model))
    assert torch.equal(again, first)


def test_a_checkpoint_is_read_by_the_family_of_its_modality(folder):
    families = [module.policy(folder).settings.family.name for module in (vlm, speech)]
    assert families == ["qwen_omni", "audio_text"]


# --- what is refused --------------------------------------------------------------------------------------------------


def test_prompts_that_it_does_not_take_are_refused(folder, model):
    with pytest.raises(ValueError, match="'a'.*<.vision_bos.>"):
        model.encode([asked("a", "<|vision_bos|><|vision_eos|>")])
    short = load(qwen_omni, folder, seconds=1.0)
    with pytest.raises(ValueError, match=r"'all'.*1\.5 s.*model\.seconds"):
        short.encode([ALL])
    with pytest.raises(ValueError, match=r"'all' has \d+ tokens.*max_prompt_tokens=9"):
        load(qwen_omni, folder, max_prompt_tokens=9).encode([ALL])
    blind = replace(model)
    blind.chat = SimpleNamespace(text=lambda messages: model.chat.text(messages).replace("<|IMAGE|>", ""))  # type: ignore[assignment]
    with pytest.raises(ValueError, match="'all': got 0 placeholders of kind image.*expected 1"):
        blind.encode([ALL])
    with pytest.raises(ValueError, match=r"seconds=31.*lower model\.seconds"):
        load(qwen_omni, folder, seconds=31.0)
    with pytest.raises(ValueError, match="'qwen2_5_vl'.*image_text"):
        load(qwen_omni, tiny_checkpoint(maker("qwen_vl")))


def test_rows_with_recordings_that_are_too_long_are_left_out_before_the_run():
    config = config_class(family("qwen_omni").sections)()
    config.model.seconds, config.data.skip_limit = 1.0, 0.5
    usable, [skipped] = family("qwen_omni").readable(config, PROMPTS[:2], "here")
    assert [one.id for one in usable] == ["picture"] and skipped.id == "sound" and "1.5 s" in skipped.reason
