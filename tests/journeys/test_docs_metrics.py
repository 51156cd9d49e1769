"""Every metric that a run writes is explained, and every metric that is explained is written by some run."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mmgrpo.policies.exploring import sampling_metrics
from mmgrpo.policies.neighbors import NeighborPolicy
from mmgrpo.rollout import reward_metrics
from mmgrpo.runtime.metrics import MetricsLog, read_metrics
from mmgrpo.scoring import ErrorRate, RewardScores, Scorer
from mmgrpo.types import CONTRAST, OWN, Answer, Image, Media, Prompt, Request
from tests.building import algorithm_blocks, matching_policy_over, trainer
from tests.pages import DOCS, rows_of
from tests.toys import ToyModel, toy_policy, toy_prompts
from tests.trees import decisions
from tests.unit.policies.test_adjoint_matching import made as adjoints
from tests.unit.policies.test_adjoint_matching import sampled
from tests.unit.policies.test_exploring import policy as exploring
from tests.unit.policies.test_joint import joint
from tests.unit.policies.test_token_policy import token_policy
from tests.unit.policies.test_tools import PROMPTS as TOLD
from tests.unit.policies.test_tools import Walk, few_calls
from tests.unit.policies.test_tools import policy_of as conversing
from tests.unit.test_learners import few_steps

PAGE = DOCS["metrics.md"]
PATTERNS = {
    r"reward/\w+@[^/]+/.+": "reward/<name>@<preview>/...",
    r"reward/\w+/(\w+)": r"reward/<name>/\1",
    r"term/\w+": "term/<name>",
    r"schedule/.+": "schedule/<name>",
    r"learner/\w+/(\w+)": r"learner/<name>/\1",
    r"tracker/.+": "tracker/<name>",
    r"category/[^/]+/(\w+)": r"category/<name>/\1",
    r"weight/(?!factor)\w+": "weight/<name>",
    r"correlation/\w+/\w+": "correlation/<a>/<b>",
    r"rollout/ended_\w+": "rollout/ended_<why>",
    r"(?:text|image)/(clip|term|velocity)/\w+": r"<part>/\1/...",
    r"(?:text|image)/(\w+|ratio/\w+)": r"<part>/\1",
}
"""Names of metrics to the form in which the page has them."""


def form(name: str) -> str:
    """A metric's name as the page has it."""
    return next(
        (re.sub(pattern, form, name) for pattern, form in PATTERNS.items() if re.fullmatch(pattern, name)), name
    )


def explained() -> set[str]:
    """The names of the first column of the page's table; ``a``, ``b`` in one cell are two."""
    return {name for cells in rows_of(PAGE, "metrics.jsonl") for name in re.findall(r"`([^`]+)`", cells[0])}


def judged(folder: Path) -> set[str]:
    """The metrics of a run that judges its own samples."""
    asked = ["own(reward='own', task='scored', rubric='[1] b', meta='')"]
    asked += ["own(reward='own', together=False, words=['a', 'b'], verifier='known', text=' {sample}')"]
    asked.append("verdicts(point=' {sample}', pair=' {first} {second}', letters=['a', 'b'], words=['a', 'b'])")
    known = Scorer("known", lambda prompts, outputs: [float(len(str(output))) for output in outputs], weight=0.0)
    own = Scorer("own", lambda prompts, outputs: [None if prompt.task else 1.0 for prompt in prompts])
    prompts = [Prompt("say a", "0", "a b c"), Prompt("say b", "1", "b c a"), Prompt("say a", "2", task="open")]
    run = trainer(
        token_policy(), folder, prompts, scorers=[own, known], prompts_per_step=3, group_size=16,
        **algorithm_blocks("dr_grpo", judging=asked),
    )  # fmt: skip
    paid = ["reward_model(lr=1e-3, reward='own', rule='known', above=-1, text='')"]
    paying = trainer(
        token_policy(), folder / "paying", prompts, scorers=[own, known],
        **algorithm_blocks("dr_grpo", networks=paid),
    )  # fmt: skip
    told = trainer(
        token_policy(), folder / "told", prompts[:2], scorers=[own, known],
        **algorithm_blocks("dr_grpo", networks=["discriminator(lr=1e-3, reward='own')"]),
    )  # fmt: skip
    asking = trainer(
        token_policy(), folder / "asking", [replace(one, meta={"documents": ["a"]}) for one in prompts[:2]],
        scorers=[own, known], **algorithm_blocks("dr_grpo", judging=["self_play(reward='own', rule='known')"]),
    )  # fmt: skip
    for one in (run, paying, told, asking):
        one.run_round()
        one.record.log.flush()
    parts = (folder, *(folder / name for name in ("paying", "told", "asking")))
    return {name for part in parts for row in read_metrics(part / "metrics.jsonl") for name in row}


