"""The checks of ``mmgrpo validate``, one function each, in one table.

At no time is more than one copy of the model in memory: the policy is freed before the library loads its own, and what
is compared was drawn before.
"""

from __future__ import annotations

import gc
import hashlib
import io
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from mmgrpo.config.settings import Config
from mmgrpo.family import Difference, Family, Incomparable, Library
from mmgrpo.report.validation import CHECKS, Outcome, within
from mmgrpo.types import Audio, Image, Media, Output, Policy, Prompt, Request, Rollout, Text, Turn, Video

__all__ = ["Job", "outcomes"]

RATIO = {"float32": 1e-3, "bfloat16": 5e-2, "float16": 1e-2}
"""Largest |ratio - 1| before the first update, by the precision of computation."""
MEMORY = 1.25
"""Largest share of the estimate that the peak may be; what the libraries themselves need is not in it."""
STEPS, GROUP = 3, 4
DISTURBANCE = 0.05
"""Standard deviation of what is added to adapters, or share of their size that is added to other weights, so an
exported model differs from its base by more than rounding."""


class Skipped(Exception):
    """A check that does not concern this model or machine, and why."""


@runtime_checkable
class WithFrozenParts(Protocol):
    """A model with encoders or a VAE beside its network."""

    def frozen_parts(self) -> dict[str, nn.Module]: ...


@dataclass(frozen=True)
class Measured:
    """What a check has measured."""

    value: float | None = None
    tolerance: float | None = None
    note: str = ""


@dataclass
class Job:
    """A checkpoint that is validated, and what a check leaves to later ones."""

    owner: Family
    config: Config
    device: str
    place: Path
    """An empty folder."""
    prompts: Sequence[Prompt] = ()
    policy: Policy | None = None
    library: Library | None = None
    base: Difference | None = None
    """Of the samples of the checkpoint."""
    changed: Difference | None = None
    """Of the samples of the trained model with weights that were disturbed."""
    incomparable: str = ""
    peak: float = 0.0
    """GB during the steps."""
    trained: Mapping[str, str] = field(default_factory=dict)
    """Digests of the weights after the steps."""
    effect: float = 0.0
    """How far the checkpoint in the library is from the disturbed samples."""

    @property
    def dtype(self) -> str:
        return str(vars(self.config.model).get("dtype", "float32"))

    @property
    def loaded(self) -> Policy:
        """The policy, which an earlier check has loaded."""
        assert self.policy is not None
        return self.policy

    def load(self, weights: Path | None = None) -> Policy:
        """The policy of the checkpoint, or with weights that a run has saved, in place of the present one."""
        self.release()
        self.policy = self.owner.policy(
            self.config, self.device, self.prompts, weights="" if weights is None else str(weights)
        )
        return self.policy

    def release(self) -> None:
        """Free the policy."""
        self.policy = None
        free()

    def compare(self) -> Difference | None:
        """What the policy draws now, to be compared with the library; None where it cannot be."""
        if self.library is None:
            return None
        try:
            return self.library.compare(self.config, self.loaded, self.prompts)
        except Incomparable as error:
            self.incomparable = str(error)
            return None


def outcomes(job: Job) -> list[Outcome]:
    """Run all checks. One whose needs have not passed is not run, and an error of one is its failure."""
    done: dict[str, Outcome] = {}
    for name, check in TABLE.items():
        began = time.perf_counter()
        if lacking := next((need for need in check.needs if done[need].status != "passed"), ""):
            done[name] = Outcome(name, "not run", f"'{lacking}' has not passed")
            continue
        try:
            measured = check.run(job)
            well = within(measured.value, measured.tolerance)
            status, numbers = ("passed" if well else "failed"), (measured.value, measured.tolerance)
            done[name] = Outcome(name, status, measured.note, *numbers, seconds=round(time.perf_counter() - began, 1))
        except Skipped as reason:
            done[name] = Outcome(name, "skipped", str(reason))
        except Exception as error:  # whatever a model raises is the result
            first = (str(error).strip() or "no message").splitlines()[0]
            seconds = round(time.perf_counter() - began, 1)
            done[name] = Outcome(name, "failed", f"{type(error).__name__}: {first[:300]}", seconds=seconds)
        print(f"{name}: {done[name].status}", flush=True)
    job.release()
    return list(done.values())


