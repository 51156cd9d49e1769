"""What mmgrpo migrate reads: errors name file and setting, nothing is executed, nothing of the input becomes YAML."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from mmgrpo.cli.migrate import sources
from mmgrpo.cli.migrate.python_file import from_python
from mmgrpo.cli.migrate.recipe import recipe_of
from mmgrpo.cli.migrate.script import command_of
from mmgrpo.cli.migrate.sources import Source, flatten, from_words, plain, read
from tests.journeys.cli.running import COMMAND, call, refused


def written(folder: Path, name: str, text: str | bytes) -> str:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def python(folder: Path, text: str, chosen: str = "") -> Source:
    path = written(folder, "grpo.py", text)
    return read(f"{path}:{chosen}" if chosen else path, False, from_python)


@pytest.mark.parametrize(
    ("name", "text", "error"),
    [
        ("a.yaml", "beta: [1\nseed: 2", "a.yaml.*YAML.*2"),
        ("a.yaml", "beta: 1\nbeta: 2", "a.yaml.*YAML.*2.*'beta'.*1"),
        ("a.yaml", "- beta", "a.yaml"),
        ("a.yaml", "!!python/object/apply:os.system ['true']", "a.yaml.*YAML"),
        ("a.yaml", b"beta: \xff", "a.yaml.*UTF-8.*byte 7"),
        ("a.json", '{"beta": 1,\n "seed": }', "a.json.*2.*JSON.*column 10"),
        ("a.json", '{"beta": 1, "beta": 2}', "a.json.*'beta'"),
        ("a.json", "[1]", "a.json"),
        ("a.json", '{"a": ' * 5000 + "1" + "}" * 5000, "a.json.*JSON"),
        ("a.json", '{"seed": ' + "9" * 5000 + "}", "a.json.*JSON"),
        ("a.sh", "echo hello", "a.sh"),
        ("a.sh", "python a.py\npython b.py", "a.sh.*2.*1.*2"),
        ("a.sh", "python a.py --beta '1\n", "a.sh.*1"),
        ("a.sh", "python a.py beta", "a.sh.*'beta'.*--key"),
        ("a.toml", "beta = 1", "a.toml.*'.toml'"),
        ("a.py", "config.beta = 1", "a.py.*0.*GRPOTrainer"),
        ("a.yaml", "beta: one", "a.yaml.*beta.*one"),
        ("a.yaml", "beta: -1", "a.yaml.*beta.*-1.0.*0"),
        ("a.yaml", "num_generations: 1", "a.yaml.*num_generations.*1.*2"),
        ("a.yaml", "num_generations: 2.5", "a.yaml.*num_generations.*2.5"),
        ("a.yaml", "loss_type: grp", "a.yaml.*loss_type.*grp"),
        ("a.yaml", "scale_rewards: median", "a.yaml.*scale_rewards.*median"),
        ("a.yaml", "reward_funcs: {a: 1}", "a.yaml.*reward_funcs"),
        ("a.yaml", "learning_rate: -1", "a.yaml.*optim.lr.*-1.0"),
    ],
)
def test_errors_name_the_file_and_the_place(name: str, text: str | bytes, error: str, tmp_path: Path):
    with pytest.raises(ValueError, match=error):
        recipe_of("trl", written(tmp_path, name, text))


def test_a_file_that_is_not_there_and_a_project_that_is_none(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match="no such file"):
        recipe_of("trl", str(tmp_path / "a.yaml"))
    (tmp_path / "folder.yaml").mkdir()
    with pytest.raises(FileNotFoundError, match="is no regular file"):
        recipe_of("trl", str(tmp_path) + "/folder.yaml")
    with pytest.raises(ValueError, match="'trll'.*'trl'"):
        recipe_of("trll", "a.yaml")
    with pytest.raises(ValueError, match="neither"):
        recipe_of("trl", "")


def test_sizes_are_limited(tmp_path: Path):
    with pytest.raises(ValueError, match="1,048,577 bytes.*1,048,576"):
        recipe_of("trl", written(tmp_path, "a.yaml", " " * (sources.MAX_BYTES + 1)))
    with pytest.raises(ValueError, match="2000 settings"):
        recipe_of("trl", written(tmp_path, "b.json", json.dumps({f"k{i}": 1 for i in range(2001)})))
    with pytest.raises(ValueError, match="output_dir.*10001.*10000"):
        recipe_of("trl", written(tmp_path, "c.json", json.dumps({"output_dir": "x" * 10001})))
    with pytest.raises(ValueError, match="201 characters"):
        recipe_of("trl", written(tmp_path, "d.json", json.dumps({"x" * 201: 1})))


def test_aliases_that_multiply_and_sections_in_each_other_are_refused(tmp_path: Path):
    lines = ["a0: &a0 {x: 1, y: 2}"]
    lines += [f"a{i}: &a{i} {{{', '.join(f'k{j}: *a{i - 1}' for j in range(9))}}}" for i in range(1, 9)]
    with pytest.raises(ValueError, match="20,000 values"):
        recipe_of("verl", written(tmp_path, "bomb.yaml", "\n".join(lines)))
    with pytest.raises(ValueError, match="alias"):
        recipe_of("verl", written(tmp_path, "loop.yaml", "a: &a\n  b: *a"))
    with pytest.raises(ValueError, match="16 levels"):
        recipe_of("verl", written(tmp_path, "deep.yaml", "{a: " * 20 + "1" + "}" * 20))
    with pytest.raises(ValueError, match="a.yaml.*a.1"):
        flatten(Source("a.yaml"), {"a": {1: 2}}, True)


# ---- nothing is executed


def test_nothing_of_a_shell_script_is_executed(tmp_path: Path):
    proof = tmp_path / "executed"
    script = f"""
