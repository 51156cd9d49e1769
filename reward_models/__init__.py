"""Rewards by name, one scorer per file: ``rules`` for verifiers without weights, ``speech`` for generated speech, and
rooms of adapters.

A function becomes a reward of the package by ``@reward(...)``, which says what it reads and its range
(``mmgrpo.scoring.manifest.reward``); ``python -m reward_models.catalogue`` then writes ``catalogue.json``, from which
commands list rewards without importing them. ``mmgrpo.rewards`` documents how a reward is named, bound and called.
"""

from __future__ import annotations

from pathlib import Path

from mmgrpo.scoring.manifest import read_catalogue

CATALOGUE = Path(__file__).with_name("catalogue.json")
REWARDS = read_catalogue(CATALOGUE)
"""Name to the reward's function, manifest, corpus rates and annotations."""