def loads(job: Job) -> Measured:
    """Load the model, find prompts that it takes, and draw from it twice."""
    candidates = prompts_of(job.owner)
    job.library = job.owner.library() if job.owner.library else None
    if len(candidates) == 1:
        [job.prompts] = candidates
    policy, refused = job.load(), ValueError("no prompts")
    for prompts in candidates:
        job.prompts = prompts
        try:
            first = policy.sample(Request(prompts, range(len(prompts)), 1, seed=1))
            break
        except ValueError as error:  # media or words that the model does not take
            refused = error
    else:
        raise refused
    job.base = job.compare()
    again = policy.sample(Request(job.prompts, range(len(job.prompts)), 1, seed=1))
    largest = max(distance(a, b) for a, b in zip(first, again, strict=True))
    return Measured(largest, 0.0, f"{type(first[0]).__name__.lower()} of {', '.join(kinds(job.prompts))}")


def ratio(job: Job) -> Measured:
    """Sample a rollout and score it again, in other batches than it was drawn in."""
    from pipelines.export import scores

    policy = job.loaded
    rollout: Rollout = policy.rollout(Request(job.prompts, range(len(job.prompts)), GROUP, seed=3))
    sampled = rollout.decisions.log_probs[rollout.decisions.loss_mask].float().cpu()
    if not len(sampled):
        raise ValueError("the rollout has no decision that is trained")
    changes = torch.expm1(scores(policy, rollout) - sampled).abs()
    return Measured(float(changes.max()), RATIO[job.dtype], f"{len(sampled)} decisions")


def trains(job: Job) -> Measured:
    """Take three steps on a reward that differs within every group, and save the model."""
    from mmgrpo.api import execute
    from mmgrpo.data.splits import Splits
    from mmgrpo.inputs import RunInputs

    policy, before = job.loaded, digests(job.loaded)
    if torch.device(job.device).type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    config = replace(job.config, steps=STEPS, output_dir=str(job.place), name="run")
    start = lambda accelerator: RunInputs(policy, Splits(job.prompts, []), [], {}, 0)  # noqa: E731
    with redirect_stdout(io.StringIO()):
        metrics = execute(config, job.owner, start, [unlike]).metrics
    job.peak = max(line["memory"] for line in metrics) * 2**30 / 1e9
    after, learned = digests(policy), trainable(policy)
    moved = {name for name in after if after[name] != before[name]}
    if wrong := sorted(moved - learned):
        raise ValueError(f"{len(wrong)} frozen tensors have changed, the first: {wrong[0]}")
    if not moved:
        raise ValueError("no weight has changed")
    job.trained = {name: after[name] for name in sorted(learned)}
    norm = max(line["grad_norm"] for line in metrics)
    note = f"{len(moved)} of {len(learned)} trained tensors have changed, none of {len(after) - len(learned)} others"
    return Measured(note=f"{note}; norm of the gradient up to {norm:.3g}")


def memory(job: Job) -> Measured:
    """Compare the peak of the steps with what a dry run says that they need."""
    if torch.device(job.device).type != "cuda":
        raise Skipped("is measured on a CUDA device only")
    if not (needed := estimate(job.config)):
        raise Skipped("--dry-run has no estimate, since the checkpoint's files are of no layout that it reads")
    return Measured(job.peak / needed, MEMORY, f"{job.peak:.2f} GB, estimated {needed:.2f} GB")


def saves(job: Job) -> Measured:
    """Load what the run has saved, disturb it, and save that for the export."""
    from mmgrpo.runtime.saved_model import write_model

    policy = job.load(job.place / "run" / "model")
    loaded = digests(policy)
    other = [name for name, digest in job.trained.items() if loaded.get(name) != digest]
    if other:
        raise ValueError(
            f"{len(other)} of {len(job.trained)} weights differ when they are loaded, the first: {other[0]}"
        )
    disturb(policy)
    job.changed = job.compare()
    write_model(job.place / "changed", policy.save, "validate", STEPS)
    job.release()
    return Measured(note=f"{len(loaded)} tensors, {len(job.trained)} of them trained")


