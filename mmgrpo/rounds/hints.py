"""Hints: what a prompt says of its solution, from the start, or once all samples of its group have failed.

groups without success -> again, with more of the solution in the prompt at every stage -> judged
                       -> gathered as HINTED; the samples that give way stay evidence of how hard the prompt is
"""

from __future__ import annotations

from dataclasses import replace

import torch

from mmgrpo.prompts.hints import Hint, hint_of_stage, solution_of, step_hint, with_budget
from mmgrpo.randomness import derive
from mmgrpo.rollout import RoundRows
from mmgrpo.rounds.callback import Callback, Choices, Run
from mmgrpo.rounds.rows import give_way, groups_of, refuse_unstoring, with_prompt_index, without_success
from mmgrpo.types import Request


class Hints(Callback):
    """Gives the hints of ``algorithm.hint``."""

    def attach(self, run: Run) -> None:
        refuse_unstoring(run.policy, "algorithm.hint", run.loss.hint.text)

    def on_request(self, run: Run, request: Request) -> Request:
        """The request with the hints that a recipe gives from the start."""
        hint: Hint = run.loss.hint({})
        if hint.members and hint.members >= request.group_size:
            raise ValueError(f"algorithm.hint: got members {hint.members}, expected less than the group size")
        if hint.members:
            solutions = [solution_of(prompt, hint.column) for prompt in request.prompts]
            numbers = {"forced_members": float(hint.members), "forced_tokens": hint.tokens}
            texts = [text if isinstance(text, str) else "" for text in solutions]
            return replace(request, sampling={**request.sampling, **numbers}, solutions=texts)
        if hint.budget:
            return replace(request, prompts=[with_budget(prompt, hint) for prompt in request.prompts])
        if not hint.steps:
            return request
        pairs = zip(request.prompts, request.slots, strict=True)
        return replace(request, prompts=[step_hint(prompt, hint, request.seed, slot) for prompt, slot in pairs])

    def on_rows(self, run: Run, rows: RoundRows) -> dict[str, float]:
        """Sample groups without success again, with more of the solution in the prompt at every stage."""
        hint: Hint = run.loss.hint({})
        if not hint.shares:
            return {}
        groups = groups_of(rows.rollouts)
        again: set[int] = set()
        for stage in range(len(hint.shares)):
            decisions, _, result = rows.estimate()
            failed = without_success(decisions, result, hint.above)
            tried = {group.key: hint_of_stage(group.prompt, hint, stage) for group in groups if group.key in failed}
            prompts = {key: prompt for key, prompt in tried.items() if prompt is not None}
            rollout, scores = None, None
            if prompts:
                seed, size = derive(run.seed, "hint", run.round, stage), max(group.size for group in groups)
                request = replace(
                    rows.request, prompts=[*prompts.values()], slots=[*prompts], group_size=size, seed=seed
                )
                rollout = run.policy.rollout(request)
                scored, scores = rows.judge(request, rollout)()
                numbers = {group.key: group.number for group in groups}
                keys = scored.keys["prompt"].tolist()
                rollout = rollout.with_decisions(with_prompt_index(scored, [numbers[key] for key in keys]))
            rows.add(rollout, scores)
            sampled = torch.unique(rows.decisions[-1].keys["prompt"])
            earlier = torch.cat([part.keys["prompt"] for part in rows.decisions[:-1]])
            give_way(rows, torch.isin(earlier, sampled).nonzero()[:, 0])
            again |= {*sampled.tolist()}
        keys = torch.unique(torch.cat([part.keys["prompt"] for part in rows.decisions]))
        return {"hint/groups": len(again) / len(keys)}


def callbacks(choices: Choices) -> list[Callback]:
    """What the settings ask for."""
    return [Hints()]
