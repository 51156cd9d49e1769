"""Export a trained model for other programs: its adapters in the program's own format, or the merged model.

    mmgrpo export runs/demo --format diffusers     # pipe.load_lora_weights("runs/demo/export-diffusers")
    mmgrpo export runs/sdxl --format comfyui       # a file for ComfyUI's folder models/loras
    mmgrpo export runs/vlm_demo --format merged    # a model folder, for vLLM, transformers and others
    mmgrpo export runs/demo --push me/scenes-lora  # the same files in a repository of the Hugging Face hub

    diffusers   adapters as diffusers names them
    comfyui     adapters as ComfyUI and kohya's scripts name them (lora_unet_ and the authors' names; lora_down, lora_up
                and alpha)
    peft        adapters as peft names them
    merged      the whole model, which loads as its base does; it scores samples of the policy again, and log-probs
                that differ are an error. Needs 4 bytes of memory for each parameter

Beside them lies a model card (README.md): base model and licence, held-out rewards before and after with intervals, a
snippet that loads the files, and the configuration that made them. --push needs a token (hf auth login, or HF_TOKEN);
the repository is created private where there is none yet, unless --public is given.

The scale alpha / rank is in a tensor or in the weights themselves, so adapters count fully also where a program
drops the header of the file.

The configuration of a run is a recipe, which can name functions: it is code, so name only runs that you trust.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import tyro

from mmgrpo.cli.errors import enter
from mmgrpo.cli.options import options, run_first
from mmgrpo.config.ranges import ANY_TEXT, COUNT_OR_ZERO, DEVICE, one_of


@dataclass
class Args:
    """The run and the format."""

    run: Annotated[tyro.conf.Positional[str], ANY_TEXT]
    """Run folder, e.g. runs/demo."""
    format: Annotated[str, ANY_TEXT] = "diffusers"
    """diffusers, comfyui, peft or merged."""
    output: Annotated[str, ANY_TEXT] = ""
    """Folder to write, which does not exist yet; if empty, export-<format> in the run folder."""
    dtype: Annotated[str, one_of("float32", "bfloat16", "float16")] = "float32"
    """Precision in which a merged model is written."""
    check: Annotated[int, COUNT_OR_ZERO] = 2
    """Prompts of the run with which a merged model is compared with the policy; 0 compares nothing."""
    prompts: Annotated[str, ANY_TEXT] = ""
    """File of rows for that comparison, in place of the run's own data; a run that was trained from Python has none."""
    device: Annotated[str, DEVICE] = "cpu"
    """Device on which a merged model is computed."""
    push: Annotated[str, ANY_TEXT] = ""
    """Repository on the Hugging Face hub, e.g. me/scenes-lora, into which the files are uploaded."""
    public: bool = False
    """Whether everyone sees a repository that is created."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the files and list them."""
    args = options(Args, run_first(arguments), __doc__, "mmgrpo export")
    from mmgrpo.cli.source import run_section
    from mmgrpo.config.reading import build
    from mmgrpo.config.settings import config_class
    from mmgrpo.family import family
    from mmgrpo.report.model_card import base_of, write_card
    from mmgrpo.runtime.saved_model import check_model

    section, folder = run_section(args.run), Path(args.run)
    name = str((section.get("model") or {}).get("family", ""))
    if not name:
        raise ValueError(f"'{args.run}' was trained from Python with a custom policy, which commands cannot export")
    owner = family(name)
    if owner.elsewhere is None:
        raise ValueError(f"family '{name}' has no elsewhere, which says how its models are exported")
    config = build(config_class(owner.sections), section, str(folder / "config.yaml"))
    if args.prompts:
        config = replace(config, data=replace(config.data, heldout=args.prompts))
    model = folder / "model"
    if not model.is_dir():
        raise FileNotFoundError(f"'{model}' does not exist, so the run is incomplete; finish it with --resume")
    hub = Hub.ready(args.push) if args.push else None
    elsewhere = owner.elsewhere()
    elsewhere.check(owner, model, args.format)
    check_model(model)
    output = Path(args.output or folder / f"export-{args.format}")
    done = elsewhere.export(
        owner, config, model, args.format, output, dtype=args.dtype, device=args.device, check=args.check
    )
    base = base_of(config.model.path)
    write_card(folder, output, base, owner.task, args.format, args.push)
    print(done, flush=True)
    for file in sorted(file for file in output.rglob("*") if file.is_file()):
        print(f"{file.stat().st_size:>14,} bytes  {file}")
    if base.warning:
        print(f"note: {base.warning}", flush=True)
    if hub is not None:
        print(f"uploaded: {hub.upload(output, args.public)}", flush=True)


@dataclass(frozen=True)
class Hub:
    """A repository on the Hugging Face hub, and a token that may write."""

    repository: str
    token: str

    @classmethod
    def ready(cls, repository: str) -> Hub:
        """ValueError, before anything is written, where nothing can be uploaded: no name of a repository, no token, or
        a hub that is off."""
        from huggingface_hub import constants, get_token

        if not re.fullmatch(r"[\w.-]+/[\w.-]+", repository):
            raise ValueError(f"--push: got {repository!r}, expected the name of a repository, e.g. me/scenes-lora")
        if constants.HF_HUB_OFFLINE:
            raise ValueError("--push: the hub is off (HF_HUB_OFFLINE is set); unset it, or leave --push out")
        if not (token := get_token()):
            raise ValueError(
                "--push: there is no token of the Hugging Face hub; 'hf auth login' stores one, or set HF_TOKEN (one "
                "that may write)"
            )
        return cls(repository, token)

    def upload(self, folder: Path, public: bool) -> str:
        """Upload the files of a folder; the address of the commit. OSError that names the hub where it refuses."""
        from huggingface_hub import HfApi
        from huggingface_hub.errors import HfHubHTTPError

        api = HfApi(token=self.token)
        try:
            api.create_repo(self.repository, private=not public, exist_ok=True)
            commit = api.upload_folder(
                repo_id=self.repository, folder_path=str(folder), commit_message="Upload a model trained with mmgrpo"
            )
        except (HfHubHTTPError, OSError) as error:
            [first, *_] = str(error).strip().splitlines() or [type(error).__name__]
            raise OSError(f"--push {self.repository}: {first}; the files are in {folder}") from error
        return str(commit.commit_url)


if __name__ == "__main__":
    enter(main)
