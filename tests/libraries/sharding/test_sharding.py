"""Sharded runs equal those of one process, resume exactly, and move between numbers of processes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from mmgrpo.config.settings import Distributed, config_class
from mmgrpo.family import families, refuse_unshardable
from mmgrpo.runtime.identity import Identity
from pipelines.training import Training
from tests.libraries.families.test_battery import ADAPTED
from tests.libraries.sharding.worker import config_of
from tests.processes import Forked
from tests.unit.runtime.ports import meeting_port

WORKER = "tests.libraries.sharding.worker"

CASES = [
    *("sd3:full", "sd3:reference", "sd3:lora-reference", "sd3:checkpointed", "sd3:half", "sd3:networks", "sd3:uneven"),
    *("sd3:planned", "sd3:fast", "wan:full", "wan:experts", "stable_diffusion:full"),
    *("qwen_vl:lora", "qwen_vl:tokens-reference", "qwen_vl:coupled", "qwen_vl:tokens-networks", "qwen_vl:uneven"),
    *("qwen_vl:one-image", "whisper:full", "flux_kontext:full"),
]
RARE = [
    *("sd3:whole", "sd3:lora-half", "wan:lora", "stable_diffusion:lora", "flux_kontext:blocks"),
    *("qwen_vl:full", "qwen_vl:checkpointed", "qwen_vl:blocks-networks", "qwen_vl:unfrozen-lora", "qwen_vl:lora-half"),
    *("whisper:lora", "whisper:unfrozen"),
]
EVERY = [*CASES, *(pytest.param(case, marks=pytest.mark.nightly) for case in RARE)]
BATTERY = [f"{name}:{'lora' if name in ADAPTED else 'full'}" for name, one in families().items() if one.blocks]
COPIED = ["sd3:full", "qwen_vl:one-image"]


@dataclass
class Runs:
    """Folders of finished runs, started when they are asked for."""

    place: Path
    folders: dict[str, Path] = field(default_factory=dict)

    def start(
        self,
        name: str,
        world: int,
        cases: Sequence[str],
        replicate: int = 1,
        of: str = "",
        mode: str = "full",
        sequence: int = 1,
        module: str = WORKER,
    ) -> Path:
        """The folder of the runs ``name``; ``of`` names earlier ones, from whose first checkpoint they go on."""
        if name in self.folders:
            return self.folders[name]
        folder = self.place / name
        if of:
            shutil.copytree(self.folders[of], folder)
            for place in folder.glob("*/checkpoints"):  # of a process that was killed while it wrote
                (place / ".writing-killed").mkdir()
                (place / ".writing-killed" / "weights.safetensors").write_bytes(b"half")
        folder.mkdir(exist_ok=True)
        for case in cases:  # transformers writes a tiny model in the first process alone
            config_of(case, folder, "none", 1)
        with meeting_port() as port:
            given = [folder, mode, replicate, sequence, *cases]
            workers = [worker(given, index, world, port, module) for index in range(world)]
            try:
                for one in workers:
                    printed, _ = one.communicate(timeout=900)
                    assert one.returncode == 0, printed[-3000:]
            finally:
                for one in workers:
                    one.kill()
        self.folders[name] = folder
        return folder


def worker(given: Sequence[object], index: int, world: int, port: int, module: str = WORKER) -> Forked:
    place = {"RANK": index, "LOCAL_RANK": index, "WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return Forked(module, given, place if world > 1 else {})


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Runs:
    return Runs(tmp_path_factory.mktemp("sharded"))


@pytest.fixture(scope="module")
def cases(collected) -> list[str]:
    """Cases that one run holds: those of this session's tests, and those of copies."""
    return [case for case in [*CASES, *RARE] if case in {*collected("case"), *COPIED}]


def weights(folder: Path, case: str, rank: int = 0) -> dict[str, torch.Tensor]:
    return load_file(folder / case.replace(":", "-") / f"weights-{rank}.safetensors")


def assert_close(folder: Path, other: Path, case: str, atol: float) -> None:
    ours, theirs = weights(folder, case), weights(other, case)
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        torch.testing.assert_close(value, theirs[name], rtol=0, atol=atol, msg=name)


@pytest.mark.parametrize(
    ("family", "changed", "message"),
    [
        ("duration", {}, "distributed.shard.*duration"),
        ("sd3", {"sampling": {"plan_per": "prompt"}}, "distributed.rollout_weights.*sampling.plan_per=prompt"),
    ],
)
def test_what_cannot_be_divided_is_refused_before_it_is_loaded(family, changed, message):
    owner = families()[family]
    config = config_class(owner.sections)()
    sections = {name: replace(getattr(config, name), **values) for name, values in changed.items()}
    sections["model"] = replace(sections.get("model", config.model), family=family)
    divided = replace(config, **sections, distributed=Distributed("full", 1, "blocks"))
    for one in (replace(config, **sections), replace(config, distributed=Distributed("full", 1, "whole"))):
        one.check()
    refuse_unshardable(replace(config, **sections), owner)
    with pytest.raises(ValueError, match=message):
        divided.check()
        refuse_unshardable(divided, owner)


