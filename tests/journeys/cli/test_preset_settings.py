"""A preset is what its name says on every kind of policy, or refuses: settings as the command resolves them."""

from __future__ import annotations

import re
from typing import Any

import pytest

from mmgrpo.advantages.estimate import AdvantageRecipe
from mmgrpo.cli.train import arithmetic, read
from mmgrpo.config.plugins import recipes
from mmgrpo.config.presets import CATALOGUE
from mmgrpo.config.reading import build, load_yaml, preset_settings, with_preset
from mmgrpo.config.settings import Config, config_class
from mmgrpo.family import family
from mmgrpo.requirements.blocks import REQUIREMENTS, requirements_of
from mmgrpo.update import LossRecipe

POLICIES = {
    "tokens": ["--model.family", "causal_lm", "--model.path", "m", "--data.train", "t.jsonl", "--rewards", "exact"],
    "transcripts": ["--model.family", "ctc", "--model.path", "m", "--data.train", "t.jsonl", "--rewards", "neg_errors"],
    "durations": ["--model.family", "duration"],
    "flow": ["--model.family", "sd3"],
    "video": ["--model.family", "wan"],
    "diffusion": ["--model.family", "stable_diffusion"],
    "speech": ["--model.family", "flow_speech"],
}
"""A family of each kind of decisions and process."""

FLOW, DIFFUSION = "flow_sde(a=0.7)", "ddim(eta=1.0)"
NAMES = {
    "flow_grpo": ("every_step", FLOW),
    "flow_grpo_fast": ("random_window(size=2, before=0.5)", FLOW),
    "dance_grpo": ("random_subset(fraction=0.6)", "dance(eta=0.3)"),
    "mix_grpo": ("sliding_window(size=4, interval=25, stride=1, schedule='progressive')", FLOW),
    "granular_grpo": ("one_step_branch(first=0.5, draw='all', intervals=[1, 2, 3])", FLOW),
    "branch_grpo": ("branch_tree(splits=[0, 3, 6, 9], factor=2, sibling_scale=4.0)", "dance(eta=0.3)"),
    "flow_tree_grpo": ("tree_window(children=3, depth=3, r=0.5)", FLOW),
    "tree_grpo": ("one_step_branch(first=0.5, roots=4)", FLOW),
    "tempflow": ("one_step_branch(first=0.5, draw='one', roots=4)", FLOW),
    "e_grpo": ("entropy_branch(first=0.5)", FLOW),
    "pro_grpo": ("expand_prune(at=[5, 7], keep=[24, 12])", FLOW),
    "cm_grpo": ("every_step(train=1)", "cps(a=1.0, scaled=True)"),
    "flash_grpo": ("one_step_branch(first=0.5, roots=4)", "flow_sde_wan"),
    "tp_grpo": ("every_step", "cps(a=0.7)"),
    "fdfo": ("every_step(shared_noise=True)", "edm_churn(gamma=0.0025)"),
}
"""Plans and kernels of the papers, on flows."""


def resolved(preset: str, policy: str, /, **sampling: Any) -> Config:
    """The settings of a preset and nothing else, as the command builds them."""
    _, name, *more = POLICIES[policy]
    kind = config_class(family(name).sections)
    section = {"model": {"family": name} | ({"path": "m"} if more else {}), "algorithm": {"preset": preset}}
    return build(kind, with_preset(kind, section | {"sampling": sampling}, "the test"), "the test")


@pytest.mark.rows
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("preset", CATALOGUE)
def test_every_preset_on_every_kind_of_policy_is_what_it_says_or_is_refused_by_name(preset, policy):
    config, entry = resolved(preset, policy), CATALOGUE[preset]
    owner = family(config.model.family)
    kind, settings = owner.decisions(config), preset_settings(type(config), preset, "")
    for part, values in settings.items():
        assert {key: getattr(getattr(config, part), key) for key in values} == values
    if entry.policies not in ("any", kind):
        with pytest.raises(ValueError, match=f"^preset '{preset}' .*{kind}"):
            arithmetic(config)
        return
    recipe, loss = AdvantageRecipe.of(config.algorithm), LossRecipe.read(config.algorithm)
    try:
        plan = arithmetic(config)
    except ValueError as error:
        assert re.match(r"(algorithm|data|sampling)\.\w+: ", str(error)), error
        return
    assert ("preset:" in plan) == bool(settings)
    assert all(str(value) in plan for values in settings.values() for value in values.values())
    needed = {name for _, _, name in requirements_of(recipe, loss) if REQUIREMENTS[name].of_policy}
    assert needed <= owner.has(config)


