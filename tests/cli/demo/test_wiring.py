"""What there is on the page, what it listens to, and the limits of its controls.

The names of controls are what tests in a browser and people who style the page hold on to.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gradio as gr
import pytest

from mmgrpo.cli.demo import app, rewards, rewards_media, runs, runs_html, speech, vision_language, vote
from mmgrpo.cli.demo.opened import Opened
from mmgrpo.cli.demo.visual import CHOOSE
from mmgrpo.cli.score import SUFFIXES
from tests.cli.demo.told import pair

NAMES = {
    "visual": "model example prompt picture count seed generate again cancel status slider alone clip-before "
    "clip-after "
    "rewards reward best winner before after command",
    "vlm": "pair example file preview question answer task coordinates count temperature seed ask cancel status result",
    "speech": "recognizer example preview file reference question transcribe transcribe-cancel transcribe-status "
    "transcripts voice said text speak speak-cancel speak-status sounds",
    "rewards": "file text prompt answer task names score cancel example shown values manifests attack strength other "
    "attack-run attack-cancel attacked effects",
    "group": "run step refresh page",
    "runs": "none choose refresh metric axis smooth curves details moment samples settings differences",
    "vote": "pair prompt typed asked sides left-button right-button tie-button bad-button skip-button next cancel "
    "reveal tally",
}
EVENTS = {
    "visual": "model.input example.input generate.click prompt.submit again.click cancel.click before.click "
    "after.click "
    "best.input reward.input",
    "vlm": "pair.change example.input file.upload file.clear ask.click cancel.click",
    "speech": "recognizer.change example.input file.upload file.stop_recording transcribe.click "
    "transcribe-cancel.click "
    "voice.change said.input speak.click speak-cancel.click",
    "rewards": "file.change text.blur names.change example.click score.click attack-run.click strength.input "
    "attack.input cancel.click attack-cancel.click",
    "group": "run.change refresh.click step.input",
    "runs": "choose.input refresh.click metric.input axis.input smooth.input moment.input",
    "vote": "pair.change next.click left-button.click right-button.click tie-button.click bad-button.click "
    "skip-button.click cancel.click",
}
"""What controls listen to."""
DRAWS = {
    "visual-generate visual-prompt visual-again": "visual",
    "vlm-ask": "",
    "speech-transcribe": "",
    "speech-speak": "",
    "rewards-score rewards-attack-run": "rewards",
    "vote-next": "vote",
}
"""Controls that draw or score, and the queue that they wait in together, if it has a name."""
NUMBERS = {
    "visual-count": (1, 16, 4, 1),
    "visual-seed": (0, 2**32 - 1, 1234, 1),
    "visual-best": (1, 2, 1, 1),
    "vlm-count": (1, 16, 4, 1),
    "vlm-temperature": (0, 2, 1.0, 0.1),
    "vlm-seed": (0, None, 0, 1),
    "rewards-strength": (0.25, 4, 1, 0.25),
    "runs-smooth": (0, 20, 10, 1),
    "runs-moment": (1, 2, 1, 1),
}
"""Minimum, maximum, value and step."""
LENGTHS = {
    "visual-prompt": 2_000,
    "vlm-question": 4_000,
    "speech-text": 300,
    "rewards-text": 20_000,
    "rewards-prompt": 20_000,
    "rewards-answer": 20_000,
    "rewards-task": 200,
    "rewards-other": 20_000,
    "vote-typed": 2_000,
}
HIDDEN = {"visual-picture", "visual-alone", "visual-clip-before", "visual-clip-after", "speech-question"}
HIDDEN |= {"runs-none", "runs-moment", "vote-typed"}
LOCKED = {"visual-slider", "visual-alone", "visual-clip-before", "visual-clip-after", "vote-cancel"}
LOCKED |= {f"vote-{name}-button" for name in ("left", "right", "tie", "bad", "skip")}
"""What a visitor cannot change, or not before there is something to vote on."""


@pytest.fixture(scope="module")
def page() -> gr.Blocks:
    """The page with a pair for each half of each tab, and a run."""
    families = {"draws": "sd3", "looks": "qwen_vl", "hears": "whisper", "speaks": "duration"}
    pairs = {name: pair(name, family, []) for name, family in families.items()}
    for one in pairs.values():
        one.__dict__["_heldout"] = []
    return app.build(Opened({"a run": Path("/nowhere")}, pairs, Path("votes.jsonl")))


def named(page: gr.Blocks) -> dict[str, Any]:
    return {str(one.elem_id): one for one in page.blocks.values() if getattr(one, "elem_id", None)}


def ids(table: dict[str, str]) -> list[str]:
    return sorted(f"{tab}-{name}" for tab, names in table.items() for name in names.split())


def test_everything_that_a_visitor_sees_has_a_name(page: gr.Blocks):
    tabs = {f"tab-{name}" for name in ("visual", "vision-language", "speech", "rewards", "group", "runs", "vote")}
    assert sorted({*named(page)} - tabs - {"head"}) == ids(NAMES) and tabs < {*named(page)}
    silent = (gr.Button, gr.HTML, gr.Markdown, gr.Tab, gr.Accordion)
    assert [name for name, one in named(page).items() if not isinstance(one, silent) and not one.label] == []
    labels = [one.label for one in named(page).values() if not isinstance(one, silent)]
    assert not {"Dropdown", "Textbox", "Slider", "Number", "File", "Image", "Audio", "Video", "Radio"} & {*labels}


def test_every_control_is_listened_to(page: gr.Blocks):
    names = {one._id: name for name, one in named(page).items()}
    heard = {f"{names[at]}.{event}" for fn in page.fns.values() for at, event in fn.targets if at in names}
    assert sorted(heard) == ids(EVENTS)
    loads = [fn for fn in page.fns.values() if any(event == "load" for _, event in fn.targets)]
    assert len(loads) == 6  # what is read when the page is opened: of each tab but Visual and Rewards, of Speech twice


def test_what_draws_waits_in_a_queue_and_can_be_cancelled(page: gr.Blocks):
    found = named(page)
    cancelled = {number for fn in page.fns.values() for number in fn.cancels}
    queues: dict[str, set[Any]] = {}
    for number, fn in page.fns.items():
        name = next((n for n, one in found.items() if any(at == one._id for at, _ in fn.targets)), "")
        queue = next((queue for several, queue in DRAWS.items() if name in several.split()), None)
        if queue is None or name == "visual-again":
            assert fn.trigger_mode != "multiple" or not name or name == "visual-again", name
            continue
        assert (fn.concurrency_limit, fn.trigger_mode) == (1, "multiple") and number in cancelled, name
        queues.setdefault(queue or name, set()).add(fn.concurrency_id)
    assert all(len(one) == 1 for one in queues.values()) and {"visual", "rewards", "vote"} < {*queues}
    assert queues["visual"] == {"visual"} and queues["rewards"] == {"rewards"} and queues["vote"] == {"vote"}


def test_the_numbers_and_texts_of_a_visitor_have_limits(page: gr.Blocks):
    found = named(page)
    kinds = (gr.Slider, gr.Number)
    numbers = {name: one for name, one in found.items() if isinstance(one, kinds)}
    assert {n: (one.minimum, one.maximum, one.value, one.step) for n, one in numbers.items()} == NUMBERS
    texts = {name: one.max_length for name, one in found.items() if isinstance(one, gr.Textbox) and one.max_length}
    assert texts == LENGTHS


def test_what_is_hidden_or_locked_at_first(page: gr.Blocks):
    found = named(page)
    assert {name for name, one in found.items() if one.visible is False} == HIDDEN
    assert {name for name, one in found.items() if getattr(one, "interactive", None) is False} == LOCKED
    assert not any(one.open for one in page.blocks.values() if isinstance(one, gr.Accordion))
    timers = [one for one in page.blocks.values() if isinstance(one, gr.Timer)]
    assert [(one.value, one.active) for one in timers] == [(5.0, False)]


def test_the_first_choice_is_made(page: gr.Blocks):
    found = named(page)
    first = {"visual-model": "draws", "vlm-pair": "looks", "speech-recognizer": "hears", "speech-voice": "speaks"}
    first |= {"group-run": "a run", "vote-pair": "draws", "runs-choose": ["a run"], "runs-axis": "optimizer step"}
    first |= {"vlm-example": "", "speech-example": "", "speech-said": "", "vlm-coordinates": "resized"}
    first |= {"rewards-names": [], "rewards-attack": "blur", "vote-prompt": "any"}
    assert {name: found[name].value for name in first} == first
    assert found["runs-choose"].multiselect and found["rewards-names"].multiselect
    assert found["runs-choose"].max_choices == 8 and found["runs-metric"].allow_custom_value


def test_a_column_fits_a_narrow_window(page: gr.Blocks):
    """A telephone of 360 pixels has 320 beside the margins of the page."""
    widths = {one.min_width for one in page.blocks.values() if isinstance(one, gr.Column)}
    assert widths <= {280, 300}


def test_every_tab_says_what_it_is_for(page: gr.Blocks):
    told = [str(one.value) for one in page.blocks.values() if isinstance(one, gr.Markdown)]
    halves = [f"### Recognition\n{speech.HEAR}", f"### Synthesis\n{speech.SPEAK}", "### Attack"]
    abouts = [vision_language.ABOUT, *halves, rewards.ABOUT, vote.ABOUT, runs.NOTHING]
    assert {" ".join(text.split()) for text in abouts} <= {" ".join(text.split()) for text in told}
    assert any(text.startswith("One prompt of training and all its samples") for text in told)
    marked = [str(one.value) for one in page.blocks.values() if isinstance(one, gr.HTML)]
    assert marked.count(rewards_media.STYLE) == 2 and marked.count(runs_html.style()) == 1
    assert named(page)["rewards-shown"].value == f"<p class='mm-note'>{rewards.NOTHING}</p>"
    assert named(page)["rewards-manifests"].value == "<p class='mm-note'>No reward is chosen.</p>"


def test_the_button_to_press_stands_out(page: gr.Blocks):
    variants = {name: one.variant for name, one in named(page).items() if isinstance(one, gr.Button)}
    first = {"visual-generate", "vlm-ask", "speech-transcribe", "speech-speak", "rewards-score", "rewards-attack-run"}
    assert {name for name, variant in variants.items() if variant == "primary"} == {*first, "vote-next"}
    assert [name for name, variant in variants.items() if variant == "stop"] == ["visual-cancel"]


def test_files_that_can_be_uploaded_are_those_that_can_be_read(page: gr.Blocks):
    found = named(page)
    pictures, clips = SUFFIXES["image"], SUFFIXES["video"]
    assert found["vlm-file"].file_types == [*pictures, *clips]
    assert found["rewards-file"].file_types == [*pictures, *clips, *SUFFIXES["audio"], *SUFFIXES["text"]]
    assert found["visual-picture"].type == found["speech-file"].type == "filepath"
    assert found["visual-picture"].sources == ["upload", "clipboard"]
    assert found["speech-file"].sources == ["microphone", "upload"] and found["speech-file"].buttons == []


def test_pictures_keep_every_pixel_and_clips_repeat(page: gr.Blocks):
    found = named(page)
    assert found["visual-slider"].format == found["visual-alone"].format == "png"
    assert found["visual-slider"].buttons == ["fullscreen"]
    assert found["visual-alone"].buttons == ["download", "fullscreen"]
    for side in ("before", "after"):
        clip = found[f"visual-clip-{side}"]
        assert clip.autoplay and clip.loop and clip.buttons == ["download"]
        assert found[f"visual-{side}"].js_on_load == CHOOSE


def test_only_what_takes_long_covers_the_page_while_it_is_waited_for(page: gr.Blocks):
    """A reader is not interrupted by what is filled in within a moment."""
    names = {one._id: name for name, one in named(page).items()}
    shown: dict[str, set[str]] = {}
    for fn in page.fns.values():
        places = {f"{names.get(at, '')}.{event}" for at, event in fn.targets if fn.fn is not None and at in names}
        shown.setdefault(fn.show_progress, set()).update(places)
    draws = {f"{name}.click" for several in DRAWS for name in several.split() if name not in AFTERWARDS}
    assert shown["full"] == draws | {"visual-prompt.submit", "rewards-strength.input", "rewards-attack.input"} | {
        f"vote-{name}-button.click" for name in ("left", "right", "tie", "bad", "skip")
    } | {"rewards-example.click"}
    assert shown["minimal"] == {"group-run.change", "group-refresh.click", "group-step.input"}


AFTERWARDS = ("visual-prompt", "visual-again")
"""They draw by another event than a click, and after one."""


def test_a_vote_is_stored_after_the_one_before_it(page: gr.Blocks):
    stores = [fn for fn in page.fns.values() if fn.name == "store"]
    assert [(fn.concurrency_limit, fn.concurrency_id) for fn in stores] == [(1, "votes")] * 5
    assert [[one._id for one in fn.outputs] == [one._id for one in stores[0].outputs] for fn in stores] == [True] * 5


def test_what_was_cancelled_says_so(page: gr.Blocks):
    found = named(page)
    afterwards = {
        "visual-status": "Cancelled.",
        "vlm-status": "cancelled",
        "speech-transcribe-status": "cancelled",
        "speech-speak-status": "cancelled",
        "rewards-values": "Cancelled.",
        "rewards-effects": "Cancelled.",
    }
    for name, words in afterwards.items():
        (said,) = [
            fn
            for fn in page.fns.values()
            if fn.fn is not None and [one._id for one in fn.outputs] == [found[name]._id] and not fn.targets[0][0]
        ]
        assert f">{words}</p>" in said.fn(*[None for _ in said.inputs])


def test_the_samples_of_a_visitor_are_forgotten_after_an_hour(page: gr.Blocks):
    lives = [one.time_to_live for one in page.blocks.values() if isinstance(one, gr.State)]
    assert [life for life in lives if life != float("inf")] == [3600]


def test_the_next_seed_follows_the_last_and_the_largest_is_followed_by_0(page: gr.Blocks):
    button = named(page)["visual-again"]._id
    (following,) = [fn.fn for fn in page.fns.values() if (button, "click") in fn.targets]
    assert [following(seed) for seed in (None, 0, 7, 2**32 - 2, 2**32 - 1)] == [1, 1, 8, 2**32 - 1, 0]


def test_a_prompt_that_is_chosen_is_written_into_the_field(page: gr.Blocks):
    example = named(page)["visual-example"]._id
    (chosen,) = [fn.fn for fn in page.fns.values() if (example, "input") in fn.targets]
    assert chosen("a cat", None, "a cat") == ["a cat", "a cat"]
