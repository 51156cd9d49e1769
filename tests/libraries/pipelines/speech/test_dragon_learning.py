"""DRAGON on sounds: the samples of a tiny Stable Audio come nearer to exemplars that are louder, as a set."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import soundfile
from accelerate import Accelerator

from mmgrpo.api import make_trainer
from mmgrpo.config.reading import build
from mmgrpo.config.settings import config_class
from mmgrpo.data.splits import Splits
from mmgrpo.family import family
from mmgrpo.inputs import RunInputs
from mmgrpo.types import Audio, Policy, Prompt, Request
from reward_models.sets.audio import BANDS, bands
from reward_models.sets.rewards import frechet
from tests.tiny import maker

PROMPTS = [Prompt("rain", "0"), Prompt("a bell", "1")]
KTO = {"objective": "diffusion_kto(beta=300)", "baseline": "constant(value=0.5)", "scale": "none"}
TRIALS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "leave one out": ("over='prompt', credit='leave_one_out'", 10, {}),
    "contrast": ("over='call', credit='contrast'", 20, {}),
    "contrast, kto": ("over='call', credit='contrast'", 20, KTO),
}
"""How a set's value is given to its samples, the rounds of a trial (a 1 or 0 per sample tells less), and the loss."""


def heard(policy: Policy, seed: int, each: int) -> list[Any]:
    """Evaluation samples, ``each`` per prompt."""
    return list(policy.sample(Request(PROMPTS, range(len(PROMPTS)), each, seed=seed)))


def distance(sounds: list[Any], exemplars: str) -> float:
    """The Fréchet distance of all sounds together."""
    return -frechet([Prompt("", "all")] * len(sounds), sounds, exemplars, embed="bands", credit="shared")[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "trial", [pytest.param(one, marks=pytest.mark.nightly) if one != "leave one out" else one for one in TRIALS]
)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_distance_to_exemplars_falls_whatever_the_seed(seed, trial, tmp_path: Path):
    """The exemplars are the untrained policy's own sounds at twice the amplitude. In ten rounds the distance fell to
    0.36 of the first or less in every trial."""
    credit, rounds, loss = TRIALS[trial]
    chosen = family("stable_audio")
    config = config_class(chosen.sections)()
    config = replace(
        config,
        name="run",
        seed=seed,
        steps=rounds,
        output_dir=str(tmp_path / "runs"),
        trackers=[],
        threads=1,
        model=replace(
            config.model, path=str(maker("stable_audio")(tmp_path / "tiny", seed)), device="cpu", guidance=1.0
        ),
        sampling=replace(config.sampling, steps=4, evaluation_steps=4),
        data=replace(config.data, prompts_per_step=2, group_size=8),
        optim=replace(config.optim, lr=1e-3),
    )
    config.algorithm = build(type(config.algorithm), {"preset": "ddpo", **loss}, "the test")
    policy = chosen.policy(config, "cpu", PROMPTS)
    folder = tmp_path / "exemplars"
    folder.mkdir()
    for number, sound in enumerate(heard(policy, 7, 8)):
        louder = Audio((2 * sound.samples).clamp(-1, 1), sound.rate)
        soundfile.write(folder / f"{number}.wav", louder.samples.T.numpy(), louder.rate, subtype="FLOAT")
    before = heard(policy, 99, 16)
    reward = f"frechet(exemplars={str(folder)!r}, embed='bands', {credit})"
    start = lambda accelerator: RunInputs(policy, Splits(PROMPTS))  # noqa: E731
    trainer = make_trainer(config, chosen, start, [reward], Accelerator(cpu=True))
    for _ in range(rounds):
        trainer.run_round()
    after = heard(policy, 99, 16)
    assert distance(after, str(folder)) < 0.6 * distance(before, str(folder))
    louder = bands(after)[:, :BANDS].mean() - bands(before)[:, :BANDS].mean()
    assert 0.1 < louder < 1.5, "a factor of two in amplitude is 0.6"
