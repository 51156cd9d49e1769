"""The engine of a run's rollouts, and the weights that are sent to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mmgrpo.config.settings import Config
from mmgrpo.engines.balanced import Balanced
from mmgrpo.engines.denoising import Drawing, OwnDenoiser, SynchronizedDenoiser, lanes_of
from mmgrpo.engines.engine import Engine, Lanes, Served, Synchronized, parameters
from pipelines.lora import UNTIED, has_tied_weights
from pipelines.training import torch_dtype
from pipelines.vllm_engine import media_of

if TYPE_CHECKING:
    from mmgrpo.family import Family

GAPS = {"float32": 1e-3, "bfloat16": 0.05, "float16": 0.05}
"""``rollout.max_gap`` by precision: kernels differ by 5e-7 to 1e-6 in fp32, and by about 0.01 in half of it."""

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""Names of the number of experts in configurations of transformers."""

QUANTIZED_GAP = 0.2
"""The same with 8 bits in the engine; an estimate, since no GPU has run it."""


def draw_with_engine(
    owner: Family, config: Config, policy: Any, device: str, processes: int, process: int, run: str = ""
) -> None:
    """Let the engine of ``config.rollout`` draw a policy's rollouts: completions, or trajectories of denoising; a
    server draws for the ``run`` of this id."""
    rollout, model = config.rollout, policy.model
    engines: list[list[Any]] = []
    if rollout.engine == "served":
        from mmgrpo.engines.served import Client, title_of, token_of

        token = token_of(rollout.token_file)
        for urls in rollout.servers(processes, process):
            times = {"timeout": rollout.timeout, "patience": rollout.patience}
            engines.append([Client(url, token, **times, run=run, title=title_of(config)) for url in urls])
            if len(urls) > 1:  # once they have begun, the others draw for one that fails, without waiting for it
                for client in engines[-1]:
                    client.patience = 0.0
    else:
        assert owner.engines is not None
        engines.append([owner.engines.make(owner, config, device)])
    dtype, network = torch_dtype(config.model.dtype), policy.network
    gap = rollout.max_gap or (GAPS[config.model.dtype] if rollout.quantization == "none" else QUANTIZED_GAP)
    overlaps = rollout.engine == "served" and rollout.max_staleness > 0
    if isinstance(policy, Drawing):
        if (most := max(map(len, engines))) > 1:
            raise ValueError(
                f"rollout.url: got {most} servers for a round, expected one, since the prompts of denoising models are "
                "not divided"
            )
        settings: Any = {"max_gap": gap, "overlaps": overlaps}
        denoisers = [SynchronizedDenoiser(engine, partial(parameters, network), **settings) for [engine] in engines]
        return policy.draw_with(lanes_of(denoisers))
    foreign = any(engine.form != "own" for lane in engines for engine in lane)
    if foreign and process == 0 and (experts := experts_of(network)):
        print(
            f"rollout.engine: {type(network).__name__} is a mixture of {experts} experts, and which of them the engine "
            "chose for a token is not replayed in training (arXiv:2510.11370): the trainer chooses anew, by its own "
            "numbers; rollout/sampler_gap says what that costs, algorithm.mismatch corrects it",
            flush=True,
        )
    quantized = rollout.quantization != "none" and process == 0
    note = f"rollout.quantization {rollout.quantization}" if quantized else ""

    def synchronize(engine: Engine) -> Synchronized:
        if rollout.lora == "adapter" and engine.form == "merged":
            raise ValueError(
                f"rollout.lora: got adapter, but {engine.name} takes merged weights; start it with the options of the "
                "run, --rollout.lora adapter among them, or leave it out"
            )
        if engine.form != "own":
            check_untied(network, engine.name)
        foreign, forms = engine.form != "own", {"own": parameters, "merged": partial(merged_weights, dtype=dtype)}
        weights = {**forms, "adapters": partial(apart, dtype=dtype)}[engine.form]
        return Synchronized(
            engine,
            lambda: weights(network),
            model,
            max_gap=gap,
            # Our own sampler's log-probs are of the whole distribution.
            top_p=policy.top_p if foreign else 1.0,
            media=partial(media_of, model) if foreign else None,
            overlaps=overlaps,
            note=note,
        )

    def together(several: Sequence[Engine]) -> Synchronized | Balanced:
        samplers = [synchronize(engine) for engine in several]
        return samplers[0] if len(samplers) == 1 else Balanced(samplers, patience=rollout.patience)

    lanes = [together(several) for several in engines]
    policy.draw_with(lanes[0] if len(lanes) == 1 else Lanes(lanes))


def experts_of(network: Any) -> int:
    """The number of experts of a mixture model, by its configuration; 0 for others."""
    config = network.config.get_text_config()
    return max(int(getattr(config, name, 0) or 0) for name in EXPERTS)


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
    if isinstance(policy, Served) and policy.engine is not None:
        policy.engine.close()


def config_on(config: Config, device: str) -> Config:
    """The configuration of an engine's own copy of the model, which never trains, and reads prompts as they come."""
    apart: dict[str, Any] = {"device": device, "gradient_checkpointing": False, "offload_activations": False}
    if "forget_encoders" in vars(config.model):
        apart["forget_encoders"] = False
    return replace(config, model=replace(config.model, **apart))


def check_untied(network: Any, engine: str) -> None:
    """ValueError where an adapted layer shares its weight with another module in the checkpoint, so an engine,
    which reads the checkpoint, has one tensor for the two."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    layers = {name: m.get_base_layer() for name, m in network.named_modules() if isinstance(m, BaseTunerLayer)}
    shared = [name for name, layer in layers.items() if has_tied_weights(network, [layer])]
    if shared or network in UNTIED:
        which = f"'{shared[0]}'" if shared else "one of the two in model.lora_path"
        raise ValueError(
            f"rollout.engine: {engine} has one tensor for the input embeddings and the output layer, which this model "
            f"ties; got adapters of {which}; leave it out of "
            "model.lora_targets, or set rollout.engine=sampler"
        )


def merged_weights(network: Any, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a network without adapters that computes what this one does, W + scale B A in fp32, in the
    precision of computation; names are those of the checkpoint's own network."""
    for name, value, layer in _base(network):
        if layer is not None and name.endswith(".weight") and not layer.disable_adapters:
            changes = [layer.get_delta_weight(adapter).float() for adapter in layer.active_adapters]
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

    adapted: dict[str, Any] = {name: m for name, m in network.named_modules() if isinstance(m, BaseTunerLayer)}
    for name, value in parameters(network):
        if ".lora_" not in name:
            outer, inside, leaf = name.rpartition(".base_layer.")
            yield (f"{outer}.{leaf}", value, adapted[outer]) if inside else (name, value, None)
