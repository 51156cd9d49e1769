"""Images that tools return, shown to models of any architecture through their own processor."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import groupby
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mmgrpo.config.settings import config_class
from mmgrpo.data.chat import ChatTemplate
from mmgrpo.family import families
from mmgrpo.policies.token_model import Query
from mmgrpo.types import Image, Media, Prompt, Request, Turn
from pipelines.tools import schemas
from pipelines.vlm import image_text, qwen_vl_tiny
from pipelines.vlm.later_images import Joins
from tests.building import load, rescored
from tests.libraries.families.examples import EXAMPLES, noise
from tests.libraries.pipelines.test_tools import CALL, policy_of
from tests.tiny import causal_lm as causal_lm_tiny
from tests.tiny import maker

pytestmark = pytest.mark.usefixtures("forked")
KINDS = ("gemma3", "llava", "llava_next", "qwen2_vl", "qwen3_vl", "qwen3_5", "internvl")
SIZES = ((20, 24), (12, 40), (48, 16), (33, 50))
PROMPTS = EXAMPLES["image_text"].prompts
"""One image, a clip, a text."""


class Look:
    """Another image with each call."""

    def __init__(self) -> None:
        self.looks = 0

    def crop(self, what: str) -> list[Any]:
        """Look at a part of the image.

        Args:
            what: Which part.
        """
        self.looks += 1
        return ["red", image_of(self.looks)]


def image_of(number: int) -> Image:
    return Image(noise(3, *SIZES[number % len(SIZES)], seed=number))


def zoom(what: str) -> Image:
    """Look.

    Args:
        what: What.
    """
    return image_of(0)


@pytest.fixture(scope="module", params=[*KINDS, *(f"{kind}, published" for kind in KINDS if "llava" not in kind)])
def placed(request, tmp_path_factory) -> str:
    """Models in the form of this package and in the published one; those of LLaVA end no turn of the assistant."""
    kind, _, published = request.param.partition(", ")
    return folder_of(kind, tmp_path_factory.mktemp(kind), bool(published))


def folder_of(kind: str, place: Any, published: bool = False) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(qwen_vl_tiny, "TAGS", (*qwen_vl_tiny.TAGS, "<tool_call>", "</tool_call>"))
        return str(maker("image_text")(place / kind, kind, published))


def seeing(path: str, tool: str = "Look", **settings: Any) -> Any:
    call = CALL.replace("count", "crop" if tool == "Look" else tool)
    return policy_of("image_text", path, tools=[f"{__name__}:{tool}"], call=call, **{"max_tokens": 240, **settings})


def drawn(policy: Any, size: int = 8) -> Any:
    return policy.rollout(Request(PROMPTS, [*range(len(PROMPTS))], size, seed=1))


def conversations(policy: Any, made: Any) -> list[tuple[int, Prompt, int]]:
    """Rows with images, the conversations up to their last turn as prompts, and where that begins. Rows whose words
    would be spelled otherwise than they were drawn are left out."""
    model, found = policy.model, []
    for row, one in enumerate(made.outputs):
        replies = [[*some] for role, some in groupby(one.turns, lambda turn: turn.role) if role == "tool"]
        if not made.steps.shown[row] or len(replies) != sum(turn.role == "assistant" for turn in one.turns):
            continue
        ids, seen = made.steps.ids[row], made.steps.observed[row][made.steps.real[row]].tolist()
        begins = [part.span() for part in re.finditer("w+", "".join("o" if there else "w" for there in seen))]
        prompt = made.prompts[row]
        turns = list(prompt.turns or (Turn("user", (prompt.text,)),))
        for (begin, end), reply in zip(begins, replies):
            turns.append(Turn("assistant", (model.prefilled + model.tokenizer.decode(ids[begin : end - 1].tolist()),)))
            parts: list[Any] = ["<tool_response>\n"]
            for turn in reply:
                parts = [*parts[:-1], parts[-1] + turn.parts[0], *turn.parts[1:]]
                parts += ["\n</tool_response>\n<tool_response>\n"]
            turns.append(Turn("user", (*parts[:-1], "\n</tool_response>")))
        whole = replace(prompt, turns=tuple(turns))
        length = begins[len(replies)][0]
        spelled = model.encode([whole]).ids[0].tolist()
        if spelled[-length:] == ids[:length].tolist():
            found.append((row, whole, length))
    return found


def plain_log_probs(policy: Any, prompt: Prompt, answer: Tensor) -> Tensor:
    """Of an answer to a conversation that the processor has read whole: the network's own forward pass."""
    model = policy.model
    context = model.encode([prompt])
    ids = torch.cat([context.ids[0], answer])[None]
    inputs: dict[str, Tensor] = {}
    for name, value in context.media[0].items():
        more = len(answer) if name.endswith("token_type_ids") else 0
        inputs[name] = nn.functional.pad(value, (0, more)) if more else value
    out = policy.network.base_model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False, **inputs)
    logits = model.logits(policy.network, out.last_hidden_state[0, -len(answer) - 1 : -1])
    logits = logits.index_fill(1, torch.tensor(sorted(model.suppress_tokens)), -torch.inf)
    return logits.log_softmax(-1).gather(1, answer[:, None])[:, 0]


