"""What a visitor sees of every control: kind, name, what stands in it at first, its limits and its place.

A row has all that the code says of a control. A control is visible, and can be used, unless its row says otherwise.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gradio as gr
import pytest

from mmgrpo.cli.demo import group, rewards, runs, speech, vision_language, visual, vote
from mmgrpo.cli.demo import rewards_scoring as scoring
from mmgrpo.cli.demo import vote_trials as trials
from mmgrpo.cli.demo.group_tree import CHOOSE
from mmgrpo.cli.demo.opened import Opened
from mmgrpo.cli.demo.sampled import CSS
from mmgrpo.cli.score import SUFFIXES
from mmgrpo.types import Prompt
from reward_models.rules.boxes import COORDINATES
from reward_models.rules.tasks import TASKS
from tests.cli.demo.told import page as page_of
from tests.cli.demo.told import pair

Row = dict[str, Any]
Table = dict[str, Row]


def row(kind: str, label: str = "", **properties: Any) -> Row:
    """A control of a kind; the label is also the word on a button."""
    named = {} if not label else {"value" if kind == "button" else "label": label}
    return {"kind": kind, **named, **properties}


CLIP = {"autoplay": True, "loop": True, "visible": False, "interactive": False, "buttons": ["download"]}
VISUAL: Table = {
    "model": row("dropdown", "Models", choices=["draws"], value="draws"),
    "example": row("dropdown", "Held-out prompt", choices=["a cat", "a dog"]),
    "prompt": row("textbox", "Prompt", value="a cat", lines=2, max_length=2_000),
    "picture": row(
        "image", "Picture to start from", visible=False, height=220, type="filepath", sources=["upload", "clipboard"]
    ),
    "count": row("slider", "Samples", minimum=1, maximum=16, value=4, step=1),
    "seed": row("number", "Seed", minimum=0, maximum=2**32 - 1, value=1234, precision=0),
    "generate": row("button", "Generate", variant="primary", min_width=120),
    "again": row("button", "Next seed", variant="secondary", min_width=130),
    "cancel": row("button", "Cancel", variant="stop", min_width=90),
    "status": row("html", min_height=52),
    "slider": row(
        "imageslider",
        "Base (left) and trained (right)",
        interactive=False,
        format="png",
        max_height=460,
        buttons=["fullscreen"],
    ),
    "alone": row("image", "Base", visible=False, interactive=False, format="png", buttons=["download", "fullscreen"]),
    "clip-before": row("video", "Base", min_width=140, **CLIP),
    "clip-after": row("video", "Trained", min_width=140, **CLIP),
    "rewards": row("html"),
    "reward": row("dropdown", "Choose the best by", choices=[], value=None, min_width=160),
    "best": row("slider", "of the first n samples", minimum=1, maximum=2, value=1, step=1),
    "winner": row("html"),
    "before": row("html", js_on_load=visual.CHOOSE),
    "after": row("html", js_on_load=visual.CHOOSE),
    "command": row("html"),
}
STYLED = {"kind": "html", "css_template": CSS}
VISION_LANGUAGE: Table = {
    "pair": row("dropdown", "Models", choices=["looks"], value="looks"),
    "example": row("dropdown", "Held-out example", choices=[("my own question", "")], value=""),
    "file": row(
        "file", "Or upload a picture or a clip", height=140, file_types=[*SUFFIXES["image"], *SUFFIXES["video"]]
    ),
    "preview": STYLED,
    "question": row("textbox", "Question", lines=2, max_length=4_000),
    "answer": row("textbox", "Reference answer", lines=1),
    "task": row("dropdown", "Task", choices=["", *TASKS], value="", info="how the reward task compares"),
    "coordinates": row(
        "dropdown", "Coordinates of boxes in answers about uploads", choices=[*COORDINATES], value="resized"
    ),
    "count": row("slider", "Answers", minimum=1, maximum=16, value=4, step=1),
    "temperature": row(
        "slider", "Temperature", minimum=0, maximum=2, value=1.0, step=0.1, info="0 is the most likely answer"
    ),
    "seed": row("number", "Seed", minimum=0, maximum=None, value=0, precision=0),
    "ask": row("button", "Ask", variant="primary", size="md"),
    "cancel": row("button", "Cancel", variant="secondary", size="md"),
    "status": STYLED,
    "result": STYLED,
}
SPEECH: Table = {
    "recognizer": row("dropdown", "Recognizer", choices=["hears"], value="hears"),
    "example": row("dropdown", "Held-out example", choices=[("my own sound", "")], value=""),
    "preview": STYLED,
    "file": row("audio", "Or record or upload a sound", sources=["microphone", "upload"], type="filepath", buttons=[]),
    "reference": row("textbox", "Reference transcript, if there is one"),
    "question": row("textbox", "Instruction", visible=False),
    "transcribe": row("button", "Transcribe", variant="primary", size="md"),
    "transcribe-cancel": row("button", "Cancel", variant="secondary", size="md"),
    "transcribe-status": STYLED,
    "transcripts": STYLED,
    "voice": row("dropdown", "Voice", choices=["speaks"], value="speaks"),
    "said": row("dropdown", "Held-out text", choices=[("my own text", "")], value=""),
    "text": row("textbox", "Text to speak", lines=3, max_length=300),
    "speak": row("button", "Speak", variant="primary", size="md"),
    "speak-cancel": row("button", "Cancel", variant="secondary", size="md"),
    "speak-status": STYLED,
    "sounds": STYLED,
}
EVERY_SUFFIX = [suffix for kind in ("image", "video", "audio", "text") for suffix in SUFFIXES[kind]]
SCORERS = [("brisque (pictures, 0 to 1)", "brisque"), ("bleu (texts, 0 to 1)", "bleu")]
"""In place of all rewards, whose order depends on the weights that have been downloaded."""
REWARDS: Table = {
    "file": row("file", "Picture, clip, sound or .txt", height=140, file_types=EVERY_SUFFIX),
    "text": row("textbox", "or a text", lines=2, max_length=20_000),
    "prompt": row("textbox", "Prompt", lines=2, max_length=20_000),
    "answer": row("textbox", "Reference answer", info="JSON or a text", max_length=20_000),
    "task": row("textbox", "Task", info="for the reward task", max_length=200),
    "names": row(
        "dropdown",
        "Rewards",
        choices=SCORERS,
        value=[],
        multiselect=True,
        info="Those for your upload come first. All have their default parameters.",
    ),
    "score": row("button", "Score", variant="primary", min_width=90),
    "cancel": row("button", "Cancel", variant="secondary", min_width=90),
    "example": row("button", "Try an example", variant="secondary", min_width=90),
    "shown": row("html", value=f"<p class='mm-note'>{rewards.NOTHING}</p>"),
    "values": row("html"),
    "manifests": row("html", value="<p class='mm-note'>No reward is chosen.</p>"),
    "attack": row("dropdown", "Attack", choices=[*scoring.ATTACKS], value="blur", min_width=200),
    "strength": row(
        "slider",
        "Strength",
        minimum=0.25,
        maximum=4,
        value=1,
        step=0.25,
        info="1 is that of mmgrpo evaluate-rewards",
        min_width=200,
    ),
    "other": row("textbox", "Other prompt", info="for prompt_swap", max_length=20_000, min_width=200),
    "attack-run": row("button", "Attack", variant="primary", min_width=90),
    "attack-cancel": row("button", "Cancel", variant="secondary", min_width=90),
    "attacked": row("html"),
    "effects": row("html"),
}
GROUP: Table = {
    "run": row("dropdown", "Run", choices=["a run"], value="a run", min_width=160),
    "step": row("dropdown", "Optimizer step", choices=[], value=None, min_width=160),
    "refresh": row("button", "Refresh", variant="secondary", min_width=160),
    "page": row("html", js_on_load=CHOOSE, apply_default_css=False),
}
RUNS: Table = {
    "none": row("markdown", value=runs.NOTHING, visible=False),
    "choose": row(
        "dropdown", "runs", choices=["a run"], value=["a run"], multiselect=True, max_choices=8, scale=4, min_width=240
    ),
    "refresh": row("button", "Refresh", variant="secondary", size="md", scale=1, min_width=160),
    "metric": row("dropdown", "metric", choices=[], value=None, allow_custom_value=True, scale=3, min_width=240),
    "axis": row(
        "radio", "horizontal axis", choices=["optimizer step", "seconds"], value="optimizer step", min_width=240
    ),
    "smooth": row("slider", "smoothing, %", minimum=0, maximum=20, value=10, step=1, min_width=240),
    "curves": row("html", padding=False),
    "details": row("html", padding=False),
    "moment": row("slider", "samples", visible=False, minimum=1, maximum=2, value=1, step=1),
    "samples": row("html", padding=False),
    "settings": row("accordion", "settings that differ", open=False),
    "differences": row("html", padding=False),
}
ANYONE = [("any held-out prompt", trials.ANY)]
VOTES = {"left": "Left", "right": "Right", "tie": "Tie", "bad": "Both bad", "skip": "Skip"}
VOTE: Table = {
    "pair": row("dropdown", "Pair of models", choices=["draws", "looks"], value="draws", min_width=200),
    "prompt": row("dropdown", "Prompt", choices=ANYONE, value=trials.ANY, min_width=200),
    "typed": row("textbox", "or a prompt of your own", max_length=2_000, visible=False, min_width=200),
    "asked": row("html"),
    "sides": row("html"),
    **{
        f"{name}-button": row("button", word, variant="secondary", interactive=False, min_width=90)
        for name, word in VOTES.items()
    },
    "next": row("button", "Next two samples", variant="primary", min_width=140),
    "cancel": row("button", "Cancel", variant="secondary", interactive=False, min_width=90),
    "reveal": row("html"),
    "tally": row("html"),
}
FAMILIES = {"draws": "sd3", "looks": "qwen_vl", "hears": "whisper", "speaks": "duration"}
TABS = {
    "visual": (visual, VISUAL, ["draws"]),
    "vlm": (vision_language, VISION_LANGUAGE, ["looks"]),
    "speech": (speech, SPEECH, ["hears", "speaks"]),
    "rewards": (rewards, REWARDS, []),
    "group": (group, GROUP, []),
    "runs": (runs, RUNS, []),
    "vote": (vote, VOTE, ["draws", "looks"]),
}
"""The first part of the names of a tab's controls: its module, its controls, and the pairs of models that are open."""


