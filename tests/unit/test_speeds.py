"""Reported speeds, and the page that shows them beside measured ones."""

from __future__ import annotations

import re

import pytest

from mmgrpo.catalogue.speeds import Speed, speeds
from mmgrpo.cli.bench import gpu


@pytest.mark.parametrize("name", speeds())
def test_a_reported_speed_has_a_source_that_does_not_change_and_agrees_with_itself(name):
    one = speeds()[name]
    assert re.fullmatch(r"https://github\.com/[\w.-]+/[\w.-]+/(blob/[0-9a-f]{40}/\S+|issues/\d+)", one.source)
    assert one.count >= 1 and one.cards and (one.seconds or one.mfu or one.rate)
    if one.rate and one.samples and one.seconds:
        assert one.samples / one.seconds / one.count == pytest.approx(one.rate, rel=0.02)


def test_samples_a_second_are_those_that_are_reported_or_those_of_an_update():
    """160 samples in 290 s on 8 cards: 0.069 a second and card."""
    assert Speed("x", "H800", 8, "", seconds=290, samples=160).per_second == pytest.approx(0.068966, abs=1e-6)
    assert Speed("x", "H800", 8, "", seconds=290, samples=160, rate=0.5).per_second == 0.5
    assert Speed("x", "H800", 8, "", seconds=290).per_second is None


def test_measured_and_reported_speeds_stand_in_one_table():
    parts = {"rollout": 1.0, "reward": 0.0, "update": 3.0, "seconds": 4.0, "samples per second": 4.0}
    row = {"network": "small", **parts, "updates per hour": 900.0, "MFU": 0.25, "peak GB": 3.0, "dry-run GB": 2.0}
    row |= {"parameters": 7, "evaluations per second": 40.0, "share of peak": 0.3, "waits": 5}
    lines = gpu.page([row, {"network": "large", "error": "out of memory"}], "a card", "a command")
    assert next(line for line in lines if line.startswith("Speed, not learning"))
    first = next(place for place, line in enumerate(lines) if line.startswith("| run"))
    table = lines[first + 2 : lines.index("", first)]
    assert table[0] == "| small | measured here | 1 | 4 | 900 | 25.0 % | 3.00 (dry run 2.00) |"
    assert table[1] == "| large | out of memory | | | | | |"
    assert len(table) == 2 + len(speeds()) and all("reported by [" in line for line in table[2:])
    flow = next(line for line in table if line.startswith("| Qwen-Image, Flow-GRPO, LoRA 64 |"))
    assert flow.endswith(" | 4 x H800 | 0.305 | 8.57 | - | - |")  # 3600 / 420
    assert {line.count("|") for line in table} == {8}
    assert "| small | 7 | 4.00 | 1.00 / 0.00 / 3.00 | 40 | 30.0 % | 5 |" in lines
