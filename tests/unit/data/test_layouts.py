"""Files of other projects, read as they are: question, medium and answer arrive, and a broken answer is reported."""

from __future__ import annotations

import re

import pytest
import torch

from mmgrpo.cli.check_data import main as check_data
from mmgrpo.data.columns import columns_of
from mmgrpo.data.images import decode_image
from pipelines.hub import load_prompts
from pipelines.speech.audio import read_audio
from tests import ROOT
from tests.unit.data.layouts import COLUMNS, LAYOUTS, QUESTION, RATE


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    """Parquet files are mapped into memory through the cache of datasets, here one of its own."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_file_is_read_as_the_project_lays_it_out(tmp_path, name):
    write, kind = LAYOUTS[name]
    (prompt,) = load_prompts(write(tmp_path, "red"), columns=columns_of(COLUMNS.get(name, "")))
    (medium,) = prompt.media
    assert (prompt.answer, prompt.text) == ("red", QUESTION if kind == "image" else "")
    assert medium.kind == kind and isinstance(medium.source, str)
    if kind == "image":
        assert torch.equal(decode_image(medium.source).pixels[:, 0, 0], torch.tensor([1.0, 0.0, 0.0]))
    else:
        sound = read_audio(medium)
        assert (sound.rate, sound.samples.shape) == (RATE, (1, 800))


@pytest.mark.parametrize("name", LAYOUTS)
def test_check_data_passes_a_good_answer_and_reports_a_broken_one(tmp_path, name, capsys):
    write, kind = LAYOUTS[name]
    reward = "exact" if kind == "image" else "exact_transcript"
    options = ["--reward", reward, "--columns", COLUMNS.get(name, "")]
    (tmp_path / "good").mkdir()
    check_data([str(write(tmp_path / "good", "red")), *options])
    assert "no problems" in capsys.readouterr().out
    # No answer can be scored but by a form that the reward reads: here it is wrapped in tags of a completion twice.
    broken = "<answer>red</answer><answer>red</answer>" if kind == "image" else "[ ]"
    with pytest.raises(SystemExit):
        check_data([str(write(tmp_path, broken)), *options])
    out = capsys.readouterr().out
    assert "1 rows have problems" in out and re.search(
        rf"{tmp_path}(/(meta)?data\.\w+|:a\.wav):|manifest\.json:1", out
    ), out
    assert f"reward '{reward}'" in out and "'answer'" in out


def test_the_table_of_the_docs_has_these_layouts():
    page = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")
    table = page.partition("| layout |")[2].partition("\n\n")[0]
    rows = [line.split("|")[1].strip() for line in table.splitlines()[2:]]
    assert rows == list(LAYOUTS)
