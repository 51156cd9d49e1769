"""Votes over the answers of a prompt's samples: majority@k, and rewards that need no label.

The answer of a completion is the content of its last <answer> after the thought, or the whole completion if it has no
tags (models that are prompted to answer directly). Answers are compared without case, spaces and a final full stop,
numbers by value. What is empty has no vote, and neither have samples of a changed prompt (contrasts), which may label
the others instead. All of it is independent of the order of rows, and of how prompts are spread over processes, since a
prompt's samples are scored in one call.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from torch import Tensor

from mmgrpo.scoring import once
from mmgrpo.scoring.manifest import reward
from mmgrpo.types import Decisions, Output, Prompt, Text
from reward_models.rules.groups import groups
from reward_models.rules.parsing import answer_of, between, texts, words
from reward_models.rules.tasks import task

TIES = ("split", "exclude", "first")
BY = ("own", "contrast")


def answer(text: str) -> str:
    """The normalized answer of a completion."""
    return normal(answer_of(text) or text)


def normal(text: str) -> str:
    """An answer, normalized for comparison."""
    plain = words(text)
    try:
        number = float(plain)
    except ValueError:
        return plain
    return repr(number + 0.0) if math.isfinite(number) else plain  # + 0.0 turns -0.0 into 0.0


def majority_at(answers: Sequence[str], values: Sequence[float], k: int) -> float:
    """The mean value of the majority answer over the ``n // k`` disjoint sets of k consecutive samples.

    NaN if a winning answer could not be scored.
    """
    sets = [range(start, start + k) for start in range(0, len(answers) - k + 1, k)]
    if not sets:
        raise ValueError(f"majority of {k} samples: there are only {len(answers)}; draw more with --samples")
    return sum(values[winner([answers[i] for i in places]) + places.start] for places in sets) / len(sets)


def winner(answers: Sequence[str]) -> int:
    """The index of the first occurrence of the most frequent answer."""
    counts = Counter(answers)
    return max(range(len(answers)), key=lambda i: (counts[answers[i]], -i))


def agreement_of(answers: Sequence[str]) -> float:
    """The fraction of samples with the most frequent answer."""
    return max(Counter(answers).values()) / len(answers)


def entropy_of(counts: Mapping[str, float]) -> float:
    """-sum p log p over the answers, in nats."""
    total = sum(counts.values())
    return -sum(count / total * math.log(count / total) for count in counts.values() if count) if total else 0.0


def winners(counts: Mapping[str, float]) -> list[str]:
    """The answers with the most votes, in their order."""
    most = max(counts.values(), default=0.0)
    return [answer for answer, count in counts.items() if count >= most - 1e-12]


@dataclass(frozen=True)
class Ballot:
    """The votes of one prompt's samples."""

    rows: Sequence[int]
    """Those of the prompt itself."""
    contrasts: Sequence[int]
    """Those of a changed prompt."""
    answers: Sequence[str]
    """The answer of every row of the call; empty without one."""

    def counts(self, by: str = "own", weights: Sequence[float] | None = None) -> Counter[str]:
        """Votes, or sums of weights, by answer."""
        counts: Counter[str] = Counter()
        for row in self.rows if by == "own" else self.contrasts:
            if self.answers[row]:
                counts[self.answers[row]] += weights[row] if weights else 1  # type: ignore[assignment]
        return counts


def ballots(prompts: Sequence[Prompt], outputs: Sequence[Output], tags: bool = True) -> list[Ballot]:
    """The ballots of all prompts, counted once for all rewards that ask. ``tags``: only what stands in <answer> is an
    answer; otherwise a completion without tags is one as a whole."""
    members = list(groups(prompts))
    sides = tuple(tuple(bool(prompts[row].meta.get("contrast")) for row in rows) for rows in members)

    def count() -> list[Ballot]:
        completions = [output.text for output in texts(outputs, "votes")]
        answers = [normal(answer_of(text)) if tags else answer(text) for text in completions]
        both = [list(zip(rows, side, strict=True)) for rows, side in zip(members, sides, strict=True)]
        return [Ballot([r for r, other in p if not other], [r for r, other in p if other], answers) for p in both]

    return once(("votes", tags, tuple(map(tuple, members)), sides), outputs, count)


