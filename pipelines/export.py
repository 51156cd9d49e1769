"""A trained model in the files of other programs: adapters under their names, or the whole model with them inside.

    diffusers   ``pytorch_lora_weights.safetensors``: pipe.load_lora_weights(folder)
    comfyui     one file under the names that ComfyUI and kohya read, with alpha as tensors
    peft        ``adapter_config.json`` and ``adapter_model.safetensors``: PeftModel.from_pretrained(network, folder)
    merged      the whole model as its base lies in a folder, W + (alpha / rank) B A in place of W

An adapter counts fully wherever it is loaded: a program that drops the header of a file, in which diffusers states
alpha, finds it in a tensor, or multiplied into the weights.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from mmgrpo.config.names import nearest
from mmgrpo.config.plugins import locate
from mmgrpo.family import Family
from mmgrpo.files import new_folder, share, write_tensors, write_text
from pipelines.existing_lora import ExistingLora, Factors, Names, combine_adapters
from pipelines.factory import device_of
from pipelines.lora import ADAPTER, DIFFUSERS_FILE, PEFT_FILES, has_adapters, has_tied_weights, read_adapters, untie
from pipelines.options import ModelOptions
from pipelines.quantized import dequantize, is_quantized
from pipelines.training import Training, torch_dtype

if TYPE_CHECKING:
    from mmgrpo.config.settings import Config
    from mmgrpo.types import Policy, Prompt, Rollout

SECOND = "transformer_2"
"""Subfolder with the adapters of a second network (``wan_experts.SECOND``)."""

NOISES = {"": "_high_noise", SECOND: "_low_noise"}
"""Endings of the files of two networks, as published ones are called."""

WEIGHTS = (".safetensors", ".index.json", ".bin", ".pt", ".pth", ".ckpt", ".msgpack", ".h5", ".onnx", ".gguf")
"""Endings of files of weights, of which the base's are left out where the trained network has its own."""

TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 5e-3}
"""Largest difference of a log-probability between the merged model and the policy, relative to 1 + its size."""


ROUNDING = 1e-5
"""What two ways of computing one log-probability in fp32 may differ by, relative to 1 + its size."""


@dataclass(frozen=True)
class Elsewhere:
    """What a family knows of its models outside of this library."""

    formats: Sequence[str]
    """Those that its adapters can be written in; ``merged`` is always possible."""
    prefix: str = ""
    """Name of the network in diffusers' file of adapters."""
    comfyui: Callable[[Mapping[str, tuple[Tensor, Tensor]], float], dict[str, Tensor]] | None = None
    names: Names | None = None
    """The authors' names of the modules in files of adapters, where they are known."""
    whole: bool = False
    """True where the family's own ``save`` writes a complete model, to which nothing of the base's folder is added."""
    reset: Mapping[str, Any] | None = None
    """Options of the section model by which the merged folder is read, besides its path."""

    def check(self, owner: Family, model: Path, form: str) -> None:
        """Raise ValueError for a format in which the saved model cannot be written."""
        check_format(form, owner, self, model)

    def export(
        self,
        owner: Family,
        config: Config,
        model: Path,
        form: str,
        output: Path,
        *,
        dtype: str,
        device: str,
        check: int,
    ) -> str:
        """Write a saved model into the folder ``output``, whole or not at all; what was done, in words."""
        self.check(owner, model, form)
        if output.exists() and (not output.is_dir() or any(output.iterdir())):
            raise ValueError(f"--output: '{output}' exists and is not an empty folder; name another, or remove it")
        writing = new_folder(output.parent, ".export-")
        try:
            if form == "merged":
                prompts = some_prompts(owner, config, check) if check else []
                done = write_merged(owner, self, config, model, writing, dtype, device_of(device), prompts)
            else:
                write_adapters(
                    form, self, model, writing, Path(config.name).name, merged_before(owner, self, config, model)
                )
                done = f"the adapters for {form}"
            if output.is_dir():
                output.rmdir()
            writing.rename(output)
        finally:
            shutil.rmtree(writing, ignore_errors=True)
        return done


def check_format(form: str, family: Family, elsewhere: Elsewhere, model: Path) -> None:
    """ValueError for a format that is unknown, that the family's models do not have, or that needs adapters where the
    run has none. Reads no weights."""
    formats = ("diffusers", "comfyui", "peft", "merged")
    if form not in formats:
        raise ValueError(f"--format: unknown '{form}'.{nearest(form, formats)}")
    supported = [*elsewhere.formats, "merged"]
    if form not in supported:
        raise ValueError(
            f"--format {form}: no names of adapters of the family '{family.name}' are known there; take "
            f"--format {' or '.join(supported)}"
        )
    if form != "merged" and not has_adapters(model):
        raise ValueError(
            f"--format {form}: '{model}' has no adapters, since the run trained the weights themselves; take "
            "--format merged, which writes the whole model"
        )


NONE = {"lora_rank": 0, "lora_path": "", "lora_mode": "continue", "quantize": "none"}
"""Options of a model without adapters."""


