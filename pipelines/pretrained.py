"""Models in folders and on the hub: location, architecture, loading and saving.

A checkpoint may come from a stranger. Its weights are read from safetensors, its code is never run, and what it names
outside its own folder is refused.
"""

from __future__ import annotations

import importlib
import re
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmgrpo.data.values import reason_of
from mmgrpo.runtime.memory import Folder, folder_of, json_in
from mmgrpo.runtime.weight_files import check_weight_files, read_object, variant_of
from mmgrpo.scoring.manifest import find_in_cache

if TYPE_CHECKING:
    from pipelines.training import Training

INDEX = ("model_index.json", "config.json", "transformer/config.json")
"""Files that declare the architecture of a folder; the first that exists counts."""
ONE_VARIANT = (
    "; a repository that has its weights as a variant only (fp16) is read from a folder: download it with "
    "'hf download', and name the folder"
)
"""What to do where the hub has other files than the library looks for."""
SCHEDULER = "scheduler/scheduler_config.json"
"""File of a scheduler's values."""
LIBRARIES = ("diffusers", "transformers", "stable_audio", "stable_audio_3", "ltx2")
"""Packages whose classes the parts of a diffusers pipeline may be; the last three are pipelines of diffusers' own."""


def headers_on_hub(repository: str) -> Folder | None:
    """What the headers of a repository's weights say, of which the beginning of each file is read; nothing is kept.

    None for one without safetensors. Raises OSError where it cannot be read.
    """
    from huggingface_hub import HfApi

    if not is_reachable(repository, INDEX[0]):
        raise OSError("it cannot be reached")
    hub = HfApi()

    def header(name: str) -> dict[str, tuple[int, ...]]:
        read = hub.parse_safetensors_file_metadata(repository, name)
        return {key: tuple(tensor.shape) for key, tensor in read.tensors.items()}

    try:
        names = hub.list_repo_files(repository)
        with tempfile.TemporaryDirectory() as place:
            for name in names:
                if name.endswith("config.json") and name.count("/") < 2:
                    hub.hf_hub_download(repository, name, local_dir=place)
            return folder_of([name for name in names if name.endswith(".safetensors")], header, json_in(Path(place)))
    except Exception as error:  # whatever the library of the hub raises
        raise OSError(reason_of(error)) from error


def locate(path: str | Path, example: str, *marks: str) -> str:
    """The folder, which must contain one of ``marks``, or the hub id; ``example`` is a hub id for the error."""
    text = str(path)
    marks = marks or ("config.json",)
    if Path(path).is_dir():
        if any((Path(path) / mark).exists() for mark in marks):
            return text
        alone = (read_json(text, "config.json") or {}).get("_class_name") if "model_index.json" in marks else None
        if alone:
            raise FileNotFoundError(
                f"'{text}' holds one network alone ({alone}), expected the folder of a whole pipeline (with "
                f"{' or '.join(marks)}); name that of the model that it belongs to, e.g. {example}, and put this "
                "network into its transformer/ or unet/"
            )
        content = ", ".join(sorted(entry.name for entry in Path(path).iterdir())) or "nothing"
        raise FileNotFoundError(
            f"'{text}' is no model folder: got {content}, expected {' or '.join(marks)}; name a model folder or a hub "
            f"id, e.g. {example}"
        )
    if re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", text):
        return text
    raise FileNotFoundError(
        f"'{text}' is neither a model folder nor a hub id; give an existing folder or owner/name, e.g. {example}"
    )


def refuse_none(source: str, options: type, module: str) -> None:
    """FileNotFoundError for what is no model, as far as its folder or the hub shows without weights; it names one of
    the family, the default of its ``options`` or the ``EXAMPLE`` of its ``module``."""
    folder = Path(source)
    if not folder.is_dir() or not any(folder.rglob("*.safetensors")):
        example = options().path or getattr(importlib.import_module(module), "EXAMPLE", "owner/name")
        locate(source, example, *INDEX, "words")
    if not folder.is_dir() and find_in_cache(source) is None:
        read_json(source, INDEX[0])


def architecture(path: str) -> str:
    """The architecture that a checkpoint declares: a pipeline's class (diffusers) or a model type (transformers)."""
    for name in INDEX:
        if (index := read_json(path, name)) is not None:
            return str(index.get("_class_name") or index.get("model_type") or index.get("family", ""))
    return ""


def read_json(source: str, name: str) -> dict[str, Any] | None:
    """The JSON object in a file of a folder or of a repository on the hub; None if there is no such file."""
    file = Path(source) / name
    if not Path(source).is_dir():
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

        try:
            file = Path(hf_hub_download(source, name, local_files_only=not is_reachable(source, name)))
        except LocalEntryNotFoundError as error:
            if find_in_cache(source) is not None:
                return None
            raise FileNotFoundError(
                f"'{source}' is neither a local folder nor in the cache, and the hub cannot be reached; check the "
                "name, or download it first (hf download)"
            ) from error
        except EntryNotFoundError:
            return None
    return read_object(file) if file.is_file() else None


