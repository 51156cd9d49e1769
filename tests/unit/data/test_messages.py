from __future__ import annotations

import json
from io import BytesIO

import numpy as np
import pytest
import soundfile
from PIL import Image as Pil

from mmgrpo.data.images import IMAGE_CACHE, decode_image
from mmgrpo.data.messages import apply_wording, prompt_of
from mmgrpo.data.prompts import load_prompts
from mmgrpo.data.rows import as_prompts
from mmgrpo.types import Media, Prompt, Turn
from pipelines import hub
from pipelines.hub import load_stored
from pipelines.speech.audio import read_audio


def loaded(folder, row, **options):
    """The prompt of a file with one row."""
    (folder / "rows.jsonl").write_text(json.dumps(row))
    (prompt,) = load_prompts(folder / "rows.jsonl", **options)
    return prompt


def image(folder, name, **options):
    return Media("image", str(folder / name), options)


def asked(*parts):
    return Turn("user", parts)


# --- text -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["text", "prompt", "problem"])
def test_a_string_without_media_stays_a_plain_prompt(tmp_path, key):
    assert loaded(tmp_path, {key: " How many? ", "answer": 3}) == Prompt(" How many? ", "rows.jsonl:1", 3)


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "How many?"}]},
        {"prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "How many?"}]},
        {"conversations": [{"from": "system", "value": "Be brief."}, {"from": "human", "value": "How many?"}]},
        {
            "messages": [
                {"role": "system", "content": "Be brief.", "name": None},
                {"role": "user", "content": [{"type": "text", "text": "How many?", "image": None}]},
            ]
        },
    ],
)
def test_conversations_in_all_ways_of_writing_are_the_same(tmp_path, row):
    prompt = loaded(tmp_path, row)
    assert prompt.turns == (Turn("system", ("Be brief.",)), asked("How many?"))
    # The text is what the user says, for rewards and reports.
    assert prompt.text == "How many?"


def test_a_conversation_goes_on_over_turns(tmp_path):
    says = [("user", "Hello."), ("assistant", "Hi!"), ("user", "How many?")]
    prompt = loaded(tmp_path, {"messages": [{"role": role, "content": text} for role, text in says]})
    assert prompt.turns == tuple(Turn(role, (text,)) for role, text in says)
    assert prompt.text == "Hello.\nHow many?"


def test_the_answer_of_an_assistant_at_the_end_is_taken_off_and_never_shown(tmp_path):
    human, gpt = {"from": "human", "value": "How many?"}, {"from": "gpt", "value": "Three"}
    prompt = loaded(tmp_path, {"conversations": [human, gpt]})
    assert prompt.turns == (asked("How many?"),) and prompt.answer == "Three" and prompt.meta == {"reply": "Three"}
    prompt = loaded(tmp_path, {"conversations": [human, gpt], "answer": 3})
    assert prompt.turns == (asked("How many?"),) and prompt.answer == 3 and prompt.meta == {"reply": "Three"}


def test_a_solution_is_the_answer_where_there_is_no_other(tmp_path):
    assert loaded(tmp_path, {"problem": "How many?", "solution": "3"}).answer == "3"
    both = loaded(tmp_path, {"problem": "How many?", "solution": "Count them.", "answer": 3})
    assert both.answer == 3 and both.meta == {"solution": "Count them."}


# --- media ----------------------------------------------------------------------------------------


def test_media_beside_a_text_stand_before_it(tmp_path):
    row = {"problem": "Which is it?", "images": ["a.png", "b.png"], "video": "c.mp4", "audio": "d.wav", "task": "exact"}
    prompt = loaded(tmp_path, row)
    media = (
        image(tmp_path, "a.png"),
        image(tmp_path, "b.png"),
        Media("video", str(tmp_path / "c.mp4")),
        Media("audio", str(tmp_path / "d.wav")),
    )
    assert prompt.turns == (asked(*media, "Which is it?"),) and prompt.media == media
    assert prompt.text == "Which is it?" and prompt.task == "exact" and prompt.meta == {}


