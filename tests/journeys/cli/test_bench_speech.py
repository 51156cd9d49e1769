"""The benchmark of speech: what it compares does the same work, and its table says what was measured."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mmgrpo.cli.bench.speech import CACHED, EACH, Args, refuse_unequal, report
from tests.journeys.cli.running import call


def row(contestant: str, rollout: float, update: float, tokens: int = 100) -> dict[str, Any]:
    both = {"rollout": rollout, "reward": 0.5, "update": update, "rollout and update": rollout + update}
    seconds = {"seconds": rollout + update + 0.5, "processor seconds": 2 * (rollout + update)}
    return {"contestant": contestant, **both, **seconds, "clips encoded": 4, "tokens": [tokens]}


def test_speed_is_reported_against_encoding_for_every_transcript():
    rows = [row(CACHED, 1.0, 1.0), row(EACH, 4.0, 6.0)]
    result = {"command": "x", "machine": "y", "model": "z", "settings": vars(Args()), "rows": rows}
    fast, slow = report(result).splitlines()[-2:]
    assert fast == "| kept over rounds | 4 | 2.50 | 1.00 | 0.50 | 1.00 | 2.00 | 5.0 | 4.00 | 5.0 |"  # 10 s against 2
    assert slow == "| every transcript | 4 | 10.50 | 4.00 | 0.50 | 6.00 | 10.00 | 1.0 | 20.00 | 1.0 |"


def test_contestants_that_wrote_other_transcripts_are_not_compared():
    refuse_unequal([row("a", 1, 1, 100), row("b", 1, 1, 102)])
    with pytest.raises(RuntimeError, match=r"step.*\(100, 103\)"):
        refuse_unequal([row("a", 1, 1, 100), row("b", 1, 1, 103)])


@pytest.mark.slow
def test_each_contestant_encodes_as_often_as_it_says_and_writes_the_same(whisper_folder, tmp_path):
    options = ["--clips", 2, "--prompts-per-step", 2, "--group", 3, "--steps", 2, "--tokens", 4, "--threads", 1]
    call("bench", "speech", *options, "--model", whisper_folder, "--output", tmp_path)
    rows = json.loads((tmp_path / "speech.json").read_text())["rows"]
    # None; each of two clips once; each for three transcripts, in the rollout and in the update.
    assert [row["clips encoded"] for row in rows] == [0, 2, 2 * 3 * 2]
    assert rows[0]["tokens"] == rows[1]["tokens"] == rows[2]["tokens"]
    assert "| every transcript | 12 |" in (tmp_path / "speech.md").read_text()
