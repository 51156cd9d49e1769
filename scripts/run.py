"""What every training script shares: the course of a run, its folder, and the trainer of a policy."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import sys
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # so that the scripts run from a checkout that is not installed

from mmgrpo.runtime.config import Algorithm, load_yaml, refuse_preset, write_yaml  # noqa: E402

if TYPE_CHECKING:
    from accelerate import Accelerator
    from speech import SpeechConfig
    from visual import VisualConfig
    from vlm import VlmConfig
    from voice import VoiceConfig

    from mmgrpo.evaluation import ErrorRate, Shown
    from mmgrpo.trainer import Trainer
    from mmgrpo.types import Output, Policy, Prompt
    from mmgrpo.update import LossRecipe
    from pipelines.pretrained import Training

    Adapted: TypeAlias = VisualConfig | VlmConfig | SpeechConfig
    Config: TypeAlias = Adapted | VoiceConfig
    C = TypeVar("C", VisualConfig, VlmConfig, SpeechConfig, VoiceConfig)


def train(
    config: C,
    modality: str,
    build: Callable[[C, Accelerator, Callable[[], Path]], Trainer],
    more: Callable[[C, Trainer], dict[str, Any]] = lambda config, trainer: {},
) -> None:
    """A whole run: what ``build`` makes is trained, evaluated, saved and reported.

    ``more`` is asked after training, on every process, for what a modality adds to summary.json.
    """
    import torch
    from accelerate import Accelerator

    from mmgrpo.report.html import write_report
    from mmgrpo.runtime.files import write_text

    if config.threads:
        torch.set_num_threads(config.threads)
    torch.manual_seed(config.seed)
    refuse_folder(config)
    folder = run_folder(config)
    accelerator = Accelerator(cpu=config.model.device == "cpu", log_with=[*config.trackers] or None, project_dir=folder)
    trainer = build(config, accelerator, lambda: open_folder(config, accelerator))
    if config.trackers:
        accelerator.init_trackers("tracker", config=flat(config))
    if config.resume and not trainer.resume():
        print(f"{folder} holds no checkpoint yet; starting from the beginning", flush=True)
    started = time.perf_counter()
    evaluations = trainer.fit()
    added = more(config, trainer)
    if accelerator.is_main_process:
        trainer.save_model(folder / "model")
        summary = {
            "modality": modality,
            "family": config.model.family,
            "preset": config.algorithm.preset,
            "steps": trainer.step,
            "seconds": round(trainer.seconds, 3),
            "wall_seconds": round(time.perf_counter() - started, 3),
            "seed": config.seed,
            "skipped_steps": trainer.skipped,
            **evaluations,
            **added,
        }
        write_text(folder / "summary.json", json.dumps(summary, indent=2))
        write_report(folder)
        print(closing(summary), f"\nreport: {folder / 'report.html'}", flush=True)
    accelerator.end_training()


@dataclass(frozen=True)
class Loaded:
    """What a run reads from disk: the model, and the prompts of training and of evaluation."""

    policy: Policy
    prompts: Sequence[Prompt]
    heldout: Sequence[Prompt]
    extra: Mapping[str, Sequence[Prompt]]
    """Those of the further files of eval.extra, by name."""


def build_trainer(
    config: Config,
    accelerator: Accelerator,
    open_run: Callable[[], Path],
    *,
    kind: str,
    load: Callable[[], Loaded],
    eval_batch_size: int,
    exhibit: Callable[[Path, Shown], None],
    rates: Sequence[ErrorRate] = (),
) -> Trainer:
    """Everything of a run, ready to fit; ``rates`` are told of each evaluation as a whole.

    ``kind`` is that of the policy's decisions. What is wrong in the config is found before ``load`` reads prompts and
    model, and ``open_run`` makes the run folder last, so that a run that cannot start removes nothing.
    """
    from mmgrpo.advantages.estimate import AdvantageRecipe
    from mmgrpo.rollout import RoundSettings, redraws
    from mmgrpo.runtime.optim import Schedule
    from mmgrpo.trainer import EvalSettings, Trainer
    from reward_models import scorers

    algorithm, optim = config.algorithm, config.optim
    refuse_preset(algorithm.preset, kind)
    made = scorers(config.rewards)
    recipe = AdvantageRecipe.of(algorithm)
    loss = loss_recipe(algorithm)
    rounds = RoundSettings(config.data.prompts_per_step, config.data.group_size, redraws(algorithm.sampler))
    loaded = load()
    return Trainer(
        policy=loaded.policy,
        scorers=made,
        recipe=recipe,
        loss=loss,
        prompts=loaded.prompts,
        rounds=rounds,
        schedule=Schedule(
            steps=config.steps,
            lr=optim.lr,
            warmup=optim.warmup,
            decay=optim.decay,
            weight_decay=optim.weight_decay,
            betas=(optim.beta1, optim.beta2),
            max_grad_norm=optim.max_grad_norm,
            updates=optim.updates,
            epochs=optim.epochs,
            micro_batch_size=optim.micro_batch_size,
            ema=optim.ema,
            ema_every=optim.ema_every,
            interpolation=optim.interpolation,
        ),
        evaluation=EvalSettings(
            prompts=loaded.heldout,
            every=config.eval.every,
            samples=config.eval.samples,
            seed=config.eval.seed,
            eval_batch_size=eval_batch_size,
            shown=config.samples_shown,
            extra=loaded.extra,
            rates=rates,
        ),
        folder=open_run(),
        seed=config.seed,
        accelerator=accelerator,
        save_every=config.save_every,
        keep=config.keep,
        exhibit=exhibit,
    )


def read_prompts(
    config: Config, read: Callable[[str], list[Prompt]]
) -> tuple[list[Prompt], list[Prompt], dict[str, list[Prompt]]]:
    """The prompts of training, the held-out ones, and those of eval.extra by name; ``read`` reads a file.

    One of evaluation that is also trained on is an error, and so is one that is in two files of training.
    """
    from mmgrpo.evaluation import HELDOUT

    data, files = config.data, also_files(config.eval.extra)
    prompts: list[Prompt] = []
    seen: dict[tuple[Hashable, ...], str] = {}
    for path in (data.train, *data.extra_train):
        further = read(locate(path))
        refuse_seen(further, seen, path)
        prompts += further
        seen |= dict.fromkeys(map(content, further), path)
    if config.eval.skip:
        return prompts, [], {}
    found = {}
    for name, path in {**({HELDOUT: data.heldout} if data.heldout else {}), **files}.items():
        found[name] = read(locate(path))
        refuse_seen(found[name], seen, path)
        found[name] = found[name][: config.eval.prompts or None]
    return prompts, found.pop(HELDOUT, []), found


def refuse_seen(prompts: Sequence[Prompt], seen: Mapping[tuple[Hashable, ...], str], path: str) -> None:
    """ValueError for a prompt of ``path`` that a file of training has as well."""
    for prompt in prompts:
        if (one := content(prompt)) in seen:
            raise ValueError(f"{path}: prompt '{prompt.id}' ({prompt.text!r}) is also in {seen[one]}")


def also_files(paths: Sequence[str]) -> dict[str, str]:
    """The files of eval.extra by the names they are told under: their stems, with - for what no file name has."""
    from mmgrpo.evaluation import HELDOUT

    named: dict[str, str] = {}
    for path in paths:
        name = re.sub(r"[^\w.-]+", "-", Path(path).stem)
        if not name:
            raise ValueError(f"eval.extra: '{path}' names no file; wanted e.g. assets/speech/natural.jsonl")
        if name == HELDOUT:
            raise ValueError(f"eval.extra: '{path}' would be told as '{HELDOUT}', as data.heldout is; rename the file")
        if name in named:
            raise ValueError(f"eval.extra: '{named[name]}' and '{path}' would both be told as '{name}'; rename one")
        named[name] = path
    return named


def content(prompt: Prompt) -> tuple[Hashable, ...]:
    """What makes two prompts the same question: their words, and the files (or pixels) that they show."""
    return (prompt.text, *(_source(media.source) for media in prompt.media))


def _source(source: str | tuple[str, ...] | Output) -> Hashable:
    if isinstance(source, str | tuple):
        return source
    tensors = [value for value in vars(source).values() if hasattr(value, "numpy")]
    return hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in tensors)).digest()


def training_of(config: Adapted, device: str, for_training: bool, trained: str | Path) -> Training:
    """What of the model trains; ``trained`` is a folder of weights that training saved."""
    from pipelines.pretrained import Training

    model = config.model
    return Training(
        lora_rank=model.lora_rank,
        lora_alpha=model.lora_alpha,
        lora_targets=tuple(model.lora_targets),
        lora_seed=config.seed,
        lora_path=trained if model.lora_rank else "",
        network_path="" if model.lora_rank else trained,
        keep_reference=needs_reference(config) and for_training and model.lora_rank == 0,
        gradient_checkpointing=model.gradient_checkpointing and for_training,
        dtype=model.dtype,
        device=device,
    )


def loss_recipe(algorithm: Algorithm) -> LossRecipe:
    """The bound blocks of the loss."""
    from mmgrpo.update import LossRecipe

    return LossRecipe.of(
        algorithm.objective, algorithm.aggregation, algorithm.mismatch, algorithm.terms, algorithm.off_policy
    )


def needs_reference(config: Config) -> bool:
    """True when the loss compares with the network before training."""
    return loss_recipe(config.algorithm).needs_reference


def refuse_lonely(group_size: int) -> None:
    """A group of one has nobody to be compared with."""
    if group_size < 2:
        raise ValueError(
            f"data.group_size must be at least 2, got {group_size}: a sample is compared with others of its group"
        )


def rounds_of(config: Config, groups: int) -> tuple[int, int]:
    """Optimizer steps of a round of so many groups, and rounds of the run; an error where the cut is impossible."""
    optim = config.optim
    if optim.updates > groups:
        raise ValueError(
            f"a round of {groups} groups cannot be cut into optim.updates={optim.updates} steps; "
            "raise data.prompts_per_step or lower optim.updates"
        )
    steps = optim.updates * optim.epochs
    return steps, -(-config.steps // steps)


CONTINUES = {"resume", "overwrite", "dry_run", "steps", "save_every", "keep", "trackers", "threads", "output_dir"}
"""Fields that may differ when a run is resumed."""


def run_folder(config: Config) -> Path:
    """Where the run lives."""
    return Path(config.output_dir) / config.name


def refuse_folder(config: Config) -> None:
    """An earlier run is never overwritten, nor continued with other settings, by accident."""
    folder = run_folder(config)
    kept = folder / "config.yaml"
    if not kept.is_file():
        return
    if config.resume:
        before, now = load_yaml(kept), dataclasses.asdict(config)
        changed = [key for key in now if key not in CONTINUES and before.get(key) != now[key]]
        if changed:
            raise ValueError(
                f"{kept} was written with other settings of {', '.join(changed)}; resume with the same ones, "
                "or start another run with --name"
            )
    elif not config.overwrite:
        raise FileExistsError(
            f"{folder} already holds a run; continue it with --resume, start afresh with --overwrite, "
            "or choose another --name"
        )


def open_folder(config: Config, accelerator: Accelerator) -> Path:
    """Make the run folder, with the resolved config in it; what an earlier run left there goes, unless resumed."""
    import shutil

    folder = run_folder(config)
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        refuse_folder(config)
        if (folder / "config.yaml").is_file() and not config.resume:
            shutil.rmtree(folder)
        write_yaml(folder / "config.yaml", config)
    accelerator.wait_for_everyone()
    return folder


def locate(path: str) -> str:
    """A path of the project's own assets is found from any working directory."""
    inside = ROOT / path
    return str(inside) if not Path(path).exists() and inside.exists() else path


