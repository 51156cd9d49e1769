"""What a token policy records of its samples on request (``RECORDS``): it scores them once more, without gradient.

The likelihood of the reference answer after the sampled thought (RLPR, arXiv:2506.18254), and the gradient of a
sample's log-prob with respect to the last hidden state (G2RL, arXiv:2512.15687).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mmgrpo.policies.token_model import Sequences, TokenModel, Tokens
from mmgrpo.types import Prompt

ROWS = 16
"""Rows that are scored at once."""

OPENING = "<answer>"


def answer_start(text: str) -> int:
    """The place behind the last ``<answer>`` after the thought, or behind the thought; -1 where there is neither."""
    thought = text.rfind("</think>")
    behind = thought + len("</think>") if thought >= 0 else 0
    opening = text.rfind(OPENING, behind)
    if opening >= 0:
        return opening + len(OPENING)
    return behind if thought >= 0 else -1


def reference_text(answer: Any, prompt_id: str, reader: str) -> str:
    """A reference answer as text; of several accepted ones the first."""
    first = answer[0] if isinstance(answer, list | tuple) and answer else answer
    text = str(first).strip() if isinstance(first, str | int | float) and not isinstance(first, bool) else ""
    if not text:
        raise ValueError(
            f"prompt '{prompt_id}': got answer {answer!r:.200}, expected a text or number, whose likelihood {reader} "
            "is; add the column answer"
        )
    return text


def thought_length(ids: Sequence[int], decode: Callable[[Sequence[int]], str]) -> int:
    """The number of tokens before the answer (``answer_start``); -1 where the completion has no place for one."""
    start = answer_start(decode(ids))
    return -1 if start < 0 else reaching(ids, decode, start)


def reaching(ids: Sequence[int], decode: Callable[[Sequence[int]], str], start: int) -> int:
    """The fewest tokens whose text has at least ``start`` letters."""
    low, high = 0, len(ids)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if len(decode(ids[:middle])) >= start else (middle + 1, high)
    return low


def answer_likelihood(
    sequences: Sequences,
    prompts: Sequence[Prompt],
    model: TokenModel,
    score: Callable[[Sequences, Tokens], Float[Tensor, "N"]],
    thought: bool,
) -> Float[Tensor, "B"]:
    """Mean probability of the tokens of each row's reference answer after its own thought, or (``thought`` False)
    behind an opened ``<answer>`` alone; 0 where a completion has no place for an answer.

    The answer's tokens are those of the answer by itself. RLPR (arXiv:2506.18254), section 3.2: the mean of
    probabilities, not of logs: tokens of .9, .8 and .4 give .7.
    """
    rows: list[tuple[list[int], int]] = []
    for prompt, ids, real in zip(prompts, sequences.ids, sequences.real, strict=True):
        tokens, answer = ids[real].tolist(), reference_text(prompt.answer, prompt.id, "answer_probability")
        length = thought_length(tokens, model.decode)
        before = tokens[: max(length, 0)] if thought else model.spell(OPENING)[:-1]
        rows.append((before + model.spell(answer)[:-1], -1 if thought and length < 0 else len(before)))
    width, device = max(len(ids) for ids, _ in rows), sequences.ids.device
    ids = torch.tensor([[*tokens, *[model.pad_id] * (width - len(tokens))] for tokens, _ in rows], device=device)
    place = torch.arange(width, device=device)
    real = place < torch.tensor([[len(tokens)] for tokens, _ in rows], device=device)
    start = torch.tensor([[begin] for _, begin in rows], device=device)
    target = real & (place >= start) & (start >= 0)
    probability = torch.zeros(target.shape, device=device)
    with_answers = replace(sequences, ids=ids, real=real)
    for part in with_answers.split(target, ROWS):
        probability[part.rows, part.positions] = score(with_answers, part).exp()
    return probability.sum(1) / target.sum(1).clamp_min(1)


def answer_gains(
    sequences: Sequences,
    prompts: Sequence[Prompt],
    starts: Sequence[Sequence[tuple[int, int]]],
    opening: str,
    model: TokenModel,
    score: Callable[[Sequences, Tokens], Float[Tensor, "N"]],
) -> Float[Tensor, "B T"]:
    """What each turn but the last of a row adds to the probability of its reference answer, P_(k+1) - P_k, at the
    token before the next turn's first that the policy wrote, and 0 elsewhere; ``starts`` are the tokens and the shown
    media before each turn.

    P_k = exp(mean log-prob of the answer's tokens) behind what was read and written before turn k, and ``opening``.
    IGPO (arXiv:2510.14967), as in its code: mean log-probs -2, -1, -.5 give .23254, .23865. Equal beginnings are scored
    once.
    """
    opened, answers = model.spell(opening)[:-1], {}
    place_of: dict[tuple[Any, ...], int] = {}
    rows: list[tuple[int, list[int], int, int]] = []  # row, tokens, place of the answer, number of shown media
    numbers: list[list[int]] = []
    for row, (prompt, places, tokens) in enumerate(zip(prompts, starts, sequences.ids.tolist(), strict=True)):
        if id(prompt) not in answers:
            answers[id(prompt)] = model.spell(reference_text(prompt.answer, prompt.id, "answer_gain"))[:-1]
        numbers.append([])
        for length, count in places:
            shown = sequences.shown[row][:count] if count else ()
            key = int(sequences.prompts[row]), tuple(tokens[:length]), tuple(map(id, shown))
            if key not in place_of:
                place_of[key] = len(rows)
                before = tokens[:length] + opened
                rows.append((row, before + answers[id(prompt)], len(before), count))
            numbers[-1].append(place_of[key])
    probability = torch.cat(
        [_answer_probability(sequences, rows[i : i + ROWS], model, score) for i in range(0, len(rows), ROWS)]
    )
    gains = torch.zeros(sequences.ids.shape)
    for row, (scored, places) in enumerate(zip(numbers, starts, strict=True)):
        for k in range(len(scored) - 1):
            end = int(sequences.written[row, : places[k + 1][0]].nonzero().max())
            gains[row, end] = probability[scored[k + 1]] - probability[scored[k]]
    return gains.to(sequences.ids.device)


def _answer_probability(
    sequences: Sequences,
    rows: Sequence[tuple[int, list[int], int, int]],
    model: TokenModel,
    score: Callable[[Sequences, Tokens], Float[Tensor, "N"]],
) -> Float[Tensor, "N"]:
    """exp(mean log-prob) of the tokens from a place on of some rows, on the host."""
    width, device = max(len(ids) for _, ids, _, _ in rows), sequences.ids.device
    ids = torch.tensor([[*tokens, *[model.pad_id] * (width - len(tokens))] for _, tokens, _, _ in rows], device=device)
    place = torch.arange(width, device=device)
    real = place < torch.tensor([[len(tokens)] for _, tokens, _, _ in rows], device=device)
    target = real & (place >= torch.tensor([[start] for _, _, start, _ in rows], device=device))
    chosen = torch.tensor([row for row, _, _, _ in rows], device=device)
    shown = [sequences.shown[row][:count] if count else () for row, _, _, count in rows]
    with_answers = replace(
        sequences,
        prompt=sequences.prompt[chosen],
        ids=ids,
        real=real,
        observed=None,
        shown=shown if any(shown) else (),
    )
    total = torch.zeros(target.shape, device=device)
    for part in with_answers.split(target, ROWS):
        total[part.rows, part.positions] = score(with_answers, part)
    return (total.sum(1) / target.sum(1)).exp().cpu()


def gradient_features(
    sequences: Sequences,
    states: Callable[[Int[Tensor, "rows"]], Float[Tensor, "rows T width"]],
    log_softmax: Callable[[Tensor, Bool[Tensor, "N"]], Float[Tensor, "N vocabulary"]],
    chunk: int,
) -> Float[Tensor, "B 1 width"]:
    """mean_t d log p(y_t) / d h_t of each row, h_t the last hidden state: W (e(y_t) - p_t) for a linear head W.

    G2RL (arXiv:2512.15687), equation of Phi. A field of three axes, which no padding along decisions concerns.
    """
    features: list[Tensor] = []
    for part in sequences.split(sequences.real, ROWS):
        rows, inverse = part.distinct, part.inverse
        hidden = states(rows)[inverse, part.positions].detach()
        target = sequences.ids[part.rows, part.positions]
        total = torch.zeros(len(rows), hidden.shape[1], device=hidden.device)
        for some in torch.arange(len(hidden), device=hidden.device).split(chunk):
            with torch.enable_grad():
                leaf = hidden[some].requires_grad_()
                log_probs = log_softmax(leaf, part.positions[some] == 0).gather(1, target[some, None])
                (gradient,) = torch.autograd.grad(log_probs.sum(), leaf)
            total.index_add_(0, inverse[some], gradient.float())
        features.append(total / sequences.real[rows].sum(1, keepdim=True).clamp_min(1))
    return torch.cat(features)[:, None]


def visual_dependency(
    sequences: Sequences,
    changed: Sequences,
    rows: Bool[Tensor, "B"],
    states: Callable[[Sequences, Int[Tensor, "rows"]], Float[Tensor, "rows T width"]],
    log_softmax: Callable[[Tensor, Bool[Tensor, "N"]], Float[Tensor, "N vocabulary"]],
    chunk: int,
) -> Float[Tensor, "B T"]:
    """KL(p(.|prompt) || p(.|changed prompt)) at each token of ``rows``, those with something to change, 0 elsewhere:
    PGPO (arXiv:2604.01840), whose second context has no image at all."""
    dependency = torch.zeros(sequences.real.shape, device=sequences.ids.device)
    for part in sequences.split(sequences.real & rows[:, None], ROWS):
        some, inverse = part.distinct, part.inverse
        sides = [states(side, some)[inverse, part.positions] for side in (sequences, changed)]
        for piece in torch.arange(len(inverse), device=dependency.device).split(chunk):
            first = part.positions[piece] == 0
            with_media, without = (log_softmax(side[piece], first) for side in sides)
            gap = torch.where(torch.isfinite(with_media), with_media - without, 0.0)
            dependency[part.rows[piece], part.positions[piece]] = (with_media.exp() * gap).sum(-1)
    return dependency


GAPS = {"paragraph": r"\n\s*\n", "sentence": r"(?<=[.!?])\s+|\n+", "word": r"(?<=\S)(?=\s)"}
"""What divides the steps of a text; words end before their spaces, since a token begins with the space before it."""


def segments(
    sequences: Sequences, decode: Callable[[Sequence[int]], str], cut: str = "paragraph"
) -> Int[Tensor, "B T"]:
    """The number of the step of each token, from 0: steps are the parts of the text between empty lines, sentences
    or words (``GAPS``). An empty line belongs to the step that it ends, and a token is where its first character is."""
    step = torch.zeros_like(sequences.ids)
    for row, (ids, real) in enumerate(zip(sequences.ids, sequences.real, strict=True)):
        tokens = ids[real].tolist()
        text, start = decode(tokens), 0
        for gap in re.finditer(GAPS[cut], text):
            if not text[start : gap.start()].strip() or not text[gap.end() :].strip():
                continue  # an empty step is none
            low, high = 0, len(tokens)  # the fewest tokens whose text reaches the end of the gap
            while low < high:
                middle = (low + high) // 2
                low, high = (low, middle) if len(decode(tokens[:middle])) >= gap.end() else (middle + 1, high)
            step[row, low:] += 1
            start = gap.end()
    return step * sequences.real


WINDOW = 32
"""Tokens that are read at once where the place of each is asked for."""


def characters(sequences: Sequences, decode: Callable[[Sequence[int]], str]) -> Int[Tensor, "B T"]:
    """The place in the row's text of the first character of each token that is no space, its first character where it
    has spaces alone; the length of the text for what adds nothing to it, such as an end token."""
    place = torch.zeros_like(sequences.ids)
    forced, prompts = sequences.context.forced, sequences.prompts.tolist()
    for row, (ids, real) in enumerate(zip(sequences.ids, sequences.real, strict=True)):
        forced_ids = list(forced[prompts[row]]) if forced else []
        whole = forced_ids + ids[real].tolist()
        text, ends = decode(whole), text_ends(whole, decode)
        starts = [0, *ends][len(forced_ids) : len(whole)]
        pieces = [text[start:end] for start, end in zip(starts, ends[len(forced_ids) :], strict=True)]
        places = [
            start + (len(piece) - len(piece.lstrip()) if piece.strip() else 0)
            for start, piece in zip(starts, pieces, strict=True)
        ]
        place[row, real] = torch.tensor(places, dtype=place.dtype, device=place.device)
    return place


def text_ends(ids: Sequence[int], decode: Callable[[Sequence[int]], str]) -> list[int]:
    """The length of the text of the first 1, 2, ... tokens. Each is read behind the few tokens before it, so the
    time grows with the number of tokens; all from the beginning where that does not add up."""
    ends: list[int] = []
    anchor, known = 0, 0
    for count in range(1, len(ids) + 1):
        begin = max(0, anchor - 4)
        piece = decode(ids[begin:count])
        ends.append(known + len(piece) - len(decode(ids[begin:anchor])))
        if count - anchor >= WINDOW and not piece.endswith("\ufffd"):  # no half of a letter
            anchor, known = count, ends[-1]
    if ends and ends[-1] != len(decode(ids)):
        return [len(decode(ids[:count])) for count in range(1, len(ids) + 1)]
    return ends
