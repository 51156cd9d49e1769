"""Rows that join a group: answers of the data set, and samples that are refined or corrected in a second stage.

    drawn        samples of another network, such as the reference
    answers      what the data set gives to a prompt, one or several, as further members of its group
    refined      a sample and what is said of it stand in the prompt; of the new samples the best joins the group
    corrected    wrong samples go on behind a phrase, are given the answer, or give way to the solution
    interrupted  thoughts that are cut off are ended, and an answer follows
    exits        a thought is ended early at several places, and answers follow

They are scored like the group's own rows, under the prompt as it is, whatever they were drawn from, and are no evidence
of how hard it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated

import torch

from mmgrpo.config.ranges import ANY_NUMBER, ANY_TEXT, COUNT, COUNT_OR_ZERO, FRACTION, POSITIVE, one_of
from mmgrpo.config.registry import Network, block, table_of
from mmgrpo.data.pairs import lacking
from mmgrpo.prompts.hints import solution_of, with_hint
from mmgrpo.types import Prompt

ADDITIONS = table_of("added")
"""Functions that return a ``Addition``."""

OLD = one_of("recomputed", "one")
WHEN = one_of("always", "failed")


@dataclass(frozen=True)
class Addition:
    """Which rows join the groups of a round, and what they count."""

    kind: str = ""
    count: int = 1
    old: str = "recomputed"
    when: str = "always"
    above: float = 0.0
    """A reward of more than this is a success."""
    counted: bool = False
    replaces: bool = False
    scale: float = 1.0
    of: str = "all"
    text: str = ""
    answer: str = ""
    shares: tuple[float, float] = (0.0, 0.0)
    tokens: int = 0
    column: str = "answer"
    network: str = ""
    grouping: bool = False
    """They make a group of a single sample."""
    given: bool = False
    """They are answers of the data set."""

    @property
    def active(self) -> bool:
        return bool(self.kind)


@block(ADDITIONS)
def none() -> Addition:
    """No such rows."""
    return Addition()


@block(ADDITIONS)
def answers(
    count: Annotated[int, COUNT_OR_ZERO] = 1,
    old: Annotated[str, OLD] = "recomputed",
    when: Annotated[str, WHEN] = "always",
    above: Annotated[float, ANY_NUMBER] = 0.0,
    counted: bool = False,
    replaces: bool = False,
    scale: Annotated[float, POSITIVE] = 1.0,
) -> Addition:
    """The best ``count`` answers of a prompt's row (0: all), texts, images or videos, join its group.

    ``old``: their old log-probs are those of the policy before the update, so the ratio starts at 1 and the
    objective is that of all rows, or 0 (one; tokens only), with ``algorithm.off_policy`` as objective. ``when`` failed:
    only groups of which no reward is more than ``above``. ``counted``: they enter mean and std of the group.
    ``replaces``: as many of its worst samples give way. ``scale`` multiplies their rewards.

    TempSamp-R1 (arXiv:2509.18056): shape anchor, or scale .8; PVPO (arXiv:2508.21104): when failed. Of images it is
    with shape anchor the winner of SePPO (arXiv:2410.05255).
    """
    return Addition("answers", count, old, when, above, counted, replaces, scale, given=True)


CRITIQUE = (
    "\n\nAn earlier attempt:\n{sample}\n\nThis attempt is {verdict}. The right answer is {answer}. "
    "Say what it misses, and answer again."
)


@block(ADDITIONS)
def refined(
    count: Annotated[int, COUNT] = 1,
    of: Annotated[str, one_of("all", "best", "wrong")] = "all",
    old: Annotated[str, OLD] = "one",
    when: Annotated[str, WHEN] = "always",
    above: Annotated[float, ANY_NUMBER] = 0.0,
    counted: bool = True,
    replaces: bool = True,
    text: Annotated[str, ANY_TEXT] = CRITIQUE,
    network: Network = "",
) -> Addition:
    """Samples of a group (all, the best, those of reward at most ``above``) are sampled again with ``text`` in the
    prompt, and the ``count`` of the highest rewards join the group, the first of equals.

    In ``text``, {sample} is the sample, {verdict} right or wrong, {answer} the answer, {any column} that of the row and
    {failed} the criteria that the sample does not meet (``judge_rubric``). ``network``: who refines, e.g. reference, or
    one of ``algorithm.networks``; by default the policy. ``old``, ``when``, ``counted`` and ``replaces`` as of
    ``answers``.

    Critique-GRPO (arXiv:2506.03106, its code): all, one, with off_policy luffy(gamma=0.1). RGR-GRPO
    (arXiv:2511.12344): of best, when failed at above=0.999, with {failed} in its text.
    """
    return Addition("refined", count, old, when, above, counted, replaces, of=of, text=text, network=network)


@block(ADDITIONS)
def drawn(
    count: Annotated[int, COUNT] = 1,
    network: Network = "reference",
    counted: bool = False,
) -> Addition:
    """``count`` samples of another network, the reference or one of ``algorithm.networks``, join every group: those
    with which XPO (arXiv:2405.21046) compares the policy's own, by ``preference(pairs='other_origin')``."""
    return Addition("drawn", count, counted=counted, network=network)


