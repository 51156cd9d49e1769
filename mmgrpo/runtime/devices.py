"""Where a run computes: the device that the settings name, under a launcher that asks for nothing we do not do.

Weights are replicated on every process, or divided by ``mmgrpo.runtime.sharding``. The trainer calls
``accelerator.backward`` and steps its own AdamW on parameters that accelerate never prepares: what accelerate would do
to a prepared model or optimizer does not happen. Its FSDP configuration is translated into settings of the run.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from accelerate import Accelerator

SHARDING = {
    "ACCELERATE_USE_DEEPSPEED": "DeepSpeed",
    "ACCELERATE_USE_MEGATRON_LM": "Megatron-LM",
    "ACCELERATE_USE_PARALLELISM_CONFIG": "a parallelism configuration",
}
"""Variables by which ``accelerate launch`` asks for a model that is divided in ways that are not built."""
FSDP = "ACCELERATE_USE_FSDP"
WORLD = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
"""Variables by which launchers tell a process that it is one of several."""


def put(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A tensor on the device, for whose queue the host does not wait where the tensor is the host's."""
    pinned = device.type == "cuda" and tensor.device.type == "cpu"
    at_once = device.type in ("cpu", "mps")  # on MPS the memory of the host may be gone before it is copied
    return (tensor.pin_memory() if pinned else tensor).to(device, non_blocking=not at_once)


def autocast(dtype: torch.dtype, device: torch.device) -> AbstractContextManager[object]:
    """Autocast to ``dtype``; no context for float32, since a disabled autocast would also disable an enclosing one,
    such as that of a sampler in lower precision."""
    import torch

    return nullcontext() if dtype == torch.float32 else torch.autocast(device.type, dtype)


