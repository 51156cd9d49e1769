"""Completions that call tools, of every family that offers them, behind images and videos."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import fields, replace
from types import ModuleType
from typing import Any

import pytest
import torch
from PIL import Image as Pil
from torch import Tensor

from mmgrpo.config.settings import config_class
from mmgrpo.engines.engine import Synchronized, parameters
from mmgrpo.engines.sampler import OwnSampler
from mmgrpo.family import families
from mmgrpo.policies.token_model import Query
from mmgrpo.policies.tools import ENDS
from mmgrpo.types import Image, Media, Prompt, Request, Text, Turn
from pipelines import text
from pipelines.text.calculator import calculate
from pipelines.text.rooms import Rooms
from pipelines.tools import check_tools, names_elsewhere, schemas
from pipelines.vlm import qwen_vl_tiny
from tests.building import amplify, rescored
from tests.libraries.families.examples import EXAMPLES, noise
from tests.tiny import maker
from tests.tiny.causal_lm import KINDS
from tests.tiny.causal_lm import tiny as tiny_of_kind

pytestmark = pytest.mark.usefixtures("forked")
OFFERED = [name for name, one in families().items() if "tools" in {f.name for f in fields(one.sections.sampling)}]
CALL = '<tool_call>{"name": "count", "arguments": {"what": "circles"}}</tool_call>'


def count(what: str) -> str:
    """Count things in the image.

    Args:
        what: What to count.
    """
    return f"<|im_end|>{len(what)} is the red"


def policy_of(name: str, path: str, call: str = CALL, **sampling: Any) -> Any:
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
    amplify(policy.network, 5)
    model = policy.model
    decode, logits = model.decode, model.logits
    (blue, _), ends = model.spell("blue"), list(model.end_ids)

    def likely(network: Any, hidden: Tensor) -> Tensor:
        scores = logits(network, hidden)
        bias = torch.zeros(scores.shape[-1])
        bias[ends], bias[blue] = 5.0, 6.0
        return scores + bias

    said = f"</think>{call}" if model.prefilled else call
    model.decode = lambda ids: decode(ids).replace("blue", said)
    model.logits = likely
    return policy


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
    most = {"max_tokens": 400} if name == "qwen_omni" else {}  # of letters, in which its tiny model spells results
    check(policy_of(name, str(maker(name)(tmp_path / name)), share_prefix=share, **most), EXAMPLES[name].prompts)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "base"])
def test_every_form_of_template_and_tokenizer(kind, tags, tmp_path):
    check(policy_of("causal_lm", tiny_of_kind(tmp_path / kind, kind)), EXAMPLES["causal_lm"].prompts)


def test_a_model_without_a_template_is_refused(tmp_path):
    with pytest.raises(ValueError, match="chat template"):
        policy_of("causal_lm", tiny_of_kind(tmp_path / "base"))


def test_a_tokenizer_that_cannot_write_calls_is_refused(tmp_path):
    with pytest.raises(ValueError, match="<tool_call>.*special"):
        policy_of("causal_lm", tiny_of_kind(tmp_path / "qwen", "qwen2.5"))


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["pipelines.text.calculator:calculate", "pipelines.text.rooms:Rooms"], True),
        (["pipelines.text.calculator:calculate", "__main__:search"], False),  # of a notebook, or of the script itself
        (["made_in_memory:search"], False),
    ],
)
def test_tools_that_another_python_cannot_import_are_called_in_a_fork(names, found, monkeypatch):
    monkeypatch.setitem(sys.modules, "made_in_memory", ModuleType("made_in_memory"))
    assert (*names_elsewhere(names),) == ((*names,) if found else ())


# ---- images


def crop(what: str) -> list[Any]:
    """Look at a part of the image.

    Args:
        what: Which part.
    """
    return ["red", Image(noise(3, 20, 24, seed=len(what)))]


def drawn_by_pil(what: str) -> Any:
    """Draw.

    Args:
        what: What.
    """
    return Pil.new("RGB", (16, 24), "blue")


def careless(what: str) -> Any:
    """Look.

    Args:
        what: What.
    """
    return Image(torch.zeros(3, 0, 5))


@pytest.fixture(params=["qwen_vl", "smolvlm"])
def seeing(request, tags, tmp_path):
    """Makes policies whose tool returns images."""
    name = request.param
    path = str(maker(name)(tmp_path / name))

    def made(tool: str = "crop", **settings: Any) -> Any:
        call, given = CALL.replace("count", tool), {"max_tokens": 300, **settings}
        return policy_of(name, path, tools=[f"{__name__}:{tool}"], call=call, **given)

    return made


def shown(policy: Any, size: int = 8) -> Any:
    prompts = EXAMPLES["qwen_vl"].prompts
    return policy.rollout(Request(prompts, [*range(len(prompts))], size, seed=1))


@pytest.mark.parametrize("trained_tower", [False, True])
def test_images_that_tools_return_are_seen_in_drawing_and_in_training(seeing, trained_tower):
    policy = seeing()
    if trained_tower:
        policy.model.frozen_media = False
        for one in policy.network.parameters():
            one.requires_grad_(True)
    made = shown(policy)
    mask, observed, ids = made.decisions.decision_mask, made.steps.observed, made.steps.ids
    texts = [one for one in made.outputs if isinstance(one, Text)]
    assert max(map(len, made.steps.shown)) > 1
    mark = policy.network.config.image_token_id
    for row, one in enumerate(texts):
        images = [part for turn in one.turns for part in turn.parts if not isinstance(part, str)]
        assert (*images,) == made.steps.shown[row]
        read = policy.model.read_shown(images, made.prompts[row])
        context = replace(made.steps.context.take([0]), media=[read])
        features = policy.model.features(policy.network, context)
        assert int((ids[row] == mark).sum()) == (len(features[0]) if images else 0)
    assert not mask[ids == mark].any() and observed[ids == mark].all()
    torch.testing.assert_close(rescored(policy, made)[mask], made.decisions.log_probs[mask], rtol=0, atol=2e-4)
    # Other images give other log-probs, behind them alone.
    row = max(range(len(texts)), key=lambda row: len(made.steps.shown[row]))
    changed = [*made.steps.shown]
    changed[row] = (Media("image", Image(noise(3, 20, 24, seed=99))), *changed[row][1:])
    other = rescored(policy, replace(made, steps=replace(made.steps, shown=changed)))
    begin = int((ids[row] == mark).nonzero()[0])
    moved = (other - made.decisions.log_probs).abs() > 1e-3
    assert moved[row, begin:].any() and not moved[row, :begin].any()
    if trained_tower:
        part = next(made.steps.split(mask, 4))
        policy.score(made, part, frozenset({"log_probs"}))["log_probs"].sum().backward()
        inner = policy.network.model
        tower = inner.visual if hasattr(inner, "visual") else inner.vision_model
        assert max(one.grad.abs().max() for one in tower.parameters()) > 0


def test_a_conversation_with_images_is_read_as_a_prompt_of_the_same_turns_is(seeing):
    """Ids, positions on three axes, and media, against those of ``encode``."""
    policy = seeing()
    model, plain = policy.model, policy.model.tokenizer
    made, compared = shown(policy, 16), 0
    for row, one in enumerate(made.outputs):
        images = made.steps.shown[row]
        if len(images) < 1 or len(one.turns) != 2 * len(images):
            continue
        prompt = made.prompts[row]
        turns = list(prompt.turns or (Turn("user", (prompt.text,)),))
        ids, observed = made.steps.ids[row], made.steps.observed[row]
        said = "".join("o" if seen else "w" for seen in observed[made.steps.real[row]].tolist())
        begins = [found.span() for found in re.finditer("w+", said)]
        for (begin, end), image in zip(begins, images):
            words = plain.decode(ids[begin : end - 1].tolist())
            turns += [Turn("assistant", (words,))]
            turns += [Turn("user", ("<tool_response>\nred", image, "\n</tool_response>"))]
        length = begins[len(images)][0] if len(begins) > len(images) else len(said)
        wanted = model.encode([replace(prompt, turns=tuple(turns))])
        context = made.steps.context.take([int(made.steps.prompts[row])])
        begun = ids[:length].tolist()
        query = Query(prompt, 0, 1, forced=tuple(begun), shown=images)
        got = policy._context([query])
        if wanted.ids.tolist() != got.ids.tolist():  # words that are spelled otherwise than they were drawn
            continue
        assert torch.equal(wanted.positions, got.positions) and context.ids.shape[1] < got.ids.shape[1]
        assert [one.size for one in wanted.media[0]] == [one.size for one in got.media[0]]
        compared += 1
    assert compared >= 3


def test_images_of_pil_and_engines_of_the_process(seeing):
    """A second network is given the media as well."""
    policy, drawing = seeing("drawn_by_pil"), seeing("drawn_by_pil")
    policy.draw_with(Synchronized(OwnSampler(drawing), lambda: parameters(policy.network), policy.model, max_gap=1e-3))
    made = shown(policy)
    calls = [call for one in made.outputs for call in one.calls if call.images]
    assert calls and calls[0].images[0].source.pixels.shape == (3, 24, 16)
    torch.testing.assert_close(made.decisions.fields["sampler_log_probs"], made.decisions.log_probs, rtol=0, atol=2e-4)


def test_gains_of_turns_behind_images_do_not_depend_on_other_completions(seeing):
    policy, other = seeing(), seeing("drawn_by_pil")
    prompts = [replace(prompt, answer="red blue") for prompt in EXAMPLES["qwen_vl"].prompts]
    records = frozenset({"turn", "answer_gain"})
    slots = range(len(prompts))
    made = policy.rollout(Request(prompts, [*slots], 8, seed=1, records=records))
    gains, images = made.decisions.fields["answer_gain"], [len(some) for some in made.steps.shown]
    assert max(images) > 1 and gains[[count > 0 for count in images]].any(1).all()
    for place in slots:
        alone = policy.rollout(Request(prompts[place : place + 1], [place], 8, seed=1, records=records))
        got = alone.decisions.fields["answer_gain"]
        rows = gains[8 * place : 8 * place + 8, : got.shape[1]]
        torch.testing.assert_close(got, rows, rtol=0, atol=1e-6)
    changed = other.rollout(Request(prompts, [*slots], 8, seed=1, records=records)).decisions.fields["answer_gain"]
    assert (changed.sum(1) - gains.sum(1)).abs().max() > 1e-6


def test_an_image_is_read_and_encoded_once_by_a_frozen_tower(seeing, monkeypatch):
    """Later turns and the update take what is kept; where nothing is kept, they are the same."""
    policy, kind = seeing(), type(seeing().model)
    read, encoded = [], []
    own, features = kind.read_shown, kind.features
    monkeypatch.setattr(kind, "read_shown", lambda self, some, prompt: (read.extend(some), own(self, some, prompt))[1])
    monkeypatch.setattr(
        kind,
        "features",
        lambda self, network, one: (encoded.extend(m for row in one.media for m in row), features(self, network, one))[
            1
        ],
    )
    made = shown(policy)
    images = [one for row in made.steps.shown for one in row]
    mask, seen = made.decisions.decision_mask, {id(one) for one in images}
    assert len(images) > 4 and len([one for one in read if id(one) in seen]) == 2 * len(images)  # to spell, to encode
    first = len(EXAMPLES["qwen_vl"].prompts)
    assert len(images) < len(encoded) <= len(images) + 2 * first
    read.clear(), encoded.clear()
    torch.testing.assert_close(rescored(policy, made)[mask], made.decisions.log_probs[mask], rtol=0, atol=2e-4)
    assert not read and not encoded
    policy.shown_cache.most = 0
    again = shown(policy)
    assert torch.equal(again.steps.ids, made.steps.ids)
    torch.testing.assert_close(again.decisions.log_probs, made.decisions.log_probs, rtol=0, atol=1e-5)
    torch.testing.assert_close(
        rescored(policy, again, limit=5)[mask], made.decisions.log_probs[mask], rtol=0, atol=2e-4
    )
    assert len(policy.shown_cache.entries) < len(images)


def test_an_image_without_a_pixel_is_the_error_of_its_call(seeing):
    made = shown(seeing("careless"))
    calls = [call for one in made.outputs for call in one.calls if call.name == "careless"]
    assert calls and all("without a pixel" in call.error and not call.images for call in calls)
    assert not made.steps.shown and any("error: got an image" in one.transcript for one in made.outputs)


def test_images_for_a_family_that_cannot_be_shown_any_are_refused(tags, tmp_path):
    path = tiny_of_kind(tmp_path / "words", "qwen2.5")
    policy = policy_of("causal_lm", path, tools=[f"{__name__}:crop"], call=CALL.replace("count", "crop"))
    with pytest.raises(ValueError, match="'crop' returned an image.*CausalLm"):
        policy.rollout(Request(EXAMPLES["causal_lm"].prompts, [*range(3)], 8, seed=1))


# ---- as they are configured


def test_in_python_tools_are_functions_and_classes(tags, tmp_path):
    path = tiny_of_kind(tmp_path / "qwen", "qwen2.5")
    for given in (count, [count], [f"{__name__}:count"]):
        policy: Any = text.policy(path, tools=given, device="cpu", max_tokens=32)
        assert list(policy.walk.tools.table) == ["count"]
        assert policy.settings.config.sampling.tools == [f"{__name__}:count"]
    with pytest.raises(ValueError, match="tools.*lambda"):
        text.policy(path, tools=lambda x: x, device="cpu")


@pytest.mark.parametrize(
    ("section", "changed", "name"),
    [
        ("sampling", {"tools": ["count"]}, r"sampling\.tools.*module:function"),
        ("rewards", ["task", "tool_reward(weight=0.5)"], "tool_reward.*sampling.tools"),
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
        owner.check(config)


class Opening:
    """Writes behind the prompt."""

    def reset(self) -> str:
        return ""

    def look(self) -> str:
        """Look."""
        return ""


def test_a_text_behind_the_prompt_does_not_go_with_terms_under_a_changed_prompt():
    config = config_class(families()["qwen_vl"].sections)()
    algorithm = replace(config.algorithm, terms=["perception(gamma=0.01)"])
    for name in ("count", "Opening"):
        sampling = replace(config.sampling, tools=[f"{__name__}:{name}"])
        changed = replace(config, algorithm=algorithm, sampling=sampling, model=replace(config.model, path="nowhere"))
        if name == "count":
            check_tools(changed, {})
        else:
            with pytest.raises(ValueError, match=r"algorithm\.terms.*'Opening'.*sampling\.tools"):
                check_tools(changed, {})


class Scored:
    """Rewards what nobody reads."""

    def look(self) -> str:
        """Look."""
        return ""

    def reward(self) -> float:
        return 1.0

    def turn_reward(self) -> float:
        return 1.0


@pytest.mark.parametrize(
    ("rewards", "credit", "named"),
    [
        (["task"], "broadcast", ["tool_reward", "turn_return"]),
        (["tool_reward(weight=0)"], "broadcast", ["turn_return"]),
        (["task"], "turn_return", ["tool_reward"]),
        (["tool_reward(weight=0)"], "turn_return", []),
    ],
)
def test_a_reward_of_a_class_that_the_run_does_not_read_is_said(rewards, credit, named):
    owner = families()["causal_lm"]
    config = config_class(owner.sections)()
    sampling = replace(config.sampling, tools=[f"{__name__}:Scored"])
    blocks = {} if credit == "broadcast" else {"baseline": "none", "scale": "none"}
    config = replace(config, algorithm=replace(config.algorithm, credit=credit, **blocks))
    (line,) = (
        line for line in owner.arithmetic(replace(config, sampling=sampling, rewards=rewards)).lines if "Scored" in line
    )
    said = line.partition(":Scored")[2]
    assert [name for name in ("tool_reward", "turn_return") if name in said] == named
    assert ("Scored" in said) == bool(named)


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


# ---- the rooms


def rooms(seed: int) -> tuple[Rooms, str]:
    made = Rooms()
    return made, made.reset(Prompt("go", "0"), seed)


def walked(made: Rooms, to: tuple[int, int]) -> str:
    """What is seen after the way there."""
    said = ""
    for axis, ways in ((0, ("north", "south")), (1, ("west", "east"))):
        while made.place[axis] != to[axis]:
            said = made.go(ways[made.place[axis] < to[axis]])
    return said


@pytest.mark.parametrize("seed", range(20))
def test_a_door_opens_with_its_key(seed):
    made, said = rooms(seed)
    assert f"row {made.place[0] + 1}, column {made.place[1] + 1}." in said
    assert len({made.place, made.key, made.door}) == 3 and "key" not in said and "door" not in said
    begun, reached = made.state(), [made.reward()]
    with pytest.raises(ValueError, match="key"):
        made.take()
    assert "door is here" in walked(made, made.door)
    with pytest.raises(ValueError, match="locked"):
        made.unlock()
    assert "key lies here" in walked(made, made.key)
    before = made.state()
    made.take()
    assert made.state() != before and "key" not in made.go(next(iter(made._ways())))
    walked(made, made.door)
    reached += [made.reward()]
    made.unlock()
    assert [*reached, made.reward()] == [0.0, 0.0, 1.0]
    again, same = rooms(seed)
    assert (same, again.state()) == (said, begun)
    assert len({rooms(other)[1] for other in range(20)}) > 4


def test_walls_and_unknown_ways_are_errors_that_name_the_ways():
    made, _ = rooms(0)
    walked(made, (0, 0))
    for way in ("north", "west", "up"):
        with pytest.raises(ValueError, match=f"'{way}'.*south, east"):
            made.go(way)
    assert made.state()[:2] == [0, 0]
    assert [one["function"]["name"] for one in schemas([Rooms])] == ["go", "take", "unlock"]
    json.dumps(made.state())
