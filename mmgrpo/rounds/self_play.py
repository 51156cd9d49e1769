"""The policy asks itself about documents, answers and verifies in one round (``algorithm.judging: self_play``;
mmgrpo/prompts/self_play.py; SPELL, arXiv:2509.23863).

    on_request  prompts become those of the questioner, one sample each
    on_rows     questions are read, tried without documents, answered and verified; rows of all three roles have their
                rewards, and those that are not trained give way

Answers and verdicts have groups of their own and the origin HINTED; questions are one group. What the policy could
solve is remembered of each prompt, in checkpoints too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from mmgrpo.prompts.judging import SelfPlay, answer_in
from mmgrpo.prompts.self_play import (
    MALFORMED,
    UNGROUNDED,
    Pair,
    answering,
    asking,
    choose_questions,
    choose_verdicts,
    documents_of,
    draw_documents,
    pair_in,
    verdicts_of,
    verifying,
    worth_of_question,
)
from mmgrpo.randomness import derive
from mmgrpo.rollout import RoundRows
from mmgrpo.rounds.callback import Callback, Choices, Run
from mmgrpo.rounds.rows import text_of, with_prompt_index, with_values
from mmgrpo.runtime.distributed import gather_rows, gather_texts
from mmgrpo.scoring import RewardScores
from mmgrpo.types import DROPPED, HINTED, OWN, REPLACED, Prompt, Request, Rollout

FIRST_PLAYED = 1 << 37
"""First key of groups of answers, that of a question its slot behind it."""
GROUPS = 1 << 38
"""The key of the verdicts on an answer is that of its group and so many times its number from 1 on."""
QUESTIONS = FIRST_PLAYED - 1
"""The key of all questions."""


@dataclass
class Played:
    """A question of this rank and what came of it."""

    place: int
    """Of its row among the gathered ones."""
    number: int
    """Of its prompt in the training set."""
    slot: int
    prompt: Prompt
    pair: Pair | None
    reward: float = MALFORMED

    @property
    def key(self) -> int:
        """Of the group of its answers."""
        return FIRST_PLAYED + self.slot


class SelfPlaying(Callback):
    """Questions, answers and verdicts of the policy; a checkpoint has the pairs that are remembered."""

    key: ClassVar[str] = "self_play"

    def __init__(self, rule: SelfPlay) -> None:
        self.rule = rule
        self.memory: dict[int, list[Pair]] = {}
        """By the number of the prompt."""
        self.read: dict[int, tuple[int, ...]] = {}
        """The documents of each question of the present round, by slot."""

    def attach(self, run: Run) -> None:
        for prompt in run.prompts:
            documents_of(prompt)

    def on_request(self, run: Run, request: Request) -> Request:
        index = {id(prompt): number for number, prompt in enumerate(run.prompts)}
        prompts = []
        for prompt, slot in zip(request.prompts, request.slots, strict=True):
            self.read[slot] = draw_documents(prompt, self.rule, run.seed, run.round, slot)
            prompts.append(asking(prompt, self.read[slot], self.memory.get(index[id(prompt)], ()), self.rule))
        return replace(request, prompts=prompts, group_size=1)

    def on_rows(self, run: Run, rows: RoundRows) -> dict[str, float]:
        metrics = Game(self.rule, run, rows, self.memory, self.read).play()
        self.read = {}
        return metrics

    def state(self) -> Any:
        return {
            str(n): [[pair.question, pair.answer, pair.documents] for pair in pairs] for n, pairs in self.memory.items()
        }

    def load(self, state: Any, tensors: Mapping[str, Tensor], step: int) -> None:
        self.memory = {
            int(number): [Pair(question, answer, tuple(read)) for question, answer, read in pairs]
            for number, pairs in (state or {}).items()
        }


@dataclass(frozen=True)
class Drawn:
    """What was drawn in a role: rows by the key of their group, and scores that begin as those of rewards."""

    rollout: Rollout
    scores: RewardScores
    rows: dict[int, list[int]]

    def texts(self, key: int) -> list[str]:
        """What the rows of a group say."""
        return [text_of(self.rollout, row) for row in self.rows[key]]


@dataclass(frozen=True)
class Game:
    """One round on this rank."""

    rule: SelfPlay
    run: Run
    rows: RoundRows
    memory: dict[int, list[Pair]]
    read: Mapping[int, tuple[int, ...]]

    def play(self) -> dict[str, float]:
        """Add the rows of answers and verdicts, give all rows their rewards, and return metrics."""
        run, played = self.run, self._questions()
        grounded = self._keep_grounded([question for question in played if question.pair is not None])
        answers = self._draw(
            [answering(question.prompt, _pair(question), self.rule) for question in grounded], _keys(grounded)
        )
        verdicts, conflicting = self._verify(grounded, answers)
        for question in grounded:
            assert answers is not None
            column = answers.scores.values[answers.rows[question.key], self.column]
            question.reward = worth_of_question(float(column.mean()))
        rewards = self._table([(question.place, question.reward) for question in played])
        kept = choose_questions(rewards, run.seed, run.round)
        positive = {place for place in kept if rewards[place] > 0}
        groups = [*self._table([(key, 1.0) for key in conflicting])]
        trained = choose_verdicts(groups, len(positive), run.seed, run.round)
        self._reward_questions(rewards, kept)
        self._add(answers, {question.key for question in grounded if question.place in positive})
        self._add(verdicts, trained)
        self._remember(played)
        count = max(1, len(rewards))
        return {
            "self_play/malformed_fraction": sum(reward == MALFORMED for reward in rewards.values()) / count,
            "self_play/ungrounded_fraction": sum(reward == UNGROUNDED for reward in rewards.values()) / count,
            "self_play/questions": float(len(positive)),
            "self_play/question_reward": sum(rewards.values()) / count,
            "self_play/verdict_groups": float(len(trained)),
        }

    @property
    def column(self) -> int:
        """Of the reward that the roles have."""
        return self.rows.names.index(self.rule.reward)

    # ---- roles

    def _questions(self) -> list[Played]:
        """Those of this rank."""
        questions = []
        for rollout, places in zip(self.rows.rollouts, self.rows.places, strict=True):
            slots, numbers = (rollout.decisions.keys["prompt"], rollout.decisions.fields["prompt_index"])
            for row, place in enumerate(places.tolist()):
                if int(rollout.decisions.origin[row]) == OWN:
                    slot, number = int(slots[row]), int(numbers[row])
                    pair = pair_in(text_of(rollout, row))
                    pair = pair and replace(pair, documents=self.read[slot])
                    questions.append(Played(place, number, slot, self.run.prompts[number], pair))
        return questions

    def _keep_grounded(self, whole: Sequence[Played]) -> list[Played]:
        """Those whose question the policy does not answer rightly without documents."""
        prompts = [answering(question.prompt, _pair(question), self.rule, grounded=False) for question in whole]
        tried = self._draw(prompts, _keys(whole), 1)
        for question in whole:
            assert tried is not None
            question.reward = UNGROUNDED if self._right(tried, question.key)[0] else 0.0
        return [question for question in whole if question.reward > UNGROUNDED]

    def _verify(self, grounded: Sequence[Played], answers: Drawn | None) -> tuple[Drawn | None, list[int]]:
        """Verdicts on all answers, whose rewards become the larger ones of rule and majority; and the groups of
        verdicts that may be trained."""
        if answers is None:
            return None, []
        prompts, keys = list[Prompt](), list[int]()
        for question in grounded:
            for number, text in enumerate(answers.texts(question.key)):
                prompts.append(verifying(question.prompt, _pair(question), answer_in(text), self.rule))
                keys.append(question.key + (number + 1) * GROUPS)
        verdicts = self._draw(prompts, keys, judged=False)
        assert verdicts is not None
        of_answers, of_verdicts, conflicting = list[tuple[int, float]](), list[tuple[int, float]](), list[int]()
        for question in grounded:
            for number, right in enumerate(self._right(answers, question.key)):
                key = question.key + (number + 1) * GROUPS
                majority, values = verdicts_of(verdicts.texts(key), self.rule.words)
                of_answers.append((answers.rows[question.key][number], float(right or majority)))
                of_verdicts += zip(verdicts.rows[key], values, strict=True)
                if majority == right and len({*values}) > 1:
                    conflicting.append(key)
        self._set_rewards(answers, of_answers)
        self._set_rewards(verdicts, of_verdicts)
        return verdicts, conflicting

    def _draw(self, prompts: Sequence[Prompt], keys: Sequence[int], size: int = 0, judged: bool = True) -> Drawn | None:
        """Samples of prompts; none where this rank has no prompt."""
        if not prompts:
            return None
        run, rule, rows = self.run, self.rule, self.rows
        sampling = {**rows.request.sampling, **({"max_tokens": float(rule.tokens)} if rule.tokens else {})}
        size = size or rule.samples or run.hyperparameters(run.step).rounds.group_size
        seed = derive(run.seed, "self play", run.round, size, int(judged))
        request = replace(rows.request, prompts=prompts, slots=keys, group_size=size, seed=seed, sampling=sampling)
        rollout = run.policy.rollout(request)
        places: dict[int, list[int]] = {key: [] for key in keys}
        for row, key in enumerate(rollout.decisions.keys["prompt"].tolist()):
            places[key].append(row)
        if judged:
            scored, scores = rows.judge(request, rollout)()
            return Drawn(rollout.with_decisions(scored), scores, places)
        nothing = torch.zeros(rollout.decisions.rows, len(rows.names))
        return Drawn(rollout, RewardScores(nothing, nothing > 0, nothing == 0), places)

    def _right(self, drawn: Drawn, key: int) -> list[bool]:
        """What the rule says of the rows of a group; what it could not score is wrong."""
        column, rows = self.rows.names.index(self.rule.rule), drawn.rows[key]
        return ((drawn.scores.values[rows, column] >= 1) & drawn.scores.valid[rows, column]).tolist()

    def _set_rewards(self, drawn: Drawn, values: Sequence[tuple[int, float]]) -> None:
        """Give rows their rewards, beside which those of weight 0 stay."""
        changed = with_values(drawn.scores, values, self.column, self._zero_weight_columns())
        drawn.scores.values.copy_(changed.values)
        drawn.scores.valid.copy_(changed.valid)
        assert drawn.scores.abstained is not None and changed.abstained is not None
        drawn.scores.abstained.copy_(changed.abstained)

    def _zero_weight_columns(self) -> list[bool]:
        """Of which rewards a value stays: those of weight 0."""
        scorers = self.rows.scorers
        return [scorers[place % len(scorers)].weight == 0 for place in range(len(self.rows.names))]

    # ---- what is trained

    def _table(self, pairs: Sequence[tuple[int, float]]) -> dict[int, float]:
        """Numbers of all ranks by key, in order."""
        table = gather_rows(torch.tensor(pairs, dtype=torch.float64).reshape(-1, 2), self.run.accelerator).cpu()
        return {int(key): value for key, value in sorted(table.tolist())}

    def _reward_questions(self, rewards: Mapping[int, float], kept: set[int]) -> None:
        """All questions are one group; those that are not trained give way."""
        first = 0
        for place, part in enumerate(self.rows.decisions):
            here = [(row - first, value) for row, value in rewards.items() if first <= row < first + part.rows]
            self.rows.scores[place] = with_values(
                self.rows.scores[place], here, self.column, self._zero_weight_columns()
            )
            is_question, left = torch.zeros(part.rows, dtype=torch.bool), torch.zeros(part.rows, dtype=torch.bool)
            is_question[[row for row, _ in here]] = True
            left[[row for row, _ in here if row + first not in kept]] = True
            keys = {**part.keys, "prompt": torch.where(is_question, QUESTIONS, part.keys["prompt"])}
            origin = torch.where(left, REPLACED, part.origin)
            self.rows.decisions[place] = replace(part, keys=keys, origin=origin)
            first += part.rows

    def _add(self, drawn: Drawn | None, trained: set[int]) -> None:
        """Add the rows of a role, of which those of some groups are trained."""
        if drawn is None:
            self.rows.add(None, None)
            return
        decisions = drawn.rollout.decisions
        kept = torch.tensor([key in trained for key in decisions.keys["prompt"].tolist()])
        kept = kept.to(decisions.origin.device)
        origin = torch.where(decisions.origin == OWN, torch.where(kept, HINTED, DROPPED), decisions.origin)
        rollout = drawn.rollout.with_decisions(
            with_prompt_index(replace(decisions, origin=origin), [-1] * decisions.rows)
        )
        self.rows.add(rollout, drawn.scores)

    def _remember(self, played: Sequence[Played]) -> None:
        """Questions of a positive reward, by the number of their prompts, on all ranks."""
        lines = [
            json.dumps([question.number, question.pair.question, question.pair.answer, question.pair.documents])
            for question in played
            if question.pair and question.reward > 0
        ]
        for number, question, answer, read in map(json.loads, gather_texts(lines, self.run.accelerator)):
            pairs = [*self.memory.get(number, ()), Pair(question, answer, tuple(read))]
            self.memory[number] = pairs[len(pairs) - min(len(pairs), self.rule.memory) :]


def _pair(question: Played) -> Pair:
    assert question.pair is not None
    return question.pair


def _keys(questions: Sequence[Played]) -> list[int]:
    return [question.key for question in questions]


def callbacks(choices: Choices) -> list[Callback]:
    """What the settings ask for."""
    return [SelfPlaying(rule({})) for rule in choices.rules("self_play")]
