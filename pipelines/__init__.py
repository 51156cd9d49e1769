"""Model families: each file makes one family of models answer the few questions of a policy.

A family is a module with ``load(path, ...)``, which reads an ordinary checkpoint, and ``tiny(folder)``, which writes a
random checkpoint of the same architecture that loads in a blink. The packages ``visual``, ``vlm`` and ``speech`` list
theirs in ``FAMILIES``, and make policies:

    from pipelines import visual
    policy = visual.policy("stabilityai/stable-diffusion-3.5-medium", lora_rank=32, plan="sliding_window")
"""

from __future__ import annotations

import importlib


def require(extra: str, *libraries: str) -> None:
    """Import the libraries of an extra, or say which one is missing and how to install it."""
    for library in libraries:
        try:
            importlib.import_module(library)
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f"'{error.name}' is not installed; this needs it: pip install 'mmgrpo[{extra}]'",
                name=error.name,
            ) from error
