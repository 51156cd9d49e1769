"""Twins of recipes: what they keep, what state their gains are, and that the few which a commit chooses learn."""

from __future__ import annotations

import json
import re
import statistics
from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks import twins as bench
from benchmarks.twins import Args, choose, commit, once, report, state, threshold
from benchmarks.twins.derive import BASES, NEEDS, NO_TWIN, SCALES, Twin, twins
from benchmarks.twins.faults import FAULTS, PANEL, plant_faults
from mmgrpo.config.plugins import recipe, recipes
from mmgrpo.config.presets import CATALOGUE
from mmgrpo.config.reading import build, load_yaml
from mmgrpo.config.settings import Algorithm

RESULTS = Path(__file__).parents[3] / "benchmarks"
OF_SIZE = {"steps", "evaluation_steps", "forward_batch_size"} | {
    f"{use}_guidance" for use in ("rollout", "reference", "evaluation")
}
"""Settings of sampling that a twin on the plane may change."""


def ran(gain: float, seed: int = 0, **more) -> dict:
    numbers = {"seed": seed, "gain": gain, "before": 0.0, "curve": [0, 1], "seconds": 1}
    return {"twin": "t", "hash": "h", "rounding": "r", **numbers, **more}


def results(runs: list[dict], calibrated: list[float]) -> dict:
    head = {"command": "c", "machine": "m", "commit": "abc"}
    return {
        "runs": {**head, "runs": runs},
        "calibration": {**head, "runs": [ran(gain, seed) for seed, gain in enumerate(calibrated)]},
    }


def test_every_recipe_and_every_preset_for_denoising_and_matching_policies_has_a_twin_or_a_reason():
    named = twins().keys() | NO_TWIN.keys()
    assert recipes().keys() <= named and len(twins()) >= 40
    used = {load_yaml(recipe(name))["algorithm"]["preset"] for name in recipes().keys() & twins().keys()}
    for preset, entry in CATALOGUE.items():
        if entry.policies in BASES:
            assert preset in used or preset in NEEDS or f"preset/{preset}" in twins(), preset
    assert {*PANEL} <= twins().keys() and len(FAULTS) >= 10


@pytest.mark.parametrize("name", sorted(recipes().keys() - NO_TWIN.keys()))
def test_a_twin_keeps_the_blocks_of_its_recipe(name):
    """All of the algorithm, but for constants of scale; the sampler and the optimizer, but for sizes."""
    twin, whole = twins()[name], load_yaml(recipe(name))
    config = twin.config()
    wanted = asdict(build(Algorithm, whole["algorithm"], name))
    assert {**asdict(config.algorithm), **{key: wanted[key] for key in SCALES.get(name, {})}} == wanted
    for key in SCALES.get(name, {}):  # the same blocks with other numbers
        shapes = [
            re.sub(r"[-+.e\d]+", "#", str(vars(config.algorithm)[key])),
            re.sub(r"[-+.e\d]+", "#", str(wanted[key])),
        ]
        assert shapes[0] == shapes[1]
    if twin.world == "plane":
        assert {**whole.get("sampling", {}), **twin.section["sampling"]} == {
            **whole.get("sampling", {}),
            **{key: value for key, value in twin.section["sampling"].items() if key in OF_SIZE},
        }
    for key in ("updates", "epochs", "ema", "ema_every", "beta1", "decay", "weight_decay", "max_grad_norm"):
        assert twin.section["optim"].get(key) == whole["optim"].get(key)
    assert config.data.group_size == whole["data"].get("group_size", config.data.group_size)


def test_a_hash_is_of_the_settings_and_not_of_the_name():
    first = Twin("a", "plane", "sd3", {"steps": 1})
    assert first.hash == Twin("b", "plane", "sd3", {"steps": 1}).hash
    others = [Twin("a", "plane", "sd3", {"steps": 2}), Twin("a", "words", "sd3", {"steps": 1})]
    assert len({first.hash, *(other.hash for other in others)}) == 3


def test_a_threshold_is_the_mean_minus_three_deviations_and_never_negative():
    assert threshold("h", results([], [0.29, 0.31, 0.30])) == pytest.approx(0.27)  # deviation .01
    assert threshold("h", results([], [0.1, 0.3])) == 0.0
    assert threshold("h", results([], [0.3])) is None and threshold("other", results([], [0.3, 0.3])) is None


