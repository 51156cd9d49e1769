"""The benchmarks of images: what they compare does the same work, and their tables say what was measured."""

from __future__ import annotations

import json
import shlex

import pytest

from mmgrpo.cli.bench import gpu, vlm
from tests.journeys.cli.running import call


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
    contest = {"group": 8, "tokens": 16, "uneven": False, "checkpointing": False, "before": ""}
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


def test_two_commits_are_compared_contestant_by_contestant():
    rows = [row("ours", 6.0, 400) | {"before": "old"}, row("ours", 2.0, 300), row(vlm.GENERIC, 4.0, 300)]
    rows += [row("ours", 3.0, 400) | {"before": "old", "checkpointing": True}]
    settings = vars(vlm.Args(before="old", images=2))
    result = {"command": "x", "machine": "y", "parameters": 1, "settings": settings, "rows": rows}
    *_, old, now, other, again = vlm.report(result).splitlines()
    # 8 / 2 = 4 samples a processor second, three times the 8 / 6 of the other commit; 300 of 400 MiB
    assert "| ours (before) | 6.00 | 1.33 | 1.00 |" in old and "| ours | 2.00 | 4.00 | 3.00 |" in now
    assert "| 300 | 0.75 |" in now and "| ours, recomputed (before) | 3.00 | 2.67 | 1.00 |" in again
    assert f"| {vlm.GENERIC} | 4.00 | 2.00 | - |" in other


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


SOME = ["sd3.5-medium-nft", "qwen2.5-vl-3b", "qwen2.5-vl-3b-kl"]


@pytest.mark.slow
@pytest.mark.rows
@pytest.mark.parametrize("networks", [SOME, pytest.param([*gpu.SIZES], marks=pytest.mark.nightly)])
def test_the_benchmark_of_cards_runs_at_toy_size(networks, tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "peak_of", lambda machine: 1e12)
    call("bench", "gpu", "--toy", "--rounds", 1, "--device", "cpu", "--networks", *networks, "--output", tmp_path)
    [stored] = tmp_path.glob("gpu-*.json")
    content = json.loads(stored.read_text())
    rows = {row["network"]: row for row in content["rows"]}
    assert content["toy"] and [*rows] == networks and not any("error" in row for row in rows.values()), rows
    for row in rows.values():
        assert row["operations"] > 1e6 and row["evaluations per second"] > 0
        assert row["samples per second"] == pytest.approx(2 * 4 / row["seconds"])
        assert row["updates per hour"] == pytest.approx(3600 / row["seconds"])
        assert row["MFU"] == pytest.approx(row["operations of the update"] / row["update"] / 1e12)
    plain, second = rows["qwen2.5-vl-3b"], rows["qwen2.5-vl-3b-kl"]
    # Of adapters forward and half of backward, and a further forward pass without a gradient: three for two.
    assert second["operations of the update"] == pytest.approx(1.5 * plain["operations of the update"])
    assert second["operations"] > plain["operations"]
    text = stored.with_suffix(".md").read_text()
    assert all(f"| {name} | measured here |" in text for name in networks)
