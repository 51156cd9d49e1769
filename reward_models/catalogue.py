"""``python -m reward_models.catalogue`` writes the catalogue of all rewards, after one was added or changed."""

from __future__ import annotations

import reward_models
from mmgrpo.scoring.manifest import write_catalogue


def text() -> str:
    """The catalogue as the functions state it."""
    return write_catalogue(reward_models, "mmgrpo.scoring.served")


if __name__ == "__main__":
    reward_models.CATALOGUE.write_text(text(), encoding="utf-8")
