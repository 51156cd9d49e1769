"""A run of two processes that is killed goes on: divided, replicated or by one process, whichever it was."""

from __future__ import annotations

import json
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.libraries.sharding.killed import JOBS, WAYS
from tests.libraries.sharding.worker import config_of
from tests.processes import Forked
from tests.unit.runtime.ports import meeting_port

CASES = [
    f"{name}:{kind}" for name in ("sd3", "wan", "stable_diffusion", "qwen_vl", "whisper") for kind in ("lora", "full")
]


@pytest.fixture(scope="module")
def ended(tmp_path_factory) -> dict[str, Path]:
    return {}


def jobs_of(case: str, ended: dict[str, Path], place: Path) -> Path:
    """The folder of all jobs of a case."""
    if case not in ended:
        ended[case] = place
        config_of(case, place, "none", 1)  # transformers writes a tiny model in the first process alone
        with ExitStack() as ports:
            given = [str(ports.enter_context(meeting_port())) for _ in JOBS]
            started = [Forked("tests.libraries.sharding.killed", [place, rank, case, *given], {}) for rank in range(2)]
            try:
                printed, _ = started[0].communicate(timeout=1200)
                if started[0].returncode == 0:
                    printed += started[1].communicate(timeout=300)[0]
            finally:
                for one in started:
                    one.kill()
        (place / "printed.txt").write_text(printed)
    return ended[case]


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mode", ["full", "none"])
@pytest.mark.parametrize("case", CASES)
def test_a_killed_run_goes_on_in_every_way(case, mode, way, ended, tmp_path_factory):
    """To the same bits in the same way, and to the same numbers in another."""
    folder = jobs_of(case, ended, tmp_path_factory.mktemp("killed"))
    printed = (folder / "printed.txt").read_text()[-3000:]
    assert int((folder / f"{mode}-killed-0.status").read_text()) == -signal.SIGKILL, printed
    assert not (folder / f"{mode}-killed" / "weights.safetensors").exists()
    assert int((folder / f"{mode}-{way}-0.status").read_text()) == 0, printed
    resumed = load_file(folder / f"{mode}-{way}" / "weights.safetensors")
    for name, value in load_file(folder / mode / "weights.safetensors").items():
        if mode == way:
            assert torch.equal(resumed[name], value), name
        else:
            torch.testing.assert_close(resumed[name], value, rtol=0, atol=1e-6, msg=name)
    run = folder / f"{mode}-{way}" / case.replace(":", "-")
    assert [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()] == [1, 2, 3, 4]
    assert not [*(run / "checkpoints").glob(".writing-*")]
    left = folder / f"{mode}-killed" / case.replace(":", "-") / "checkpoints"
    assert bool([*left.glob(".writing-*/*.safetensors")]) == (mode == "full")  # killed while it wrote
    again = json.loads((run / "run.json").read_text())["resumed"][-1]
    assert again["processes"] == WAYS[way][1]
