"""The record of a family of models that draw images with tokens: what commands know of it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from mmgrpo.config.plugins import locate
from mmgrpo.config.settings import Config, Sections
from mmgrpo.family import Arithmetic, Family
from pipelines.denoising import read_whole, refuse_other_architectures
from pipelines.families import adapters, previewer
from pipelines.options import check_trainable
from pipelines.visual.family import naming, read, write_page, write_samples
from pipelines.visual.options import ImageTokenSampling, VisualData, VisualEval
from pipelines.visual.written_prompts import add_plan, instruct, refuse_instruction

if TYPE_CHECKING:
    from mmgrpo.data.media import Skipped
    from mmgrpo.types import Policy, Prompt


def token_family(name: str, about: str, module: str, architectures: tuple[str, ...], options: type) -> Family:
    """The record of a family of such models, whose ``module`` has its ``load``, ``refuse_checkpoint``, which reads no
    weights, ``words_of``, which reads prompts before them, and ``Writer``, the loaded model as one of texts."""
    return Family(
        name,
        about,
        "visual",
        Sections(options, ImageTokenSampling, VisualData, VisualEval, ("scene_all",), outputs="Image"),
        load=partial(load, name, module, architectures),
        decisions=tokens,
        arithmetic=arithmetic,
        read=partial(read, partial(readable, module)),
        write_samples=write_samples,
        write_page=write_page,
        module=module,
        architectures=architectures,
        check=check,
        refuse_model=partial(refuse_model, name, module, architectures, options),
        has=has,
        readable=partial(readable, module),
        accept=accept,
        displayed=previewer,
        guidance="guidance",
        blocks=("*DecoderLayer",),
        elsewhere=adapters,
    )


def tokens(config: Config) -> str:
    """The kind of decisions."""
    return "tokens"


def has(config: Config) -> frozenset[str]:
    """What blocks may require of its rollouts."""
    return frozenset({"hidden_states", *(["sampler"] if config.sampling.dtype else [])})


def check(config: Config) -> None:
    """``check_path``; and ValueError for an instruction without the prompt."""
    check_path(config)
    refuse_instruction(config.sampling.instruction)


def check_path(config: Config) -> None:
    """Raise ValueError for a missing path, and for quantized weights without their package."""
    check_trainable(config.model)
    if not config.model.path:
        raise ValueError("model.path: got none, expected a folder or a hub id; name one")


def arithmetic(config: Config) -> Arithmetic:
    """Prompts x samples -> images and passes."""
    data, passes = config.data, 1 if config.model.guidance == 1 else 2
    samples = data.prompts_per_step * data.group_size
    trained = samples * config.optim.epochs
    rows = "a row" if passes == 1 else "two rows, with and without its words,"
    lines = (
        f"{data.prompts_per_step} prompts x {data.group_size} samples = {samples:,} images, each of as many decisions "
        "as its tokenizer has codes",
        f"{samples:,} images sampled, {trained:,} forward and backward, each {rows} of the network",
    )
    if longest := config.sampling.plan_tokens:
        lines = (*lines, f"each image after a plan in words of at most {longest} tokens")
    totals = {"images": samples, "rows to sample": samples * passes, "rows to train": trained * passes}
    return Arithmetic(lines, groups=data.prompts_per_step, totals=totals)


def refuse_model(
    name: str, module: str, architectures: tuple[str, ...], options: type, config: Config, path: str
) -> None:
    """``refuse_network``; the context must hold the plan too."""
    refuse_network(name, module, architectures, options, config, path, config.sampling.plan_tokens)


def refuse_network(
    name: str, module: str, architectures: tuple[str, ...], options: type, config: Config, path: str, *plan: int
) -> None:
    """FileNotFoundError or ValueError for what is no model of the family, or one that cannot draw, before its weights
    are read."""
    from pipelines.pretrained import refuse_none

    refuse_none(path, options, module)
    refuse_other_architectures(name, architectures, path)
    importlib.import_module(module).refuse_checkpoint(path, config.model.size, *plan)


def readable(
    module: str, config: Config, prompts: Sequence[Prompt], name: str
) -> tuple[Sequence[Prompt], list[Skipped]]:
    """The prompts that the model reads, and the others; ValueError for those with media."""
    from pipelines.conditions import refuse_media

    for prompt in prompts:
        refuse_media(prompt)
    check_words = word_check(module, locate(config.model.path))
    if check_words is None:
        return list(prompts), []
    with naming(f"{name}: "):
        return read_whole(check_words, config, prompts)


def accept(config: Config, policy: Policy, prompts: Sequence[Prompt]) -> tuple[list[Prompt], list[Skipped]]:
    """The prompts that the loaded model reads, and the skipped ones."""
    loaded: Any = policy
    if not config.sampling.plan_tokens:
        return read_whole(loaded.model.check, config, prompts)

    def check_both(prompt: Prompt) -> None:
        loaded.second.model.check(prompt)
        loaded.first.model.encode([loaded.ask(prompt)])

    return read_whole(check_both, config, prompts)


def word_check(module: str, path: str) -> Callable[[Prompt], Any] | None:
    """What raises ValueError for a prompt that a checkpoint cannot read; None for a checkpoint whose tokenizer cannot
    be read, which an error of its loading names."""
    try:
        return importlib.import_module(module).words_of(path).ids
    except Exception:  # a damaged checkpoint raises whatever its reader uses, and again when it is loaded
        return None


def load(
    name: str,
    module: str,
    architectures: tuple[str, ...],
    config: Config,
    device: str,
    prompts: Sequence[Prompt] = (),
    *,
    training: bool = True,
    weights: str = "",
) -> Policy:
    """Load the model as a policy over the codes of images, or over a plan in words and the codes of its image."""
    from mmgrpo.policies.image_tokens import ImageTokenPolicy
    from mmgrpo.policies.token_passes import Memory
    from pipelines.training import Training

    options, sampling, path = config.model, config.sampling, locate(config.model.path)
    refuse_other_architectures(name, architectures, path)
    of, writes = importlib.import_module(module), sampling.plan_tokens > 0
    model = of.load(
        replace(options, path=path),
        Training.of(
            options, seed=config.seed, device=device, weights=weights, training=training, shard=config.distributed.shard
        ),
        writes=writes,
    )
    drawing: Any = {
        "temperature": sampling.temperature,
        "evaluation_temperature": sampling.evaluation_temperature,
        "sampling_dtype": sampling.dtype,
        "memory": Memory(sampling.share_prefix, sampling.logits_chunk_size, draw_batch_size=sampling.draw_batch_size),
        "device": device,
    }
    images = ImageTokenPolicy(model, decode_batch_size=options.decode_batch_size, **drawing)
    if not writes:
        return images
    from mmgrpo.policies.joint import JointPolicy
    from mmgrpo.policies.token import TokenPolicy

    return JointPolicy(
        TokenPolicy(of.Writer(model, sampling.plan_tokens), max_tokens=sampling.plan_tokens, **drawing),
        images,
        count=0,
        ask=partial(instruct, sampling.instruction),
        rewrite=partial(add_plan, model),
    )
