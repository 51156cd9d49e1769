"""TRL's own rewards and those of the kind of open-r1 as they are, by ``from_trl`` and by name."""

from __future__ import annotations

import functools
import math
from typing import Any

import pytest

from mmgrpo.data.rows import as_prompts
from mmgrpo.rewards import from_trl, scorer
from mmgrpo.scoring import report, trl
from mmgrpo.types import Prompt, Text, Turn

OPEN_R1 = r'''
import asyncio
import math
import re


def accuracy_reward(completions, solution, **kwargs):
    """Whether the boxed answer is that of the solution; None where the solution has none."""
    contents = [completion[0]["content"] for completion in completions]
    golds = [re.search(r"\$(.*?)\$", one) for one in solution]
    return [None if gold is None else float(f"${gold[1]}$" in text) for text, gold in zip(contents, golds)]


def format_reward(completions, **kwargs):
    pattern = r"^<think>\n.*?\n</think>\n<answer>\n.*?\n</answer>$"
    matches = [re.match(pattern, completion[0]["content"], re.DOTALL) for completion in completions]
    return [1.0 if match else 0.0 for match in matches]


def tag_count_reward(completions, **kwargs):
    tags = ("<think>\n", "\n</think>\n", "\n<answer>\n", "\n</answer>")
    return [sum(0.25 * (one[0]["content"].count(tag) == 1) for tag in tags) for one in completions]


def len_reward(completions, solution, **kwargs):
    """Kimi 1.5: shorter right answers earn more."""
    contents = [completion[0]["content"] for completion in completions]
    lengths = [len(text) for text in contents]
    low, high = min(lengths), max(lengths)
    values = []
    for text, length, gold in zip(contents, lengths, solution):
        value = 0.5 - (length - low) / (high - low) if high > low else 0.0
        values.append(value if gold in text else min(0.0, value))
    return values


def get_cosine_scaled_reward(max_len=20) -> "Callable":
    def cosine_scaled_reward(completions, solution, **kwargs):
        values = []
        for completion, gold in zip(completions, solution):
            text = completion[0]["content"]
            cosine = math.cos(min(len(text) / max_len, 1.0) * math.pi)
            low, high = (0.5, 1.0) if gold in text else (-0.5, -1.0)
            values.append(low + 0.5 * (high - low) * (1 + cosine))
        return values

    return cosine_scaled_reward


async def slow_reward(completions, ground_truth, **kwargs):
    await asyncio.sleep(0)
    return [float(gold in one[0]["content"]) for one, gold in zip(completions, ground_truth)]


def step_reward(completions, trainer_state, log_metric=None, **kwargs):
    return [float(trainer_state.global_step) + trainer_state.max_steps / 100 for _ in completions]


def no_keywords(prompts, completions):
    pairs = zip(prompts, completions)
    return [float(prompt[-1]["role"] == "user" and one[0]["role"] == "assistant") for prompt, one in pairs]


def right_string(completions, solution, **kwargs):
    return [float(text == gold) for text, gold in zip(completions, solution)]
'''


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "open_r1.py").write_text(OPEN_R1)
    monkeypatch.chdir(tmp_path)
    return "open_r1"