touch {proof}; LR=2e-6
export NAME=$(touch {proof})
python train.py --learning_rate $LR --run_name "$NAME" --output_dir `touch {proof}` --seed ${{SEED}} --beta 0.1 "$@"
"""
    source = read(written(tmp_path, "a.sh", script), False, None)
    assert source.values == {"learning_rate": 2e-6, "beta": 0.1} and not proof.exists()
    assert {*source.unread} == {"run_name", "output_dir", "seed"}
    text, _ = recipe_of("trl", str(tmp_path / "a.sh"))
    assert "#   seed ${SEED}\n" in text and "nothing is executed" in text


def test_arrays_defaults_and_sums_of_a_shell_script_are_filled_in_and_branches_are_not_followed(tmp_path: Path):
    script = """
set -xeuo pipefail
ENGINE=${1:-vllm}
SIZE=${TRAIN_BATCH_SIZE:-512}
usage() {
  cat <<EOF
  python train.py --it's
EOF
}
DATA=(
    algorithm.adv_estimator=grpo  # a comment
    data.train_batch_size=${SIZE}
    'trainer.logger=["console","wandb"]'
)
MORE=(trainer.experiment_name=geo_${ENGINE})
case "${DEVICE}" in
    gpu) ;;
    npu)
        MORE+=(trainer.nnodes=9
        ) ;;
    *) echo "what ${DEVICE} (this)" >&2; exit 1 ;;
esac
MORE+=(trainer.nnodes=2)
if [ -n "$X" ]; then LR=1; else LR=2; fi
python3 scripts/prepare.py --local_dir data
for seed in 1 2; do
PYTHONUNBUFFERED=1 python3 -m verl.trainer.main_ppo "${DATA[@]}" \\
    "${MORE[@]}" actor_rollout_ref.rollout.n=$((SIZE / 128 + 1)) data.seed=$seed \\
    actor_rollout_ref.actor.optim.lr=$LR "$@" 2>&1 | tee log.txt
done
"""
    source = read(written(tmp_path, "a.sh", script), True, None)
    assert source.values == {
        "algorithm.adv_estimator": "grpo",
        "data.train_batch_size": 512,
        "trainer.logger": ["console", "wandb"],
        "trainer.experiment_name": "geo_vllm",
        "trainer.nnodes": 2,
        "actor_rollout_ref.rollout.n": 5,
    }
    assert {*source.unread} == {"data.seed", "actor_rollout_ref.actor.optim.lr"}
    assert source.branches == {"MORE": 19, "LR": 24}


def test_arrays_that_double_are_refused(tmp_path: Path):
    lines = ["A=(x)", *(["A=(${A[@]} ${A[@]} )"] * 40), "python train.py ${A[@]}"]
    with pytest.raises(ValueError, match="5,000"):
        read(written(tmp_path, "a.sh", "\n".join(lines)), True, None)


def test_nothing_of_a_python_file_is_executed(tmp_path: Path):
    proof = tmp_path / "executed"
    source = python(
        tmp_path,
        f"""
import os
open({str(proof)!r}, "w")
def get(config):
    config.seed = 7
    config.run_name = open({str(proof)!r}, "w").name
    config.train.beta = __import__("os").system("true")
    config.save_freq = [os.remove(x) for x in ("a",)]
    config.eval_freq = (lambda: 3)()
    config.num_epochs = 10 ** 10 ** 10
    config.resolution = 9999999999 * 9999999999
    config.frames = 1 / 0
    config.train.lora_path = None
    config.sample.num_steps = "5" * 3
    config.sample.eval_num_steps = 2 * 5
""",
    )
    assert not proof.exists()
    assert source.values == {"seed": 7, "train.lora_path": None, "sample.eval_num_steps": 10}
    assert len(source.unread) == 8
    assert source.unread["run_name"].endswith("(line 6)")


def test_python_configurations_build_on_each_other(tmp_path: Path):
    text = """
