"""The engine of a run's rollouts, and the weights that are sent to it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mmgrpo.config.settings import Config
from mmgrpo.engines.denoising import OwnDenoiser, SynchronizedDenoiser
from mmgrpo.engines.engine import Engine, Lanes, Synchronized, parameters
from mmgrpo.policies.denoising import DenoisingPolicy
from mmgrpo.policies.token import TokenPolicy
from pipelines.lora import UNTIED, tied
from pipelines.training import torch_dtype
from pipelines.vllm_engine import media_of

if TYPE_CHECKING:
    from mmgrpo.family import Family

GAPS = {"float32": 1e-3, "bfloat16": 0.05, "float16": 0.05}
"""``rollout.max_gap`` by precision: kernels differ by 5e-7 to 1e-6 in fp32, and by about 0.01 in half of it."""


def draw_with_engine(
    owner: Family, config: Config, policy: Any, device: str, processes: int, process: int, run: str = ""
) -> None:
    """Let the engine of ``config.rollout`` draw a policy's rollouts: completions, or trajectories of denoising; a
    server draws for the ``run`` of this id."""
    rollout, model = config.rollout, policy.model
    engines: list[Any] = []
    if rollout.engine == "served":
        from mmgrpo.engines.served import Client, title_of, token_of

        token = token_of(rollout.token_file)
        for url in rollout.servers(processes, process):
            times = {"timeout": rollout.timeout, "patience": rollout.patience}
            engines.append(Client(url, token, **times, run=run, title=title_of(config)))
    else:
        assert owner.engines is not None
        engines.append(owner.engines.make(owner, config, device))
    dtype, network, gap = torch_dtype(config.model.dtype), policy.network, rollout.max_gap or GAPS[config.model.dtype]
    if isinstance(policy, DenoisingPolicy):
        if len(engines) > 1:
            raise ValueError(
                f"rollout.url: got {len(engines)} servers for each process, expected one, since denoising models draw "
                "one round after the other"
            )
        return policy.draw_with(SynchronizedDenoiser(engines[0], partial(parameters, network), max_gap=gap))

    def synchronized(engine: Engine) -> Synchronized:
        if rollout.lora == "adapter" and engine.form == "merged":
            raise ValueError(
                f"rollout.lora: got adapter, but {engine.name} takes merged weights; start it with the options of the "
                "run, --rollout.lora adapter among them, or leave it out"
            )
        if engine.form != "own":
            check_untied(network, engine.name)
        foreign, forms = engine.form != "own", {"own": parameters, "merged": partial(merged, dtype=dtype)}
        weights = {**forms, "adapters": partial(apart, dtype=dtype)}[engine.form]
        return Synchronized(
            engine,
            lambda: weights(network),
            model,
            max_gap=gap,
            # Our own sampler's log-probs are of the whole distribution.
            top_p=policy.top_p if foreign else 1.0,
            media=partial(media_of, model) if foreign else None,
            overlaps=rollout.engine == "served" and rollout.max_staleness > 0,
        )

    lanes = [synchronized(engine) for engine in engines]
    policy.draw_with(lanes[0] if len(lanes) == 1 else Lanes(lanes))


def make_engine(owner: Family, config: Config, device: str) -> Engine:
    """The engine ``sampler`` or ``vllm`` of a configuration, in this process."""
    if config.rollout.engine == "vllm":
        from pipelines.vllm_engine import VllmEngine

        return VllmEngine.of(config, device)
    from mmgrpo.engines.sampler import OwnSampler

    policy: Any = owner.policy(config_on(config, device), device, training=False)
    return OwnSampler(policy)


def make_denoiser(owner: Family, config: Config, device: str) -> OwnDenoiser:
    """The engine ``sampler`` of a denoising family, in this process."""
    policy: Any = owner.policy(config_on(config, device), device, training=False)
    return OwnDenoiser(policy)


def end_engine(policy: Any) -> None:
    """End the engine of a policy, where there is one."""
    if isinstance(policy, DenoisingPolicy | TokenPolicy) and policy.engine is not None:
        policy.engine.close()


def config_on(config: Config, device: str) -> Config:
    """The configuration of an engine's own copy of the model, which never trains, and reads prompts as they come."""
    apart: dict[str, Any] = {"device": device, "gradient_checkpointing": False}
    if "forget_encoders" in vars(config.model):
        apart["forget_encoders"] = False
    return replace(config, model=replace(config.model, **apart))


def check_untied(network: Any, engine: str) -> None:
    """ValueError where an adapted layer shares its weight with another module in the checkpoint, so that an engine,
    which reads the checkpoint, has one tensor for the two."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    layers = {name: one.get_base_layer() for name, one in network.named_modules() if isinstance(one, BaseTunerLayer)}
    shared = [name for name, layer in layers.items() if tied(network, [layer])]
    if shared or network in UNTIED:
        which = f"'{shared[0]}'" if shared else "one of the two in model.lora_path"
        raise ValueError(
            f"rollout.engine: {engine} has one tensor for the input embeddings and the output layer, which this model "
            f"ties; got adapters of {which}; leave it out of "
            "model.lora_targets, or set rollout.engine=sampler"
        )


def merged(network: Any, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a network without adapters that computes what this one does, W + scale B A in fp32, in the
    precision of computation; names are those of the checkpoint's own network."""
    for name, value, layer in _base(network):
        if layer is not None and name.endswith(".weight") and not layer.disable_adapters:
            changes = [layer.get_delta_weight(one).float() for one in layer.active_adapters]
            value = value.detach().float() + sum(changes)
        yield name, value.detach().to(dtype) if value.is_floating_point() else value.detach()


def apart(network: Any, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a network without its adapters, in the precision of computation, and A and scale B of the adapters
    in fp32, as ``<module>.lora_A.weight`` and ``<module>.lora_B.weight``."""
    layers: dict[int, tuple[str, Any]] = {}
    for name, value, layer in _base(network):
        if layer is not None:
            layers[id(layer)] = name.rpartition(".")[0], layer
        yield name, value.detach().to(dtype) if value.is_floating_point() else value.detach()
    for name, layer in layers.values():
        (active,) = layer.active_adapters
        yield f"{name}.lora_A.weight", layer.lora_A[active].weight.detach().float()
        yield f"{name}.lora_B.weight", layer.lora_B[active].weight.detach().float() * layer.scaling[active]


def _base(network: Any) -> Iterator[tuple[str, Tensor, Any]]:
    """The tensors of the checkpoint's own network by name, and the adapted layer of which one is a part."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    adapted: dict[str, Any] = {name: one for name, one in network.named_modules() if isinstance(one, BaseTunerLayer)}
    for name, value in parameters(network):
        if ".lora_" not in name:
            outer, inside, leaf = name.rpartition(".base_layer.")
            yield (f"{outer}.{leaf}", value, adapted[outer]) if inside else (name, value, None)