@pytest.mark.parametrize("preset", NAMES)
def test_a_preset_has_the_plan_and_the_kernel_of_its_paper(preset):
    sampling = resolved(preset, "flow").sampling
    assert (sampling.policy, sampling.plan, sampling.kernel) == ("transitions", *NAMES[preset])
    assert arithmetic(resolved(preset, "flow"))


@pytest.mark.parametrize("preset", [name for name, one in CATALOGUE.items() if one.policies == "matching"])
def test_a_preset_of_errors_draws_noise_levels_and_not_transitions(preset):
    assert resolved(preset, "flow").sampling.policy == resolved(preset, "diffusion").sampling.policy == "matching"


def test_the_kernel_is_that_of_the_process():
    kernels = [resolved("dance_grpo", policy).sampling.kernel for policy in ("flow", "video", "speech", "diffusion")]
    assert kernels == ["dance(eta=0.3)"] * 3 + [DIFFUSION]
    assert resolved("cm_grpo", "diffusion").sampling.kernel == "consistency"


def test_a_plan_of_a_preset_that_does_not_fit_is_an_error_that_names_the_preset():
    with pytest.raises(ValueError, match="sampling.plan: .*'mix_grpo'.*--sampling.plan"):
        arithmetic(resolved("mix_grpo", "flow", steps=4))
    with pytest.raises(ValueError, match="sampling.plan: ") as refusal:
        arithmetic(resolved("mix_grpo", "flow", steps=4, plan="sliding_window(size=5)"))
    assert "mix_grpo" not in str(refusal.value)


def test_groups_are_of_the_size_that_a_preset_cannot_do_without():
    sizes = {"branch_grpo": 16, "flow_tree_grpo": 27, "pro_grpo": 48, "fdfo": 2, "flash_grpo": 4}
    assert {name: resolved(name, "flow").data.group_size for name in sizes} == sizes
    assert [resolved(name, "tokens").data.group_size for name in ("spo", "s_grpo", "ttrv", "grpo")] == [1, 1, 32, 8]


def test_a_recipe_overrides_a_preset_and_the_command_line_both(tmp_path):
    (tmp_path / "mine.yaml").write_text("algorithm: {preset: mix_grpo}\nsampling: {plan: random_window}\n")
    config = read(["--config", str(tmp_path / "mine.yaml")], "")
    assert (config.sampling.plan, config.sampling.kernel) == ("random_window", FLOW)
    options = ["--algorithm.preset", "dance_grpo", "--sampling.kernel", "cps(a=0.5)"]
    config = read(["--config", str(tmp_path / "mine.yaml"), *options], "")
    assert (config.sampling.plan, config.sampling.kernel) == ("random_window", "cps(a=0.5)")
    assert "sampling.plan=random_window (in place of random_subset(fraction=0.6))" in arithmetic(config)
    config = read([*options, "--sampling.plan", "every_step"], "")
    assert (config.sampling.plan, config.sampling.kernel) == ("every_step", "cps(a=0.5)")


def test_decisions_of_another_kind_leave_the_settings_of_a_preset_out():
    sampling = resolved("tree_grpo", "flow", policy="matching").sampling
    assert (sampling.plan, sampling.kernel) == ("every_step", FLOW)
    with pytest.raises(ValueError, match=r"algorithm\.keys.*tree"):
        arithmetic(resolved("tree_grpo", "flow", policy="matching"))


NFT = ["--algorithm.preset", "diffusion_nft"]