def get_config():
    config = ml_collections.ConfigDict()
    config.sample = sample = ml_collections.ConfigDict()
    sample.num_steps = 40
    config.seed = 1
    return config

def one():
    config = get_config()
    config.seed = 2
    config.train.batch_size = config.sample.num_steps // 2
    other.seed = 3
    return config

def loop():
    config = loop()
    config.seed = 4
"""
    assert python(tmp_path, text, "one").values == {
        "sample.num_steps": 40,
        "seed": 2,
        "train.batch_size": 20,
    }
    assert python(tmp_path, text, "loop").values == {"seed": 4}
    with pytest.raises(ValueError, match=r"grpo\.py.*'on'.*'one'"):
        python(tmp_path, text, "on")
    with pytest.raises(ValueError, match=r"grpo\.py.*3.*FILE\.py:NAME"):
        python(tmp_path, text)
    with pytest.raises(ValueError, match=r"grpo\.py.*2"):
        python(tmp_path, "x = 1\ny = = 2")
    with pytest.raises(ValueError, match=r"grpo\.py"):
        python(tmp_path, "x = 1\0")
    with pytest.raises(ValueError, match=r"grpo\.py.*config\.name"):
        python(tmp_path, "x = 1")


@pytest.mark.parametrize("break_", ["\n", "\r\n", "\x85", "\u2028", "\x00", "\x1b[2J"])
@pytest.mark.parametrize("key", ["output_dir", "optim_args", "nothing\nsteps: 7 #"])
def test_text_of_the_input_never_becomes_yaml(key: str, break_: str, tmp_path: Path):
    values = {key: f"x{break_}steps: 7{break_}rewards: [os:system]", "max_steps": 3, "seed": 1}
    try:
        text, warnings = recipe_of("trl", written(tmp_path, "a.json", json.dumps(values)))
    except ValueError as error:  # NUL is in no path
        assert "output_dir" in str(error) and break_ == "\x00"
        return
    config = yaml.safe_load(text)
    assert config["steps"] == 3 and all(reward.startswith("??? ") for reward in config["rewards"])
    assert {*config} <= {"steps", "seed", "save_every", "trackers", "model", "data", "sampling", "algorithm"} | {
        *("optim", "eval", "output_dir", "rewards", "undecided")
    }
    assert not set("\x00\x1b\x85\u2028\r") & set(text + "".join(warnings))
    if key == "output_dir":
        assert config["output_dir"] == values[key]


# ---- words


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("False", False),
        ("null", None),
        ("12", 12),
        ("-1", -1),
        ("1e-6", 1e-6),
        (".5", 0.5),
        ("1.", 1.0),
        ("nan", "nan"),
        ("1e9999", "1e9999"),
        ("[a,b]", ["a", "b"]),
        ("['a', 2]", ["a", 2]),
        ('["a", 2]', ["a", 2]),
        ("[a,[b]]", "[a,[b]]"),
        ('{"a": 1}', {"a": 1}),
        ("{a", "{a"),
        ("9" * 30, 1e30),
        ("text", "text"),
    ],
)
def test_words_become_values(text: str, value: Any):
    made = plain(text)
    assert made == value and type(made) is type(value)


@pytest.mark.parametrize(
    ("script", "processes"),
    [
        ("torchrun --nnodes=2 --nproc_per_node=8 a.py --x 1", 16),
        ("torchrun --nproc-per-node 4 a.py --x 1", 4),
        ("accelerate launch --num_processes 6 a.py --x 1", 6),
        ("NPROC_PER_NODE=8 swift rlhf --x 1", 8),
        ("export NPROC_PER_NODE=4\nNNODES=2 \\\nswift rlhf \\\n  --x 1", 8),
        ("python -m verl.trainer.main_ppo x=1", 0),
        ("cd /x && python3 a.py --x 1 | tee log; echo done", 0),
        ("# python b.py --x 2\npython a.py --x 1 # --x 3", 0),
    ],
)
def test_a_script_says_how_many_processes_it_starts(script: str, processes: int):
    command = command_of(script, "a.sh")
    assert command.processes == processes
    source = Source("a.sh")
    from_words(source, command.words)
    assert source.values == {"x": 1}


# ---- the command


def test_the_command_prints_the_recipe_and_what_is_to_be_decided(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    call("migrate", "trl", written(tmp_path, "a.yaml", "max_steps: 3\n"), "--processes", 2, "--", "--seed", 5)
    out, err = capsys.readouterr()
    assert yaml.safe_load(out)["steps"] == 3 and yaml.safe_load(out)["seed"] == 5
    assert err.startswith("(!) ") and all(line.startswith("(!) ") for line in err.splitlines())


@pytest.mark.slow
def test_an_error_is_one_line(tmp_path: Path):
    path = written(tmp_path, "a.yaml", "loss_type: grp\n")
    assert refused(COMMAND, "migrate", "trl", path).startswith(f"{path}: loss_type: got grp, expected one of")