def flat(config: Any, prefix: str = "") -> dict[str, Any]:
    """Config values as trackers take them: one level of names, plain values."""
    values: dict[str, Any] = {}
    for f in dataclasses.fields(config):
        value = getattr(config, f.name)
        if dataclasses.is_dataclass(value):
            values.update(flat(value, f"{prefix}{f.name}."))
        else:
            values[prefix + f.name] = value if isinstance(value, int | float | str | bool) else str(value)
    return values


def closing(summary: dict[str, Any]) -> str:
    """The evaluations as small tables for the terminal."""
    unseen = {name: f"{one['mean']:8.3f}" for name, one in summary.get("blind", {}).items()}
    lines = [f"{summary['steps']} optimizer steps in {summary['seconds']:.0f} s of training"]
    if summary["skipped_steps"]:
        lines.append(f"{summary['skipped_steps']} steps had no group with spread and trained nothing")
    if summary["eval"]:
        lines += compared(summary["eval"], "reward", "blind" if unseen else "", unseen)
    for name, found in summary.get("extra", {}).items():
        lines += ["", *compared(found, f"reward on {name}")]
    told = {f"{rate} of {name}": one for rate in summary.get("rates", ()) for name, one in summary[rate].items()}
    if told:
        sides = {side: {name: one[side] for name, one in told.items()} for side in ("before", "after", "difference")}
        shares = {name: f"{one['relative']:+8.1%}" for name, one in told.items() if one["relative"] is not None}
        lines += ["", *compared(sides, "error rate (of all)", "relative", shares)]
    return "\n".join(lines)


def compared(
    found: Mapping[str, Any], title: str, column: str = "", cells: Mapping[str, str] | None = None
) -> Iterator[str]:
    """The lines of a table: before, after and difference by name, and one more column where there is one."""
    heading = f"{title:24} {'before':>8} {'after':>8} {'difference (95 %, paired)':>30}   prompts   {column}"
    yield heading.rstrip()
    for name, difference in found["difference"].items():
        interval = f"{difference['mean']:+.3f} [{difference['low']:+.3f}, {difference['high']:+.3f}]"
        before, after = found["before"][name]["mean"], found["after"][name]["mean"]
        cell = (cells or {}).get(name, "")
        yield f"{name:24} {before:8.3f} {after:8.3f} {interval:>30}   {difference['n']:<7}{cell}".rstrip()
