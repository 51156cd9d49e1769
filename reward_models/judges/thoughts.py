"""Rewards of a judge that reads how an answer was found: its steps, and whether the thought and the answer agree.

judge_steps         the share of the steps that come before the first wrong one
judge_wrong_steps   the share of the steps that are right, by a vote of several critiques; it marks the wrong ones
judge_own_errors    the same by what a solution says of itself: what it corrects, or what a wrong answer takes up
judge_phrases       the share of good less that of poor phrases; it marks both
judge_last_step     1 for a good last step of a text that goes on, -1 for a poor one
judge_consistency   1 where the end of the thought says what the answer says, -1 where it says something else
listener            the probability of the right choice for a model that reads the thought
judge_continuation  1 for a text that continues its prompt as the reference does
"""

from __future__ import annotations

import functools
import inspect
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from mmgrpo.config.names import nearest
from mmgrpo.scoring.manifest import reward
from mmgrpo.types import Output, Prompt, Text
from reward_models.judges.named import check_judge, judge_named
from reward_models.judges.question import Question, ask, readings, sources_of
from reward_models.judges.verdicts import conclusion, json_object, number_after
from reward_models.rules.parsing import after_thought_of, answer_of, gold_text, texts
from reward_models.rules.tasks import TASKS, one_task

thoughts_reward = functools.partial(reward, "Text", check="reward_models.judges.named:check_judge")
problem_reward = functools.partial(thoughts_reward, row="reward_models.judges.question:check_source", version=2)
"""Of rewards of a judge that sees the problem with its media; with ``media`` False its text alone."""

FIRST = "First wrong step"
STEPS = """Problem:
{prompt}

Reference answer:
{answer}

Solution, in steps:
{steps}

Find the first step that is wrong. End with one line, with its number, or 0 if all steps are right:
{label}: <number>"""
WRONG = "Wrong steps"
ALL_WRONG = """Problem:
{prompt}

Reference answer:
{answer}

Solution, in steps:
{steps}

Judge every step by itself: is it right, whatever became of the others? End with one line, with the numbers of all \
wrong steps, or none if there are none:
{label}: <numbers>"""
CORRECTED = """Problem:
{prompt}

Solution, in steps, whose answer is right:
{steps}

Do not solve the problem. Where the solution looks back at itself (it doubts, finds a mistake, begins anew), find the \
steps that it corrects there, and the steps that build on these. End with one line, with the numbers of all corrected \
steps, or none if there are none:
{label}: <numbers>"""
TAKEN_UP = """Problem:
{prompt}

Solution, in steps, whose answer is wrong:
{steps}

Its answer:
{answer}

Do not solve the problem. Which steps say what the answer says, so it takes them up? End with one line, with the \
numbers of all such steps, or none if there are none:
{label}: <numbers>"""
PHRASES = """Prompt:
{prompt}

Response:
{response}

Critique this response. Then list the phrases that make it good and those that make it poor, each copied from the \
response word by word, as one JSON object:
{{"good": ["..."], "poor": ["..."]}}"""
LAST = """Problem:
{prompt}

Solution so far:
{before}

Its next step:
{step}

Critique this step, and say whether it is good, poor, or neither. End with one line: Verdict: good, Verdict: poor, or \
Verdict: neither."""
AGREE = """The end of a line of thought, and the answer that was given after it:

{thought}

Answer: {answer}

Does the thought lead to this answer? End with one line: Verdict: yes, Verdict: no, or Verdict: unclear."""
LISTEN = """{prompt}

Somebody reasons about this as follows:
{thought}

Which choice is right? Answer with one of {choices}, and nothing else."""
CONTINUES = """Context:
{prompt}

The text that follows it:
{answer}

A proposed continuation:
{output}

Is the proposed continuation, in meaning, a valid beginning of the text that follows? End with one line: Verdict: yes \
or Verdict: no."""


