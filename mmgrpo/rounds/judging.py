"""The policy judges samples of the round in which it drew them (``algorithm.judging``; mmgrpo/prompts/judging.py).

own       judged rows of prompts that no rule scores -> questions -> drawn -> read -> their reward
verdicts  judged rows -> questions with a known answer -> drawn and judged as rows of the round, in groups of their
          own with the origin HINTED: they are trained, and no evidence of how hard a prompt of the data set is
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import torch

from mmgrpo.config.registry import Bound
from mmgrpo.prompts.judging import (
    KINDS,
    Judging,
    Question,
    agreement,
    answer_in,
    asking,
    merging,
    points_of,
    proposing,
    questions,
    scores_in,
    scoring,
    verdict,
)
from mmgrpo.randomness import derive, stream
from mmgrpo.rollout import RoundRows
from mmgrpo.rounds.callback import Callback, Choices, Run
from mmgrpo.rounds.rows import Group, column_of, give_scores, groups_of, text_of, with_prompt_index
from mmgrpo.runtime.distributed import gather_texts, sum_by_name
from mmgrpo.types import HINTED, OWN, REPLACED, Prompt, Request, Rollout

FIRST_JUDGED = 1 << 36
"""First key of groups of verdicts; that of a question is this and its group's key times the number of kinds."""


class Judges(Callback):
    """Asks what ``algorithm.judging`` asks in each round; a checkpoint has the rubrics that were rewritten."""

    def __init__(self) -> None:
        self.rubrics: dict[int, list[str]] = {}
        """Of each rule that has some, all so far."""

    @staticmethod
    def _rules(run: Run) -> list[Bound]:
        """Those about samples of the round."""
        return [bound for bound in run.loss.judging if bound.block.method == "judging"]

    def on_rows(self, run: Run, rows: RoundRows) -> dict[str, float]:
        metrics: dict[str, float] = {}
        rules: list[Judging] = [bound({}) for bound in self._rules(run)]
        # What is judged by itself is no evidence of right and wrong.
        open_tasks = {rule.task for rule in rules if rule.kind == "own"}
        for number, rule in enumerate(rules):
            rubrics = self.rubrics.setdefault(number, [rule.rubric]) if rule.rubric else [""]
            judge = Judge(rule, run, rows, number, frozenset(open_tasks), rubrics[-1])
            metrics |= judge.score() if rule.kind == "own" else judge.ask()
            if rule.every and (run.round + 1) % rule.every == 0:
                rubrics += judge.rewritten()
            if rule.rubric:
                metrics["judging/rubrics"] = float(len(rubrics))
        return metrics

    def state(self) -> dict[str, list[str]] | None:
        return {str(number): rubrics for number, rubrics in self.rubrics.items()} or None

    def load(self, state: Any, tensors: Mapping[str, torch.Tensor], step: int) -> None:
        self.rubrics = {int(number): list(rubrics) for number, rubrics in (state or {}).items()}


