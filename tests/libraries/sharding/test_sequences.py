"""Runs whose processes divide the tokens of a sample equal those of one process, also beside shards and copies."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from mmgrpo.config.settings import Distributed, config_class
from mmgrpo.family import families, refuse_undivided
from mmgrpo.runtime.identity import Identity
from pipelines.sequences import mask_by_process
from pipelines.visual.sequences import Counted, Divisible, DivisiblePatches, Filled, joint_mask
from tests.libraries.sharding.test_sharding import Runs, assert_close, weights

CASES = ["flux:lora", "wan:checkpointed", "qwen_vl:lora"]
RARE = [
    "qwen_vl:checkpointed",
    "qwen_vl:full",
    "qwen_vl:unfrozen-lora",
    "flux:checkpointed",
    "flux:reference",
    "wan:lora",
    "wan:experts",
    "flux_kontext:full",
    "qwen_image:full",
    "sd3:lora",
    "z_image:full",
    "hunyuan_video:lora",
]
EVERY = [*CASES, *(pytest.param(case, marks=pytest.mark.nightly) for case in RARE)]
PLANNED = [f"{name}:{kind}" for name, one in families().items() if one.divide for kind in ("full", "checkpointed")]
"""Gradients of every family that divides tokens."""
SOME = [*CASES, *(pytest.param(case, marks=pytest.mark.nightly) for case in PLANNED if case not in CASES)]
TOGETHER = [
    pytest.param(f"{name}:{kind}", marks=[] if (name, kind) == ("flux", "lora-checkpointed") else pytest.mark.nightly)
    for name in ("flux", "wan", "qwen_vl")
    for kind in ("lora-checkpointed", "checkpointed", "lora", "full")
]
"""Gradients of eight processes that divide rows, tokens and weights."""
GRADIENTS = "tests.libraries.sharding.gradients"
TOLERANCE = {"float64": 1e-12, "float32": 1e-5}
"""Of gradients, relative to the largest."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Runs:
    return Runs(tmp_path_factory.mktemp("divided"))


@pytest.fixture(scope="module")
def cases(collected) -> list[str]:
    return [case for case in [*CASES, *RARE] if case in collected("case")]


def two(runs: Runs, cases: list[str]):
    return runs.start("two", 2, cases, mode="none", sequence=2)


def test_a_family_without_a_plan_is_refused_before_it_is_loaded():
    config = config_class(families()["sana"].sections)()
    config = replace(config, model=replace(config.model, family="sana"), distributed=Distributed(sequence=2))
    with pytest.raises(ValueError, match="distributed.sequence.*2.*sana.*flux"):
        refuse_undivided(config, families()["sana"])
    refuse_undivided(config, families()["flux"])
    refuse_undivided(replace(config, distributed=Distributed()), families()["sana"])


def test_the_mask_of_divided_tokens_is_ordered_by_process_and_filled_up():
    """A prompt of three tokens, the first of which is padding, filled up to four, and an answer of two: process 0 has
    the columns 0 1 of the prompt and 0 of the answer, process 1 the columns 2 3 and 1."""
    real = torch.tensor([[False, True, True, True, True]])
    found = mask_by_process(real, [(3, 4), (2, 2)], 2)
    assert found.int().tolist() == [[[0, 1, 1, 1, 0, 0], [0, 1, 1, 1, 0, 1]]]
    alone = mask_by_process(real[:, :3], [(3, 4)], 2)  # padding attends to itself
    assert alone.int().tolist() == [[[1, 0, 0, 0], [0, 1, 0, 0], [0, 1, 1, 0], [0, 0, 0, 1]]]
    given = torch.ones(1, 2, 5, dtype=torch.bool)
    assert mask_by_process(given, [(3, 4), (2, 2)], 2).int().tolist() == [[[1, 1, 1, 1, 0, 1], [1, 1, 1, 1, 0, 1]]]


def test_words_are_filled_up_with_a_mask_and_other_tokens_must_be_divisible():
    words, mask = torch.ones(2, 5, 3), "encoder_hidden_states_mask"
    call = {"encoder_hidden_states": words, mask: None}
    _, filled = Filled(4, mask)(torch.nn.Identity(), (), call)
    assert filled["encoder_hidden_states"].shape == (2, 8, 3)
    assert filled[mask].sum(1).tolist() == [5, 5]
    assert Filled(5, mask)(torch.nn.Identity(), (), call) is None
    layer = torch.nn.Linear(3, 3)
    Divisible({"input": 1}, 5)(layer, (words,), {})
    with pytest.raises(ValueError, match="distributed.sequence.*4.*5.*input"):
        Divisible({"input": 1}, 4)(layer, (words,), {})
    clip = {"hidden_states": torch.ones(1, 4, 3, 4, 6)}  # 3 x 2 x 3 patches
    DivisiblePatches((1, 2, 2), 3)(layer, (), clip)
    with pytest.raises(ValueError, match="distributed.sequence.*4.*18.*hidden_states"):
        DivisiblePatches((1, 2, 2), 4)(layer, (), clip)


