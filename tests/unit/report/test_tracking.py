"""What is sent to experiment trackers, seen by a tracker that keeps it."""

import numpy as np
import pytest
from accelerate import Accelerator
from accelerate.tracking import GeneralTracker, on_main_process
from PIL import Image

from mmgrpo.config.settings import Config
from mmgrpo.evaluation import Evaluation
from mmgrpo.report import tracking


class Kept(GeneralTracker):
    """A tracker that keeps what it gets."""

    requires_logging_directory = False

    def __init__(self, name="kept"):
        self.name, self.values, self.pictures = name, [], []
        super().__init__()

    @property
    def tracker(self):
        return self

    @on_main_process
    def store_init_configuration(self, values):
        self.configuration = values

    @on_main_process
    def log(self, values, step=None, **options):
        self.values.append((step, values))

    @on_main_process
    def log_images(self, values, step=None, **options):
        self.pictures.append((step, {name: np.shape(value) for name, value in values.items()}, options))


@pytest.fixture
def kept():
    return Kept()


@pytest.fixture
def accelerator(kept):
    made = Accelerator(cpu=True, log_with=[kept])
    tracking.begin(made, Config(name="mine", trackers=["tensorboard"]), 0)
    return made


def test_the_configuration_is_stored(accelerator, kept):
    assert kept.configuration["name"] == "mine" and kept.configuration["optim.lr"] == Config().optim.lr


@pytest.mark.parametrize(
    ("title", "key"),
    [
        ("before", "eval/right"),
        ("step-000040", "eval/right"),
        ("after-natural", "eval-natural/right"),
        ("before-before-noon", "eval-before-noon/right"),
        ("blind", "eval-blind/right"),
    ],
)
def test_the_mean_of_what_could_be_scored_is_sent(accelerator, kept, tmp_path, title, key):
    result = Evaluation({"right": [1.0, float("nan"), 0.0, 0.5], "never": [float("nan")]})
    tracking.send_evaluation(accelerator, title, result, tmp_path / "none.png", 40)
    assert kept.values == [(40, {key: 0.5})] and not kept.pictures
    further = {"mine": 2.0}
    tracking.send_evaluation(accelerator, title, result, tmp_path / "none.png", 41, further)
    assert kept.values[1] == (41, {key: 0.5, key.replace("right", "mine"): 2.0})


@pytest.mark.parametrize(
    ("name", "shape", "options"),
    [
        ("wandb", (1, 4, 6, 3), {}),
        ("tensorboard", (1, 4, 6, 3), {"dataformats": "NHWC"}),
        ("aim", (4, 6, 3), {}),
    ],
)
def test_the_samples_are_sent_in_the_form_that_the_tracker_takes(accelerator, kept, tmp_path, name, shape, options):
    Image.new("RGBA", (6, 4)).save(tmp_path / "after.png")
    kept.name = name
    tracking.send_evaluation(accelerator, "after", Evaluation({"right": [1.0]}), tmp_path / "after.png", 3)
    assert kept.pictures == [(3, {"eval/samples": shape}, options)]


def test_without_trackers_nothing_is_sent(tmp_path):
    tracking.send_evaluation(Accelerator(cpu=True), "after", Evaluation({"right": [1.0]}), tmp_path / "after.png", 3)


def test_a_run_has_its_own_name_in_a_tracker(monkeypatch):
    asked = {}
    made = Accelerator(cpu=True)
    monkeypatch.setattr(made, "init_trackers", lambda project, **rest: asked.update(project=project, **rest))
    tracking.begin(made, Config(name="mine", trackers=["tensorboard"]), 4)
    assert asked["project"] == "mmgrpo"
    assert asked["init_kwargs"]["wandb"] == {"name": "mine"}
    assert asked["init_kwargs"]["tensorboard"] == {"purge_step": 5}


def test_a_tracker_that_takes_no_pictures_is_sent_none(tmp_path, kept, monkeypatch):
    monkeypatch.delattr(Kept, "log_images")
    made = Accelerator(cpu=True, log_with=[kept])
    tracking.begin(made, Config(trackers=["tensorboard"]), 0)
    Image.new("RGB", (6, 4)).save(tmp_path / "after.png")
    tracking.send_evaluation(made, "after", Evaluation({"right": [1.0]}), tmp_path / "after.png", 3)
    assert kept.values == [(3, {"eval/right": 1.0})]


@pytest.mark.parametrize(("trackers", "started"), [([], False), (["tensorboard"], True)])
def test_trackers_are_started_where_there_are_some(trackers, started, monkeypatch):
    made, asked = Accelerator(cpu=True), []
    monkeypatch.setattr(made, "init_trackers", lambda project, **rest: asked.append(project))
    tracking.begin(made, Config(trackers=trackers), 0)
    assert bool(asked) == started
