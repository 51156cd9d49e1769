"""Runs of several processes from one command, jobs of SLURM, and what is asked of Ray."""

from __future__ import annotations

import json
import re
import shlex
import signal
import socket
import subprocess
import sys

import pytest
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from mmgrpo.cli import launch, train
from mmgrpo.cli.options import words
from tests import ROOT
from tests.journeys.cli.running import environment, metrics
from tests.tiny import tiny_checkpoint
from tests.unit.runtime.ports import meeting_port

SCRIPTS = sorted((ROOT / "scripts" / "launch").glob("*.sh"))


def test_a_job_begins_a_run_or_goes_on(capsys):
    run = ["--data.prompts-per-step", "32", "--name", "a b"]
    launch.main(["--slurm", "--nodes", "4", "--processes", "8", "--setup", "source x", "--", *run])
    text = capsys.readouterr().out
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=True).returncode == 0
    for line in ("#SBATCH --nodes=4", "#SBATCH --gpus-per-node=8", "#SBATCH --time=1440", "source x"):
        assert line in text.splitlines()
    assert "--nnodes 4 --nproc_per_node 8" in text and f"mmgrpo.cli.train {shlex.join(run)} --resume" in text


@pytest.mark.parametrize(
    ("arguments", "setting"),
    [
        (["--slurm", "--processes", "8", "--", "--steps", "3"], "--name"),
        (["--slurm", "--", "--name", "x"], "--processes"),
        (["--nodes", "2", "--", "--name", "x"], "--nodes.*2.*--slurm or --ray"),
        (["--processes", "2"], "mmgrpo train"),
        (["--restarts", "1", "--name", "x"], "--restarts.*1.*--ray"),
        (["ray", "--hours", "2", "--name", "x"], "--hours.*2.*--slurm"),
        (["ray", "--slurm", "--name", "x"], "--slurm and --ray"),
        (["ray", "--processes", "2", "--steps", "3"], "--name"),
        (["ray", "--processes", "2", "--name", "x", "--overwrite"], "--overwrite.*--restarts 0"),
    ],
)
def test_what_could_not_go_on_is_refused(arguments, setting):
    with pytest.raises(ValueError, match=setting):
        launch.main(arguments)


@pytest.mark.parametrize("place", [[], *([one] for one in launch.PLACES)])
@pytest.mark.parametrize(
    ("run", "setting"),
    [
        (["--data.prompts-per-step", "9"], r"data\.prompts_per_step.*9 .*\b2\b"),
        (["--optim.lrr", "1"], r"optim\.lrr"),
        (["--data.train", "mine.txt"], "rewards"),
    ],
)
def test_settings_are_refused_before_a_process_or_a_job_waits_for_its_machine(place, run, setting, capsys):
    with pytest.raises(ValueError, match=setting):
        launch.main([*place, "--processes", "2", "--name", "x", *run])
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("place", [[], *([one] for one in launch.PLACES)])
def test_a_dry_run_is_that_of_one_process_for_all(place, monkeypatch, capsys):
    """No torchrun, job or cluster: each of eight processes would import the libraries to say nothing."""
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.setenv(name, "")  # what is set is forgotten with the test
    launch.main([*place, "--processes", "8", "--name", "x", "--distributed.shard", "full", "--dry-run"])
    lines = capsys.readouterr().out.splitlines()
    assert "mesh:      8 processes: data 8 x sequence 1; weights: copies 1 x shards 8" in lines
    assert sum(line.startswith("the run:") for line in lines) == 1


@pytest.mark.parametrize("between", [[], ["--"]])
@pytest.mark.parametrize("place", launch.PLACES)
def test_options_of_the_run_follow_those_of_the_launch(place, between):
    """With and without a mark between them; a first word is the option of its name."""
    run = ["--recipe", "x", "--name=y", "--nodes-of-its-own", "3"]
    args, found = launch.read([place, "--nodes", "4", "--processes=8", *between, *run])
    assert (getattr(args, place), args.nodes, args.processes, found) == (True, 4, 8, run)
    again = launch.again(args, run)
    assert launch.read(shlex.split(again)[2:]) == (args, [*run, "--resume"])


@pytest.mark.parametrize("device", [["--model.device", "cpu"], ["--model.device=cpu"], ["--model.device=auto"], []])
def test_processes_on_ray_have_a_gpu_except_on_the_cpu(device, monkeypatch):
    from mmgrpo.cli import launch_ray

    asked = []
    monkeypatch.setattr(launch_ray, "launch", lambda request, *_: asked.append(request))
    run = ["--name", "x", "--data.prompts-per-step", "32", *device]
    launch.main(["ray", "--nodes", "4", "--processes", "8", "--cpus", "2", *run])
    on_cpu = bool(device) and "cpu" in device[-1]
    assert asked[0].resources() == {"CPU": 16, **({} if on_cpu else {"GPU": 8})}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_the_launch_files_name_settings_that_exist(script, tmp_path):
    """What they would start is read as ``mmgrpo train`` reads it."""
    given = ["--data.train", str(tmp_path / "rows.txt"), "--rewards", "jpeg_compressibility"]
    stub = tmp_path / "mmgrpo"
    stub.write_text('#!/bin/bash\ncase $1 in serve-*) exec sleep 60 >/dev/null 2>&1;; *) printf "%s\\n" "$@";; esac\n')
    answers = tmp_path / "curl"  # as servers that are up
    answers.write_text("#!/bin/bash\n")
    for one in (stub, answers):
        one.chmod(0o755)
    command = ["bash", str(script), str(tmp_path), *given]
    printed = subprocess.run(
        command,
        env={**environment(), "PATH": f"{tmp_path}:/usr/bin:/bin", "REWARD": "judge_answer(judge='x')"},
        text=True,
        capture_output=True,
        check=True,
    )
    line = printed.stdout.splitlines()
    run = line[line.index("--") + 1 :] if "--" in line else line[1:]
    assert "the run:" in train.arithmetic(train.read(words(run), ""))


