"""Rewards of a judge that reads how an answer was found: its steps, and whether the thought and the answer agree.

judge_steps         the share of the steps that come before the first wrong one
judge_consistency   1 where the end of the thought says what the answer says, -1 where it says something else
judge_continuation  1 for a text that continues its prompt as the reference does
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping, Sequence
from functools import partial

from mmgrpo.scoring.manifest import reward
from mmgrpo.types import Output, Prompt
from reward_models.judges.named import judge_named
from reward_models.judges.question import Question, ask
from reward_models.judges.verdicts import conclusion, number_after
from reward_models.rules.parsing import gold_text
from reward_models.rules.tags import after_thought_of, answer_of, texts

thoughts_reward = functools.partial(reward, "Text", check="reward_models.judges.named:check_judge")

FIRST = "First wrong step"
STEPS = """Problem:
{prompt}

Reference answer:
{answer}

Solution, in steps:
{steps}

Find the first step that is wrong. End with one line, with its number, or 0 if all steps are right:
{label}: <number>"""
AGREE = """The end of a line of thought, and the answer that was given after it:

{thought}

Answer: {answer}

Does the thought lead to this answer? End with one line: Verdict: yes, Verdict: no, or Verdict: unclear."""
CONTINUES = """Context:
{prompt}

The text that follows it:
{answer}

A proposed continuation:
{output}

Is the proposed continuation, in meaning, a valid beginning of the text that follows? End with one line: Verdict: yes \
or Verdict: no."""


@thoughts_reward(scale="share of steps before the first wrong one", reads=("text", "answer"), source="arXiv:2505.11595")
def judge_steps(
    prompts: Sequence[Prompt], outputs: Sequence[Output], judge: str, tokens: int = 1024, device: str = "cpu"
) -> list[float]:
    """(number of the first wrong step - 1) / number of steps, 1 where all are right; steps are divided by empty lines.

    The reference trajectory score of Spectral or Stepwise Guided PO (arXiv:2505.11595, with the transform ``graded``),
    and a process score for ``consistent`` (PROF, arXiv:2509.03403, whose own is a process reward model's). The judge
    sees the answer of the prompt. First wrong of four: 0; third: .5.
    """
    counts, questions = [], []
    for prompt, output in zip(prompts, texts(outputs, "judge_steps"), strict=True):
        steps = steps_of(output.whole)
        numbered = "\n\n".join(f"[{number}] {step}" for number, step in enumerate(steps, 1))
        asked = STEPS.format(prompt=prompt.text, answer=gold_text(prompt), steps=numbered, label=FIRST)
        counts.append(len(steps))
        questions.append(Question((asked,)) if steps else None)

    def read(text: str | None) -> float | None:
        return number_after(text, FIRST, 0, max(counts))

    found = ask(judge_named(judge, device), questions, read, tokens, f"End with one line:\n{FIRST}: <number>")
    return [_share(number, count) for number, count in zip(found, counts, strict=True)]


def _share(number: float, count: int) -> float:
    if number == 0:
        return 1.0
    return (number - 1) / count if number in range(1, count + 1) else math.nan


def steps_of(text: str) -> list[str]:
    """The parts of a text between empty lines."""
    return [step for part in re.split(r"\n\s*\n", text) if (step := part.strip())]


@thoughts_reward(range=(-1, 1), scale="1, 0 or -1, of thought and answer", source="R1-Reward, arXiv:2505.02835")
def judge_consistency(
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    judge: str,
    lines: int = 3,
    tokens: int = 256,
    device: str = "cpu",
) -> list[float]:
    """1 where the last ``lines`` lines of the thought lead to the answer, -1 where they do not, 0 where that is unclear
    or nothing stands before the answer: c of R1-Reward (StableReinforce, arXiv:2505.02835), whose reward is

        .5 format + accuracy (1 + .5 c):    transform: amplified(by='judge_consistency', coef=0.5, of='task')

    A judge that cannot be read is NaN; the released code takes full accuracy then.
    """
    questions: list[Question | None] = []
    for output in texts(outputs, "judge_consistency"):
        answer = answer_of(output.whole) or after_thought_of(output.whole)
        before = re.split(r"</think>|<answer>", output.whole)[0] if answer else ""
        ending = "\n".join(line for line in before.replace("<think>", "").splitlines() if line.strip())
        ending = "\n".join(ending.splitlines()[-lines:])
        questions.append(Question((AGREE.format(thought=ending, answer=answer),)) if ending and answer else None)
    read = partial(_verdict, values={"yes": 1.0, "no": -1.0, "unclear": 0.0})
    values = ask(judge_named(judge, device), questions, read, tokens, "End with one line: Verdict: yes, no or unclear.")
    return [0.0 if question is None else value for question, value in zip(questions, values, strict=True)]


@thoughts_reward(scale="yes or no", reads=("text", "answer"), source="RLPT, arXiv:2509.19249")
def judge_continuation(
    prompts: Sequence[Prompt], outputs: Sequence[Output], judge: str, tokens: int = 256, device: str = "cpu"
) -> list[float]:
    """1 for a text that is, in meaning, a valid beginning of the answer of its prompt, the segment that follows there,
    else 0: the reward of RLPT (arXiv:2509.19249), whose prompts are texts up to a sentence, or around one."""
    questions: list[Question | None] = []
    for prompt, output in zip(prompts, texts(outputs, "judge_continuation"), strict=True):
        proposed = answer_of(output.whole) or after_thought_of(output.whole) or output.text
        asked = CONTINUES.format(prompt=prompt.text, answer=gold_text(prompt), output=proposed)
        questions.append(Question((asked,)))
    read = partial(_verdict, values={"yes": 1.0, "no": 0.0})
    return ask(judge_named(judge, device), questions, read, tokens, "End with one line: Verdict: yes or Verdict: no.")


def _verdict(text: str | None, values: Mapping[str, float]) -> float | None:
    found = {word.lower() for word in re.findall(r"verdict[\"'*_`\s]*[:=][\"'*_`\s]*(\w+)", conclusion(text), re.I)}
    return values.get(found.pop()) if len(found) == 1 else None
