"""How a configuration is read: layers, errors, recipes."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from mmgrpo.presets import PRESETS
from mmgrpo.runtime.config import Algorithm
from mmgrpo.runtime.reading import build, load_yaml, read, take_option, write_yaml
from scripts.visual import VisualConfig, arithmetic
from tests import ROOT

RECIPES = sorted((ROOT / "scripts" / "recipes" / "visual").glob("*.yaml"))


@pytest.fixture
def recipe(tmp_path):
    """Writes a YAML file and gives its path."""

    def write(text: str) -> str:
        path = tmp_path / "recipe.yaml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


def parsed(*arguments: str) -> VisualConfig:
    return read(VisualConfig, list(arguments))


def test_later_layers_win(recipe):
    path = recipe("steps: 7\nseed: 3\noptim: {lr: 1e-3}\n")
    config = parsed("--config", path, "--seed", "4", "--optim.warmup", "2")
    assert (config.seed, config.steps, config.keep) == (4, 7, 2)  # command line, file, default
    assert (config.optim.lr, config.optim.warmup, config.optim.beta1) == (1e-3, 2, 0.9)


def test_a_preset_lies_above_the_defaults_and_below_the_files_own_keys(recipe):
    path = recipe("algorithm: {preset: dapo, aggregation: per_sample}\n")
    algorithm = parsed("--config", path).algorithm
    assert algorithm.objective == PRESETS["dapo"]["objective"] != Algorithm().objective
    assert algorithm.aggregation == "per_sample" != PRESETS["dapo"]["aggregation"]


def test_a_preset_of_the_command_line_lies_below_the_files_own_keys_too(recipe):
    path = recipe("algorithm: {preset: dapo, aggregation: per_prompt}\n")
    for option in (["--algorithm.preset", "dr_grpo"], ["--algorithm.preset=dr_grpo"]):
        algorithm = parsed("--config", path, *option).algorithm
        assert (algorithm.preset, algorithm.scale) == ("dr_grpo", "none")
        assert (algorithm.objective, algorithm.sampler) == (PRESETS["dr_grpo"]["objective"], [])  # not dapo's
        assert algorithm.aggregation == "per_prompt"


def test_the_command_line_lies_above_its_own_preset():
    algorithm = parsed("--algorithm.preset", "dr_grpo", "--algorithm.scale", "group_std").algorithm
    assert (algorithm.scale, algorithm.aggregation) == ("group_std", PRESETS["dr_grpo"]["aggregation"])


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_what_it_says_whichever_way_it_is_named(name, recipe):
    wanted = {"preset": name, **PRESETS[name]}
    assert asdict(build(Algorithm, {"preset": name}, "here")) == wanted
    assert asdict(build(VisualConfig, {"algorithm": {"preset": name}}, "here").algorithm) == wanted


def test_without_an_algorithm_section_the_default_preset_holds(recipe):
    wanted = {"preset": "grpo", **PRESETS["grpo"]}
    assert asdict(parsed().algorithm) == wanted
    assert asdict(parsed("--config", recipe("steps: 3\n")).algorithm) == wanted


@pytest.mark.parametrize("written", ["1e-4", "1.0e-4", "'1e-4'", "0.0001"])
def test_small_numbers_may_be_written_as_a_person_writes_them(written, recipe):
    lr = parsed("--config", recipe(f"optim: {{lr: {written}}}\n")).optim.lr
    assert lr == 1e-4 and isinstance(lr, float)


def test_whole_numbers_serve_as_floats(recipe):
    guidance = parsed("--config", recipe("model: {guidance: 4}\n")).model.guidance
    assert guidance == 4.0 and isinstance(guidance, float)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stepps: 3", r"recipe\.yaml: unknown key 'stepps'\. Did you mean 'steps'\? Known here: "),
        ("optim: {lrr: 3}", r"unknown key 'optim\.lrr'\. Did you mean 'optim\.lr'\? Known here: lr, "),
        ("xyzzyx: 3", r"unknown key 'xyzzyx'\. Known here: "),
        ("steps: many", r"'steps' must be of type int, got 'many'"),
        ("steps: 3.5", r"'steps' must be of type int, got 3\.5"),
        ("steps: true", r"'steps' must be of type int, got True"),
        ("resume: 1", r"'resume' must be of type bool, got 1"),
        ("name: 3", r"'name' must be of type str, got 3"),
        ("optim: {lr: fast}", r"'optim\.lr' must be a number, got 'fast'"),
        ("optim: {lr: true}", r"'optim\.lr' must be of type float, got True"),
        ("optim: 3", r"'optim' must be a section of keys, got 3"),
        ("optim:", r"'optim' must be a section of keys, got None"),
        ("rewards: ocr", r"'rewards' must be a list, got 'ocr'"),
        ("rewards: [ocr, 3]", r"'rewards' must be of type str, got 3"),
        (
            "algorithm: {preset: drgrpo}",
            r"recipe\.yaml: there is no preset 'drgrpo'\. Did you mean 'dr_grpo'\? Known: ",
        ),
        ("- steps", r"must hold a mapping of keys to values, got list"),
        ("", r"must hold a mapping of keys to values, got NoneType"),
        ("steps: [3", r"recipe\.yaml is not valid YAML: (.|\n)*line 1"),
        ("!!python/object/apply:os.getcwd []", r"is not valid YAML"),
    ],
)
def test_a_mistake_in_a_file_is_told_with_the_key_and_what_was_wanted(text, message, recipe):
    with pytest.raises(ValueError, match=message):
        parsed("--config", recipe(text))


def test_mistakes_on_the_command_line_are_told_too(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"--config: there is no file .*none\.yaml; recipes are in"):
        parsed("--config", str(tmp_path / "none.yaml"))
    with pytest.raises(ValueError, match="--config needs a value"):
        parsed("--config")
    with pytest.raises(ValueError, match=r"the command line: there is no preset 'grop'\. Did you mean 'grpo'"):
        parsed("--algorithm.preset", "grop")
    with pytest.raises(ValueError, match=r"there is no option '--optim\.lrr'\. Did you mean '--optim\.lr'"):
        parsed("--optim.lrr", "3")


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["--a", "1", "--b", "2"], ("1", ["--b", "2"])),
        (["--a=1", "--b"], ("1", ["--b"])),
        (["--a", "1", "--a=2"], ("2", [])),  # the last one wins
        (["--ab", "1"], ("", ["--ab", "1"])),
    ],
)
def test_an_option_is_taken_out_of_the_arguments(arguments, found):
    assert take_option(arguments, "--a") == found


def test_a_written_configuration_reads_back_equal(tmp_path):
    config = parsed("--algorithm.preset", "dapo", "--algorithm.aggregation", "per_prompt", "--optim.lr", "3e-5")
    config.rewards = ["ocr(weight=0.5)", "é:ü"]
    write_yaml(tmp_path / "config.yaml", config)
    assert parsed("--config", str(tmp_path / "config.yaml")) == config
    assert load_yaml(tmp_path / "config.yaml")["optim"]["lr"] == 3e-5


def test_configurations_do_not_share_their_lists():
    first = parsed("--algorithm.preset", "dapo")
    first.algorithm.select.append("more")
    second = parsed("--algorithm.preset", "dapo")
    assert second.algorithm.select == PRESETS["dapo"]["select"] == ["drop_zero_spread"]


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_parses_and_says_what_it_will_do(path):
    config = parsed("--config", str(path))
    assert config.name == path.stem
    assert load_yaml(path)["algorithm"]["preset"] == config.algorithm.preset
    told = arithmetic(config)
    assert f"{config.data.prompts_per_step} prompts x {config.data.group_size} samples" in told
    assert f"{config.steps:,} optimizer steps" in told


def test_the_arithmetic_of_a_run_without_branches():
    """Flow-GRPO: 48 prompts x 24 samples = 1152; each of 10 steps evaluates two branches of guidance;
    8 or 9 steps are trained; 1200 optimizer steps at 2 a round are 600 rounds."""
    config = parsed("--config", str(next(path for path in RECIPES if path.stem == "flow_grpo")))
    told = arithmetic(config)
    rows = 48 * 24
    assert rows == 1152 and config.sampling.steps == 10 and config.model.guidance == 4.5
    assert "48 prompts x 24 samples = 1,152 samples, 10 denoising steps" in told
    sampled, trained = rows * 10 * 2, rows * 9
    assert f"{sampled:,} network evaluations to sample, {trained:,} decisions trained" in told
    assert f"with {2 * trained:,} evaluations forward and backward" in told
    assert "cut into 2 update(s) x 1 epoch(s) = 2 optimizer step(s)" in told
    assert "1,200 optimizer steps = 600 rounds = 691,200 samples" in told
    assert f"{600 * sampled:,} evaluations to sample, {600 * 2 * trained:,} to train" in told


def test_the_arithmetic_of_a_tree():
    """2 prompts; 6 steps, splits at 0 and 2: states 1 1 2... a group evaluates 1 + 2 + 2 + 4 + 4 + 4 = 17 states and
    trains 2 + 2 + 4 + 4 + 4 = 16 decisions that lead from 1 + 2 + 2 + 4 + 4 = 13 states."""
    options = {
        "data.prompts_per_step": 2,
        "data.group-size": 4,
        "sampling.steps": 6,
        "sampling.plan": "branch_tree(splits=[0,2])",
        "optim.epochs": 3,
        "steps": 7,
    }
    told = arithmetic(parsed(*(f"--{name}={value}" for name, value in options.items())))
    assert "2 prompts x 4 samples = 8 samples, 6 denoising steps" in told
    assert "34 network evaluations to sample, 32 decisions trained with 78 evaluations" in told
    assert "7 optimizer steps = 3 rounds = 24 samples, 102 evaluations to sample, 234 to train" in told
