"""Listings line up and can be searched."""

from __future__ import annotations

import pytest

from mmgrpo.cli import lists
from mmgrpo.cli.lists import KINDS, OTHERS, SEVERAL, about, first_sentence, needs, show
from mmgrpo.rewards import RewardEntry
from mmgrpo.scoring.manifest import Manifest

ROWS = [("One", "a", "the first"), ("Two", "longer", "the second"), ("One", "lone", "")]


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_reads_nothing(option, capsys):
    show(lambda: pytest.fail("read"), [option], "things")
    assert capsys.readouterr().out.startswith("usage: mmgrpo things [PART OF A NAME]")


def test_what_no_name_contains_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match="things.*'longr'.*'longer'"):
        show(lambda: ROWS, ["longr"], "things")


# ---- recipes and rewards


@pytest.mark.parametrize(
    ("comment", "sentence"),
    [
        ("# A recipe. And more.\n", "A recipe"),
        ("# A recipe: of two\n# lines.\n", "A recipe"),
        ("# A recipe of two\n# lines (as said)\nsteps: 3\n# Not this.\n", "A recipe of two lines"),
        ("#   One line.\n", "One line"),
        ("steps: 3\n# nothing\n", ""),
    ],
)
def test_a_recipe_is_described_by_the_first_clause_of_its_comment(comment, sentence, tmp_path):
    (tmp_path / "a.yaml").write_text(comment)
    assert first_sentence(tmp_path / "a.yaml") == sentence


def test_a_recipe_is_listed_with_its_model_its_rewards_and_its_memory(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("model: {family: sd3, path: a/b}  # 24 GB\nrewards: ['x(of=1)', 'y(weight=0)', 'z']\n")
    assert needs(path) == "a/b; x, z; 24 GB"
    path.write_text("model: {family: duration}\n")
    assert needs(path) == "duration"


def plain(prompts, outputs):
    return [0.0] * len(outputs)


def spoken(prompts, outputs):
    """Counts ``words`` of
    a text; slowly. It is an example."""
    return [0.0] * len(outputs)


MANIFEST = Manifest(
    ("Text", "Audio"),
    scale="words",
    reads=("text", "answer"),
    group=True,
    packages=("there_is_no_such_package",),
    weights={"a/b": (), "c/d": ()},
    licence="MIT",
    source="a paper",
    version=3,
)
OWN = "tests.journeys.cli.test_lists"
ENTRIES = {
    "plain": RewardEntry(f"{OWN}:plain"),
    "words": RewardEntry(f"{OWN}:spoken", manifest=MANIFEST),
    "words_here": RewardEntry(f"{OWN}:spoken", manifest=Manifest(("Text",), low=-1, high=2)),
}


@pytest.fixture
def table(monkeypatch):
    monkeypatch.setattr("mmgrpo.rewards.entries", lambda: ENTRIES)


def test_rewards_are_listed_with_what_they_score_and_what_is_missing(table, capsys):
    lists.rewards([])
    missing = "[not here: needs the package there_is_no_such_package: pip install there_is_no_such_package]"
    assert capsys.readouterr().out.splitlines() == [
        *(KINDS[1], "  words_here  -1 to 2: Counts words of a text", ""),
        *(SEVERAL, f"  words       Text, Audio, 0 to 1: Counts words of a text {missing}", ""),
        *(OTHERS, "  plain       tests.journeys.cli.test_lists:plain"),
    ]


def test_the_card_of_a_reward_has_all_of_its_facts(table, capsys):
    lists.rewards(["words"])
    assert capsys.readouterr().out.splitlines() == [
        "words",
        "  what      Counts words of a text",
        "  function  tests.journeys.cli.test_lists:spoken",
        "  scores    Text, Audio",
        "  range     0 to 1 (words)",
        "  reads     text, answer",
        "  compares  the outputs of a prompt with each other",
        "  weights   a/b, c/d",
        "  licence   MIT",
        "  source    a paper",
        "  version   3",
        "  here      needs the package there_is_no_such_package: pip install there_is_no_such_package",
    ]
    lists.rewards(["words_here"])
    assert capsys.readouterr().out.splitlines()[3:] == [
        "  scores    Text",
        "  range     -1 to 2",
        "  version   1",
        "  here      can be computed",
    ]
    lists.rewards(["plain"])
    assert capsys.readouterr().out.splitlines() == ["plain", "  function  tests.journeys.cli.test_lists:plain"]


def test_several_words_are_parts_of_names(table, capsys):
    lists.rewards(["words", "here"])
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]] == ["words_here"]


def test_help_of_the_rewards_reads_none(monkeypatch, capsys):
    monkeypatch.setattr("mmgrpo.rewards.entries", lambda: pytest.fail("read"))
    lists.rewards(["--help"])
    assert capsys.readouterr().out.startswith("usage: mmgrpo rewards [PART OF A NAME")


def test_a_function_of_a_package_is_not_searched_for_in_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mmgrpo_only_here.py").write_text("def reward(prompts, outputs):\n    return []\n")
    with pytest.raises(ValueError, match="'mmgrpo_only_here'"):
        about(RewardEntry("mmgrpo_only_here:reward"))
