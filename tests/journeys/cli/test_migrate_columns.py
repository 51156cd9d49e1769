"""Data columns of other projects: what docs/migration says is read as it is, is, and what it says is not, is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from mmgrpo.cli.migrate.tables import PROJECTS
from mmgrpo.data.prompts import load_prompts
from tests.journeys.cli.quick import write_video
from tests.journeys.cli.running import call

ASKED = "What is on the mat?"

READ: dict[str, dict[str, dict[str, Any]]] = {
    "trl": {
        "a prompt": {"prompt": ASKED, "solution": "a cat"},
        "messages": {"prompt": [{"role": "user", "content": ASKED}], "solution": "a cat"},
        "an image": {"prompt": [{"role": "user", "content": ASKED}], "image": "cat.png", "solution": "a cat"},
        "images that fill blocks": {
            "prompt": [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": ASKED}]}],
            "images": ["cat.png"],
            "solution": "a cat",
        },
        "images before a text": {"prompt": ASKED, "images": ["cat.png", "cat.png"], "solution": "a cat"},
        "a system turn": {
            "prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": ASKED}],
            "solution": "a cat",
        },
    },
    "ms_swift": {
        "messages": {"messages": [{"role": "user", "content": ASKED}], "solution": "a cat"},
        "images at marks": {
            "messages": [{"role": "user", "content": f"<image>{ASKED}"}],
            "images": ["cat.png"],
            "solution": "a cat",
        },
        "videos at marks": {
            "messages": [{"role": "user", "content": f"<video>{ASKED}"}],
            "videos": ["cat.mp4"],
            "solution": "a cat",
        },
        "an answer of the assistant": {
            "messages": [{"role": "user", "content": ASKED}, {"role": "assistant", "content": "a cat"}]
        },
        "conversations": {"conversations": [{"from": "human", "value": ASKED}, {"from": "gpt", "value": "a cat"}]},
        "objects": {
            "messages": [{"role": "user", "content": ASKED}],
            "objects": {"ref": ["cat"], "bbox": [[1, 2, 3, 4]]},
            "solution": "a cat",
        },
    },
    "easyr1": {
        "a problem": {"problem": ASKED, "answer": "a cat"},
        "images at marks": {"problem": f"<image>{ASKED}", "images": ["cat.png"], "answer": "a cat"},
        "videos at marks": {"problem": f"<video>{ASKED}", "videos": ["cat.mp4"], "answer": "a cat"},
        "no image": {"problem": ASKED, "images": [], "answer": "a cat"},
    },
    "verl": {
        "messages, and what it knows of a row": {
            "prompt": [{"role": "user", "content": f"<image>{ASKED}"}],
            "images": [{"image": "cat.png"}],
            "data_source": "hiyouga/geometry3k",
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": "a cat"},
            "extra_info": {"split": "train"},
        },
    },
    "flow_grpo": {
        "metadata of GenEval": {
            "tag": "single_object",
            "include": [{"class": "cat", "count": 1}],
            "prompt": "a photo of a cat",
        },
    },
    "dance_grpo": {"a prompt with the first frame": {"prompt": "a cat walks", "image": "cat.png"}},
}
REFUSED: dict[str, dict[str, Any]] = {
    "query and response of ms-swift": {"query": ASKED, "response": "a cat"},
    "a turn of nobody": {"messages": [{"role": "user", "content": ASKED}, {"role": "narrator", "content": "{}"}]},
    "a caption of DanceGRPO": {"caption": "a cat", "prompt_embed_path": "0.pt"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("columns")
    Image.new("RGB", (56, 56), "red").save(made / "cat.png")
    write_video(made / "cat.mp4", 0)
    return made


@pytest.mark.slow
@pytest.mark.parametrize("project", PROJECTS)
def test_rows_that_are_read_as_they_are(project: str, folder: Path, capsys: pytest.CaptureFixture[str]):
    path = folder / f"{project}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in READ[project].values()))
    call("check-data", path)
    assert "no problems" in capsys.readouterr().out
    for prompt, row in zip(load_prompts(path), READ[project].values(), strict=True):
        assert prompt.text.removeprefix("<image>").removeprefix("<video>") in (ASKED, row.get("prompt"))
        media = [name for key in ("image", "images", "videos") for name in [row.get(key, [])] if name]
        assert len(prompt.media) == sum(1 if isinstance(one, str) else len(one) for one in media)
        wanted = "a cat" if project in ("trl", "ms_swift", "easyr1", "verl") else None
        assert prompt.answer == wanted
    assert {"objects", "extra_info", "include"} & {*row} <= {*prompt.meta}


@pytest.mark.parametrize("name", ["train.txt", "prompts.txt"])
def test_a_prompt_a_line_is_read(name: str, folder: Path):
    (folder / name).write_text('a cat that says "meow"\na dog\n')
    assert [prompt.text for prompt in load_prompts(folder / name)] == ['a cat that says "meow"', "a dog"]


@pytest.mark.parametrize("what", REFUSED)
def test_rows_that_are_not_read_are_said_to_be_none(what: str, folder: Path, capsys: pytest.CaptureFixture[str]):
    path = folder / "refused.jsonl"
    path.write_text(json.dumps(REFUSED[what]) + "\n")
    with pytest.raises(SystemExit):
        call("check-data", path)
    assert "1 rows have problems" in capsys.readouterr().out


def test_ms_swift_objects_and_verl_rewards_stay_in_meta(folder: Path):
    path = folder / "meta.jsonl"
    rows = [READ["ms_swift"]["objects"], *READ["verl"].values()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    swift, verl = load_prompts(path)
    assert swift.meta["objects"]["bbox"] == [[1, 2, 3, 4]]
    assert verl.answer == verl.meta["reward_model"]["ground_truth"] == "a cat"