@pytest.mark.parametrize(
    ("policy", "options", "line"),
    [
        ("flow", ["--algorithm.preset", "branch_grpo", "--sampling.plan", "every_step"], "credit.*tree_depth.*plan"),
        ("flow", ["--algorithm.preset", "branch_grpo_pruned", "--sampling.plan", "random_window"], "tree_depth.*plan"),
        ("flow", ["--algorithm.preset", "tree_grpo", "--sampling.plan", "every_step"], "keys.*tree.*roots"),
        ("flow", ["--algorithm.preset", "dense_grpo", "--sampling.completion-steps", "0"], "step_return.*completion"),
        ("flow", ["--algorithm.mismatch", "tis"], "mismatch.*tis.*rollout_guidance"),
        ("flow", [*NFT, "--rollout.engine", "sampler", "--algorithm.mismatch", "tis"], "mismatch.*tis"),
        ("tokens", ["--algorithm.mismatch", "mis"], "mismatch.*mis.*rollout.engine"),
        ("tokens", ["--algorithm.preset", "mini_rl"], "mismatch.*tis.*rollout.engine"),
        ("tokens", ["--algorithm.off-policy", "luffy(gamma=0.1)"], "off_policy.*luffy.*data.reference_in_group"),
        ("tokens", ["--algorithm.baseline", "replayed_by_window"], "baseline.*replayed_by_window.*algorithm.replay"),
        ("tokens", ["--algorithm.preset", "chord"], "supervised.*nll.*data.supervised"),
        ("tokens", ["--algorithm.preset", "vineppo", "--sampling.states", ""], "credit.*step_gain.*sampling.states"),
        ("tokens", ["--algorithm.preset", "gigpo"], "credit.*state_groups.*sampling.tools"),
        ("tokens", ["--algorithm.preset", "treerpo"], "credit.*tree_siblings.*sampling.tree"),
        ("tokens", ["--algorithm.preset", "opd"], "objective.*distillation.*algorithm.networks"),
        ("tokens", ["--algorithm.preset", "mwer_n_best", "--sampling.search", "sample"], "objective.*n_best.*beam"),
    ],
)
def test_a_block_without_the_rollouts_that_it_needs_is_refused_by_name(policy, options, line):
    with pytest.raises(ValueError, match=rf"algorithm\..*{line}"):
        arithmetic(read([*POLICIES[policy], *options], ""))


@pytest.mark.parametrize(
    ("policy", "options"),
    [
        ("flow", ["--algorithm.mismatch", "tis", "--sampling.rollout-guidance", "3"]),
        ("tokens", ["--algorithm.mismatch", "tis", "--sampling.dtype", "bfloat16"]),
        ("tokens", ["--algorithm.mismatch", "tis", "--sampling.temperature-by-entropy", "0.05"]),
        ("tokens", ["--algorithm.mismatch", "off_policy_mask(delta=0.5)"]),
        ("tokens", ["--algorithm.preset", "mp_grpo", "--algorithm.off-policy", "luffy"]),
        ("tokens", ["--algorithm.preset", "critique_grpo"]),
        ("tokens", ["--algorithm.preset", "avatar"]),
        ("tokens", ["--algorithm.preset", "chord", "--data.supervised", "s.jsonl"]),
        ("tokens", ["--algorithm.preset", "relift"]),
    ],
)
def test_a_block_with_the_rollouts_that_it_needs_is_not_refused(policy, options):
    assert arithmetic(read([*POLICIES[policy], *options], ""))


def test_every_requirement_of_a_block_is_a_known_one():
    from mmgrpo.cli.explain import tables
    from mmgrpo.config.registry import Block

    blocks = [row for table in tables().values() for row in table.values() if isinstance(row, Block)]
    assert {name for row in blocks for name in row.requires} <= REQUIREMENTS.keys()


@pytest.mark.parametrize("name", recipes())
def test_a_recipe_resolves_to_the_same_settings_with_and_without_those_of_its_preset(name):
    section = {key: value for key, value in load_yaml(recipes()[name]).items() if key != "stages"}  # further runs
    kind = config_class(family(section["model"]["family"]).sections)
    assert build(kind, with_preset(kind, section, name), name) == build(kind, section, name)