def test_media_stand_where_their_marks_are(tmp_path):
    row = {"text": "<image>This, <video> or <image>?", "images": ["a.png", "b.png"], "videos": [{"path": "c.mp4"}]}
    clip = Media("video", str(tmp_path / "c.mp4"))
    prompt = loaded(tmp_path, row)
    assert prompt.turns == (asked(image(tmp_path, "a.png"), "This, ", clip, " or ", image(tmp_path, "b.png"), "?"),)
    assert prompt.text == "This,  or ?"


@pytest.mark.parametrize("key", ["image", "images"])
def test_one_picture_or_several_are_named_under_either_key(tmp_path, key):
    assert loaded(tmp_path, {"text": "What?", key: "a.png"}).media == (image(tmp_path, "a.png"),)
    several = loaded(tmp_path, {"text": "What?", key: ["a.png", {"image": "b.png", "max_pixels": 784}]})
    assert several.media == (image(tmp_path, "a.png"), image(tmp_path, "b.png", max_pixels=784))
    assert loaded(tmp_path, {"text": "What?", key: []}).turns == ()
    assert loaded(tmp_path, {"text": "What?", key: None}).turns == ()


def test_files_of_frames_are_one_clip(tmp_path):
    frames = Media("video", (str(tmp_path / "1.png"), str(tmp_path / "2.png")))
    assert loaded(tmp_path, {"text": "What?", "video": ["1.png", "2.png"]}).media == (frames,)
    assert loaded(tmp_path, {"text": "What?", "videos": [["1.png", "2.png"]]}).media == (frames,)
    block = {"type": "video", "video": ["1.png", "2.png"], "fps": 4, "frames": 2}
    prompt = loaded(tmp_path, {"messages": [{"role": "user", "content": [block, {"type": "text", "text": "What?"}]}]})
    assert prompt.media == (Media("video", frames.source, {"fps": 4, "frames": 2}),)
    assert len(loaded(tmp_path, {"text": "What?", "videos": ["1.mp4", "2.mp4"]}).media) == 2
    assert len(loaded(tmp_path, {"text": "What?", "video": ["1.mp4", {"path": "2.mp4", "fps": 4}]}).media) == 2


def test_blocks_show_their_own_media_or_the_next_of_those_beside(tmp_path):
    content = [
        {"type": "image", "path": "own.png", "min_pixels": 784},
        {"type": "image"},
        {"type": "text", "text": "or <image>?"},
        {"type": "video", "start": 1.5},
    ]
    row = {
        "messages": [{"role": "user", "content": content}],
        "images": ["1.png", "2.png"],
        "videos": [{"path": "c.mp4", "shuffle": 3}],
    }
    parts = loaded(tmp_path, row).turns[0].parts
    assert parts == (
        image(tmp_path, "own.png", min_pixels=784),
        image(tmp_path, "1.png"),
        "or ",
        image(tmp_path, "2.png"),
        "?",
        Media("video", str(tmp_path / "c.mp4"), {"shuffle": 3, "start": 1.5}),
    )


def test_media_beside_a_conversation_without_marks_stand_before_the_first_question(tmp_path):
    says = [("system", "Be brief."), ("user", "What?"), ("assistant", "A cat."), ("user", "Where?")]
    row = {"prompt": [{"role": role, "content": text} for role, text in says], "images": ["a.png"]}
    prompt = loaded(tmp_path, row)
    assert prompt.turns[1] == asked(image(tmp_path, "a.png"), "What?") and len(prompt.media) == 1


def test_relative_paths_are_of_the_files_folder_or_of_the_media_root(tmp_path):
    row = {"text": "What?", "images": ["a.png", "/data/b.png", "file:///data/c.png"]}
    assert [m.source for m in loaded(tmp_path, row).media] == [str(tmp_path / "a.png"), "/data/b.png", "/data/c.png"]
    assert loaded(tmp_path, row, media_root="/pictures").media[0].source == "/pictures/a.png"