@problem_reward(
    scale="share of steps before the first wrong one", reads=("text", "media", "answer"), source="arXiv:2505.11595"
)
def judge_steps(
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    judge: str,
    tokens: int = 1024,
    media: bool = True,
    device: str = "cpu",
) -> list[float]:
    """(number of the first wrong step - 1) / number of steps, 1 where all are right; steps are divided by empty lines.

    The reference trajectory score of Spectral or Stepwise Guided PO (arXiv:2505.11595, with the transform ``graded``),
    and a process score for ``consistent`` (PROF, arXiv:2509.03403, whose own is a process reward model's). The judge
    sees the answer of the prompt. First wrong of four: 0; third: .5.
    """
    counts, questions = [], []
    sources = sources_of(prompts, outputs, media)
    for prompt, output, source in zip(prompts, texts(outputs, "judge_steps"), sources, strict=True):
        steps = steps_of(output.whole)
        numbered = "\n\n".join(f"[{number}] {step}" for number, step in enumerate(steps, 1))
        request = STEPS.format(prompt=prompt.text, answer=gold_text(prompt), steps=numbered, label=FIRST)
        counts.append(len(steps))
        questions.append(Question((*source, request)) if steps and source is not None else None)

    def read(text: str | None) -> float | None:
        return number_after(text, FIRST, 0, max(counts))

    numbers = ask(judge_named(judge, device), questions, read, tokens, f"End with one line:\n{FIRST}: <number>")
    return [_share(number, count) for number, count in zip(numbers, counts, strict=True)]


def _share(number: float, count: int) -> float:
    if number == 0:
        return 1.0
    return (number - 1) / count if number in range(1, count + 1) else math.nan


def steps_of(text: str) -> list[str]:
    """The parts of a text between empty lines."""
    return [text[first:end] for first, end in step_places(text)]


@problem_reward(
    scale="share of right steps",
    reads=("text", "media", "answer"),
    source="CAPO, arXiv:2508.02298",
    check="reward_models.judges.thoughts:check_votes",
    remarks="reward_models.judges.thoughts:step_remarks",
    version=1,
)
def judge_wrong_steps(
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    judge: str,
    count: int = 4,
    vote: str = "intersection",
    tokens: int = 2048,
    media: bool = True,
    device: str = "cpu",
) -> list[float]:
    """The share of the steps of a text that are right: all wrong ones of a critique, by the ``vote`` of ``count``
    critiques (CAPO, arXiv:2508.02298: 4). Steps are divided by empty lines.

    A step is wrong that all critiques call so (``intersection``, best for small policies), at least half of them
    (``majority``) or any (``union``). The first critique is the judge's most probable one, the others are drawn; those
    that cannot be read have no vote, and without any the value is NaN. The judge sees the answer of the prompt. With
    weight 0 it marks the wrong steps for the credit ``marked_steps``. Critiques 2 3, 3 and 3 4 of four steps: 3 is
    wrong, .75; by majority 3, by union 2 3 4, .25.
    """
    critiques = _wrong_steps(prompts, outputs, judge, count, vote, tokens, media, device, _against_answer)
    return [math.nan if wrong is None else 1 - len(wrong) / len(steps) for steps, wrong in critiques]


@problem_reward(
    scale="share of steps that are not marked",
    reads=("text", "media", "answer"),
    source="TP-GRPO, arXiv:2507.23317",
    check="reward_models.judges.thoughts:check_own_errors",
    remarks="reward_models.judges.thoughts:own_error_remarks",
    version=1,
)
def judge_own_errors(
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    judge: str,
    rule: str = "exact",
    tags: bool | str = True,
    count: int = 1,
    vote: str = "majority",
    tokens: int = 2048,
    media: bool = True,
    device: str = "cpu",
) -> list[float]:
    """The share of the steps of a text that its own words do not give away (TP-GRPO, arXiv:2507.23317): the judge need
    not solve the problem, and does not see its answer.

    Of a solution that is right by the task ``rule`` (``tags`` as of it) it marks the steps that the solution corrects
    where it looks back, and those that build on them; of a wrong one the steps that the answer takes up. With weight 0
    it marks them for the credit ``thought_rewards``. ``count`` and ``vote`` as of ``judge_wrong_steps``. Its words are
    ours.
    """
    critiques = _wrong_steps(prompts, outputs, judge, count, vote, tokens, media, device, _of_itself(rule, tags))
    return [math.nan if wrong is None else 1 - len(wrong) / len(steps) for steps, wrong in critiques]


