"""What a run is: its id, its settings and its inputs, in ``run.json``, which marks a folder as that of a run.

    {"run": "5f0c...", "config": "91ab...", "inputs": {"train": "77de...", "network": ...}, ...}

Every other file of the run that is read again (metrics, evaluations, checkpoints, the saved model) repeats the id, so
that files of two runs never mix.
"""

from __future__ import annotations

import dataclasses
import json
import secrets
import subprocess
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mmgrpo.config.reading import flatten, load_yaml, present_section
from mmgrpo.config.settings import LAUNCH, Config
from mmgrpo.files import write_text

MARKER = "run.json"

FREE_ON_RESUME = frozenset(
    {
        *LAUNCH,
        *("output_dir", "trackers", "samples_shown"),
        *("steps", "save_every", "save_every_minutes", "keep", "threads", "deterministic", "model.device"),
        *("groups_kept", "eval.every", "eval.patience", "eval.batch_size", "eval.groups", "data.stream"),
        *("optim.lr", "optim.weight_decay", "optim.max_grad_norm", "optim.max_nonfinite_steps"),
        *("optim.micro_batch_size", "sampling.forward_batch_size", "sampling.logits_chunk_size"),
        *("model.gradient_checkpointing", "model.offload_activations"),
        *("distributed.shard", "distributed.replicate", "distributed.rollout_weights", "distributed.sequence"),
        *("rollout.engine", "rollout.url", "rollout.token_file", "rollout.timeout", "rollout.patience"),
        *("rollout.max_gap", "rollout.memory", "rollout.sleep", "rollout.eager"),
    }
)
"""Settings that may change when a run is resumed: its length, what it stores and shows, how it uses the machine, and
what one changes after a divergence. All others would make it another run."""


@dataclass(frozen=True)
class Identity:
    """The contents of ``run.json``."""

    run: str
    """A random number in hexadecimal digits."""
    config: str
    """Fingerprint of the settings that cannot change on resume."""
    inputs: Mapping[str, str] = field(default_factory=dict)
    """Fingerprints of prompts (``train``, ``heldout``, ...) and of the network before training."""
    started: str = ""
    version: str = ""
    processes: int = 0
    """By how many it was started; 0 in runs of versions that did not record it."""
    shard: str = ""
    """``distributed.shard`` with which it was started."""
    resumed: tuple[Mapping[str, Any], ...] = ()
    """For each resumption its time, the settings that it changed, old and new, and its number of processes."""
    commit: str = ""
    """Of the code that started it (``commit_of_code``)."""

    @staticmethod
    def new(config: Config, inputs: Mapping[str, str], processes: int = 1, run: str = "") -> Identity:
        """The identity of a run that starts now, by so many processes, with the id ``run`` or another one."""
        now, shard = f"{datetime.now():%Y-%m-%d %H:%M:%S}", config.distributed.shard
        state = (inputs, now, version("mmgrpo"), processes, shard)
        return Identity(run or secrets.token_hex(8), _fingerprint(config), *state, commit=commit_of_code())

    @staticmethod
    def read(folder: Path) -> Identity | None:
        """The identity of a run folder; None if the folder is not one, and an error if its marker is damaged."""
        path = folder / MARKER
        if not path.is_file():
            return None
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            return Identity(**{**content, "resumed": tuple(content["resumed"])})
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(
                f"{path} is damaged ({error}); restore it, or move the folder away and start again"
            ) from error

    def write(self, folder: Path) -> None:
        """Write ``run.json``."""
        write_text(folder / MARKER, json.dumps(dataclasses.asdict(self), indent=1))

    def resume_with(self, changed: Mapping[str, tuple[Any, Any]], processes: int = 1) -> Identity:
        """The same run, resumed now by so many processes with changed settings (``refuse_settings``)."""
        entry = {"time": f"{datetime.now():%Y-%m-%d %H:%M:%S}", "changed": dict(changed), "processes": processes}
        return dataclasses.replace(self, resumed=(*self.resumed, entry))

    def refuse_settings(self, folder: Path, config: Config) -> dict[str, tuple[Any, Any]]:
        """What ``config`` changes, old and new; a ValueError if that includes what cannot change. A setting that the
        run lacks, since its version did not have it, was at its default."""
        path = folder / "config.yaml"
        now, defaults = flatten(dataclasses.asdict(config)), flatten(dataclasses.asdict(type(config)()))
        # Absent where the start was cut off after the marker; the fingerprint then decides alone.
        written = flatten(present_section(load_yaml(path), str(path))) if path.is_file() else now
        before = defaults | written
        changed = {
            key: (before.get(key), value)
            for key, value in now.items()
            if key not in LAUNCH and before.get(key) != value
        }
        fixed = sorted(changed.keys() - FREE_ON_RESUME)
        if fixed:
            old, new = changed[fixed[0]]
            raise ValueError(
                f"{path} has other settings of {', '.join(fixed)} (the run has {fixed[0]}={old!r}, now it is {new!r}); "
                f"resume with its settings ('--config {path} --resume'), or start another run with --name"
            )
        if "steps" in changed and now.get("optim.decay") != "constant":
            start = "model.lora-path" if now.get("model.lora_rank") else "model.path"
            raise ValueError(
                f"--steps: got {now['steps']}, expected {before['steps']} as the run has: with "
                f"optim.decay={now.get('optim.decay')} the number of steps decides every learning rate; train on from "
                f"its saved model in a run of another --name, with --{start} {folder / 'model'}"
            )
        if self.config not in (_fingerprint(config), _fingerprint(config, written)):
            raise ValueError(
                f"{path} is not what the run was started with ({MARKER} has another fingerprint of it); undo the "
                "changes in that file, or start another run with --name"
            )
        return changed

    def refuse_inputs(self, folder: Path, inputs: Mapping[str, str]) -> None:
        """Raise ValueError if prompts or the network are not those that the run started from."""
        for name in sorted({*self.inputs, *inputs}):
            if self.inputs.get(name) != inputs.get(name):
                what = "the model (model.path, or the policy)" if name == "network" else f"the prompts of '{name}'"
                raise ValueError(
                    f"{folder}: {what} changed since the run started; restore what it started from, "
                    "or start another run with --name"
                )


@cache
def commit_of_code() -> str:
    """The commit of the code, with -dirty where files differ from it; empty where it is no repository, as of an
    installed package, also one within somebody's repository."""
    git = ["git", "-C", str(Path(__file__).parent)]
    describe = ["describe", "--always", "--dirty", "--abbrev=10", "--exclude=*"]
    try:
        subprocess.run([*git, "ls-files", "--error-unmatch", Path(__file__).name], capture_output=True, check=True)
        return subprocess.run([*git, *describe], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def _fingerprint(config: Config, known: Collection[str] | None = None) -> str:
    """The fingerprint of the settings that cannot change on resume; ``known``: of those that a version had."""
    from mmgrpo.runtime import fingerprint  # which needs torch, as --help of a command does not

    settings = flatten(dataclasses.asdict(config))
    return fingerprint.of_settings(
        {key: value for key, value in settings.items() if key not in FREE_ON_RESUME and (known is None or key in known)}
    )