def opened(names: list[str]) -> Opened:
    """A run, and pairs of models that are never loaded."""
    pairs = {name: pair(name, FAMILIES[name], []) for name in names}
    for name, one in pairs.items():
        one.__dict__["_heldout"] = [Prompt("a cat"), Prompt("a dog")] if name == "draws" else []
    return Opened({"a run": Path("/nowhere")}, pairs, Path("votes.jsonl"))


def told(block: Any, name: str) -> Any:
    """A property of a control; options without their labels where these are the same."""
    value = getattr(block, name)
    return [a if a == b else (a, b) for a, b in value] if name == "choices" else value


@pytest.mark.parametrize("tab", TABS)
def test_every_control_is_what_its_row_says(tab: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(scoring, "choices", lambda: SCORERS)
    module, table, pairs = TABS[tab]
    page = page_of(module.tab, opened(pairs))
    blocks = {name.removeprefix(f"{tab}-"): one for name, one in page.items() if name.startswith(f"{tab}-")}
    assert {*blocks} == {*table}
    for name, block in blocks.items():
        row = {"visible": True, **({"interactive": None} if hasattr(block, "interactive") else {}), **table[name]}
        if isinstance(block, gr.Button):
            row["interactive"] = table[name].get("interactive", True)
        assert {key: told(block, key) for key in row if key != "kind"} == {
            key: value for key, value in row.items() if key != "kind"
        }, name
        assert block.get_block_name() == row["kind"], name
        unsaid = {*block.constructor_args} - {*row} - {"elem_id"}
        assert not unsaid, f"{name}: no row says what {unsaid} should be"