def test_words_without_a_mask_are_filled_up_and_nothing_attends_to_the_filling():
    """Five words of two processes, three each, beside two tokens of an image each: the last word is none."""
    _, filled = Counted(2)(torch.nn.Identity(), (), {"encoder_hidden_states": torch.ones(1, 5, 3)})
    assert filled["encoder_hidden_states"].sum(2).tolist() == [[3.0, 3.0, 3.0, 3.0, 3.0, 0.0]]
    assert filled["joint_attention_kwargs"] == {"real": 5}
    assert joint_mask(images=2, words=3, real=5, count=2).int().tolist() == [1, 1, 1, 1, 1, 1, 1, 1, 1, 0]


@pytest.mark.slow
@pytest.mark.parametrize("case", EVERY)
def test_two_processes_that_divide_tokens_train_like_one(case, runs, cases):
    one, divided = runs.start("one", 1, cases), two(runs, cases)
    assert_close(one, divided, case, 1e-6)
    ours, theirs = weights(divided, case), weights(divided, case, rank=1)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    lines, expected = (
        [json.loads(line) for line in (folder / case.replace(":", "-") / "metrics.jsonl").read_text().splitlines()]
        for folder in (divided, one)
    )
    assert sum(line["grad_norm"] > 1e-3 for line in lines) >= 3
    assert all(line["ratio/first_minus_one"] < 1e-5 for line in lines)
    for line, other in zip(lines, expected, strict=True):
        assert line["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-5)
        for counted in ("rollout/rows", "rollout/evaluations"):
            assert line[counted] == other[counted]
    values = [
        json.loads((folder / case.replace(":", "-") / "evaluations" / "after.json").read_text())["values"]["measured"]
        for folder in (one, divided)
    ]
    assert values[0] == pytest.approx(values[1], abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("summed", SOME)
def test_gradients_of_divided_tokens_add_up_to_those_of_one_process(summed, runs, collected):
    given = {"mode": "none", "sequence": 2, "module": GRADIENTS}
    folder = runs.start("gradients", 2, sorted(collected("summed")), **given)
    assert_summed(folder, summed, 2)


def assert_summed(folder: Path, case: str, world: int) -> None:
    """Every process finds the gradients of one, from fewer tokens."""
    for rank in range(world):
        found = json.loads((folder / f"gradients-{rank}.json").read_text())[case]
        for precision, tolerance in TOLERANCE.items():
            gap, alone, divided = found[precision]
            assert gap < tolerance and alone > divided, (rank, precision)


@pytest.mark.slow
@pytest.mark.rows
@pytest.mark.parametrize("together", TOGETHER)
def test_gradients_of_rows_tokens_and_weights_divided_together_are_those_of_one_process(together, runs, collected):
    """Eight processes: two copies of the weights in four shards each, four data ranks of two that divide tokens."""
    given = {"replicate": 2, "sequence": 2, "module": GRADIENTS}
    folder = runs.start("eight-gradients", 8, sorted(collected("together")), **given)
    assert_summed(folder, together, 8)


@pytest.mark.slow
@pytest.mark.parametrize("case", EVERY)
def test_a_run_of_divided_tokens_is_resumed_by_one_process_and_saves_the_same_model(case, runs, cases):
    one, divided = runs.start("one", 1, cases), two(runs, cases)
    alone = runs.start("alone", 1, cases, of="two")
    assert_close(alone, divided, case, 1e-6)
    identity = Identity.read(alone / case.replace(":", "-"))
    assert identity is not None and identity.resumed[-1]["changed"]["distributed.sequence"] == [2, 1]
    assert_same_model(one, divided, case)


def assert_same_model(one: Path, divided: Path, case: str) -> None:
    saved = [folder / case.replace(":", "-") / "model" for folder in (one, divided)]
    files = [*saved[0].rglob("*.safetensors")]
    assert files
    for file in files:
        ours, theirs = load_file(file), load_file(saved[1] / file.relative_to(saved[0]))
        assert ours.keys() == theirs.keys() and ours
        for name, value in ours.items():
            torch.testing.assert_close(theirs[name], value, rtol=0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.nightly
def test_tokens_shards_and_copies_together_train_like_one_process(runs):
    """Eight processes: two copies, each of two shards of two processes that divide tokens, or of four shards."""
    cases = [*CASES, "flux:checkpointed", "flux_kontext:full", "qwen_vl:full"]
    eight = runs.start("eight", 8, cases, replicate=2, sequence=2)
    again = runs.start("four", 4, cases, of="eight")
    alone = runs.start("alone-for-eight", 1, cases)
    for case in cases:
        assert_close(alone, eight, case, 1e-6)
        assert_close(again, eight, case, 1e-6)
        assert_same_model(alone, eight, case)
