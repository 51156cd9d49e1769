"""A run of an older version goes on with its settings: those that it had, and the defaults of those that it had not."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from mmgrpo.cli.train import read
from mmgrpo.config.reading import build, load_yaml
from mmgrpo.config.settings import Config, Sections, config_class
from mmgrpo.family import family
from mmgrpo.runtime.identity import MARKER, Identity
from pipelines.visual.options import VisualSampling

OLD = Path(__file__).with_name("config_0.2.0.yaml")
"""The settings of a run that commit f1d2e008 wrote: preset mix_grpo, whose plan was that of the defaults."""
FINGERPRINT = "977ce24647f7d64e3e43e19b6167adf8"
"""What it wrote of them to run.json."""
IDENTITY = Identity("1", FINGERPRINT)


@dataclass
class LaterSampling(VisualSampling):
    """Sampling with a setting that the version did not have."""

    later: int = 3


def folder_of(tmp_path: Path, text: str = OLD.read_text(encoding="utf-8")) -> Path:
    (tmp_path / "config.yaml").write_text(text, encoding="utf-8")
    IDENTITY.write(tmp_path)
    return tmp_path


def later(**sampling: Any) -> Config:
    """The settings of the run, as a version with a further one reads them."""
    sections: Sections = replace(family("sd3").sections, sampling=LaterSampling)
    config = build(config_class(sections), load_yaml(OLD), "the test")
    return replace(config, sampling=replace(config.sampling, **sampling))


def test_an_older_run_keeps_its_plan_though_its_preset_has_another_now(tmp_path):
    folder = folder_of(tmp_path)
    config = read(["--config", str(folder / "config.yaml"), "--resume"], "")
    assert (config.algorithm.preset, config.sampling.plan) == ("mix_grpo", "every_step")
    assert IDENTITY.refuse_settings(folder, config) == {}


def test_the_plan_of_its_preset_now_is_refused_by_name(tmp_path):
    folder = folder_of(tmp_path)
    config = later(plan="sliding_window(size=4, interval=25, stride=1, schedule='progressive')")
    with pytest.raises(ValueError, match=r"sampling\.plan.*every_step.*sliding_window"):
        IDENTITY.refuse_settings(folder, config)


def test_a_setting_that_an_older_run_lacks_was_at_its_default(tmp_path):
    folder = folder_of(tmp_path)
    assert IDENTITY.refuse_settings(folder, later()) == {}
    with pytest.raises(ValueError, match=r"sampling\.later.*3.*4"):
        IDENTITY.refuse_settings(folder, later(later=4))


def test_a_file_of_settings_that_lost_what_was_no_default_is_not_what_the_run_started_with(tmp_path):
    text = OLD.read_text(encoding="utf-8")
    folder = folder_of(tmp_path, text.replace("  steps: 4\n", ""))  # which reads as 10
    with pytest.raises(ValueError, match=MARKER):
        IDENTITY.refuse_settings(folder, read(["--config", str(folder / "config.yaml")], ""))


def test_a_run_whose_blocks_were_written_without_parameters_keeps_their_text(tmp_path):
    blocks = {"scale": "group_std", "objective": "ppo"}  # which is what the defaults of the settings were
    config = build(config_class(family("sd3").sections), {"algorithm": blocks}, "the test")
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(asdict(config)), encoding="utf-8")
    Identity.new(config, {}).write(tmp_path)
    again = read(["--config", str(tmp_path / "config.yaml"), "--resume"], "")
    assert {key: getattr(again.algorithm, key) for key in blocks} == blocks
    assert Identity.read(tmp_path).refuse_settings(tmp_path, again) == {}


def test_what_the_settings_of_a_run_lack_is_a_default_and_what_a_recipe_lacks_is_of_the_preset(tmp_path):
    text = OLD.read_text(encoding="utf-8").replace("  plan: every_step\n", "")
    path = folder_of(tmp_path, text) / "config.yaml"
    assert read(["--config", str(path)], "").sampling.plan == "every_step"
    (tmp_path / MARKER).unlink()
    assert read(["--config", str(path)], "").sampling.plan.startswith("sliding_window")


@pytest.mark.parametrize(("rank", "setting"), [(0, "model.path"), (4, "model.lora-path")])
def test_a_run_under_a_decay_goes_on_as_another_from_its_saved_model(rank, setting, tmp_path):
    settings = {"steps": 2, "optim": {"decay": "linear"}, "model": {"lora_rank": rank}}
    config = build(config_class(family("sd3").sections), settings, "the test")
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(asdict(config)), encoding="utf-8")
    Identity.new(config, {}).write(tmp_path)
    words = f"--steps.*4.*2.*optim.decay=linear.*--name.*--{setting} {re.escape(str(tmp_path / 'model'))}"
    with pytest.raises(ValueError, match=words):
        Identity.read(tmp_path).refuse_settings(tmp_path, replace(config, steps=4))
