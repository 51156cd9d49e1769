"""Model families: each file makes one family of models answer the few questions of a policy.

A family is a module with ``load(path, ...)``, which reads an ordinary checkpoint, and ``tiny(folder)``,
which writes a random checkpoint of the same architecture that loads in a blink. ``PIPELINES`` names
them; nothing is imported before ``family`` is called.

    >>> from pipelines import family
    >>> sd3 = family("sd3")
    >>> model = sd3.load(sd3.tiny("/tmp/tiny"), height=16, width=16)
    >>> model.latent_shape()
    (16, 8, 8)
"""

from __future__ import annotations

import importlib
from types import ModuleType

from mmgrpo.registry import nearest

PIPELINES = {
    "sd3": "pipelines.visual.sd3",
    "qwen_vl": "pipelines.vlm.qwen_vl",
    "causal_lm": "pipelines.vlm.causal_lm",
    "smolvlm": "pipelines.vlm.smolvlm",
    "whisper": "pipelines.speech.whisper",
    "qwen_audio": "pipelines.speech.qwen_audio",
    "duration": "pipelines.speech.duration",
}
"""Name of a family: the module with its ``load`` and ``tiny``."""


def family(name: str) -> ModuleType:
    """The module of a family; an unknown name is an error that names the nearest."""
    if name not in PIPELINES:
        raise ValueError(f"family: there is no '{name}'.{nearest(name, PIPELINES)}")
    return importlib.import_module(PIPELINES[name])


def require(extra: str, *libraries: str) -> None:
    """Import the libraries of an extra, or say which one is missing and how to install it."""
    for library in libraries:
        try:
            importlib.import_module(library)
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f"'{error.name}' is not installed; this model family needs it: pip install mmgrpo[{extra}]",
                name=error.name,
            ) from error
