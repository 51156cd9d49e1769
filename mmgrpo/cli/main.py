"""The console entry: ``mmgrpo <command> [options]``."""

from __future__ import annotations

import importlib
import platform
import sys
from importlib.metadata import PackageNotFoundError, version

from mmgrpo.cli.errors import enter
from mmgrpo.config.names import nearest
from mmgrpo.terminal import paragraph, sections

COMMANDS = {
    "train": ("mmgrpo.cli.train", "train a model with a recipe, or with the embedded default"),
    "launch": ("mmgrpo.cli.launch", "start a training run as several processes: here, under SLURM or on Ray"),
    "sample": ("mmgrpo.cli.sample", "sample from a trained or an untrained model"),
    "evaluate": ("mmgrpo.cli.evaluate", "evaluate a model on prompts, optionally against another"),
    "compare": ("mmgrpo.cli.compare", "compare runs, with means over their seeds"),
    "export": ("mmgrpo.cli.export", "write a trained model for diffusers, ComfyUI, peft, or merged"),
    "prompts": ("mmgrpo.cli.prompts", "list the prompts of a run by difficulty, and write them as a data set"),
    "mixture": ("mmgrpo.cli.mixture", "fit the weights of a mixture of data sets to the scores of runs"),
    "check-data": ("mmgrpo.cli.check_data", "check a data set before training"),
    "score": ("mmgrpo.cli.score", "score images, videos, audio or texts with rewards"),
    "serve-rewards": ("mmgrpo.cli.serve_rewards", "serve rewards over HTTP"),
    "serve-engine": ("mmgrpo.cli.serve_engine", "draw the completions of a run in another process, e.g. with vLLM"),
    "evaluate-rewards": ("mmgrpo.cli.evaluate_rewards", "compare rewards with human preferences"),
    "train-reward": ("mmgrpo.cli.train_reward", "train a preference head as a reward"),
    "verify-reward": ("mmgrpo.cli.verify_reward", "compare a reward with its published score"),
    "demo": ("mmgrpo.cli.demo", "look at models, groups, rewards and runs in a browser"),
    "migrate": ("mmgrpo.cli.migrate", "print the configuration of another project as a recipe"),
    "questions": ("mmgrpo.cli.questions", "write the questions of the embedded vision-language model as files"),
    "learn-direction": (
        "mmgrpo.cli.learn_direction",
        "learn the direction by which the reward d2_align corrects another",
    ),
    "learn-map": ("mmgrpo.cli.learn_map", "learn the map from texts to images of the reward transported"),
    "bench": ("mmgrpo.cli.bench", "measure speed and memory on this machine"),
    "validate": ("mmgrpo.cli.validate", "check that a checkpoint samples, trains, saves and exports on this machine"),
    "explain": ("mmgrpo.cli.explain", "explain a preset, a paper, a block, a reward or a recipe; compare two presets"),
    "papers": ("mmgrpo.cli.papers", "list the papers, and how much of each is implemented"),
    "recipes": ("mmgrpo.cli.lists:recipes", "list the recipes"),
    "families": ("mmgrpo.cli.lists:families", "list the model families"),
    "presets": ("mmgrpo.cli.lists:presets", "list the algorithms, by kind or of a paper"),
    "rewards": ("mmgrpo.cli.lists:rewards", "list the rewards"),
}
"""Command to its module (whose ``main`` is called) or ``module:function``, and its description."""


SUBJECTS = {
    "Start here": ("train", "sample", "evaluate", "demo", "export"),
    "What there is": ("recipes", "families", "presets", "rewards", "papers", "explain"),
    "Runs": ("launch", "compare", "migrate", "bench", "serve-engine"),
    "Data": ("check-data", "prompts", "mixture", "questions"),
    "Rewards": (
        *("score", "evaluate-rewards", "train-reward", "verify-reward", "serve-rewards"),
        *("learn-direction", "learn-map"),
    ),
}
"""Headings of ``mmgrpo --help`` to commands; others stand below the last."""


def usage() -> str:
    """The text of ``mmgrpo --help``."""
    of_subjects = {name for names in SUBJECTS.values() for name in names}
    groups = {**SUBJECTS, "Further": [name for name in COMMANDS if name not in of_subjects]}
    ends = (
        "'mmgrpo train' alone trains the embedded image model, in minutes and without data. 'mmgrpo COMMAND --help' "
        "shows the options of a command, 'mmgrpo help optim' the settings of one section of a run "
        "(model, data, sampling, algorithm, optim, eval, ...), 'mmgrpo --version' versions."
    )
    about = "Group-relative reinforcement learning for image, video, vision-language and speech models."
    parts = {title: [(name, COMMANDS[name][1]) for name in names] for title, names in groups.items()}
    return "\n".join(
        ["usage: mmgrpo COMMAND [options]", "", *paragraph(about), "", *sections(parts), "", *paragraph(ends)]
    )


def versions() -> str:
    """The versions that a bug report needs; nothing is imported for them."""
    parts = []
    for name in ("mmgrpo", "torch", "transformers", "diffusers", "peft", "accelerate"):
        try:
            parts.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return ", ".join([*parts, f"Python {platform.python_version()}", platform.platform()])


def run(arguments: list[str]) -> None:
    """Run the command that the first argument names."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        if not arguments[1:]:
            print(usage())
            return
        arguments = [*arguments[1:], "--help"] if arguments[1] in COMMANDS else ["train", "--help", *arguments[1:]]
    if arguments[0] in ("-V", "--version"):
        print(versions())
        return
    name, *rest = arguments
    if name not in COMMANDS:
        raise ValueError(f"mmgrpo: unknown command '{name}'.{nearest(name, COMMANDS)}")
    module, _, function = COMMANDS[name][0].partition(":")
    getattr(importlib.import_module(module), function or "main")(rest)


def main() -> None:
    """The entry point."""
    _, *arguments = sys.argv
    sys.argv[0] = " ".join(["mmgrpo", *arguments[:1]])  # usage lines begin with it, not with the path of a file
    enter(lambda: run(arguments))


if __name__ == "__main__":
    main()