def written(folder: Path) -> set[str]:
    """The metrics of runs that between them use everything that has one."""
    names = judged(folder / "judging")

    def first(prompts, outputs):
        return [float(output.pixels[0]) for output in outputs]

    def second(prompts, outputs):
        return [float(output.pixels[1]) for output in outputs]

    merged = ErrorRate("collisions", second, second, watched=True)
    previews = toy_policy("one_step_branch(intervals=[1, 2])")
    weighted: dict[str, Any] = {"weighting": ["dual_ascent(by='second', least=0.5, rate=0.1)"]}
    weighted["kl_weight"] = "uncertain_part(of='first', auxiliary=['second'])"
    for number, (preset, policy, changes) in enumerate(
        [
            ("flow_grpo", toy_policy(), weighted),
            ("adaptive_dapo", toy_policy(), {}),
            ("sec", toy_policy(), {}),
            ("vas", toy_policy(), {"sampler": ["variance_weighted", "retire(at=1e9)"]}),
            ("knapsack", toy_policy(), {}),
            ("dapo", toy_policy(), {"objective": "ppo(low=0.2, high=linear(1, 2))"}),
            ("granular_grpo", previews, {}),
            ("awm", exploring(explore_steps=5, keep=2), {}),
            ("tdm_r1", few_steps(), {}),
            ("grpo", joint(), {"terms": [], "parts": ["text(terms=['entropy_bonus(coef=0.1)'])", "image"]}),
        ]
    ):
        run = trainer(
            policy,
            folder / str(number),
            toy_prompts(4),
            staleness=number % 2,
            scorers=[Scorer("first", first), Scorer("second", second, rates=[merged])],
            **algorithm_blocks(preset, **changes),
        )
        run.run_round()
        names |= {name for row in read_metrics(folder / str(number) / "metrics.jsonl") for name in row}
    given = tuple(Answer("", Media("image", Image(torch.full((3, 1, 1), grade))), grade) for grade in (1.0, 0.0))
    policy = matching_policy_over(
        ToyModel(), steps=4, draws=1, error="velocity", evaluation_steps=4, forward_batch_size=9
    )
    prompts = [replace(prompt, answers=given) for prompt in toy_prompts(4)]
    for preset in ("dpo", "a_lol", "gr_dpo", "sft"):
        given_rows: dict[str, Any] = {"offline": 1.0, "measured": {key: [0.5] for key in range(4)}}
        trainer(policy, folder / preset, prompts, **given_rows, **algorithm_blocks(preset)).run_round()
        names |= {name for row in read_metrics(folder / preset / "metrics.jsonl") for name in row}
    blocks = algorithm_blocks(
        "dr_grpo",
        replay="replay(count=1)",
        supervised="nll(coef=0.1, count=1)",
        hint="staged(above=9)",
        added="answers",
    )
    prompts = [Prompt("say a", "0", "a b c"), Prompt("say b", "1", "b c a")]
    others = trainer(
        token_policy(), folder / "others", prompts, reward=lambda prompts, outputs: [0.0] * len(outputs),
        given=prompts, prompts_per_step=1, **blocks,
    )  # fmt: skip
    for _ in range(3):
        others.run_round()
    others.record.log.flush()
    names |= {name for row in read_metrics(folder / "others" / "metrics.jsonl") for name in row}
    networks = ["critic(lr=1e-5, kl=0.1, classes=1.0)", "prompt_value(lr=1e-5)"]
    more: dict[str, Any] = {"sampler": ["nearest_predicted"], "transform": ["classified_invariant"]}
    blocks = algorithm_blocks("ppo", networks=networks, **more)
    policy, flat = token_policy(keep_reference=True), lambda prompts, outputs: [1.0] * len(outputs)
    valued = trainer(policy, folder / "ppo", prompts, reward=flat, prompts_per_step=1, **blocks)
    valued.run_round()
    names |= {name for row in read_metrics(folder / "ppo" / "metrics.jsonl") for name in row}
    group = NeighborPolicy(
        ToyModel(), steps=3, draws=1, anchors=1, spread=0.3, temperature=1.0, evaluation_steps=3, forward_batch_size=9
    )
    drawn = group.rollout(Request(toy_prompts(1), [0], 2, seed=0))
    names |= set(sampling_metrics(drawn.decisions, torch.zeros(2)))
    names |= set(sampling_metrics(sampled(adjoints(3), lambda x: x, 0, rows=2).decisions, torch.zeros(2)))
    for preset in ("gigpo", "igpo"):
        blocks, answered = algorithm_blocks(preset, terms=[]), [replace(one, answer="a") for one in TOLD]
        run = trainer(conversing(tools=[Walk]), folder / preset, answered, reward=few_calls, **blocks)
        run.run_round()
        names |= {name for row in read_metrics(folder / preset / "metrics.jsonl") for name in row}
    lines = {"credit": "turn_advantage", "baseline": "none", "scale": "none", "terms": []}
    blocks = algorithm_blocks("grpo", networks=["action_value(lr=1e-3)"], **(lines | {"credit": "action_value"}))
    trainer(token_policy(), folder / "actions", prompts, reward=flat, **blocks).run_round()
    names |= {name for row in read_metrics(folder / "actions" / "metrics.jsonl") for name in row}
    blocks = algorithm_blocks("grpo", networks=["turn_critic(lr=1e-3, updates=1)"], **lines)
    trainer(conversing(tools=[Walk]), folder / "turns", TOLD, reward=few_calls, **blocks).run_round()
    names |= {name for row in read_metrics(folder / "turns" / "metrics.jsonl") for name in row}
    lower = token_policy(sampling_dtype="bfloat16")
    made = lower.rollout(Request(prompts, [0, 1], 2, seed=0))
    names |= set(sampling_metrics(made.decisions, torch.zeros(4)))
    # Three rows of the policy, one of them not scored and one that is left to others, and one of a changed prompt.
    valid, abstained = (
        torch.tensor([[True], [False], [False], [True]]),
        torch.tensor([[False], [False], [True], [False]]),
    )
    scores = RewardScores(torch.tensor([[1.0], [0.0], [0.0], [2.0]]), valid, abstained)
    origin = torch.tensor([OWN, OWN, OWN, CONTRAST])
    rows = replace(decisions(torch.arange(4)[:, None]), origin=origin, fields={"truncated": torch.zeros(4)})
    names |= set(reward_metrics(["first"], [True], scores, rows, 0))
    log = MetricsLog(folder / "log", run="a")
    log.write(1, {"loss": math.nan})
    return names | set(read_metrics(folder / "log" / "metrics.jsonl")[0])


@pytest.mark.slow
def test_the_metrics_of_a_run_are_those_of_the_page(tmp_path: Path) -> None:
    names = {form(name) for name in written(tmp_path)}
    assert names - explained() == set(), "written and not explained"
    assert explained() - names == set(), "explained and not written"


def test_every_metric_has_a_meaning_and_what_is_healthy() -> None:
    """All but those that say only when or which."""
    rows = rows_of(PAGE, "metrics.jsonl")
    assert [cells[0] for cells in rows if len(cells) != 4 or not all(cell.strip() for cell in cells)] == []
    assert [cells[0] for cells in rows if "-" in cells[2:]] == ["`step`", "`run`"]
