"""What families of denoising models share, whatever they generate: the checks of their settings, the cost of a rollout,
and the policy over a loaded model. This file imports no torch, so ``--help`` is fast."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Literal

from mmgrpo.config.needs import needs_of
from mmgrpo.config.plugins import locate
from mmgrpo.config.registry import bind, parse
from mmgrpo.config.settings import Config
from mmgrpo.family import Arithmetic, families
from pipelines.options import DenoisingSampling

if TYPE_CHECKING:
    from mmgrpo.data.media import Skipped
    from mmgrpo.diffusion.plan import Plan
    from mmgrpo.types import Policy, Prompt
    from pipelines.existing_lora import Names

Process = Literal["flow", "diffusion"]
"""What a network was trained on, which decides on the kernels, the noise levels and the kind of decisions."""

CHECKPOINT = "checkpoint"
"""Name of the noise levels of the checkpoint's own scheduler."""

DECISIONS = {"transitions": "gaussian", "matching": "matching", "neighbors": "neighbors", "gradients": "gradients"}
"""``sampling.policy`` to the kind of its decisions, for which presets are defined."""


def check_decisions(config: Config) -> None:
    """Raise ValueError for plans that are drawn for each prompt and are the same for all."""
    transitions = config.sampling.policy == "transitions"
    if transitions and config.sampling.plan_per == "prompt" and not first_plans(config)[1]:
        raise ValueError(
            f"sampling.plan_per: got prompt, which has no effect with sampling.plan={config.sampling.plan}, which is "
            "the same for all prompts; set plan_per=round, or take a "
            "plan that is drawn, e.g. one_step_branch or random_window"
        )


def decisions(config: Config) -> str:
    """``gaussian`` transitions, flow-``matching`` errors at sampled noise levels, ``neighbors`` or ``gradients``."""
    return DECISIONS[config.sampling.policy]


def has(config: Config, drawn_apart: bool = False) -> frozenset[str]:
    """What blocks may require of the rollouts of a denoising policy (``mmgrpo.requirements``); ``drawn_apart``: another
    model draws in place of the policy. Only transitions are drawn with a probability, and by a plan."""
    sampling = config.sampling
    if sampling.policy != "transitions":
        return frozenset({"positions"})
    plans, _ = first_plans(config)
    there = {
        "tree": any(shares_decisions(plan) for plan in plans),
        "later_steps": any(prunable(plan) for plan in plans),
        "positions": True,
        "subtrees": any(1 < plan.roots < plan.rows for plan in plans),
        "steps": bool(sampling.completion_steps),
        "sampler": drawn_apart or config.rollout.engine != "policy",
    }
    return frozenset(name for name, known in there.items() if known)


def shares_decisions(plan: Plan) -> bool:
    """Whether rows of a group share a trained transition, as in a tree that splits after it."""
    edges = zip(plan.edges, plan.trained, strict=True)
    return not plan.prune and any(trained and width < plan.rows for width, trained in edges)


def prunable(plan: Plan) -> bool:
    """Whether a step is trained after the last split of a tree."""
    last = max((step for step, count in enumerate(plan.branches) if count > 1), default=plan.steps)
    return any(plan.trained[last + 1 :])


def first_plans(config: Config) -> tuple[list[Plan], bool]:
    """Plans of the first round, and whether they are drawn at random."""
    from mmgrpo.diffusion.planners import planner
    from mmgrpo.randomness import stream

    generator = stream(config.seed, "arithmetic")
    before = generator.get_state()
    plans = planner(config.sampling.plan)(config.sampling.steps, config.data.group_size, 0, generator)
    return plans, not bool((generator.get_state() == before).all())