@dataclass(frozen=True)
class Judge:
    """One rule in one round on this rank."""

    rule: Judging
    run: Run
    rows: RoundRows
    number: int
    """Of the rule."""
    open_tasks: frozenset[str]
    rubric: str = ""

    # ---- verdicts

    def ask(self) -> dict[str, float]:
        """Add the rows of questions with a known answer, and return metrics."""
        rule, run, rows = self.rule, self.run, self.rows
        of_answers, of_verdicts = rule.trains(run.round)
        questions = self._questions() if of_verdicts else []
        groups = {group.key: group for group in self._groups()}
        mine = [question for question in questions if question.key in groups]
        texts = self._texts(mine)
        rollout, scores, read = None, None, dict[str, float]()
        if mine:
            prompts = [
                asking(
                    question,
                    groups[question.key].prompt,
                    [texts[place, question.whole] for place in question.places],
                    rule,
                )
                for question in mine
            ]
            slots = [FIRST_JUDGED + question.key * len(KINDS) + KINDS.index(question.kind) for question in mine]
            size = rule.samples or run.hyperparameters(run.step).rounds.group_size
            request = self._request(prompts, slots, size, "verdicts")
            rollout = run.policy.rollout(request)
            scored, scores = rows.judge(request, rollout)()
            origin = torch.where(scored.origin == OWN, HINTED, scored.origin)
            rollout = rollout.with_decisions(with_prompt_index(replace(scored, origin=origin), [-1] * scored.rows))
            read = self._read(mine, slots, rollout)
        if not of_answers:
            for place, part in enumerate(rows.decisions):
                origin = part.origin.masked_fill(part.origin == OWN, REPLACED)
                rows.decisions[place] = replace(part, origin=origin)
        rows.add(rollout, scores)
        return self._metrics(questions, sum_by_name(read, READ, run.accelerator))

    def _questions(self) -> list[Question]:
        """Those of the round, of all ranks."""
        rule, rows = self.rule, self.rows
        decisions, scores, result = rows.estimate()
        if rule.by:
            column = rows.names.index(rule.by)
            value = torch.where(scores.valid[:, column], scores.values[:, column], torch.nan)
        else:
            value = result.rewards
        shown = (decisions.origin == OWN) & ~value.isnan() & (decisions.fields["prompt_index"] >= 0)
        if "truncated" in decisions.fields:
            shown = shown & ~(decisions.fields["truncated"] > 0)
        index, keys = decisions.fields["prompt_index"].tolist(), decisions.keys["prompt"].tolist()
        groups: dict[int, list[tuple[int, bool]]] = {}
        for place in shown.nonzero()[:, 0].tolist():
            if self.run.prompts[index[place]].task not in self.open_tasks:
                groups.setdefault(keys[place], []).append((place, bool(value[place] > rule.above)))
        return questions(groups, rule, self.run.seed, self.run.round)

    def _groups(self) -> list[Group]:
        """Those of this rank that have questions with a known answer."""
        return [group for group in groups_of(self.rows.rollouts) if group.prompt.task not in self.open_tasks]

    def _texts(self, questions: Sequence[Question]) -> dict[tuple[int, bool], str]:
        """What samples say, by place and whether all of it is shown."""
        wanted = {place for question in questions for place in question.places}
        texts = dict[tuple[int, bool], str]()
        for rollout, places in zip(self.rows.rollouts, self.rows.places, strict=True):
            for row, place in enumerate(places.tolist()):
                if place in wanted:
                    whole = text_of(rollout, row)
                    texts[place, True] = whole
                    texts[place, False] = answer_in(whole) if self.rule.shown == "answer" else whole
        return texts

    def _read(self, questions: Sequence[Question], slots: Sequence[int], rollout: Rollout) -> dict[str, float]:
        """What this rank's verdicts say, as sums."""
        by_slot, sums = dict(zip(slots, questions, strict=True)), dict.fromkeys(READ, 0.0)
        for row, slot in enumerate(rollout.decisions.keys["prompt"].tolist()):
            if (question := by_slot[slot]).kind == "reflection" or int(rollout.decisions.origin[row]) != HINTED:
                continue
            choice = verdict(text_of(rollout, row), self.rule.words if question.kind == "point" else self.rule.letters)
            sums["verdicts"] += 1
            sums["unread"] += choice is None
            if choice is not None:
                sums[f"{question.kind}s"] += 1
                sums[f"{question.kind} right"] += (choice == 0) == question.right
                sums[f"{question.kind} first"] += choice == 0
        return sums

    def _metrics(self, questions: Sequence[Question], read: dict[str, float]) -> dict[str, float]:
        metrics = {f"judging/{kind}s": float(sum(question.kind == kind for question in questions)) for kind in KINDS}
        if read["verdicts"]:
            metrics["judging/unread_fraction"] = read["unread"] / read["verdicts"]
        if count := read["points"] + read["pairs"]:
            first = read["point first"] + read["pair first"]
            metrics["judging/right_fraction"] = (read["point right"] + read["pair right"]) / count
            metrics["judging/first_fraction"] = first / count
        return metrics

    # ---- scores of its own

    def score(self) -> dict[str, float]:
        """Give the samples that no rule scores what the judge says of them, and return metrics."""
        rule, rows = self.rule, self.rows
        names = rows.names
        samples = {
            group.key: self._samples(group) for group in groups_of(rows.rollouts) if group.prompt.task == rule.task
        }
        known = column_of(rows, names.index(rule.verifier)) if rule.verifier else {}
        values = give_scores(rows, [*self._judge(samples).items()], rule.reward, self._zero_weight_columns())
        scored = {row: value for row, value in values.items() if value == value}
        metrics = {"judging/scored": float(len(scored)), "judging/unscored": float(len(values) - len(scored))}
        if scored:
            metrics["judging/score"] = fmean(scored.values())
        keys = torch.cat([part.keys["prompt"] for part in rows.decisions]).tolist()
        of_groups: dict[int, list[int]] = {}
        for row in sorted(scored.keys() & known.keys()):
            of_groups.setdefault(keys[row], []).append(row)
        pairs = [agreement([scored[r] for r in members], [known[r] for r in members]) for members in of_groups.values()]
        if count := sum(count for _, count in pairs):
            metrics["judging/agreement"] = sum(right for right, _ in pairs) / count
        return metrics

    def _zero_weight_columns(self) -> list[bool]:
        """Of which rewards a value stays: those of weight 0."""
        scorers = self.rows.scorers
        return [scorers[place % len(scorers)].weight == 0 for place in range(len(self.rows.names))]

    def _samples(self, group: Group) -> list[tuple[int, str, Prompt]]:
        """Place and text of the samples of a group."""
        samples = []
        for rollout, places in zip(self.rows.rollouts, self.rows.places, strict=True):
            keys, origins = rollout.decisions.keys["prompt"].tolist(), rollout.decisions.origin.tolist()
            for row, place in enumerate(places.tolist()):
                if keys[row] == group.key and origins[row] == OWN:
                    text = text_of(rollout, row)
                    shown = answer_in(text) if self.rule.shown == "answer" else text
                    samples.append((place, shown, group.prompt))
        return samples

    def _judge(self, samples: dict[int, list[tuple[int, str, Prompt]]]) -> dict[int, float]:
        """What the judge gives to samples of this rank, by place; NaN for what could not be read."""
        rule, run = self.rule, self.run
        orders = dict[int, list[tuple[int, str, Prompt]]]()
        for key, group in samples.items():
            if rule.together:
                order = torch.randperm(len(group), generator=stream(run.seed, "judging order", run.round, key)).tolist()
                orders[FIRST_JUDGED + key] = [group[place] for place in order]
            else:
                orders |= {(FIRST_JUDGED + key) * MEMBERS + place: [sample] for place, sample in enumerate(group)}
        if not orders:
            return {}
        prompts = [scoring(group[0][2], [text for _, text, _ in group], rule, self.rubric) for group in orders.values()]
        request = self._request(prompts, [*orders], rule.samples, "own")
        with self._drawing(rule.network):
            rollout = run.policy.rollout(request)
        verdicts: dict[int, list[float]] = {place: [] for group in orders.values() for place, _, _ in group}
        for row, slot in enumerate(rollout.decisions.keys["prompt"].tolist()):
            if int(rollout.decisions.origin[row]) != OWN:
                continue
            text, group = text_of(rollout, row), orders[slot]
            if rule.together:
                read = scores_in(text, len(group), rule.low, rule.high)
            elif self.rubric:
                read = scores_in(text, 1, 0.0, points_of(self.rubric))
            else:
                choice = verdict(text, rule.words)
                read = None if choice is None else [1.0 - choice]
            for (place, _, _), value in zip(group, read or (), strict=False):
                verdicts[place].append(value)
        return {place: fmean(values) if values else torch.nan for place, values in verdicts.items()}

    def rewritten(self) -> list[str]:
        """The rubric that the meta network makes of samples and their scores, the same on all ranks; none where what it
        writes has no points."""
        rule, run, rows = self.rule, self.run, self.rows
        scored = column_of(rows, rows.names.index(rule.reward))
        groups = [group for group in groups_of(rows.rollouts) if group.prompt.task == rule.task]
        mine = {place: (text, prompt) for group in groups for place, text, prompt in self._samples(group)}
        every = sorted({place for place in scored if self._is_open(place)})
        order = torch.randperm(len(every), generator=stream(run.seed, "rubric", run.round, self.number)).tolist()
        chosen = {every[place] for place in order[: rule.read]}
        requests = {
            place: proposing(mine[place][1], mine[place][0], scored[place], self.rubric)
            for place in sorted(chosen & mine.keys())
        }
        proposals = self._write_texts([*requests.values()], [FIRST_JUDGED + place for place in requests], "proposed")
        proposals = [proposal for proposal in gather_texts(proposals, run.accelerator) if points_of(proposal)]
        if not proposals:
            return []
        # All ranks draw, since their weights may be divided among them; what the first one wrote counts.
        texts = self._write_texts([merging(proposals)], [0], "merged")
        [rubric] = gather_texts(texts if run.accelerator.is_main_process else [], run.accelerator)
        return [rubric] if points_of(rubric) else []

    def _is_open(self, place: int) -> bool:
        """Whether a gathered row is one that this rule scores."""
        first = 0
        for part in self.rows.decisions:
            if place < first + part.rows:
                index, origin = int(part.fields["prompt_index"][place - first]), int(part.origin[place - first])
                return origin == OWN and index >= 0 and self.run.prompts[index].task == self.rule.task
            first += part.rows
        return False

    def _write_texts(self, prompts: Sequence[Prompt], slots: Sequence[int], use: str) -> list[str]:
        """What the meta network writes for prompts."""
        if not prompts:
            return []
        request = self._request(prompts, slots, 1, use)
        request = replace(request, sampling={**request.sampling, "max_tokens": float(self.rule.rubric_tokens)})
        with self._drawing(self.rule.meta):
            rollout = self.run.policy.rollout(request)
        kept = [row for row, origin in enumerate(rollout.decisions.origin.tolist()) if origin == OWN]
        return [text_of(rollout, row) for row in kept]

    @contextmanager
    def _drawing(self, network: str) -> Iterator[None]:
        """The present network is that of a name; empty: as it is."""
        if not network:
            yield
            return
        with self.run.policy.networks.drawing(network):
            yield

    def _request(self, prompts: Sequence[Prompt], slots: Sequence[int], size: int, use: str) -> Request:
        request, run = self.rows.request, self.run
        sampling = {**request.sampling, **({"max_tokens": float(self.rule.tokens)} if self.rule.tokens else {})}
        seed = derive(run.seed, use, run.round, self.number)
        return replace(request, prompts=prompts, slots=slots, group_size=size, seed=seed, sampling=sampling)


MEMBERS = 1 << 16
"""Numbers that a group has for questions about single samples."""

READ: tuple[str, ...] = (
    "verdicts",
    "unread",
    "points",
    "pairs",
    "point right",
    "pair right",
    "point first",
    "pair first",
)


def callbacks(choices: Choices) -> list[Callback]:
    """What the settings ask for."""
    return [Judges()]