@reward("Text", range=(-inf, 1), group=True, votes=True, source="TTRV, arXiv:2510.06783")
def votes(
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    entropy: float = 0.75,
    normalized: bool = True,
    tags: bool = True,
) -> list[float | None]:
    """p(answer) - ``entropy`` H / log K: the share of the prompt's samples with the same answer, less the entropy of
    the votes over its K different answers, in [0, 1]; H in nats if not ``normalized``. TTRV (arXiv:2510.06783).

    A, A, B, C: H is 1.040, and H / log 3 = .946, so A has -.210 and the others -.460. Within one prompt the
    entropy is the same for all and cancels against a group's mean: it acts across prompts, with another baseline.
    .75 and log K are those of the released code, while the paper's text has H in nats. 0 votes for a completion without
    an answer; None where fewer than two samples could vote.
    """
    values: list[float | None] = [None] * len(prompts)
    for ballot in ballots(prompts, outputs, tags):
        counts = ballot.counts()
        if len(ballot.rows) < 2:
            continue
        spread = entropy_of(counts)
        if normalized:
            spread = spread / math.log(len(counts)) if len(counts) > 1 else 0.0
        for row in ballot.rows:
            values[row] = counts[ballot.answers[row]] / len(ballot.rows) - entropy * spread
    return values


@reward(
    "Text",
    group=True,
    votes=True,
    source="TTRL, arXiv:2504.16084; Co-Reward, arXiv:2508.00410",
    check="reward_models.rules.votes:check_majority",
)
def majority(
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    by: str = "own",
    ties: str = "split",
    least: float = 0.0,
    most: float = 1.0,
    tags: bool = True,
) -> list[float | None]:
    """1 for the answer with the most votes and 0 for others: the majority as label (TTRL, arXiv:2504.16084).

    ``by="contrast"``: the votes are those of samples of the changed prompt, a paraphrase or another view of the image
    (``sampling.contrast``), so no sample votes for itself (Co-Reward, arXiv:2508.00410). ``ties``: two answers
    with equally many votes have 1/2 each (``split``), no label (``exclude``), or the first row's is the label
    (``first``, Co-Reward's released code, which depends on the order of rows). No label, None, where the share of
    the majority is not in [``least``, ``most``] (SPELL, arXiv:2509.23863: .51 and .99) or nobody voted.
    """
    _check(by, ties)
    values: list[float | None] = [None] * len(prompts)
    for ballot in ballots(prompts, outputs, tags):
        counts = ballot.counts(by)
        voters = len(ballot.rows if by == "own" else ballot.contrasts)
        best = winners(counts)
        if voters < 2 or not best or (ties == "exclude" and len(best) > 1):
            continue
        if not least <= counts[best[0]] / voters <= most:
            continue
        best = best if ties == "split" else best[:1]
        for row in ballot.rows:
            values[row] = float(ballot.answers[row] in best) / len(best)
    return values


@reward("Text", reads=("rollout",), group=True, votes=True)
def confident_majority(
    prompts: Sequence[Prompt], outputs: Sequence[Output], *, rollout: Decisions, tags: bool = True
) -> list[float | None]:
    """``majority`` of votes that weigh exp(mean log-prob) of their completion, the geometric mean of its tokens'
    probabilities under the policy.

    Votes weighted by confidence; AQA-TTRL (arXiv:2510.05478) weighs advantages instead: ``majority`` and the shape
    ``scaled(by='agreement')``.
    """
    means = _means(rollout.log_probs, rollout.decision_mask)
    weights = means.exp().tolist()
    values: list[float | None] = [None] * len(prompts)
    for ballot in ballots(prompts, outputs, tags):
        best = winners(ballot.counts(weights=weights))
        for row in ballot.rows if len(ballot.rows) > 1 and best else ():
            values[row] = float(ballot.answers[row] in best) / len(best)
    return values


@reward("Text", group=True)
def agreement(prompts: Sequence[Prompt], outputs: Sequence[Output], tags: bool = True) -> list[float | None]:
    """The share of the prompt's samples that have its most frequent answer, the same for all of them: to be logged with
    weight 0, and read by blocks (``scaled(by='agreement')``). 1 where all vote alike."""
    return _of_prompts(prompts, outputs, tags, lambda counts, rows: max(counts.values(), default=0) / rows)


@reward("Text", range=(0, inf), scale="nats", group=True)
def answer_entropy(prompts: Sequence[Prompt], outputs: Sequence[Output], tags: bool = True) -> list[float | None]:
    """The entropy of the votes in nats, the same for all samples of a prompt: 0 where all vote alike, log G where all
    differ. Of weight 0, for ``consistency(by='answer_entropy')`` (COPO)."""
    return _of_prompts(prompts, outputs, tags, lambda counts, rows: entropy_of(counts))


@reward("Text", range=(-1, inf), scale="a number that names an answer", group=True)
def answer_class(prompts: Sequence[Prompt], outputs: Sequence[Output], tags: bool = True) -> list[float | None]:
    """The number of the row's answer among those of its prompt, in alphabetical order from 0; -1 without an answer. Of
    weight 0, for blocks that ask which samples answer alike (``set_mean``, Polychromic)."""
    values: list[float | None] = [None] * len(prompts)
    for ballot in ballots(prompts, outputs, tags):
        order = {name: float(place) for place, name in enumerate(sorted(ballot.counts()))}
        for row in ballot.rows:
            values[row] = order.get(ballot.answers[row], -1.0)
    return values


