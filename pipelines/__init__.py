"""Model families: each file implements the interface of a policy for one family of models.

A family is a module with ``load(options)``, which reads an ordinary checkpoint, and a record in ``FAMILIES`` of the
package ``visual``, ``vlm`` or ``speech``, which construct policies:

    from pipelines import visual
    policy = visual.policy("stabilityai/stable-diffusion-3.5-medium", lora_rank=32, plan="sliding_window")
"""

from __future__ import annotations

import importlib

from mmgrpo.config.extras import install


def require(extra: str, *libraries: str) -> None:
    """Import the libraries of an extra; ModuleNotFoundError names the missing one and how to install it."""
    for library in libraries:
        try:
            importlib.import_module(library)
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f"'{error.name}' is not installed, which this model needs; install it: {install(extra)}",
                name=error.name,
            ) from error
