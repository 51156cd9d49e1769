"""The engine of a run's rollouts, and the weights that are sent to it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mmgrpo.config.settings import Config
from mmgrpo.config.settings import Engine as Settings
from mmgrpo.engines.engine import Engine, Lanes, Synchronized, parameters
from pipelines.training import torch_dtype
from pipelines.vllm_engine import media_of

if TYPE_CHECKING:
    from mmgrpo.family import Family

GAPS = {"float32": 1e-3, "bfloat16": 0.05, "float16": 0.05}
"""``rollout.max_gap`` by precision: kernels differ by 5e-7 to 1e-6 in fp32, and by about 0.01 in half of it."""


def draw_with_engine(owner: Family, config: Config, policy: Any, device: str, processes: int, process: int) -> None:
    """Let the engine of ``config.rollout`` draw the completions of a token policy's rollouts."""
    rollout, model = config.rollout, policy.model
    if rollout.engine == "vllm" and processes > 1:
        raise ValueError(
            f"rollout.engine: got vllm with {processes} processes, expected one, whose device it shares; start a "
            "server per process (mmgrpo serve-engine) and set rollout.engine=served with their rollout.url"
        )
    engines: list[Engine] = []
    if rollout.engine == "served":
        from mmgrpo.engines.served import Client

        token = Path(rollout.token_file).expanduser().read_text("utf-8").strip() if rollout.token_file else ""
        for url in servers_of(rollout, processes, process):
            engines.append(Client(url, token, timeout=rollout.timeout, patience=rollout.patience))
    else:
        engines.append(make_engine(owner, config, device))
    dtype, network = torch_dtype(config.model.dtype), policy.network

    def synchronized(engine: Engine) -> Synchronized:
        return Synchronized(
            engine,
            lambda: merged(network, dtype) if engine.merged else parameters(network),
            model,
            max_gap=rollout.max_gap or GAPS[config.model.dtype],
            # Our own sampler's log-probs are of the whole distribution.
            top_p=policy.top_p if engine.merged else 1.0,
            media=partial(media_of, model) if engine.merged else None,
            overlaps=rollout.engine == "served" and rollout.max_staleness > 0,
        )

    lanes = [synchronized(engine) for engine in engines]
    policy.draw_with(lanes[0] if len(lanes) == 1 else Lanes(lanes))


def servers_of(rollout: Settings, processes: int, process: int) -> list[str]:
    """The servers of a process: one, or with ``max_staleness`` as many, each of which draws a round at a time."""
    most = max(1, rollout.max_staleness)
    if len(rollout.url) == most:
        return rollout.url
    own = rollout.url[process::processes] or [rollout.url[process % len(rollout.url)]]
    if len(own) != most:
        raise ValueError(
            f"rollout.url: got {len(rollout.url)} servers for {processes} processes with rollout.max_staleness="
            f"{rollout.max_staleness}, expected {most} in all or for each process, since a server "
            "draws one round at a time"
        )
    return own


def make_engine(owner: Family, config: Config, device: str) -> Engine:
    """The engine ``sampler`` or ``vllm`` of a configuration, in this process."""
    if config.rollout.engine == "vllm":
        from pipelines.vllm_engine import VllmEngine

        return VllmEngine.of(config, device)
    from mmgrpo.engines.sampler import OwnSampler

    policy: Any = owner.policy(config_on(config, device), device, training=False)
    return OwnSampler(policy)


def config_on(config: Config, device: str) -> Config:
    """The configuration of an engine's own copy of the model, which never trains."""
    return replace(config, model=replace(config.model, device=device, gradient_checkpointing=False))


def merged(network: Any, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a network without adapters that computes what this one does, W + scale B A in fp32, in the
    precision of computation; names are those of the checkpoint's own network."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    adapted: dict[str, Any] = {name: one for name, one in network.named_modules() if isinstance(one, BaseTunerLayer)}
    for name, value in parameters(network):
        if ".lora_" in name:
            continue
        outer, inside, leaf = name.rpartition(".base_layer.")
        if inside:
            name, layer = f"{outer}.{leaf}", adapted[outer]
            if leaf == "weight" and not layer.disable_adapters:
                changes = [layer.get_delta_weight(one).float() for one in layer.active_adapters]
                value = value.detach().float() + sum(changes)
        floating = value.is_floating_point()
        yield name, value.detach().to(dtype) if floating else value.detach()
