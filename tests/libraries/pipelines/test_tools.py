"""Completions that call tools, of every family that offers them, behind images and videos."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from mmgrpo.config.settings import config_class
from mmgrpo.family import families
from mmgrpo.policies.tools import ENDS
from mmgrpo.types import Request, Text
from pipelines import vlm
from pipelines.tools import check_tools
from pipelines.vlm import qwen_vl_tiny
from pipelines.vlm.calculator import calculate
from pipelines.vlm.causal_lm_tiny import KINDS
from pipelines.vlm.causal_lm_tiny import tiny as tiny_of_kind
from tests.building import module
from tests.libraries.families.examples import EXAMPLES

OFFERED = [name for name, one in families().items() if "tools" in one.sections.sampling.__dataclass_fields__]
CALL = '<tool_call>{"name": "count", "arguments": {"what": "circles"}}</tool_call>'


def count(what: str) -> str:
    """Count things in the picture.

    Args:
        what: What to count.
    """
    return f"<|im_end|>{len(what)} is the red"


def policy_of(name: str, path: str, **sampling: Any) -> Any:
    """A policy that writes "blue" and ends its turns often; "blue" reads as a call."""
    config, example = config_class(families()[name].sections)(), EXAMPLES[name]
    chosen = {"max_tokens": 120, "tools": [f"{__name__}:count"], "turns": 3, **sampling}
    policy: Any = families()[name].policy(
        replace(
            config,
            model=replace(config.model, **{"family": name, "path": path, **example.model}),
            sampling=replace(config.sampling, **chosen),
        ),
        "cpu",
    )
    model = policy.model
    decode, logits = model.decode, model.logits
    (blue, _), ends = model.spell("blue"), list(model.end_ids)

    def likely(network: Any, hidden: Tensor) -> Tensor:
        scores = logits(network, hidden)
        bias = torch.zeros(scores.shape[-1])
        bias[ends], bias[blue] = 5.0, 6.0
        return scores + bias

    said = f"</think>{CALL}" if model.prefilled else CALL
    model.decode = lambda ids: decode(ids).replace("blue", said)
    model.logits = likely
    return policy


def rescored(policy: Any, made: Any) -> Tensor:
    dense = torch.zeros_like(made.decisions.log_probs)
    for part in made.steps.split(made.decisions.loss_mask, 5):
        dense[part.rows, part.positions] = policy.score(made, part, frozenset({"log_probs"}))["log_probs"].detach()
    return dense


def check(policy: Any, prompts: Sequence[Any]) -> None:
    made = policy.rollout(Request(prompts, [*range(len(prompts))], 8, seed=1))
    mask, observed = made.decisions.decision_mask, made.steps.observed
    assert not (mask & observed).any() and torch.equal(mask | observed, made.steps.real)
    torch.testing.assert_close(rescored(policy, made)[mask], made.decisions.log_probs[mask], rtol=0, atol=2e-4)
    texts = [one for one in made.outputs if isinstance(one, Text)]
    calls = [call for one in texts for call in one.calls if call.name]
    assert calls and all(call.result == "<|im_end|>7 is the red" for call in calls)
    assert max(len(one.turns) for one in texts) > 2 and any(one.calls and not one.truncated for one in texts)
    # What tools wrote holds neither marks of media nor, but for its own end, the end of a turn.
    model, ids = policy.model, made.steps.ids
    for row, one in enumerate(texts):
        read = ids[row][observed[row]].tolist()
        assert not set(read) & set(model.media_tokens)
        replies = sum(turn.role == "assistant" for turn in one.turns)
        assert read.count(model.turn_end) <= replies
    ends = made.decisions.fields["turns_end"]
    assert ((ends == ENDS.index("tokens")) == made.decisions.fields["truncated"].bool()).all()
    again = policy.rollout(Request(prompts, [*range(len(prompts))], 8, seed=1))
    assert torch.equal(again.steps.ids, ids)


@pytest.fixture
def tags(monkeypatch):
    """Tokenizers with the tags of calls, which are no special tokens, as Qwen's have them."""
    monkeypatch.setattr(qwen_vl_tiny, "TAGS", (*qwen_vl_tiny.TAGS, "<tool_call>", "</tool_call>"))


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("name", [name for name in OFFERED if name != "causal_lm"])
def test_every_family_reads_what_its_tools_wrote(name, share, tags, tmp_path):
    check(policy_of(name, str(module(name).tiny(tmp_path / name)), share_prefix=share), EXAMPLES[name].prompts)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "base"])
