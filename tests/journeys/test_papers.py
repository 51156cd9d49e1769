"""Records of papers name only what exists; the list and the explanations are made from them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise

import pytest

from mmgrpo.catalogue.papers import AREAS, Paper, papers, read
from mmgrpo.cli import explain, main
from mmgrpo.cli.explain import tables
from mmgrpo.config.presets import CATALOGUE
from mmgrpo.config.registry import Block, bind
from tests import ROOT


@cache
def source(file: str) -> str:
    return (ROOT / "tests" / file).read_text(encoding="utf-8")


def missing(paper: Paper) -> Iterator[str]:
    """Names of a record that nothing has."""
    named = tables()
    for kind, text in ((kind, text) for kind, texts in paper.uses.items() for text in texts):
        name = text.partition("(")[0]
        if name not in named.get(kind, ()):
            yield f"{kind} {name}"
        elif name != text and isinstance(named[kind][name], Block):
            bind(text, named[kind], f"{paper.id}: {kind}")
    for test in paper.tests:
        file, _, name = test.partition("::")
        if not (ROOT / "tests" / file).is_file() or f"\ndef {name}(" not in source(file):
            yield test


def test_what_a_record_names_exists() -> None:
    assert {paper.id: wrong for paper in papers().values() if (wrong := [*missing(paper)])} == {}


def test_what_does_not_exist_is_found() -> None:
    paper = Paper("a", "core", "A", "works", uses={"preset": ["grpo", "gpro"], "kind": ["x"]}, tests=["a.py::test_a"])
    assert list(missing(paper)) == ["preset gpro", "kind x", "a.py::test_a"]
    with pytest.raises(ValueError, match="a: objective.*'lo'.*'low'"):
        list(missing(Paper("a", "core", "A", "works", uses={"objective": ["ppo(lo=1)"]})))


def test_a_status_says_whether_something_is_there() -> None:
    for paper in papers().values():
        here = paper.status != "not yet"
        assert bool(paper.uses or paper.settings or paper.how) == here == bool(paper.tests), paper.id
        assert paper.status in ("works", "core") or paper.missing or paper.differs, f"{paper.id}: what is missing?"
        assert re.fullmatch(r"(\d{4}\.\d{4,5})?", paper.arxiv), paper.id


@pytest.mark.parametrize("area", AREAS)
def test_records_stand_in_the_order_of_their_ids(area: str) -> None:
    names = [name for name, paper in papers().items() if paper.area == area]
    assert [pair for pair in pairwise(names) if pair[0] >= pair[1]] == []
    assert all(re.fullmatch(r"[a-z0-9_]+", name) for name in names)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1", "a.*title and status"),
        ("a: {title: b, status: works, test: []}", "a: unknown field 'test'.*'tests'"),
        ("a: {title: b, status: works, arxiv: 2501.10}", "a: arxiv is 2501.1"),
        ("a: {title: b, status: done}", "a: .*'done'.*works"),
    ],
)
def test_what_is_no_record_is_refused_by_its_name(text, message, tmp_path) -> None:
    (tmp_path / "core.yaml").write_text(text)
    with pytest.raises(ValueError, match=f"core.yaml: {message}"):
        list(read(tmp_path / "core.yaml"))


# ---- commands


def test_papers_are_listed_by_status_area_and_words(capsys) -> None:
    main.run(["papers", "--status", "works", "core", "--area", "visual", "--search", "PRESET", "dance_grpo"])
    *lines, total = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("  dance_grpo  works: ") and total.startswith("1 of ")
    main.run(["papers", "PRESET", "dance_grpo", "--area", "visual"])
    assert capsys.readouterr().out.splitlines()[:-2] == lines[:-1]
    main.run(["papers"])
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    assert listed == [*papers()]
    with pytest.raises(ValueError, match="none of"):
        main.run(["papers", "--search", "no such word anywhere"])


@pytest.mark.parametrize("name", CATALOGUE)
def test_a_preset_is_explained_with_its_numbers_and_every_formula(name: str) -> None:
    text = explain.explain(name)
    assert text.startswith(f"preset {name}: ") and f"mmgrpo train --algorithm.preset {name}" in text
    named = tables()
    for line, value in CATALOGUE[name].blocks.items():
        for block in value if isinstance(value, list) else [value]:
            if line not in ("keys", "parts") and block != "none":
                assert explain.with_defaults(block, named[explain.LINES.get(line, line)]) in text


def test_a_block_a_reward_a_recipe_and_a_paper_are_explained() -> None:
    dapo = explain.explain("dapo")
    assert "* objective: ppo(low=0.2, high=0.28)" in dapo and "clip(r, 1 - low, 1 + high)" in dapo
    assert "arXiv:2503.14476" in dapo and "clip 0.2 / 0.28" in dapo and "\npaper dapo: " in dapo
    assert "arXiv:2405.21046" in explain.explain("xpo")  # of a preference too
    assert "--algorithm.networks 'frozen(path=...)'" in explain.explain("va_opd")
    assert explain.explain("kl_k3").startswith("term kl_k3(")
    assert {"group_mean", "none", "(RLOO,"} <= {*explain.explain("baseline").split()}  # of a kind, all
    assert explain.explain("jpeg_compressibility").startswith("reward jpeg_compressibility\n")
    assert "mmgrpo train --recipe visual/ddpo" in explain.explain("visual/ddpo")
    with pytest.raises(ValueError, match="'flow_gpro'.*'flow_grpo'"):
        explain.explain("flow_gpro")


def test_of_two_presets_the_lines_that_differ_are_shown(capsys) -> None:
    main.run(["explain", "grpo", "dapo"])
    _, *parts = capsys.readouterr().out.strip().split("\n\n")
    shown = {line: [row.split(maxsplit=1) for row in rows] for line, *rows in (part.splitlines() for part in parts)}
    assert shown == {
        "algorithm.select": [["grpo", "none"], ["dapo", "drop_zero_spread"]],
        "algorithm.sampler": [["grpo", "none"], ["dapo", "dynamic_sampling(rounds=10)"]],
        "algorithm.objective": [["grpo", "ppo(low=0.2, high=0.2)"], ["dapo", "ppo(low=0.2, high=0.28)"]],
        "algorithm.aggregation": [["grpo", "per_sample"], ["dapo", "per_decision"]],
        "algorithm.terms": [["grpo", "kl_k3(coef=0.04)"], ["dapo", "none"]],
    }
    settings = explain.difference("flow_grpo", "branch_grpo")
    assert "sampling.steps" in settings and "data.group_size" in settings and "sampling.policy" not in settings
    assert "algorithm" not in explain.difference("grpo", "grpo")
    with pytest.raises(ValueError, match="'dpao'.*'dpo'"):
        explain.difference("grpo", "dpao")


def test_a_paper_is_explained_with_a_command_and_its_tests() -> None:
    for paper in papers().values():
        text = explain.record(paper)
        assert text.startswith(f"paper {paper.id}: ") and all(test in text for test in paper.tests)
        assert ("mmgrpo train" in text) or not {"preset", "recipe", "reward", "objective"} & paper.uses.keys()
    verpo, mixed = (explain.command(papers()[name]) for name in ("verpo", "grpo_lead"))
    assert verpo == (
        "mmgrpo train --algorithm.scale none --rewards 'code_weighted(alpha=..., sigma=..., delta=...)' task"
    )  # what has to be filled in
    assert mixed == "mmgrpo train --algorithm.preset grpo_lead --algorithm.transform short_right"
    assert explain.reward_with_required("judge_steps(weight=0)") == "judge_steps(weight=0, judge=...)"
    assert explain.reward_with_required("jpeg_compressibility") == "jpeg_compressibility"
