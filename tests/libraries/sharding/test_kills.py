"""A run of several processes that is killed goes on, in the same way or with weights and tokens divided otherwise."""

from __future__ import annotations

import json
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.libraries.sharding.killed import STARTS, WAYS, jobs
from tests.libraries.sharding.worker import config_of
from tests.processes import Forked
from tests.unit.runtime.ports import meeting_port

KINDS = ("lora", "full")
PLAIN = [f"{name}:{kind}" for name in ("sd3", "wan", "stable_diffusion", "qwen_vl", "whisper") for kind in KINDS]
DIVIDED = [f"{name}:{kind}" for name in ("flux", "wan", "qwen_vl") for kind in ("lora", "checkpointed")]
CASES = {"full": PLAIN, "none": PLAIN, "tokens": DIVIDED, "eight": DIVIDED[::2]}
FIRST = ("tokens", DIVIDED[0])
EVERY = [
    pytest.param(case, start, way, marks=[] if (start, case) == FIRST else pytest.mark.nightly)
    for start, cases in CASES.items()
    for case in cases
    for way in STARTS[start].goes_on
]


@pytest.fixture(scope="module")
def ended(tmp_path_factory) -> dict[tuple[str, str], Path]:
    return {}


def jobs_of(case: str, start: str, ended: dict[tuple[str, str], Path], place: Path) -> Path:
    """The folder of all jobs of a start of a case."""
    if (case, start) not in ended:
        ended[case, start] = place
        config_of(case, place, "none", 1)  # transformers writes a tiny model in the first process alone
        world = WAYS[STARTS[start].way].world
        with ExitStack() as ports:
            given = [case, start, *(str(ports.enter_context(meeting_port())) for _ in jobs(start))]
            started = [Forked("tests.libraries.sharding.killed", [place, rank, *given], {}) for rank in range(world)]
            try:
                printed, _ = started[0].communicate(timeout=1200)
                if started[0].returncode == 0:
                    printed += "".join(one.communicate(timeout=300)[0] for one in started[1:])
            finally:
                for one in started:
                    one.kill()
        (place / "printed.txt").write_text(printed)
    return ended[case, start]


@pytest.mark.slow
@pytest.mark.rows
@pytest.mark.parametrize(("case", "start", "way"), EVERY)
def test_a_killed_run_goes_on_in_every_way(case, start, way, ended, tmp_path_factory):
    """To the same bits in the same way, and to the same numbers in another."""
    folder = jobs_of(case, start, ended, tmp_path_factory.mktemp("killed"))
    printed = (folder / "printed.txt").read_text()[-3000:]
    kill = STARTS[start].kill
    assert int((folder / f"{start}-killed-{int(kill == 'neighbor')}.status").read_text()) == -signal.SIGKILL, printed
    assert int((folder / f"{start}-killed-0.status").read_text()) != 0, printed
    assert not (folder / f"{start}-killed" / "weights.safetensors").exists()
    assert int((folder / f"{start}-{way}-0.status").read_text()) == 0, printed
    resumed = load_file(folder / f"{start}-{way}" / "weights.safetensors")
    for name, value in load_file(folder / start / "weights.safetensors").items():
        if start == way:
            assert torch.equal(resumed[name], value), name
        else:
            torch.testing.assert_close(resumed[name], value, rtol=0, atol=1e-6, msg=name)
    run = folder / f"{start}-{way}" / case.replace(":", "-")
    assert [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()] == [1, 2, 3, 4]
    assert not [*(run / "checkpoints").glob(".writing-*")]
    left = folder / f"{start}-killed" / case.replace(":", "-") / "checkpoints"
    assert bool([*left.glob(".writing-*/*.safetensors")]) == (kill == "writing")  # killed while it wrote
    again = json.loads((run / "run.json").read_text())["resumed"][-1]
    assert again["processes"] == WAYS[way].world
    changed = again["changed"].get("distributed.sequence")
    before, after = WAYS[STARTS[start].way].sequence, WAYS[way].sequence
    assert changed == (None if before == after else [before, after])