def test_a_picture_alone_may_be_the_question_when_the_text_says_so(tmp_path):
    assert loaded(tmp_path, {"text": "", "audio": "a.wav"}).turns == (asked(Media("audio", str(tmp_path / "a.wav"))),)


# --- errors ---------------------------------------------------------------------------------------

USER = {"role": "user", "content": "What?"}


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ({"text": "<image>?"}, "1.*'images'.*0.*equally"),
        ({"text": "<image>?", "images": ["a", "b"]}, "1.*'images'.*2"),
        ({"text": "<video>?", "images": ["a"]}, "0.*'images'.*1"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
            "1.*'images'.*0",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "path": "a"}]}], "image": "b"},
            "0 <image>.*1",
        ),
        ({"text": "?", "image": "a", "images": ["b"]}, "'image'.*'images'"),
        ({"text": "?", "messages": [USER]}, "'text'.*'messages'"),
        ({"images": ["a.png"]}, r"'text' \(keys"),
        ({"text": [USER]}, "'text'"),
        ({"prompt": 3}, "'prompt'.*3"),
        ({"messages": []}, "'messages'.*turns"),
        ({"messages": "What?", "image": "a"}, "list of turns"),
        ({"messages": ["What?"]}, r"1.*What\?.*'role'.*'content'"),
        ({"messages": [{**USER, "weight": 0}]}, "1.*weight.*'role'.*'content'"),
        ({"conversations": [USER]}, "'from'.*'value'"),
        ({"messages": [{"role": "usr", "content": "?"}]}, "1.*'usr'.*'user'"),
        ({"messages": [USER, {"role": "system", "content": "?"}]}, "'messages'.*user"),
        ({"messages": [{"role": "assistant", "content": "?"}]}, "'messages'.*user"),
        ({"messages": [{"role": "system", "content": "?"}], "image": "a"}, "'messages'.*user"),
        ({"messages": [{"role": "user", "content": " "}]}, "'messages'.*empty"),
        ({"messages": [{"role": "user", "content": 3}]}, "1.*'type'.*'text'"),
        ({"messages": [{"role": "user", "content": ["?"]}]}, "1.*'type'"),
        ({"messages": [{"role": "user", "content": [{"type": "imgae"}]}]}, "'imgae'.*'image'"),
        ({"messages": [{"role": "user", "content": [{"type": ["image"]}]}]}, "turn 1"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "?", "path": "a"}]}]},
            "'type'.*'text'",
        ),
        ({"text": "?", "image": 3}, "'image'.*path.*3"),
        ({"text": "?", "images": [["a", "b"]]}, "'images'.*path"),
        ({"text": "?", "video": [""]}, "'video'.*path"),
        ({"text": "?", "image": {"max_pixels": 784}}, "'image'.*'path'"),
        ({"text": "?", "image": {"path": "a", "image": "b"}}, "'path'.*'image'"),
        (
            {"text": "?", "image": "https://example.com/a.png"},
            "https://example.com/a.png",
        ),
        ({"text": "?", "image": "data:image/png,AAAA"}, "local file"),
        ({"text": "?", "video": {"path": "a", "nframes": 4}}, "'nframes'.*'frames'"),
        ({"text": "?", "image": {"path": "a", "fps": 4}}, "'fps'"),
        ({"text": "?", "video": {"path": "a", "fps": 0}}, "'fps'.*0.*0"),
        ({"text": "?", "video": {"path": "a", "fps": "2"}}, r"'fps'.*\"2\""),
        ({"text": "?", "video": {"path": "a", "frames": 3}}, "'frames'.*3"),
        (
            {"text": "?", "video": {"path": "a", "start": -1}},
            "'start'.*-1.*0",
        ),
        ({"text": "?", "video": {"path": "a", "shuffle": True}}, "'shuffle'.*true"),
        ({"text": "?", "video": {"path": "a", "start": 3, "end": 2}}, "'start'.*'end'.*3.*2"),
        (
            {"text": "?", "image": {"path": "a", "min_pixels": 9, "max_pixels": 4}},
            "'min_pixels'.*'max_pixels'.*9.*4",
        ),
        ({"text": "?", "video": {"path": "a", "fps": 1, "frames": 4}}, "'fps'.*'frames'"),
        (
            {
                "messages": [{"role": "user", "content": [{"type": "video", "fps": 1}]}],
                "videos": [{"path": "a", "frames": 4}],
            },
            "'fps'.*'frames'",
        ),
    ],
)
def test_a_row_that_cannot_be_read_is_an_error_with_file_and_line(tmp_path, row, complaint):
    (tmp_path / "rows.jsonl").write_text(json.dumps({"text": "fine"}) + "\n" + json.dumps(row))
    with pytest.raises(ValueError, match=rf"rows\.jsonl:2.*{complaint}"):
        load_prompts(tmp_path / "rows.jsonl")