def sample(job: Job) -> Measured:
    """Let the library draw from the checkpoint."""
    library, base = comparable(job, job.base)
    model = library.load(job.config, job.config.model.path, "", job.device)
    if job.changed is not None:
        job.effect = job.changed(model)
    difference = base(model)
    del model
    free()
    return Measured(difference, library.tolerance[job.dtype], library.measure)


def exports(job: Job) -> Measured:
    """Export the disturbed model as other programs load it, and let the library draw from that."""
    job.release()
    if job.owner.elsewhere is None:
        raise Skipped(f"family '{job.owner.name}' does not say how its models are exported")
    elsewhere, saved, output = job.owner.elsewhere(), job.place / "changed", job.place / "exported"
    form = next(form for form in FORMS if is_possible(elsewhere, job.owner, saved, form))
    elsewhere.export(job.owner, job.config, saved, form, output, dtype=job.dtype, device="cpu", check=0)
    free()
    try:
        library, changed = comparable(job, job.changed)
    except Skipped as reason:
        raise Skipped(f"written as {form}, but {reason}") from None
    whole = form == "merged"
    path, adapters = (str(output), "") if whole else (job.config.model.path, str(output))
    model = library.load(job.config, path, adapters, job.device)
    difference, tolerance = changed(model), library.tolerance[job.dtype]
    del model
    free()
    if difference <= tolerance and job.effect <= 2 * tolerance:
        raise Skipped(
            f"written as {form}; the weights change the sample by {job.effect:.2g} only, within the tolerance of "
            f"{tolerance:g}, so the library's {difference:.2g} shows nothing"
        )
    return Measured(difference, tolerance, f"{form}; the checkpoint without it differs by {job.effect:.3g}")


FORMS = ("diffusers", "peft", "merged")
"""In order of preference: adapters are small, and the base is there."""


@dataclass(frozen=True)
class Check:
    """A check, and those that must have passed before."""

    run: Callable[[Job], Measured]
    needs: tuple[str, ...] = ()


TABLE: Mapping[str, Check] = {
    "loads": Check(loads),
    "ratio": Check(ratio, ("loads",)),
    "trains": Check(trains, ("loads",)),
    "memory": Check(memory, ("trains",)),
    "saves": Check(saves, ("trains",)),
    "sample": Check(sample, ("loads",)),
    "exports": Check(exports, ("saves", "sample")),
}
assert TABLE.keys() == CHECKS.keys()


def comparable(job: Job, difference: Difference | None) -> tuple[Library, Difference]:
    """The library and what is compared with it; ``Skipped`` where there is none. The policy is freed."""
    job.release()
    if job.library is None:
        raise Skipped(f"family '{job.owner.name}' names no library that draws with its models")
    if difference is None:
        raise Skipped(job.incomparable)
    return job.library, difference


def is_possible(elsewhere: Any, owner: Family, saved: Path, form: str) -> bool:
    """Whether a saved model can be written in a format."""
    try:
        elsewhere.check(owner, saved, form)
    except ValueError:
        return False
    return True


def estimate(config: Config) -> float:
    """GB that the run needs on one process; 0 where the checkpoint's files do not say."""
    from mmgrpo.cli.train import counted_in
    from mmgrpo.config.plugins import locate
    from mmgrpo.runtime.memory import needs, read_folder
    from mmgrpo.scoring.manifest import find_in_cache

    folder = find_in_cache(config.model.path) or Path(locate(config.model.path))
    read = read_folder(folder) if folder.is_dir() else None
    return sum(needs(read, config, processes=1, **counted_in(config, read)).values()) / 1e9 if read else 0.0


