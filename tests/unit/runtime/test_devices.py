"""Devices by name, and launchers that ask for what is not built."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mmgrpo.runtime import devices
from mmgrpo.runtime.devices import accelerator, available, refuse_launcher, requested_sharding
from tests.journeys.cli.running import environment


@pytest.mark.parametrize(
    ("variable", "name"),
    [
        ("ACCELERATE_USE_DEEPSPEED", "DeepSpeed"),
        ("ACCELERATE_USE_MEGATRON_LM", "Megatron-LM"),
        ("ACCELERATE_USE_PARALLELISM_CONFIG", "a parallelism configuration"),
    ],
)
def test_a_launcher_that_would_shard_is_refused_by_name(variable, name):
    for on in ("true", "True", "1"):
        with pytest.raises(ValueError, match=rf"{name} \({variable}\)"):
            refuse_launcher({variable: on})
    refuse_launcher({variable: "false"})


@pytest.mark.parametrize("precision", ["fp16", "FP16", "fp8"])
def test_scaled_losses_are_refused(precision):
    with pytest.raises(ValueError, match=f"mixed_precision {precision.lower()}"):
        refuse_launcher({"ACCELERATE_MIXED_PRECISION": precision})


def test_a_precision_without_effect_is_told():
    with pytest.warns(UserWarning, match=r"mixed_precision bf16.*model\.dtype"):
        refuse_launcher({"ACCELERATE_MIXED_PRECISION": "bf16"})


def test_losses_that_would_be_divided_are_refused():
    with pytest.raises(ValueError, match="gradient_accumulation_steps 4.*1"):
        refuse_launcher({"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "4"})


def test_a_plain_launcher_is_taken_without_a_warning(recwarn):
    refuse_launcher({})
    refuse_launcher({"ACCELERATE_MIXED_PRECISION": "", "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": ""})
    refuse_launcher({"ACCELERATE_MIXED_PRECISION": "no", "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "1"})
    assert not [one for one in recwarn.list if issubclass(one.category, UserWarning)]


def test_an_accelerator_is_refused_under_such_a_launcher(monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    with pytest.raises(ValueError, match=r"got DeepSpeed.*distributed\.shard=full"):
        accelerator("cpu")


@pytest.mark.parametrize(
    ("asked", "settings"),
    [
        ({}, ("full", 1)),
        ({"FSDP_SHARDING_STRATEGY": "1"}, ("full", 1)),
        ({"FSDP_SHARDING_STRATEGY": "NO_SHARD"}, ("none", 1)),
        ({"FSDP_SHARDING_STRATEGY": "HYBRID_SHARD", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}, ("full", 2)),
        ({"FSDP_VERSION": "2", "FSDP_RESHARD_AFTER_FORWARD": "true"}, ("full", 1)),
        ({"FSDP_VERSION": "2", "FSDP_SHARDING_STRATEGY": "SHARD_GRAD_OP"}, ("full", 1)),
    ],
)
def test_a_configuration_of_fsdp_is_translated(asked, settings):
    assert requested_sharding({"ACCELERATE_USE_FSDP": "true", **asked}) == settings
    assert requested_sharding(asked) is None


@pytest.mark.parametrize(
    ("variable", "value", "setting"),
    [
        ("FSDP_OFFLOAD_PARAMS", "true", "offload"),
        ("FSDP_ACTIVATION_CHECKPOINTING", "true", "model.gradient_checkpointing"),
        ("FSDP_SHARDING_STRATEGY", "SHARD_GRAD_OP", "SHARD_GRAD_OP"),
    ],
)
def test_a_part_of_it_that_is_done_otherwise_is_refused(variable, value, setting):
    with pytest.raises(ValueError, match=setting):
        requested_sharding({"ACCELERATE_USE_FSDP": "true", variable: value})


def test_accelerate_itself_is_not_asked_to_shard(monkeypatch):
    def made(**options: object) -> SimpleNamespace:
        return SimpleNamespace(device=torch.device("cpu"), asked=os.environ.get("ACCELERATE_USE_FSDP"))

    monkeypatch.setattr("accelerate.Accelerator", made)
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    made_under: Any = accelerator("cpu")
    assert made_under.asked is None and os.environ["ACCELERATE_USE_FSDP"] == "true"


def test_a_device_that_is_absent_is_refused_with_those_that_are_there(monkeypatch):
    monkeypatch.setattr(devices, "available", lambda: ["cpu", "cuda:0", "cuda:1"])
    for name in ("auto", "cpu", "cuda", "cuda:1"):
        devices.check_available(name)
    for name in ("mps", "cuda:2", "xpu"):
        with pytest.raises(ValueError, match=f"model.device.*{name}.*auto, cpu, cuda:0, cuda:1"):
            devices.check_available(name)


@pytest.mark.parametrize(("built", "words"), [(None, "built without cuda"), ("12.8", "CUDA 12.8.*nvidia-smi")])
def test_a_gpu_that_is_absent_is_said_to_lack_torch_or_the_driver(built, words, monkeypatch):
    monkeypatch.setattr(devices, "available", lambda: ["cpu"])
    monkeypatch.setattr(torch.version, "cuda", built)
    monkeypatch.setattr(torch.version, "hip", None)
    with pytest.raises(ValueError, match=f"model.device.*cuda:0.*{words}"):
        devices.check_available("cuda:0")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_gpu_that_this_machine_lacks_is_no_silent_cpu():
    assert not any(name.startswith("cuda") for name in available())
    with pytest.raises(ValueError, match="model.device.*cuda.*auto, cpu"):
        accelerator("cuda")


def test_one_device_for_several_processes_is_refused(monkeypatch):
    monkeypatch.setattr(devices, "available", lambda: ["cpu", "cuda:0", "cuda:1"])
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="cuda:1.*2"):
        accelerator("cuda:1")


def test_a_device_other_than_that_of_the_process_is_refused(monkeypatch):
    """Accelerate keeps the first device of a process, whatever a later call asks for."""
    monkeypatch.setattr(devices, "available", lambda: ["cpu", "cuda:0"])
    assert accelerator("cpu").device.type == "cpu"
    with pytest.raises(ValueError, match="cuda:0"):
        accelerator("cuda:0")


def test_several_processes_of_which_one_would_be_started_are_refused():
    asked = {"ACCELERATE_USE_CPU": "true", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    with pytest.raises(ValueError, match="CPU.*torchrun"):
        refuse_launcher(asked)
    refuse_launcher({**asked, "WORLD_SIZE": "2"})  # torchrun
    refuse_launcher({**asked, "PMI_SIZE": "2"})  # mpirun
    refuse_launcher({"MASTER_ADDR": "127.0.0.1"})  # a cluster's own


@pytest.mark.slow
@pytest.mark.skipif(available() != ["cpu"], reason="this machine has another device")
def test_torchrun_starts_processes_that_know_one_another_on_a_machine_without_gpu(tmp_path):
    (tmp_path / "told.py").write_text(
        "from pathlib import Path\n"
        "from mmgrpo.runtime.devices import accelerator\n"
        "made = accelerator('auto')\n"
        "Path(f'process {made.process_index} of {made.num_processes}').touch()\n"
    )
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "told.py"]
    done = subprocess.run(torchrun, capture_output=True, text=True, timeout=1000, cwd=tmp_path, env=environment())
    assert done.returncode == 0, done.stderr
    # Not what they print, which two processes may write into one another.
    assert sorted(path.name for path in tmp_path.glob("process*")) == ["process 0 of 2", "process 1 of 2"]


@pytest.mark.parametrize(
    ("device", "there", "cpu"),
    [
        ("auto", ["cpu"], True),
        ("auto", ["cpu", "cuda:0"], False),
        ("cpu", ["cpu", "cuda:0"], True),
        ("cuda", ["cpu", "cuda:0"], False),
        ("cuda:0", ["cpu", "cuda:0"], False),
    ],
)
def test_accelerate_is_told_of_the_cpu_where_it_is_meant_and_of_one_of_several_gpus(device, there, cpu, monkeypatch):
    told = []

    def made(cpu: bool, **options) -> SimpleNamespace:
        told.append((cpu, os.environ.get("ACCELERATE_TORCH_DEVICE"), options))
        return SimpleNamespace(device=torch.device("cpu" if cpu else "cuda:0"))

    monkeypatch.setattr("accelerate.Accelerator", made)
    monkeypatch.setattr(devices, "available", lambda: there)
    monkeypatch.delenv("ACCELERATE_TORCH_DEVICE", raising=False)
    with contextlib.suppress(Exception):  # what is returned is no Accelerator
        accelerator(device, project_dir="a")
    assert told == [(cpu, device if ":" in device else None, {"project_dir": "a"})]
    assert "ACCELERATE_TORCH_DEVICE" not in os.environ


@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_a_device_that_a_user_has_named_to_accelerate_stays_named(device, monkeypatch):
    monkeypatch.setattr("accelerate.Accelerator", lambda **options: SimpleNamespace(device=torch.device(device)))
    monkeypatch.setattr(devices, "available", lambda: ["cpu", "cuda:0", "cuda:1"])
    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", "cuda:1")
    with contextlib.suppress(Exception):  # what is returned is no Accelerator
        accelerator(device)
    assert os.environ["ACCELERATE_TORCH_DEVICE"] == "cuda:1"


def test_one_process_may_name_its_device(monkeypatch):
    monkeypatch.setattr(devices, "available", lambda: ["cpu", "cuda:0"])
    monkeypatch.setenv("WORLD_SIZE", "1")
    with pytest.raises(ValueError, match="computes on cpu already"):
        accelerator("cpu") and accelerator("cuda:0")


def test_every_kind_of_device_of_a_machine_is_listed_with_its_numbers(monkeypatch):
    def kind(count):
        return SimpleNamespace(is_available=lambda: count > 0, device_count=lambda: count)

    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch, "cuda", kind(2))
    monkeypatch.setattr(torch, "xpu", kind(1), raising=False)
    monkeypatch.setattr(torch, "npu", kind(0), raising=False)
    assert available() == ["cpu", "mps", "cuda:0", "cuda:1", "xpu:0"]
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    monkeypatch.delattr(torch, "xpu")
    assert available() == ["cpu", "cuda:0", "cuda:1"]