# --- Hugging Face data sets -----------------------------------------------------------------------


def data_set():
    datasets = pytest.importorskip("datasets")
    red, blue = (Pil.new("RGB", (6, 4), color) for color in ("red", "blue"))
    value = datasets.Value
    block = {"type": value("string"), "text": value("string"), "image": datasets.Image()}
    features = datasets.Features(
        {
            "messages": [{"role": value("string"), "content": [block]}],
            "images": datasets.List(datasets.Image()),
            "answer": value("string"),
            "task": value("string"),
            "cover": datasets.Image(),
        }
    )
    own = [{"type": "image", "text": None, "image": blue}, {"type": "text", "text": "What?", "image": None}]
    beside = [{"type": "text", "text": "<image>or<image>", "image": None}]
    rows = {
        "messages": [[{"role": "user", "content": own}], [{"role": "user", "content": beside}]],
        "images": [None, [red, blue]],
        "answer": ["blue", "red"],
        "task": [None, "mcq"],
        "cover": [red, None],
    }
    return datasets, datasets.Dataset.from_dict(rows, features=features)


def colours(prompt):
    return [IMAGE_CACHE.read(medium.source).pixels[:, 0, 0].tolist() for medium in prompt.media]


def check(prompts):
    one, two = prompts
    assert one.turns[0].parts[1] == "What?" and one.answer == "blue" and one.task == "" and two.task == "choice"
    assert two.turns[0].parts[1] == "or" and colours(one) == [[0, 0, 1]] and colours(two) == [[1, 0, 0], [0, 0, 1]]
    assert all("@train::" in medium.source for medium in one.media + two.media)  # named, not in memory


def test_a_data_set_saved_to_disk_is_read_like_a_file(tmp_path):
    datasets, rows = data_set()
    datasets.DatasetDict({"train": rows}).save_to_disk(str(tmp_path / "splits"))
    prompts = hub.load_prompts(f"hf:{tmp_path / 'splits'}@train")
    check(prompts)
    assert [prompt.id for prompt in prompts] == ["splits@train:0", "splits@train:1"]
    # A picture in a column that nothing reads is not decoded.
    assert prompts[0].meta["cover"].endswith("@train::0:cover/bytes") and prompts[1].meta == {}
    rows.save_to_disk(str(tmp_path / "one"))
    check(hub.load_prompts(f"hf:{tmp_path / 'one'}@train"))
    with pytest.raises(ValueError, match="splits@trian.*'trian'.*'train'"):
        hub.load_prompts(f"hf:{tmp_path / 'splits'}@trian")


