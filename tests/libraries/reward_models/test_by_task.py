"""Rewards for some tasks of a mixed data set: open questions next to rules, and Parrot's tokens."""

from __future__ import annotations

import json
import math

import pytest
import torch

from mmgrpo.advantages.estimate import estimate
from mmgrpo.cli import train_reward
from mmgrpo.data.reward_tokens import with_all_tokens, with_reward_tokens
from mmgrpo.policies.token import TokenPolicy
from mmgrpo.rewards import scorer, scorers
from mmgrpo.types import Media, Prompt, Text, Turn
from pipelines.text.causal_lm import toy
from reward_models.by_task import check
from tests.building import algorithm_blocks, recipe, trainer
from tests.libraries.reward_models.judges.served import chat_server
from tests.trees import plain


def length(prompts, outputs):
    """A reward of the test: the number of letters; NaN for none."""
    assert prompts, "nothing is scored where nothing is asked"
    return [float(len(output.text)) or math.nan for output in outputs]


def no_answer(prompts, outputs):
    return [None] * len(outputs)


LENGTH = f"by_task(tasks=['open'], reward='{__name__}:length(process=False)', log_as='open')"


def test_it_abstains_from_rows_of_other_tasks_and_does_not_score_them():
    rules = scorer("by_task(tasks=['choice', 'numeric'], reward='task(tags=False)', log_as='rules')")
    prompts = [Prompt("a", "1", "B", "choice"), Prompt("b", "2", 3, "numeric"), Prompt("c", "3", None, "open")]
    outputs = [Text("B"), Text("4"), Text("a beach")]
    assert rules.fn(prompts, outputs) == [1, 0, None], "task knows no 'open', and is not asked"
    assert scorer(LENGTH).fn(prompts, outputs) == [None, None, 7]
    assert scorer(LENGTH).fn(prompts[:2], outputs[:2]) == [None, None]
    assert math.isnan(scorer(LENGTH).fn(prompts[2:], [Text("")])[0]), "a failure stays one"
    assert scorer(LENGTH).name == "open"
    abstains = f"by_task(tasks=['open'], reward='{__name__}:no_answer(process=False)')"
    assert scorer(abstains).fn(prompts, outputs) == [None] * 3, "and so does the reward of its tasks"


def test_what_cannot_be_asked_is_refused():
    for wrong in ("open", [], [""], ["open", ""], [3], ["open", 3]):
        with pytest.raises(ValueError, match="by_task.*tasks"):
            scorer(f"by_task(tasks={wrong!r}, reward='task')")
    with pytest.raises(ValueError, match="rollout"):
        check(["open"], "token_entropy(target=1.5)")
    with pytest.raises(ValueError, match="tusk"):
        scorer("by_task(tasks=['open'], reward='tusk')")
    with pytest.raises(ValueError, match="rollout"):
        check(["open"], "task(weight=2)")
    with pytest.raises(ValueError, match="tusk"):
        check(["open"], "tusk")


def test_an_open_question_is_judged_and_a_sum_beside_it_by_rules(tmp_path):
    """VLAA-Thinking's mixed reward in a run: open rows by a judge above their reference, others by the verifier."""
    with chat_server(lambda body, number: f"Score: {1 + number % 5}") as server:
        judge = f"chat(url='{server.url}', model='m', parallel=1)"
        rewards = scorers(["by_task(tasks=['exact'], reward='task(tags=False)', log_as='rules')", open_reward(judge)])
        references = {"rules": [0.0], "open": [0.25]}
        prompts = [
            Prompt("say a", "0", "a", "exact", {"reference_rewards": references}),
            Prompt("say b", "1", None, "open", {"reference_rewards": references}),
        ]
        advantages = recipe(transform=["above_reference(slope=1, of='open')"], scale="none")
        policy = TokenPolicy(toy(["say", "a", "b"]), max_tokens=2)
        made = trainer(policy, tmp_path, prompts, scorers=rewards, advantages=advantages, steps=1, group_size=4)
        made.fit()
        row = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[0])
    asked = [body["messages"][0]["content"] for body in server.bodies]
    assert asked and all("say b" in json.dumps(one) for one in asked), "only the open question was asked about"
    assert row["reward/open/std"] > 0 and row["grad_norm"] > 0


def open_reward(judge: str):
    """The text of a reward in a reward in a reward, with quotes that nest."""
    inner = f"judge_score(judge={judge!r})"
    return f"by_task(tasks=['open'], reward={inner!r}, log_as='open')"


# ---- Parrot's tokens