def merged_before(
    family: Family, elsewhere: Elsewhere, config: Config, model: Path
) -> Mapping[str, Mapping[str, Factors]]:
    """The adapters that the run added to its base before it trained others, by the place of their network."""
    lora = ExistingLora.of(config.model, elsewhere.names) if isinstance(config.model, ModelOptions) else None
    if lora is None or lora.mode == "continue":
        return {}
    network = family.policy(replace(config, model=replace(config.model, **NONE)), "cpu", training=False).network
    if not has_adapters(model / SECOND):
        return {"": lora.read(network)}
    parts = {"": (lora, "transformer"), SECOND: (replace(lora, second=True), SECOND)}
    return {place: reader.read(network.get_submodule(name)) for place, (reader, name) in parts.items()}


def write_adapters(
    form: str,
    elsewhere: Elsewhere,
    model: Path,
    folder: Path,
    name: str,
    earlier: Mapping[str, Mapping[str, Factors]],
) -> None:
    """The adapters of a saved model in one of the formats, together with ``earlier`` ones that were merged into its
    base, so they adapt the base as it is published; ``name`` is that of ComfyUI's file."""
    places = ["", *([SECOND] if has_adapters(model / SECOND) else [])]
    for place in places:
        weights, config = read_adapters(model / place)
        if place in earlier:
            weights, config = combine_adapters(earlier[place], weights, config)
        pairs = {
            key.removesuffix(".lora_A.weight"): (weights[key], weights[key.replace(".lora_A.", ".lora_B.")])
            for key in weights
            if key.endswith(".lora_A.weight")
        }
        rank, alpha = int(config["r"]), float(config["lora_alpha"])
        if form == "comfyui":
            assert elsewhere.comfyui is not None
            ending = NOISES[place] if len(places) > 1 else ""
            metadata = {"format": "pt", "ss_network_dim": str(rank), "ss_network_alpha": f"{alpha:g}"}
            tensors = elsewhere.comfyui(pairs, alpha)
            write_tensors(folder / f"{name}{ending}.safetensors", contiguous(tensors), metadata)
        elif form == "diffusers":
            scaled = {n: w * (alpha / rank) if ".lora_B." in n else w for n, w in weights.items()}
            prefix = f"{elsewhere.prefix}." if elsewhere.prefix else ""
            header = {f"{prefix}{key}": value for key, value in {**config, "lora_alpha": rank}.items()}
            metadata = {"format": "pt", "lora_adapter_metadata": json.dumps(header, indent=2, sort_keys=True)}
            tensors = {f"{prefix}{key}": value for key, value in scaled.items()}
            write_tensors(folder / place / DIFFUSERS_FILE, contiguous(tensors), metadata)
        else:
            tensors = {f"base_model.model.{key}": value for key, value in weights.items()}
            write_text(folder / place / PEFT_FILES[0], json.dumps(config, indent=2, sort_keys=True))
            write_tensors(folder / place / PEFT_FILES[1], contiguous(tensors), {"format": "pt"})


