"""A trainer over a toy policy, in a few words."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, TypeVar

import torch
from accelerate import Accelerator
from torch import nn

from mmgrpo.advantages.estimate import AdvantageRecipe
from mmgrpo.advantages.weighting import RewardWeights
from mmgrpo.config.reading import build
from mmgrpo.config.schedules import read
from mmgrpo.config.settings import Algorithm, Optim
from mmgrpo.evaluation import EvalSettings
from mmgrpo.family import Family, families, family
from mmgrpo.policies.boundaries import Boundaries
from mmgrpo.policies.denoising import DenoisingPolicy
from mmgrpo.policies.exploring import Exploration
from mmgrpo.policies.flow_matching import FlowMatchingPolicy, Matching, Views
from mmgrpo.policies.token import TokenPolicy
from mmgrpo.policies.token_passes import Memory
from mmgrpo.policies.walks import walk_of
from mmgrpo.prompts.drawing import Sampling
from mmgrpo.prompts.ledger import Measured, TrainingPrompts
from mmgrpo.report.run_record import RunRecord
from mmgrpo.rollout import Round, RoundSettings
from mmgrpo.rounds import methods, schedule_callbacks
from mmgrpo.rounds.callback import Callback, Hyperparameters, Run
from mmgrpo.rounds.moving_average import Ema, MovingAverage
from mmgrpo.runtime.metrics import read_metrics
from mmgrpo.runtime.progress import Checkpoints
from mmgrpo.scoring import ErrorRate, Scorer
from mmgrpo.trainer import Trainer
from mmgrpo.types import Output, Policy, Prompt
from mmgrpo.update import LossRecipe
from pipelines import denoising, language
from pipelines.training import PLAIN, Training


def module(name: str) -> ModuleType:
    """The module of a family, with its ``load`` and ``tiny``."""
    return importlib.import_module(family(name).module)


def rescored(policy: Any, rollout: Any, name: str = "log_probs", limit: int = 1000) -> torch.Tensor:
    """A score of all decisions [B, T], computed in parts of ``limit`` decisions, and 0 where there is none."""
    dense = torch.zeros_like(rollout.decisions.log_probs)
    with torch.no_grad():
        for part in rollout.steps.split(rollout.decisions.loss_mask, limit):
            dense[part.rows, part.positions] = policy.score(rollout, part, frozenset({name}))[name]
    return dense


def check_scores(policy: Any, rollout: Any, limit: int) -> None:
    """Decisions scored in parts of ``limit`` have the log-probs with which they were sampled."""
    mask, sampled = rollout.decisions.loss_mask, rollout.decisions.log_probs
    assert mask.any()
    torch.testing.assert_close(rescored(policy, rollout, limit=limit)[mask], sampled[mask], rtol=0, atol=2e-5)


def load(family: ModuleType | str, folder: str | Path, training: Training = PLAIN, /, **settings: Any) -> Any:
    """The model of a family, of this name or module; settings are those of ``Training`` and the family's options, and
    ``keep_reference``."""
    keep = settings.pop("keep_reference", False)
    name = family if isinstance(family, str) else family.__name__.split(".")[-1]
    options = families()[name].sections.model
    names, own = ({one.name for one in fields(kind)} & settings.keys() for kind in (Training, options))
    training = replace(training, **{name: settings.pop(name) for name in names})
    made = options(path=str(folder), **{name: settings.pop(name) for name in own - names})
    model = module(name).load(made, training, **settings)
    if keep:
        model.reference.keep()
    return model


def refuse_foreign(one: Family, path: str) -> None:
    """What a family raises for a checkpoint of another architecture, as it does before it loads."""
    if one.sections.process == "tokens":
        language.refuse_other_architectures(one.name, path)
    else:
        denoising.refuse_other_architectures(one.name, one.architectures, path)


def token_policy_over(model: Any, max_tokens: int, **settings: Any) -> TokenPolicy:
    """A policy over tokens; settings are those of its walk (``walk_of``), of ``Memory`` and its own."""
    walk, memory = (
        {name: settings.pop(name) for name in inspect.signature(made).parameters if name in settings}
        for made in (walk_of, Memory)
    )
    return TokenPolicy(model, max_tokens=max_tokens, walk=walk_of(**walk), memory=Memory(**memory), **settings)


def denoising_policy_over(
    model: Any,
    plan: str = "every_step",
    kernel: str = "dance(eta=0.3)",
    steps: int = 4,
    evaluation_steps: int = 2,
    forward_batch_size: int = 64,
) -> DenoisingPolicy:
    """A denoising policy of a few steps."""
    return DenoisingPolicy(
        model,
        steps=steps,
        kernel_text=kernel,
        plan=plan,
        evaluation_steps=evaluation_steps,
        forward_batch_size=forward_batch_size,
    )


def matching_policy_over(
    model: Any,
    draws: int = 2,
    error: str = "velocity",
    noisy_fraction: float = 1.0,
    draws_per: str = "prompt",
    times: str = "uniform",
    explore_steps: int = 0,
    explore_keep: int = 24,
    boundaries: bool = False,
    least_level: float = 0.0,
    forward_batch_size: int = 1024,
    drawing: Any = None,
    evaluation: Any = None,
    referring: Any = None,
    **settings: Any,
) -> FlowMatchingPolicy:
    """A policy over drawn noise levels; further settings are its own."""
    return FlowMatchingPolicy(
        model,
        matching=Matching(draws, error, noisy_fraction, draws_per, times),
        exploration=Exploration(explore_steps, explore_keep) if explore_steps else None,
        boundaries=Boundaries(least_level) if boundaries else None,
        forward_batch_size=forward_batch_size,
        views=Views(drawing, evaluation, referring),
        **settings,
    )


def recipe(**changes: Any) -> AdvantageRecipe:
    """GRPO's advantages, with changes."""
    written = {
        "transform": [],
        "weighting": [],
        "combine": "weighted_sum",
        "keys": ["prompt"],
        "baseline": "group_mean",
        "scale": "group_std(ddof=1, eps=1e-4)",
        "shape": [],
        "credit": "broadcast",
        "select": [],
        "kl_weight": "none",
        "parts": [],
    }
    return AdvantageRecipe.of(SimpleNamespace(**{**written, **changes}))