def test_every_prompt_names_each_reward_once():
    prompts = with_reward_tokens([Prompt("a boat", "7"), Prompt("a pear", "8")], ["aesthetic", "clip"])
    assert [(one.text, one.id, one.task) for one in prompts] == [
        ("<reward 1> a boat", "7#aesthetic", "aesthetic"),
        ("<reward 2> a boat", "7#clip", "clip"),
        ("<reward 1> a pear", "8#aesthetic", "aesthetic"),
        ("<reward 2> a pear", "8#clip", "clip"),
    ]
    (all_,) = with_all_tokens([Prompt("a boat", "7")], ["aesthetic", "clip"])
    assert all_.text == "<reward 1>,<reward 2> a boat"
    with pytest.raises(ValueError, match="'7'.*'math'"):
        with_reward_tokens([Prompt("a", "7", task="math")], ["clip"])
    with pytest.raises(ValueError, match="'7'.*conversation"):
        with_reward_tokens([Prompt("a", "7", turns=(Turn("user", (Media("image", "a.png"), "a")),))], ["clip"])


def letters_a(prompts, outputs):
    return [float(output.text.count("a")) for output in outputs]


def letters_b(prompts, outputs):
    return [float(output.text.count("b")) for output in outputs]


def test_a_row_is_trained_on_the_reward_that_its_token_names_among_the_front_of_all(tmp_path):
    """Samples aa, ab and c of a prompt with <reward 1>: the last is dominated, the others are trained on a."""
    (prompt, _) = with_reward_tokens([Prompt("say", "0")], ["a", "b"])
    own = [
        f"by_task(tasks=['{one}'], reward='{__name__}:letters_{one}(process=False)', log_as='own_{one}')"
        for one in "ab"
    ]
    several = scorers([f"{__name__}:letters_{one}(process=False, weight=0, log_as='{one}')" for one in "ab"] + own)
    outputs = [Text("aa"), Text("ab"), Text("c")]
    columns = [one.fn([prompt] * 3, outputs) for one in several]
    assert columns == [[2, 1, 0], [0, 1, 0], [2, 1, 0], [None] * 3]
    values = torch.tensor([[math.nan if value is None else value for value in column] for column in columns]).T
    blocks = recipe(select=["pareto_front(members=['a', 'b'])"], baseline="none", scale="none")
    weights, names = torch.tensor([one.weight for one in several]), [one.name for one in several]
    abstained = torch.tensor([[value is None for value in column] for column in columns]).T
    made = estimate(values, values.isfinite(), weights, plain([2, 2, 2]), blocks, names, abstained=abstained)
    assert made.samples.tolist() == [2, 1, 0] and made.loss_mask.any(1).tolist() == [True, True, False]


# ---- two learned heads with weights (multi-objective GRPO)


def letters(prompts, outputs, device):
    """Features of texts: how often a and c occur."""
    return torch.tensor([[float(one.text.count("a")), float(one.text.count("c"))] for one in outputs], device=device)


def test_two_learned_heads_are_one_reward_by_their_weights(tmp_path):
    """Helpful answers have an a, safe ones no c; both heads are learned from votes, and train a policy together."""
    votes = {"helpful": ("a b", "b b", "c a", "c c"), "safe": ("a b", "a c", "b b", "c b")}
    for name, (*texts,) in votes.items():
        rows = [
            {"prompt": "say", "left": {"text": left}, "right": {"text": right}, "vote_type": "leftvote"}
            for left, right in (texts[:2], texts[2:])
        ]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
        train_reward.main(
            ["--data", f"votes:{tmp_path}/{name}.jsonl", "--heldout", "", "--features", f"{__name__}:letters"]
            + ["--epochs", "60", "--lr", "0.05", "--loss", "bradley_terry", "--hidden", "4"]
            + ["--device", "cpu", "--output", str(tmp_path / name)]
        )
    weights = {"helpful": 0.75, "safe": 0.25}
    rewards = scorers([f"preference(weights='{tmp_path / n}', log_as='{n}', weight={w})" for n, w in weights.items()])
    texts = [Text(one) for one in ("a b", "a c", "b b", "c c")]
    (helpful, safe) = (torch.tensor(one.fn([Prompt("say")] * 4, texts)) for one in rewards)
    assert helpful[0] > helpful[2] and safe[0] > safe[1] and safe[2] > safe[3]
    policy = TokenPolicy(toy(["say", "a", "b", "c"]), max_tokens=2)
    blocks = algorithm_blocks("dr_grpo", aggregation="per_sample")
    made = trainer(
        policy,
        tmp_path / "run",
        [Prompt("say", "0")],
        scorers=rewards,
        prompts_per_step=1,
        group_size=16,
        steps=12,
        lr=2e-2,
        **blocks,
    )
    made.fit()
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    total = [0.75 * row["reward/helpful/mean"] + 0.25 * row["reward/safe/mean"] for row in rows]
    print("TOTAL", total)
    assert sum(total[-3:]) / 3 > total[0] + 0.3
