"""Completions that call tools: what is drawn, what is read, what is trained, and what a tool can do wrong."""

from __future__ import annotations

import gc
import inspect
import json
import math
import multiprocessing
import threading
from collections import Counter as Counts
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from mmgrpo.data.chat import ChatTemplate, token_ids
from mmgrpo.engines.engine import Synchronized, parameters
from mmgrpo.engines.sampler import OwnSampler
from mmgrpo.policies.exploring import sampling_metrics
from mmgrpo.policies.generation import Generated
from mmgrpo.policies.records import answer_gains
from mmgrpo.policies.token import TokenPolicy
from mmgrpo.policies.token_model import Query, Sequences
from mmgrpo.policies.tool_calls import calls_of
from mmgrpo.policies.tool_table import load_tools, opens, tools_by_name
from mmgrpo.policies.tools import ENDS, Episode, Summaries, Tools, _action, _observation, number_of
from mmgrpo.randomness import derive
from mmgrpo.runtime.metrics import read_metrics
from mmgrpo.types import Call, Image, Media, Output, Prompt, Request, Rollout, Text, Turn
from pipelines.text.causal_lm import LORA_TARGETS, CausalLm
from pipelines.tools import schemas
from pipelines.training import PLAIN, make_trainable
from tests.building import algorithm_blocks, killed_and_whole, rescored, token_policy_over, trainer
from tests.tiny.causal_lm import KINDS, decoder, tokenizer_of
from tests.unit.policies.test_token_policy import kept

pytest.importorskip("transformers")

PEEK, HIDE = (f'<tool_call>{{"name":"{name}","arguments":{{}}}}</tool_call>' for name in ("peek", "hide"))
MARKS = ("<unk>", "<|im_start|>", "<|im_end|>")
FRAME = ("system", "user", "assistant", "tool", "<tool_response>", "</tool_response>", "error:", "<tool_call>", "{")


def tokenizer_over(words: Sequence[str]) -> Any:
    """Of words between spaces, so a whole call is one token."""
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: place for place, word in enumerate(dict.fromkeys((*MARKS, *FRAME, *words)))}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.add_special_tokens([AddedToken(mark, special=True) for mark in MARKS])
    told = "{{- '<|im_start|>system\\n' + system + '<|im_end|>\\n' }}\n"
    template = KINDS["tools"].template.replace(told, "{{- '<tool_call> { ' }}\n")  # a short prompt
    ends = {"eos_token": "<|im_end|>", "unk_token": "<unk>", "pad_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=inner, chat_template=template, **ends)


def model_over(words: Sequence[str], likely: Sequence[str] = (), seed: int = 0) -> CausalLm:
    """A random Qwen2 that writes the ``likely`` words more often than others."""
    tokenizer = tokenizer_over(words)
    network = decoder(len(tokenizer), seed=seed)
    network.generation_config.eos_token_id = tokenizer.eos_token_id
    made = CausalLm(
        network, tokenizer, make_trainable(network, PLAIN, LORA_TARGETS), template={"tools": schemas([peek])}
    )
    with torch.no_grad():
        for number, parameter in enumerate(network.parameters()):
            parameter += 0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))
    made.suppress_tokens |= {tokenizer.convert_tokens_to_ids("<|im_start|>")}  # others write it, the policy never
    bias, plain = torch.zeros(len(tokenizer)), made.logits
    bias[tokenizer.convert_tokens_to_ids(list(likely))] = 4.0
    made.logits = lambda network, hidden: plain(network, hidden) + bias  # type: ignore[method-assign]
    return made


BAD = '<tool_call>{"name":"peek","query":1}</tool_call>'
WORDS = ("say", "a", "b", PEEK, HIDE, "seven", "eight")
LIKELY = (PEEK, HIDE, "<|im_end|>")
PROMPTS = [Prompt("say a", "0"), Prompt("say a b a", "1"), Prompt("b", "2")]


def peek() -> str:
    """Look."""
    return "seven eight"


def hide() -> str:
    """Fail."""
    raise KeyError("seven")


def tools_of(
    model: CausalLm,
    *tools: Any,
    turns: int = 4,
    observation_tokens: int = 8,
    seconds: float = 60.0,
    workers: int = 1,
    calls_per_turn: int = 0,
    unreadable_calls: int = 0,
    summaries: Summaries | None = None,
) -> Tools:
    assert model.chat is not None
    limits = (turns, observation_tokens, seconds, MARKS, "", workers, calls_per_turn)
    return Tools(tools, model.chat.reply, *limits, unreadable_calls=unreadable_calls, summaries=summaries)


def policy_of(likely: Sequence[str] = LIKELY, tools: Sequence[Any] = (peek, hide), **settings: Any) -> TokenPolicy:
    names = ("turns", "observation_tokens", "seconds", "workers", "summaries")
    limits = {name: settings.pop(name) for name in names if name in settings}
    model = model_over(WORDS, likely)
    made = tools_of(model, *tools, **limits) if tools else None
    return token_policy_over(model, **{"max_tokens": 24, "tools": made, **settings})


def rollout(policy: TokenPolicy, prompts: Sequence[Prompt] = PROMPTS, size: int = 8, first: int = 0) -> Rollout:
    return policy.rollout(Request(prompts, list(range(first, first + len(prompts))), size, seed=3))


@pytest.fixture(scope="module")
def made() -> tuple[TokenPolicy, Rollout]:
    policy = policy_of()
    return policy, rollout(policy)


def texts(made: Rollout) -> list[Text]:
    return [output for output in made.outputs if isinstance(output, Text)]


# ---- what a row is


def test_a_row_is_the_conversation_as_the_chat_template_writes_it(made):
    policy, rolled = made
    chat, tokenizer, rows = policy.model.chat, policy.model.tokenizer, kept(rolled)
    several = [one for one in texts(rolled) if one.turns]
    assert len(several) >= 8 and any(len(one.calls) > 2 for one in several)
    for row, output in enumerate(texts(rolled)):
        turns = [Turn("user", (rolled.prompts[row].text,)), *output.turns, Turn("assistant", (output.text,))]
        messages = [{"role": turn.role, "content": [{"type": "text", "text": turn.parts[0]}]} for turn in turns]
        wanted = token_ids(tokenizer, chat.text(messages, generate=False))
        prompt = policy.model.encode([rolled.prompts[row]]).ids[0].tolist()
        got = prompt + rows.ids[row][rows.real[row]].tolist()
        assert got == (wanted if not output.truncated else wanted[: len(got)])


def test_only_what_the_policy_wrote_is_a_decision(made):
    policy, rolled = made
    decisions, rows = rolled.decisions, kept(rolled)
    observed = rows.observed
    assert int(observed.sum()) > 20 and not (observed & ~rows.real).any()
    assert torch.equal(decisions.decision_mask, rows.real & ~observed)
    assert torch.equal(decisions.loss_mask, decisions.decision_mask)
    for numbers in (decisions.log_probs, decisions.fields["entropy"]):
        assert not numbers[observed].any() and numbers[decisions.decision_mask].any()
    for row, output in enumerate(texts(rolled)):
        assert output.tokens == int(decisions.decision_mask[row].sum())
        read = policy.model.decode(rows.ids[row][observed[row]].tolist())
        assert read.count("<tool_response>") == sum(turn.role == "tool" for turn in output.turns)
    assert rows.real.sum(1).max() <= 24


