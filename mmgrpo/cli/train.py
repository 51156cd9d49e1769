"""Train a model with group-relative reinforcement learning.

    mmgrpo train                                             # the embedded image model, minutes on a laptop
    mmgrpo train --recipe visual/flow_grpo                   # an included recipe ('mmgrpo recipes' lists them)
    mmgrpo train --config my_run.yaml --optim.lr 1e-4        # a file of your own; every field is an option
    mmgrpo train --model.family qwen_vl --help               # the options of another model family
    mmgrpo train --recipe flow_grpo --dry-run                # sizes and costs of the run; nothing is loaded
    accelerate launch -m mmgrpo.cli.train --recipe ...       # several GPUs, data parallel

Weights are replicated on every process (data parallel); sharding of models that do not fit one GPU is not built yet, so
that accelerate's FSDP and DeepSpeed are refused.

A recipe can name functions of your own (rewards, renderers): it is code, so run only recipes that you trust.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from mmgrpo.cli.errors import enter
from mmgrpo.cli.options import words
from mmgrpo.family import family
from mmgrpo.registry import nearest, parse
from mmgrpo.runtime.config import Config, config_class
from mmgrpo.runtime.devices import refuse_launcher
from mmgrpo.runtime.plugins import recipe
from mmgrpo.runtime.ranges import ANY_NUMBER
from mmgrpo.runtime.reading import load_yaml, read_config, refuse_preset, take_option

DEFAULT = "sd3"
"""The family of the embedded default model."""

KEYS = {"tokens": ("prompt",), "matching": ("prompt",), "gaussian": ("prompt", "tree")}
"""The kind of a policy's decisions to the keys of its samples (``Policy.keys``)."""


def main(arguments: Sequence[str] | None = None, about: str | None = "", default: str = DEFAULT) -> None:
    """Read the options, print the sizes and costs of the run, and run it."""
    config = read(words(arguments), about or str(__doc__), default)
    plan = arithmetic(config)
    if os.environ.get("RANK", "0") == "0":  # set by launchers; only the first process prints
        print(plan, flush=True)
    if config.dry_run:
        return
    refuse_launcher(os.environ)
    from accelerate import PartialState

    from mmgrpo.api import run_config
    from mmgrpo.report.terminal import closing

    result = run_config(config)
    if PartialState().is_main_process:
        print(closing(result.summary), f"\nreport: {result.folder / 'report.html'}", flush=True)
        extra = "" if find_spec("gradio") else ", after pip install 'mmgrpo[demo]'"
        print(f"demo:   mmgrpo demo {shlex.quote(str(result.folder))}{extra}", flush=True)


def read(arguments: Sequence[str], about: str, default: str = DEFAULT) -> Config:
    """The configuration of a run: the family's defaults, a recipe, the command line."""
    name, arguments = take_option(arguments, "--recipe")
    path, arguments = take_option(arguments, "--config")
    if name and path:
        raise ValueError("--recipe names a recipe of mmgrpo and --config a file of your own; give only one of them")
    path = str(recipe(name)) if name else path
    section = load_yaml(path) if path else {}
    named = family_name(arguments, section, default)
    model_family = family(named)
    note = (
        "--recipe NAME or --config FILE reads a recipe first, and the options below override it. The model and "
        f"sampling options are those of the family {named}; set --model.family for another."
    )
    kind = config_class(model_family.sections)
    return read_config(kind, arguments, with_family(section, named), path or "the command line", f"{about}\n\n{note}")


def family_name(arguments: Sequence[str], section: Mapping[str, Any], default: str) -> str:
    """The model family of the command line, else of the file, else ``default``."""
    name, _ = take_option(arguments, "--model.family")
    model = section.get("model", {})
    return name or str((model.get("family") if isinstance(model, Mapping) else "") or default)


def with_family(section: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The configuration with ``model.family`` set, which a file may leave to the default."""
    model = section.get("model", {})
    return {**section, "model": {**model, "family": name}} if isinstance(model, Mapping) else dict(section)


def arithmetic(config: Config) -> str:
    """Sizes and costs of a run as text: prompts x samples per rollout, network evaluations, optimizer steps.

    ValueError for settings with which the run could not start, as far as they can be known before anything is loaded.
    """
    model_family, optim = family(config.model.family), config.optim
    config.check()
    model_family.check(config)
    refuse_preset(config.algorithm.preset, model_family.decisions(config))
    bind_blocks(config)
    cost = model_family.arithmetic(config)
    if optim.updates > cost.groups:
        raise ValueError(
            f"a rollout of {cost.groups} groups cannot be split into optim.updates={optim.updates} steps; "
            "raise data.prompts_per_step or lower optim.updates"
        )
    steps = optim.updates * optim.epochs
    rollouts = -(-config.steps // steps)
    totals = ", ".join(f"{rollouts * count:,} {name}" for name, count in cost.totals.items())
    head, *rest = cost.lines
    return "\n".join(
        [
            f"a rollout: {head}",
            *(f"           {line}" for line in rest),
            f"           cut into {optim.updates} update(s) x {optim.epochs} epoch(s) = {steps} optimizer step(s)",
            f"the run:   {config.steps:,} optimizer steps = {rollouts:,} rollouts = {totals}",
        ]
    )


def bind_blocks(config: Config) -> None:
    """Raise ValueError for an unknown name or a value out of range in the blocks of the algorithm and in rewards."""
    from mmgrpo.advantages.estimate import AdvantageRecipe
    from mmgrpo.rewards import entries
    from mmgrpo.rollout import redraws
    from mmgrpo.update import LossRecipe

    algorithm = config.algorithm
    kind = family(config.model.family).decisions(config)
    for key in AdvantageRecipe.of(algorithm).key_names:
        if key not in KEYS[kind]:
            raise ValueError(
                f"algorithm.keys: samples of {kind} policies have no key '{key}'.{nearest(key, KEYS[kind])}"
            )
    LossRecipe.of(algorithm.objective, algorithm.aggregation, algorithm.mismatch, algorithm.terms, algorithm.off_policy)
    redraws(algorithm.sampler)
    for text in config.rewards:
        name, parameters = parse(text, "rewards")
        if ":" not in name and name not in entries():
            raise ValueError(f"rewards: there is no '{name}'.{nearest(name, entries())}")
        if (weight := parameters.get("weight", 1)) not in ANY_NUMBER:
            raise ValueError(f"rewards: '{name}': got weight {weight!r}, expected {ANY_NUMBER}")


if __name__ == "__main__":
    enter(main)
