"""A default is stated in several places, as a setting and as an argument: all of them say the same."""

from __future__ import annotations

import importlib
import inspect
from dataclasses import asdict, fields
from typing import Any

import pytest

from mmgrpo.family import families, family
from mmgrpo.policies.token import TokenPolicy
from mmgrpo.runtime.config import Optim, config_class
from pipelines.training import Training


def defaults(function: Any) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters.values()
    return {one.name: one.default for one in parameters if one.default is not inspect.Parameter.empty}


@pytest.mark.parametrize("name", families())
def test_a_family_is_loaded_by_default_as_its_settings_say(name):
    made = family(name)
    options = asdict(config_class(made.sections)().model)
    arguments = defaults(importlib.import_module(made.module).load)
    # The device is chosen by the run.
    shared = {key: value for key, value in arguments.items() if key in options and key != "device"}
    assert shared == {key: options[key] for key in shared}
    assert shared or name == "duration"


@pytest.mark.parametrize("name", families())
def test_what_trains_by_default_is_what_the_settings_say(name):
    options = asdict(config_class(family(name).sections)().model)
    plain = {field.name: getattr(Training(), field.name) for field in fields(Training)}
    shared = {key: plain[key] for key in plain if key in options and key != "device"}
    assert {key: list(value) if isinstance(value, tuple) else value for key, value in shared.items()} == {
        key: options[key] for key in shared
    }
    assert (plain["lora_seed"], plain["weights"], plain["device"]) == (0, "", "cpu")


def test_a_policy_samples_by_default_as_the_settings_of_language_models_say():
    config = config_class(family("qwen_vl").sections)()
    options = {**asdict(config.sampling), **asdict(config.data)}
    renamed = {"sampling_dtype": "dtype", "train_truncated": "truncated"}
    arguments = defaults(TokenPolicy.__init__)
    arguments["train_truncated"] = "train" if arguments["train_truncated"] else "mask"
    shared = {renamed.get(key, key): value for key, value in arguments.items() if renamed.get(key, key) in options}
    assert shared == {key: options[key] for key in shared}
    assert {"temperature", "top_p", "search", "evaluation_temperature", "share_prefix", "dtype"} <= shared.keys()


def test_an_optimizer_of_the_settings_is_adamw_with_its_usual_averages():
    assert (Optim().beta1, Optim().beta2) == (0.9, 0.999)