def fetch(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Tensors on the host, without gradient. Those of a device are copied together, as bytes, so the host waits
    once."""
    import torch

    far = [tensor.detach() for tensor in tensors if tensor.device.type != "cpu"]
    if not far:
        return [tensor.detach() for tensor in tensors]
    parts = [tensor.contiguous().view(-1).view(torch.uint8) for tensor in far]
    copied = torch.cat(parts).cpu().split([len(part) for part in parts])
    near = iter([part.clone().view(tensor.dtype).view(tensor.shape) for part, tensor in zip(copied, far, strict=True)])
    return [tensor.detach() if tensor.device.type == "cpu" else next(near) for tensor in tensors]


def refuse_launcher(environ: Mapping[str, str]) -> None:
    """Raise ValueError if accelerate's configuration asks for what would be left out or done by half: a sharded model,
    scaled losses (fp16, fp8), several backward passes per step, or several processes without a launcher of them."""
    for variable, name in SHARDING.items():
        if _is_on(environ, variable):
            raise ValueError(
                f"accelerate's configuration: got {name} ({variable}), expected FSDP or plain data parallel; use "
                "accelerate launch --multi_gpu, or torchrun, and set distributed.shard=full, which divides weights, "
                "gradients and optimizer"
            )
    precision = environ.get("ACCELERATE_MIXED_PRECISION", "no").lower()
    if precision not in ("", "no", "bf16"):
        raise ValueError(
            f"accelerate's configuration: got mixed_precision {precision}, expected no: losses would be scaled and "
            "gradients not scaled back; set the precision with model.dtype (bfloat16 or float16), and use accelerate "
            "launch --mixed_precision no"
        )
    if precision == "bf16":
        warnings.warn("mixed_precision bf16 of accelerate's configuration has no effect; set model.dtype", stacklevel=2)
    if _is_on(environ, "ACCELERATE_USE_CPU") and "MASTER_ADDR" in environ and not any(map(environ.get, WORLD)):
        raise ValueError(
            "accelerate's configuration: got several processes on the CPU, of which accelerate launch starts only one "
            "without MPI; start them with torchrun --nproc_per_node 2 -m mmgrpo.cli.train ..."
        )
    accumulation = environ.get("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "1")
    if accumulation not in ("", "1"):
        raise ValueError(
            f"accelerate's configuration: got gradient_accumulation_steps {accumulation}, expected 1: losses would be "
            "divided by it; optim.micro_batch_size limits memory and leaves the gradient as it is"
        )


def processes_of(environ: Mapping[str, str]) -> int:
    """How many processes the launcher has started."""
    return int(environ.get("WORLD_SIZE", "1"))


def requested_sharding(environ: Mapping[str, str]) -> tuple[str, int] | None:
    """``distributed.shard`` and ``distributed.replicate`` of the FSDP configuration with which ``accelerate launch``
    started this process; None for a launcher without one.

    Whole shards (FULL_SHARD, or resharding of version 2) are full; HYBRID_SHARD is a copy per machine, and NO_SHARD
    none. ValueError for parts of it that are done otherwise here: offloading, and activation checkpointing.
    """
    if not _is_on(environ, FSDP):
        return None
    for variable, instead in (
        ("FSDP_OFFLOAD_PARAMS", "distributed.shard=full on more processes, or model.quantize"),
        ("FSDP_ACTIVATION_CHECKPOINTING", "model.gradient_checkpointing=true"),
    ):
        if _is_on(environ, variable):
            raise ValueError(
                f"accelerate's configuration: got {variable.lower()} true, expected false; leave it out and set "
                f"{instead}"
            )
    strategy = environ.get("FSDP_SHARDING_STRATEGY", "FULL_SHARD").upper()
    names = {"1": "FULL_SHARD", "2": "SHARD_GRAD_OP", "3": "NO_SHARD", "4": "HYBRID_SHARD"}
    strategy = names.get(strategy, strategy)
    if environ.get("FSDP_VERSION", "1") == "2":
        strategy = "FULL_SHARD"
    if strategy == "NO_SHARD":
        return "none", 1
    if strategy not in ("FULL_SHARD", "HYBRID_SHARD"):
        raise ValueError(
            f"accelerate's configuration: got fsdp_sharding_strategy {strategy}, expected FULL_SHARD, HYBRID_SHARD or "
            "NO_SHARD: weights are freed after each block, or never divided"
        )
    world, machine = (int(environ.get(name, "1")) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    return "full", max(1, world // machine) if strategy == "HYBRID_SHARD" else 1


def _is_on(environ: Mapping[str, str], variable: str) -> bool:
    return environ.get(variable, "false").lower() in ("1", "true", "yes", "on", "y", "t")


def accelerator(device: str, **options: Any) -> Accelerator:
    """The Accelerator of a process on the device that ``model.device`` names, with further options of accelerate's.

    ValueError for a launcher that ``refuse_launcher`` refuses, for a device that this machine does not have, and where
    another Accelerator of the process has chosen another kind of device.
    """
    from accelerate import Accelerator

    refuse_launcher(os.environ)
    check_available(device)
    before, sharding = os.environ.get("ACCELERATE_TORCH_DEVICE"), os.environ.pop(FSDP, None)
    if ":" in device:
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise ValueError(
                f"model.device: got {device}, one device for {os.environ['WORLD_SIZE']} processes, expected "
                f"{device.split(':')[0]}, of which each process takes its own"
            )
        os.environ["ACCELERATE_TORCH_DEVICE"] = device  # the only way to name one of several
    try:
        # By default accelerate takes several processes on a machine that has only a CPU for a process each.
        made = Accelerator(cpu=device == "cpu" or available() == ["cpu"], **options)
    finally:
        if sharding is not None:  # which accelerate would ask of models that it prepares
            os.environ[FSDP] = sharding
        if ":" in device and before is None:
            del os.environ["ACCELERATE_TORCH_DEVICE"]
    if device not in ("auto", made.device.type, str(made.device)):
        raise ValueError(
            f"model.device: got {device}, but this process computes on {made.device} already; start another process"
        )
    return made


def check_available(device: str) -> None:
    """Raise ValueError for a device that this machine does not have; the available ones are listed."""
    present = available()
    if device not in ("auto", *present) and f"{device}:0" not in present:
        raise ValueError(
            f"model.device: got {device}, expected one of this machine's: auto, {', '.join(present)}{absence(device)}"
        )


def absence(device: str) -> str:
    """Why torch has no device of a kind: it is built without it, or finds no driver or device."""
    import torch

    kind = device.partition(":")[0]
    if any(name.startswith(kind) for name in available()):
        return ""
    built = {
        "cuda": torch.version.cuda or torch.version.hip,
        "mps": torch.backends.mps.is_built(),
        "xpu": getattr(torch.version, "xpu", None),
    }.get(kind)
    if not built:
        return f"; this torch ({torch.__version__}) is built without {kind}: install a build with it (pytorch.org)"
    if kind == "cuda":
        return (
            f"; torch is built for CUDA {built}, but finds no GPU: does 'nvidia-smi' list one, is its driver new "
            "enough, and is CUDA_VISIBLE_DEVICES not empty?"
        )
    return f"; torch is built with {kind}, but finds no such device"


def available() -> list[str]:
    """The devices of this machine: ``cpu``, ``mps``, ``cuda:0``, ..."""
    import torch

    names = ["cpu", *(["mps"] if torch.backends.mps.is_available() else [])]
    for kind in ("cuda", "xpu", "npu"):
        module = getattr(torch, kind, None)
        if module is not None and module.is_available():
            names += [f"{kind}:{index}" for index in range(module.device_count())]
    return names
