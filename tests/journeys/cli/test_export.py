"""The command ``mmgrpo export``: a run's model in files for others, and what it refuses before anything is loaded."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from mmgrpo.cli import export
from mmgrpo.config.reading import write_yaml
from tests.libraries.families.test_battery import config_of
from tests.libraries.pipelines.test_export import trained
from tests.tiny import maker


@pytest.fixture
def run(tmp_path) -> Any:
    """The folder of a run of the tiny SDXL, with its saved adapters."""

    path = str(maker("sdxl")(tmp_path / "tiny"))
    folder = tmp_path / "runs" / "a"
    _, config, _ = trained("sdxl", path, folder)
    write_yaml(folder / "config.yaml", config)
    return folder


def test_a_run_is_written_into_its_folder_and_the_files_are_listed(run, capsys):
    export.main([str(run), "--format", "comfyui"])
    tensors = load_file(run / "export-comfyui" / "a.safetensors")
    assert any(name.startswith("lora_unet_") and name.endswith(".alpha") for name in tensors)
    assert "a.safetensors" in capsys.readouterr().out
    with pytest.raises(ValueError, match="--output"):
        export.main([str(run), "--format", "comfyui"])


@pytest.mark.parametrize(
    ("words", "error", "match"),
    [
        (["--format", "comfy"], ValueError, "--format.*'comfy'.*comfyui"),
        (["--format", "merged"], FileNotFoundError, "model'"),
        (["--dtype", "int8"], ValueError, "--dtype.*'int8'"),
    ],
)
def test_errors_come_before_anything_is_loaded(words, error, match, tmp_path, monkeypatch):
    folder = tmp_path / "a"
    folder.mkdir()
    write_yaml(folder / "config.yaml", config_of("sdxl", "nowhere"))
    if error is ValueError:
        (folder / "model").mkdir()
    for package in ("diffusers", "transformers"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(error, match=match):
        export.main(["--run", str(folder), *words])


def test_a_damaged_model_is_refused(run):
    [file] = (run / "model").glob("*.safetensors")
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(ValueError, match="is damaged"):
        export.main([str(run)])
    assert not Path(run / "export-diffusers").exists()