@pytest.mark.nightly
@pytest.mark.slow
def test_trainer_engine_and_rewards_of_three_cards_run_as_three_processes(tmp_path):
    """On the CPU, with our own sampler in the place of vLLM: the second round is one behind, and both servers end."""
    from pipelines.vlm import qwen_vl

    rows, stub = tmp_path / "rows.jsonl", tmp_path / "mmgrpo"
    rows.write_text("".join(json.dumps({"prompt": f"{word} ?", "answer": word}) + "\n" for word in ("yes", "no")))
    stub.write_text(f'#!/bin/bash\nexec {sys.executable} -m mmgrpo.cli.main "${{@/#vllm/sampler}}"\n')
    stub.chmod(0o755)
    run = "--model.device cpu --model.lora-rank 4 --sampling.max-tokens 4 --data.prompts-per-step 2 --steps 2 "
    run += f"--eval.skip --data.group-size 4 --trackers --threads 1 --output-dir {tmp_path}"
    with meeting_port() as drawing, meeting_port() as scoring:
        place = {"ENGINE_PORT": str(drawing), "REWARDS_PORT": str(scoring), "REWARD": "exact"}
        command = ["bash", str(ROOT / "scripts/launch/three_cards.sh"), str(tiny_checkpoint(qwen_vl.tiny))]
        ended = subprocess.run(
            [*command, "--data.train", str(rows), *run.split()],
            env={**environment(**place), "PATH": f"{tmp_path}:/usr/bin:/bin"},
            cwd=ROOT,
            text=True,
            capture_output=True,
            timeout=900,
        )
        for port in (drawing, scoring):
            with socket.socket() as asked:
                assert asked.connect_ex(("127.0.0.1", port))
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-2000:]
    lines = metrics(tmp_path / "three_cards")
    assert [line["rollout/staleness"] for line in lines] == [0, 1] and "reward/exact/mean" in lines[0]
    assert max(line["rollout/sampler_gap"] for line in lines) < 0.05


def ending(monkeypatch, error: Exception) -> None:
    import torch.distributed.run

    monkeypatch.setattr(torch.distributed.run, "main", lambda _: (_ for _ in ()).throw(error))


@pytest.mark.parametrize(("exitcode", "word"), [(-9, "SIGKILL"), (1, "1")])
def test_the_loss_of_a_process_is_one_line_with_the_command_that_goes_on(exitcode, word, monkeypatch):
    """The second process was lost first; the other one was ended then."""
    lost = {0: ProcessFailure(0, 11, -15, "-"), 1: ProcessFailure(1, 12, exitcode, "-")}
    lost[0].timestamp, lost[1].timestamp = 2, 1
    ending(monkeypatch, ChildFailedError("train", lost))
    with pytest.raises(RuntimeError, match=rf"process 1 .*{word}; .*mmgrpo launch --processes=2 -- --name x --resume"):
        launch.main(["--processes", "2", "--name", "x"])


def test_what_the_processes_have_said_is_not_said_again(monkeypatch):
    ending(monkeypatch, ChildFailedError("train", {0: ProcessFailure(0, 11, 2, "-")}))
    with pytest.raises(SystemExit, match="2"):
        launch.main(["--processes", "2", "--name", "x"])
    ending(monkeypatch, SignalException("", signal.SIGTERM))
    with pytest.raises(SystemExit, match="143"):
        launch.main(["--processes", "2", "--name", "x"])


@pytest.mark.slow
def test_an_error_of_the_settings_is_one_line_of_all_processes():
    command = [sys.executable, "-m", "mmgrpo.cli.launch", "--processes", "2", "--steps", "0"]
    ended = subprocess.run(command, env=environment(), cwd=ROOT, text=True, capture_output=True, timeout=200)
    lines = ended.stderr.splitlines()
    assert (ended.returncode, len(lines)) == (2, 1) and "steps" in lines[0], ended.stderr


@pytest.mark.nightly
def test_two_processes_divide_the_embedded_model(tmp_path):
    run = shlex.split(
        f"--steps 1 --name two --output-dir {tmp_path} --data.prompts-per-step 2 --data.group-size 2 --eval.prompts 2 "
        "--model.device cpu --distributed.shard full --threads 1"
    )
    command = [sys.executable, "-m", "mmgrpo.cli.launch", "--processes", "2", "--", *run]
    ended = subprocess.run(command, env=environment(), cwd=ROOT, text=True, capture_output=True, timeout=600)
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-2000:]
    assert json.loads((tmp_path / "two" / "summary.json").read_text())["steps"] == 1
    assert re.search(r"shard: full", (tmp_path / "two" / "config.yaml").read_text())