def algorithm_blocks(preset: str, **changes: Any) -> dict[str, Any]:
    """What ``trainer`` takes of a preset, bound as a training script binds it."""
    algorithm = build(Algorithm, {"preset": preset, **changes}, "the test")
    return {
        "advantages": AdvantageRecipe.of(algorithm),
        "loss": LossRecipe.read(algorithm),
        "sampler": algorithm.sampler,
        "trackers": algorithm.trackers,
    }


def first_number(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    """Reward: the picture's first number."""
    return [float(output.pixels[0]) for output in outputs]


def near_one(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    """Reward: 0 at best, when every number of the picture is one."""
    return [-float((output.pixels - 1).square().mean()) for output in outputs]


def trainer(
    policy: Policy,
    folder: Path,
    prompts: Sequence[Prompt],
    *,
    reward: Any = first_number,
    advantages: AdvantageRecipe | None = None,
    loss: LossRecipe | None = None,
    heldout: Sequence[Prompt] = (),
    columns: Sequence[str] = (),
    extra: Mapping[str, Sequence[Prompt]] | None = None,
    error_rates: Sequence[ErrorRate] = (),
    prompts_per_step: int = 2,
    group_size: int = 4,
    redraws: int = 0,
    sampler: Sequence[str] = (),
    trackers: Sequence[str] = (),
    steps: int = 4,
    seed: int = 0,
    save_every: int = 1000,
    every: int = 0,
    patience: int = 0,
    patience_reward: str = "",
    scorers: Sequence[Scorer] = (),
    accelerator: Accelerator | None = None,
    schedules: Mapping[str, str] | None = None,
    offline: float = 0.0,
    given: Sequence[Prompt] = (),
    measured: Mapping[int, Sequence[float]] | None = None,
    staleness: int = 0,
    callbacks: Sequence[Callback] = (),
    **optim: Any,
) -> Trainer:
    """A trainer with small defaults."""
    accelerator = accelerator or Accelerator(cpu=True)
    sampler = [f"dynamic_sampling(rounds={redraws})"] if redraws else sampler
    samplers = Sampling.of(sampler, trackers)
    ledger = samplers.ledger(prompts)
    ledger.start({number: Measured.of(values) for number, values in (measured or {}).items()})
    scorers = scorers or [Scorer("reward", reward, rates=error_rates)]
    advantages = advantages or recipe()
    loss = loss or LossRecipe.of("ppo(low=0.2, high=0.2)", "per_sample")
    optim_settings = Optim(**{"lr": 1e-2, "max_grad_norm": 0.0, "weight_decay": 0.0, **optim})
    evaluation = EvalSettings(
        prompts=heldout,
        every=every,
        batch_size=256,
        samples=4,
        extra=extra or {},
        groups=columns,
        patience=patience,
        patience_reward=patience_reward,
    )
    texts = {name: schedule for name, text in (schedules or {}).items() if (schedule := read(text, name))}
    rounds = RoundSettings(prompts_per_step, group_size, samplers=samplers)
    return Trainer(
        policy=policy,
        scorers=scorers,
        hyperparameters=Hyperparameters(advantages, loss, rounds, RewardWeights.of(scorers)),
        prompts=TrainingPrompts(prompts, ledger),
        optim=optim_settings,
        steps=steps,
        seed=seed,
        evaluation=evaluation,
        record=RunRecord(Checkpoints(folder, accelerator, save_every)),
        callbacks=[
            *methods(
                loss,
                optim_settings,
                scorers,
                patience=patience,
                patience_reward=patience_reward,
                every=every,
                given=given,
                offline=offline,
                steps=steps,
                staleness=staleness,
                weighting=advantages.weighting,
            ),
            *callbacks,
            *schedule_callbacks(advantages, loss, samplers, scorers, texts, steps),
        ],
    )


class Rounds(Callback):
    """Keeps the rounds of a run."""

    def __init__(self) -> None:
        self.rounds: list[Round] = []

    def on_round_end(self, run: Run, round_: Round) -> None:
        self.rounds.append(round_)


def rounds_of(made: Trainer) -> list[Round]:
    """The rounds of a run from now on, as they come."""
    keeping = Rounds()
    made.callbacks.callbacks["rounds"] = keeping
    return keeping.rounds


C = TypeVar("C", bound=Callback)


def attached(made: Trainer, kind: type[C]) -> C:
    """The callback of a kind in a run that has one."""
    [callback] = (one for one in made.callbacks if isinstance(one, kind))
    return callback


def average_of(made: Trainer) -> Ema:
    """The moving average of the weights of a run that keeps one."""
    return attached(made, MovingAverage).average


def killed_and_whole(fresh: Callable[[Path], Trainer], folder: Path) -> list[list[dict[str, Any]]]:
    """The metrics, without times, of a run that is killed a round behind its checkpoint of step 2 and goes on, and of
    the same run without that."""
    fresh(folder / "whole").fit()
    killed = fresh(folder / "killed")
    for _ in range(2):
        killed.run_round()
    killed.save()
    killed.run_round()
    resumed = fresh(folder / "killed")
    assert resumed.resume() and resumed.step == 2
    resumed.fit()
    times = ("seconds", "memory")
    return [
        [
            {name: value for name, value in line.items() if not name.startswith("time/") and name not in times}
            for line in read_metrics(folder / one / "metrics.jsonl")
        ]
        for one in ("killed", "whole")
    ]


def amplify(network: nn.Module, factor: float) -> None:
    """Multiply every matrix but the embeddings.

    The libraries draw weights with a standard deviation of 0.02, for widths of a thousand. A network of 32 hardly
    passes its input on with them, and whether it leaves the plateau in time is left to chance.
    """
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if parameter.ndim > 1 and "embed_tokens" not in name:
                parameter *= factor


def misses() -> ErrorRate:
    """Wrong numbers of a picture / its numbers, where the prompt's own number says how many count: 1 to 5."""

    def units(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
        return [1.0 + int(prompt.id) % 5 for prompt in prompts]

    def errors(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
        return [float(n * (o.pixels[0] < 0)) for n, o in zip(units(prompts, outputs), outputs, strict=True)]

    return ErrorRate("miss", errors, units)
