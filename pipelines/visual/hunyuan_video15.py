"""HunyuanVideo 1.5 (Wu et al. 2025, arXiv:2511.18870), text-to-video: Qwen2.5-VL reads the prompt, ByT5 what it quotes.

Qwen2.5-VL reads the prompt behind an instruction, whose 108 tokens are cut off its hidden states; ByT5 reads the words
in quotation marks, which are to be written in the clip. The network reads the noisy latents, latents of a given image,
and a mask of the frames that are given, the last two of zeros here. It would also read states of an image, of which
diffusers' pipeline gives zeros that nothing attends to; they are left out, and so is what fills up texts.

diffusers' pipeline has a guider of its own in place of a scale. That of published checkpoints is plain classifier-free
guidance, whose scale is ``guidance``; another one is refused.

That pipeline reads no adapters: ``pipe.transformer.load_lora_adapter(folder)`` does.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mmgrpo.runtime.devices import put
from mmgrpo.types import Prompt
from pipelines import require
from pipelines.conditions import pad_states, refuse_cut
from pipelines.pretrained import locate, read_network, read_pipeline
from pipelines.training import PLAIN, Training, freeze
from pipelines.visual.flow import TRANSFORMER, Architecture, FlowModel, flow_model
from pipelines.visual.hunyuan_video import LORA_TARGETS, clips_of_latents, latent_clip, spacing
from pipelines.visual.options import HunyuanVideo15Options
from pipelines.visual.pipeline import Call, Pipeline
from pipelines.visual.sizes import Sample, Sides

__all__ = ["LORA_TARGETS", "check_words", "load"]

EXAMPLE = "hunyuanvideo-community/HunyuanVideo-1.5-Diffusers-480p_t2v"
FRAMES, FPS = 121, 24.0
CUT = 108
"""Tokens of the instruction before a prompt."""
QUOTED = 256
"""Tokens of the words in quotation marks, with ByT5 bytes."""
PLAIN_GUIDER = {"guidance_rescale": 0.0, "use_original_formulation": False, "start": 0.0, "stop": 1.0, "enabled": True}
"""Settings of a guider that does nothing but classifier-free guidance."""


@dataclass(frozen=True)
class HunyuanVideo15(Architecture):
    """Text encoders and VAE of a checkpoint."""

    pipeline: Any
    max_sequence_length: int
    device: torch.device

    def check(self, prompt: Prompt) -> None:
        check_words(self.pipeline, prompt, self.max_sequence_length)

    def encode(self, prompt: Prompt) -> tuple[Tensor, ...]:
        """Hidden states of Qwen2.5-VL and which are real, and the same of ByT5."""
        return encode_words(self.pipeline, prompt, self.max_sequence_length, self.device)

    def velocity(self, network: Any, x: Tensor, time: Tensor, conditioning: tuple[Tensor, ...]) -> Tensor:
        given = torch.zeros_like(x), torch.zeros_like(x[:, :1])
        image = x.new_zeros(len(x), 0, network.config.image_embed_dim)
        return velocity(network, torch.cat([x, *given], 1), time, conditioning, image)

    def pixels(self, latents: Float[Tensor, "N c f h w"]) -> Float[Tensor, "N F 3 H W"]:
        return clips_of_latents(self.pipeline.vae, latents)

    def spacing(self, scheduler: Any, steps: int) -> dict[str, Any]:
        return spacing(steps)

    def diffusers_class(self) -> Any:
        """That of HunyuanVideo: the pipeline of 1.5 itself saves no adapters, and its network reads them."""
        from diffusers import HunyuanVideoPipeline

        return HunyuanVideoPipeline


def chat(tokenizer: Any, text: str) -> str:
    """A prompt behind the pipeline's instruction, in the chat template of the checkpoint."""
    from diffusers import HunyuanVideo15Pipeline
    from diffusers.pipelines.hunyuan_video1_5.pipeline_hunyuan_video1_5 import format_text_input

    instruction = inspect.signature(HunyuanVideo15Pipeline._get_mllm_prompt_embeds).parameters["system_message"].default
    (messages,) = format_text_input([text], instruction)
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)


def quotation(text: str) -> str:
    """What ByT5 reads of a prompt; empty where nothing stands in quotation marks."""
    from diffusers.pipelines.hunyuan_video1_5.pipeline_hunyuan_video1_5 import extract_glyph_texts

    quotes: Any = extract_glyph_texts(text)  # diffusers' annotation is another type
    return quotes or ""


def sides_of(config: Mapping[str, Any], factor: int) -> Sides:
    """The sides of images that its network takes, with ``factor`` pixels per side of a latent position."""
    return Sides(factor * config["patch_size"])


USUAL = FRAMES, 480, 848
"""Frames, height and width of samples, where the options leave them open."""


def inputs_of(config: Mapping[str, Any], sample: Sample) -> dict[str, Any]:
    """What its network reads of one sample, without quoted words."""
    return {
        "hidden_states": torch.empty(1, config["in_channels"], sample.frames, sample.height, sample.width),
        "encoder_hidden_states": torch.empty(1, sample.words, config["text_embed_dim"]),
        "encoder_attention_mask": torch.ones(1, sample.words, dtype=torch.bool, device="cpu"),
        "encoder_hidden_states_2": torch.empty(1, 0, config["text_embed_2_dim"]),
        "encoder_attention_mask_2": torch.ones(1, 0, dtype=torch.bool, device="cpu"),
        "image_embeds": torch.empty(1, 0, config["image_embed_dim"], device="cpu"),
        "timestep": torch.empty(1),
    }