def own_error_remarks(**parameters: Any) -> Callable[[Sequence[Prompt], Sequence[Output]], list[Mapping[str, Any]]]:
    """``marks``: -1 for each step that ``judge_own_errors`` marks."""
    settings = _with_defaults(judge_own_errors, parameters)
    asking = _of_itself(settings.pop("rule"), settings.pop("tags"))
    return _step_marks(settings, asking)


def step_remarks(**parameters: Any) -> Callable[[Sequence[Prompt], Sequence[Output]], list[Mapping[str, Any]]]:
    """``marks``: -1 for each wrong step of ``judge_wrong_steps``, up to where the next begins."""
    return _step_marks(_with_defaults(judge_wrong_steps, parameters), _against_answer)


def _step_marks(
    given: Mapping[str, Any], asking: Callable[[Prompt, Text, str], str]
) -> Callable[[Sequence[Prompt], Sequence[Output]], list[Mapping[str, Any]]]:
    def remarks(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[Mapping[str, Any]]:
        said = []
        critiques = _wrong_steps(prompts, outputs, **given, asking=asking)
        for output, (steps, wrong) in zip(texts(outputs, "a judge of steps"), critiques, strict=True):
            ahead = len(output.whole) - len(output.text)  # what the chat template wrote of the answer
            ends = [first for first, _ in steps[1:]] + [len(output.whole) + 1]
            marks = [
                (first - ahead, end - ahead, -1.0)
                for number, ((first, _), end) in enumerate(zip(steps, ends, strict=True), 1)
                if wrong is not None and number in wrong
            ]
            said.append({} if wrong is None else {"marks": marks})
        return said

    return remarks


def check_votes(judge: str, count: int = 4, vote: str = "intersection", **more: str) -> None:
    """Before a run starts: the judge and the vote are known."""
    check_judge(judge=judge)
    if vote not in VOTES or count < 1:
        raise ValueError(
            f"rewards: judge_wrong_steps: got vote={vote!r}, count={count}, expected {', '.join(VOTES)}, and at least 1"
        )


def check_own_errors(judge: str, rule: str = "exact", count: int = 1, vote: str = "majority", **more: str) -> None:
    """Before a run starts: the judge, the task and the vote are known."""
    check_votes(judge, count, vote)
    if rule not in TASKS:
        raise ValueError(f"rewards: judge_own_errors: unknown task '{rule}'.{nearest(rule, TASKS)}")


VOTES: Mapping[str, Callable[[int, int], bool]] = {
    "intersection": lambda votes, count: votes == count,
    "majority": lambda votes, count: 2 * votes >= count,
    "union": lambda votes, count: votes > 0,
}
"""Whether a step is wrong that so many of so many critiques call so."""


def _against_answer(prompt: Prompt, output: Text, steps: str) -> str:
    return ALL_WRONG.format(prompt=prompt.text, answer=gold_text(prompt), steps=steps, label=WRONG)


def _of_itself(rule: str, tags: bool | str) -> Callable[[Prompt, Text, str], str]:
    """The question about what a solution itself says, by whether the task ``rule`` finds its answer right."""

    def asking(prompt: Prompt, output: Text, steps: str) -> str:
        if one_task(rule, [prompt], [output], tags)[0] >= 1:
            return CORRECTED.format(prompt=prompt.text, steps=steps, label=WRONG)
        answer = output.whole.rpartition("</think>")[2].strip()
        return TAKEN_UP.format(prompt=prompt.text, steps=steps, answer=answer, label=WRONG)

    return asking


def _wrong_steps(
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    judge: str,
    count: int,
    vote: str,
    tokens: int,
    media: bool,
    device: str,
    asking: Callable[[Prompt, Text, str], str],
) -> list[tuple[list[tuple[int, int]], frozenset[int] | None]]:
    """For each text the places of its steps, and the numbers of the wrong ones; None where no critique can be read.
    ``asking``: the question about a text, whose steps are numbered."""
    every: list[list[tuple[int, int]]] = []
    questions: list[Question | None] = []
    sources = sources_of(prompts, outputs, media)
    for prompt, output, source in zip(prompts, texts(outputs, "a judge of steps"), sources, strict=True):
        steps = step_places(output.whole)
        numbered = "\n\n".join(f"[{number}] {output.whole[a:b]}" for number, (a, b) in enumerate(steps, 1))
        request = asking(prompt, output, numbered)
        question = Question((*source, request)) if steps and source is not None else None
        questions += [question and replace(question, draw=draw) for draw in range(count)]
        every.append(steps)
    read = partial(numbers_after, label=WRONG)
    answers = readings(judge_named(judge, device), questions, read, tokens, f"End with one line:\n{WRONG}: <numbers>")
    rows: list[tuple[list[tuple[int, int]], frozenset[int] | None]] = []
    for place, steps in enumerate(every):
        critiques = [critique for critique in answers[place * count : (place + 1) * count] if critique is not None]
        critiques = [critique for critique in critiques if all(1 <= number <= len(steps) for number in critique)]
        votes = Counter(number for critique in critiques for number in critique)
        wrong = frozenset(number for number, given in votes.items() if VOTES[vote](given, len(critiques)))
        rows.append((steps, wrong if critiques else None))
    return rows


def numbers_after(text: str | None, label: str) -> frozenset[int] | None:
    """The whole numbers in the last line that begins with ``label`` and a colon; empty for "none", None where the line
    is missing or holds anything else."""
    lines = re.findall(rf"^[\s*_`#>]*{re.escape(label)}[\s*_`]*:(.*)$", conclusion(text), re.IGNORECASE | re.MULTILINE)
    content = re.sub(r"[\s*_`\[\]().]+", " ", lines[-1]).strip() if lines else ""
    if content.casefold() in ("none", "0"):
        return frozenset()
    if not re.fullmatch(
        r"(?:steps? )?\d{1,4}(?:(?: ?, ?| and | ?, and | )(?:steps? )?\d{1,4})*", content, re.IGNORECASE
    ):
        return None
    return frozenset(map(int, re.findall(r"\d+", content)))


@problem_reward(
    range=(-1, 1),
    scale="share of good less that of poor phrases",
    reads=("text", "media"),
    source="Text2Grad, arXiv:2505.22338",
    remarks="reward_models.judges.thoughts:phrase_remarks",
    version=1,
)
def judge_phrases(
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    judge: str,
    tokens: int = 2048,
    media: bool = True,
    device: str = "cpu",
) -> list[float]:
    """The share of the characters of a text in phrases that a critique calls good, less that in poor ones.

    With weight 0 it marks them with 1 and -1 for the credits ``mark_gae`` and ``mark_return`` (Text2Grad,
    arXiv:2505.22338). A phrase is found in the text word by word, the first time where no other stands; one that is not
    there is left out. NaN where the critique cannot be read, and where it names phrases of which none is there.
    """
    made = _phrases(prompts, outputs, judge, tokens, media, device)
    lengths = [max(1, len(output.text)) for output in texts(outputs, "judge_phrases")]
    return [
        math.nan if marks is None else math.fsum(value * (end - first) for first, end, value in marks) / length
        for marks, length in zip(made, lengths, strict=True)
    ]


def phrase_remarks(**parameters: Any) -> Callable[[Sequence[Prompt], Sequence[Output]], list[Mapping[str, Any]]]:
    """``marks``: 1 for each good and -1 for each poor phrase of ``judge_phrases``."""

    def remarks(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[Mapping[str, Any]]:
        made = _phrases(prompts, outputs, **_with_defaults(judge_phrases, parameters))
        return [{} if marks is None else {"marks": marks} for marks in made]

    return remarks


def _with_defaults(reward: Callable[..., Any], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """All parameters of a reward but prompts and outputs."""
    declared = {name: parameter.default for name, parameter in inspect.signature(reward).parameters.items()}
    return {name: parameters.get(name, default) for name, default in [*declared.items()][2:]}


def _phrases(
    prompts: Sequence[Prompt], outputs: Sequence[Output], judge: str, tokens: int, media: bool, device: str
) -> list[list[tuple[int, int, float]] | None]:
    """The marks of each text; None where its critique cannot be read, or none of its phrases is in the text."""
    questions: list[Question | None] = []
    sources = sources_of(prompts, outputs, media)
    answers = texts(outputs, "judge_phrases")
    for prompt, output, source in zip(prompts, answers, sources, strict=True):
        request = PHRASES.format(prompt=prompt.text, response=output.text)
        questions.append(Question((*source, request)) if output.text.strip() and source is not None else None)
    form = 'Give one JSON object:\n{"good": ["..."], "poor": ["..."]}'
    critiques = readings(judge_named(judge, device), questions, phrases_in, tokens, form)
    return [
        None if phrases is None else locate_phrases(output.text, phrases)
        for output, phrases in zip(answers, critiques, strict=True)
    ]


def phrases_in(text: str | None) -> list[tuple[str, float]] | None:
    """The phrases of an answer with their values; None where it is no object of two lists of texts."""
    content = json_object(text)
    if content is None or not {"good", "poor"} <= content.keys():
        return None
    sides = [(content[name], value) for name, value in (("good", 1.0), ("poor", -1.0))]
    if not all(isinstance(side, list) and all(isinstance(phrase, str) for phrase in side) for side, _ in sides):
        return None
    return [(phrase.strip(), value) for side, value in sides for phrase in side if phrase.strip()]


def locate_phrases(text: str, phrases: Sequence[tuple[str, float]]) -> list[tuple[int, int, float]] | None:
    """Where phrases stand in a text, whatever spaces are between their words, each where no earlier one of them does;
    None where none of several stands there."""
    marks: list[tuple[int, int, float]] = []
    for phrase, value in phrases:
        pattern = r"\s+".join(map(re.escape, phrase.split()))
        for match in re.finditer(pattern, text, re.IGNORECASE):
            if all(match.end() <= first or match.start() >= end for first, end, _ in marks):
                marks.append((match.start(), match.end(), value))
                break
    return None if phrases and not marks else sorted(marks)


def step_places(text: str) -> list[tuple[int, int]]:
    """Where the parts of a text between empty lines begin and end."""
    places, begun = [], 0
    for end, following in [*(match.span() for match in re.finditer(r"\n\s*\n", text)), (len(text), len(text))]:
        part = text[begun:end]
        if part.strip():
            first = begun + len(part) - len(part.lstrip())
            places.append((first, first + len(part.strip())))
        begun = following
    return places


@problem_reward(
    range=(-1, 1), scale="good, neither or poor", reads=("text", "media"), source="Text2Grad, arXiv:2505.22338"
)
def judge_last_step(
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    judge: str,
    poor: float = -1.0,
    tokens: int = 256,
    media: bool = True,
    device: str = "cpu",
) -> list[float]:
    """1 where the last step of a text, its last part or sentence, is good, ``poor`` where it is poor, 0 where it is
    neither or nothing is written yet: a judge in the place of a process reward model.

    For ``sampling.states: judged(by='judge_last_step', cut='sentence')``, where each step is the last of a text so far:
    rewards of spans by a critique (Text2Grad, arXiv:2505.22338), with ``poor=0`` those of steps.
    """
    questions: list[Question | None] = []
    sources = sources_of(prompts, outputs, media)
    for prompt, output, source in zip(prompts, texts(outputs, "judge_last_step"), sources, strict=True):
        steps = [part for part in re.split(r"(?<=[.!?])\s+|\n+", output.whole) if part.strip()]
        request = LAST.format(
            prompt=prompt.text, before=" ".join(steps[:-1]) or "(nothing)", step=steps[-1] if steps else ""
        )
        questions.append(Question((*source, request)) if steps and source is not None else None)
    read = partial(_verdict, values={"good": 1.0, "poor": poor, "neither": 0.0})
    values = ask(
        judge_named(judge, device), questions, read, tokens, "End with one line: Verdict: good, poor or neither."
    )
    empty = [not output.whole.strip() for output in texts(outputs, "judge_last_step")]
    return [0.0 if nothing else value for nothing, value in zip(empty, values, strict=True)]


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


@reward(
    "Text",
    scale="probability",
    reads=("text", "media", "answer"),
    source="arXiv:2506.22832",
    check="reward_models.judges.thoughts:check_listener",
    row="reward_models.judges.question:check_source",
    version=2,
)
def listener(
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    judge: str,
    choices: Sequence[str] = ("A", "B"),
    of: str = "gold",
    device: str = "cpu",
) -> list[float]:
    """The probability, among the ``choices``, that a frozen model gives the answer of the prompt (``gold``) or that of
    the completion (``chosen``) after it has seen the prompt with its images and read the thought, from which the
    answer is removed: thoughts that persuade another model (arXiv:2506.22832).

    There r = format + accuracy / 2 + listener / 2; which of the two probabilities its listener gives is not said
    clearly in what was read, and they are one where the answer is right. NaN for a completion without a thought.
    """
    index = {choice.casefold(): place for place, choice in enumerate(choices)}
    questions: list[Question | None] = []
    wanted: list[int] = []
    sources = sources_of(prompts, outputs, titles=False)
    for prompt, output, source in zip(prompts, texts(outputs, "listener"), sources, strict=True):
        thought = re.sub(r"</?think>", "", re.split(r"<answer>|</think>", output.whole)[0]).strip()
        chosen = (
            gold_text(prompt) if of == "gold" else answer_of(output.whole) or after_thought_of(output.whole)
        ).strip()
        wanted.append(index.get(chosen.casefold(), -1))
        if of == "gold" and wanted[-1] < 0:
            raise ValueError(
                f"prompt '{prompt.id}': got the answer '{chosen:.100}', expected one of choices={list(choices)}"
            )
        request = LISTEN.format(prompt=prompt.text, thought=thought, choices=", ".join(choices))
        complete = thought and wanted[-1] >= 0
        questions.append(Question((*source, request)) if complete and source is not None else None)
    answerable = [question for question in questions if question is not None]
    rows = iter(judge_named(judge, device).log_probs(answerable, [(choice,) for choice in choices]))
    values = []
    for question, place in zip(questions, wanted, strict=True):
        row = None if question is None else next(rows)
        values.append(math.nan if row is None else 1 / math.fsum(math.exp(min(700.0, v - row[place])) for v in row))
    return values


def check_listener(judge: str, choices: Sequence[str] = ("A", "B"), of: str = "gold", **more: str) -> None:
    """Before a run starts: the judge and the probability are known, and choices differ."""
    check_judge(judge=judge)
    if of not in ("gold", "chosen") or len({*choices}) < 2:
        raise ValueError(
            f"rewards: listener: got of={of!r}, choices={choices!r}, expected gold or chosen, and several choices"
        )


@problem_reward(scale="yes or no", reads=("text", "media", "answer"), source="RLPT, arXiv:2509.19249")
def judge_continuation(
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    judge: str,
    tokens: int = 256,
    media: bool = True,
    device: str = "cpu",
) -> list[float]:
    """1 for a text that is, in meaning, a valid beginning of the answer of its prompt, the segment that follows there,
    else 0: the reward of RLPT (arXiv:2509.19249), whose prompts are texts up to a sentence, or around one."""
    questions: list[Question | None] = []
    sources = sources_of(prompts, outputs, media)
    for prompt, output, source in zip(prompts, texts(outputs, "judge_continuation"), sources, strict=True):
        proposed = answer_of(output.whole) or after_thought_of(output.whole) or output.text
        request = CONTINUES.format(prompt=prompt.text, answer=gold_text(prompt), output=proposed)
        questions.append(None if source is None else Question((*source, request)))
    read = partial(_verdict, values={"yes": 1.0, "no": 0.0})
    return ask(judge_named(judge, device), questions, read, tokens, "End with one line: Verdict: yes or Verdict: no.")


def _verdict(text: str | None, values: Mapping[str, float]) -> float | None:
    verdicts = {word.lower() for word in re.findall(r"verdict[\"'*_`\s]*[:=][\"'*_`\s]*(\w+)", conclusion(text), re.I)}
    return values.get(verdicts.pop()) if len(verdicts) == 1 else None