def test_a_folder_of_parquet_files_is_read_with_its_splits(tmp_path, monkeypatch):
    datasets, rows = data_set()
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "set").mkdir()
    rows.to_parquet(str(tmp_path / "set" / "train-0.parquet"))
    check(hub.load_prompts(f"hf:{tmp_path / 'set'}@train"))
    assert len(hub.load_prompts(f"hf:{tmp_path / 'set'}@train[:1]")) == 1
    with pytest.raises(ValueError, match="@test"):
        hub.load_prompts(f"hf:{tmp_path / 'set'}@test")


def test_with_a_media_root_pictures_become_files_once(tmp_path):
    _, rows = data_set()
    rows.save_to_disk(str(tmp_path / "set"))
    for _ in range(2):
        one, two = hub.load_prompts(f"hf:{tmp_path / 'set'}@train", tmp_path / "media")
    assert len(list((tmp_path / "media").iterdir())) == 2
    assert one.media[0] == two.media[1] and Pil.open(two.media[0].source).getpixel((0, 0)) == (255, 0, 0)


def test_sounds_inside_a_data_set_are_read_there_or_become_files_of_the_media_root(tmp_path):
    datasets, _ = data_set()
    sound = BytesIO()
    soundfile.write(sound, np.sin(np.arange(4_000) * 0.1) / 2, 16_000, format="FLAC")
    column = [{"bytes": sound.getvalue(), "path": "a.flac"}] * 2
    rows = datasets.Dataset.from_dict({"text": ["", "who ?"], "audio": column, "answer": ["one", "two"]})
    rows.cast_column("audio", datasets.Audio(decode=False)).save_to_disk(str(tmp_path / "set"))
    inside, _ = hub.load_prompts(f"hf:{tmp_path / 'set'}@train")
    assert read_audio(inside.media[0]).samples.shape == (1, 4_000)
    one, two = hub.load_prompts(f"hf:{tmp_path / 'set'}@train", tmp_path / "media")
    assert len(list((tmp_path / "media").iterdir())) == 1 and one.media == two.media
    assert one.media[0].source.endswith(".flac") and len(soundfile.read(one.media[0].source)[0]) == 4_000
    assert (one.text, one.answer, two.text, two.answer) == ("", "one", "who ?", "two")


def test_rows_of_a_data_set_that_cannot_be_read_are_named(tmp_path):
    datasets, _ = data_set()
    png = BytesIO()
    Pil.new("RGB", (4, 4)).save(png, "PNG")
    files = [{"bytes": png.getvalue(), "path": "a.png"}, {"bytes": b"no picture", "path": "b.png"}]
    datasets.Dataset.from_dict({"text": ["a", "b"], "image": files}).save_to_disk(str(tmp_path / "bad"))
    good, bad = hub.load_prompts(f"hf:{tmp_path / 'bad'}@train")
    assert decode_image(good.media[0].source).pixels.shape == (3, 4, 4)
    with pytest.raises(ValueError, match="bad@train::1:image/bytes"):
        decode_image(bad.media[0].source)
    datasets.Dataset.from_dict({"caption": ["a"]}).save_to_disk(str(tmp_path / "none"))
    with pytest.raises(ValueError, match="none@train:0.*'text'"):
        hub.load_prompts(f"hf:{tmp_path / 'none'}@train")
    with pytest.raises(ValueError, match="hf:.*@"):
        hub.load_prompts("hf:somewhere/something")


def test_paths_in_a_data_set_are_of_its_folder(tmp_path):
    datasets, _ = data_set()
    rows = {"text": ["a"], "image": [{"bytes": None, "path": "pictures/a.png"}], "video": ["c.mp4"]}
    datasets.Dataset.from_dict(rows).save_to_disk(str(tmp_path / "set"))
    (prompt,) = hub.load_prompts(f"hf:{tmp_path / 'set'}@train")
    assert [m.source for m in prompt.media] == [str(tmp_path / "set" / name) for name in ("pictures/a.png", "c.mp4")]


def test_files_are_read_through_the_same_door(tmp_path):
    (tmp_path / "a.txt").write_text("one\ntwo")
    assert hub.load_prompts(tmp_path / "a.txt") == load_prompts(tmp_path / "a.txt")


