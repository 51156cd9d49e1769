"""The small vision-language model: what it was told, how it read it, and what it can do."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from mmgrpo.cli import questions as written
from mmgrpo.cli.train import read
from mmgrpo.config.plugins import locate
from mmgrpo.toy import clips, questions
from mmgrpo.toy.clips import mixture
from mmgrpo.toy.questions import words
from scripts.pretrain import supervise
from scripts.pretrain.vlm import Args, Batches, conversation, create, measure
from tests.building import load
from tests.journeys.cli.running import call, summary

BASE = Path(locate("embedded:vlm/questions/base"))


def test_a_conversation_ends_with_all_that_is_shown():
    random = np.random.default_rng(0)
    things = questions.image(random)
    *asked, (last, told) = conversation(things, False, 3, random)
    assert last == "what is in the picture?" and told.count(" . ") == len(things) - 1 and 0 < len(asked) <= 3
    assert all(re.fullmatch("<answer> .+ </answer>", answer) for _, answer in asked)
    *_, (last, told) = conversation(clips.clip(random), True, 3, random)
    assert last == "what is in the clip?" and " moves " in told


def test_the_model_is_told_the_right_answers():
    random = np.random.default_rng(2)
    for _ in range(50):
        things = questions.image(random)
        for question, answer in conversation(things, False, 6, random)[:-1]:
            if about := re.fullmatch("draw a box around the (.*)", question):
                (thing,) = (thing for thing in things if thing.name == about[1])
                assert answer == f"<answer> {list(thing.box)} </answer>"
            if question == "how many shapes are there?":
                assert answer == f"<answer> {len(things)} </answer>"


def test_everything_that_is_said_is_in_the_vocabulary():
    random, known = np.random.default_rng(1), set(questions.vocabulary())
    for number in range(300):
        shown = clips.clip(random) if number % 3 == 0 else questions.image(random)
        for pair in conversation(shown, number % 3 == 0, 5, random):
            assert {word for text in pair for word in words(text)} <= known


def test_conversations_are_tokens_of_the_chat_template(tmp_path):
    pytest.importorskip("transformers")
    from mmgrpo.types import Prompt, Turn

    create(Args(width=32, layers=1, vision_width=32), tmp_path)
    model = load("qwen_vl", tmp_path)
    batches = Batches(model, Args())
    for prompt in mixture("train", 8):
        ids, labels = batches.tokens(
            [(prompt.text, "<answer> red </answer>"), ("where?", "left")], prompt.media[0].kind == "video",
            16 if prompt.media[0].kind == "image" else 64,
        )  # fmt: skip
        turns = (*prompt.turns, Turn("assistant", ("<answer> red </answer>",)), Turn("user", ("where?",)))
        wanted = model.encode([Prompt("", "x", turns=turns)]).ids[0].tolist()
        assert ids[: len(wanted)] == wanted
        learned = [one for one in labels if one != -100]
        assert model.tokenizer.decode(learned) == "<answer> red </answer> <|im_end|> left <|im_end|>"
        cut, _ = (
            batches.patches(prompt.media[0].source.pixels[None])
            if prompt.media[0].kind == "image"
            else batches.patches(prompt.media[0].source.frames)
        )
        assert torch.equal(cut, model.encode([prompt]).media[0][0].patches)


def test_the_network_learns_at_the_positions_at_which_it_will_answer(tmp_path):
    """Of pictures and clips, in a batch: those of the family, whatever the library would take."""
    pytest.importorskip("transformers")
    create(Args(width=32, layers=1, vision_width=32), tmp_path)
    model = load("qwen_vl", tmp_path)
    prompts = mixture("train", 8)
    shown = [
        (one.patches, one.grid, one.seconds, [(prompt.text, "<answer> red </answer>")])
        for prompt in prompts
        for one in model.encode([prompt]).media[0]
    ]
    inputs, _ = Batches(model, Args()).tensors(shown)
    positions = inputs["position_ids"]
    for row, prompt in enumerate(prompts):
        wanted = model.encode([prompt]).positions[0]
        assert torch.equal(positions[:, row, : wanted.shape[1]], wanted)
    clip = next(row for row, one in enumerate(shown) if one[1][0] > 1)
    drawn, _ = Batches(model, Args(images=0, clips=1)).draw(1)
    until = 3 + 64  # <|im_start|> user <|vision_start|>, and the clip
    assert torch.equal(drawn["position_ids"][:, 0, :until], positions[:, clip, :until])


def test_the_committed_base_is_small_whole_and_knows_the_words():
    pytest.importorskip("transformers")
    model = load("qwen_vl", BASE)
    assert set(questions.vocabulary()) <= set(model.tokenizer.get_vocab())
    assert sum(file.stat().st_size for file in BASE.iterdir()) < 8e6
    assert not any(key.startswith("_name") for key in json.loads((BASE / "config.json").read_text()))
    context = model.encode(mixture("heldout", 8))
    assert not (context.ids == model.tokenizer.unk_token_id).any()


def test_the_demo_starts_from_the_committed_base_and_the_questions_that_are_written():
    config = read(["--recipe", "vlm/demo"], "")
    assert Path(locate(config.model.path)) == BASE and config.rewards == ["task"]
    assert (config.data.train, config.data.heldout) == ("data/questions/train.jsonl", "data/questions/heldout.jsonl")
    # A question is met at most once: 250 steps of 16.
    assert config.steps * config.data.prompts_per_step <= written.Args().train


@pytest.mark.slow
def test_the_committed_base_has_something_to_learn_and_something_to_learn_from():
    pytest.importorskip("transformers")
    args = Args(output=BASE, questions=160)
    greedy, sampled = (measure(args, "tune", temperature)["all"] for temperature in (0.0, 1.0))
    # 0.27 and 0.26 when it was made.
    assert 0.2 < greedy < 0.4 and 0.2 < sampled < 0.37


@pytest.mark.nightly
def test_more_supervised_training_stands_beside_a_run(tmp_path, monkeypatch, capsys):
    def script(main, *arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", ["script", *map(str, arguments)])
        main()
        return capsys.readouterr().out

    script(written.main, "--output", tmp_path / "data", "--train", 16, "--tune", 8, "--heldout", 16)
    files = ["--data.train", tmp_path / "data" / "train.jsonl", "--data.heldout", tmp_path / "data" / "heldout.jsonl"]
    few = ["--steps", 1, "--data.prompts-per-step", 2, "--data.group-size", 2, "--threads", 1]
    call("train", "--recipe", "vlm/demo", "--output-dir", tmp_path, "--name", "run", *files, *few)
    printed = script(supervise.main, "--run", tmp_path / "run", "--seconds", 1)
    result = summary(tmp_path / "run")
    beside = result["supervised"]
    assert beside["steps"] >= 1 and beside["after"]["task"]["n"] == 16
    gap = result["eval"]["after"]["task"]["mean"] - beside["after"]["task"]["mean"]
    assert beside["against"]["task"]["mean"] == pytest.approx(gap)
    assert "of supervised training" in printed
    assert "supervised instead" in (tmp_path / "run" / "report.html").read_text()