@block(ADDITIONS)
def corrected(
    above: Annotated[float, ANY_NUMBER] = 0.0,
    continued: Annotated[float, FRACTION] = 0.5,
    answered: Annotated[float, FRACTION] = 0.25,
    tokens: Annotated[int, COUNT] = 256,
    text: Annotated[str, ANY_TEXT] = "\n\nWait, something is wrong here. Let me think again.\n",
    answer: Annotated[str, ANY_TEXT] = "\n\nThe right answer is \\boxed{{answer}}.",
    column: Annotated[str, ANY_TEXT] = "solution",
) -> Addition:
    """Each sample of reward at most ``above`` is corrected, and gives way: in a share ``continued`` it goes on behind
    ``text`` for at most ``tokens`` tokens, in a share ``answered`` the sentence ``answer`` is added, else the solution
    in ``column`` takes its place (without one, the sentence).

    All tokens of a corrected row are trained, those that were added too, with a ratio that starts at 1, and the group
    is standardized anew. EDGE-GRPO (arXiv:2507.21848, shares of its code; of the reward 2, above=1.999).
    """
    if continued + answered > 1:
        raise ValueError(f"corrected: got continued {continued} and answered {answered}, expected a sum of at most 1")
    shares = (continued, continued + answered)
    return Addition(
        "corrected", above=above, counted=True, replaces=True, text=text, answer=answer, shares=shares, tokens=tokens,
        column=column,
    )  # fmt: skip


@block(ADDITIONS)
def interrupted(
    least: Annotated[int, COUNT_OR_ZERO] = 0,
    tokens: Annotated[int, COUNT] = 2048,
    text: Annotated[str, ANY_TEXT] = "\n</think>\n\n",
    marker: Annotated[str, ANY_TEXT] = "</think>",
) -> Addition:
    """Samples that are cut off before ``marker`` are forced to an end, and give way: after a random number of tokens
    from ``least`` (0: all) to all that they have, ``text`` follows, which is given and no decision, and at most
    ``tokens`` more.

    ScaleRL (arXiv:2510.13786): a thought of 10240 to 12288 tokens (``sampling.max_tokens`` 12288), then 2048.
    """
    return Addition("interrupted", counted=True, replaces=True, text=text, answer=marker, count=least, tokens=tokens)


@block(ADDITIONS)
def exits(
    count: Annotated[int, COUNT] = 7,
    tokens: Annotated[int, COUNT] = 512,
    text: Annotated[str, ANY_TEXT] = "\n</think>\n\n",
    marker: Annotated[str, ANY_TEXT] = "</think>",
) -> Addition:
    """The first sample of each group is ended early ``count`` times: its thought, what stands before ``marker``, up to
    a random token, then ``text``, which is given and no decision, then at most ``tokens`` more. All are compared.

    S-GRPO (arXiv:2505.07686): data.group_size 1, and transform ``serial``, which values the earliest right exits most.
    Its number of exits and the words of its ``text`` were not found.
    """
    return Addition("exits", counted=True, text=text, answer=marker, tokens=tokens, count=count, grouping=True)


def missing_names(text: str, prompt: Prompt) -> set[str]:
    """What a text names that neither every sample has nor the prompt's row."""
    names = set(re.findall(r"\{(\w+)\}", text)) - {"sample", "verdict"}
    return {name for name in names if solution_of(prompt, name) in (None, "")}


NOTHING: Mapping[str, str] = MappingProxyType({})


def fill_text(
    text: str, prompt: Prompt, sample: str = "", right: bool = False, fields: Mapping[str, str] = NOTHING
) -> str:
    """The text with {sample}, {verdict}, {answer}, columns of the prompt's row, and ``fields`` (what judges say of the
    sample) in it; ValueError for a column that the row has not."""

    def value(match: re.Match[str]) -> str:
        name = match[1]
        if name in fields:
            return fields[name]
        if name == "sample":
            return sample
        if name == "verdict":
            return "right" if right else "wrong"
        content = solution_of(prompt, name)
        if content is None or content == "":
            raise ValueError(f"algorithm.added: prompt '{prompt.id}' has no column '{name}', which its text names")
        return str(content)

    return re.sub(r"\{(\w+)\}", value, text)


def refining(prompt: Prompt, added: Addition, sample: str, right: bool, fields: Mapping[str, str] = NOTHING) -> Prompt:
    """The prompt from which a sample is refined."""
    return with_hint(prompt, fill_text(added.text, prompt, sample, right, fields), "")


def sources(rewards: Sequence[float], added: Addition) -> list[int]:
    """Which samples of a group are refined, by their rewards."""
    if added.of == "best":
        return [max(range(len(rewards)), key=lambda place: rewards[place])]
    return [place for place, reward in enumerate(rewards) if added.of == "all" or not reward > added.above]


def worst(rewards: Sequence[float], count: int) -> list[int]:
    """Places of the lowest rewards, the first of equals: those that give way."""
    return sorted(sorted(range(len(rewards)), key=lambda place: rewards[place])[:count])


def way(added: Addition, generator: torch.Generator) -> str:
    """How a wrong sample is corrected: ``continued``, ``answered`` or ``replaced``."""
    number = float(torch.rand((), generator=generator))
    return "continued" if number < added.shares[0] else "answered" if number < added.shares[1] else "replaced"


def without_answer(prompt: Prompt, kind: str) -> str:
    """Why a prompt has no answer of a kind (``text``, ``image``, ...) that could join its group, in words; empty where
    it has."""
    listed = prompt.answer if isinstance(prompt.answer, list | tuple) and prompt.answer else [prompt.answer]
    if kind == "text" and (prompt.answers or all(isinstance(text, str) and text for text in listed)):
        return lacking(prompt, kind) if prompt.answers else ""
    return "has no answer in words; add the column answer" if kind == "text" else lacking(prompt, kind)