def talk(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


ROWS = [
    {"prompt": talk("2 + 2"), "solution": "$4$", "ground_truth": "4", "difficulty": 1},
    {"prompt": talk("3 + 3"), "solution": "$6$", "ground_truth": "6", "difficulty": 2},
]
RIGHT = "<think>\na\n</think>\n<answer>\n$4$\n</answer>"
TEXTS = [Text(RIGHT, ids=tuple(range(8))), Text("$5$", ids=(1, 2, 1, 2))]


def values(made, rows=ROWS, texts=TEXTS):
    return list(made.fn(as_prompts(rows), list(texts)))


def test_the_columns_are_named_as_in_the_rows():
    seen: dict = {}

    def columns(completions, **kwargs):
        seen.update(kwargs, completions=completions)
        return [0.0 for _ in completions]

    values(from_trl(columns))
    assert seen["solution"] == ["$4$", "$6$"] == seen["answer"] and seen["ground_truth"] == ["4", "6"]
    assert seen["difficulty"] == [1, 2] and seen["completion_ids"] == [list(range(8)), [1, 2, 1, 2]]
    assert seen["prompts"][0] == talk("2 + 2") and seen["completions"][1] == [{"role": "assistant", "content": "$5$"}]
    assert "prompt" not in seen and {"trainer_state", "log_extra", "log_metric"} <= seen.keys()
    values(from_trl(columns), [{"problem": "1 + 1", "answer": "<answer>2</answer>"}], TEXTS[1:])
    assert seen["prompts"] == ["1 + 1"] == seen["problem"] and seen["completions"] == ["$5$"]
    assert seen["answer"] == ["<answer>2</answer>"]  # as it is in the row, with the tags that such functions look for


def test_a_prefilled_thought_belongs_to_the_completion():
    from trl.rewards import think_format_reward

    assert values(from_trl(think_format_reward), ROWS[:1], [Text("a</think>4", prefilled="<think>")]) == [1.0]


@pytest.mark.parametrize("way", [from_trl, scorer, "by name"])
def test_every_reward_of_trl_serves_as_it_is(way):
    rewards = pytest.importorskip("trl.rewards")
    pytest.importorskip("math_verify")
    long = {"max_completion_len": 6, "soft_punish_cache": 4}
    expected = {
        "accuracy_reward": ({}, [1.0, 0.0]),
        "reasoning_accuracy_reward": ({}, [1.0, 0.0]),
        "think_format_reward": ({}, [1.0, 0.0]),
        # half of the cosine at 8 of 16 tokens; the middle of -1 and -0.5 for a wrong one at 4 of 16: cos = sqrt(1/2)
        "get_cosine_scaled_reward": ({"max_len": 16}, [0.75, -0.5 + 0.5 * -0.5 * (1 + math.sqrt(0.5))]),
        "get_repetition_penalty_reward": ({"ngram_size": 2}, [0.0, -(1 - 2 / 3)]),
        "get_soft_overlong_punishment": (long, [-1.0, -0.5]),  # 8 of 6, and (6 - 4 - 4) / 4
    }
    public = {name for name in dir(rewards) if name.endswith(("_reward", "_punishment"))}
    assert public == set(expected), "a reward of TRL that this test does not know"
    for name, (parameters, right) in expected.items():
        if isinstance(way, str):
            text = ", ".join(["process=False", *(f"{key}={value}" for key, value in parameters.items())])
            made = scorer(f"trl.rewards:{name}({text})")
        else:
            function = getattr(rewards, name)
            made = way(function(**parameters) if parameters else function)
        assert values(made) == pytest.approx(right), name


OF_OPEN_R1 = {
    "accuracy_reward": [1.0, 0.0],
    "format_reward": [1.0, 0.0],
    "tag_count_reward": [1.0, 0.0],
    "len_reward": [-0.5, 0.0],
    "slow_reward": [1.0, 0.0],
    "no_keywords": [1.0, 1.0],
}


@pytest.mark.parametrize("name", OF_OPEN_R1)
def test_functions_as_of_open_r1_serve_as_they_are(module, name):
    assert values(scorer(f"{module}:{name}(process=False)")) == OF_OPEN_R1[name]


def test_a_function_of_trls_form_is_known_when_it_is_handed_over():
    def right(completions, solution, **columns):
        return [float(gold[1:-1] in text[-1]["content"]) for text, gold in zip(completions, solution)]

    class Right:
        async def __call__(self, prompts, completions, solution):
            return right(completions, solution)

    sized = functools.partial(lambda completions, size, **columns: [size for _ in completions], size=2.0)
    [function, instance, partial] = [scorer(given) for given in (right, Right(), sized)]
    assert values(function) == values(instance) == [1.0, 0.0] and values(partial) == [2.0, 2.0]
    assert (function.name, instance.name, partial.name) == ("right", "Right", "partial")
    assert function.needs == instance.needs == ("solution",) and partial.needs == ()


@pytest.mark.slow
def test_they_serve_from_a_process_of_their_own(module, copied):
    report(7, 50)
    try:
        made = scorer(f"{module}:get_cosine_scaled_reward(max_len=6)")
        assert values(made) == pytest.approx([0.5, -0.75]) and made.needs == ("solution",)
        assert values(scorer(f"{module}:step_reward")) == [7.5, 7.5]  # step 7 of 50
    finally:
        report(0, 0)


def test_none_is_no_score(module):
    made = scorer(f"{module}:accuracy_reward(process=False)")
    (value,) = values(made, [{"prompt": talk("?"), "solution": "no formula"}], TEXTS[:1])
    assert value is None


def test_strings_are_given_where_the_prompt_is_one_and_messages_on_demand(module):
    rows = [{"problem": "2 + 2", "solution": "$5$"}]
    assert values(scorer(f"{module}:right_string(process=False)"), rows, TEXTS[1:]) == [1.0]
    with pytest.raises(TypeError, match="string indices"):
        values(scorer(f"{module}:accuracy_reward(process=False)"), rows, TEXTS[1:])
    assert values(scorer(f"{module}:accuracy_reward(messages=True, process=False)"), rows, TEXTS[1:]) == [1.0]


def test_all_turns_of_a_completion_are_given():
    seen: list[Any] = []

    def looks(completions, **kwargs):
        seen.append(completions)
        return [0.0 for _ in completions]

    one = Text("4", turns=(Turn("assistant", ("2 + 2",)), Turn("tool", ("4",))))
    for prompt in (Prompt("?"), Prompt("?", turns=(Turn("user", ("?",)),))):
        from_trl(looks).fn([prompt], [one])
    words = [("assistant", "2 + 2"), ("tool", "4"), ("assistant", "4")]
    assert seen == [["\n".join(": ".join(pair) for pair in words)], [[{"role": r, "content": w} for r, w in words]]]


def test_a_column_that_no_row_has_is_named_with_what_would_give_it():
    def needs_it(completions, gold, **kwargs):
        return [0.0 for _ in completions]

    prompts = as_prompts(ROWS)
    assert from_trl(needs_it).needs == ("gold",) and trl.missing_column("r", ["solution"], prompts) == ""
    objection = trl.missing_column("r", ["solutions"], prompts)
    assert "'solutions'" in objection and "'solution'" in objection and "--data.columns" in objection


def test_tokens_are_asked_for_only_of_completions_that_have_them():
    def lengths(completion_ids, **kwargs):
        return [float(len(ids)) for ids in completion_ids]

    assert values(from_trl(lengths)) == [8.0, 4.0]
    with pytest.raises(ValueError, match="completion_ids"):
        values(from_trl(lengths), ROWS[:1], [Text("a text of a file")])


def test_what_a_factory_does_not_take_is_an_error(module):
    with pytest.raises(ValueError, match="'max_length'"):
        scorer(f"{module}:get_cosine_scaled_reward(max_length=6, process=False)")
    with pytest.raises(ValueError, match="messages"):
        scorer(f"{module}:accuracy_reward(messages=3, process=False)")
