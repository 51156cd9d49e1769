"""Programs of several calls for ``sampling.program``, and examples of one's own.

sampling:
  program: pipelines.text.programs:plan_and_act
  trained_modules: [planner]
  turns: 10
"""

from __future__ import annotations

from mmgrpo.policies.programs import Ask, Calls
from mmgrpo.prompts.added import fill_text
from mmgrpo.prompts.judging import POINT, REFLECTION, verdict
from mmgrpo.types import Prompt

STEPS = 3
"""Steps of ``plan_and_act``, as in training of AgentFlow."""


REFLECTIONS = 2
"""Most further attempts of ``answer_and_reflect``."""


def plan_and_write(prompt: Prompt, seed: int, member: int) -> Calls:
    """Two modules, of which the second reads what the first has written."""
    plan = yield Ask(f"{prompt.text}\nPlan the answer in one sentence.", "planner")
    return (yield Ask(f"{prompt.text}\nPlan: {plan}\nAnswer.", "writer"))


def plan_and_act(prompt: Prompt, seed: int, member: int) -> Calls:
    """The four modules of AgentFlow (arXiv:2510.05592) and their memory: the planner says what to do next, the executor
    does it, the verifier says whether that is enough, and the generator answers. The words are ours, and the executor
    has no tools but what it knows."""
    memory = ""
    for step in range(1, STEPS + 1):
        known = f"Question: {prompt.text}\nSo far:{memory or ' nothing'}\n"
        plan = yield Ask(f"{known}Say the next step in one sentence.", "planner")
        result = yield Ask(f"{known}Do this step, and say its result alone: {plan}", "executor")
        memory += f"\n{step}. {plan} Result: {result}"
        enough = yield Ask(f"Question: {prompt.text}\nSo far:{memory}\nIs this enough? Say yes or no.", "verifier")
        if "yes" in enough.lower():
            break
    return (yield Ask(f"Question: {prompt.text}\nSo far:{memory}\nAnswer the question.", "generator"))


def answer_and_reflect(prompt: Prompt, seed: int, member: int) -> Calls:
    """The self-reflection of SPARK (arXiv:2509.22624) when it answers: the model judges its own answer, asked as in its
    training (``algorithm.judging: verdicts``), and where it says no answers anew, the wrong attempt before it."""
    answer = yield Ask(prompt.text, "answer")
    for _ in range(REFLECTIONS):
        said = yield Ask(f"{prompt.text}{fill_text(POINT, prompt, answer)}", "judge")
        if verdict(said, ("yes", "no")) != 1:
            break
        answer = yield Ask(f"{prompt.text}{fill_text(REFLECTION, prompt, answer)}", "answer")
    return answer