def test_one_forward_over_a_row_gives_the_log_probs_that_were_drawn_and_their_gradient(made):
    """The oracle: each row whole, without padding, cache or packing."""
    policy, rolled = made
    rows, mask = kept(rolled), rolled.decisions.decision_mask
    torch.testing.assert_close(rescored(policy, rolled)[mask], rolled.decisions.log_probs[mask], rtol=0, atol=1e-5)
    parameters_ = [one for one in policy.network.parameters() if one.requires_grad]
    network: Any = policy.network
    total = torch.zeros(())
    for row in range(len(mask)):
        (prompt,) = policy.model.encode([rolled.prompts[row]]).ids
        own = rows.ids[row][rows.real[row]]
        hidden = network.base_model(torch.cat([prompt, own])[None]).last_hidden_state[0]
        logits = policy.model.logits(network, hidden).index_fill(1, policy.suppressed, -torch.inf)
        log_probs = logits.log_softmax(-1)[len(prompt) - 1 : -1]
        chosen = log_probs.gather(1, own[:, None])[:, 0][~rows.observed[row][rows.real[row]]]
        wanted = rolled.decisions.log_probs[row][mask[row]]
        torch.testing.assert_close(chosen.detach(), wanted, rtol=0, atol=1e-5)
        total = total + chosen.sum()
    expected = flat(torch.autograd.grad(total, parameters_))
    sums = [policy.score(rolled, part, frozenset({"log_probs"}))["log_probs"].sum() for part in rows.split(mask, 5)]
    got = flat(torch.autograd.grad(torch.stack(sums).sum(), parameters_))
    torch.testing.assert_close(got, expected, rtol=0, atol=2e-5 * float(expected.abs().max()))


def flat(gradients: Sequence[Tensor]) -> Tensor:
    return torch.cat([one.to_dense().flatten() for one in gradients])


@pytest.mark.slow
@pytest.mark.parametrize("share", [True, False])
def test_without_calls_a_completion_is_what_it_is_without_tools(share):
    """In its ids, log-probs and loss; one turn is a completion whose calls nobody answers."""
    plain = rollout(policy_of(tools=(), share_prefix=share))
    for changes in ({"turns": 1}, {"turns": 1, "tools": (peek,)}):
        one = rollout(policy_of(share_prefix=share, **changes))
        assert torch.equal(kept(one).ids, kept(plain).ids)
        for name in ("log_probs", "loss_mask", "decision_mask", "node"):
            assert torch.equal(getattr(one.decisions, name), getattr(plain.decisions, name))
        assert [output.text for output in texts(one)] == [output.text for output in texts(plain)]
    several = rollout(policy_of(share_prefix=share))
    quiet = [row for row, output in enumerate(texts(plain)) if "<tool_call>" not in output.text]
    assert 0 < len(quiet) < 24
    for row in quiet:
        assert texts(several)[row].ids == texts(plain)[row].ids and not texts(several)[row].turns


def test_a_completion_does_not_depend_on_the_others(made):
    _, together = made
    alone = rollout(policy_of(), PROMPTS[1:2], first=1)
    assert [one.transcript for one in texts(alone)] == [one.transcript for one in texts(together)[8:16]]
    padded = rollout(policy_of(draw_batch_size=3, share_prefix=False))
    assert [one.transcript for one in texts(padded)] == [one.transcript for one in texts(together)]


