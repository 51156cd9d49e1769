"""The record of a family of models that generate text, whatever their media."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from mmgrpo.config.plugins import locate
from mmgrpo.config.registry import parse
from mmgrpo.config.settings import Config, Sections
from mmgrpo.family import Arithmetic, Engines, Family, Library, Load, families, texts
from pipelines.families import SAMPLER, adapters, previewer, write_page, write_texts
from pipelines.options import check_trainable

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

    from mmgrpo.data.media import Skipped
    from mmgrpo.policies.token import TokenPolicy
    from mmgrpo.policies.tools import Tools
    from mmgrpo.runtime.memory import Folder, Pass
    from mmgrpo.types import Policy, Prompt

Check: TypeAlias = Callable[[Config, "Sequence[Prompt]", str], "tuple[Sequence[Prompt], list[Skipped]]"]


COVERED = {"image_text": {"qwen_vl", "smolvlm"}, "audio_text": {"qwen_audio", "image_text"}}
"""A generic family, and those whose models it reads too: some of ``image_text`` also hear."""


def language_family(
    name: str,
    about: str,
    modality: str,
    module: str,
    architectures: tuple[str, ...],
    sections: Sections,
    check_media: Check,
    *,
    load: Load | None = None,
    from_files: Callable[[Sequence[str]], list[Prompt]] | None = None,
    engines: Engines | None = SAMPLER,
    blocks: tuple[str, ...] = ("*DecoderLayer", "*EncoderLayer*", "*Block", "*VisionLayer"),
) -> Family:
    """The record of a family of models that generate text, whose ``module`` has its ``load``.

    ``check_media`` splits the prompts of a file into those whose media can be read, and the skipped ones.
    ``from_files`` reads prompts of a command line as files; None where they are texts. ``load`` makes the policy; None:
    one over tokens. What is called depends on the rows (lengths, media, shared prefixes), so none is ``in_step``.
    """
    return Family(
        name,
        about,
        modality,
        sections,
        load=load or partial(load_policy, name=name, module=module),
        decisions=tokens,
        arithmetic=arithmetic,
        read=partial(read, check_media),
        write_samples=write_texts,
        write_page=partial(write_page, write_texts),
        module=module,
        architectures=architectures,
        check=partial(check, name),
        refuse_model=partial(refuse_model, name, module, sections.model),
        has=has,
        readable=check_media,
        prompts=partial(given_files, check_media, from_files) if from_files else texts,
        blank=blank,
        displayed=previewer,
        blocks=blocks,
        count_pass=count_pass,
        engines=engines,
        elsewhere=adapters,
        library=library,
    )


def count_pass(config: Config, folder: Folder, targets: Sequence[str]) -> Pass:
    """By a pass of its decoder, or of encoder and decoder."""
    from pipelines.counting import count_pass

    return count_pass(config, folder, targets)


def library() -> Library:
    """transformers' own forward pass."""
    from pipelines.library import Transformers

    return Transformers()


def divide(body: str, network: nn.Module, mesh: DeviceMesh) -> None:
    """Let processes divide the tokens of the part of a network that reads embeddings."""
    from pipelines.sequences import divide_tokens

    divide_tokens(network, mesh, body=body)


def check(name: str, config: Config) -> None:
    """Raise ValueError for a missing path, and for options that contradict each other."""
    model = config.model
    check_trainable(model)
    if not model.path:
        raise ValueError(f"model.path: family '{name}' has no embedded model; name a folder or a hub id")
    if config.data.reference_in_group and config.data.group_size == 2:
        check_spread(config)
    if Path(model.path).is_dir():
        check_positions(config, model.path)


def refuse_model(name: str, module: str, options: type, config: Config, path: str) -> None:
    """FileNotFoundError or ValueError for what is no model of the family, before its weights are read."""
    from pipelines.pretrained import refuse_none

    refuse_none(path, options, module)
    refuse_other_architectures(name, path)


def refuse_other_architectures(name: str, path: str) -> None:
    """ValueError for a checkpoint that another family than ``name`` reads; it is named."""
    from pipelines.pretrained import architecture

    table, declared = families(), architecture(path)
    known = [other for other, family in table.items() if declared in family.architectures]
    # A family of one's own knows what it reads, and a generic one what those read whose models it covers. Of an
    # architecture that no family names, the loader decides.
    free = name not in table or COVERED.get(name, set()) & {*known}
    if known and name not in known and not free:
        known = [other for other in known if table[other].modality == table[name].modality] or known
        raise ValueError(
            f"model.path: '{path}' is a model of type '{declared}', which family '{name}' does not read; set "
            f"model.family to {' or '.join(known)}"
        )


def tokens(config: Config) -> str:
    """The kind of decisions."""
    return "tokens"


def has(config: Config) -> frozenset[str]:
    """What blocks may require of its rollouts."""
    sampling = config.sampling
    there = {
        "tree": sampling.tree,
        "subtrees": sampling.tree,
        "steps": sampling.states or sampling.tools or sampling.program,
        "turns": sampling.tools or sampling.program,
        "beam": sampling.search == "beam",
        "sampler": sampling.dtype or sampling.temperature_by_entropy or config.rollout.engine != "policy",
        "hidden_states": True,
        "cut": sampling.total_tokens,
    }
    return frozenset(name for name, known in there.items() if known)


