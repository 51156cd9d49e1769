"""The families of vision-language models, and what all families share that are asked in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmgrpo.config.plugins import locate
from mmgrpo.config.registry import bind, parse, refuse_names
from mmgrpo.config.settings import Config, Sections
from mmgrpo.family import Arithmetic, Family, texts
from pipelines import language
from pipelines.families import WITH_VLLM
from pipelines.language import language_family, load_model, refuse_other_architectures, rows_of, token_policy
from pipelines.tools import check_template, check_tools, schemas, tools_of, unread
from pipelines.vlm.options import OmniOptions, QwenVlOptions, SmolVlmOptions, VlmData, VlmEval, VlmSampling

if TYPE_CHECKING:
    from mmgrpo.data.media import Skipped
    from mmgrpo.trainer import Trainer
    from mmgrpo.types import Policy, Prompt

CheckShowing = Callable[[str, Mapping[str, Any]], None]
"""Raises for a checkpoint that, with these arguments of its chat template, cannot be shown images."""

TRUTHS: Mapping[Any, Any] = {"true": True, "false": False}
"""Values of model.template as YAML writes them, on a command line too, where they are texts."""


def vlm_family(
    name: str,
    about: str,
    module: str,
    architectures: tuple[str, ...],
    options: type,
    check_showing: CheckShowing | None,
    modality: str = "vlm",
) -> Family:
    """The record of a family that is asked in words, about images and videos where its models read these.
    ``check_showing`` raises for a checkpoint that cannot be shown images that tools return; None where none can."""
    sections = Sections(
        model=options,
        sampling=VlmSampling,
        data=VlmData,
        eval=VlmEval,
        rewards=("task", "format(weight=0.5)"),
        outputs="Text",
    )
    return replace(
        language_family(name, about, modality, module, architectures, sections, check_media, engines=WITH_VLLM),
        load=partial(load, name=name, module=module, check_showing=check_showing),
        check=partial(check, name, check_showing),
        arithmetic=arithmetic,
        read=read,
        readable=readable,
        accept=accept,
        prompts=prompts,
        summary=summary,
    )


def check_media(config: Config, prompts: Sequence[Prompt], path: str) -> tuple[Sequence[Prompt], list[Skipped]]:
    """The prompts whose media can be read, and the skipped ones; an error if these are too many."""
    if not any(prompt.media for prompt in prompts):
        return prompts, []
    from mmgrpo.data.images import IMAGE_CACHE
    from pipelines.containers import use_video_reader
    from pipelines.readable import check_skip_limit, filter_readable
    from pipelines.vlm.media import measure

    use_video_reader(config)
    IMAGE_CACHE.limit = config.data.image_cache << 20
    measured = partial(measure, max_seconds=config.model.seconds)
    usable, skipped = filter_readable(prompts, measured, title=f"media of {path}")
    check_skip_limit(skipped, len(prompts), config.data.skip_limit, path, "prompts have media that cannot be read")
    return usable, skipped


def check(name: str, check_showing: CheckShowing | None, config: Config) -> None:
    """Raise ValueError for a missing path, an unknown contrast, and options that contradict each other, and
    ModuleNotFoundError for a ``data.video_reader`` that is not installed."""
    model, sampling = config.model, config.sampling
    if config.data.video_reader != "av":
        from pipelines.containers import use_video_reader

        use_video_reader(config)
    language.check(name, config)
    check_walk(config)
    check_tools(config, template_of(model))
    check_images(name, check_showing, config, model.path if Path(model.path).is_dir() else "")
    if not sampling.tools:
        check_states(config)


def check_images(name: str, check_showing: CheckShowing | None, config: Config, path: str) -> None:
    """ValueError for tools that say they return images, where the model in a folder cannot be shown any."""
    from mmgrpo.policies.tool_table import load_tools, returning_images

    tools = load_tools(config.sampling.tools)
    if not (names := returning_images(tools)):
        return
    if check_showing is None:
        raise ValueError(
            f"sampling.tools: '{names[0]}' returns images, which a model of family '{name}' cannot be shown; set "
            "model.family to qwen_vl, smolvlm or image_text"
        )
    if path:
        check_showing(path, {**template_of(config.model), "tools": schemas(tools)})


def check_states(config: Config) -> None:
    """ValueError for states that are judged by an unknown reward, or completed by an unknown network."""
    from mmgrpo.policies.text_states import STATES
    from mmgrpo.runtime.networks import REFERENCE_NETWORK, name_of
    from mmgrpo.update import LossRecipe

    if not (text := config.sampling.states):
        return
    networks = {REFERENCE_NETWORK, *map(name_of, LossRecipe.read(config.algorithm).networks)}
    names = [str(more.get("log_as", name.split(":")[-1])) for name, more in map(parse, config.rewards)]
    refuse_names("sampling.states", bind(text, STATES, "sampling.states"), dict.fromkeys(names, 0.0), networks)


def check_walk(config: Config) -> None:
    """ValueError for unknown blocks of what walks, and for a tree that does not fit the size of groups, or the length
    of completions."""
    from mmgrpo.policies.walks import parts_of

    sampling = config.sampling
    walks = {name: getattr(sampling, name) for name in ("tree", "variants", "contrast", "states")}
    for part in parts_of(walks):
        part.check_sizes(config.data.group_size, sampling.max_tokens)


def template_of(options: Any) -> dict[str, Any]:
    """The arguments of the chat template."""
    return {name: TRUTHS.get(value, value) for name, value in options.template.items()}


def load(
    config: Config,
    device: str,
    prompts: Sequence[Prompt] = (),
    *,
    training: bool = True,
    weights: str = "",
    name: str,
    module: str,
    check_showing: CheckShowing | None,
) -> Policy:
    """Load the model as a policy over tokens, which may call tools."""
    from mmgrpo.policies.tool_table import load_tools
    from pipelines.containers import use_video_reader

    use_video_reader(config)
    template, path = template_of(config.model), locate(config.model.path)
    if tools := config.sampling.tools:
        refuse_other_architectures(name, path)  # before its template is read
        template["tools"] = schemas(load_tools(tools))
        check_template(path, template)
        check_images(name, check_showing, config, path)
    model = load_model(config, device, training, weights, name, module, template=template)
    return token_policy(model, config, device, tools_of(config, model))


def arithmetic(config: Config) -> Arithmetic:
    """Prompts x samples x tokens, with the turns of tools and the samples of changed prompts."""
    cost, sampling = language.arithmetic(config), config.sampling
    further = []
    if tools := sampling.tools:
        further.append(f"in at most {sampling.turns} turns each, which call {', '.join(tools)}{unread(config)}")
    if sampling.program:
        further.append(f"each of at most {sampling.turns} calls of {sampling.program}")
    if sampling.contrast:
        further.append(f"and those of changed prompts ({sampling.contrast}), scored but not trained on")
    return replace(cost, lines=(cost.lines[0], *further, *cost.lines[1:]))


def with_comparisons(config: Config, prompts: Sequence[Prompt]) -> Sequence[Prompt]:
    """The prompts, or with ``data.comparison`` the questions about their answers, in files if they are there."""
    if not config.data.comparison:
        return prompts
    from mmgrpo.config.registry import bind
    from mmgrpo.data.comparisons import COMPARISONS
    from mmgrpo.data.streaming import StoredPrompts

    change = bind(config.data.comparison, COMPARISONS, "data.comparison")({})
    if not isinstance(prompts, StoredPrompts):
        return [change(prompt) for prompt in prompts]
    for prompt in prompts:  # a row that cannot be compared is refused before the run
        change(prompt)
    return prompts.map(change)


def with_wording(config: Config, prompts: Sequence[Prompt]) -> Sequence[Prompt]:
    """The prompts with ``data.system`` and ``data.template``, in files if they are there."""
    if not (config.data.system or config.data.template):
        return prompts
    from mmgrpo.data.messages import apply_wording
    from mmgrpo.data.streaming import StoredPrompts

    change = partial(apply_wording, system=config.data.system, template=config.data.template)
    return prompts.map(change) if isinstance(prompts, StoredPrompts) else [change(prompt) for prompt in prompts]


def read(config: Config, path: str) -> tuple[Sequence[Prompt], list[Skipped]]:
    """The prompts of a file whose media can be read, and the skipped ones."""
    return readable(config, rows_of(config, path), path)


def readable(config: Config, prompts: Sequence[Prompt], name: str) -> tuple[Sequence[Prompt], list[Skipped]]:
    """The prompts whose media can be read, and the skipped ones."""
    return check_media(config, with_wording(config, with_comparisons(config, prompts)), name)


def accept(config: Config, policy: Policy, prompts: Sequence[Prompt]) -> tuple[list[Prompt], list[Skipped]]:
    """With ``data.too_long=filter`` the prompts of at most ``model.max_prompt_tokens`` tokens, and the skipped."""
    limit = config.model.max_prompt_tokens
    if not limit or config.data.too_long != "filter":
        return list(prompts), []
    from pipelines.readable import filter_by_length

    return filter_by_length(prompts, policy.model.prompt_length, limit)  # type: ignore[attr-defined]


def prompts(config: Config, arguments: Sequence[str]) -> list[Prompt]:
    """Texts of a command line."""
    return list(with_wording(config, texts(config, arguments)))


def summary(config: Config, trainer: Trainer) -> dict[str, Any]:
    """``blind``: held-out rewards after training with all images and clips blank."""
    if not config.eval.blind or not (blank := language.blank(trainer.evaluation.prompts)):
        return {}
    return {"blind": trainer.measure("blind", blank).intervals()}


def every_checkpoint(path: str, template: Mapping[str, Any]) -> None:
    """Every checkpoint can be shown images that tools return."""


def some_checkpoints(path: str, template: Mapping[str, Any]) -> None:
    """ValueError for a checkpoint that cannot be shown images that tools return."""
    from pipelines.vlm.image_text import check_showing

    check_showing(path, template)


FAMILIES: Mapping[str, Family] = {
    family.name: family
    for family in (
        replace(
            vlm_family(
                "qwen_vl",
                "Qwen2.5-VL: images, videos and text",
                "pipelines.vlm.qwen_vl",
                ("qwen2_5_vl",),
                QwenVlOptions,
                every_checkpoint,
            ),
            divide=partial(language.divide, "model.language_model"),
        ),
        vlm_family(
            "smolvlm",
            "SmolVLM, SmolVLM2 and Idefics3",
            "pipelines.vlm.smolvlm",
            ("smolvlm", "idefics3"),
            SmolVlmOptions,
            every_checkpoint,
        ),
        vlm_family(
            "qwen_omni",
            "Qwen2.5-Omni (its thinker): images, videos, sounds and text",
            "pipelines.vlm.qwen_omni",
            ("qwen2_5_omni", "qwen2_5_omni_thinker"),
            OmniOptions,
            None,
        ),
        vlm_family(
            "image_text",
            "any other image-text-to-text model of transformers: Qwen2-VL, Qwen3-VL, InternVL, LLaVA, Gemma 3, ...",
            "pipelines.vlm.image_text",
            (
                *("qwen2_vl", "qwen3_vl", "internvl", "llava", "llava_next", "llava_onevision", "gemma3", "gemma4"),
                *("mistral3", "aya_vision", "paligemma", "idefics2", "mllama", "glm4v", "ovis2", "lfm2_vl", "kimi_k25"),
            ),
            SmolVlmOptions,
            some_checkpoints,
        ),
    )
}
"""Name to family."""