def check_sampling(name: str, process: Process, sampling: DenoisingSampling) -> None:
    """Raise ValueError for unknown names and values in the options that are written ``name(parameter=value)``, for
    those of another process than that of the family ``name``, and for more draws than noise levels."""
    from mmgrpo.diffusion.kernels import KERNELS
    from mmgrpo.diffusion.planners import PLANS
    from mmgrpo.diffusion.schedules import GRIDS
    from mmgrpo.policies.flow_matching import ERRORS

    if sampling.grid != CHECKPOINT:
        bind(sampling.grid, GRIDS, "sampling.grid")
    bind(sampling.kernel, KERNELS, "sampling.kernel")
    bind(sampling.plan, PLANS, "sampling.plan")
    bind(sampling.error, ERRORS, "sampling.error")
    refuse_other_process(name, process, sampling)
    if sampling.policy == "gradients":
        from mmgrpo.policies.reward_gradients import gradient_path

        gradient_path(sampling.gradient)
    if sampling.reward_drift:
        from mmgrpo.policies.reward_drift import drift_of

        first = drift_of(sampling.reward_drift).first
        if first >= sampling.steps:
            raise ValueError(
                f"sampling.reward_drift: got first={first}, expected less than sampling.steps={sampling.steps}, since "
                "nothing would be moved"
            )
    levels = round(sampling.noisy_fraction * sampling.steps)
    [drawing] = needs_of(type(sampling))["draws"]
    if sampling.draws > levels and drawing.is_met({"sampling.policy": sampling.policy}, ()):
        raise ValueError(
            f"sampling.draws: got {sampling.draws}, expected at most {levels}, the number of noise levels "
            f"(sampling.steps={sampling.steps} times sampling.noisy_fraction={sampling.noisy_fraction}); lower it or "
            "take more steps"
        )


def refuse_other_process(name: str, process: Process, sampling: DenoisingSampling) -> None:
    """ValueError for a kernel of another process than the family's."""
    from mmgrpo.diffusion.kernels import DIFFUSION_KERNELS, KERNELS

    kernels = [kernel for kernel in KERNELS if (kernel in DIFFUSION_KERNELS) == (process == "diffusion")]
    if parse(sampling.kernel)[0] not in kernels:
        raise ValueError(
            f"sampling.kernel: got {sampling.kernel}, expected {' or '.join(kernels)}, since '{name}' is a "
            f"family of {process} models"
        )