@pytest.mark.parametrize(("world", "training", "waits"), [("2", True, True), ("2", False, False), ("1", True, False)])
def test_a_network_waits_on_the_cpu_only_where_it_is_divided(world, training, waits, monkeypatch):
    """Commands that only sample read the configuration of the run too."""
    monkeypatch.setenv("WORLD_SIZE", world)
    options = families()["sd3"].sections.model(path="x")
    assert Training.of(options, seed=0, device="cuda", training=training, shard="full").sharded == waits


def test_every_family_but_the_smallest_names_its_blocks():
    assert {name for name, one in families().items() if not one.blocks} == {"duration"}


@pytest.mark.slow
@pytest.mark.parametrize("case", EVERY)
def test_two_processes_that_divide_a_model_train_it_like_one(case, runs, cases):
    one, two = runs.start("one", 1, cases), runs.start("two", 2, cases)
    # In bf16 blocks are gathered rounded, norms included, which autocast leaves in fp32.
    assert_close(one, two, case, 1e-3 if case.endswith("half") else 1e-6)
    text = (two / case.replace(":", "-") / "metrics.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert sum(line["grad_norm"] > 1e-3 for line in lines) >= 3  # of four: a group without spread has no gradient
    assert all(line["ratio/first_minus_one"] < (0.05 if case.endswith("half") else 1e-5) for line in lines)
    evaluations = [
        json.loads((folder / case.replace(":", "-") / "evaluations" / "after.json").read_text())["values"]["measured"]
        for folder in (one, two)
    ]
    assert evaluations[0] == pytest.approx(evaluations[1], abs=0.2 if case.endswith("half") else 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("case", EVERY)
def test_a_divided_run_resumes_exactly_and_by_one_process(case, runs, cases):
    two = runs.start("two", 2, cases)
    again, alone = runs.start("again", 2, cases, of="two"), runs.start("alone", 1, cases, of="two")
    for name, value in weights(two, case).items():
        assert torch.equal(weights(again, case)[name], value), name
    assert_close(alone, two, case, 1e-3 if case.endswith("half") else 1e-6)
    assert not [*(alone / case.replace(":", "-") / "checkpoints").glob(".writing-*")]  # a part of one that was killed
    identity = Identity.read(alone / case.replace(":", "-"))
    assert identity is not None and identity.resumed[-1]["processes"] == 1
    assert identity.resumed[-1]["changed"]["distributed.shard"] == ["full", "none"]


@pytest.mark.slow
@pytest.mark.parametrize("case", EVERY)
def test_a_saved_model_is_whole_and_of_its_own_class(case, runs, cases):
    one, two = runs.start("one", 1, cases), runs.start("two", 2, cases)
    models = [folder / case.replace(":", "-") / "model" for folder in (one, two)]
    files = [sorted(p.relative_to(model) for p in model.rglob("*") if p.is_file()) for model in models]
    assert files[0] == files[1]
    for file in files[0]:
        if file.suffix == ".safetensors":
            ours, theirs = (load_file(model / file) for model in models)
            assert ours.keys() == theirs.keys() and ours
            for name, value in ours.items():
                torch.testing.assert_close(theirs[name], value, rtol=0, atol=1e-3 if case.endswith("half") else 1e-6)
        elif file.name.endswith("config.json"):
            assert (models[0] / file).read_text() == (models[1] / file).read_text()


@pytest.mark.slow
def test_copies_of_a_divided_model_train_like_one_process(runs, cases):
    four = runs.start("four", 4, COPIED, replicate=2)
    for case in COPIED:
        assert_close(runs.start("one", 1, cases), four, case, 1e-6)


@pytest.mark.slow
@pytest.mark.nightly
def test_more_shards_than_blocks(runs, cases):
    four = runs.start("many", 4, COPIED)  # of two blocks
    for case in COPIED:
        assert_close(runs.start("one", 1, cases), four, case, 1e-6)


@pytest.mark.slow
def test_a_shard_that_is_not_finite_is_seen_by_all(runs, cases):
    two = runs.start("two", 2, cases)
    seen = [json.loads((two / f"finite-{rank}.json").read_text()) for rank in range(2)]
    assert seen == [[True, False, True], [True, False, False]]  # the last: of its own shard alone


@pytest.mark.slow
def test_a_unit_rounds_no_noise_level_and_frees_its_weights(runs, cases):
    """fp32 keeps 987.3, bf16 would make 988 of it; without a gradient the outermost unit would stay whole by itself."""
    two = runs.start("two", 2, cases)
    for rank in range(2):
        found = json.loads((two / f"given-{rank}.json").read_text())
        assert found["levels"] == pytest.approx([987.3, 501.7], abs=1e-3)
        assert found["before"] == found["after"] == 20 and found["within"] == [32]  # of weights of 16 and biases of 4


@pytest.mark.slow
@pytest.mark.parametrize("name", BATTERY)
def test_every_family_is_divided(name, runs, collected):
    families_of_session = collected("name")
    part = families_of_session.index(name) // 7  # of one process, which keeps all its models
    some = families_of_session[7 * part : 7 * part + 7]
    assert_close(runs.start(f"all-one-{part}", 1, some), runs.start(f"all-two-{part}", 2, some), name, 2e-6)
