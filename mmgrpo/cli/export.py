"""Export a trained model for other programs: its adapters in the program's own format, or the merged model.

    mmgrpo export runs/demo --format diffusers     # pipe.load_lora_weights("runs/demo/export-diffusers")
    mmgrpo export runs/sdxl --format comfyui       # a file for ComfyUI's folder models/loras
    mmgrpo export runs/vlm_demo --format merged    # a model folder, for vLLM, transformers and others

    diffusers   adapters as diffusers names them
    comfyui     adapters as ComfyUI and kohya's scripts name them (lora_unet_ and the authors' names; lora_down, lora_up
                and alpha)
    peft        adapters as peft names them
    merged      the whole model, which loads as its base does; it scores samples of the policy again, and log-probs
                that differ are an error. Needs 4 bytes of memory for each parameter

The scale alpha / rank is in a tensor or in the weights themselves, so that adapters count fully also where a program
drops the header of the file.

The configuration of a run is a recipe, which can name functions: it is code, so name only runs that you trust.
"""

from __future__ import annotations

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


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the files and list them."""
    from mmgrpo.cli.source import run_section
    from mmgrpo.config.reading import build
    from mmgrpo.config.settings import config_class
    from mmgrpo.family import family
    from mmgrpo.runtime.saved_model import check_model

    args = options(Args, run_first(arguments), __doc__, "mmgrpo export")
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
    elsewhere = owner.elsewhere()
    elsewhere.check(owner, model, args.format)
    check_model(model)
    output = Path(args.output or folder / f"export-{args.format}")
    done = elsewhere.export(
        owner, config, model, args.format, output, dtype=args.dtype, device=args.device, check=args.check
    )
    print(done, flush=True)
    for file in sorted(file for file in output.rglob("*") if file.is_file()):
        print(f"{file.stat().st_size:>14,} bytes  {file}")


if __name__ == "__main__":
    enter(main)
