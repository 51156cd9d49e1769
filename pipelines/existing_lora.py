"""LoRA adapters that exist already, as a start: trained further as the run's own, or added to the frozen base.

Files are read as other programs write them:

    diffusers   <network>.<module>.lora_A.weight, alpha in the header (older ones: lora.down, and processors)
    peft        base_model.model.<module>.lora_A.weight, rank and alpha in adapter_config.json
    ComfyUI     diffusion_model.<module of the authors>.lora_down.weight or lora_A, and alpha as a tensor
    kohya       lora_unet_<module with underscores>.lora_down.weight, and alpha as a tensor

A module gains scale B A, where scale is alpha / rank (alpha / sqrt(rank) of rank-stabilized adapters, 1 without alpha).
A matrix that the authors have for several of diffusers' is divided among them: rows of B, with A for each.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from torch import Tensor, nn

from mmgrpo.config.names import nearest
from mmgrpo.config.plugins import locate
from mmgrpo.data.values import reason_of
from mmgrpo.runtime.weight_files import parse_object, pickle_error, read_object
from pipelines.lora import ADAPTER, DIFFUSERS_FILE, PEFT_FILES, add_lora, has_tied_weights, untie
from pipelines.options import ModelOptions

Names = Callable[[Iterable[str]], Mapping[str, tuple[str, tuple[int, Sequence[int]] | None]]]
"""The authors' names of modules, and the part of their matrix (``pipelines.visual.comfyui.Targets``)."""

DOWN, UP = (
    r"[._](?:lora_A|lora_down|lora\.down)(?:\.default)?\.weight",
    r"[._](?:lora_B|lora_up|lora\.up)(?:\.default)?\.weight",
)
PARTS = (("down", re.compile(f"(.+?){DOWN}")), ("up", re.compile(f"(.+?){UP}")), ("alpha", re.compile(r"(.+?)\.alpha")))
"""Endings of the tensors of a module."""
PREFIXES = (
    "base_model.model.",
    "model.diffusion_model.",
    "diffusion_model.",
    "transformer.",
    "unet.",
    "lora_unet_",
    "lora_transformer_",
)
"""What stands before the name of a module."""
WITH_OWN_RANKS = ("base_model.model.", "transformer.", "unet.")
"""Beginnings of names of single modules."""
ENCODERS = re.compile(r"(text_encoder|lora_te\d?_|conditioner\.|cond_stage_model\.)")
"""Beginnings of tensors that adapt a text encoder."""
CHANGED_BASES = ("pissa", "olora", "corda", "loftq")
"""Ways of beginning adapters, in peft's configuration, that change the base too."""
NOISES = ("_high_noise", "_low_noise")
"""Endings of the files of a model of two networks."""


HUB_NAME = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*?)(?::(.+\.safetensors))?")
"""A repository with adapters, and the file in it."""


class Factors(NamedTuple):
    """scale B A of one module."""

    down: Tensor
    """A, [rank, *inputs]."""
    up: Tensor
    """B, [outputs, rank]."""
    scale: float

    def product(self) -> Tensor:
        """scale B A in double precision, so it does not depend on the order of sums."""
        down, up = self.down.double(), self.up.double()
        return self.scale * (up @ down.flatten(1)).reshape(len(up), *down.shape[1:])