def check_words(pipeline: Any, prompt: Prompt, most: int) -> None:
    """Qwen2.5-VL must read the whole prompt, of at most ``most`` tokens, and ByT5 all that it quotes."""
    text = chat(pipeline.tokenizer, prompt.text)
    refuse_cut(prompt, pipeline.tokenizer, most + CUT, f"Qwen2.5-VL (with the {CUT} of its instruction)", text)
    refuse_cut(prompt, pipeline.tokenizer_2, QUOTED, "ByT5 (of what is in quotation marks)", quotation(prompt.text), "")


def encode_words(pipeline: Any, prompt: Prompt, most: int, device: torch.device) -> tuple[Tensor, ...]:
    """Hidden states of Qwen2.5-VL [most, d] and which of them are real, those of ByT5 [QUOTED, d] and the same."""
    words = pipeline._get_mllm_prompt_embeds(
        pipeline.text_encoder, pipeline.tokenizer, prompt.text, device, tokenizer_max_length=most
    )
    glyphs = pipeline._get_byt5_prompt_embeds(
        pipeline.tokenizer_2, pipeline.text_encoder_2, prompt.text, device, tokenizer_max_length=QUOTED
    )
    real = [hidden[0, : int(mask.sum())] for hidden, mask in (words, glyphs)]
    return *pad_states(real[0], most), *pad_states(real[1], QUOTED)


def velocity(
    network: Any,
    x: Float[Tensor, "N channels f h w"],
    time: Float[Tensor, " N"],
    words: tuple[Tensor, ...],
    image: Float[Tensor, "N states d"],
) -> Float[Tensor, "N c f h w"]:
    """The transformer's prediction at time 1000 sigma, of latents with those that are given and their mask."""
    hidden, real = trim(words[0], words[1])
    glyphs, written = trim(words[2], words[3])
    (predicted,) = network(
        hidden_states=x,
        timestep=time * 1000,
        encoder_hidden_states=hidden,
        encoder_attention_mask=real,
        encoder_hidden_states_2=glyphs,
        encoder_attention_mask_2=written,
        image_embeds=image,
        return_dict=False,
    )
    return predicted


def trim(
    hidden: Float[Tensor, "N length d"], real: Bool[Tensor, "N length"]
) -> tuple[Float[Tensor, "N longest d"], Bool[Tensor, "N longest"]]:
    """Without what is real in no row."""
    longest = int(real.cpu().sum(1).max())
    return hidden[:, :longest], put(real[:, :longest], hidden.device)


def refuse_guider(guider: Any, source: str) -> None:
    """ValueError for a guider that is not plain classifier-free guidance."""
    name, config = type(guider).__name__, dict(guider.config)
    other = {key: config.get(key) for key, value in PLAIN_GUIDER.items() if config.get(key, value) != value}
    if name != "ClassifierFreeGuidance" or other:
        raise ValueError(
            f"guider/ of '{source}': got {name} with {other}, expected ClassifierFreeGuidance with {PLAIN_GUIDER}; "
            "correct guider/guider_config.json, or take a published checkpoint"
        )


def refuse_template(tokenizer: Any, source: str) -> None:
    """ValueError for a tokenizer that reads the instruction as another number of tokens than the pipeline cuts off."""
    before = chat(tokenizer, "\0").split("\0")[0]
    if (ahead := len(tokenizer(before).input_ids)) != CUT:
        raise ValueError(
            f"'{source}': tokenizer: reads the instruction before a prompt as {ahead} tokens, expected {CUT}, those of "
            f"Qwen2.5-VL; take the tokenizer of {EXAMPLE}"
        )


def load(options: HunyuanVideo15Options, training: Training = PLAIN) -> FlowModel:
    """Load a HunyuanVideo 1.5 model for training; text encoders and VAE are frozen.

    Text encoders are stored in the precision of computation, the VAE in fp32.

    Raises FileNotFoundError for a folder that is no model, ValueError for unsupported sizes or settings.
    """
    require("visual", "diffusers", "transformers")
    from diffusers import AutoencoderKLHunyuanVideo15, HunyuanVideo15Pipeline, HunyuanVideo15Transformer3DModel

    source = locate(options.path, EXAMPLE, "model_index.json")
    network = read_network(HunyuanVideo15Transformer3DModel, source, training, TRANSFORMER)
    pipeline = read_pipeline(HunyuanVideo15Pipeline, source, training, AutoencoderKLHunyuanVideo15, transformer=network)
    refuse_guider(pipeline.guider, source)
    refuse_template(pipeline.tokenizer, source)
    pipeline.vae.use_slicing = True  # the mask of its attention is that of one clip
    freeze((pipeline.vae, pipeline.text_encoder, pipeline.text_encoder_2), training.device)
    architecture = HunyuanVideo15(pipeline, options.max_sequence_length, torch.device(training.device))
    wide, high = pipeline.default_aspect_ratio
    default = pipeline.video_processor.calculate_default_height_width(high, wide, pipeline.target_size)

    sides = sides_of(network.config, pipeline.vae_scale_factor_spatial)

    def sized(height: int, width: int, frames: int) -> tuple[HunyuanVideo15, tuple[int, ...]]:
        size = latent_clip(pipeline, sides, frames, height, width, (FRAMES, *default))
        return architecture, (pipeline.num_channels_latents, *size)

    size = (options.height, options.width, options.frames)
    return flow_model(
        network, pipeline.scheduler, training, LORA_TARGETS, sized, size, options.guidance, options.fps or FPS
    )


def set_guidance(pipeline: Any, call: Call) -> None:
    """The scale of guidance and the length of texts, which the pipeline of diffusers does not take as arguments."""
    pipeline.guider = pipeline.guider.new(guidance_scale=call.guidance)
    pipeline.tokenizer_max_length = call.options["max_sequence_length"]


PIPELINE = Pipeline(prepare=set_guidance)