def cost_of_a_rollout(config: Config, evaluations: int, drawn_apart: int = 0) -> Arithmetic:
    """Prompts x samples x branch points -> samples, network evaluations and decisions; ``evaluations`` per forward pass
    are 2 with classifier-free guidance, else 1. ``drawn_apart`` are those of a model that draws in place of the policy,
    which then only scores its stochastic steps; 0 for none."""
    from mmgrpo.diffusion.completions import completion_evaluations
    from mmgrpo.diffusion.planners import planner
    from mmgrpo.randomness import stream

    data, sampling = config.data, config.sampling
    passes = data.prompts_per_step * evaluations
    if sampling.policy == "matching":
        kept = sampling.explore_keep if sampling.explore_steps else data.group_size
        branch_points, samples = 1, data.prompts_per_step * kept
        per_prompt = kept * sampling.draws
        # A rollout also evaluates the old errors, at every sampled noise level.
        drawing = data.prompts_per_step * (drawn_apart or evaluations)
        steps = data.group_size * sampling.explore_steps + kept * sampling.steps
        sampled = drawing * steps + passes * per_prompt
        decisions, trained = data.prompts_per_step * per_prompt, passes * per_prompt
    elif sampling.policy == "neighbors":
        branch_points, samples = 1, data.prompts_per_step * data.group_size
        sampled = passes * data.group_size * sampling.steps
        decisions = samples * sampling.draws * sampling.anchors
        trained = passes * sampling.draws * sampling.anchors
    elif sampling.policy == "gradients":
        from mmgrpo.policies.reward_gradients import Adjoint, gradient_path

        branch_points, samples = 1, data.prompts_per_step * data.group_size
        path = gradient_path(sampling.gradient)
        each = sampling.steps if isinstance(path, Adjoint) else 1
        decisions, sampled = samples * each, passes * data.group_size * sampling.steps
        sampled *= 2 if isinstance(path, Adjoint) else 1  # the reference, backwards
        trained = passes * data.group_size * path.evaluations(sampling.steps)
    else:
        drawing, generator, alike = planner(sampling.plan), stream(config.seed, "arithmetic"), data.prompts_per_step
        times, alike = (alike, 1) if sampling.plan_per == "prompt" else (1, alike)
        drawn = [drawing(sampling.steps, data.group_size, 0, generator) for _ in range(times)]
        plans = [plan for draw in drawn for plan in draw]
        branch_points, samples = len(drawn[0]), alike * sum(plan.survivors for plan in plans)
        sampled = alike * (drawn_apart or evaluations) * sum(plan.evaluations for plan in plans)
        if sampling.completion_steps:
            completing = sum(completion_evaluations(plan, sampling.completion_steps) for plan in plans)
            sampled += alike * (drawn_apart or evaluations) * completing
        if drawn_apart:
            sampled += alike * evaluations * sum(plan.stochastic_evaluations for plan in plans)
        decisions = alike * sum(plan.trained_edges for plan in plans)
        trained = alike * evaluations * sum(plan.training_evaluations for plan in plans)
    groups = f"{data.prompts_per_step} prompts x {data.group_size} samples"
    groups += f" x {branch_points} branch points" if branch_points > 1 else ""
    trained *= config.optim.epochs
    return Arithmetic(
        (
            f"{groups} = {samples:,} samples, {sampling.steps} denoising steps",
            f"{sampled:,} network evaluations to sample, {decisions:,} decisions trained "
            f"with {trained:,} evaluations forward and backward",
        ),
        groups=data.prompts_per_step * branch_points,
        totals={"samples": samples, "evaluations to sample": sampled, "evaluations to train": trained},
    )


def policy_over(
    model: Any,
    config: Config,
    device: str,
    drawing: Any = None,
    evaluation: Any = None,
    referring: Any = None,
    reference_guidance: float = 1.0,
) -> Policy:
    """The policy over a loaded model's transitions, or over its errors at sampled noise levels; ``drawing`` and
    ``evaluation`` are variants of the model that draw rollouts and evaluation samples in its place, ``referring`` one
    that is the reference of errors, with ``reference_guidance``."""
    from mmgrpo.policies.boundaries import Boundaries
    from mmgrpo.policies.denoising import DenoisingPolicy
    from mmgrpo.policies.exploring import Exploration
    from mmgrpo.policies.flow_matching import FlowMatchingPolicy, Matching, Views
    from mmgrpo.policies.neighbors import NeighborPolicy

    sampling = config.sampling
    arguments: dict[str, Any] = {
        "steps": sampling.steps,
        "evaluation_steps": sampling.evaluation_steps,
        "forward_batch_size": sampling.forward_batch_size,
        "device": device,
        "drawing": drawing,
        "evaluation": evaluation,
    }
    if sampling.policy == "matching":
        policy: Any = FlowMatchingPolicy(
            model,
            matching=Matching(
                sampling.draws, sampling.error, sampling.noisy_fraction, sampling.draws_per, sampling.times
            ),
            solver=sampling.solver,
            draw_dtype=sampling.draw_dtype,
            views=Views(arguments.pop("drawing"), arguments.pop("evaluation"), referring),
            exploration=(
                Exploration(sampling.explore_steps, sampling.explore_keep) if sampling.explore_steps else None
            ),
            boundaries=Boundaries(sampling.least_level, reference_guidance) if sampling.boundaries else None,
            **arguments,
        )
    elif sampling.policy == "neighbors":
        del arguments["drawing"]
        of_groups = {"draws": sampling.draws, "anchors": sampling.anchors, "spread": sampling.spread}
        policy = NeighborPolicy(model, temperature=sampling.temperature, **of_groups, **arguments)
    elif sampling.policy == "gradients":
        from mmgrpo.policies.adjoint_matching import AdjointMatchingPolicy
        from mmgrpo.policies.reward_gradients import Adjoint, RewardGradientPolicy, gradient_path

        del arguments["drawing"]
        path = gradient_path(sampling.gradient)
        if isinstance(path, Adjoint):
            policy = AdjointMatchingPolicy(model, path=path, **arguments)
        else:
            policy = RewardGradientPolicy(model, path=path, **arguments)
    else:
        of_steps = {"kernel_text": sampling.kernel, "completion_steps": sampling.completion_steps}
        of_steps |= {"reward_drift": sampling.reward_drift}
        policy = DenoisingPolicy(model, plan=sampling.plan, plan_per=sampling.plan_per, **of_steps, **arguments)
    return policy