@reward("Text")
def answer_is(
    prompts: Sequence[Prompt], outputs: Sequence[Output], value: str, of: str = "answer", tags: bool = True
) -> list[float]:
    """1 where the sample's own answer (``of="answer"``) or the row's reference (``"gold"``) is ``value``, else 0: the
    class of a sample, of weight 0, for ``scaled(by=..., factor=...)`` (CAPO of RL4HS, arXiv:2510.02173)."""
    if of not in ("answer", "gold"):
        raise ValueError(f"answer_is: of: got {of!r}, expected answer or gold")
    if of == "gold":
        return [float(normal(str(prompt.answer)) == normal(value)) for prompt in prompts]
    completions = [output.text for output in texts(outputs, "answer_is")]
    return [float((normal(answer_of(text)) if tags else answer(text)) == normal(value)) for text in completions]


@reward("Text", range=(0, inf), scale="nats", reads=("rollout",), source="Intuitor, arXiv:2505.19590")
def certain(prompts: Sequence[Prompt], outputs: Sequence[Output], *, certainty: Tensor) -> list[float]:
    """Mean over the tokens of logsumexp(z) - mean_v z under the policy that sampled: self-certainty (Intuitor,
    arXiv:2505.19590). Logits [2, 0, 0] give 1.573, uniform ones log 3 = 1.099: they differ by the KL from uniform."""
    return certainty.tolist()


@reward("Text", reads=("answer", "rollout"), source="RLPR, arXiv:2506.18254")
def answer_likelihood(
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    *,
    answer_probability: Tensor,
    answer_prior: Tensor,
) -> list[float]:
    """max(p_B - p_A, 0): how much the sampled thought raises the mean probability of the reference answer's tokens
    (RLPR, arXiv:2506.18254, section 3.2, where it has weight .9 and a format reward .1). Needs no verifier, only the
    answer. Tokens of .9, .8, .4 after the thought and .3 without give .4."""
    return (answer_probability - answer_prior).clamp_min(0).tolist()


@reward("Text", reads=("answer",), source="MultiRole-R1, arXiv:2507.20187", version=2)
def roles(
    prompts: Sequence[Prompt], outputs: Sequence[Output], convergent: bool = True, tags: bool | str = True
) -> list[float]:
    """The answers of the roles that one text speaks for, each in its own <answer> (MultiRole-R1, arXiv:2507.20187): of
    a convergent question the value of the most frequent one, of the first of equals, by the row's own task; of a
    divergent one (``meta.divergent``, or ``convergent=False``) the share of the roles that are right. 0 without any.

    Answers 4, 5, 4 to a question whose answer is 4: 1, or 2/3. The tags of roles are ours.
    """
    pairs: list[tuple[Prompt, Text]] = []
    spans: list[range] = []
    for prompt, output in zip(prompts, texts(outputs, "roles"), strict=True):
        parts = [part for part in between(output.whole, "<answer>", "</answer>") if normal(part)]
        if parts and convergent and not prompt.meta.get("divergent"):
            parts = [parts[winner([normal(part) for part in parts])]]
        spans.append(range(len(pairs), len(pairs) + len(parts)))
        # A text without any is read too, so a row that has no answer is an error whatever was said.
        pairs += [(prompt, Text(f"<answer>{part}</answer>")) for part in parts or [""]]
    values = task([prompt for prompt, _ in pairs], [text for _, text in pairs], tags)
    return [sum(values[place] for place in span) / len(span) if span else 0.0 for span in spans]


def check_majority(by: str = "own", ties: str = "split", least: float = 0.0, most: float = 1.0, **_: object) -> None:
    """ValueError for parameters with which ``majority`` has no label."""
    _check(by, ties)
    if not 0 <= least <= most <= 1:
        raise ValueError(f"majority: got least {least} and most {most}, expected 0 <= least <= most <= 1")


def _check(by: str, ties: str) -> None:
    if by not in BY or ties not in TIES:
        raise ValueError(f"majority: got by={by!r} and ties={ties!r}, expected {BY} and {TIES}")


def _of_prompts(
    prompts: Sequence[Prompt], outputs: Sequence[Output], tags: bool, number: Callable[[Counter[str], int], float]
) -> list[float | None]:
    values: list[float | None] = [None] * len(prompts)
    for ballot in ballots(prompts, outputs, tags):
        if len(ballot.rows) > 1:
            for row in ballot.rows:
                values[row] = number(ballot.counts(), len(ballot.rows))
    return values


def _means(values: Tensor, mask: Tensor) -> Tensor:
    return values.where(mask, 0.0).sum(1) / mask.sum(1).clamp_min(1)