@pytest.fixture(scope="module")
def looked(placed) -> tuple[Any, Any]:
    """A policy of each of these models and what it drew, once for all tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipelines.tools.names_elsewhere", lambda names: ())  # as of ``forked``
        policy = seeing(placed)
        return policy, drawn(policy, 16)


@pytest.mark.slow
def test_a_conversation_is_read_as_a_prompt_of_the_same_turns_is(looked):
    """Ids, positions, types of tokens and media against those that the processor makes of the whole."""
    policy, made = looked
    compared = conversations(policy, made)
    assert len(compared) >= 3 and max(len(made.steps.shown[row]) for row, _, _ in compared) > 1
    for row, whole, length in compared:
        wanted = policy.model.encode([whole])
        begun = made.steps.ids[row, :length].tolist()
        got = policy._context([Query(made.prompts[row], 0, 1, forced=tuple(begun), shown=made.steps.shown[row])])
        assert torch.equal(wanted.ids, got.ids) and torch.equal(wanted.positions, got.positions)
        media = policy.model._inputs(got.ids[0], got.media[0])
        assert wanted.media[0].keys() == got.media[0].keys()
        for name, value in wanted.media[0].items():
            assert value.dtype == media[name].dtype and torch.equal(value, media[name]), name


@pytest.mark.slow
def test_log_probs_and_gradients_are_those_of_a_plain_pass_over_the_conversation(looked):
    policy, made = looked
    rows = conversations(policy, made)[-3:]
    weights = policy.network.get_input_embeddings().weight.requires_grad_(True)
    total = torch.zeros(())
    kept = torch.zeros_like(made.decisions.loss_mask)
    for row, whole, length in rows:
        answer = made.steps.ids[row, length : int(made.steps.real[row].sum())]
        kept[row, length : length + len(answer)] = True
        log_probs = plain_log_probs(policy, whole, answer)
        said = made.decisions.log_probs[row, length : length + len(answer)]
        torch.testing.assert_close(log_probs, said, rtol=0, atol=1e-5)
        total = total + log_probs.sum()
    [wanted] = torch.autograd.grad(total, weights)
    [part] = made.steps.split(kept, len(made.steps.ids))
    [got] = torch.autograd.grad(policy.score(made, part, frozenset({"log_probs"}))["log_probs"].sum(), weights)
    assert wanted.abs().max() > 1e-3
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-5 * float(wanted.abs().max()))


@pytest.mark.slow
def test_another_image_changes_what_stands_behind_it_alone(looked):
    policy, made = looked
    mask, shown = made.decisions.decision_mask, [*made.steps.shown]
    torch.testing.assert_close(rescored(policy, made)[mask], made.decisions.log_probs[mask], rtol=0, atol=1e-5)
    row = max(range(len(shown)), key=lambda row: len(shown[row]))
    images = shown[row]
    assert len(images) > 1
    height, width = images[1].source.pixels.shape[1:]
    shown[row] = (images[0], Media("image", Image(noise(3, height, width, seed=99))), *images[2:])
    other = rescored(policy, replace(made, steps=replace(made.steps, shown=shown)))
    moved = (other - made.decisions.log_probs).abs() > 1e-5
    marks = torch.isin(made.steps.ids[row], torch.tensor(sorted(policy.model.joins.marks))).nonzero()[:, 0]
    [first] = policy.model.read_shown(images[:1], made.prompts[row])
    begin = int(marks[sum(first.marks.values())])
    assert moved[row, begin:].any() and not moved[row, :begin].any()
    assert not moved[[one for one in range(len(shown)) if one != row]].any()


@pytest.mark.parametrize("kind", ["qwen3_vl", pytest.param("gemma3", marks=pytest.mark.nightly)])
def test_whole_samples_are_read_again_where_nothing_is_shared(kind, tmp_path):
    path = folder_of(kind, tmp_path)
    shared, replayed = seeing(path), seeing(path)
    replayed.model.shared = False
    one, two = drawn(shared), drawn(replayed)
    assert torch.equal(one.steps.ids, two.steps.ids) and any(one.steps.shown)
    torch.testing.assert_close(one.decisions.log_probs, two.decisions.log_probs, rtol=0, atol=1e-5)


# ---- how tensors of images are joined


class Changed:
    """A processor whose texts and tensors are changed."""

    def __init__(self, processor: Any, change: Callable[..., Any], text: Callable[[str], str] = str) -> None:
        self.processor, self.change, self.text = processor, change, text
        self.tokenizer = processor.tokenizer

    def __call__(self, text: list[str], images: Any, **given: Any) -> Any:
        made = self.processor(text=[self.text(text[0])], images=images, **given)
        if images:
            self.change(made, len(images[0]))
        return made


@pytest.fixture(scope="module")
def read(tmp_path_factory) -> dict[str, Any]:
    return {kind: load(image_text, folder_of(kind, tmp_path_factory.mktemp(kind))) for kind in ("llava", "qwen3_vl")}


def joins_of(model: Any, change: Callable[..., Any], text: Callable[[str], str] = str) -> Joins:
    chat = ChatTemplate(model.processor, {"tools": schemas([zoom])})
    return Joins.of(Changed(model.processor, change, text), chat, model.accepted)


def padded(made: Any, count: int) -> None:
    """Images of one batch are as tall as the tallest of them: [images, 3, 16 * place, 16]."""
    tall = [nn.functional.pad(one, (0, 0, 0, 16 * int(8 * one.mean() % 3))) for one in made["pixel_values"]]
    most = max(len(one[0]) for one in tall)
    made["pixel_values"] = torch.stack([nn.functional.pad(one, (0, 0, 0, most - len(one[0]))) for one in tall])


def batched(made: Any, count: int) -> None:
    """One conversation: [1, images, 3, 16, 16]."""
    made["pixel_values"] = made["pixel_values"][None]


@pytest.mark.parametrize(("change", "axis"), [(padded, 0), (batched, 1)])
def test_images_of_several_sizes_are_padded_and_the_axis_of_images_is_found(change, axis, read):
    joins = joins_of(read["llava"], change)
    assert joins.axes == {"pixel_values": axis} and not joins.types
    small, large = torch.ones(1, 1, 2, 3), torch.full((1, 1, 4, 2), 2.0)
    got = joins.join([{"pixel_values": small}, {}, {"pixel_values": large}])["pixel_values"]
    wanted = torch.zeros(*([2, 1] if axis == 0 else [1, 2]), 4, 3)
    wanted[0, 0, :2], wanted[-1, -1, :, :2] = 1, 2
    assert torch.equal(got, wanted) and joins.join([{}]) == {}


def by_count(made: Any, count: int) -> None:
    made["pixel_values"] = made["pixel_values"] * count


def by_place(made: Any, count: int) -> None:
    """Tokens of each image have a type of their own."""
    types = made["mm_token_type_ids"]
    made["mm_token_type_ids"] = types * ((types.diff(prepend=types[:, :1] * 0) > 0).cumsum(1))


def in_front(text: str) -> str:
    """All images before the text, as PaliGemma has them."""
    return "<image>" * text.count("<image>") + text.replace("<image>", "")


def unchanged(made: Any, count: int) -> None:
    """As it is."""


@pytest.mark.parametrize(
    ("kind", "change", "text", "named"),
    [
        ("llava", by_count, str, "pixel_values"),
        ("qwen3_vl", by_place, str, "mm_token_type_ids"),
        ("llava", unchanged, in_front, "turns"),
        ("llava", unchanged, lambda text: text.replace("<image>", "", text.count("<image>") - 1), "later turns"),
    ],
)
def test_images_that_cannot_be_joined_are_refused(kind, change, text, named, read):
    with pytest.raises(ValueError, match=named):
        joins_of(read[kind], change, text)


# ---- what cannot be shown


def test_a_processor_that_reads_images_otherwise_beside_others_is_refused_by_name(tmp_path, monkeypatch):
    """Before the weights are read where the tool says what it returns, else with its first image."""
    path = folder_of("llava_onevision", tmp_path)
    with pytest.raises(ValueError, match="llava_onevision.*Qwen3-VL"):
        drawn(seeing(path))
    monkeypatch.setattr(image_text, "read_network", lambda *_: pytest.fail("the weights were read"))
    with pytest.raises(ValueError, match="llava_onevision.*Qwen3-VL"):
        seeing(path, "zoom")


def test_a_template_that_leaves_out_images_of_results_is_refused(tmp_path):
    path = folder_of("qwen3_vl", tmp_path)
    file = tmp_path / "qwen3_vl" / "chat_template.jinja"
    mark, text = "<|vision_start|><|image_pad|><|vision_end|>", file.read_text()
    assert text.count(mark) == 1
    file.write_text(text.replace(mark, f"{{% if messages | length < 3 %}}{mark}{{% endif %}}"))
    with pytest.raises(ValueError, match="qwen3_vl.*image"):
        drawn(seeing(path))


TOOLS = """
{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}{% endfor %} <tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call><|im_end|>
{% endif %}
{%- set count = namespace(value=0) %}
{%- for message in messages %}
{%- if message.role != 'tool' %}<|im_start|>{{ message.role + '\n' }}
{%- elif messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user{% endif %}
{%- if message.role == 'tool' %}{{ '\n<tool_response>\n' }}{% endif %}
{%- if message.content is string %}{{ message.content }}{% else %}
{%- for part in message.content %}
{%- if part.type == 'image' %}{% set count.value = count.value + 1 %}
{%- if add_vision_id %}Picture {{ count.value }} : {% endif -%}
<|vision_start|><|image_pad|><|vision_end|>
{%- elif part.type == 'video' %}<|vision_start|><|video_pad|><|vision_end|>
{%- elif 'text' in part %}{{ part.text }}{% endif %}
{%- endfor %}{% endif %}
{%- if message.role == 'tool' %}{{ '\n</tool_response>' }}{% endif %}
{%- if message.role != 'tool' or loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\n' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""
"""In the form of Qwen3-VL: it writes tools and turns of results itself, and numbers images where it is asked to."""


def test_a_template_with_turns_of_results_shows_undecoded_and_one_that_numbers_them_is_refused(tmp_path, monkeypatch):
    path = folder_of("qwen3_vl", tmp_path)
    (tmp_path / "qwen3_vl" / "chat_template.jinja").write_text(TOOLS)
    policy = seeing(path)
    assert policy.model.chat.writes_tools
    made, mark = drawn(policy), policy.network.config.image_token_id
    mask = made.decisions.decision_mask
    torch.testing.assert_close(rescored(policy, made)[mask], made.decisions.log_probs[mask], rtol=0, atol=1e-5)
    for row, images in enumerate(made.steps.shown):
        grids = [one.tensors["image_grid_thw"] for one in policy.model.read_shown(images, made.prompts[row])]
        assert int((made.steps.ids[row] == mark).sum()) == sum(int(grid.prod()) // 4 for grid in grids)
    numbered = {"template": {"add_vision_id": True}}
    monkeypatch.setitem(EXAMPLES, "image_text", replace(EXAMPLES["image_text"], model=numbered))
    with pytest.raises(ValueError, match="qwen3_vl.*number"):
        seeing(path, "zoom")


def test_a_family_of_texts_is_refused_where_a_tool_says_that_it_returns_images(tmp_path):
    owner = families()["causal_lm"]
    config = config_class(owner.sections)()
    path = causal_lm_tiny.tiny(tmp_path / "words", "qwen2.5")
    sampling = replace(config.sampling, tools=[f"{__name__}:zoom"])
    with pytest.raises(ValueError, match="zoom.*causal_lm.*image_text"):
        owner.check(replace(config, model=replace(config.model, path=path), sampling=sampling))
