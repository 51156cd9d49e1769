"""A rewriter of prompts and an image generator as one model: DualGRPO (arXiv:2601.10332), Parrot (2401.05675).

A language model writes ``sampling.texts`` texts for each prompt, and a generator draws the group's images by them. Each
of the two is a recipe, or a file of one, of which the sections model and sampling are taken; ``algorithm.parts`` has
the lines of the parts, ``text`` and ``image``. What is not in ``model.trained`` is frozen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from mmgrpo.config.names import nearest
from mmgrpo.config.parts import PartLines, read_parts
from mmgrpo.config.plugins import PYPI, locate, recipe
from mmgrpo.config.presets import CATALOGUE
from mmgrpo.config.ranges import ANY_TEXT, COUNT, DEVICE, LONG_TEXT, one_of
from mmgrpo.config.reading import build, load_yaml, refuse_preset, with_preset
from mmgrpo.config.settings import Config, Sections, config_class
from mmgrpo.family import Arithmetic, Family, family
from pipelines.families import previewer
from pipelines.visual.family import write_page, write_samples
from pipelines.visual.options import VisualData, VisualEval
from pipelines.visual.written_prompts import LIMIT, add_plan, instruct, refuse_instruction, rewrite

if TYPE_CHECKING:
    from mmgrpo.data.media import Skipped
    from mmgrpo.policies.joint import JointPolicy
    from mmgrpo.types import Policy, Prompt

TEXT, IMAGE = "text", "image"
SETTINGS = {TEXT: "writer", IMAGE: "generator"}
"""The parts and the settings of the section model that name their recipes."""
MAKES = {TEXT: "Text", IMAGE: "Image"}


@dataclass
class RewriterOptions:
    """The two models, and which of them are trained."""

    family: Annotated[str, ANY_TEXT] = "rewriter"
    """Model family; 'mmgrpo families' lists those of one model."""
    writer: Annotated[str, ANY_TEXT] = "text/demo"
    """Recipe, or YAML file, of the language model that rewrites prompts."""
    generator: Annotated[str, ANY_TEXT] = "visual/demo"
    """Recipe, or YAML file, of the model that draws images by the rewritten prompts."""
    trained: Annotated[list[str], one_of(TEXT, IMAGE)] = field(default_factory=lambda: [TEXT, IMAGE])
    """Which are trained: text, image or both; the other is frozen."""
    device: Annotated[str, DEVICE] = "auto"
    """auto (accelerate's choice), cpu, cuda, one GPU of several (cuda:1), mps, xpu or npu."""
    path: ClassVar[str] = ""
    """The parts have one each."""


@dataclass
class RewriterSampling:
    """Sampling of rewritten prompts; how each part samples stands in its recipe."""

    texts: Annotated[int, COUNT] = 2
    """Rewritten prompts of each prompt; each is drawn data.group_size / texts times."""
    instruction: Annotated[str, LONG_TEXT] = (
        "Rewrite this prompt of an image generator so that its image is better. Answer with the new prompt alone.\n"
        "{prompt}"
    )
    """What the language model is asked; {prompt} stands for the prompt."""
    keep_prompt: bool = False
    """Whether the generator reads the prompt and then the text, as a thought before the image (UniGRPO), or the text
    alone."""


def lines_of(config: Config, name: str) -> PartLines:
    """What ``algorithm.parts`` states of a part."""
    return next((part for part in read_parts(config.algorithm.parts) if part.name == name), PartLines(name))


def part_of(config: Config, name: str) -> tuple[Family, Config]:
    """The family of a part, and its configuration: the sections model and sampling of its recipe with the preset that
    ``algorithm.parts`` names, and its own share of a round."""
    given = getattr(config.model, SETTINGS[name])
    where = f"model.{SETTINGS[name]}: {given}"
    section = _section(given)
    if not isinstance(section.get("model"), dict) or "family" not in section["model"]:
        raise ValueError(f"{where}: names no model.family, expected a recipe of one model")
    owner, lines = family(str(section["model"]["family"])), lines_of(config, name)
    if owner.sections.outputs != MAKES[name]:
        raise ValueError(f"{where}: family '{owner.name}' makes {owner.sections.outputs}, expected {MAKES[name]}")
    whole, recipe_preset = config.algorithm.preset, dict(section.get("algorithm") or {}).get("preset", "")
    preset = lines.preset or str(whole if of_both(whole) or not recipe_preset else recipe_preset)
    taken = {part: section[part] for part in ("model", "sampling") if part in section}
    kind = config_class(owner.sections)
    made = build(kind, with_preset(kind, {**taken, "algorithm": {"preset": preset}}, where), where)
    prompts, texts = config.data.prompts_per_step, config.sampling.texts
    size = (prompts, texts) if name == TEXT else (prompts * texts, config.data.group_size // texts)
    return owner, replace(
        made,
        model=replace(made.model, device=config.model.device),
        data=replace(made.data, prompts_per_step=size[0], group_size=size[1]),
        algorithm=replace(config.algorithm, parts=[], preset=preset, **lines.lines),
        optim=config.optim,
        seed=config.seed,
    )


def of_both(preset: str) -> bool:
    """Whether a preset is for rows of texts and images, so each part takes of it what it has."""
    return preset in CATALOGUE and CATALOGUE[preset].policies == "joint"


@cache
def _section(name: str) -> dict[str, Any]:
    return load_yaml(name if Path(name).suffix in (".yaml", ".yml") else recipe(name))


def check(config: Config) -> None:
    """Raise ValueError for parts that do not fit together, and for settings of one that this family cannot take; reads
    no weights."""
    sampling, size = config.sampling, config.data.group_size
    if not config.model.trained:
        raise ValueError(f"model.trained: got none, expected {TEXT}, {IMAGE} or both")
    if size % sampling.texts:
        raise ValueError(f"data.group_size: got {size}, expected a multiple of sampling.texts={sampling.texts}")
    refuse_instruction(sampling.instruction)
    stated = [part.name for part in read_parts(config.algorithm.parts)]
    if unknown := [name for name in stated if name not in config.model.trained]:
        raise ValueError(
            f"algorithm.parts: got '{unknown[0]}', expected what is trained.{nearest(unknown[0], config.model.trained)}"
        )
    if left := [name for name in config.model.trained if name not in stated]:
        if stated or len(config.model.trained) == 2:
            raise ValueError(f"algorithm.parts: no line of '{left[0]}'; add it, or take it out of model.trained")
    for name, setting in SETTINGS.items():
        owner, made = part_of(config, name)
        if unfit := owner.has(made) & {"steps", "turns", "beam", "sampler"} if owner.has else frozenset():
            raise ValueError(f"model.{setting}: its sampling has {', '.join(sorted(unfit))}, which parts cannot have")
        if name == TEXT and made.sampling.tree:
            raise ValueError(f"model.writer: got sampling.tree '{made.sampling.tree}', expected none")
        if getattr(made.model, "forget_encoders", False):
            raise ValueError("model.generator: got model.forget_encoders, but its prompts are not known before")
        owner.check(made)
        if name in config.model.trained and not of_both(made.algorithm.preset):
            refuse_preset(made.algorithm.preset, owner.decisions(made))
        if not made.model.path.startswith(PYPI) and Path(path := locate(made.model.path)).is_dir():
            owner.refuse_model(made, path)


def decisions(config: Config) -> str:
    """The kind of the trained part's decisions, or ``joint``."""
    kinds = [owner.decisions(made) for owner, made in (part_of(config, name) for name in config.model.trained)]
    return kinds[0] if len(kinds) == 1 else "joint"


def arithmetic(config: Config) -> Arithmetic:
    """Prompts x texts x images, and what each part computes."""
    data, texts = config.data, config.sampling.texts
    head = f"{data.prompts_per_step} prompts x {texts} texts x {data.group_size // texts} images"
    lines, totals = [f"{head} = {data.prompts_per_step * data.group_size:,} images"], dict[str, int]()
    for name in SETTINGS:
        owner, made = part_of(config, name)
        cost = owner.arithmetic(made)
        frozen = "" if name in config.model.trained else " (frozen: only sampled)"
        lines += [f"{name}: {line}{frozen}" for line in cost.lines]
        totals |= {
            f"{what} ({name})": count for what, count in cost.totals.items() if not frozen or "train" not in what
        }
    return Arithmetic(tuple(lines), groups=data.prompts_per_step, totals=totals)


def load(
    config: Config, device: str, prompts: Sequence[Prompt] = (), *, training: bool = True, weights: str = ""
) -> JointPolicy:
    """Load both models as one policy; a trained part's weights are in the folder of its name."""
    from mmgrpo.policies.joint import JointPolicy

    parts: dict[str, tuple[Family, Config]] = {name: part_of(config, name) for name in SETTINGS}
    policies: list[Any] = []
    for owner, made in parts.values():
        owner.refuse_model(made, locate(made.model.path))
    for name, (owner, made) in parts.items():
        trained = name in config.model.trained
        folder = str(Path(weights) / name) if weights and trained else ""
        policies.append(owner.policy(made, device, training=training and trained, weights=folder))
    first, second = policies
    return JointPolicy(
        first,
        second,
        count=config.sampling.texts,
        ask=partial(instruct, config.sampling.instruction),
        rewrite=partial(add_plan, second.model, limit=LIMIT)
        if config.sampling.keep_prompt
        else partial(rewrite, second.model),
        names=(TEXT, IMAGE),
        trained=config.model.trained,
    )


def read(config: Config, path: str) -> tuple[Sequence[Prompt], list[Skipped]]:
    """The prompts of a file that the generator reads."""
    owner, made = part_of(config, IMAGE)
    return owner.read(replace(made, data=config.data), path)


def readable(config: Config, prompts: Sequence[Prompt], name: str) -> tuple[Sequence[Prompt], list[Skipped]]:
    """The same of prompts in memory."""
    owner, made = part_of(config, IMAGE)
    return owner.readable(replace(made, data=config.data), prompts, name)


def accept(config: Config, policy: Policy, prompts: Sequence[Prompt]) -> tuple[list[Prompt], list[Skipped]]:
    """The prompts that both models read, and the others."""
    (writer, text), (generator, image) = part_of(config, TEXT), part_of(config, IMAGE)
    joint: Any = policy
    kept, skipped = generator.accept(replace(image, data=config.data), joint.second, prompts)
    questions = {id(question := joint.ask(prompt)): (question, prompt) for prompt in kept}
    read, unread = writer.accept(text, joint.first, [question for question, _ in questions.values()])
    return [questions[id(question)][1] for question in read], [*skipped, *unread]


FAMILY = Family(
    "rewriter",
    "a language model that rewrites prompts and a generator that draws by them, trained together or one of them",
    "visual",
    Sections(RewriterOptions, RewriterSampling, VisualData, VisualEval, ("scene_all",), outputs="Image"),
    load=load,
    decisions=decisions,
    arithmetic=arithmetic,
    read=read,
    write_samples=write_samples,
    write_page=write_page,
    module="pipelines.visual.rewriter",
    check=check,
    readable=readable,
    accept=accept,
    displayed=previewer,
)
