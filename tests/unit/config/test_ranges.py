"""Intervals, texts and choices; what a wrong setting is told; parameters of blocks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, get_origin

import pytest

from mmgrpo.advantages.estimate import CREDITS, SCALES, SELECTORS, SHAPES
from mmgrpo.config.ranges import (
    ANY_TEXT,
    CHECKPOINT,
    COUNT,
    DEVICE,
    LONG_TEXT,
    PATH_COMPONENT,
    SEED,
    _hints,
    check_ranges,
    fits,
    one_of,
    short_repr,
    within,
)
from mmgrpo.config.registry import Block, all_blocks, bind
from mmgrpo.config.settings import Config, Data, Distributed, Optim, install_tracker
from mmgrpo.objectives import MISMATCH, OBJECTIVES, TERMS
from mmgrpo.update import learning_rate


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("[0, 1)", [0, 0.0, 0.999], [-5e-324, 1, 1.0, math.nan, math.inf, -math.inf]),
        ("(0, 1]", [5e-324, 1], [0, 1 + 1e-15, math.nan]),
        ("[0, inf)", [0, 1e300, 10**400], [math.inf, math.nan, -1]),
        ("[0, inf]", [0, math.inf], [math.nan, -math.inf]),
        ("[0, 2^63)", [0, 2**63 - 1], [2**63, -1]),
        ("[1, 1e9]", [1, 10**9], [0, 10**9 + 1]),
    ],
)
def test_an_interval_contains_its_numbers_and_never_nan(text, inside, outside):
    assert [value for value in inside if value not in within(text)] == []
    assert [value for value in outside if value in within(text)] == []


def test_several_intervals_are_one_range():
    temperature = within("0", "[0.001, 1000]")
    assert 0 in temperature and 0.001 in temperature and 1e-4 not in temperature
    assert str(temperature) == "0 or a number in [0.001, 1000]"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"a": math.nan}, "^of.a.*nan"),
        ({"a": -math.inf}, "^of.a.*-inf"),
        ({"a": 2**63}, "^of.a.*9223372036854775808"),
        ({"a": "b\0"}, r"^of.a.*'b\\x00'"),
        ({"a\n": math.nan}, r"^of.a\\n.*nan"),
        ({"a\0": 1}, r"^of.*'a\\x00'"),
        ({"\ud800": 1}, r"^of.*'\\ud800'"),
        ({3: 1}, r"^of.*\{3: 1\}"),
        ({"a": None}, r"^of.*\{'a': None\}"),
        ([], r"^of.*\[\]"),
    ],
)
def test_a_mapping_has_texts_that_can_be_written_and_numbers_that_are_finite(given, message):
    @dataclass
    class Some:
        of: Annotated[dict[str, bool | int | float | str], ANY_TEXT]

    check_ranges(Some({"a": True, "b": -(2**63), "c": 1e300, "d": "text"}))
    with pytest.raises(ValueError, match=message):
        check_ranges(Some(given))


def test_a_seed_is_whatever_torch_and_numpy_take():
    import numpy as np
    import torch

    for seed in (0, 2**63 - 1):
        assert seed in SEED
        assert torch.Generator().manual_seed(seed).initial_seed() == seed
        np.random.default_rng(seed)


@pytest.mark.parametrize("name", ["run", "a b", ".hidden", "...", "é", "x" * 200, "step-1"])
def test_a_name_is_one_component_of_a_path(name):
    assert name in PATH_COMPONENT


@pytest.mark.parametrize(
    "name", [".", "..", "a/b", "/a", "a\\b", "a\0", "a\n", "-a", "x" * 201, "é" * 101, "\ud800", "a/", "../a"]
)
def test_a_name_that_leads_elsewhere_is_refused(name):
    assert name not in PATH_COMPONENT
    with pytest.raises(ValueError, match="^name"):
        check_ranges(replace(Config(), name=name))


@pytest.mark.parametrize(("text", "most"), [(ANY_TEXT, 4096), (LONG_TEXT, 2**20), (CHECKPOINT, 20)])
def test_a_text_is_as_long_as_its_error_says_and_no_longer(text, most):
    assert "1" * most in text and "1" * (most + 1) not in text
    assert "a\0" not in text


def test_devices_have_names():
    valid = ("auto", "cpu", "cuda", "cuda:0", "cuda:11", "mps", "xpu:1", "npu")
    assert [name for name in valid if name not in DEVICE] == []
    wrong = ("", "cdua", "CPU", "cuda:", "cuda:-1", "cpu:0", "cuda:1000", "gpu")
    assert [name for name in wrong if name in DEVICE] == []


@dataclass
class Inner:
    """A section."""

    share: Annotated[float, within("[0, 1]")] = 0.5
    words: Annotated[list[str], one_of("a", "b")] = ()  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (replace(Config(), steps=0), r"^steps.*0.*\[1, 1e9\]"),
        (replace(Config(), save_every=0), r"^save_every.*0.*\[1, 1e9\]"),
        (replace(Config(), threads=-1), r"^threads.*-1.*\[0, 1024\]"),
        (replace(Config(), seed=2**63), r"^seed.*9223372036854775808.*\[0, 2\^63\)"),
        (replace(Config(), trackers=["tensorbord"]), "^trackers.*'tensorbord'.*tensorboard"),
        (replace(Config(), optim=Optim(lr=math.inf)), r"^optim.lr.*inf.*\[0, 1000\]"),
        (replace(Config(), optim=Optim(beta2=1.0)), r"^optim.beta2.*1.0.*\[0, 1\)"),
        (replace(Config(), optim=Optim(beta1=-0.1)), r"^optim.beta1.*-0.1.*\[0, 1\)"),
        (replace(Config(), optim=Optim(max_grad_norm=-1.0)), "^optim.max_grad_norm.*-1.0"),
        (replace(Config(), optim=Optim(max_grad_norm=math.nan)), "^optim.max_grad_norm.*nan"),
        (replace(Config(), optim=Optim(ema_every=0)), r"^optim.ema_every.*0.*\[1, 1e9\]"),
        (replace(Config(), optim=Optim(decay="cosin")), "'cosin'.*constant, linear, cosine"),
        (replace(Config(), rewards=["\ud800"]), r"^rewards.*'\\ud800'"),
        (Inner(2.0), r"^share.*2.0.*\[0, 1\]"),
        (Inner(0.5, ["a", "c"]), "^words.*'c'.*a, b"),
    ],
)
def test_a_setting_out_of_range_is_told_what_is_expected(settings, message):
    with pytest.raises(ValueError, match=message):
        settings.check() if isinstance(settings, Config) else check_ranges(settings)


def test_a_warm_up_may_be_longer_than_the_run():
    """So that a recipe can be tried with a few steps; the learning rate then only rises."""
    config = replace(Config(), steps=4, optim=Optim(lr=1.0, warmup=100, decay="cosine"), trackers=[])
    config.check()
    assert [learning_rate(config.optim, step, config.steps) for step in range(4)] == [0.01, 0.02, 0.03, 0.04]


@pytest.mark.parametrize(
    ("shares", "setting"),
    [
        ({"data": Data(prompts_per_step=4)}, r"data\.prompts_per_step.*4.*3 processes"),
        ({"data": Data(prompts_per_step=3), "distributed": Distributed("full", 2)}, r"distributed\.replicate.*2.*3"),
        ({"data": Data(prompts_per_step=3), "distributed": Distributed("full", 3)}, r"distributed\.replicate.*3.*3"),
        ({"data": Data(prompts_per_step=3), "distributed": Distributed(sequence=2)}, r"distributed\.sequence.*2.*3"),
    ],
)
def test_what_three_processes_cannot_share_is_refused(shares, setting):
    shared = replace(Config(), **shares)
    shared.check()
    with pytest.raises(ValueError, match=setting):
        shared.check(3)


def test_a_tracker_that_is_not_installed_is_refused_with_the_package_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="trackers.*'comet_ml'.*pip install comet-ml"):
        replace(Config(), trackers=["comet_ml"]).check()
    for name in ("wandb", "trackio"):  # extras of ours
        assert f"[{name}]" in install_tracker(name) or f"'{name}>=" in install_tracker(name)


def test_the_optimizer_alone_is_checked_too():
    Optim().check()
    with pytest.raises(ValueError, match=r"^optim\.updates.*0.*\[1, 1e9\]"):
        Optim(updates=0).check()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (-(2**80), "-1208925819614629174706176"),
        ("a\nb", r"'a\nb'"),
        ({"a": [[[[[[[[1]]]]]]]]}, "{'a': [[[[[[...]]]]]]}"),
    ],
)
def test_a_value_in_an_error_is_short_and_in_one_line(value, expected):
    assert short_repr(value) == expected
    assert len(short_repr("x" * 5000)) == 100
    assert short_repr(10**40 - 1) == "9" * 40 and short_repr(-(10**40)) == "a number of about 40 digits"
    assert short_repr(10**5000) == "a number of about 5000 digits"  # which Python refuses to print


def scale(x: float, by: Annotated[float, within("(0, 1]")] = 1.0, shift: float = 0.0, count: int = 1) -> float:
    """A block."""
    return x * by + shift + count


TABLE: Mapping[str, Block] = {"scale": Block(scale)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("scale(by=0)", r"^demo.*by.*scale.*0.0.*\(0, 1\]"),
        ("scale(shift=-1)", r"^demo.*shift.*scale.*-1.0.*\[0, inf\)"),
        ("scale(shift=inf)", r"^demo.*shift.*scale.*inf.*\[0, inf\)"),
        ("scale(shift=1e999)", r"^demo.*shift.*scale.*inf.*\[0, inf\)"),
        ("scale(count=1.5)", "^demo.*count.*scale.*1.5"),
        ("scale(count=True)", "^demo.*count.*scale.*True"),
        ("scale(by='a')", "^demo.*by.*scale.*'a'"),
        ("scale(by=None)", "^demo.*by.*scale.*None"),
        ("scale(by=nan)", r"^demo.*'scale\(by=nan\)'"),
        (
            "scale(by=1, by=0.5)",
            r"^demo.*'scale\(by=1, by=0.5\)'",
        ),
        ("scale(by={[]: 1})", r"^demo.*'scale\(by=\{\[\]: 1\}\)'"),
        (f"scale(by={'-' * 4000}1)", r"^demo.*'scale\(by=----"),
        ("scale(", r"^demo.*'scale\('"),
    ],
)
def test_a_parameter_of_a_block_out_of_range_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        bind(text, TABLE, "demo")


def test_a_parameter_in_its_range_is_taken():
    assert bind("scale(by=1, shift=2, count=3)", TABLE, "demo")({"x": 4.0}) == 9.0


@pytest.mark.parametrize(
    ("kind", "taken", "refused"),
    [
        (Sequence[str], [[], ["a"], ("a", "b")], ["a", "", 1, None, [1], ["a", None], {"a": 1}]),
        (Mapping[str, float] | Sequence[str], [{"a": 2}, ["a"]], ["criteria", {"a": "2"}, {1: 2}, 3]),
        (str | Sequence[Sequence[str]], ["a", [["a", "b"]]], [["a"], [["a", 1]], 2]),
        (tuple[float, float], [(1, 2.0), [0.5, 1]], [(1,), (1, 2, 3), ("1", "2"), "12", 1]),
        (tuple[int, ...], [(), (1, 2)], [(1.0,), 1]),
        (list, [["a", 1]], ["a", 1]),
        (dict, [{"a": []}], ["a", ["a"]]),
        (float, [1, 0.5], ["1", True, None, [1]]),
        (int, [1], [1.0, True, "1"]),
        (bool, [True], [1, "True"]),
        (str, ["", "a"], [1, ["a"], None, False]),
        (float | None, [None, 1], ["1", False]),
        (Literal["a", "b"], ["a"], ["c", ["a"]]),
        (Annotated[int, COUNT], [3], ["3"]),
        (Any, ["a", None, [1]], []),
    ],
)
def test_a_value_has_its_type_and_a_text_is_no_list(kind, taken, refused):
    assert all(fits(value, kind) for value in taken)
    assert not any(fits(value, kind) for value in refused)


@pytest.mark.parametrize(
    ("table", "text"),
    [
        (OBJECTIVES, "ppo(low=-0.2)"),
        (OBJECTIVES, "ppo(low=inf)"),
        (OBJECTIVES, "disco(tau=0)"),
        (OBJECTIVES, "disco(score='lgo')"),
        (TERMS, "kl_k3(coef=-0.1)"),
        (MISMATCH, "tis(cap=-1)"),
        (SCALES, "group_std(eps=-1e-4)"),
        (SCALES, "group_std(ddof=2)"),
        (SHAPES, "noise_weight(flip=0.5)"),
        (SELECTORS, "gfpo(count=0)"),
        (SELECTORS, "gfpo(count=1, metric='brevity')"),
        (CREDITS, "top_entropy(fraction=1.1)"),
    ],
)
def test_blocks_refuse_what_has_no_meaning(table, text):
    with pytest.raises(ValueError, match=f"^algorithm.*{text.partition('(')[0]}"):
        bind(text, table, "algorithm")


@pytest.mark.parametrize(
    ("table", "text"),
    [
        (OBJECTIVES, "ppo(high=inf)"),
        (MISMATCH, "tis(cap=inf)"),
        (SHAPES, "right_or_wrong(wrong=-2)"),
        (SHAPES, "clamp(limit=inf)"),
    ],
)
def test_bounds_may_be_absent_and_values_negative_where_they_have_a_meaning(table, text):
    bind(text, table, "algorithm")


def test_the_range_of_a_block_of_ours_is_read_though_annotations_are_texts():
    """A name that its module does not import would be passed over, as those for type checkers are."""
    for kind, blocks in all_blocks().items():
        for name, one in blocks.items():
            ranged = {p for p, text in one.fn.__annotations__.items() if "Annotated[" in str(text)}
            read = {p for p, hint in _hints(one.fn).items() if get_origin(hint) is Annotated}
            assert ranged <= read, (kind, name)
