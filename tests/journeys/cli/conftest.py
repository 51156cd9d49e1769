"""Models and runs that several tests of commands look at, made once a session."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mmgrpo.toy import scenes
from pipelines.visual import sd3
from pipelines.vlm import qwen_vl
from tests.journeys.cli import quick
from tests.journeys.cli.running import call, once
from tests.tiny import maker


@pytest.fixture(scope="session")
def sd3_folder(tmp_path_factory) -> Path:
    """A whole Stable Diffusion 3, tiny."""
    return sd3.tiny(tmp_path_factory.mktemp("sd3"))


@pytest.fixture(scope="session")
def words_folder(tmp_path_factory) -> Path:
    """A model without VAE that reads the scenes' words, tiny."""
    return sd3.tiny_words(tmp_path_factory.mktemp("words"), scenes.vocabulary())


@pytest.fixture(scope="session")
def qwen_folder(tmp_path_factory) -> str:
    """A Qwen2.5-VL, tiny."""
    return qwen_vl.tiny(tmp_path_factory.mktemp("qwen") / "tiny")


@pytest.fixture(scope="session")
def media(tmp_path_factory) -> Path:
    """Six pictures and six videos."""
    return quick.write_media(tmp_path_factory.mktemp("media"))


@pytest.fixture(scope="session")
def recipe_run(sd3_folder, media, tmp_path_factory) -> Callable[[str], Path]:
    """Two optimizer steps of a recipe for pictures or clips on the tiny model of its family; the run folder."""
    output = tmp_path_factory.mktemp("runs")

    def tiny(family: str) -> Path:
        return sd3_folder if family == "sd3" else maker(family)(output / f"tiny-{family}")

    folder = once(tiny)

    def make(name: str) -> Path:
        family = quick.contents(f"visual/{name}")["model"]["family"]
        if name == "flow_opd":
            made("flow_grpo")  # its teacher
        call("train", *quick.visual_recipe(name, folder(family), output, media))
        return output / name

    made = once(make)
    return made


@pytest.fixture(scope="session")
def visual_run(words_folder, tmp_path_factory) -> Path:
    """The run of ``quick.visual``, uninterrupted."""
    output = tmp_path_factory.mktemp("whole")
    call("train", *quick.visual(words_folder, output))
    return output / "run"


@pytest.fixture(scope="session")
def vlm_run(qwen_folder, media, tmp_path_factory) -> Path:
    """The run of ``quick.vlm_run``, uninterrupted; its reward lies in the folder above."""
    output = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(output)
        call("train", *quick.vlm_run(qwen_folder, media, output))
    return output / "run"
