"""A device ``sim`` that computes on the CPU and refuses to be mixed with it, as a GPU refuses; reads of it are counted.

A tensor of the device is a wrapper: sizes and strides of the CPU tensor that it holds, on the device ``sim:0``. Every
operation comes to ``compute``, which looks where its tensors lie as CUDA would, counts what would make the host wait,
and computes on the CPU. It is registered once in a process, by ``install``, and only what asks for it may run there: a
process in which ``Module.to`` swaps contents is another than a user's.

It shows a forgotten ``.to(device)``, noise drawn on the CPU, a mask beside logits. It shows nothing of CUDA's kernels,
memory or speed.
"""

from __future__ import annotations

import collections
import sys
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map

NAME = "sim"
ROOT = Path(__file__).parents[1]
ROOMS = ("mmgrpo/", "pipelines/", "reward_models/")
TORCH = str(Path(torch.__file__).parent)

WAITS: collections.Counter[tuple[str, str]] = collections.Counter()
"""What would make the host wait, by (kind, place): ``item`` reads a number, ``copy`` moves a tensor to the host,
``shape`` is an operation whose size depends on values, and ``upload`` copies a tensor to the device otherwise than by
``mmgrpo.runtime.devices.put``, which a GPU first stages. A place begins with one of ``ROOMS``, or is a library's."""

READS = {"_local_scalar_dense", "item", "equal", "is_nonzero"}
SIZED = {
    "nonzero",
    "masked_select",
    "_unique2",
    "unique_dim",
    "unique_consecutive",
    "unique_dim_consecutive",
    "bincount",
}
MOVES = {"_to_copy", "copy_", "_copy_from", "_copy_from_and_resize", "set_data"}
INDEXED = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"}
STRICT = {
    "cat",
    "stack",
    "embedding",
    "gather",
    "scatter",
    "index_select",
    "mm",
    "bmm",
    "addmm",
    "index_add",
    "scatter_add",
}
"""Operations that take no numbers of the CPU (0 dimensions) next to tensors of the device."""

_KEPT: list[Any] = []


