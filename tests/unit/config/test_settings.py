"""How a configuration is read: layers, errors, names that were changed."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

import pytest

from mmgrpo.cli.train import read
from mmgrpo.config import reading
from mmgrpo.config.advice import usage_errors
from mmgrpo.config.presets import CATALOGUE, PRESETS
from mmgrpo.config.reading import (
    build,
    load_yaml,
    read_config,
    refuse_preset,
    take_option,
    write_yaml,
)
from mmgrpo.config.settings import Algorithm, Config, Optim, config_class, flat
from mmgrpo.family import family
from mmgrpo.update import learning_rate


@pytest.fixture
def recipe(tmp_path):
    """Writes a YAML file and gives its path."""

    def write(text: str) -> str:
        path = tmp_path / "recipe.yaml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


def parsed(*arguments: str) -> Config:
    """The configuration of ``mmgrpo train <arguments>``."""
    return read(arguments, "", "sd3")


def test_later_layers_win(recipe):
    path = recipe("steps: 7\nseed: 3\noptim: {lr: 1e-3}\n")
    config = parsed("--config", path, "--seed", "4", "--optim.warmup", "2")
    assert (config.seed, config.steps, config.keep) == (4, 7, 2)  # command line, file, default
    assert (config.optim.lr, config.optim.warmup, config.optim.beta1) == (1e-3, 2, 0.9)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "--steps 2 --optim.lr=3e-4 --rewards a b --no-overwrite",
        "--model.lora_rank 2 --model.no-gradient-checkpointing --data.train x --trackers",
        "--algorithm.terms kl(coef=0.1) --algorithm.scale none --steps 2 --steps 3",
    ],
)
def test_a_parser_of_the_given_options_reads_what_one_of_all_options_reads(line, monkeypatch):
    few = read(line.split(), "", "sd3")
    monkeypatch.setattr(reading, "_given_options", lambda kind, arguments: None)
    assert few == read(line.split(), "", "sd3")


def test_the_whole_parser_is_made_only_where_an_option_is_unknown_or_a_value_wrong(monkeypatch):
    made = []
    monkeypatch.setattr(reading, "usage_errors", lambda: made.append(1) or usage_errors())
    parsed("--steps", "2", "--no-overwrite", "--optim.lr=1e-4")
    assert not made
    for wrong in (["--stps", "2"], ["--steps", "many"], ["--steps"], ["--overwrite=3"], ["alone"]):
        with pytest.raises(ValueError, match="command line"):
            parsed(*wrong)
    assert len(made) == 5


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
    kind = config_class(family("sd3").sections)
    assert asdict(build(kind, {"algorithm": {"preset": name}}, "here").algorithm) == wanted


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
        ("stepps: 3", r"recipe\.yaml.*'stepps'.*'steps'\?"),
        ("optim: {lrr: 3}", r"'optim\.lrr'.*'optim\.lr'\?"),
        ("lr: 3", r"'lr'.*'optim\.lr'\?"),
        ("learning_rate: 3", r"'learning_rate'.*'optim\.lr'\?"),
        ("optim: {learning_rate: 3}", r"'optim\.learning_rate'.*'optim\.lr'\?"),
        ("xyzzyx: 3", "'xyzzyx'"),
        ("steps: many", r"recipe\.yaml.*steps.*'many'"),
        ("steps: 3.5", r"steps.*3\.5"),
        ("steps: true", "steps.*True"),
        ("resume: true", r"recipe\.yaml.*resume.*True.*--resume"),
        ("overwrite: true", r"recipe\.yaml.*overwrite.*True.*--overwrite"),
        ("dry_run: true", r"recipe\.yaml.*dry_run.*True.*--dry-run"),
        ("name: 3", "name.*3"),
        ("optim: {lr: fast}", r"optim\.lr.*'fast'"),
        ("optim: {lr: true}", r"optim\.lr.*True"),
        ("optim: 3", "'optim'.*3"),
        ("optim:", "'optim'.*None"),
        ("rewards: ocr", "rewards.*'ocr'"),
        ("rewards: [ocr, 3]", "rewards.*3"),
        (
            "algorithm: {preset: drgrpo}",
            r"recipe\.yaml.*'drgrpo'.*'dr_grpo'\?",
        ),
        ("- steps", r"recipe\.yaml.*list"),
        ("", r"recipe\.yaml.*NoneType"),
        ("steps: [3", r"recipe\.yaml.*YAML.*1"),
        ("!!python/object/apply:os.getcwd []", "YAML"),
    ],
)
def test_a_mistake_in_a_file_is_told_with_the_key_and_what_was_wanted(text, message, recipe):
    with pytest.raises(ValueError, match=message):
        parsed("--config", recipe(text))


def test_old_names_of_settings_are_read_with_a_notice():
    kind = config_class(family("qwen_vl").sections)
    old = {"data": {"picture_cache": 7}, "sampling": {"rows_at_once": 5}}
    with pytest.warns(UserWarning, match=r"called '(data.image_cache|eval.batch_size|--data.per-round|--data.prompts)"):
        read = read_config(kind, ["--data.per-round=3"], old, "run.yaml", "")
    assert (read.data.image_cache, read.eval.batch_size, read.data.prompts_per_step) == (7, 5, 3)
    assert old == {"data": {"picture_cache": 7}, "sampling": {"rows_at_once": 5}}
    with pytest.raises(ValueError, match=r"data\.image_cache"):
        read_config(kind, [], {"data": {"picture_cache": 7, "image_cache": 8}}, "run.yaml", "")
    with pytest.raises(ValueError, match=r"sampling\.grid"):
        read_config(kind, [], {"sampling": {"shift": 3.0}}, "run.yaml", "")


def test_mistakes_on_the_command_line_are_told_too(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.yaml.*'mmgrpo recipes'"):
        parsed("--config", str(tmp_path / "none.yaml"))
    with pytest.raises(ValueError, match=r"--save-every.*0.*\[1, 1e9\]"):
        parsed("--save-every", "0")
    with pytest.raises(ValueError, match="'--resume=yes'"):
        parsed("--steps=3", "--resume=yes")
    with pytest.raises(ValueError, match="--config"):
        parsed("--config")
    with pytest.raises(ValueError, match="'grop'.*'grpo'"):
        parsed("--algorithm.preset", "grop")
    with pytest.raises(ValueError, match=r"'--optim\.lrr'.*'--optim\.lr'"):
        parsed("--optim.lrr", "3")
    with pytest.raises(ValueError, match=r"'--num-generations'.*'--data\.group-size'"):
        parsed("--num-generations", "3")


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
    text = (tmp_path / "config.yaml").read_text(encoding="utf-8")
    assert text.startswith("name: ''\noutput_dir: runs\n") and "é:ü" in text  # in our order, and in letters


def test_configurations_do_not_share_their_lists():
    first = parsed("--algorithm.preset", "dapo")
    first.algorithm.select.append("more")
    second = parsed("--algorithm.preset", "dapo")
    assert second.algorithm.select == PRESETS["dapo"]["select"] == ["drop_zero_spread"]


@pytest.mark.parametrize(
    ("decay", "warmup", "steps", "values"),
    [
        ("constant", 0, 8, {0: 1.0, 4: 1.0, 7: 1.0, 8: 1.0, 20: 1.0}),
        ("linear", 0, 8, {0: 1.0, 2: 0.75, 4: 0.5, 7: 0.125, 8: 0.0, 9: 0.0, 20: 0.0}),
        ("cosine", 0, 8, {0: 1.0, 2: 0.5 + 2**-1.5, 4: 0.5, 6: 0.5 - 2**-1.5, 8: 0.0, 9: 0.0, 20: 0.0}),
        ("constant", 4, 12, {0: 0.25, 1: 0.5, 3: 1.0, 4: 1.0, 11: 1.0}),
        ("linear", 4, 12, {0: 0.25, 3: 1.0, 4: 1.0, 6: 0.75, 8: 0.5, 11: 0.125, 12: 0.0, 13: 0.0}),
        ("cosine", 4, 12, {0: 0.25, 3: 1.0, 4: 1.0, 6: 0.5 + 2**-1.5, 8: 0.5, 12: 0.0, 13: 0.0, 20: 0.0}),
        ("linear", 8, 8, {0: 0.125, 7: 1.0, 8: 1.0, 9: 0.0}),  # a warm-up to the end
    ],
)
def test_the_learning_rate_of_every_step(decay, warmup, steps, values):
    """Also past the end, which a resumed run with fewer steps than before would ask for."""
    optim = Optim(lr=2.0, warmup=warmup, decay=decay)
    rates = {step: learning_rate(optim, step, steps) for step in values}
    assert rates == {step: pytest.approx(2.0 * value, abs=1e-15) for step, value in values.items()}
    assert min(rates.values()) >= 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "steps: 3\nseed: 1\nsteps: 4\n",
            "recipe.yaml.*YAML.*3.*'steps'",
        ),
        ("optim:\n  lr: 1\n  'lr': 2\n", "3.*'lr'.*2"),
        ("optim: {lr: 1, lr: 1}\n", "1.*'lr'.*1"),
        ("steps: " + "9" * 5000, "recipe.yaml.*YAML.*limit"),
        ("steps: 2026-13-45", "recipe.yaml.*YAML.*1..12"),
        ("steps: " + "[" * 5000, "recipe.yaml.*YAML.*recursion"),
        ("steps: 0x" + "f" * 9000, "recipe.yaml.*steps.*10837"),
        ("optim: {lr: !!binary MQ==}", "recipe.yaml.*optim.lr.*b'1'"),
        ("algorithm: 3", "recipe.yaml.*'algorithm'.*3"),
        ("model: {family: [a]}", r"model.family.*\['a'\]"),
        ("rewards: &a [*a]", "recipe.yaml.*YAML.*1.*inside"),
        ("optim: &a {lr: *a}", "recipe.yaml.*YAML.*1.*inside"),
        (
            "steps: " + "1:" * 9000 + "1",
            "recipe.yaml.*YAML.*1.*number.*18,001",
        ),
        ("steps: " + "1:" * 900 + "1.5", "recipe.yaml.*YAML.*value"),
        ("steps: !!bool x", "recipe.yaml.*YAML.*value"),
        ("name: !!int ''", "recipe.yaml.*YAML.*value"),
        ("name: !!timestamp x", "recipe.yaml.*YAML.*value"),
        ('name: "\\ud800"', "recipe.yaml.*YAML.*1.*name"),
        ('a:\n  "b\\n": [x, {c: "\\ud800"}]', r"recipe.yaml.*YAML.*2.*a.b\?.c"),
        ('optim: {"\\ud800": 1}', "recipe.yaml.*YAML.*1.*optim"),
        ("? [a]\n: 1", "recipe.yaml.*YAML.*1.*sequence"),
        ("name: " + "[" * 60 + "]" * 60, "recipe.yaml.*YAML.*1.*50"),
        ("name: " + "x" * (1 << 20), "recipe.yaml.*1,048,582.*1,048,576"),
    ],
    ids=range(23),
)
def test_what_yaml_takes_for_something_else_is_told_in_one_line(text, message, recipe):
    with pytest.raises(ValueError, match=message) as refused:
        parsed("--config", recipe(text), "--algorithm.preset", "grpo")
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 700


@pytest.mark.parametrize(
    "level",
    ["[{}]", "{{{}}}", "{{<<: [{}]}}"],
    ids=["lists", "mappings", "merges"],
)
def test_aliases_are_counted_before_they_are_expanded(level: str, recipe):
    """Each of 20 levels names the one below ten times: 10^20 values in 3 KB."""
    lines = ["a0: &a0 {x: 1}"]
    for number in range(20):
        names = [f"*a{number}"] * 10
        inside = ", ".join(f"k{i}: {name}" for i, name in enumerate(names)) if level == "{{{}}}" else ", ".join(names)
        lines.append(f"a{number + 1}: &a{number + 1} {level.format(inside)}")
    with pytest.raises(ValueError, match="20,000 values"):
        load_yaml(recipe("\n".join(lines)))


def test_a_key_that_is_a_bomb_is_not_shown(recipe):
    lines = ["a0: &a0 [x]", *(f"a{i + 1}: &a{i + 1} [*a{i}, *a{i}]" for i in range(40)), "? *a40", ": 1"]
    with pytest.raises(ValueError, match="got a sequence as a key"):
        load_yaml(recipe("\n".join(lines)))


def test_what_is_not_decided_yet_is_refused_by_name_unless_the_command_line_decides_it(recipe):
    path = recipe(
        "steps: '??? 3 epochs of an unknown number of prompts'\nrewards: [length, '??? my_reward']\n"
        "undecided: {top_k: '50: no counterpart'}\n"
    )
    with pytest.raises(ValueError, match="not decided yet") as refused:
        parsed("--config", path)
    for word in ("steps (3 epochs of", "rewards (my_reward)", "undecided.top_k (50: no counterpart)"):
        assert word in str(refused.value)
    with pytest.raises(ValueError, match="undecided.top_k") as refused:
        parsed("--config", path, "--steps", "7", "--rewards", "length")
    assert "steps (" not in str(refused.value) and "rewards (" not in str(refused.value)
    path = recipe("steps: '??? unknown'\nundecided: {}\n")
    assert parsed("--config", path, "--steps=7").steps == 7


def test_a_file_that_is_no_text_is_told(tmp_path):
    (tmp_path / "recipe.yaml").write_bytes(b"steps: \xff\xfe\n")
    with pytest.raises(ValueError, match=r"recipe\.yaml.*YAML.*'utf-8'.*0xff"):
        parsed("--config", str(tmp_path / "recipe.yaml"))


def test_keys_that_a_merge_brings_along_may_be_repeated(recipe):
    merged = load_yaml(recipe("a: &a {lr: 1, epochs: 2}\nb:\n  <<: *a\n  lr: 3\n"))
    assert merged["b"] == {"lr": 3, "epochs": 2}


@pytest.mark.parametrize("sign", ["", "-"])
def test_an_integer_beyond_all_floats_is_infinite_and_refused(sign, tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(f"optim:\n  max_grad_norm: {sign}1{'0' * 400}\n")
    with pytest.raises(ValueError, match=f"optim.max_grad_norm.*{sign}inf"):
        parsed("--config", str(path))


def test_a_preset_of_another_kind_is_refused_with_those_that_suit():
    with pytest.raises(ValueError, match="'gfpo'") as caught:
        refuse_preset("gfpo", "gaussian")
    listed, _, rest = str(caught.value).partition("Suitable presets: ")[2].partition("; ")
    suitable = [name for name in sorted(PRESETS) if CATALOGUE[name].policies in ("any", "gaussian")]
    assert {*listed.split(", ")} <= {*suitable} and "mmgrpo presets" in rest and str(len(suitable)) in rest
    with pytest.raises(ValueError, match="'tree_grpo'"):
        refuse_preset("flow_tree_grpo", "tokens")
    for name, preset in CATALOGUE.items():
        refuse_preset(name, "gaussian" if preset.policies == "any" else preset.policies)


def test_settings_for_trackers_are_plain_and_on_one_level():
    @dataclass
    class Outer:
        count: int = 3
        on: bool = True
        words: tuple[str, ...] = ("a",)
        nothing: None = None
        optim: Optim = field(default_factory=lambda: Optim(lr=0.5, decay="linear"))

    values = flat(Outer())
    assert (values["count"], values["on"], values["words"], values["nothing"]) == (3, True, "('a',)", "None")
    assert (values["optim.lr"], values["optim.decay"]) == (0.5, "linear") and "optim" not in values