def test_a_clip_needs_no_text():
    made = prompt_of({"audio": "a.flac", "answer": "yes"}, "row 0", "0")
    assert made == prompt_of({"audio": "a.flac", "text": "", "answer": "yes"}, "row 0", "0")
    assert (made.text, made.answer, [medium.source for medium in made.media]) == ("", "yes", ["a.flac"])


def test_media_of_a_column_open_the_first_user_turn_and_all_turns_stay():
    says = [("system", "s"), ("user", "q"), ("assistant", "a"), ("user", "r")]
    row = {"messages": [{"role": role, "content": text} for role, text in says], "image": "a.png"}
    [prompt] = as_prompts([row])
    assert [(turn.role, turn.parts[-1]) for turn in prompt.turns] == says
    assert [len(turn.parts) for turn in prompt.turns] == [1, 2, 1, 1] and prompt.turns[1].parts[0].source == "a.png"


HI = {"messages": [{"role": "user", "content": "hi"}]}
LAYOUTS = [HI, {"conversations": [{"from": "human", "value": "hi"}]}, {"prompt": HI["messages"]}, {"problem": "hi"}]


@pytest.mark.parametrize("key", ["system", "system_prompt"])
@pytest.mark.parametrize("row", LAYOUTS)
def test_a_system_prompt_in_a_key_of_its_own_is_the_first_turn(row, key):
    prompt = prompt_of({key: "Be brief.", **row}, "row", "0")
    assert prompt.turns == (Turn("system", ("Be brief.",)), Turn("user", ("hi",)))
    assert prompt.text == "hi" and not prompt.meta
    assert prompt_of({key: "", **row}, "row", "0") == prompt_of(row, "row", "0")


def test_a_row_has_one_system_prompt_and_no_tools():
    turns = [{"role": "system", "content": "a"}, *HI["messages"]]
    with pytest.raises(ValueError, match="row.*'system'.*system turn"):
        prompt_of({"system": "b", "messages": turns}, "row", "0")
    for tools in ([{"name": "search"}], '[{"name": "search"}]'):
        for row in LAYOUTS:
            with pytest.raises(ValueError, match="row.*'tools'.*search"):
                prompt_of({**row, "tools": tools}, "row", "0")
            with pytest.raises(ValueError, match=r"sampling\.tools"):
                prompt_of({**row, "tools": tools}, "row", "0")
    assert prompt_of({**HI, "tools": []}, "row", "0") == prompt_of(HI, "row", "0")


def test_settings_add_a_system_prompt_and_words_around_the_question():
    asking = "{text} Answer in <answer> </answer>."
    plain, told = apply_wording(Prompt("hi"), template=asking), apply_wording(Prompt("hi"), "Be brief.", asking)
    assert plain == Prompt("hi Answer in <answer> </answer>.")
    assert told.turns == (Turn("system", ("Be brief.",)), Turn("user", (plain.text,))) and told.text == plain.text
    own = prompt_of({"system": "Be long.", **HI}, "row", "0")
    assert apply_wording(own, "Be brief.").turns == own.turns, "a row's own wins"
    picture = Media("image", "a.png")
    seen = Prompt("hi", turns=(Turn("user", ("earlier",)), Turn("assistant", ("so",)), Turn("user", (picture, "hi"))))
    asked = apply_wording(seen, template="Q: {text}!")
    assert asked.turns[:2] == seen.turns[:2] and asked.turns[2].parts == (picture, "Q: hi!")
    assert apply_wording(Prompt("", turns=(Turn("user", (picture,)),)), template="{text} what?").turns[0].parts == (
        picture,
        " what?",
    )