def arithmetic(config: Config) -> Arithmetic:
    """Prompts x samples x tokens."""
    data, sampling = config.data, config.sampling
    longest = sampling.max_tokens * (sampling.turns if sampling.program else 1)
    samples = data.prompts_per_step * data.group_size
    scored = samples * config.optim.epochs
    lines = (
        f"{data.prompts_per_step} prompts x {data.group_size} samples = {samples:,} completions of at most "
        f"{longest:,} tokens, {samples * longest:,} in all",
        f"{samples * longest:,} tokens sampled, {scored:,} completions forward and backward",
    )
    totals = {"completions": samples, "tokens sampled at most": samples * longest, "completions to train": scored}
    return Arithmetic(lines, groups=data.prompts_per_step, totals=totals)


def load_policy(
    config: Config,
    device: str,
    prompts: Sequence[Prompt] = (),
    *,
    training: bool = True,
    weights: str = "",
    name: str,
    module: str,
) -> Policy:
    """Load the model as a policy over tokens."""
    return token_policy(load_model(config, device, training, weights, name, module), config, device)


def load_model(
    config: Config, device: str, training: bool, weights: str, name: str, module: str, **changed: Any
) -> Any:
    """The model of a configuration with some of its options ``changed``, and its output layer in the precision that it
    is to have."""
    from pipelines.training import Training, exact_head

    options, path = config.model, locate(config.model.path)
    refuse_other_architectures(name, path)
    check_positions(config, path)
    model = importlib.import_module(module).load(
        replace(options, path=path, **changed),
        Training.of(
            options, seed=config.seed, device=device, weights=weights, training=training, shard=config.distributed.shard
        ),
    )
    if options.head_dtype:
        exact_head(model.network)
        model.exact_head = True
    return model


def token_policy(model: Any, config: Config, device: str, tools: Tools | None = None) -> TokenPolicy:
    """The policy over the tokens of a loaded model."""
    from mmgrpo.advantages.estimate import AdvantageRecipe
    from mmgrpo.policies.token import TokenPolicy
    from mmgrpo.policies.token_passes import Memory
    from mmgrpo.policies.walks import walk_of

    sampling, program = config.sampling, None
    if sampling.program:
        from mmgrpo.policies.programs import Program

        program = Program.load(sampling.program, sampling.turns, sampling.trained_modules)
    walk = walk_of(
        search=sampling.search,
        reference_in_group=config.data.reference_in_group,
        contrast=sampling.contrast,
        variants=sampling.variants,
        states=sampling.states,
        tree=sampling.tree,
        tools=tools,
        temperature_by_entropy=sampling.temperature_by_entropy,
        program=program,
        divergence="divergence" in AdvantageRecipe.of(config.algorithm).fields,
    )
    memory = Memory(
        share_prefix=sampling.share_prefix,
        logits_chunk_size=sampling.logits_chunk_size,
        features_kept=sampling.features_kept,
        draw_batch_size=sampling.draw_batch_size,
    )
    return TokenPolicy(
        model,
        max_tokens=sampling.max_tokens,
        walk=walk,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        evaluation_temperature=sampling.evaluation_temperature,
        train_truncated=sampling.truncated == "train",
        sampling_dtype=sampling.dtype,
        memory=memory,
        device=device,
    )


def rows_of(config: Config, path: str) -> Sequence[Prompt]:
    """The prompts of a file, in memory or where it is."""
    from mmgrpo.data.columns import columns_for
    from pipelines.hub import load_prompts, load_stored

    load = load_stored if config.data.stream else load_prompts
    return load(locate(path), config.data.media_root, columns_for(path, config.data.columns))


def read(check_rows: Check, config: Config, path: str) -> tuple[Sequence[Prompt], list[Skipped]]:
    """The prompts of a file whose media can be read, and the skipped ones."""
    return check_rows(config, rows_of(config, path), path)


def given_files(
    check_rows: Check, from_files: Callable[[Sequence[str]], list[Prompt]], config: Config, arguments: Sequence[str]
) -> list[Prompt]:
    """Files of a command line as prompts, as far as they can be read."""
    return list(check_rows(config, from_files(arguments), "--prompts")[0])


def blank(prompts: Sequence[Prompt]) -> list[Prompt]:
    """All prompts with their images and clips replaced by grey ones; empty where no prompt has any."""
    from pipelines.vlm.blank import with_blank_media

    return with_blank_media(prompts)


def check_positions(config: Config, path: str) -> None:
    """ValueError for completions of more tokens than a decoder with learned positions has places for (Whisper), its
    prompt included: start, language, task and no time stamps, of English-only ones the first and the last."""
    from pipelines.pretrained import read_json

    declared = read_json(path, "config.json") or {}
    positions, longest = declared.get("max_target_positions"), config.sampling.max_tokens
    if not isinstance(positions, int) or longest <= positions - 4:
        return
    english = (read_json(path, "generation_config.json") or {}).get("is_multilingual") is False
    if longest > positions - (prefix := 2 if english else 4):
        raise ValueError(
            f"sampling.max_tokens: got {longest}, expected at most {positions - prefix}, the {positions} positions of "
            f"'{path}' less the {prefix} of its prompt; lower it"
        )


def check_spread(config: Config) -> None:
    """ValueError where groups of one sample and the reference answer would all be dropped for want of spread."""
    from mmgrpo.advantages.estimate import AdvantageRecipe

    selectors = [parse(text, "algorithm.select")[0] for text in config.algorithm.select]
    if "drop_zero_spread" in selectors and all(key.own for key in AdvantageRecipe.of(config.algorithm).keys):
        raise ValueError(
            "data.group_size: got 2 with data.reference_in_group and algorithm.select drop_zero_spread, expected at "
            "least 3: one sample and the reference answer have no spread, and nothing would be trained"
        )