def free() -> None:
    """Return what is no longer referred to."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def tensors_of(policy: Policy) -> dict[str, Tensor]:
    """All parameters and buffers: of the network, and of frozen parts beside it under their names."""
    network = policy.network
    tensors = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    model = vars(policy).get("model")
    for part, module in (model.frozen_parts() if isinstance(model, WithFrozenParts) else {}).items():
        tensors |= {f"{part}: {name}": value for name, value in (*module.named_parameters(), *module.named_buffers())}
    return tensors


def digests(policy: Policy) -> dict[str, str]:
    """A hash of every tensor, bit for bit."""

    def digest(value: Tensor) -> str:
        plain = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        return hashlib.blake2b(plain.numpy().tobytes(), digest_size=16).hexdigest()

    return {name: digest(value) for name, value in tensors_of(policy).items()}


def trainable(policy: Policy) -> set[str]:
    """Names of the parameters that train."""
    return {name for name, value in policy.network.named_parameters() if value.requires_grad}


@torch.no_grad()
def disturb(policy: Policy) -> None:
    """Add noise to every trained weight, of the same seed on every machine."""
    generator = torch.Generator().manual_seed(7)
    for name, parameter in policy.network.named_parameters():
        if parameter.requires_grad:
            size = 1.0 if ".lora_" in name else float(parameter.float().square().mean().sqrt())
            noise = DISTURBANCE * size * torch.randn(parameter.shape, generator=generator)
            parameter += noise.to(parameter.device, parameter.dtype)


def unlike(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    """Reward: a number that differs within every group and costs nothing."""
    return [float(place % GROUP) for place, _ in enumerate(outputs)]


def distance(one: Output, other: Output) -> float:
    """0 for equal outputs; else the largest difference of their values, infinite for other texts or sizes."""
    if isinstance(one, Text) or isinstance(other, Text):
        return 0.0 if one == other else torch.inf
    left, right = values(one), values(other)
    return float((left - right).abs().max()) if left.shape == right.shape else torch.inf


def values(output: Output) -> Tensor:
    """The pixels or samples of an output."""
    if isinstance(output, Image):
        return output.pixels
    if isinstance(output, Video):
        return output.frames
    assert isinstance(output, Audio)
    return output.samples


def kinds(prompts: Sequence[Prompt]) -> list[str]:
    """What prompts consist of."""
    media = [medium.kind for prompt in prompts for medium in prompt.media]
    return [*dict.fromkeys([*media, *(["text"] if any(prompt.text for prompt in prompts) else [])])]


WORDS = ("a red square", "a blue circle")
QUESTIONS = ("what is in it ?", "is it red ?")
SIDE, RATE = 64, 16_000
"""Pixels of images, and samples a second of recordings, in prompts."""


def prompts_of(owner: Family) -> list[list[Prompt]]:
    """Prompts that a model of the family may take, two of a kind; the first kind that it takes is used."""
    texts = [Prompt(words, str(number)) for number, words in enumerate(WORDS)]
    ramp = torch.linspace(0, 1, SIDE).expand(SIDE, SIDE)
    images = [Image(torch.stack([ramp, shade * ramp.T, ramp.T])) for shade in (0.2, 0.9)]
    shown = [Media("image", image) for image in images]
    if owner.modality == "visual":
        return [_with(shown, WORDS)] if owner.image_input else [texts]
    times = torch.arange(RATE)
    sounds = [Media("audio", Audio(torch.sin(times * pace)[None] / 2, RATE)) for pace in (0.02, 0.03)]
    voiced = [
        replace(prompt, meta={"reference_text": "hum", "seconds": 1.0})
        for prompt in _with(sounds, ("a red square", "blue"))
    ]
    return [_with(shown, QUESTIONS), voiced, _with(sounds, ("", "")), texts]


def _with(media: Sequence[Media], words: Sequence[str]) -> list[Prompt]:
    """Prompts of a medium and words each."""
    pairs = enumerate(zip(media, words, strict=True))
    return [
        Prompt(text, str(number), turns=(Turn("user", (medium, text) if text else (medium,)),))
        for number, (medium, text) in pairs
    ]
