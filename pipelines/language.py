"""The interface of commands for all families of models that generate text, whatever their media."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmgrpo.config.names import nearest
from mmgrpo.config.plugins import locate
from mmgrpo.config.registry import bind, parse
from mmgrpo.config.settings import Config, Sections
from mmgrpo.family import Arithmetic
from pipelines.factory import with_settings
from pipelines.options import check_trainable
from pipelines.tools import check_template, check_tools, schemas, tools_of, unread

if TYPE_CHECKING:
    from PIL.Image import Image as PilImage

    from mmgrpo.data.media import Skipped
    from mmgrpo.engines.engine import Engine
    from mmgrpo.evaluation import Shown
    from mmgrpo.report.audio_player import Sound
    from mmgrpo.trainer import Trainer
    from mmgrpo.types import Audio, Media, Policy, Prompt
    from pipelines.export import Elsewhere

Check = Callable[[Config, "Sequence[Prompt]", str], "tuple[Sequence[Prompt], list[Skipped]]"]


COVERED = {"image_text": {"qwen_vl", "smolvlm"}, "audio_text": {"qwen_audio", "image_text"}}
"""A generic family, and those whose models it reads too: some of ``image_text`` also hear."""


TRUTHS: Mapping[Any, Any] = {"true": True, "false": False}
"""Values of model.template as YAML writes them, on a command line too, where they are texts."""


@dataclass(frozen=True)
class LanguageFamily:
    """A family of models that generate text; ``module`` has its ``load`` and ``tiny``."""

    name: str
    about: str
    modality: str
    module: str
    architectures: tuple[str, ...]
    """The architectures that its checkpoints declare (``pipelines.pretrained.architecture``)."""
    sections: Sections
    check_media: Check
    """Splits the prompts of a file into those whose media can be read, and the skipped ones."""
    from_files: Callable[[Sequence[str]], list[Prompt]] | None = None
    """Reads prompts of a command line as files; None where they are texts."""
    own_policy: bool = False
    """True where ``module`` has the ``policy`` and ``arithmetic`` of a model whose decisions are no tokens."""
    rendered: bool = False
    """True where completions are tokens of speech, which a vocoder renders."""
    load_rows: Callable[[Config, str], Sequence[Prompt]] | None = None
    """Reads the rows of a file; None: as all files of rows are read."""
    blocks: tuple[str, ...] = ("*DecoderLayer", "*EncoderLayer*", "*Block", "*VisionLayer")
    """Class names of the parts of its networks that are sharded."""
    in_step: bool = False
    """What is called depends on the rows: lengths, media, shared prefixes."""
    refuse_parts: Callable[[Config], None] = lambda config: None
    """Raises for another model that the options name, where that is none."""
    check_showing: Callable[[str, Mapping[str, Any]], None] | None = None
    """Raises for a checkpoint that, with these arguments of its chat template, cannot be shown images that tools
    return; None where no checkpoint can."""

    @property
    def engines(self) -> tuple[str, ...]:
        """All of them, but vLLM not for recordings, and none where decisions are no tokens or are rendered."""
        if self.own_policy or self.rendered:
            return ()
        return ("sampler", "served", *(("vllm",) if self.modality == "vlm" else ()))

    def make_engine(self, config: Config, device: str) -> Engine:
        """Our own sampler, or vLLM."""
        from pipelines.engines import make_engine

        return make_engine(self, config, device)

    def draw_with_engine(
        self, config: Config, policy: Policy, device: str, processes: int, process: int, run: str = ""
    ) -> None:
        """Let the engine of ``config.rollout`` draw the completions of rollouts."""
        from pipelines.engines import draw_with_engine

        draw_with_engine(self, config, policy, device, processes, process, run)

    def end_engine(self, policy: Policy) -> None:
        """End the engine, where there is one."""
        from pipelines.engines import end_engine

        end_engine(policy)

    @property
    def elsewhere(self) -> Elsewhere:
        """Adapters as peft names them."""
        from pipelines.export import Elsewhere

        return Elsewhere(("peft",))

    def check(self, config: Config) -> None:
        """Raise ValueError for a missing path, an unknown contrast, and options that contradict each other, and
        ModuleNotFoundError for a ``data.video_reader`` that is not installed."""
        model, sampling = config.model, config.sampling
        if getattr(config.data, "video_reader", "av") != "av":
            from pipelines.vlm.frames import use_video_reader

            use_video_reader(config)
        check_trainable(model)
        if not model.path:
            raise ValueError(f"model.path: family '{self.name}' has no embedded model; name a folder or a hub id")
        check_walk(config)
        if "states" in {one.name for one in fields(sampling)}:
            check_tools(config, template_of(model))
            self.check_images(config, model.path if Path(model.path).is_dir() else "")
            if not sampling.tools:
                check_states(config)
        if getattr(config.data, "reference_in_group", False) and config.data.group_size == 2:
            check_spread(config)
        if Path(model.path).is_dir():
            check_positions(config, model.path)

    def check_images(self, config: Config, path: str) -> None:
        """ValueError for tools that say they return images, where the model in a folder cannot be shown any."""
        from mmgrpo.policies.tool_table import load_tools, returning_images

        tools = load_tools(config.sampling.tools)
        if not (names := returning_images(tools)):
            return
        if self.check_showing is None:
            raise ValueError(
                f"sampling.tools: '{names[0]}' returns images, which a model of family '{self.name}' cannot be shown; "
                "set model.family to qwen_vl, smolvlm or image_text"
            )
        if path:
            self.check_showing(path, {**template_of(config.model), "tools": schemas(tools)})

    def refuse_model(self, config: Config, path: str) -> None:
        """FileNotFoundError or ValueError for what is no model of the family, before its weights are read."""
        from pipelines.pretrained import refuse_none

        refuse_none(self, path)
        self.refuse_other_architectures(path)
        self.refuse_parts(config)

    def refuse_other_architectures(self, path: str) -> None:
        """ValueError for a checkpoint that another family reads, which it names."""
        from mmgrpo.family import families
        from pipelines.pretrained import architecture

        table, declared = families(), architecture(path)
        known = [name for name, family in table.items() if declared in family.architectures]
        # A family of one's own knows what it reads, and a generic one what those read whose models it covers. Of an
        # architecture that no family names, the loader decides.
        free = self.name not in table or COVERED.get(self.name, set()) & {*known}
        if known and self.name not in known and not free:
            known = [name for name in known if table[name].modality == self.modality] or known
            raise ValueError(
                f"model.path: '{path}' is a model of type '{declared}', which family '{self.name}' does not read; set "
                f"model.family to {' or '.join(known)}"
            )

    def decisions(self, config: Config) -> str:
        """Tokens."""
        return "tokens"

    def has(self, config: Config) -> frozenset[str]:
        """What blocks may require of its rollouts."""
        given = vars(config.sampling)
        there = {
            "tree": given.get("tree"),
            "subtrees": given.get("tree"),
            "steps": given.get("states") or given.get("tools"),
            "turns": given.get("tools"),
            "beam": given.get("search") == "beam",
            "sampler": given.get("dtype") or config.rollout.engine != "policy",
        }
        return frozenset(name for name, known in there.items() if known)

    def arithmetic(self, config: Config) -> Arithmetic:
        """Prompts x samples x tokens."""
        if self.own_policy:
            return importlib.import_module(self.module).arithmetic(config)
        data, tokens = config.data, config.sampling.max_tokens
        samples = data.prompts_per_step * data.group_size
        scored = samples * config.optim.epochs
        lines = [
            f"{data.prompts_per_step} prompts x {data.group_size} samples = {samples:,} completions of at most "
            f"{tokens:,} tokens, {samples * tokens:,} in all",
            f"{samples * tokens:,} tokens sampled, {scored:,} completions forward and backward",
        ]
        if contrast := getattr(config.sampling, "contrast", ""):
            lines.insert(1, f"and those of changed prompts ({contrast}), scored but not trained on")
        if tools := getattr(config.sampling, "tools", ()):
            lines.insert(
                1, f"in at most {config.sampling.turns} turns each, which call {', '.join(tools)}{unread(config)}"
            )
        totals = {"completions": samples, "tokens sampled at most": samples * tokens, "completions to train": scored}
        return Arithmetic(tuple(lines), groups=data.prompts_per_step, totals=totals)

    def policy(
        self, config: Config, device: str, prompts: Sequence[Prompt] = (), *, training: bool = True, weights: str = ""
    ) -> Policy:
        """Load the model as a policy over tokens."""
        from mmgrpo.advantages.estimate import AdvantageRecipe
        from mmgrpo.policies.token import TokenPolicy
        from mmgrpo.policies.token_passes import Memory
        from mmgrpo.policies.tool_table import load_tools
        from mmgrpo.policies.walks import walk_of
        from pipelines.training import Training, exact_head
        from pipelines.vlm.frames import use_video_reader

        options, sampling = config.model, config.sampling
        use_video_reader(config)
        self.refuse_other_architectures(locate(options.path))
        check_positions(config, locate(options.path))
        given: dict[str, Any] = {"path": locate(options.path)}
        if "template" in {f.name for f in fields(options)}:
            given["template"] = template_of(options)
        if tools := getattr(sampling, "tools", ()):
            given["template"]["tools"] = schemas(load_tools(tools))
            check_template(given["path"], given["template"])
            self.check_images(config, given["path"])
        model = importlib.import_module(self.module).load(
            replace(options, **given),
            Training.of(
                options,
                seed=config.seed,
                device=device,
                weights=weights,
                training=training,
                shard=config.distributed.shard,
            ),
        )
        if self.own_policy:
            return with_settings(importlib.import_module(self.module).policy(model, config, device), self, config)
        if getattr(options, "head_dtype", ""):
            exact_head(model.network)
            model.exact_head = True
        # Options that only some families offer.
        given = vars(sampling)
        walk = walk_of(
            search=sampling.search,
            reference_in_group=config.data.reference_in_group,
            tools=tools_of(config, model),
            divergence="divergence" in AdvantageRecipe.of(config.algorithm).fields,
            **{name: given[name] for name in ("contrast", "variants", "states", "tree") if name in given},
        )
        memory = Memory(
            share_prefix=sampling.share_prefix,
            logits_chunk_size=sampling.logits_chunk_size,
            features_kept=sampling.features_kept,
            draw_batch_size=sampling.draw_batch_size,
        )
        policy: Any = TokenPolicy(
            model,
            max_tokens=sampling.max_tokens,
            walk=walk,
            temperature=sampling.temperature,
            top_p=given.get("top_p", 1.0),
            evaluation_temperature=sampling.evaluation_temperature,
            train_truncated=sampling.truncated == "train",
            sampling_dtype=given.get("dtype", ""),
            memory=memory,
            device=device,
        )
        if self.rendered:
            from mmgrpo.policies.rendered import RenderedTokenPolicy

            policy = RenderedTokenPolicy(policy, model.render, model.reading)
        return with_settings(policy, self, config)

    def read(self, config: Config, path: str) -> tuple[Sequence[Prompt], list[Skipped]]:
        """The prompts of a file whose media can be read, and the skipped ones."""
        from mmgrpo.data.columns import columns_for
        from pipelines.hub import load_prompts, load_stored

        if self.load_rows is not None:
            return self.readable(config, self.load_rows(config, path), path)
        load = load_stored if config.data.stream else load_prompts
        prompts = load(locate(path), config.data.media_root, columns_for(path, config.data.columns))
        return self.readable(config, prompts, path)

    def readable(self, config: Config, prompts: Sequence[Prompt], name: str) -> tuple[Sequence[Prompt], list[Skipped]]:
        """The prompts whose media can be read, and the skipped ones."""
        return self.check_media(config, self._worded(config, prompts), name)

    def _worded(self, config: Config, prompts: Sequence[Prompt]) -> Sequence[Prompt]:
        """The prompts with ``data.system`` and ``data.template``, in files if they are there."""
        system, template = getattr(config.data, "system", ""), getattr(config.data, "template", "")
        if not (system or template):
            return prompts
        from mmgrpo.data.messages import worded
        from mmgrpo.data.streaming import StoredPrompts

        change = partial(worded, system=system, template=template)
        return prompts.changed(change) if isinstance(prompts, StoredPrompts) else [change(one) for one in prompts]

    def accept(self, config: Config, policy: Policy, prompts: Sequence[Prompt]) -> tuple[list[Prompt], list[Skipped]]:
        """With ``data.too_long=filter`` the prompts of at most ``model.max_prompt_tokens`` tokens, and the skipped."""
        limit = getattr(config.model, "max_prompt_tokens", 0)
        if not limit or config.data.too_long != "filter":
            return list(prompts), []
        from pipelines.readable import filter_by_length

        return filter_by_length(prompts, policy.model.prompt_length, limit)  # type: ignore[attr-defined]

    def prompts(self, config: Config, arguments: Sequence[str]) -> list[Prompt]:
        """Texts of a command line, or files for a model that takes recordings."""
        from mmgrpo.types import Prompt

        if self.from_files is not None:
            return list(self.readable(config, self.from_files(arguments), "--prompts")[0])
        return list(self._worded(config, [Prompt(text, id=f"prompt-{n}") for n, text in enumerate(arguments)]))

    def blank(self, prompts: Sequence[Prompt]) -> list[Prompt]:
        """All prompts with their images and clips replaced by grey ones; empty where no prompt has any."""
        from pipelines.vlm.blank import with_blank_media

        return with_blank_media(prompts)

    def write_samples(self, stem: Path, shown: Shown) -> None:
        """Completions, or the recordings that they became, with the media of their prompts, ``<stem>.jsonl``."""
        from pipelines.samples import write_speech, write_texts

        (write_speech if self.rendered else write_texts)(stem, shown)

    def displayed(self, medium: Media | Audio) -> PilImage | Sound:
        """A thumbnail, a strip of frames, or a small audio file."""
        from pipelines.samples import displayed

        return displayed(medium)

    def write_page(self, folder: Path, sets: Mapping[str, Shown], samples: int, columns: int) -> Path:
        """``completions.html``, and its content as JSON lines."""
        from pipelines.samples import write_completions_page

        return write_completions_page(folder, sets, samples, self.write_samples)

    def summary(self, config: Config, trainer: Trainer) -> dict[str, Any]:
        """``blind``: held-out rewards after training with all images and clips blank."""
        if not getattr(config.eval, "blind", False) or not (blank := self.blank(trainer.evaluation.prompts)):
            return {}
        return {"blind": trainer.measure("blind", blank).intervals()}


def template_of(options: Any) -> dict[str, Any]:
    """The arguments of the chat template."""
    return {name: TRUTHS.get(value, value) for name, value in options.template.items()}


def check_positions(config: Config, path: str) -> None:
    """ValueError for completions of more tokens than a decoder with learned positions has places for (Whisper), its
    prompt included: start, language, task and no time stamps, of English-only ones the first and the last."""
    from pipelines.pretrained import read_json

    declared = read_json(path, "config.json") or {}
    positions, tokens = declared.get("max_target_positions"), getattr(config.sampling, "max_tokens", 0)
    if not isinstance(positions, int) or tokens <= positions - 4:
        return
    english = (read_json(path, "generation_config.json") or {}).get("is_multilingual") is False
    if tokens > positions - (prefix := 2 if english else 4):
        raise ValueError(
            f"sampling.max_tokens: got {tokens}, expected at most {positions - prefix}, the {positions} positions of "
            f"'{path}' less the {prefix} of its prompt; lower it"
        )


def check_states(config: Config) -> None:
    """ValueError for judged states by an unknown reward."""
    from mmgrpo.policies.text_states import STATES

    if not (text := config.sampling.states):
        return
    by = bind(text, STATES, "sampling.states")({}).by
    names = [str(more.get("log_as", name.split(":")[-1])) for name, more in map(parse, config.rewards)]
    if by and by not in names:
        raise ValueError(
            f"sampling.states: unknown reward '{by}'.{nearest(by, names)} Add it to rewards, with weight=0"
        )


def check_walk(config: Config) -> None:
    """ValueError for unknown blocks of what walks, and for a tree that does not fit the size of groups, or the length
    of completions."""
    from mmgrpo.policies.walks import parts_of

    sampling = vars(config.sampling)
    asked = {name: sampling.get(name) for name in ("tree", "variants", "contrast", "states")}
    for part in parts_of(asked):
        part.check_sizes(config.data.group_size, sampling.get("max_tokens", 0))


def check_spread(config: Config) -> None:
    """ValueError where groups of one sample and the reference answer would all be dropped for want of spread."""
    from mmgrpo.advantages.estimate import AdvantageRecipe

    selectors = [parse(text, "algorithm.select")[0] for text in config.algorithm.select]
    if "drop_zero_spread" in selectors and all(key.own for key in AdvantageRecipe.of(config.algorithm).keys):
        raise ValueError(
            "data.group_size: got 2 with data.reference_in_group and algorithm.select drop_zero_spread, expected at "
            "least 3: one sample and the reference answer have no spread, and nothing would be trained"
        )