@dataclass(frozen=True)
class ExistingLora:
    """Adapters in a file, a folder or a repository, and what becomes of them."""

    path: str
    mode: str = "continue"
    """``continue``: they are the run's adapters at its start. ``merge``: they are added to the base."""
    names: Names | None = None
    """The authors' names of the family's modules, where they are known."""
    second: bool = False
    """Those of the second of two networks."""

    @staticmethod
    def of(options: ModelOptions, names: Names | None = None, fetched: bool = True) -> ExistingLora | None:
        """Those that the options name; an error for a file that is not there, or of a higher rank than the run's,
        before the model is loaded. What is on the hub is ``fetched``, or taken to be there."""
        if not options.lora_path:
            return None
        existing = ExistingLora(locate(options.lora_path), options.lora_mode, names)
        if fetched or Path(existing.path).exists() or not HUB_NAME.fullmatch(existing.path):
            file = existing.file()
            if options.lora_mode == "continue":
                refuse_rank(options.lora_rank, rank_of(file))
        return existing

    def file(self) -> Path:
        """The file with the tensors. A repository on the hub is owner/name, or owner/name:file."""
        path = Path(self.path)
        if path.is_dir():
            return self._within(path, sorted(file.relative_to(path).as_posix() for file in path.rglob("*.safetensors")))
        if path.is_file() and path.suffix == ".safetensors":
            if self.second:
                raise ValueError(
                    f"model.lora_path: got one file, '{path}', expected a folder with adapters of both networks of the "
                    f"model ({DIFFUSERS_FILE} and transformer_2/{DIFFUSERS_FILE}, or files that end in "
                    f"{' and '.join(NOISES)})"
                )
            return path
        if path.is_file():
            raise pickle_error(path, "")
        if match := HUB_NAME.fullmatch(self.path):
            return self._download(match[1], match[2] or "")
        raise FileNotFoundError(
            f"model.lora_path: '{self.path}' does not exist; name a safetensors file, a folder that holds one, or a "
            "hub id, owner/name or owner/name:file.safetensors"
        )

    def _download(self, repository: str, name: str) -> Path:
        from huggingface_hub import snapshot_download

        try:
            patterns = [name] if name else ["*.safetensors", PEFT_FILES[0]]
            folder = Path(snapshot_download(repository, allow_patterns=patterns))
        except Exception as error:  # whatever the network or the hub answers
            raise FileNotFoundError(
                f"model.lora_path: '{repository}' is no file or folder here, and cannot be read from the hub: "
                f"{reason_of(error)}; check the name, or download it first (hf download)"
            ) from error
        return self._within(folder, [name] if name else sorted(file.name for file in folder.glob("*.safetensors")))

    def _within(self, folder: Path, files: Sequence[str]) -> Path:
        """The one file of a folder that holds the adapters."""
        place = "transformer_2/" if self.second else ""
        usual = [f"{place}{name}" for name in (DIFFUSERS_FILE, PEFT_FILES[1]) if f"{place}{name}" in files]
        noise = [name for name in files if name.endswith(f"{NOISES[self.second]}.safetensors")]
        top = [] if self.second else [name for name in files if "/" not in name]
        candidates = next((group for group in (usual, noise, top) if group), [])
        if len(candidates) != 1:
            pickles = [] if candidates else sorted(folder.glob("*.bin"))
            if pickles:
                raise pickle_error(pickles[0], "")
            what = "of the second network " if self.second else ""
            raise ValueError(
                f"model.lora_path: '{folder}': got {len(candidates)} files of adapters {what}"
                f"({', '.join(candidates[:4]) or 'none'}), expected one; name the file itself, on the hub "
                "owner/name:file.safetensors"
            )
        if self.path != str(folder) and not (folder / candidates[0]).is_file():
            raise FileNotFoundError(f"model.lora_path: '{self.path}' has no file {candidates[0]}; check the name")
        return folder / candidates[0]

    def read(self, network: nn.Module) -> dict[str, Factors]:
        """The adapters by the names of the network's modules, checked against their shapes.

        ValueError names keys that match no module, halves of pairs, other kinds of adapters, and other shapes.
        """
        file = self.file()
        tensors, header = read_file(file)
        return Reader(str(file), network, self.names, header).factors(tensors)


@contextmanager
def reading_adapters(file: Path) -> Iterator[None]:
    """What the library raises at a damaged file, as an error that names it."""
    try:
        yield
    except Exception as error:
        raise ValueError(f"model.lora_path: '{file}' cannot be read ({reason_of(error)}); download it again") from error