def contiguous(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies that safetensors accepts."""
    return {name: tensor.contiguous().clone() for name, tensor in tensors.items()}


@torch.no_grad()
def merge_adapters(network: nn.Module) -> int:
    """Replace every adapted layer by its base with W + (alpha / rank) B A, in place; the number of them. Quantized
    layers become those in fp32 that they stand for. An output layer that is adapted gets a weight of its own where it
    was tied to the input embeddings, which stay as they are."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    layers = {name: layer for name, layer in network.named_modules() if isinstance(layer, BaseTunerLayer)}
    if has_tied_weights(network, [layer.get_base_layer() for layer in layers.values()]):
        untie(network)
    for name, layer in layers.items():
        base: Any = layer.get_base_layer()
        delta = layer.get_delta_weight(ADAPTER)  # type: ignore[operator]
        base = dequantize(base) if is_quantized(base) else base
        base.weight.copy_((base.weight.float() + delta.float()).to(base.weight.dtype))
        parent, _, leaf = name.rpartition(".")
        setattr(network.get_submodule(parent), leaf, base)
    for name, layer in [(name, layer) for name, layer in network.named_modules() if is_quantized(layer)]:
        parent, _, leaf = name.rpartition(".")
        setattr(network.get_submodule(parent), leaf, dequantize(layer))
    for module in network.modules():
        if "peft_config" in vars(module):
            del module.peft_config
            module._hf_peft_config_loaded = False  # type: ignore[assignment]
    return len(layers)


def write_merged(
    family: Family,
    elsewhere: Elsewhere,
    config: Config,
    model: Path,
    folder: Path,
    dtype: str,
    device: str,
    prompts: Sequence[Prompt],
) -> str:
    """The whole model in a folder that loads as its base does; what a comparison with the policy showed.

    Adapters are added in fp32, and the sum is written in ``dtype``. The written model scores samples of the policy
    again: RuntimeError where its log-probabilities are others. Without prompts nothing is compared.
    """
    wide = replace(config, model=replace(config.model, dtype="float32")) if "dtype" in vars(config.model) else config
    adapted = has_adapters(model)
    policy = family.policy(wide, device, prompts, training=False, weights=str(model))
    rollout, expected, base = None, torch.empty(0), None
    if prompts:
        from mmgrpo.types import Request

        rollout = policy.rollout(Request(prompts, range(len(prompts)), 2, seed=0))
        expected = scores(policy, rollout)
        base = scores(policy, rollout, "reference.log_probs") if adapted else None
    merged = merge_adapters(policy.network)
    policy.network.to(torch_dtype(dtype))
    trained: Any = policy.model  # type: ignore[attr-defined]
    if isinstance(getattr(trained, "training", None), Training):
        trained.training = replace(trained.training, lora_rank=0, weights="")
    policy.save(folder)
    if not elsewhere.whole:
        add_base(Path(source_folder(locate(config.model.path))), folder)
    share(folder)
    del policy, trained
    done = f"{merged} adapted layers merged in fp32, written as {dtype}"
    if rollout is None:
        return f"{done}; not compared with the policy (--check 0)"
    options = {"path": str(folder), **NONE, **(elsewhere.reset or {})}
    options = {name: value for name, value in options.items() if name in vars(config.model)}
    written = family.policy(replace(wide, model=replace(wide.model, **options)), device, prompts, training=False)
    gap = (scores(written, rollout) - expected).abs()
    worst, allowed = float(gap.max()), TOLERANCE[torch_dtype(dtype)]
    limit, effect = allowed * (1 + expected.abs()), ""
    if base is not None:
        moved = float((expected - base).abs().max())
        effect = f", where the adapters change them by up to {moved:.1e}"
        if dtype == "float32":  # adapters that change little are not to be lost within the tolerance
            limit = limit.clamp(max=max(0.1 * moved, ROUNDING * float(1 + expected.abs().max())))
    done += f"; {gap.numel()} log-probabilities of samples differ from the policy's by up to {worst:.1e}{effect}"
    if not bool((gap <= limit).all()):
        raise RuntimeError(
            f"--format merged: the merged model is not the policy: {done}; expected at most {allowed:g} of 1 + their "
            "size, and a tenth of what the adapters change; nothing is written"
        )
    return done


@torch.no_grad()
def scores(policy: Policy, rollout: Rollout, name: str = "log_probs", limit: int = 8) -> Tensor:
    """The trained decisions scored by a policy, in order, on the CPU; ``limit`` is that of ``Steps.split``."""
    mask = rollout.decisions.loss_mask
    dense = torch.zeros(mask.shape)
    for part in rollout.steps.split(mask, limit):
        dense[part.rows.cpu(), part.positions.cpu()] = (
            policy.score(rollout, part, frozenset({name}))[name].float().cpu()
        )
    return dense[mask.cpu()]


def source_folder(path: str) -> str:
    """The folder of a checkpoint; of a hub id that of its downloaded files."""
    if Path(path).is_dir():
        return path
    from huggingface_hub import snapshot_download

    return snapshot_download(path, local_files_only=True)


def add_base(base: Path, folder: Path) -> None:
    """Add the files of the base that the trained network did not write itself, except weights that it replaces."""
    replaced = {file.parent.relative_to(folder) for file in folder.rglob("*.safetensors")}
    if (base / "model_index.json").is_file():
        replaced.add(Path())  # a repository of diffusers may have the authors' own file next to the folders
    for file in sorted(base.rglob("*")):
        place = file.relative_to(base)
        hidden = any(part.startswith(".") for part in place.parts)
        target = folder / place
        if hidden or not file.is_file() or target.exists():
            continue
        if place.parent in replaced and file.name.endswith(WEIGHTS):
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)


PROMPTS = ("A red cube next to a blue ball.", "Count from one to five.")
"""Texts with which the model of a run without a data file is compared."""


def some_prompts(family: Family, config: Config, count: int) -> list[Prompt]:
    """The first prompts of the run's held-out file, or of its training file; of a run without a file, which was trained
    from Python, texts of ours. ValueError for rows that cannot be read, and for a model that reads more than texts."""
    source = config.data.heldout or config.data.train
    try:
        prompts = family.read(config, source)[0] if source else own_prompts(family, config)
    except (OSError, ValueError) as error:
        place = f"'{source}'" if source else "the run has no data file, since it was trained from Python"
        raise ValueError(
            f"--format merged: the model is compared with the policy on prompts of the run: {place}: {error}; name a "
            "file of rows by --prompts"
        ) from error
    if not prompts:
        raise ValueError(f"'{source}' has no prompts, with which the model is compared; name a file by --prompts")
    return list(prompts[:count])


def own_prompts(family: Family, config: Config) -> Sequence[Prompt]:
    """The embedded texts as prompts of a family; ValueError for one whose prompts need media."""
    return family.readable(config, family.prompts(config, PROMPTS), "--prompts")[0]
