"""Judges see what an output was made from: the media of its prompt, before the output, for every reward that asks."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from PIL import Image as Pil

from mmgrpo.rewards import scorer
from mmgrpo.scoring.fitting import row_objection
from mmgrpo.scoring.manifest import Manifest
from mmgrpo.types import Audio, Image, Media, Prompt, Text, Turn, Video
from reward_models import REWARDS
from reward_models.judges import pairwise, pointwise, thoughts, tournament, unified
from reward_models.judges.local import LocalJudge
from reward_models.judges.question import KEEP, Question, sources_of
from tests.faults.bad_media import clip
from tests.libraries.reward_models.judges.served import chat_server
from tests.libraries.reward_models.judges.test_local import Network, Processor


def flat(level: float) -> Image:
    return Image(torch.full((3, 4, 4), level))


DAY, NIGHT, OTHER = flat(0.9), flat(0.1), flat(0.5)
BROKEN = Image(torch.full((3, 4, 4), torch.nan))


def about(*media: Media, text: str = "make it night") -> Prompt:
    return Prompt(text, "row 7", "A", turns=(Turn("user", (*media, text)),))


def given(*images: Image) -> Prompt:
    return about(*(Media("image", one) for one in images))


class Comparing:
    """A judge that compares the pixels of the first image with those of the last; it keeps its questions."""

    def __init__(self) -> None:
        self.asked: list[Question] = []

    def _kept(self, question: Question) -> bool:
        images = [part for part in question.parts if isinstance(part, Image)]
        return len(images) > 1 and float((images[0].pixels - images[-1].pixels).abs().mean()) < 0.1

    def answers(self, questions, tokens):
        self.asked += questions
        return [f"Score: {5 if self._kept(question) else 1}" for question in questions]

    def log_probs(self, questions, words):
        self.asked += questions
        return [[math.log(0.9 if self._kept(question) else 0.1)] * len(words) for question in questions]


@pytest.fixture
def judge(monkeypatch):
    one = Comparing()
    for module in (pointwise, pairwise, unified, thoughts):
        monkeypatch.setattr(module, "judge_named", lambda text, device: one)
    return one


def test_repainting_everything_does_not_score_as_an_edit_that_keeps_its_source(judge):
    prompts = [given(DAY), given(DAY)]
    kept, repainted = pointwise.judge_score(prompts, [DAY, NIGHT], judge="")
    assert (kept, repainted) == (1.0, 0.0)
    assert pointwise.vqascore(prompts, [DAY, NIGHT], judge="") == pytest.approx([0.9, 0.1])


JUDGED = {
    "judge_score": ({}, "Image"),
    "judge_rubric": ({"criteria": ["light"]}, "Image"),
    "vqascore": ({}, "Image"),
    "unified_reward": ({}, "Image"),
    "judge_pairs": ({}, "Image"),
    "position_consistency": ({}, "Image"),
    "unified_reward_pairs": ({}, "Image"),
    "judge_tournament": ({}, "Image"),
    "judge_one": ({}, "Image"),
    "judge_answer": ({}, "Text"),
    "judge_steps": ({}, "Text"),
    "judge_last_step": ({}, "Text"),
    "judge_continuation": ({}, "Text"),
    "listener": ({}, "Text"),
}
ANSWERS = {"Image": [NIGHT, OTHER], "Text": [Text("<think>dark</think> A"), Text("<think>light</think> B")]}


def ask(name: str, prompt: Prompt, **more: Any) -> None:
    """Score two outputs of a prompt."""
    module, _, function = REWARDS[name].function.partition(":")
    fn = getattr({one.__name__: one for one in (pointwise, pairwise, unified, tournament, thoughts)}[module], function)
    fn([prompt, prompt], ANSWERS[JUDGED[name][1]], judge="", **JUDGED[name][0], **more)


@pytest.mark.filterwarnings("ignore:judge")
@pytest.mark.parametrize("name", JUDGED)
def test_every_judge_that_reads_the_prompt_sees_its_media_first_and_in_order(name, judge):
    stated = REWARDS[name].read_manifest()
    assert stated is not None and "media" in stated.reads and stated.version >= 2
    made = JUDGED[name][1] == "Image"
    ask(name, given(DAY, BROKEN))
    assert judge.asked == [], "what cannot be shown is not judged"
    ask(name, given(DAY, flat(0.2)))
    assert judge.asked
    for question in judge.asked:
        images = [part for part in question.parts if isinstance(part, Image)]
        assert [float(one.pixels.mean()) for one in images[:2]] == pytest.approx([0.9, 0.2])
        assert len(images) > 2 if made else len(images) == 2
        titles = [question.parts[place - 1] for place, one in enumerate(question.parts) if isinstance(one, Image)]
        if name != "listener":  # as published: images, then the text
            expected = ["Source image {}:" if made else "Image {} of the prompt:"] * 2
            assert titles[:2] == [text.format(number) for number, text in enumerate(expected, 1)]
            assert all(title.startswith("Output") for title in titles[2:])
            assert (KEEP in question.parts) is made
    if name != "listener":
        judge.asked.clear()
        ask(name, given(DAY), media=False)
        without = [question.parts for question in judge.asked]
        judge.asked.clear()
        ask(name, Prompt("make it night", "row 7", "A"))
        assert without == [question.parts for question in judge.asked], "as for a prompt without media"


def test_the_questions_of_an_edit_word_for_word(judge):
    pointwise.judge_score([given(DAY)], [NIGHT], judge="", ask_for="How good?")
    pointwise.vqascore([given(DAY)], [NIGHT], judge="")
    score, yes = (question.parts for question in judge.asked)
    assert score[:-1] == ("Prompt:\nmake it night", "Source image:", DAY, KEEP, "Output:", NIGHT)
    assert score[-1].startswith("How good?")
    assert yes[:-1] == ("Source image:", DAY, KEEP, "Output:", NIGHT)
    assert '"make it night"' in yes[-1] and yes[-1].endswith("Yes or No.")


@pytest.mark.filterwarnings("ignore:judge")
def test_published_questions_of_edits_have_the_source_before_the_outputs_and_no_titles(judge):
    unified.unified_reward_pairs([given(DAY)] * 2, [NIGHT, OTHER], "", both_orders=False, question="Edit: {prompt}")
    unified.unified_reward([given(DAY)], [NIGHT], "", question="Edit: {prompt}")
    # edit_pairwise_rank.py and edit_pointwise_instruction_following.py of CodeGoat24/UnifiedReward at 57aabd3c
    assert judge.asked[0].parts == (DAY, NIGHT, OTHER, "Edit: make it night")
    assert judge.asked[-1].parts[:3] == (DAY, NIGHT, "Edit: make it night")


def test_a_first_frame_is_shown_before_the_frames_of_a_clip(judge):
    video = Video(torch.stack([flat(level / 20).pixels for level in range(20)]), 8.0)
    pointwise.judge_score([given(DAY)], [video], judge="")
    (question,) = judge.asked
    images = [part for part in question.parts if isinstance(part, Image)]
    assert images[0] is DAY and len(images) == 1 + 8


def shown(medium: Media) -> list[float]:
    (parts,) = sources_of([about(medium)], [Text("a")])
    assert parts is not None and parts[0] == f"{medium.kind.capitalize()} of the prompt:"
    return [round(float(part.pixels.mean()), 2) for part in parts if isinstance(part, Image)]


def test_media_are_read_from_files_and_from_memory(tmp_path):
    files = []
    for number in range(10):
        files.append(str(tmp_path / f"{number}.png"))
        Pil.new("RGB", (4, 4), (number * 25,) * 3).save(files[-1])
    assert shown(Media("image", files[4])) == [round(100 / 255, 2)]
    steps = [round(25 * n / 255, 2) for n in (0, 1, 3, 4, 5, 6, 8, 9)]
    assert shown(Media("video", tuple(files))) == steps
    frames = torch.stack([torch.full((3, 4, 4), n * 25 / 255) for n in range(10)])
    assert shown(Media("video", Video(frames, 1.0))) == steps
    for medium in (Media("video", Video(frames, 1.0), {"start": 2, "end": 4}), Media("video", tuple(files))):
        part = Media("video", medium.source, {"start": 2, "end": 4, "fps": 1.0})
        assert shown(part) == [round(25 * n / 255, 2) for n in (2, 3, 4)]


def test_a_video_file_is_shown_by_eight_of_its_frames_between_its_times(tmp_path):
    pytest.importorskip("av")
    clip(tmp_path / "a.mp4", frames=32)  # 4 s
    assert len(shown(Media("video", str(tmp_path / "a.mp4")))) == 8
    assert len(shown(Media("video", str(tmp_path / "a.mp4"), {"start": 1.0, "end": 1.5}))) == 5
    with pytest.raises(OSError, match="no frame from 9"):
        shown(Media("video", str(tmp_path / "a.mp4"), {"start": 9.0}))


def test_a_file_is_decoded_once_for_all_outputs_of_its_prompt(tmp_path, monkeypatch):
    Pil.new("RGB", (4, 4)).save(tmp_path / "a.png")
    prompt = about(Media("image", str(tmp_path / "a.png")))
    one, other = sources_of([prompt, prompt], [DAY, NIGHT])
    assert one is other


def test_audio_which_no_judge_hears_is_refused_before_a_run():
    spoken = about(Media("audio", Audio(torch.zeros(1, 8), 8000)))
    with pytest.raises(ValueError, match="row 7.*audio.*media=False"):
        sources_of([spoken], [Text("a")])
    judge = "judge=\"chat(url='http://127.0.0.1:1/v1', model='m')\""
    assert "row 7" in row_objection(scorer(f"judge_score({judge})"), spoken)
    assert not row_objection(scorer(f"judge_score({judge}, media=False)"), spoken)
    assert not row_objection(scorer(f"judge_score({judge})"), given(DAY))
    assert "row 8" in row_objection(scorer(f"judge_score({judge})"), Prompt("", "row 8"))


def test_a_local_model_and_a_server_are_given_the_source_before_the_output(monkeypatch):
    processor = Processor()
    local = LocalJudge(Network(8), processor, 2, torch.device("cpu"))
    monkeypatch.setattr(pointwise, "judge_named", lambda text, device: local)
    with pytest.warns(UserWarning, match="judge"):
        pointwise.judge_score([given(DAY)], [NIGHT], judge="", label="Mark 1")
    (text,), count = processor.given[0]
    assert count == 2 and text.index("Source image: <picture>") < text.index("Output: <picture>")
    with chat_server(lambda body, number: "Score: 4") as server:
        one = scorer(f"judge_score(judge=\"chat(url='{server.url}', model='m')\")")
        monkeypatch.undo()
        assert one.fn([given(DAY)], [NIGHT]) == [0.75]
    kinds = [part.get("text", "image") for part in server.bodies[0]["messages"][0]["content"]]
    assert kinds[1:6] == ["Source image:", "image", KEEP, "Output:", "image"]


def manifest(spec: str) -> Manifest:
    one = scorer(spec).manifest
    assert one is not None
    return one


def reads(spec: str) -> set[str]:
    return {*manifest(spec).reads}


def test_a_reward_reads_what_the_reward_reads_that_it_asks():
    judge = "judge=\"chat(url='http://127.0.0.1:1/v1', model='m')\""
    assert reads("frames(reward='pickscore')") == {"text"}
    assert reads(f"frames(reward={f'vqascore({judge})'!r})") == {"text", "media"}
    assert reads(f"frames(reward={f'vqascore({judge}, media=False)'!r})") == {"text"}
    assert reads("by_task(tasks=['a'], reward='speaker_similarity')") == {"task", "media"}
    assert reads("win_rate(reward='frames(reward=\"pickscore\")')") == {"text"}
    own = f"{test_a_reward_reads_what_the_reward_reads_that_it_asks.__module__}:brightness(process=False)"
    assert reads(f"frames(reward={own!r})") == {"reward"}


def test_scores_of_a_reward_that_asks_another_are_cached_by_the_versions_of_both():
    judge = "judge=\"chat(url='http://127.0.0.1:1/v1', model='m')\""
    assert manifest("frames(reward='pickscore')").version == 1
    assert manifest(f"frames(reward={f'vqascore({judge})'!r})").version == manifest(f"vqascore({judge})").version == 2


def brightness(prompts, outputs):
    return [float(output.pixels.mean()) for output in outputs]