@pytest.mark.parametrize("read", [load_prompts, lambda path: list(load_stored(path))])
def test_rows_of_llava_that_share_an_id_are_parted_by_their_line(read, tmp_path):
    rows = [{"id": "33471", "conversations": [{"from": "human", "value": text}]} for text in ("what?", "where?")]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [prompt.id for prompt in read(path)] == ["33471:1", "33471:2"]
    path.write_text("".join(json.dumps({"id": "33471", "text": row}) + "\n" for row in "ab"))
    with pytest.raises(ValueError, match=r"rows\.jsonl:2.*'33471'"):
        read(path)


# --- histories with calls of tools -----------------------------------------------------------------

CALL = {"id": "call00001", "type": "function", "function": {"name": "look", "arguments": {"place": 3}}}
ASKED = {"role": "user", "content": "where is it?"}


def calling(content=None, arguments='{"place": 3}', **more):
    function = {"name": "look", "arguments": arguments}
    return {"role": "assistant", "content": content, "tool_calls": [{**CALL, "function": function}], **more}


TOLD = {"role": "tool", "content": "at home", "name": "look", "tool_call_id": "call00001"}


def test_calls_and_results_are_turns_with_their_keys():
    thought = calling("I look.", {"place": 3}, reasoning_content="hm", refusal=None, audio=None)
    row = {"messages": [{"role": "developer", "content": "Be brief."}, ASKED, calling(), TOLD, thought, TOLD]}
    prompt = prompt_of(row, "row", "0")
    told = Turn("tool", ("at home",), {"name": "look", "tool_call_id": "call00001"})
    assert prompt.turns == (
        Turn("system", ("Be brief.",)),
        Turn("user", ("where is it?",)),
        Turn("assistant", (), {"tool_calls": [CALL], "content": None}),
        told,
        Turn("assistant", ("I look.",), {"tool_calls": [CALL], "reasoning_content": "hm"}),
        told,
    )
    assert prompt.text == "where is it?" and prompt.answer is None
    (empty,) = prompt_of({"messages": [ASKED, calling(""), TOLD]}, "row", "0").turns[1:2]
    assert empty == Turn("assistant", (), {"tool_calls": [CALL]})
    # Column stores fill what is absent with null, and calls with none.
    filled = {**ASKED, "tool_calls": None, "name": None}, {**TOLD, "tool_calls": []}
    assert prompt_of({"messages": [filled[0], calling(), filled[1]]}, "row", "0").turns[2] == told


def test_a_last_turn_that_calls_tools_is_the_answer():
    row = {"messages": [ASKED, calling("I look.")]}
    wanted = 'I look.\n<tool_call>\n{"name": "look", "arguments": {"place": 3}}\n</tool_call>'
    assert prompt_of(row, "row", "0").answer == wanted


@pytest.mark.parametrize(
    ("turn", "named"),
    [
        (calling(arguments="place 3"), "arguments"),
        (calling(arguments="[3]"), "arguments"),
        (calling(arguments=3), "3"),
        ({**calling(), "tool_calls": {"name": "look"}}, "tool_calls"),
        ({**calling(), "tool_calls": [{"function": {"arguments": {}}}]}, "tool_calls"),
        ({**calling(), "role": "user"}, "tool_calls"),
        ({**ASKED, "weight": 3}, "'weight'"),
        ({**ASKED, "name": 3}, "name"),
        ({"role": "assistant", "content": None}, "content"),
        ({"role": "assistant", "content": None, "tool_calls": []}, "content"),
    ],
)
def test_a_turn_that_is_no_call_says_so(turn, named):
    with pytest.raises(ValueError, match=f"row: turn 2.*{named}"):
        prompt_of({"messages": [ASKED, turn, ASKED]}, "row", "0")


def test_a_template_of_the_prompt_stands_around_the_last_words_of_the_user():
    prompt = apply_wording(prompt_of({"messages": [ASKED, calling(), TOLD]}, "row", "0"), template="Q: {text}!")
    assert prompt.turns[0].parts == ("Q: where is it?!",) and prompt.turns[2].parts == ("at home",)