def test_later_turns_differ_between_members(made):
    """Equal beginnings go on differently: each member has a random stream of its own in each turn."""
    _, rolled = made
    after: dict[tuple[Turn, ...], set[str]] = {}
    for row, output in enumerate(texts(rolled)):
        if len(output.turns) >= 2:
            after.setdefault((Turn(str(row // 8), ()), *output.turns[:2]), set()).add(output.transcript)
    assert max(map(len, after.values())) > 1


def test_an_engine_draws_the_same(made):
    _, rolled = made
    served = policy_of()
    engine = Synchronized(OwnSampler(policy_of()), lambda: parameters(served.network), served.model, max_gap=1e-4)
    served.draw_with(engine)
    other = rollout(served)
    assert torch.equal(kept(other).ids, kept(rolled).ids)
    assert torch.equal(other.decisions.fields["sampler_log_probs"], rolled.decisions.log_probs)
    torch.testing.assert_close(other.decisions.log_probs, rolled.decisions.log_probs, rtol=0, atol=1e-5)
    observed = kept(other).observed
    assert observed is not None and not other.decisions.log_probs[observed].any()


def test_evaluation_calls_tools_too():
    outputs = policy_of().sample(Request(PROMPTS, [0, 1, 2], 1, seed=0))
    assert any(isinstance(one, Text) and one.calls for one in outputs)


# ---- one completion, word by word


@cache
def frame() -> CausalLm:
    return model_over((*WORDS, BAD))


def spelled(*words: str) -> list[int]:
    return frame().tokenizer.convert_tokens_to_ids(list(words))


def conversed(
    script: Sequence[Sequence[str]],
    *tools: Any,
    most: int = 60,
    prompt: Prompt = PROMPTS[0],
    keyed: bool = False,
    **limits: Any,
) -> tuple[Any, list[Query]]:
    """A completion whose turns are those of the script, and the queries of its later turns. The log-prob of a token is
    minus its number."""
    asked: list[Query] = []

    def drawn(turn: int) -> Generated:
        ids = torch.tensor([spelled(*script[turn])])
        return Generated(ids, ids >= 0, -ids.float(), ids / 10, torch.zeros(ids.shape))

    def draw(queries: Sequence[Query], limit: int, turn: int) -> Generated:
        asked.extend(queries)
        return drawn(turn - 1)

    of_test = len(tools) == 1 and isinstance(tools[0], Tools)
    given = tools[0] if of_test else tools_of(frame(), *(tools or (peek, hide)), **limits)
    found = given.converse(
        drawn(0), [Query(prompt, 5, 1)], draw, frame(), frozenset(spelled("<|im_end|>")), most, 7, keyed
    )
    return found, asked


OPEN, CLOSE, END, BEGIN = "<tool_response>", "</tool_response>", "<|im_end|>", "<|im_start|>"


def test_a_worked_completion():
    found, asked = conversed([["a", PEEK, END], ["seven", END]])
    reply = [BEGIN, "user", OPEN, "seven", "eight", CLOSE, END, BEGIN, "assistant"]
    ids = spelled("a", PEEK, END, *reply, "seven", END)
    assert found.drawn.ids.tolist() == [ids]
    assert found.observed.tolist() == [[False] * 3 + [True] * 9 + [False] * 2]
    numbers = [0 if observed else -number for number, observed in zip(ids, found.observed[0], strict=True)]
    assert found.drawn.log_probs.tolist() == [numbers]
    assert asked == [Query(PROMPTS[0], 5 << 20, 1, forced=tuple(ids[:12]))]
    (one,) = found.episodes
    assert (one.text, one.end, one.written) == ("seven", "answered", 5)
    assert one.turns == [Turn("assistant", (f"a {PEEK}",)), Turn("tool", ("seven eight",))]
    assert one.calls == [Call("peek", {}, "seven eight")]
    assert {name: float(value) for name, value in found.fields().items()} == {
        "turns": 2, "tool_calls": 1, "failed_calls": 0, "turns_end": ENDS.index("answered"), "world_failed": 0
    }  # fmt: skip


@pytest.mark.parametrize(
    ("script", "limits", "end", "turns", "calls"),
    [
        ([["a", END]], {}, "answered", 1, 0),
        ([["a", "b"]], {"most": 2}, "tokens", 1, 0),
        ([[PEEK, END], [PEEK, END]], {"turns": 2}, "turns", 2, 1),
        # Two tokens and nine of the reply leave one.
        ([[PEEK, END], [END]], {"most": 12}, "answered", 2, 1),
        ([[PEEK, END]], {"most": 11}, "tokens", 1, 1),
        ([[PEEK, END], ["a", "a", "a"]], {"most": 13}, "tokens", 2, 1),
    ],
)
def test_limits_end_a_completion(script, limits, end, turns, calls):
    found, _ = conversed(script, **limits)
    (one,) = found.episodes
    assert (one.end, one.turn, len(one.calls)) == (end, turns, calls)
    assert len(one.ids) <= limits.get("most", 60)
    assert bool(found.ended) == (end != "tokens")


def test_two_calls_of_a_turn_are_answered_in_one():
    found, _ = conversed([[PEEK, HIDE, END], [END]])
    (one,) = found.episodes
    assert [(call.name, call.result, call.error) for call in one.calls] == [
        ("peek", "seven eight", ""),
        ("hide", "", "KeyError: 'seven'"),
    ]
    read = [token for token, observed in zip(one.ids, one.observed, strict=True) if observed]
    unknown = ["<unk>"] * 2  # the error's words
    wanted = [BEGIN, "user", OPEN, "seven", "eight", CLOSE, OPEN, "error:", *unknown, CLOSE, END, BEGIN, "assistant"]
    assert read == spelled(*wanted) and float(found.fields()["failed_calls"]) == 1


@pytest.mark.parametrize(("most", "made", "refused"), [(0, 4, ""), (4, 4, ""), (1, 1, "3"), (3, 3, "1")])
def test_calls_of_a_turn_beyond_the_limit_are_refused_together(most, made, refused):
    script = [[PEEK, PEEK, PEEK, HIDE, END], [PEEK, END], [END]]
    found, _ = conversed(script, Shop, most=200, calls_per_turn=most)
    (one,) = found.episodes
    first = one.calls[:-1]  # the second turn has one call, of an instance that knows of those that were made
    assert json.loads(one.calls[-1].result)[-1] == 2 + min(made, 3)
    assert len(first) == made + bool(refused) and sum(not call.error for call in first) == made
    if refused:
        assert f"at most {most}" in first[-1].error and f"last {refused} " in first[-1].error
        assert sum(turn.role == "tool" for turn in one.turns) == made + 2


class Shop:
    """Keeps what it was told."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def reset(self, prompt: Prompt, seed: int) -> None:
        self.seen = [prompt.id, seed]

    def peek(self) -> list[Any]:
        """Look."""
        self.seen.append(len(self.seen))
        return self.seen

    def hide(self) -> None:
        """Nothing."""


def test_an_instance_of_a_class_lives_as_long_as_its_completion():
    seed, other = derive(7, "tools", 5), PROMPTS[1]
    tools = tools_of(frame(), Shop)
    for prompt in (PROMPTS[0], other):  # the process is the same, the instance another
        found, _ = conversed([[PEEK, END], [PEEK, HIDE, END], [END]], tools, prompt=prompt)
        first, *more = [call.result for call in found.episodes[0].calls]
        assert [first, *more] == [f'["{prompt.id}", {seed}, 2]', f'["{prompt.id}", {seed}, 2, 3]', "null"]
    (copy,) = tools.process._idle
    assert copy.ask({"hook": "peek"}, 60.0)["error"].startswith("AttributeError")  # none is left behind
    found, _ = conversed([["a", END]], tools)
    assert not found.episodes[0].instances  # made when it is first called


class Room(Shop):
    """Says what is in it, which depends on prompt and seed."""

    def reset(self, prompt: Prompt, seed: int) -> str:
        super().reset(prompt, seed)
        return f" {'seven' if seed % 2 else 'eight'} b"


def test_what_a_reset_returns_stands_behind_the_prompt(made):
    policy = policy_of(tools=[Room, hide_as("door")])
    rolled = rollout(policy)
    model: Any = policy.model
    said = [f" {'seven' if derive(3, 'tools', slot) % 2 else 'eight'} b" for slot in range(3)]
    assert len({*said}) == 2
    for row, output in enumerate(texts(rolled)):
        assert rolled.prompts[row] is PROMPTS[row // 8]  # rewards see the row as it is
        opened = replace(rolled.prompts[row], text=rolled.prompts[row].text + said[row // 8])
        (wanted,) = model.encode([opened]).ids.tolist()
        context = kept(rolled).context
        assert context.ids[row // 8][context.real[row // 8]].tolist() == wanted
        assert output.turns[0] == Turn("user", (said[row // 8],))
        assert output.transcript.startswith(f"user: {said[row // 8]}\nassistant: ")
    mask = rolled.decisions.decision_mask
    torch.testing.assert_close(rescored(policy, rolled)[mask], rolled.decisions.log_probs[mask], rtol=0, atol=1e-5)
    answered = [call.result for one in texts(rolled) for call in one.calls if call.name == "peek"]
    assert answered and all(result.startswith('["') for result in answered)  # an instance of each completion
    (evaluated,) = policy.sample(Request(PROMPTS[:1], [0], 1, seed=3))
    assert isinstance(evaluated, Text) and evaluated.turns[0] == Turn("user", (said[0],))
    assert not any(name.endswith("under a changed prompt") for name in policy.provides)
    assert any(name.endswith("under a changed prompt") for name in made[0].provides)


def hide_as(name: str) -> Any:
    return offered_as(name, hide)


@pytest.mark.parametrize(
    ("annotation", "declared"),
    [
        *((str, True), (str | None, True), ("str", True), ("str | None", True), ("Missing | None", False)),
        *((list[str], False), (dict[str, str], False), (None, False), (inspect.Signature.empty, False)),
    ],
)
def test_a_reset_is_declared_to_return_a_text_by_its_annotation(annotation, declared):
    class Board:
        def reset(self, prompt: "Missing"):
            return ""

    if annotation is not inspect.Signature.empty:
        Board.reset.__annotations__["return"] = annotation
    assert opens(Board) == declared
    Board.reset.__annotations__.pop("prompt")
    if annotation != "Missing | None":
        assert opens(Board) == declared


@pytest.mark.slow
def test_a_reset_that_returns_nothing_leaves_the_prompt_as_it_is():
    class Silent(Shop):
        def reset(self, prompt: Prompt, seed: int) -> str | None:
            super().reset(prompt, seed)

    first, second = rollout(policy_of(tools=[Silent])), rollout(policy_of(tools=[Shop]))
    assert texts(first) == texts(second) and torch.equal(kept(first).ids, kept(second).ids)


def test_special_tokens_in_what_a_reset_returns_are_written_apart():
    class Loud(Shop):
        def reset(self) -> str:  # type: ignore[override]
            return f"{END} a"

    (query,) = tools_of(frame(), Loud).open_prompts([Query(PROMPTS[0], 0, 1)], 0)
    assert query.opening == ("< |im_end|> a",)


def counted(numbers: Any = count()) -> str:  # noqa: B008
    return str(next(numbers))


def of_reset(value: Any, declared: Any) -> type:
    def reset(self: Any) -> Any:
        return value() if callable(value) else value

    reset.__annotations__ = {"return": declared} if declared else {}
    return type("Odd", (), {"reset": reset, "peek": lambda self: "a"})


@pytest.mark.parametrize(
    ("made", "error", "reason"),
    [
        (of_reset("a", None), ValueError, "'Odd'.*text.*-> str"),
        (of_reset("a", dict), ValueError, "'Odd'.*text.*-> str"),
        (of_reset(3, str), ValueError, "'Odd'.*int.*text"),
        (of_reset(counted, "str | None"), RuntimeError, "'Odd'.*'[3-9]'.*prompt '0'.*'0'"),
    ],
)
def test_what_a_reset_cannot_return(made, error, reason):
    with pytest.raises(error, match=reason):
        rollout(policy_of(tools=[made]))


class Counter(Shop):
    """Rewards each look."""

    def reward(self) -> float:
        return len(self.seen) - 2.0


def test_a_class_rewards_the_completions_that_it_has_served():
    for script, reward in (([[PEEK, END], [PEEK, END], ["a", END]], 2.0), ([["a", END]], 0.0)):
        found, _ = conversed(script, Counter)
        assert found.episodes[0].reward == reward
    assert set(tools_by_name([Counter])) == {"peek", "hide"}
    assert conversed([["a", END]], Shop)[0].episodes[0].reward is None


def test_rewards_of_tools_arrive_with_the_texts():
    rolled = rollout(policy_of(tools=(Counter,), workers=3))
    served = [one.tool_reward for one in texts(rolled)]
    assert served == [sum(call.name == "peek" for call in one.calls) for one in texts(rolled)] and max(served) > 1


@pytest.mark.parametrize(
    ("value", "seconds", "reason"),
    [(lambda: 1 / 0, 60.0, "ZeroDivisionError"), (threading.Event().wait, 1.0, "no answer within 1 ")],
)
def test_a_reward_that_fails_is_none(value, seconds, reason):
    class Broken(Shop):
        def reward(self) -> float:
            return value()

    with pytest.warns(UserWarning, match=f"'Broken'.*'0'.*{reason}"):
        (one,) = conversed([["a", END]], Broken, seconds=seconds)[0].episodes
    assert math.isnan(one.reward)


class Paid(Counter):
    """Rewards each turn with the looks of it, and 10 for what it has seen by then."""

    def reset(self, prompt: Prompt, seed: int) -> None:
        super().reset(prompt, seed)
        self.asked: list[int] = []

    def turn_reward(self) -> float:
        self.asked.append(len(self.seen) - 2 - sum(self.asked))
        return self.asked[-1] + 10.0 * (len(self.asked) - 1)


@pytest.mark.parametrize(
    ("script", "limits", "rewards"),
    [
        ([[PEEK, PEEK, END], [PEEK, END], ["a", END]], {}, [2, 11, 20]),
        ([["a", END]], {}, [0]),
        ([[PEEK, END], [PEEK, END]], {"turns": 2}, [1, 10]),  # the calls of the last turn are not answered
        ([[PEEK, END]], {"most": 3}, [1]),  # nor read where they do not fit
    ],
)
def test_a_class_rewards_each_turn_at_its_last_token(script, limits, rewards):
    found, _ = conversed(script, Paid, **limits)
    (one,), given = found.episodes, found.step_rewards[0]
    assert one.earned == rewards and given[one.ends].tolist() == rewards and float(given.sum()) == sum(rewards)
    assert [one.ids[end] for end in one.ends] == spelled(*[turn[-1] for turn in script])
    written = [one.ids[place] for place in range(len(one.ids)) if found.turn[0, place] == len(script) - 1]
    assert written == spelled(*script[-1])
    assert torch.equal(found.turn >= 0, ~found.observed)
    assert one.reward == sum(word == PEEK for turn in script[: one.turn - (one.end != "tokens")] for word in turn)


@pytest.mark.slow
def test_turns_are_recorded_on_request_and_their_rewards_where_a_class_gives_some():
    asked = Request(PROMPTS, [0, 1, 2], 8, seed=3, records=frozenset({"turn"}))
    rolled = policy_of(tools=(Paid, offered_as("more", peek))).rollout(asked)
    fields, mask = rolled.decisions.fields, rolled.decisions.decision_mask
    assert torch.equal(fields["turn"] >= 0, mask) and not fields["step_rewards"][~mask].any()
    most = fields["turn"].amax(1)
    assert torch.equal(most + 1, fields["turns"].long()) and int(most.max()) > 1
    assert (fields["turn"].diff(dim=1)[mask[:, 1:] & mask[:, :-1]] >= 0).all()
    none = policy_of().rollout(asked).decisions.fields
    assert "turn" in none and not none["step_rewards"].any()
    assert "step_rewards" not in rollout(policy_of()).decisions.fields
    assert not {"turn of samples"} & policy_of(tools=()).provides


@pytest.mark.parametrize(
    ("value", "seconds", "reason"),
    [(lambda: 1 / 0, 60.0, "ZeroDivisionError"), (threading.Event().wait, 1.0, "no answer within 1 ")],
)
def test_a_reward_of_a_turn_that_fails_is_none(value, seconds, reason):
    class Broken(Paid):
        def turn_reward(self) -> float:
            return super().turn_reward() if len(self.asked) != 1 else value()

    with pytest.warns(UserWarning, match=f"turn_reward.*'Broken'.*'0'.*{reason}"):
        (one,) = conversed([[PEEK, END], ["a", END]], Broken, seconds=seconds)[0].episodes
    assert one.earned[0] == 1 and math.isnan(one.earned[1])
    assert math.isnan(one.reward) == (seconds < 10)  # an instance that does not answer is in an unknown state


@pytest.mark.parametrize("gave", [math.nan, math.inf])
def test_a_sample_whose_turn_has_no_reward_is_outside_of_a_credit_of_turns(gave, tmp_path):
    class Broken(Paid):
        def turn_reward(self) -> float:
            return gave if len(self.seen) > 3 else 1.0

    def run(credit: str) -> dict[str, float]:
        blocks = algorithm_blocks("grpo", terms=[], baseline="none", scale="none", credit=credit)
        made = trainer(policy_of(tools=[Broken]), tmp_path / credit[:4], PROMPTS, reward=few_calls, steps=1, **blocks)
        made.fit()
        return read_metrics(tmp_path / credit[:4] / "metrics.jsonl")[-1]

    turns, rows = run("turn_return"), run("broadcast")
    share = turns["rollout/turn_reward_failed_fraction"]
    assert 0 < share < 1 and turns["group/unscored_fraction"] == share and "reward/reward/failed" not in turns
    assert rows["rollout/turn_reward_failed_fraction"] == share and "reward/reward/failed" not in rows
    assert math.isfinite(turns["group/advantage"]) and turns["rollout/turn_reward"] >= 1


@pytest.mark.parametrize("gave", [math.inf, -math.inf, math.nan, 10**400, 1e39])
def test_turns_without_any_reward_are_an_error_of_their_class_and_not_of_the_reward(gave, tmp_path):
    class Broken(Paid):
        def turn_reward(self) -> float:
            return gave

    blocks = algorithm_blocks("grpo", terms=[], baseline="none", scale="none", credit="turn_return")
    made = trainer(policy_of(tools=[Broken]), tmp_path, PROMPTS, reward=few_calls, steps=1, **blocks)
    with (
        pytest.warns(UserWarning, match="turn_reward.*'Broken'.*finite"),
        pytest.raises(RuntimeError, match="sampling.tools: turn_reward"),
    ):
        made.fit()


class Walk(Shop):
    """On a line, of which ``peek`` is a step to the right and ``hide`` one to the left."""

    def reset(self, prompt: Prompt, seed: int) -> None:
        self.place = 0

    def peek(self) -> str:
        """Right."""
        self.place += 1
        return "seven"

    def hide(self) -> str:
        """Left."""
        self.place -= 1
        return "eight"

    def state(self) -> Any:
        return {"place": self.place, "again": (self.place,)}


def states_of(script: Sequence[Sequence[str]], *tools: Any, prompt: Prompt = PROMPTS[0], **limits: Any) -> list[int]:
    found, _ = conversed(script, *tools, prompt=prompt, keyed=True, **limits)
    (numbers,), (turn,) = found.fields(frozenset({"state"}))["state"], found.turn
    assert not numbers[turn < 0].any()
    each = [{*numbers[turn == number].tolist()} for number in range(found.episodes[0].turn)]
    assert all(len(some) == 1 for some in each)
    return [some.pop() for some in each]


def test_a_turn_has_the_state_in_which_it_was_taken():
    there_and_back = [["a", PEEK, END], [HIDE, END], [PEEK, PEEK, END], ["a", END]]
    first, second, third, last = states_of(there_and_back, Walk)
    assert first == third and len({first, second, last}) == 3
    begun, after = states_of([[PEEK, PEEK, END], ["b", "b", END]], Walk, peek_none())
    assert (begun, after) == (first, last)  # whatever the way, and whatever tools without states do
    assert states_of([["a", END]], Walk) == [first] != states_of([["a", END]], Walk, prompt=PROMPTS[1])
    # The same in another process.
    assert number_of(PROMPTS[0], [{"place": 0, "again": [0]}]) == first
    assert number_of(Prompt("", "x"), {"b": 1, "a": "é"}) == number_of(Prompt("", "x"), {"a": "é", "b": 1})
    assert number_of(Prompt("", "x"), 3) == 6270758321780097406


def peek_none() -> Any:
    return offered_as("none", lambda: "")


def test_what_a_turn_does_is_its_calls_or_its_words():
    found, _ = conversed([["a", PEEK, END], [PEEK, END], [HIDE, END], ["b", "a", END]], keyed=True)
    (one,) = found.episodes
    first, second, third, last = one.actions
    assert first == second and len({first, third, last}) == 3  # words beside a call are none
    (said,) = conversed([["b", "a", END]], keyed=True)[0].episodes
    assert said.actions == [last] == [_action(PROMPTS[0], "<think> seven </think> b  a")]
    rolled = policy_of().rollout(Request(PROMPTS, [0, 1, 2], 8, seed=3, records=frozenset({"turn", "action"})))
    action, turn = rolled.decisions.fields["action"], rolled.decisions.fields["turn"]
    assert "state" not in rolled.decisions.fields and not action[turn < 0].any()
    for row, output in enumerate(texts(rolled)):
        if calls_of(output.text):
            got = number_of(PROMPTS[row // 8], [[name, given] for name, given in calls_of(output.text)])
            assert int(action[row][turn[row] == turn[row].max()][0]) == got


def test_without_a_state_of_a_class_it_is_what_was_read_last():
    """Results and errors, however long, and images; nothing before the first call."""
    results = iter(["seven", "seven eight", "seven", "seven" * 100])
    changing = offered_as("peek", lambda: next(results))
    first, *read = states_of([[PEEK, END], [PEEK, END], [PEEK, END], [PEEK, END], ["a", END]], changing, hide, turns=5)
    assert read[0] == read[2] and len({first, *read}) == 4
    failed = states_of([[HIDE, END], [HIDE, HIDE, END], ["a", END]])
    assert failed[0] == first and len({*failed, *read}) == 6
    shown = [number_of(PROMPTS[0], _observation(Call("", images=(Media("image", one),)))) for one in IMAGES]
    assert shown[0] == shown[1] and len({*shown}) == 4


IMAGES = [
    Image(torch.zeros(3, 2, 4)),
    Image(torch.zeros(3, 4, 2).transpose(1, 2).contiguous()),
    Image(torch.zeros(3, 4, 2)),
    Image(torch.ones(3, 2, 4)),
    "a.png",
]


def test_a_state_that_cannot_be_named_is_equal_to_no_other():
    class Lost(Walk):
        def state(self) -> Any:
            return 1 / 0 if self.place else 0

    script = [["a", PEEK, END], [HIDE, END], ["b", END]]
    with pytest.warns(UserWarning, match="state.*'Lost'.*'0'.*ZeroDivisionError"):
        first, second, third = states_of(script, Lost)
    assert first == third != second
    for one in (set(), b"x", object()):
        Lost.state = lambda self, one=one: one  # type: ignore[method-assign]
        with pytest.raises(ValueError, match=r"state.*'Lost'.*JSON"):
            states_of([["a", END]], Lost)


def test_states_are_recorded_on_request_and_their_share_is_logged():
    rolled = policy_of(tools=(Walk,), workers=2).rollout(
        Request(PROMPTS, [0, 1, 2], 8, seed=3, records=frozenset({"turn", "state"}))
    )
    decisions = rolled.decisions
    state, turn, mask = decisions.fields["state"], decisions.fields["turn"], decisions.decision_mask
    assert state.dtype == torch.long and not state[~mask].any()
    met = Counts(
        (row // 8, int(state[row][turn[row] == number][0]))
        for row in range(24)
        for number in range(int(turn[row].max()) + 1)
    )
    assert len({one for one in met if met[one] >= 8}) == 3  # where each prompt begins
    share = sampling_metrics(decisions, torch.zeros(24))["rollout/single_state_fraction"]
    assert 0 < share < 1 and share == pytest.approx(sum(n == 1 for n in met.values()) / met.total())


ANSWERED = [replace(prompt, answer=answer) for prompt, answer in zip(PROMPTS, ("seven eight", "a", "b b"), strict=True)]


@pytest.mark.parametrize("share", [True, False])
def test_a_turn_gains_what_it_adds_to_the_probability_of_the_answer(share):
    """Against plain forward passes: exp(mean log-prob of the answer) behind what stands before each turn."""
    policy = policy_of(share_prefix=share, temperature=0.8, max_tokens=48)
    asked = Request(ANSWERED, [0, 1, 2], 8, seed=3, records=frozenset({"turn", "answer_gain"}))
    rolled = policy.rollout(asked)
    rows, fields, network = kept(rolled), rolled.decisions.fields, policy.network
    gain, turn = fields["answer_gain"], fields["turn"]
    model: Any = policy.model
    opening, several = model.spell("<answer>")[:-1], 0

    @torch.no_grad()
    def probability(row: int, length: int) -> float:
        (prompt,) = model.encode([rolled.prompts[row]]).ids.tolist()
        answer = model.spell(rolled.prompts[row].answer)[:-1]
        ids = torch.tensor([[*prompt, *rows.ids[row][:length].tolist(), *opening, *answer]])
        logits = model.logits(network, network.base_model(ids).last_hidden_state[0]) / 0.8
        log_probs = logits.index_fill(1, policy.suppressed, -torch.inf).log_softmax(-1)
        chosen = [log_probs[-len(answer) - 1 + place, token] for place, token in enumerate(answer)]
        return float(torch.stack(chosen).mean().exp())

    for row in range(24):
        places = [(turn[row] == number).nonzero()[:, 0] for number in range(int(turn[row].max()) + 1)]
        before = [probability(row, int(some[0])) for some in places]
        for number, some in enumerate(places):
            last = number == len(places) - 1
            wanted = 0.0 if last else before[number + 1] - before[number]
            assert float(gain[row, some[-1]]) == pytest.approx(wanted, abs=1e-6)
            assert not gain[row][some[:-1]].any()
        assert not gain[row][turn[row] < 0].any()
        several += len(places) > 2
    assert several > 1
    assert sampling_metrics(rolled.decisions, torch.zeros(24))["rollout/answer_gain"] == pytest.approx(
        float(gain.sum() / 24), abs=1e-7
    )


def test_gains_are_differences_of_geometric_means():
    """Mean log-probs -2, -1 and -.5: .36788 - .13534 and .60653 - .36788. Equal beginnings are scored once."""
    model, scored = frame(), []
    ids = torch.tensor([spelled("a", END, BEGIN, "b", END, BEGIN, "a", END)] * 2)
    observed = torch.tensor([[False, False, True] * 2 + [False, False]] * 2)
    context: Any = SimpleNamespace(forced=())
    sequences = Sequences(context, (), torch.tensor([0, 0]), ids, torch.ones_like(observed), observed=observed)

    def score(some: Sequences, part: Any) -> Tensor:
        scored.append(len(some.ids))
        length = (some.lengths[part.rows] - 3) // 3  # turns before the answer of two words and its opening of one
        spread = torch.where(part.positions % 2 == 0, 0.25, -0.25)
        return torch.tensor([-2.0, -1.0, -0.5])[length] + spread

    begun = [[(0, 0), (3, 0), (6, 0)], [(0, 0), (3, 0)]]
    prompt = replace(PROMPTS[0], answer="seven eight")
    got = answer_gains(sequences, [prompt, prompt], begun, "<tool_call>", model, score)
    expected = [[0, 0.23254, 0, 0, 0.23865, 0, 0, 0], [0, 0.23254, 0, 0, 0, 0, 0, 0]]
    torch.testing.assert_close(got, torch.tensor(expected), rtol=0, atol=1e-5)
    assert sum(scored) == 3
    with pytest.raises(ValueError, match="'0'.*None.*answer"):
        answer_gains(sequences, PROMPTS[:1] * 2, begun, "<tool_call>", model, score)


def test_a_reward_that_is_no_number_stops_the_run():
    class Wordy(Shop):
        def reward(self) -> str:
            return "well done"

    with pytest.raises(ValueError, match="reward of.*'Wordy'.*str.*number"):
        conversed([["a", END]], Wordy)
    Wordy.turn_reward = Wordy.reward  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="turn_reward of.*'Wordy'.*str.*number"):
        conversed([["a", END]], Wordy)


# ---- what a model and a tool can do wrong


@pytest.mark.parametrize(
    ("text", "name", "reason"),
    [
        ("<tool_call>peek()</tool_call>", "", "cannot be read"),
        ("<tool_call>[]</tool_call>", "", "cannot be read"),
        ("<tool_call>" + "[" * 100_000 + "</tool_call>", "", "cannot be read"),
        ('<tool_call>{"name": "peek", "arguments": {"x": NaN}}</tool_call>', "", "cannot be read"),
        ('<tool_call>{"name": "peek", "arguments": {"x": "\\ud800"}}</tool_call>', "", "cannot be read"),
        ('<tool_call>{"name": "peek", "arguments": []}</tool_call>', "peek", "arguments"),
        ('<tool_call>{"arguments": {}}</tool_call>', "", "name"),
        ('<tool_call>{"name": 3, "arguments": {}}</tool_call>', "", "name"),
        ('<tool_call>{"name": "peek", "query": "cats"}</tool_call>', "peek", "'query'"),
        ('<tool_call>{"name": "peek", "args": {"query": "cats"}}</tool_call>', "peek", "'args'"),
        ('<tool_call>{"name": "peek", "arguments": {}, "parameters": {"x": 1}}</tool_call>', "peek", "parameters"),
        ('<tool_call>{"name": "peek", "parameters": [1]}</tool_call>', "peek", "parameters"),
        ('<tool_call>{"name": "peek", "arguments": null}</tool_call>', "peek", "arguments"),
        ('<tool_call>{"name": "peek", "arguments": "cats"}</tool_call>', "peek", "text"),
        ('<tool_call>{"name": "peek", "arguments": "{\\"x\\": NaN}"}</tool_call>', "peek", "text"),
        ('<tool_call>{"name": "peek", "arguments": {}}', "", "</tool_call>"),
    ],
)
def test_a_call_that_cannot_be_read_says_why(text, name, reason):
    ((found, given),) = calls_of(text)
    assert found == name and isinstance(given, str) and reason in given


CATS = {"query": "cats"}


@pytest.mark.parametrize(
    ("written", "given"),
    [
        ({"arguments": CATS}, CATS),
        ({"parameters": CATS}, CATS),
        ({"arguments": json.dumps(CATS)}, CATS),
        ({"parameters": json.dumps(CATS)}, CATS),
        ({}, {}),
    ],
)
def test_arguments_stand_under_either_key_as_an_object_or_its_text(written, given):
    assert calls_of(f"<tool_call>{json.dumps({'name': 'search', **written})}</tool_call>") == [("search", given)]


RUNS = {
    "one turn": ([[BAD, BAD, END]], 2, "unreadable", 1),
    "two turns": ([[BAD, END], [BAD, END]], 2, "unreadable", 2),
    "between": ([[BAD, PEEK, BAD, END], ["a", END]], 2, "answered", 2),
    "a turn between": ([[BAD, END], [PEEK, END], [BAD, END], ["a", END]], 2, "answered", 4),
    "first": ([[BAD, END]], 1, "unreadable", 1),
    "never": ([[BAD, END]] * 3 + [["a", END]], 0, "answered", 4),
}


@pytest.mark.parametrize(("script", "most", "end", "turns"), RUNS.values(), ids=RUNS)
def test_a_completion_ends_after_calls_in_a_row_that_cannot_be_read(script, most, end, turns):
    (one,) = (found := conversed(script, unreadable_calls=most, most=200)[0]).episodes
    assert (one.end, one.turn) == (end, turns)
    assert float(found.fields()["turns_end"]) == ENDS.index(end) and bool(found.ended)


def test_calls_in_a_thought_are_none():
    assert calls_of(f"<think>{PEEK}</think> done") == []
    assert calls_of(f"<think>{PEEK}") == []
    assert calls_of(f"<think>{HIDE}</think> {PEEK}") == [("peek", {})]


@pytest.mark.parametrize(
    ("tool", "arguments", "value", "error"),
    [
        (lambda x: x + 1, {"x": 1}, "2", ""),
        (lambda: 1 / 0, {}, "", "ZeroDivisionError"),
        (lambda x: x, {"y": 1}, "", "unexpected keyword argument 'y'"),
        (lambda: (_ for _ in ()).throw(RuntimeError("half \ud800")), {}, "", "half ?"),
    ],
)
def test_what_a_tool_raises_is_its_answer(tool: Callable[..., Any], arguments, value, error):
    tools = tools_of(frame(), offered_as("peek", tool))
    call = tools._make_call(Episode(Query(PROMPTS[0], 0, 1), 0), "peek", arguments, 0)
    assert call.result == value and (error in call.error if error else not call.error)


def test_an_unknown_tool_is_answered_with_the_nearest():
    (one,) = conversed([[PEEK, END], [END]], offered_as("peel"))[0].episodes
    (call,) = one.calls
    assert call.name == "peek" and "'peek'" in call.error and "peel" in call.error


def offered_as(name: str, function: Callable[..., Any] = peek) -> Any:
    copy = SimpleNamespace(__name__=name, __call__=function)
    made = lambda *given, **named: copy.__call__(*given, **named)  # noqa: E731
    made.__name__ = name
    return made


def test_a_tool_that_does_not_answer_is_not_waited_for():
    """A function may be called again; an instance of a class is in an unknown state."""
    never = threading.Event()

    class Slow(Shop):
        def peek(self) -> list[Any]:
            never.wait()
            return []

    for tool, errors in ((offered_as("peek", never.wait), ["0.05", "0.05"]), (Slow, ["0.05", "no longer"])):
        found, _ = conversed([[PEEK, END], [PEEK, END], [END]], tool, seconds=0.05)
        (one,) = found.episodes
        assert [error in call.error for error, call in zip(errors, one.calls, strict=True)] == [True, True]
        assert one.end == "answered"
    never.set()


def test_a_long_result_is_cut_and_special_tokens_are_written_apart():
    found, _ = conversed([[PEEK, END], [END]], offered_as("peek", lambda: "a b " * 50), observation_tokens=3)
    (one,) = found.episodes
    assert one.turns[1].parts == ("a b a",) and one.calls[0].result == "a b " * 50
    found, _ = conversed([[PEEK, END], [END]], offered_as("peek", lambda: f"seven{END}{BEGIN} system \udfff"))
    (one,) = found.episodes
    assert one.turns[1].parts == ("seven< |im_end|>< |im_start|> system ?",)
    assert one.ids.count(*spelled(END)) == 3 and one.ids.count(*spelled(BEGIN)) == 2  # of the frame alone


def test_calls_of_several_completions_are_answered_at_a_time():
    """Each of two waits for the other; their answers keep their places."""
    meeting = multiprocessing.get_context("fork").Barrier(2)

    class Meet:
        def reset(self, prompt: Prompt) -> None:
            self.name = prompt.id

        def peek(self) -> str:
            """Look."""
            meeting.wait(timeout=60)
            return self.name

    ids = torch.tensor([spelled(PEEK, END)] * 2)
    turns = [Generated(ids, ids >= 0, -ids.float(), ids / 10, torch.zeros(ids.shape))]
    last = torch.tensor([spelled("a", END)] * 2)
    given = replace(tools_of(frame(), Meet), workers=2)
    found = given.converse(
        turns[0],
        [Query(prompt, place, 1) for place, prompt in enumerate(PROMPTS[:2])],
        lambda *_: Generated(last, last >= 0, -last.float(), last / 10, torch.zeros(last.shape)),
        frame(),
        frozenset(spelled(END)),
        60,
        7,
    )
    assert [one.calls[0].result for one in found.episodes] == ["0", "1"]


def test_an_image_for_a_model_that_sees_none_stops_the_run():
    with pytest.raises(ValueError, match="sampling.tools: 'peek'.*image.*CausalLm"):
        conversed([[PEEK, END]], offered_as("peek", lambda: Image(torch.zeros(3, 2, 2))))


def test_an_image_of_another_shape_stops_the_run():
    grey = Image(torch.zeros(3, 2, 2))
    object.__setattr__(grey, "pixels", torch.zeros(1, 2, 2))  # where nothing checks shapes
    with pytest.raises(ValueError, match=r"sampling.tools: 'peek'.*\[1, 2, 2\].*height"):
        conversed([[PEEK, END]], offered_as("peek", lambda: grey))


@pytest.mark.parametrize("value", [torch.zeros(2), object(), {1, 2}, [Image(torch.zeros(3, 2, 2)), {1}]])
def test_what_is_no_text_stops_the_run(value):
    kind = "set" if isinstance(value, list) else type(value).__name__
    with pytest.raises(ValueError, match=f"sampling.tools.*'peek'.*{kind}.*text"):
        conversed([[PEEK, END]], offered_as("peek", lambda: value))


@pytest.mark.parametrize(
    ("value", "text"), [("as it is", "as it is"), (None, "null"), ({"a": [1, True, "é"]}, '{"a": [1, true, "é"]}')]
)
def test_values_are_written_as_json(value, text):
    found, _ = conversed([[PEEK, END], [END]], offered_as("peek", lambda: value))
    assert found.episodes[0].calls[0].result == text


# ---- tools as they are named and described


def test_tools_are_functions_and_methods_of_classes():
    assert {name: owner for name, (owner, _) in tools_by_name([hide]).items()} == {"hide": None}
    assert {name: owner for name, (owner, _) in tools_by_name([Shop]).items()} == {"peek": Shop, "hide": Shop}
    with pytest.raises(ValueError, match="two tools.*'peek'"):
        tools_by_name([peek, Shop])
    with pytest.raises(ValueError, match="'Empty'.*public method"):
        tools_by_name([type("Empty", (), {"reset": peek})])


def test_names_of_tools_are_looked_up_in_the_working_directory(tmp_path, monkeypatch):
    (tmp_path / "own_tools.py").write_text('def look(place: int) -> str:\n    """Look."""\n    return ""\nnumber = 3\n')
    monkeypatch.chdir(tmp_path)
    (look,) = load_tools(["own_tools:look"])
    assert look.__name__ == "look"
    for name, message in (
        ("look", "'look'.*module:function"),
        ("own_tools:number", "int.*function or a class"),
        ("os:getcwd", "part of Python"),
        ("own_tools:lok", "'lok'"),
    ):
        with pytest.raises(ValueError, match=f"sampling.tools.*{message}"):
            load_tools([name])


def look(place: int, how: str = "closely") -> str:
    """Look at a place.

    Args:
        place: Which one.
        how: In which way.
    """
    return f"{place} {how}"


def test_a_tool_is_described_by_its_signature_and_docstring():
    (made,) = schemas([look])
    function = made["function"]
    assert (function["name"], function["description"]) == ("look", "Look at a place.")
    assert function["parameters"]["properties"]["place"] == {"type": "integer", "description": "Which one."}
    assert function["parameters"]["required"] == ["place"]
    assert [one["function"]["name"] for one in schemas([Shop])] == ["hide", "peek"]

    def silent(place: int) -> str:
        """Look."""
        return ""

    with pytest.raises(ValueError, match="'silent'.*place"):
        schemas([silent])


QUESTION = {"role": "user", "content": [{"type": "text", "text": "where is it?"}]}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "base"])
def test_every_template_tells_of_tools_and_writes_their_results(kind):
    """Itself, or they are written into the system prompt, or into the turn of the user where it takes none."""
    chat = ChatTemplate(tokenizer_of(KINDS[kind]), {"tools": schemas([look])})
    assert chat.writes_tools == (kind == "tools")
    text = chat.text([QUESTION])
    told, _, asked = text.partition("where is it?")
    assert '"name": "look"' in told and "<tool_call>\n{" in told and "look" not in asked
    assert kind in ("tools", "gemma2") or told.startswith(
        ChatTemplate(tokenizer_of(KINDS[kind])).text([system("")])[:12]
    )
    own = chat.text([system("Be brief."), QUESTION]) if kind != "gemma2" else "Be brief." + text
    assert own.index("Be brief.") < own.index('"name": "look"') < own.index("where is it?")
    reply = chat.reply(["at home", "gone"])
    places = [reply.index(word) for word in ("<tool_response>", "at home", "</tool_response>", "gone")]
    assert (
        places == sorted(places) and "look" not in reply and text.endswith(reply.rpartition("</tool_response>")[2][-8:])
    )
    plain = ChatTemplate(tokenizer_of(KINDS[kind]), {"tools": []})
    assert "look" not in plain.text([QUESTION]) and plain.prefilled == chat.prefilled


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": [{"type": "text", "text": text}]}


@pytest.mark.parametrize(("kind", "appends"), [("tools", True), ("smollm2", True), ("qwen3", False), ("r1", False)])
def test_a_template_that_drops_thoughts_does_not_append(kind, appends):
    assert ChatTemplate(tokenizer_of(KINDS[kind]), {"tools": schemas([look])}).is_append_only == appends


def changed_template(old: str, new: str) -> ChatTemplate:
    """The template of a model with tools, in which a text has become another."""
    tokenizer = tokenizer_of(KINDS["tools"])
    assert old in tokenizer.chat_template
    tokenizer.chat_template = tokenizer.chat_template.replace(old, new)
    return ChatTemplate(tokenizer, {"tools": schemas([look])})


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("message.content + '\\n</tool_response>'", "'\\n</tool_response>'"),
        ("<tool_call>\\n{", "<tool_call>\\nname"),
    ],
    ids=["results", "form"],
)
def test_a_template_that_asks_for_other_calls_is_not_left_to_tell(old, new):
    chat = changed_template(old, new)
    assert not chat.writes_tools and "<tool_call>\n{" in chat.text([QUESTION])
    assert chat.reply(["1", "2"]).count("<tool_response>") == 2


def test_a_template_may_trim_results():
    end = "'\\n</tool_response>'"
    chat = changed_template(f"message.content + {end}", f"message.content | trim + {end}")
    assert chat.writes_tools and "<tool_response>\n42\n</tool_response>" in chat.reply([" 42\n"])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("message.content + '<|im_end|>", "message.content.split('</think>')[-1] + '<|im_end|>"),
        ("'\\n<tool_response>", "loop.index ~ '\\n<tool_response>"),
        ("message.content + '<|im_end|>", "message.content + ' <|im_end|>"),
    ],
    ids=["thought", "number", "space"],
)
def test_a_template_that_writes_turns_otherwise_than_they_are_sampled_does_not_append(old, new):
    chat = changed_template(old, new)
    assert chat.writes_tools and not chat.is_append_only and chat.reply(["1", "2"]).count("<tool_response>") == 2


@pytest.mark.parametrize("old", ["<|im_end|>", "message.role + '\\n' + message.content"], ids=["end", "answers"])
def test_a_template_without_ends_or_answers_is_refused(old):
    tokenizer = tokenizer_of(KINDS["tools"])
    tokenizer.chat_template = tokenizer.chat_template.replace(old, "" if old.startswith("<") else "message.role")
    with pytest.raises(ValueError, match="chat template"):
        ChatTemplate(tokenizer, {"tools": schemas([look])}).reply(["1"])


# ---- forms of a prompt


def test_a_group_is_divided_among_forms_each_of_which_goes_on_with_its_own_turns():
    """All forms of a prompt are one group, scored as they were drawn, with tools in each."""
    told = [replace(one, text=f"{one.text} seven") for one in PROMPTS]
    policy = policy_of(variants="instructions(texts=['', 'seven'])")
    made = rollout(policy, size=16)
    forms = made.decisions.fields["variant"]
    assert forms.tolist() == ([0.0] * 8 + [1.0] * 8) * len(PROMPTS)
    assert made.decisions.keys["prompt"].tolist() == [slot for slot in range(len(PROMPTS)) for _ in range(16)]
    assert [one.text for one in made.prompts] == [
        one.text for pair in zip(PROMPTS, told) for one in pair for _ in range(8)
    ]
    both = texts(made)
    assert all(any(one.calls for one in both[start : start + 8]) for start in range(0, len(both), 8))
    mask = made.decisions.decision_mask
    torch.testing.assert_close(rescored(policy, made)[mask], made.decisions.log_probs[mask], rtol=0, atol=1e-5)


# ---- what does not go with them


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"search": "beam"}, "sampling.search"),
        ({"tree": "text_tree(children=2, depth=2, tokens=2)"}, "sampling.tree"),
        ({"states": "judged"}, "sampling.states"),
        ({"contrast": "paraphrase"}, "sampling.contrast"),
        ({"variants": "prefixes()"}, "sampling.variants"),
        ({"reference_in_group": True}, "data.reference_in_group"),
        ({"divergence": True}, "algorithm.credit"),
    ],
)
def test_what_reads_a_completion_as_one_text_is_refused(settings, name):
    with pytest.raises(ValueError, match=f"sampling.tools.*{name}"):
        policy_of(**settings)


def test_given_beginnings_are_refused():
    with pytest.raises(ValueError, match="sampling.tools.*given"):
        policy_of().rollout(Request(PROMPTS[:1], [0], 2, 3, beginnings=[(3, 4)]))


def test_records_that_walk_a_text_are_not_offered():
    policy = policy_of()
    assert "segment of samples" not in policy.provides and "certainty of samples" in policy.provides
    request = Request(PROMPTS, [0, 1, 2], 8, seed=3, records=frozenset({"certainty"}))
    rolled = policy.rollout(request)
    certainty, mask = rolled.decisions.fields["certainty"], rolled.decisions.decision_mask
    assert (certainty[mask] > 0).all() and not certainty[~mask].any()
    torch.testing.assert_close(rescored(policy, rolled, "certainty")[mask], certainty[mask], rtol=0, atol=1e-4)


# ---- training


def test_the_numbers_of_a_round_are_logged(made):
    _, rolled = made
    own = sampling_metrics(rolled.decisions, torch.zeros(24))
    outputs = texts(rolled)
    calls = [call for output in outputs for call in output.calls]
    assert own["rollout/tool_calls"] == pytest.approx(len(calls) / 24)
    assert own["rollout/failed_call_fraction"] == pytest.approx(sum(bool(call.error) for call in calls) / len(calls))
    assert own["rollout/turns"] == pytest.approx(
        sum(1 + sum(turn.role == "assistant" for turn in output.turns) for output in outputs) / 24, abs=0.3
    )
    assert sum(own[f"rollout/ended_{why}"] for why in ENDS) == pytest.approx(1.0)
    assert own["rollout/ended_tokens"] == pytest.approx(sum(output.truncated for output in outputs) / 24)


def held() -> tuple[int, int, int]:
    """Objects of ours and tensors that live, and the bytes of the tensors."""
    gc.collect()
    objects = gc.get_objects()
    tensors = [one for one in objects if issubclass(type(one), Tensor)]
    ours = sum(str(type(one).__module__).startswith("mmgrpo.") for one in objects)
    return ours, len(tensors), sum(one.untyped_storage().nbytes() for one in tensors)


@pytest.mark.slow
def test_a_run_with_tools_holds_no_more_after_further_rounds(tmp_path):
    """Less than one object for each completion, and no tensor."""
    policy = policy_of(tools=[Paid])
    run = trainer(policy, tmp_path, PROMPTS, reward=few_calls, steps=9, lr=1e-3, **algorithm_blocks("grpo", terms=[]))
    after = []
    for _ in range(3):  # what is kept at the first use of a library, and by the first count, is not counted
        for _ in range(3):
            run.run_round()
        after.append(held())
    (objects, tensors, size), last = after[1:]
    assert last[0] - objects < 3 * 8 and last[1] <= tensors and last[2] - size < 4096


def few_calls(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    return [len(output.calls) + output.tokens / 100 if isinstance(output, Text) else 0.0 for output in outputs]


BY_TURNS = {"baseline": "none", "scale": "none", "terms": []}


@pytest.mark.parametrize(
    ("tool", "changes"),
    [
        (Shop, {"terms": []}),
        (Paid, {**BY_TURNS, "credit": "turn_return(gamma=0.9)"}),
        (Walk, {"terms": [], "credit": "state_groups(mode='mean_std')"}),
    ],
    ids=["rows", "turns", "states"],
)
@pytest.mark.slow
def test_a_killed_run_resumes_with_the_same_numbers_and_its_ratio_is_one(tool, changes, tmp_path):
    def fresh(folder: Path) -> Any:
        blocks = algorithm_blocks("grpo", **changes)
        made = policy_of(tools=[tool])
        return trainer(made, folder, PROMPTS, reward=few_calls, steps=4, save_every=2, lr=1e-3, **blocks)

    killed, whole = killed_and_whole(fresh, tmp_path)
    assert len(whole) == 4 and killed == whole
    assert max(abs(line["ratio/first_minus_one"]) for line in whole) < 1e-4
    assert min(line["rollout/tool_calls"] for line in whole) > 0


class Box:
    """Shows what is in it, which is hidden in a later turn only."""

    def reset(self, prompt: Prompt) -> None:
        self.seen = ""

    def peek(self) -> str:
        """Look."""
        self.seen = "seven"
        return self.seen

    def hide(self) -> str:
        """Hide what was seen."""
        if not self.seen:
            raise ValueError("eight")
        return "eight"


def hidden(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    """Reward: something was seen, and then hidden."""
    calls = [one.calls if isinstance(one, Text) else () for one in outputs]
    return [float(any(call.name == "hide" and not call.error for call in some)) for some in calls]


@pytest.mark.learning
@pytest.mark.parametrize(
    ("turns", "credit", "low", "high"),
    [
        (4, {}, 0.8, 1.0),
        pytest.param(1, {}, 0.0, 0.0, marks=pytest.mark.nightly),
        pytest.param(4, {"credit": "state_groups"}, 0.8, 1.0, marks=pytest.mark.nightly),
        pytest.param(4, {"credit": "turn_return(gamma=0.9)", "baseline": "none"}, 0.8, 1.0, marks=pytest.mark.nightly),
    ],
)
def test_calls_that_depend_on_each_other_are_learned(turns, credit, low, high, tmp_path):
    """At first one completion in ten is right, from the eighth step on at least 0.95; where calls are not answered,
    none ever is."""
    policy = policy_of(likely=(PEEK, HIDE, END, "b"), tools=(Box,), turns=turns, max_tokens=40)
    blocks = algorithm_blocks("dr_grpo", **credit)
    sizes = {"prompts_per_step": 3, "group_size": 32, "steps": 12, "lr": 4e-3, "max_grad_norm": 1.0}
    trainer(policy, tmp_path, PROMPTS, reward=hidden, **sizes, **blocks).fit()
    assert low <= read_metrics(tmp_path / "metrics.jsonl")[-1]["reward/reward/mean"] <= high
