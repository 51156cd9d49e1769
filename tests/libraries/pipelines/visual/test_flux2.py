"""FLUX.2 dev: equal to diffusers' own pipeline, with embedded guidance and with given pictures; the words it reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from mmgrpo.types import Image, Media, Prompt
from pipelines.visual import flux2
from pipelines.visual.conditioning_image import conditioning_images
from pipelines.visual.families import FAMILIES
from pipelines.visual.flow import FlowModel
from pipelines.visual.tokenizers import tokenizers
from tests.building import load, refuse_foreign
from tests.libraries.families.examples import SEEN, shown
from tests.libraries.families.examples import noise as drawn
from tests.libraries.pipelines.visual.drawing import (
    PROMPTS,
    STEPS,
    check_adapters,
    check_sample,
    draw,
    drawn_by_diffusers,
    noise,
)
from tests.tiny import maker, tiny_checkpoint

SIDE = 64
"""Pixels; the pipeline takes no smaller pictures."""
WORDS = 96


@pytest.fixture(scope="module")
def folder() -> Path:
    return tiny_checkpoint(maker("flux2"))


def ours(folder: Path, **options) -> FlowModel:
    return load(flux2, folder, **{"height": 16, "width": 24, "max_sequence_length": WORDS, **options})


@pytest.fixture(scope="module")
def pipe(folder) -> Any:
    """diffusers' own pipeline, with a processor as the checkpoint's but without its images."""
    from diffusers import Flux2Pipeline
    from transformers import PreTrainedTokenizerFast, ProcessorMixin

    class Processor(ProcessorMixin):
        def __init__(self, tokenizer: Any, chat_template: Any = None) -> None:
            super().__init__(tokenizer, chat_template=chat_template)

    made: Any = Flux2Pipeline.from_pretrained(folder, tokenizer=None)
    words = PreTrainedTokenizerFast.from_pretrained(folder, subfolder="tokenizer")
    made.tokenizer = Processor(words, chat_template=words.chat_template)
    made.set_progress_bar_config(disable=True)
    return made


def theirs(pipe: Any, x: torch.Tensor, prompts, output: str = "latent", **options):
    """What diffusers' pipeline makes of the same noise, on its own noise levels."""
    made = pipe(
        prompt=[prompt.text for prompt in prompts],
        height=4 * x.shape[2],
        width=4 * x.shape[3],
        latents=x.clone(),
        num_inference_steps=STEPS,
        max_sequence_length=WORDS,
        output_type=output,
        **options,
    ).images
    return made.mT.reshape(x.shape) if output == "latent" else made


@pytest.mark.parametrize("guidance", [1.0, 4.0])
def test_a_sample_equals_the_pipeline_of_diffusers(folder, pipe, guidance):
    model = ours(folder, guidance=guidance)
    check_sample(model, lambda x, output: theirs(pipe, x, PROMPTS, output, guidance_scale=guidance))
    start = noise(model)
    end = draw(model, model.network, start)
    assert (end - theirs(pipe, start, PROMPTS, guidance_scale=guidance + 1)).abs().max() > 1e-3


def test_given_pictures_are_read_in_their_order_as_by_the_pipeline(folder, pipe):
    """None, one, two of other proportions, these exchanged, and three, beside each other."""
    model = ours(folder, height=SIDE, width=SIDE)
    pixels = [(place + drawn(3, *size, seed=place)) / 4 for place, size in enumerate([(64, 96), (100, 64), (70, 90)])]
    media = [Media("image", Image(one)) for one in pixels]
    rows = [[], media[:1], media[:2], media[1::-1], media]
    prompts = [shown(0, *row, "make it red") if row else Prompt("make it red") for row in rows]
    start = noise(model, 1)
    ends = draw(model, model.network, start.expand(5, -1, -1, -1), prompts)
    for end, prompt in zip(ends, prompts, strict=True):
        images = conditioning_images(prompt, "flux2") or None
        torch.testing.assert_close(end[None], theirs(pipe, start, [prompt], image=images), atol=1e-5, rtol=0)
    assert min((ends[i] - ends[j]).abs().max() for i in range(5) for j in range(i)) > 1e-4


def test_guidance_proper_is_along_the_line_from_the_negative_prompt(folder):
    model, plain = ours(folder, true_cfg_scale=3.0), ours(folder)
    model.negative_prompt = "blue"
    x, time = noise(model), torch.full((3,), 0.7)
    guided = model.predict(model.network, x, time, model.encode(PROMPTS))
    with_words = plain.predict(plain.network, x, time, plain.encode(PROMPTS))
    without = plain.predict(plain.network, x, time, plain.encode([Prompt("blue")] * 3))
    torch.testing.assert_close(guided, without + 3 * (with_words - without), atol=1e-5, rtol=0)
    assert model.evaluations_per_row == 2 and (guided - with_words).abs().max() > 1e-4


def test_the_words_are_behind_the_system_message_and_none_is_cut(folder, pipe):
    """Words of the message are one token each, control tokens too, and letters of other words."""
    model = ours(folder)
    frame = model.architecture.pipeline.tokenizer.apply_chat_template(
        [
            {"role": "system", "content": [{"type": "text", "text": pipe.system_message}]},
            {"role": "user", "content": [{"type": "text", "text": ""}]},
        ],
        tokenize=False,
    )
    assert frame.startswith("<s>[SYSTEM_PROMPT]You are an AI") and frame.endswith("[/SYSTEM_PROMPT][INST][/INST]")
    used = len(model.architecture.pipeline.tokenizer(frame, add_special_tokens=False).input_ids)
    assert used < 60
    model.encode([Prompt("x" * (WORDS - used)), Prompt("[IMG]" + "x" * (WORDS - used))])  # the pipeline removes [IMG]
    with pytest.raises(ValueError, match=f"{WORDS + 1}.*{WORDS}.*Mistral 3"):
        model.encode([Prompt("x" * (WORDS - used + 1))])
    flux2.check_words(tokenizers(str(folder)), Prompt("x" * (WORDS - used)), WORDS)  # before any weights are read


def test_saved_adapters_give_diffusers_the_same_picture(folder, tmp_path):
    model = ours(folder, lora_rank=2, lora_alpha=6)
    options = {"size": (16, 24), "scale": 1.0, "max_sequence_length": WORDS, "guidance": 4.0}
    library = lambda x, lora: drawn_by_diffusers("flux2", folder, x, "latent", lora=lora, **options)  # noqa: E731
    check_adapters(model, tmp_path, library, lambda latents: latents.flatten(2).mT)


def test_what_the_model_cannot_do_is_refused(folder):
    model = ours(folder)
    with pytest.raises(ValueError, match="height.*18.*16"):
        ours(folder, height=18)
    with pytest.raises(ValueError, match="media video"):
        model.encode(SEEN[1:2])
    with pytest.raises(ValueError, match="Flux2Pipeline.*'flux2_klein'.*model.family=flux2"):
        refuse_foreign(FAMILIES["flux2_klein"], str(folder))
