"""Defaults that are a setting and an argument of a class agree."""

from __future__ import annotations

import importlib
import inspect
from dataclasses import asdict, fields, replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from mmgrpo.cli import train
from mmgrpo.config.settings import Optim, config_class
from mmgrpo.family import families, family
from mmgrpo.policies.token import TokenPolicy
from mmgrpo.policies.token_passes import Memory
from mmgrpo.policies.walks import walk_of
from pipelines.training import Training
from pipelines.visual.flow import FlowModel


def defaults(function: Any) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters.values()
    return {one.name: one.default for one in parameters if one.default is not inspect.Parameter.empty}


@pytest.mark.parametrize("name", [name for name in families() if family(name).guidance])
def test_the_guidance_that_doubles_evaluations_is_the_one_with_a_second_pass(name):
    """Where ``guidance`` is a number that the network reads, ``true_cfg_scale`` asks it twice."""
    options = asdict(config_class(family(name).sections)().model)
    assert family(name).guidance == ("true_cfg_scale" if "true_cfg_scale" in options else "guidance")


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
    arguments = defaults(TokenPolicy.__init__) | defaults(Memory.__init__) | defaults(walk_of)
    arguments["train_truncated"] = "train" if arguments["train_truncated"] else "mask"
    arguments |= {"tools": arguments["tools"] or [], "program": arguments["program"] or ""}
    shared = {renamed.get(key, key): value for key, value in arguments.items() if renamed.get(key, key) in options}
    assert shared == {key: options[key] for key in shared}
    assert {"temperature", "top_p", "search", "evaluation_temperature", "share_prefix", "dtype"} <= shared.keys()


def test_a_generator_draws_by_default_as_its_settings_say():
    made, plain = config_class(family("sd3").sections)(), {one.name: one.default for one in fields(FlowModel)}
    assert plain["guidance"] == made.model.guidance == 1
    assert plain["decode_batch_size"] == made.model.decode_batch_size
    assert plain["levels"] == made.sampling.grid
    assert (plain["fps"], plain["prediction"]) == (0, "flow")  # pictures, and velocities


def test_an_optimizer_of_the_settings_is_adamw_with_its_usual_averages():
    assert (Optim().beta1, Optim().beta2) == (0.9, 0.999)


def test_a_family_is_of_the_modality_whose_room_it_lives_in():
    assert {one.module.split(".")[1] for one in families().values()} == {"visual", "vlm", "speech", "text"}
    assert all(one.module.startswith(f"pipelines.{one.modality}.") for one in families().values())


@pytest.mark.parametrize("name", families())
def test_a_path_that_is_no_model_is_answered_with_a_model_of_the_same_family(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = config_class(family(name).sections)()
    # Duration networks are those of one's own runs.
    own = config.model.path or getattr(importlib.import_module(family(name).module), "EXAMPLE", "config.json")
    with pytest.raises(FileNotFoundError, match=f"no/such/model.*{own}"):
        train.check_model(replace(config, model=replace(config.model, family=name, path="no/such/model")))


def test_only_the_family_says_whether_a_path_is_its_model(monkeypatch):
    """One in a file of one's own reads what it likes, and is asked in the same way."""
    config = config_class(family("sd3").sections)()
    config = replace(config, model=replace(config.model, path="a.gguf"))
    asked = Mock(side_effect=OSError("not there\nand more"))
    monkeypatch.setattr(train, "family", lambda name: SimpleNamespace(refuse_model=asked))
    with pytest.raises(FileNotFoundError, match=r"^model\.path: not there$"):
        train.check_model(config)
    asked.assert_called_once_with(config, "a.gguf")
