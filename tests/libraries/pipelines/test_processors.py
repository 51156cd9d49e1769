"""Which class reads the processor of a checkpoint, with torchvision and without."""

from __future__ import annotations

import importlib
import json
from types import SimpleNamespace
from typing import Any

import pytest

from pipelines import processors
from pipelines.processors import read_processor, without_clips


class Clips:
    """A class of processors with a part for clips."""

    @classmethod
    def get_attributes(cls) -> list[str]:
        return ["tokenizer", "video_processor", "image_processor"]


class Pictures(Clips):
    """One without it."""

    @classmethod
    def get_attributes(cls) -> list[str]:
        return ["tokenizer", "image_processor"]


CLASSES = {"ClipsProcessor": Clips, "PicturesProcessor": Pictures}
MAPPING = {"clips": "ClipsProcessor", "pictures": "PicturesProcessor"}


@pytest.mark.parametrize(
    ("declared", "model_type", "torchvision", "parts"),
    [
        ("ClipsProcessor", "pictures", False, ["tokenizer", "image_processor"]),  # what the checkpoint says counts
        ("PicturesProcessor", "clips", False, None),
        (None, "clips", False, ["tokenizer", "image_processor"]),
        (None, "pictures", False, None),
        (None, "unknown", False, None),
        ("ClipsProcessor", "clips", True, None),
    ],
)
def test_without_torchvision_the_part_for_clips_is_left_out(
    declared, model_type, torchvision, parts, tmp_path, monkeypatch
):
    """No parts: it is left to AutoProcessor."""
    transformers: Any = importlib.import_module("transformers")  # replaces itself in the table of modules
    asked: list[tuple] = []
    made = SimpleNamespace()
    monkeypatch.setattr(processors, "read_part", lambda *given, **options: asked.append((*given, options)) or made)
    monkeypatch.setattr(processors, "load_tokenizer", lambda source: f"tokenizer of {source}")
    utils = importlib.import_module("transformers.utils")
    monkeypatch.setattr(utils, "is_torchvision_available", lambda: torchvision)
    table = importlib.import_module("transformers.models.auto.processing_auto")
    monkeypatch.setattr(table, "PROCESSOR_MAPPING_NAMES", MAPPING)
    for name, kind in CLASSES.items():
        monkeypatch.setattr(transformers, name, kind, raising=False)
    if declared:
        (tmp_path / "processor_config.json").write_text(json.dumps({"processor_class": declared}))
    assert read_processor(str(tmp_path), model_type) is made
    [(kind, source, options)] = asked
    assert (source, options) == (str(tmp_path), {"trust_remote_code": False})
    assert made.tokenizer == f"tokenizer of {tmp_path}"
    if parts is None:
        assert kind is transformers.AutoProcessor
    else:
        assert issubclass(kind, Clips) and kind.get_attributes() == parts


def test_a_class_without_clips_has_the_name_of_its_own():
    kind: Any = without_clips(Clips)
    assert kind.__name__ == "Clips" and kind.get_attributes() == ["tokenizer", "image_processor"]