def read_file(file: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a file, and what its header or the configuration next to it says of them."""
    with reading_adapters(file), safe_open(file, framework="pt") as opened:
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        header = parse_object((opened.metadata() or {}).get("lora_adapter_metadata", "{}"), file)
    header = {re.sub(r"^(transformer|transformer_2|unet)\.", "", name): value for name, value in header.items()}
    config = file.with_name(PEFT_FILES[0])
    if file.name == PEFT_FILES[1] and config.is_file():
        header = read_object(config)
    return tensors, header


def rank_of(file: Path) -> int:
    """The highest rank in a file whose names are those of diffusers or peft, by its header; 0 for other names, since a
    matrix that authors have for several has the ranks of all of them."""
    with reading_adapters(file), safe_open(file, framework="pt") as opened:
        return max(
            (
                opened.get_slice(name).get_shape()[0]
                for name in opened.keys()  # noqa: SIM118
                if name.startswith(WITH_OWN_RANKS) and PARTS[0][1].fullmatch(name)
            ),
            default=0,
        )


def refuse_rank(rank: int, highest: int) -> None:
    """ValueError for a ``rank`` of a run that is too low for the adapters that it continues."""
    if rank < highest:
        raise ValueError(
            f"model.lora_rank: got {rank}, expected {highest} or more, the rank of the adapters of model.lora_path"
        )


class Reader:
    """The tensors of a file as adapters of one network."""

    def __init__(self, file: str, network: nn.Module, names: Names | None, header: Mapping[str, Any]) -> None:
        self.file, self.network, self.header = file, network, header
        self.weights = {
            name: module.weight
            for name, module in network.named_modules()
            if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d)
        }
        self.modules: dict[str, list[tuple[str, tuple[int, Sequence[int]] | None]]] = {}
        """Names with underscores to the modules of the network that they stand for, and their parts."""
        for name in self.weights:
            self.modules.setdefault(flat(name), []).append((name, None))
        for name, (target, part) in (names(list(self.weights)) if names else {}).items():
            if target != name:
                self.modules.setdefault(flat(target), []).append((name, part))

    def factors(self, tensors: Mapping[str, Tensor]) -> dict[str, Factors]:
        """All adapters of the file."""
        if self.header.get("use_dora") or str(self.header.get("init_lora_weights", "")).startswith(CHANGED_BASES):
            self.refuse("got DoRA, or adapters that begin with a changed base (PiSSA, OLoRA, CorDA, LoftQ)")
        encoders = [key for key in tensors if ENCODERS.match(key)]
        pairs: dict[str, dict[str, Tensor]] = {}
        other = []
        # peft writes the frozen weight of an adapted embedding or output layer next to its adapters.
        frozen = {key for key in tensors if key.endswith(".base_layer.weight")}
        for key in sorted(tensors.keys() - set(encoders) - frozen):
            kinds = [(kind, match[1]) for kind, pattern in PARTS if (match := pattern.fullmatch(key))]
            if kinds:
                pairs.setdefault(kinds[0][1], {})[kinds[0][0]] = tensors[key]
            else:
                other.append(key)
        if other:
            self.refuse(f"got {len(other)} tensors of other kinds than A, B and alpha ({', '.join(other[:2])})")
        if not pairs:
            self.refuse(f"got {len(encoders)} tensors of text encoders and none of the network")
        if unknown := [key for key in pairs if not self.modules_of(key)]:
            near = nearest(unknown[0].split(".", 1)[-1], self.weights)
            raise ValueError(
                f"model.lora_path: '{self.file}': {len(unknown)} of its {len(pairs)} adapted modules are not in "
                f"{type(self.network).__name__} of this base, e.g. '{unknown[0]}'.{near} Take adapters of this model"
            )
        if halves := [key for key, pair in pairs.items() if not {"down", "up"} <= pair.keys()]:
            self.refuse(f"'{halves[0]}' has {' and '.join(sorted(pairs[halves[0]]))} only; download it again")
        adapters: dict[str, Factors] = {}
        for key, pair in pairs.items():
            for name, factors in self.factors_of(key, pair):
                if name in adapters:
                    self.refuse(f"got adapters of '{name}' twice, as '{key}' too")
                adapters[name] = factors
        if encoders:
            warnings.warn(
                f"model.lora_path: '{self.file}': {len(encoders)} of its {len(tensors)} tensors adapt a text encoder, "
                "which is frozen here, and are not read; samples differ from those of a pipeline that reads them",
                stacklevel=2,
            )
        return adapters

    def modules_of(self, key: str) -> list[tuple[str, tuple[int, Sequence[int]] | None]]:
        """The modules that a key stands for; none for one that is unknown or not unique."""
        key = key.replace(".processor.", ".")
        bare = [key.removeprefix(prefix) for prefix in PREFIXES if key.startswith(prefix)]
        for name in (key, *bare):
            for tried in (flat(name), f"{flat(name)}_0"):  # to_out of old files is to_out.0
                if modules := self.modules.get(tried):
                    return modules if len(modules) == 1 or all(part for _, part in modules) else []
        inside = [module for name in bare for module in self.weights if flat(module).endswith(f"_{flat(name)}")]
        return [(inside[0], None)] if len(set(inside)) == 1 else []

    def factors_of(self, key: str, pair: Mapping[str, Tensor]) -> Iterable[tuple[str, Factors]]:
        """The adapters of the modules that a key stands for."""
        down, up = pair["down"].float(), pair["up"].float()
        if not (torch.isfinite(down).all() and torch.isfinite(up).all()):
            self.refuse(f"'{key}' has values that are NaN or infinite; download it again")
        modules = self.modules_of(key)
        scale = self.scale(modules[0][0], len(down), pair.get("alpha"))
        up, untrained = up.flatten(1), not bool(up.any())
        for name, part in modules:
            weight, rows, down_rows = self.weights[name], up, down
            if part is not None:
                number, heights = part
                unit = len(up) // sum(heights)
                rows = up[unit * sum(heights[:number]) : unit * sum(heights[: number + 1])]
            if up.shape[1] != len(down) or len(rows) != len(weight) or down_rows[0].numel() != weight[0].numel():
                raise ValueError(
                    f"model.lora_path: '{self.file}': '{key}': got A of shape {list(down.shape)} and B of shape "
                    f"{list(pair['up'].shape)}, expected [rank, {', '.join(map(str, weight.shape[1:]))}] and "
                    f"[{len(weight)}, rank] of '{name}'; take adapters of the same model"
                )
            if part is not None and not untrained:  # of several in one matrix, each has ranks of its own
                used = rows.ne(0).any(dim=0)
                rows, down_rows = rows[:, used], down_rows[used]
            if len(down_rows):
                yield name, Factors(down_rows.reshape(len(down_rows), *weight.shape[1:]), rows, scale)

    def scale(self, module: str, rank: int, alpha: Tensor | None) -> float:
        """By which B A of a module is multiplied."""
        if alpha is not None:
            return float(alpha) / rank
        patterns = self.header.get("alpha_pattern") or {}
        override = next((value for name, value in patterns.items() if re.fullmatch(rf"(.*\.)?({name})", module)), None)
        stated = self.header.get("lora_alpha", rank) if override is None else override
        return float(stated) / (math.sqrt(rank) if self.header.get("use_rslora") else rank)

    def refuse(self, what: str) -> None:
        raise ValueError(
            f"model.lora_path: '{self.file}': {what}; expected pairs of low-rank matrices, lora_A and lora_B "
            "(lora_down and lora_up)"
        )


def flat(name: str) -> str:
    """A name as kohya writes it."""
    return name.replace(".", "_")


@torch.no_grad()
def merge_existing(network: nn.Module, adapters: Mapping[str, Factors]) -> None:
    """W + scale B A in place of W, for every adapted module; one that shares W with another gets a W of its own."""
    if has_tied_weights(network, [network.get_submodule(name) for name in adapters]):
        untie(network)
    for name, factors in adapters.items():
        weight: Any = network.get_submodule(name).weight
        weight.copy_((weight.double().cpu() + factors.product()).to(weight.dtype))


@torch.no_grad()
def continue_existing(
    network: Any,
    adapters: Mapping[str, Factors],
    rank: int,
    alpha: float,
    targets: Sequence[str],
    usual: Sequence[str],
    seed: int,
) -> None:
    """Adapters of the run's ``rank`` and ``alpha`` that add as much as the given ones.

    Where the rank is higher the further rows of A are drawn from the seed, as those of new adapters, and the columns of
    B are zero; B is rescaled where alpha / rank differs. Modules are those of the file, and of ``targets`` where the
    run names any; the latter begin at zero. ``usual`` is the short form of the names where it is the same modules.
    """
    refuse_rank(rank, max(len(factors.down) for factors in adapters.values()))
    modules = {name for name, _ in network.named_modules()}
    named = {name for name in modules for target in targets or usual if name == target or name.endswith(f".{target}")}
    adapted = {*adapters, *(named if targets else ())}
    add_lora(network, rank, alpha, list(targets or usual) if named == adapted else sorted(adapted), seed)
    for name, factors in adapters.items():
        layer = network.get_submodule(name)
        down, up = layer.lora_A[ADAPTER].weight, layer.lora_B[ADAPTER].weight
        count = len(factors.down)
        down[:count] = factors.down.to(down)
        up[:, :count] = (factors.up * (factors.scale * rank / alpha)).reshape(len(up), count, *up.shape[2:]).to(up)


def combine_adapters(
    adapters: Mapping[str, Factors], weights: Mapping[str, Tensor], config: Mapping[str, Any]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Saved adapters and those that were merged into their base as one: A = [A_1; A_2], B = [s_1 B_1, s_2 B_2].

    The scales are inside B, so alpha is the rank; what is shorter is filled with zeros.
    """
    saved = {
        name.removesuffix(".lora_A.weight"): Factors(
            down.float(),
            weights[name.replace(".lora_A.", ".lora_B.")].float().flatten(1),
            config["lora_alpha"] / config["r"],
        )
        for name, down in weights.items()
        if name.endswith(".lora_A.weight")
    }
    both = {name: [side[name] for side in (adapters, saved) if name in side] for name in sorted({*adapters, *saved})}
    rank = max(sum(len(factors.down) for factors in parts) for parts in both.values())
    tensors = {}
    for name, parts in both.items():
        down = torch.cat([factors.down for factors in parts])
        up = torch.cat([factors.up * factors.scale for factors in parts], dim=1)
        filled = rank - len(down)
        down = torch.cat([down, down.new_zeros(filled, *down.shape[1:])])
        up = torch.cat([up, up.new_zeros(len(up), filled)], dim=1)
        tensors[f"{name}.lora_A.weight"] = down
        tensors[f"{name}.lora_B.weight"] = up.reshape(*up.shape, *[1] * (down.dim() - 2))
    return tensors, {**config, "r": rank, "lora_alpha": rank, "target_modules": list(both)}