def is_reachable(repository: str, name: str) -> bool:
    """Whether the hub answers, whatever it says of a file; asked once, where a download would retry for half a
    minute."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import HfHubHTTPError

    try:
        get_hf_file_metadata(hf_hub_url(repository, name))
    except HfHubHTTPError:
        return True
    except Exception:  # whatever the library of the hub raises where it has no connection
        return False
    return True


def check_pipeline(source: str, absent: Collection[str] = ()) -> None:
    """ValueError where a diffusers pipeline names code of its own, or a class of any other package, as one of its
    parts: diffusers imports what is named, except for the parts that are ``absent``."""
    index = read_json(source, "model_index.json") or {}
    place = f"'{source}': model_index.json"
    if not isinstance(index.get("_class_name", ""), str):
        raise ValueError(f"{place}: its pipeline is code of the checkpoint ({index['_class_name']}), which is not run")
    for name, part in index.items():
        if name.startswith("_") or not isinstance(part, list | dict) or part == [None, None] or name in absent:
            continue
        if part and all(isinstance(value, int | float) for value in part):  # a setting: the levels of Qwen-Image-2.1
            continue
        if not (isinstance(part, list) and len(part) == 2 and part[0] in LIBRARIES and str(part[1]).isidentifier()):
            raise ValueError(
                f"{place}: '{name}': got {part!s:.80}, expected a class of {' or '.join(LIBRARIES)}; other code is "
                "not run"
            )


def check_weights(source: str, subfolder: str, allow_pickle: bool) -> None:
    """ValueError where weights would be unpickled unasked, are named outside the checkpoint's folder, or are adapters,
    with which transformers would load the model that they name."""
    from transformers.utils.peft_utils import find_adapter_config_file

    with reading(source, subfolder):
        adapters = None if Path(source).is_dir() else find_adapter_config_file(source, subfolder=subfolder)
    if adapters:
        raise ValueError(f"'{source}' contains adapters; give the model that they adapt as the path")
    check_weight_files(Path(source) / subfolder, allow_pickle, "--model.allow-pickle")


@contextmanager
def reading(source: str, part: str = "") -> Iterator[None]:
    """What a library raises while it reads a checkpoint, as an error in one line that names the checkpoint."""
    place = f"{part}/ of '{source}'" if part else f"'{source}'"
    try:
        yield
    except OSError as error:
        advice = "" if Path(source).is_dir() or "no file named" not in str(error) else ONE_VARIANT
        raise FileNotFoundError(
            f"no model could be read from {place}, expected a model folder, or a hub id that can be reached: {error}"
            f"{advice}"
        ) from error
    except Exception as error:  # whatever a damaged or hostile file leads a library to
        raise ValueError(f"no model could be read from {place}: {reason_of(error)}") from error


def safely(training: Training) -> dict[str, Any]:
    """The arguments by which libraries read weights from safetensors only, unless a run allows pickles."""
    return {"use_safetensors": None if training.allow_pickle else True}


def variant(source: str, *subfolders: str) -> str | None:
    """The variant of the first of these parts of a folder that has its weights in no other form."""
    return next((form for folder in subfolders if (form := variant_of(Path(source) / folder))), None)


def read_network(
    kind: Any, source: str, training: Training, subfolder: str = "", optional: tuple[str, ...] = ()
) -> Any:
    """A network of a class (or auto class) of transformers or diffusers; missing weights are an error, which the
    libraries replace by random ones with a warning, except for those whose names end with one of ``optional``."""
    path = str(training.network or source)
    check_weights(path, subfolder, training.allow_pickle)
    # Only transformers knows code of checkpoints for networks, and only its classes take the argument.
    code = {"trust_remote_code": False} if kind.__module__.startswith("transformers") else {}
    with reading(path, subfolder):
        network, report = kind.from_pretrained(
            path,
            dtype=training.storage_dtype,
            output_loading_info=True,
            subfolder=subfolder,
            variant=variant(path, subfolder),
            **safely(training),
            **code,
        )
    refuse_missing(path, [key for key in report["missing_keys"] if not key.endswith(optional)])
    if training.sharded:
        from pipelines.training import WAITING

        WAITING.add(network)
        return network.eval()
    return network.eval().to(training.device)


def refuse_missing(place: str, missing: Sequence[str]) -> None:
    """ValueError for weights that a checkpoint lacks."""
    if missing:
        raise ValueError(
            f"'{place}': the checkpoint lacks {len(missing)} weights, e.g. {sorted(missing)[:3]}; download or save it "
            "again"
        )


def read_encoders(source: str, index: Mapping[str, Any], names: Sequence[str], training: Training) -> dict[str, Any]:
    """Those of the named parts of a pipeline's folder that are models of transformers, by name, in the precision of
    computation. A pipeline would replace weights that are missing by random ones, with no more than a warning."""
    import transformers

    encoders: dict[str, Any] = {}
    for name in names:
        kind: Any = getattr(transformers, str(index[name][1]), None) if index[name][0] == "transformers" else None
        if not (isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)):
            continue
        # A folder with modules is left to diffusers, which refuses to run them.
        if (Path(source) / name).is_dir() and not any((Path(source) / name).glob("*.py")):
            with reading(source, name):
                loaded: Any = kind.from_pretrained(
                    source,
                    subfolder=name,
                    dtype=training.compute_dtype,
                    output_loading_info=True,
                    variant=variant(source, name),
                    trust_remote_code=False,
                    **safely(training),
                )
            part, report = loaded
            refuse_missing(f"{source}/{name}", list(report["missing_keys"]))
            encoders[name] = part.eval()
    return encoders


def read_part(kind: Any, source: str, **options: Any) -> Any:
    """A tokenizer, a processor, a scheduler or another part of a checkpoint, or a whole pipeline."""
    with reading(source, options.get("subfolder", "")):
        return kind.from_pretrained(source, **options)


def read_scheduler(source: str) -> Any:
    """The scheduler of a checkpoint, of the class that its own file names."""
    import diffusers

    check_scheduler(source)
    declared = (read_json(source, SCHEDULER) or {}).get("_class_name", "FlowMatchEulerDiscreteScheduler")
    ItsScheduler: Any = getattr(diffusers, declared)
    return read_part(ItsScheduler, source, subfolder="scheduler")


def check_scheduler(source: str) -> None:
    """ValueError for a scheduler of a class that diffusers does not have (any more), and for one whose file is of
    another class than ``model_index.json`` names, where the shift of its noise levels would be lost."""
    import diffusers

    index = (read_json(source, "model_index.json") or {}).get("scheduler")
    with reading(source, "scheduler"):
        config = read_json(source, SCHEDULER) or {}
    indexed, declared = index[1] if isinstance(index, list) and len(index) == 2 else None, config.get("_class_name")
    for file, name in (("model_index.json: scheduler", indexed), (f"{SCHEDULER}: _class_name", declared)):
        if name is not None and not (str(name).endswith("Scheduler") and getattr(diffusers, str(name), None)):
            raise ValueError(
                f"'{source}': {file}: got {name!s:.80}, which diffusers {diffusers.__version__} does not have, "
                "expected one of its schedulers; write the class that replaces it there (of a flow "
                "FlowMatchEulerDiscreteScheduler, UniPCMultistepScheduler or DPMSolverMultistepScheduler)"
            )
    if indexed is None or declared is None:
        return
    euler, euler_file = indexed.startswith("FlowMatch"), declared.startswith("FlowMatch")
    lost, read = ("flow_shift", "shift") if euler else ("shift", "flow_shift")
    if euler != euler_file and config.get(lost, 1) != 1 and read not in config:
        raise ValueError(
            f"'{source}': model_index.json: scheduler: got {indexed}, but {SCHEDULER} is that of a {declared}, whose "
            f"{lost} {config[lost]} the other class does not read, expected one class in both; correct the one that is "
            "wrong"
        )


def read_pipeline(kind: Any, source: str, training: Training, vae: Any = None, **parts: Any) -> Any:
    """A diffusers pipeline around its networks (``parts``, by name): its VAE, of the class ``vae`` (AutoencoderKL), in
    fp32, its text encoders in the precision of computation. A part that is given as None is not read."""
    import torch
    from diffusers import AutoencoderKL

    check_pipeline(source, [name for name, part in parts.items() if part is None])
    if "scheduler" not in parts:
        check_scheduler(source)
    index = read_json(source, "model_index.json") or {}
    read = [name for name, part in index.items() if isinstance(part, list) and part != [None, None]]
    read = [name for name in read if name not in parts and not name.startswith("_")]
    for name in read:
        check_weights(source, name, training.allow_pickle)
    autoencoder = read_part(
        vae or AutoencoderKL,
        source,
        subfolder="vae",
        dtype=torch.float32,
        variant=variant(source, "vae"),
        **safely(training),
    )
    if isinstance(autoencoder, torch.nn.Module):  # diffusers leaves what its file lacks without values
        refuse_missing(f"{source}/vae", [name for name, p in autoencoder.named_parameters() if p.is_meta])
    parts = read_encoders(source, index, read, training) | parts
    return read_part(
        kind,
        source,
        **parts,
        vae=autoencoder,
        dtype=training.compute_dtype,
        variant=variant(source, *read),
        trust_remote_code=False,
        **safely(training),
    )


def save_network(folder: Path, network: Any, parts: Sequence[Any]) -> None:
    """Adapters in peft's format where there are any, otherwise an ordinary model folder; and ``parts`` (tokenizer,
    processor)."""
    from accelerate.utils import extract_model_from_parallel

    network = extract_model_from_parallel(network)
    network.save_pretrained(folder)
    for part in parts:
        part.save_pretrained(folder)
