"""Learning curves of methods: their cost, their table, and what a stopped comparison keeps."""

from __future__ import annotations

import copy
import json

import pytest
import torch
import tyro

from benchmarks import visual_learning as learning
from mmgrpo.cli.bench.visual import config_of
from mmgrpo.config.reading import refuse_preset
from mmgrpo.family import family
from tests.journeys.cli.running import program


def test_time_to_a_level_lies_on_the_line_between_two_evaluations():
    curve = [(0, 0.0, 0.2), (10, 50.0, 0.4), (20, 100.0, 0.8)]
    assert learning.time_to(curve, 0.2) == 0.0
    assert learning.time_to(curve, 0.3) == pytest.approx(25.0)  # half way from 0.2 to 0.4
    assert learning.time_to(curve, 0.7) == pytest.approx(87.5)  # 50 + 50 * 0.3 / 0.4
    assert learning.time_to(curve, 0.9) is None


def test_a_curve_that_falls_back_does_not_stay():
    curve = [(0, 0.0, 0.2), (10, 50.0, 0.6), (20, 100.0, 0.5)]
    assert learning.stays(curve, 0.5) and not learning.stays(curve, 0.55) and not learning.stays(curve, 0.9)


def learned(method: str, last: float, seed: int = 0, lr: float = 1e-3, tuning: bool = False) -> dict[str, object]:
    points = [(0, 0.0, 0.4), (10, 100.0, last)]
    head = {"method": method, "seed": seed, "lr": lr, "tuning": tuning}
    return {**head, "points": points, "evaluations": 8, "memory": 0.5}


def test_the_learning_table_is_of_the_mean_curve_and_names_what_was_not_reached():
    runs = [learned("Flow-GRPO", 0.7), learned("Flow-GRPO", 0.9, 1), learned("MixGRPO", 0.5), learned("AWM", 0.9)]
    runs += [learned("AWM", 0.99, tuning=True), {**learned("FPO", 0), "problem": "a | b"}]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in learning.table(runs, "s")[4:]]
    by_name = {row[0]: row for row in rows}
    assert [row[0] for row in rows] == ["AWM", "Flow-GRPO", "MixGRPO", "FPO"]
    assert by_name["AWM"][6:9] == ["80", "0.80", "yes"]  # (.8 - .4) / (.9 - .4) of 100 s
    assert by_name["MixGRPO"][6:9] == ["not reached", "", ""] and "a / b" in by_name["FPO"]
    assert by_name["Flow-GRPO"][2:6] == ["2", "0.400", "0.800 (0.700 to 0.900)", "100"]


def test_each_method_has_the_rate_that_was_best_on_the_tuning_split():
    runs = [learned("AWM", 0.5, lr=1e-4, tuning=True), learned("AWM", 0.6, lr=1e-3, tuning=True)]
    runs += [learned("AWM", 0.9, lr=1e-4), {"method": "FPO", "lr": 1e-4, "tuning": True, "problem": "x"}]
    assert learning.best_rate("AWM", runs, [1e-4, 1e-3]) == 1e-3
    assert learning.best_rate("FPO", runs, [1e-4, 1e-3]) is None and learning.best_rate("FPO", runs, [5e-4]) == 5e-4


@pytest.mark.parametrize("method", learning.CURVES)
def test_a_method_of_the_curve_is_a_configuration_that_its_family_takes(method):
    config = config_of(learning.CURVES[method], 8)
    config.check()
    family("sd3").check(config)
    refuse_preset(config.algorithm.preset, family("sd3").decisions(config))
    assert config.data.prompts_per_step * config.data.group_size == 128 and config.sampling.steps == learning.STEPS


def test_passes_are_counted_with_their_backward_passes_and_those_of_copies():
    from benchmarks.twins.worlds import PlaneNetwork

    network, inputs = PlaneNetwork(2, 2), (torch.zeros(5, 2, 1, 1), torch.zeros(5), torch.zeros(5, 3))
    with learning.passes() as spend:
        with torch.no_grad():
            network(*inputs)
        assert spend() == 5  # a sampling step of five samples
        network(*inputs)
        copy.deepcopy(network).requires_grad_(False)(*inputs)
        assert spend() == 5 + 15 + 5  # forward and backward, and the reference
    network(*inputs)
    assert spend() == 25


@pytest.mark.parametrize(
    ("options", "unused"),
    [
        (["--passes", 10], "--passes.*--world image"),
        (["--world", "plane", "--tune-seconds", 10], "--tune-seconds.*--world plane"),
    ],
)
def test_a_budget_of_the_other_world_is_refused(options, unused, tmp_path):
    with pytest.raises(ValueError, match=unused):
        learning.run(tyro.cli(learning.Args, args=[*map(str, options), "--output", str(tmp_path)]), "", "")


@pytest.mark.nightly
def test_methods_are_compared_on_the_plane_by_passes(tmp_path):
    options = ["--world", "plane", "--rates", 3e-3, "--passes", 3000, "--seeds", 1, "--points", 2]
    methods = ["Flow-GRPO", "one-step branch"]
    program("visual_learning", *options, "--threads", 1, "--output", tmp_path, "--methods", *methods)
    runs = json.loads((tmp_path / "plane_learning.json").read_text())["runs"]
    # 8 prompts x 16 samples: 8 steps to sample and 7 that are drawn at random to train, 1024 + 3 x 896; of one step
    # that all samples of a prompt branch at, so much less that five rounds are cheaper than one.
    (flow, branch), budget = ({one["method"]: one["points"][-1] for one in runs}[name] for name in methods), 3000
    assert flow[:2] == [1, 3712] and branch[0] >= 4 and budget <= branch[1] < budget + 3712 / 4
    assert "| one-step branch |" in (tmp_path / "plane_learning.md").read_text()


@pytest.mark.nightly
@pytest.mark.nightly
def test_learning_curves_are_tuned_drawn_and_resumed(tmp_path, capsys):
    options = ["--rates", 1e-4, 1e-3, "--seconds", 0.01, "--tune-seconds", 0.01, "--prompts", 1]
    options += ["--eval-prompts", 2, "--threads", 1, "--output", tmp_path, "--seeds", 1]
    program("visual_learning", *options, "--methods", "one-step branch")
    stored = json.loads((tmp_path / "visual_learning.json").read_text())["runs"]
    assert [(one["tuning"], len(one["points"])) for one in stored] == [(True, 2), (True, 2), (False, 2)]
    assert all(points[-1][0] == 1 and points[-1][1] > 0 for points in (one["points"] for one in stored))
    capsys.readouterr()
    program("visual_learning", *options, "--methods", "one-step branch", "DiffusionNFT", "--resume")
    again = json.loads((tmp_path / "visual_learning.json").read_text())["runs"]
    assert again[:3] == stored and [one["method"] for one in again[3:]] == ["DiffusionNFT"] * 3
    assert (tmp_path / "visual_learning.png").read_bytes()[:4] == b"\x89PNG"
    assert "| DiffusionNFT |" in (tmp_path / "visual_learning.md").read_text()