def test_every_form_of_template_and_tokenizer(kind, tags, tmp_path):
    check(policy_of("causal_lm", tiny_of_kind(tmp_path / kind, kind)), EXAMPLES["causal_lm"].prompts)


def test_a_model_without_a_template_is_refused(tmp_path):
    with pytest.raises(ValueError, match="chat template"):
        policy_of("causal_lm", tiny_of_kind(tmp_path / "base"))


def test_a_tokenizer_that_cannot_write_calls_is_refused(tmp_path):
    with pytest.raises(ValueError, match="<tool_call>.*special"):
        policy_of("causal_lm", tiny_of_kind(tmp_path / "qwen", "qwen2.5"))


# ---- as they are configured


def test_in_python_tools_are_functions_and_classes(tags, tmp_path):
    path = tiny_of_kind(tmp_path / "qwen", "qwen2.5")
    for given in (count, [count], [f"{__name__}:count"]):
        policy: Any = vlm.policy(path, tools=given, device="cpu", max_tokens=32)
        assert list(policy.tools.table) == ["count"]
        assert policy.settings.config.sampling.tools == [f"{__name__}:count"]
    with pytest.raises(ValueError, match="tools.*lambda"):
        vlm.policy(path, tools=lambda x: x, device="cpu")


@pytest.mark.parametrize(
    ("section", "changed", "name"),
    [
        ("sampling", {"turns": 2, "tools": []}, r"sampling\.turns.*no effect"),
        ("sampling", {"tool_workers": 2, "tools": []}, r"sampling\.tool_workers.*no effect"),
        ("sampling", {"states": "judged(by='x')"}, r"sampling\.states.*sampling\.tools"),
        ("sampling", {"search": "beam"}, r"sampling\.search.*sampling\.tools"),
        ("sampling", {"tools": ["count"]}, r"sampling\.tools.*module:function"),
        ("data", {"reference_in_group": True}, r"data\.reference_in_group.*sampling\.tools"),
        ("data", {"offline": True}, r"data\.offline.*sampling\.tools"),
        ("rollout", {"max_staleness": 1}, r"rollout\.max_staleness.*sampling\.tools"),
        ("rewards", ["task", "tool_reward(weight=0.5)"], "tool_reward.*sampling.tools"),
        ("algorithm", {"credit": "looking(threshold=0.5, gain=1.0)"}, r"algorithm.*visual_dependency.*sampling\.tools"),
    ],
)
def test_settings_that_do_not_go_with_tools_are_refused_before_a_model_is_loaded(section, changed, name):
    owner = families()["causal_lm"]
    config = config_class(owner.sections)()
    tools = replace(config.sampling, tools=[f"{__name__}:count"])
    config = replace(config, sampling=tools, model=replace(config.model, path="nowhere"))
    value = changed if section == "rewards" else replace(getattr(config, section), **changed)
    config = replace(config, **{section: value})
    with pytest.raises(ValueError, match=name):
        check_tools(config, {})


# ---- the calculator


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("(17 + 4) * 2 ** 3", "168"),
        ("7 / 2", "3.5"),
        ("-7 // 2", "-4"),
        ("4817 * 392 - 56", "1888208"),
        ("2 ** -1", "0.5"),
    ],
)
def test_arithmetic(expression, value):
    assert calculate(expression) == value


@pytest.mark.parametrize(
    "expression",
    ["", "1 +", "x", "().__class__", "print(1)", "9 ** 9 ** 9", "10 ** 64 * 10 ** 64", "1 / 0", "(-1) ** 0.5",
     "'a' * 9", "True + 1", "1 if 1 else 2", "(" * 400, "1" * 501, "1; 2", "1e308 * 10"],
)  # fmt: skip
def test_what_is_no_arithmetic_is_refused(expression):
    with pytest.raises((ValueError, ZeroDivisionError)):
        calculate(expression)