def refuse_other_architectures(name: str, architectures: Sequence[str], path: str) -> None:
    """ValueError for a checkpoint that declares the architecture of another family than ``name``; it is named."""
    from pipelines.pretrained import architecture

    declared = architecture(path)
    if not declared or declared in architectures:
        return
    fitting = [other.name for other in families().values() if declared in other.architectures]
    advice = f"take model.family={fitting[0]}" if fitting else f"expected {' or '.join(architectures)}"
    record = families().get(name)  # None: a family of one's own
    if record and not fitting and declared.endswith("Model") and ("Transformer" in declared or "UNet" in declared):
        # A network that is published by itself: its folder has no encoders and no VAE.
        options = record.sections.model()
        where = "model.transformer" if "transformer" in {f.name for f in fields(options)} else "its transformer/"
        advice += (
            f". It holds one network alone: name the folder of a whole pipeline as model.path, e.g. {options.path}, "
            f"and this one as {where}"
        )
    raise ValueError(f"'{path}' is a {declared}, which the family '{name}' does not read; {advice}")


def load_model(
    config: Config,
    device: str,
    training: bool,
    weights: str,
    name: str,
    module: str,
    architectures: Sequence[str],
    names: Names | None = None,
) -> Any:
    """The model that the ``module`` of a family loads from model.path; ``names`` are those of ``Training.of``."""
    from pipelines.training import Training

    options, path, shard = config.model, locate(config.model.path), config.distributed.shard
    refuse_other_architectures(name, architectures, path)
    settings = Training.of(
        options, seed=config.seed, device=device, weights=weights, training=training, shard=shard, names=names
    )
    return importlib.import_module(module).load(replace(options, path=path), settings)


def refuse_model(
    name: str, module: str, architectures: Sequence[str], options: type, config: Config, path: str
) -> None:
    """FileNotFoundError or ValueError for what is no model of the family, before its weights are read."""
    from pipelines.pretrained import refuse_none

    refuse_none(path, options, module)
    refuse_other_architectures(name, architectures, path)


def accept(config: Config, policy: Policy, prompts: Sequence[Prompt]) -> tuple[list[Prompt], list[Skipped]]:
    """The prompts that the loaded model reads whole, and the skipped ones."""
    return read_whole(policy.model.check, config, prompts)  # type: ignore[attr-defined]


def read_whole(
    check: Callable[[Prompt], None], config: Config, prompts: Sequence[Prompt]
) -> tuple[list[Prompt], list[Skipped]]:
    """The prompts that the model reads whole, and the skipped ones, of which ``check`` raises ValueError."""
    from mmgrpo.data.media import Skipped
    from pipelines.readable import check_skip_limit

    usable, skipped = [], []
    for prompt in prompts:
        try:
            check(prompt)
            usable.append(prompt)
        except ValueError as error:
            skipped.append(Skipped(prompt.id, "", str(error)))
    check_skip_limit(skipped, len(prompts), config.data.skip_limit, "the prompts", "cannot be read whole")
    return usable, skipped