@pytest.mark.parametrize(
    ("runs", "calibrated", "word"),
    [
        ([ran(0.26, 0), ran(0.28, 1)], [0.29, 0.31, 0.30], "learns"),  # mean .27
        ([ran(0.25, 0), ran(0.28, 1)], [0.29, 0.31, 0.30], "does not learn"),
        ([ran(0.0)], [0.1, 0.3], "does not learn"),  # at a threshold of 0
        ([], [0.29, 0.31], "not run"),
        ([ran(0.35)], [0.29, 0.31, 0.30], "learns"),
        ([ran(0.37)], [0.29, 0.31, 0.30], "cannot be compared"),  # above .30 + 6 x .01
        ([ran(0.3)], [], "cannot be compared"),
        ([ran(0.3), {"hash": "h", "problem": "ValueError: x"}], [0.29, 0.31], "cannot be compared"),
    ],
)
def test_states_are_kept_apart(runs, calibrated, word):
    assert state("h", results(runs, calibrated))[0] == word


def test_the_page_shows_every_twin_with_its_state_and_every_fault():
    key = twins()["visual/demo"].hash
    result = results([ran(0.3, hash=key)], [])
    result["calibration"]["runs"] = [ran(0.29, hash=key), ran(0.31, 1, hash=key)]
    result["faults"] = {"commit": "abc", "faults": [{"fault": "f", "caught": ["t"], "gains": {"t": None, "u": 0.2}}]}
    page = report(result)
    assert re.search(
        rf"\| visual/demo \| plane \| `{key}` \| \+0.300 ± 0.014 \(2\) \| 0.258 \| \+0.300 \| learns \| ▁█", page
    )
    assert all(f"| {name} |" in page for name in twins()) and "| f | 1 | 2 | t (failed) |" in page


@pytest.mark.nightly
def test_a_fault_turns_a_twin_red_and_leaves_nothing_behind():
    name = "speech/demo_duration"
    before = once(name, 0)
    with FAULTS["the loss detached from the weights"]():
        faulty = once(name, 0)
    assert faulty["gain"] == 0 < before["gain"] and once(name, 0)["gain"] == before["gain"]


@pytest.mark.parametrize(("gain", "caught"), [(0.2, True), (0.3, False), (0.5, True), (None, True)])
def test_a_twin_is_red_where_its_gain_leaves_its_band_and_kept_gains_stay(gain, caught):
    made = list(
        plant_faults(
            {"t": (0.25, 0.4), "u": (0.0, 1.0)}, lambda *_: {"gain": gain}, ["t"], {"groups mixed": {"u": 0.1}}
        )
    )
    assert [one["fault"] for one in made] == list(FAULTS) and all(("t" in one["caught"]) == caught for one in made)
    assert [one["gains"] for one in made if "u" in one["gains"]] == [{"u": 0.1, "t": gain}]


@pytest.mark.nightly
@pytest.mark.nightly
def test_a_stopped_comparison_goes_on(tmp_path, capsys):
    args = Args(["speech/demo_duration"], seeds=1, calibrate=True, output=str(tmp_path))
    bench.run(args, "m", "c")
    args.resume, args.seeds = True, 2
    bench.run(args, "m", "c")
    assert "2 runs, 1 of them kept" in capsys.readouterr().out
    args.calibrate = False
    bench.run(args, "m", "c")
    stored = json.loads((tmp_path / "twins.json").read_text())
    assert [one["seed"] for one in stored["runs"]["runs"]] == [0, 1]
    gains = [[one["gain"] for one in stored[part]["runs"]] for part in ("calibration", "runs")]
    assert gains[0] == gains[1] and "learns: 1" in capsys.readouterr().out


@pytest.mark.nightly
@pytest.mark.learning
def test_the_twins_that_the_commit_chooses_learn():
    """Three of those that are stored as learning, one seed each: at least half of the stored gain, since rounding moves
    single runs by more than their threshold's margin."""
    result = bench.read(RESULTS / "twins.json")
    stored = {
        name: statistics.fmean(one["gain"] for one in result["calibration"]["runs"] if one["hash"] == twin.hash)
        for name, twin in twins().items()
        if state(twin.hash, result)[0] == "learns"
    }
    for name in choose(Args(few=3, key=commit()), list(stored)):
        one = once(name, 0)
        assert one["gain"] >= stored[name] / 2 > 0, one
