"""The benchmarks of images: what they compare does the same work, and their tables say what was measured."""

from __future__ import annotations

import copy
import json
import shlex

import pytest
import torch
import tyro

from mmgrpo.cli.bench import visual, vlm
from mmgrpo.cli.bench import visual_learning as learning
from mmgrpo.config.reading import refuse_preset
from mmgrpo.family import family
from tests.journeys.cli.running import call


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
    config = learning.config_of(method, 8)
    config.check()
    family("sd3").check(config)
    refuse_preset(config.algorithm.preset, family("sd3").decisions(config))
    assert config.data.prompts_per_step * config.data.group_size == 128 and config.sampling.steps == learning.STEPS


def test_passes_are_counted_with_their_backward_passes_and_those_of_copies():
    from mmgrpo.cli.bench.twins.worlds import PlaneNetwork

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
        (["--world", "plane"], "--world.*--no-learn"),
        (["--learn", "--rounds", 1], "--rounds.*--learn"),
        (["--learn", "--passes", 10], "--passes.*--world image"),
        (["--learn", "--world", "plane", "--tune-seconds", 10], "--tune-seconds.*--world plane"),
    ],
)
def test_an_option_without_effect_is_refused(options, unused, tmp_path):
    with pytest.raises(ValueError, match=unused):
        visual.run(tyro.cli(visual.Args, args=[*map(str, options), "--output", str(tmp_path)]), "", "")


@pytest.mark.slow
def test_methods_are_compared_on_the_plane_by_passes(tmp_path):
    options = ["--learn", "--world", "plane", "--rates", 3e-3, "--passes", 3000, "--seeds", 1, "--points", 2]
    methods = ["Flow-GRPO", "one-step branch"]
    call("bench", "visual", *options, "--threads", 1, "--output", tmp_path, "--learn-methods", *methods)
    runs = json.loads((tmp_path / "plane_learning.json").read_text())["runs"]
    # 8 prompts x 16 samples: 8 steps to sample and 7 that are drawn at random to train, 1024 + 3 x 896; of one step
    # that all samples of a prompt branch at, so much less that five rounds are cheaper than one.
    (flow, branch), budget = ({one["method"]: one["points"][-1] for one in runs}[name] for name in methods), 3000
    assert flow[:2] == [1, 3712] and branch[0] >= 4 and budget <= branch[1] < budget + 3712 / 4
    assert "| one-step branch |" in (tmp_path / "plane_learning.md").read_text()


@pytest.mark.nightly
@pytest.mark.slow
def test_learning_curves_are_tuned_drawn_and_resumed(tmp_path, capsys):
    options = ["--learn", "--rates", 1e-4, 1e-3, "--seconds", 0.01, "--tune-seconds", 0.01, "--prompts", 1]
    options += ["--eval-prompts", 2, "--threads", 1, "--output", tmp_path, "--seeds", 1]
    call("bench", "visual", *options, "--learn-methods", "one-step branch")
    stored = json.loads((tmp_path / "visual_learning.json").read_text())["runs"]
    assert [(one["tuning"], len(one["points"])) for one in stored] == [(True, 2), (True, 2), (False, 2)]
    assert all(points[-1][0] == 1 and points[-1][1] > 0 for points in (one["points"] for one in stored))
    capsys.readouterr()
    call("bench", "visual", *options, "--learn-methods", "one-step branch", "DiffusionNFT", "--resume")
    again = json.loads((tmp_path / "visual_learning.json").read_text())["runs"]
    assert again[:3] == stored and [one["method"] for one in again[3:]] == ["DiffusionNFT"] * 3
    assert (tmp_path / "visual_learning.png").read_bytes()[:4] == b"\x89PNG"
    assert "| DiffusionNFT |" in (tmp_path / "visual_learning.md").read_text()


@pytest.mark.slow
def test_the_benchmark_of_rollouts_writes_a_table(tmp_path):
    options = ["--rounds", 1, "--prompts", 1, "--threads", 1, "--methods", "one-step branch", "--output", tmp_path]
    call("bench", "visual", *options)
    table = (tmp_path / "visual.md").read_text()
    assert (
        "| one-step branch |" in table and f"`{shlex.join(['mmgrpo', 'bench', 'visual', *map(str, options)])}`" in table
    )


def row(contestant: str, seconds: float, peak: float, completion: int = 64) -> dict[str, object]:
    """What a contestant of the vision-language benchmark measured."""
    times = {"seconds": seconds, "rollout": seconds / 4, "reward": 0.0, "update": 3 * seconds / 4}
    times |= {"drawing": seconds / 8, "tokens a processor second": completion / (seconds / 8)}
    memory = {"peak": peak, "peak above load": peak - 100}
    tokens = {"prompt tokens": 90, "completion tokens": completion}
    speed = {"samples a processor second": 8 / seconds, "processor seconds": seconds}
    contest = {"group": 8, "tokens": 16, "uneven": False}
    return {"contestant": contestant, **contest, **times, **speed, **memory, **tokens}


