"""The command ``mmgrpo export``: a run's model in files for others, and what it refuses before anything is loaded."""

from __future__ import annotations

import base64
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
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


# ---- the hub


@pytest.fixture
def hub(monkeypatch) -> Any:
    """A server that answers an upload as the hub does: the repositories that were created, and files by name."""
    import huggingface_hub.constants as constants

    got: dict[str, Any] = {"created": [], "files": {}, "tokens": set()}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            got["tokens"].add(self.headers.get("Authorization"))
            if self.path == "/api/repos/create":
                got["created"].append(json.loads(body))
                answer: Any = {"url": f"{address}/me/better", "id": "1"}
            elif self.path == "/api/validate-yaml":
                answer = {"errors": [], "warnings": []}
            elif self.path == "/api/models/me/better/preupload/main":
                files = json.loads(body)["files"]
                answer = {"files": [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in files]}
            elif self.path == "/api/models/me/better/commit/main":
                for line in map(json.loads, body.decode().splitlines()):
                    if line["key"] == "file":
                        got["files"][line["value"]["path"]] = base64.b64decode(line["value"]["content"])
                answer = {"commitUrl": f"{address}/me/better/commit/1", "commitOid": "1"}
            else:
                self.answer({"error": "no such repository of yours"}, 403)
                return
            self.answer(answer)

        def do_GET(self) -> None:
            self.send_error(404)

        def answer(self, answer: Any, status: int = 200) -> None:
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Prints nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    address = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", "hf_of_a_test")
    yield got
    server.shutdown()
    server.server_close()


def test_an_export_is_uploaded_with_its_card_into_a_private_repository(run, hub, capsys):
    export.main([str(run), "--push", "me/better"])
    [created] = hub["created"]
    assert created.get("private") or created["visibility"] == "private"  # by the version of huggingface_hub
    assert hub["tokens"] == {"Bearer hf_of_a_test"}
    assert hub["files"].keys() == {"README.md", "pytorch_lora_weights.safetensors"}
    assert hub["files"]["README.md"] == (run / "export-diffusers" / "README.md").read_bytes()
    assert "/me/better/commit/1" in capsys.readouterr().out


def test_a_hub_that_refuses_is_named_and_the_files_stay(run, hub):
    with pytest.raises(OSError, match="--push you/better.*export-diffusers"):
        export.main([str(run), "--push", "you/better"])
    assert (run / "export-diffusers" / "README.md").is_file()


def test_what_cannot_be_uploaded_is_refused_before_anything_is_written(run, hub, monkeypatch, tmp_path):
    import huggingface_hub.constants as constants

    with pytest.raises(ValueError, match="--push.*'better'"):
        export.main([str(run), "--push", "better"])
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
    with pytest.raises(ValueError, match="--push.*HF_TOKEN"):
        export.main([str(run), "--push", "me/better"])
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match="--push.*HF_HUB_OFFLINE"):
        export.main([str(run), "--push", "me/better"])
    assert not (run / "export-diffusers").exists() and not hub["created"]
