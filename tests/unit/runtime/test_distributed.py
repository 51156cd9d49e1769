"""What crosses ranks: padded and joined numbers, and runs that do not depend on the number of processes."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from safetensors.torch import load_file

from mmgrpo.runtime.distributed import (
    NODES_PER_RANK,
    RankSlice,
    gather_decisions,
    gather_reward_scores,
    join_decisions,
    pad_decisions,
    sum_gradients,
)
from mmgrpo.scoring import RewardScores
from mmgrpo.types import OWN, Decisions
from tests.processes import Forked
from tests.unit.runtime.distributed_worker import CASES, REMEMBERED
from tests.unit.runtime.ports import meeting_port

PADDED = {
    *("tokens", "conversing", "ahead", "joint", "in windows", "turn values", "values of actions"),
    *("values of evaluations", "discriminated", "playing", *REMEMBERED),
}
"""Cases of texts of different lengths."""


def decisions(rows: int, width: int, first: int = 1) -> Decisions:
    numbers = torch.arange(first, first + rows * width).view(rows, width)
    return Decisions(
        log_probs=-numbers.float(),
        loss_mask=torch.ones(rows, width, dtype=torch.bool),
        decision_mask=torch.ones(rows, width, dtype=torch.bool),
        node=numbers,
        origin=torch.full((rows,), OWN),
        keys={"prompt": torch.arange(rows)},
        fields={"truncated": torch.ones(rows), "entropy": numbers.float()},
    )


def test_padding_appends_positions_that_are_no_decisions():
    padded = pad_decisions(decisions(2, 2), 3)
    assert padded.log_probs.tolist() == [[-1, -2, 0], [-3, -4, 0]]
    assert padded.loss_mask.tolist() == padded.decision_mask.tolist() == [[True, True, False]] * 2
    assert padded.fields["entropy"].tolist() == [[1, 2, 0], [3, 4, 0]]
    assert padded.fields["truncated"].tolist() == [1, 1]  # one a row stays one a row


def test_padding_to_the_own_width_changes_nothing():
    same = pad_decisions(decisions(2, 2), 2)
    assert same.log_probs.tolist() == [[-1, -2], [-3, -4]]


def test_draws_of_different_widths_are_joined_at_the_longest():
    joined = join_decisions([decisions(1, 3), decisions(2, 1, first=7)])
    assert joined.log_probs.tolist() == [[-1, -2, -3], [-7, 0, 0], [-8, 0, 0]]
    assert joined.decision_mask.sum(1).tolist() == [3, 1, 1]
    assert joined.keys["prompt"].tolist() == [0, 0, 1]
    assert joined.fields["entropy"].tolist() == [[1, 2, 3], [7, 0, 0], [8, 0, 0]]
    assert joined.origin.tolist() == [OWN] * 3


def test_decisions_of_different_draws_are_different_decisions():
    alone = Accelerator(cpu=True)
    first, second = (gather_decisions(decisions(2, 2), alone, draw) for draw in (0, 1))
    assert first.node.tolist() == [[1, 2], [3, 4]]
    assert second.node.tolist() == [[NODES_PER_RANK + 1, NODES_PER_RANK + 2], [NODES_PER_RANK + 3, NODES_PER_RANK + 4]]
    assert torch.equal(first.log_probs, second.log_probs)


def test_one_process_gathers_what_it_has():
    reward_scores = RewardScores(torch.tensor([[1.0], [0.0]]), torch.tensor([[True], [False]]))
    gathered = gather_reward_scores(reward_scores, Accelerator(cpu=True))
    assert torch.equal(gathered.values, reward_scores.values) and torch.equal(gathered.valid, reward_scores.valid)
    weight = torch.nn.Parameter(torch.ones(2))
    weight.grad, still = torch.tensor([1.0, 2.0]), torch.nn.Parameter(torch.ones(1))
    sum_gradients([weight, still], Accelerator(cpu=True))
    assert weight.grad.tolist() == [1, 2]
    assert still.grad is not None and still.grad.tolist() == [0]  # a step of the optimizer, as on two processes


def test_shares_are_contiguous_and_cover_everything_once(monkeypatch):
    shares = []
    for index in range(3):
        monkeypatch.setattr(Accelerator, "num_processes", 3)
        monkeypatch.setattr(Accelerator, "process_index", index)
        shares.append(RankSlice.of(6, Accelerator(cpu=True), "prompts"))
    assert [list(range(share.start, share.stop)) for share in shares] == [[0, 1], [2, 3], [4, 5]]


def test_what_cannot_be_shared_evenly_is_refused_with_the_numbers(monkeypatch):
    monkeypatch.setattr(Accelerator, "num_processes", 2)
    with pytest.raises(ValueError, match="among 2.*5"):
        RankSlice.of(5, Accelerator(cpu=True), "prompts a round")


def started(folder: Path, index: int, world: int, port: int, cases: Sequence[str]) -> Forked:
    place = {"RANK": index, "LOCAL_RANK": index, "WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return Forked("tests.unit.runtime.distributed_worker", [folder, *cases], place if world > 1 else {})


@pytest.fixture(scope="module")
def runs(tmp_path_factory, collected) -> dict[int, Path]:
    """Folders of the same runs with one and with two processes."""
    folders = {world: tmp_path_factory.mktemp(f"processes-{world}") for world in (1, 2)}
    cases = [case for case in CASES if case in {"rows", *collected("case")}]
    with meeting_port() as port:
        workers = [started(folders[world], index, world, port, cases) for world in (1, 2) for index in range(world)]
        try:
            for worker in workers:
                told, _ = worker.communicate(timeout=1000)
                assert worker.returncode == 0, told[-3000:]
        finally:
            for worker in workers:
                worker.kill()
    assert {world: int((folder / "processes").read_text()) for world, folder in folders.items()} == {1: 1, 2: 2}
    return folders


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_two_processes_train_like_one(case, runs):
    one, two = (
        [json.loads(line) for line in (runs[world] / case / "metrics.jsonl").read_text().splitlines()]
        for world in (1, 2)
    )
    assert len(one) == len(two) == 3
    for first, second in zip(one, two, strict=True):
        assert first.keys() == second.keys()
        # Of tokens they count the padding, up to the longest completion of a process.
        padded = {"rollout/evaluations"} if case in PADDED else set()
        for name in (
            first.keys() - padded - {"seconds", "memory", "time/rollout", "time/reward", "time/update", "time/learners"}
        ):
            # Before an update the ratio differs from one by rounding alone, which is another on another process.
            least = 1e-5 if name.endswith("_minus_one") else 1e-6
            a, b = first[name], second[name]  # None for one that is not a number, as a correlation with a constant
            assert (a is b is None) or math.isclose(a, b, rel_tol=1e-5, abs_tol=least), (name, a, b)
    alone = load_file(runs[1] / case / "weights-0.safetensors")
    for index in range(2):
        shared = load_file(runs[2] / case / f"weights-{index}.safetensors")
        for name, value in alone.items():
            # A thirtieth of one of AdamW's steps (1e-3 here), which divide a gradient by its own size, also where it is
            # nothing but rounding, as that of a key's bias is: 0.7e-6 to 1.7e-6 under four roundings.
            torch.testing.assert_close(shared[name], value, rtol=0, atol=3e-5)
    # The ledger, the stored rows and further networks, which every process keeps.
    kept = load_file(runs[1] / case / "kept-0.safetensors")
    for index in range(2):
        other = load_file(runs[2] / case / f"kept-{index}.safetensors")
        assert kept.keys() == other.keys()
        for name, value in kept.items():
            torch.testing.assert_close(other[name], value, rtol=1e-3, atol=1e-4, equal_nan=True, msg=name)
    assert max(line["grad_norm"] for line in one) > 1e-6
    if case == "resampled":
        assert [line["group/draws"] for line in one] == [2, 1, 1]
    if case.startswith("clipped"):
        # After the first update of the round every decision has gone the way of its advantage and is held by the clip.
        assert [line["clip/low"] + line["clip/high"] for line in one] == [0, 1, 1]
        assert [line["grad_norm"] > 0 for line in one] == [True, False, False]


@pytest.mark.slow
@pytest.mark.parametrize("title", ["before", "after"])
def test_two_processes_evaluate_like_one(title, runs):
    """Three prompts on two processes: the last one is evaluated twice and counted once."""
    one, two = (json.loads((runs[n] / "rows" / "evaluations" / f"{title}.json").read_text())["values"] for n in (1, 2))
    assert len(one["reward"]) == 3
    assert two["reward"] == pytest.approx(one["reward"], abs=1e-5)


@pytest.mark.slow
def test_two_processes_count_the_errors_of_all_prompts(runs):
    """Five further prompts on two processes: whatever a process drew itself, the rate is of all five."""
    one, two = (json.loads((runs[n] / "rows" / "evaluations" / "after-further.json").read_text()) for n in (1, 2))
    assert one["counts"] == two["counts"]
    assert one["counts"]["miss"]["units"] == [1, 2, 3, 4, 5] and len(one["counts"]["miss"]["errors"]) == 5


@pytest.mark.slow
def test_every_process_knows_the_largest_number_of_all(runs):
    assert [float((runs[2] / f"largest-{index}").read_text()) for index in range(2)] == [1, 1]


@pytest.mark.slow
def test_every_process_has_the_texts_of_all_in_their_order(runs):
    assert [(runs[2] / f"texts-{index}").read_text() for index in range(2)] == ["é||long — one|second"] * 2
    assert (runs[1] / "texts-0").read_text() == "é||long — one"


@pytest.mark.slow
def test_two_processes_share_the_check_of_media_and_know_all_of_its_result(runs):
    reasons = [f"{name} is bad, says process {rank}" for name, rank in (("b", 1), ("e", 0), ("b", 1), ("e", 0))]
    for index, opened in enumerate(("ace", "bd")):
        assert (runs[2] / f"readable-{index}").read_text().split("\n") == [opened, "acd", *reasons]
    assert (runs[1] / "readable-0").read_text().startswith("abcde\nacd\n")
