"""The families of vision-language models and of plain language models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mmgrpo.config.settings import Config, Sections
from pipelines.language import LanguageFamily
from pipelines.vlm.options import QwenVlOptions, SmolVlmOptions, TextOptions, VlmData, VlmEval, VlmSampling

if TYPE_CHECKING:
    from mmgrpo.data.media import Skipped
    from mmgrpo.types import Prompt


def check_media(config: Config, prompts: Sequence[Prompt], path: str) -> tuple[Sequence[Prompt], list[Skipped]]:
    """The prompts whose media can be read, and the skipped ones; an error if these are too many."""
    if not any(prompt.media for prompt in prompts):
        return prompts, []
    from mmgrpo.data.images import IMAGE_CACHE
    from pipelines.readable import check_skip_limit, filter_readable
    from pipelines.vlm.frames import use_video_reader
    from pipelines.vlm.media import measure

    use_video_reader(config)
    IMAGE_CACHE.limit = config.data.image_cache << 20
    usable, skipped = filter_readable(prompts, measure, title=f"media of {path}")
    check_skip_limit(skipped, len(prompts), config.data.skip_limit, path, "prompts have media that cannot be read")
    return usable, skipped


def _every_checkpoint(path: str, template: Mapping[str, Any]) -> None:
    """Every checkpoint can be shown images that tools return."""


def _some_checkpoints(path: str, template: Mapping[str, Any]) -> None:
    from pipelines.vlm.image_text import check_showing

    check_showing(path, template)


def _family(
    name: str,
    about: str,
    architectures: tuple[str, ...],
    options: type,
    check_showing: Callable[[str, Mapping[str, Any]], None] | None,
) -> LanguageFamily:
    sections = Sections(
        model=options,
        sampling=VlmSampling,
        data=VlmData,
        eval=VlmEval,
        rewards=("task", "format(weight=0.5)"),
        outputs="Text",
    )
    module = f"pipelines.vlm.{name}"
    return LanguageFamily(name, about, "vlm", module, architectures, sections, check_media, check_showing=check_showing)


FAMILIES: Mapping[str, LanguageFamily] = {
    family.name: family
    for family in (
        _family("qwen_vl", "Qwen2.5-VL: images, videos and text", ("qwen2_5_vl",), QwenVlOptions, _every_checkpoint),
        _family(
            "smolvlm", "SmolVLM, SmolVLM2 and Idefics3", ("smolvlm", "idefics3"), SmolVlmOptions, _every_checkpoint
        ),
        _family(
            "image_text",
            "any other image-text-to-text model of transformers: Qwen2-VL, Qwen3-VL, InternVL, LLaVA, Gemma 3, ...",
            (
                *("qwen2_vl", "qwen3_vl", "internvl", "llava", "llava_next", "llava_onevision", "gemma3", "gemma4"),
                *("mistral3", "aya_vision", "paligemma", "idefics2", "mllama", "glm4v", "ovis2", "lfm2_vl", "kimi_k25"),
            ),
            SmolVlmOptions,
            _some_checkpoints,
        ),
        _family(
            "causal_lm",
            "plain language models of any architecture that transformers knows",
            ("qwen2", "qwen3", "llama", "mistral", "gemma2", "gemma3_text", "phi3", "smollm3", "olmo2", "gpt2"),
            TextOptions,
            None,
        ),
    )
}
"""Name to family."""