class SimTensor(torch.Tensor):
    """A tensor of the device, around the CPU tensor ``held``."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> SimTensor:
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            layout=held.layout,
            device=torch.device(NAME, 0),
        )
        made.held = held
        return made

    __torch_function__: Any = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(operation, args, kwargs or {})

    def __tensor_flatten__(self) -> Any:  # so that Module.to swaps contents and tied parameters stay tied
        return ["held"], None

    @staticmethod
    def __tensor_unflatten__(inner: Any, _: Any, size: Any, stride: Any) -> SimTensor:
        return SimTensor(inner["held"])

    @property
    def data(self) -> Any:
        return torch.Tensor.data.__get__(self)  # type: ignore[attr-defined]

    @data.setter
    def data(self, other: Any) -> None:  # adapters that are cast to another precision
        torch.Tensor.data.__set__(self, other)  # type: ignore[attr-defined]
        self.held = other.held

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"sim({self.held!r})"

    def untyped_storage(self) -> Any:
        return self.held.untyped_storage()

    def data_ptr(self) -> int:
        return self.held.data_ptr()

    def tolist(self) -> Any:
        note("item")
        return self.held.detach().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        if force:
            return self.detach().cpu().numpy()
        raise TypeError("can't convert sim:0 device type tensor to numpy. Use Tensor.cpu() first.")

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.numpy()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return rebuilt, (self.detach().cpu(), self.requires_grad, isinstance(self, torch.nn.Parameter))

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if id(self) not in memo:
            made: Any = SimTensor(self.held.detach().clone())
            parameter = isinstance(self, torch.nn.Parameter)
            memo[id(self)] = (
                torch.nn.Parameter(made, self.requires_grad) if parameter else made.requires_grad_(self.requires_grad)
            )
        return memo[id(self)]


def rebuilt(held: torch.Tensor, requires_grad: bool, parameter: bool) -> Any:
    made = held.to(NAME)
    return torch.nn.Parameter(made, requires_grad) if parameter else made.requires_grad_(requires_grad)


def note(kind: str) -> None:
    """Count a wait at the first frame of the project; one of a library on the way there stands before it."""
    frame: Any = sys._getframe(1)
    library = ""
    while frame is not None:
        file = frame.f_code.co_filename
        inner = file[len(str(ROOT)) + 1 :] if file.startswith(str(ROOT)) else ""
        if inner.startswith(ROOMS):
            WAITS[kind, f"{library}{inner}:{frame.f_code.co_name}"] += 1
            return
        if "site-packages/" in file and not library and not file.startswith(TORCH):
            library = f"{file.split('site-packages/')[1].split('/')[0]} in "
        frame = frame.f_back
    WAITS[kind, f"{library}?"] += 1


def unwrap(x: Any) -> Any:
    return x.held if isinstance(x, SimTensor) else x


def wrap(x: Any) -> Any:
    if not isinstance(x, torch.Tensor) or isinstance(x, SimTensor):
        return x
    return SimTensor(x.resolve_conj().resolve_neg())  # lazy bits are not those of the wrapper


def refuse(name: str, tensors: Any) -> None:
    shapes = [(str(x.device), tuple(x.shape), str(x.dtype)) for x in tensors]
    raise RuntimeError(f"Expected all tensors to be on the same device, but found sim:0 and cpu! ({name} of {shapes})")


def compute(operation: Any, args: Any, kwargs: Any) -> Any:
    """An operation, computed on the CPU; RuntimeError for tensors that a GPU would not take together."""
    name = operation._schema.name.split("::")[1]
    tensors = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, torch.Tensor)]
    on_sim = any(isinstance(x, SimTensor) for x in tensors)
    target = torch.device(kwargs["device"]).type if kwargs.get("device") is not None else NAME if on_sim else "cpu"
    if kwargs.get("device") is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    generator = kwargs.get("generator") or next((x for x in args if isinstance(x, torch.Generator)), None)
    if generator is not None and target != "cpu":
        raise RuntimeError(f"Expected a '{NAME}' device type for generator but found '{generator.device}' ({name})")
    if kwargs.get("pin_memory"):
        kwargs = {**kwargs, "pin_memory": False}
    for x in tensors:
        if isinstance(x, SimTensor) and (x.dtype != x.held.dtype or x.shape != x.held.shape):
            raise NotImplementedError(f"the simulated device: {name} of a tensor whose contents were replaced unseen")
    if name in MOVES:
        return move(operation, name, target, args, kwargs)
    checked = places_of(name, args, tensors)
    sim = [x for x in checked if isinstance(x, SimTensor)]
    cpu = [x for x in checked if not isinstance(x, SimTensor)]
    if sim and any(x.dim() or name.rstrip("_") in STRICT for x in cpu):
        refuse(name, checked)
    mutable = operation._schema.is_mutable
    if sim and cpu and isinstance(args[0], torch.Tensor) and not isinstance(args[0], SimTensor) and mutable:
        refuse(name, checked)  # a CPU tensor written from the device
    if name in READS and on_sim:
        note("item")
    elif on_sim and (name in SIZED or (name == "repeat_interleave" and kwargs.get("output_size") is None)):
        note("shape")
    made = operation(*tree_map(unwrap, args), **tree_map(unwrap, kwargs))
    if name in READS or target == "cpu":
        return made
    if not mutable:
        return tree_map(wrap, made)
    for x in tensors:
        if isinstance(x, SimTensor) and x.shape != x.held.shape:
            raise NotImplementedError(f"the simulated device: {name} changes sizes, which a wrapper cannot follow")
    by_held = {id(x.held): x for x in tensors if isinstance(x, SimTensor)}
    return tree_map(lambda x: by_held.get(id(x), wrap(x)), made)


def move(operation: Any, name: str, target: str, args: Any, kwargs: Any) -> Any:
    """A copy within a device or between both."""
    if name.startswith("_copy_from"):
        unwrap(args[1]).copy_(unwrap(args[0]))
        return args[1]
    if name == "copy_":
        here, there = isinstance(args[0], SimTensor), isinstance(args[1], SimTensor)
        waits = not here or not (args[2] if len(args) > 2 else kwargs.get("non_blocking"))
        if here != there and waits and args[1].numel():
            note("upload" if here else "copy")
        unwrap(args[0]).copy_(unwrap(args[1]))
        return args[0]
    if target == "cpu":
        note("copy")
    elif not isinstance(args[0], SimTensor) and not kwargs.get("non_blocking") and args[0].numel():
        note("upload")
    made = operation(*map(unwrap, args), **kwargs)
    return made if target == "cpu" else wrap(made)


def places_of(name: str, args: Any, tensors: Any) -> list[Any]:
    """The tensors that must lie together: not the indices of a tensor of the device, nor lengths of ``ctc_loss``."""
    checked = tensors
    if name in INDEXED:
        checked = [args[0], *(args[2:3] if name not in ("index", "_unsafe_index") else [])]
        if not isinstance(args[0], SimTensor) and any(isinstance(x, SimTensor) for x in tensors):
            raise RuntimeError("indices should be either on cpu or on the same device as the indexed tensor (cpu)")
        masks = any(isinstance(x, torch.Tensor) and x.dtype in (torch.bool, torch.uint8) for x in args[1])
        if masks and isinstance(args[0], SimTensor):
            note("shape")
    elif name.startswith("_ctc_loss"):
        checked = args[:2]
    return [x for x in checked if isinstance(x, torch.Tensor)]


def install() -> None:
    """Register the device, and let settings name it; once in a process. NotImplementedError for another torch."""
    if _KEPT:
        return
    from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

    class Backend(_DummyBackendModule):
        """``torch.sim``: what callers ask of a device's module."""

        def is_available(self) -> bool:
            return True

        def device_count(self) -> int:
            return 1

        def current_device(self) -> int:
            return 0

        def set_device(self, device: Any) -> None: ...

        def synchronize(self, device: Any = None) -> None: ...

        def empty_cache(self) -> None: ...

        def get_amp_supported_dtype(self) -> list[torch.dtype]:
            return [torch.bfloat16, torch.float16, torch.float32]

        def manual_seed_all(self, seed: int) -> None: ...

        def manual_seed(self, seed: int) -> None: ...

        def _is_in_bad_fork(self) -> bool:
            return False

        def get_rng_state(self, device: Any = None) -> torch.Tensor:
            return torch.zeros(8, dtype=torch.uint8)

        def set_rng_state(self, state: Any, device: Any = None) -> None: ...

    _setup_privateuseone_for_python_backend(NAME, backend_module=Backend())
    fallback, aten = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
    _KEPT.extend([fallback, aten])
    fallback.fallback(lambda operation, *args, **kwargs: compute(operation, args, kwargs), "PrivateUse1")
    fallback.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    # Factories whose general kernel makes an empty tensor and resizes it, which a wrapper cannot follow.
    whole = "copy_ _copy_from arange arange.start arange.start_step eye eye.m range range.step randperm"
    for name in (*whole.split(), "randperm.generator"):
        base, _, overload = name.partition(".")
        factory = getattr(getattr(torch.ops.aten, base), overload or "default")
        aten.impl(name, lambda *a, factory=factory, **k: compute(factory, a, k), "PrivateUse1")
    # So that parameters keep their identity and tied ones stay tied, as on a GPU.
    torch.__future__.set_swap_module_params_on_conversion(True)
    torch.backends.cuda.enable_flash_sdp(False)  # acts on the CPU too: equal kernels on both sides
    from mmgrpo.config import ranges
    from mmgrpo.runtime import devices

    known = devices.available
    devices.available = lambda: [*known(), f"{NAME}:0"]
    object.__setattr__(ranges.DEVICE, "pattern", rf"auto|cpu|{NAME}(:\d)?")
