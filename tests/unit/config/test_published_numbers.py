"""Numbers of presets that make them what their names say, as the papers and their released code state them."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from mmgrpo.config.presets import CATALOGUE

PUBLISHED = [
    ("dapo", "objective", "ppo", {"low": 0.2, "high": 0.28}),  # section 4.1
    ("dapo", "sampler", "dynamic_sampling", {"rounds": 10}),
    ("gspo", "objective", "gspo", {"low": 3e-4, "high": 4e-4}),  # section 5.1
    ("cispo", "objective", "cispo_cap", {"cap": 5.0}),
    ("gmpo", "objective", "gmpo", {"clip": 0.4}),
    ("sapo", "objective", "sapo", {"tau_positive": 1.0, "tau_negative": 1.05}),
    ("ngrpo", "objective", "ppo", {"low": 0.16, "high": 0.24}),
    ("ngrpo", "baseline", "virtual_max", {"maximum": 1.0}),
    ("lite_ppo", "scale", "batch_std", {"ddof": 1}),
    ("flow_grpo", "objective", "ppo", {"low": 1e-4, "high": 1e-4}),
    ("flow_grpo", "terms", "kl_gaussian_dt_free", {"coef": 0.04}),
    ("flow_grpo", "kernel", "flow_sde", {"a": 0.7}),
    ("dance_grpo", "plan", "random_subset", {"fraction": 0.6}),
    ("dance_grpo", "kernel", "dance", {"eta": 0.3}),
    ("mix_grpo", "plan", "sliding_window", {"size": 4, "interval": 25, "stride": 1}),
    ("mix_grpo", "objective", "ppo", {"low": 1e-4, "high": 1e-4}),
    ("dgpo", "objective", "dgpo", {"beta": 100.0, "clip": 0.05}),
    ("dgpo", "networks", "average", {"slope": 0.001, "most": 0.3, "samples_after": 200}),
    ("diffusion_nft", "objective", "diffusion_nft", {"beta": 1.0, "limit": 5.0}),
    ("diffusion_nft", "networks", "average", {"slope": 0.001, "most": 0.5}),
    ("diffusion_nft", "terms", "kl_velocity", {"coef": 1e-4}),
]


def texts(value: Any) -> list[str]:
    """The blocks of a line, whether it has one, several, or one for each kind of model."""
    several = value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]
    return [*several]


@pytest.mark.parametrize(("preset", "line", "block", "numbers"), PUBLISHED)
def test_a_preset_has_the_numbers_of_its_paper(preset, line, block, numbers):
    made = CATALOGUE[preset]
    calls = [ast.parse(text, mode="eval").body for text in texts({**made.blocks, **made.sampling}[line])]
    given = [
        {one.arg: ast.literal_eval(one.value) for one in call.keywords}
        for call in calls
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == block
    ]
    assert [numbers] == [{name: one.get(name) for name in numbers} for one in given]