def test_every_contestant_is_reported_as_a_fraction_of_trls_speed_and_memory():
    rows = [row("ours", 2.0, 300), row(vlm.COMPACT, 8.0, 500)]
    result = {"command": "x", "machine": "y", "parameters": 1, "settings": vars(vlm.Args()), "rows": rows}
    ours, trl = vlm.report(result).splitlines()[-2:]
    # 8 / 2 = 4 samples a processor second against 1; 300 of 500 MiB; 200 of 400 above the loaded model
    # and 64 tokens in .25 s of drawing
    cells = "2.00 | 4.00 | 4.00 | 0.25 | 256 | 2.00 | 0.50 | 0.00 | 1.50 | 300 | 0.60 | 200 | 0.50"
    assert ours == f"| 16 | 8 | ours | {cells} |"
    head = f"| 16 | 8 | {vlm.COMPACT} |"
    assert trl == f"{head} 8.00 | 1.00 | 1.00 | 1.00 | 64 | 8.00 | 2.00 | 0.00 | 6.00 | 500 | 1.00 | 400 | 1.00 |"


def test_contestants_that_did_different_work_are_not_compared():
    vlm.refuse_unequal([row("ours", 2.0, 300), row("TRL", 8.0, 500)])
    with pytest.raises(RuntimeError, match=r"8.*\(90, 63\)"):
        vlm.refuse_unequal([row("ours", 2.0, 300), row("TRL", 8.0, 500, completion=63)])


def test_an_engine_that_is_not_installed_is_a_row_that_says_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MMGRPO_ENGINE", raising=False)
    missing = vlm.measure(vlm.Contest(vlm.ENGINE, 8, 1, 16, 1, 1, str(tmp_path)))
    rows = [missing, row("ours", 2.0, 300)]
    vlm.refuse_unequal(rows)
    result = {"command": "x", "machine": "y", "parameters": 1, "settings": vars(vlm.Args()), "rows": rows}
    head, ours = vlm.report(result).splitlines()[-2:]
    assert head.startswith(f"| 16 | 8 | {vlm.ENGINE} | vLLM is not installed") and head.count("|") == ours.count("|")
    monkeypatch.setenv("MMGRPO_ENGINE", "nowhere/python")
    with pytest.raises(ValueError, match=r"MMGRPO_ENGINE.*nowhere/python"):
        vlm.measure(vlm.Contest(vlm.ENGINE, 8, 1, 16, 1, 1, str(tmp_path)))


@pytest.mark.slow
@pytest.mark.nightly
def test_the_benchmark_beside_vllm_draws_the_same_lengths(tmp_path):
    if not vlm.python_with_vllm():
        pytest.skip("vLLM is not installed; run 'make engine' (3 GB), or name its Python by MMGRPO_ENGINE")
    options = ["--groups", 4, "--steps", 1, "--vocabulary", 300, "--width", 64, "--layers", 2, "--tokens", 4]
    options += ["--side", 56, "--threads", 1, "--uneven", 16, "--output", tmp_path]
    call("bench", "vlm", *options, "--contestants", vlm.OURS, vlm.ENGINE)
    rows = json.loads((tmp_path / "vlm.json").read_text())["rows"]
    assert [one["contestant"] for one in rows] == [vlm.OURS, vlm.ENGINE] * 2
    even, same, uneven, as_many = (one["completion tokens"] for one in rows)
    assert even == same == 16 and 16 <= uneven == as_many < 64
    assert all(0 < one["drawing"] < one["processor seconds"] for one in rows)


@pytest.mark.slow
@pytest.mark.nightly
def test_the_benchmark_beside_trl_runs_both_on_the_same_work(tmp_path):
    options = ["--groups", 4, "--steps", 1, "--vocabulary", 300, "--width", 32, "--layers", 2, "--tokens", 4]
    options += ["--side", 56, "--threads", 1, "--contestants", "ours", "TRL", "--output", tmp_path]
    call("bench", "vlm", *options)
    rows = json.loads((tmp_path / "vlm.json").read_text())["rows"]
    ours, trl = (row for row in rows if not row["uneven"])
    assert (ours["contestant"], trl["contestant"]) == ("ours", "TRL")
    # 2 x 2 places for the picture; 4 samples of 4 tokens, none of which ended early
    assert ours["prompt tokens"] == trl["prompt tokens"] > 4 + 20
    assert ours["completion tokens"] == trl["completion tokens"] == 16
    for found in (ours, trl):
        assert 0 < found["rollout"] < found["seconds"] and found["update"] > 0
        assert 0 < found["peak above load"] < found["peak"]
    assert "| 4 | ours |" in (tmp_path / "vlm.md").read_text()


def test_a_benchmark_that_does_not_exist_is_an_error_that_names_those_that_do():
    with pytest.raises(ValueError, match="'opera'"):
        call("bench", "opera")


@pytest.mark.slow
@pytest.mark.nightly
def test_the_benchmark_of_cards_runs_at_toy_size(tmp_path):
    networks = ["sd3.5-medium", "qwen2.5-vl-3b", "whisper-large-v3"]
    call("bench", "gpu", "--toy", "--rounds", 1, "--device", "cpu", "--networks", *networks, "--output", tmp_path)
    rows = json.loads((tmp_path / "gpu.json").read_text())["rows"]
    assert [row["network"] for row in rows] == networks and not any("error" in row for row in rows), rows
    assert all(row["operations"] > 1e6 and row["evaluations per second"] > 0 for row in rows)
    drawn, *spoken = [row["waits of each"] for row in rows]
    assert all(one["own decision"] <= 1 for one in spoken), spoken  # a token
    assert drawn["own decision"] == 0, drawn  # a denoising step, sampled and trained
    assert all(1 == one["own update"] <= one["update"] < 10 for one in (drawn, *spoken)), rows
    assert all(f"| {name} |" in (tmp_path / "gpu.md").read_text() for name in networks)
