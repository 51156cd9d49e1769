"""What training reads of completions: rows that several share, and log-probs with as little memory as possible.

Completions of one prompt are packed into rows, one behind the other, so short ones are not padded to the longest:
each token attends to the prompt and to what stands before it in its own completion.

Logits are by far the largest tensors of a step: tokens x vocabulary. With z the logits of a token's distribution,

    log p(y) = z_y - logsumexp(z)        d log p(y) / d z = onehot(y) - exp(z - logsumexp(z))

so that one table is enough, which holds all log-probs until the backward pass turns it into the gradient of the logits.
Where the output layer is frozen (adapters) not even that is stored: d log p(y) / d hidden does not depend on what comes
behind the log-prob but for a factor, and is computed with it, chunk by chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from mmgrpo.runtime.devices import put

BLOCK = 1 << 21
"""Numbers of a copy of a part of the table: 8 MB."""


@dataclass(frozen=True)
class Sampled:
    """What a distribution is besides its logits: the temperature, and tokens that are never sampled."""

    temperature: float
    suppressed: Int[Tensor, "_"]
    begin_suppressed: Int[Tensor, "_"]
    """Further ones where a completion begins."""

    def apply_(self, logits: Float[Tensor, "N vocabulary"], first: Bool[Tensor, "N"]) -> Float[Tensor, "N vocabulary"]:
        """The logits of the sampled distribution, in place."""
        if self.temperature != 1:
            logits.div_(self.temperature)
        return self.fill_(logits, first, -torch.inf)

    def fill_(self, table: Tensor, first: Bool[Tensor, "N"], value: float) -> Tensor:
        """The table with ``value`` at all tokens that are not sampled, in place."""
        if len(self.suppressed):
            table.index_fill_(1, self.suppressed, value)
        if len(self.begin_suppressed):
            values = table[:, self.begin_suppressed]
            table.index_copy_(1, self.begin_suppressed, torch.where(first[:, None], value, values))
        return table


class _Chosen(torch.autograd.Function):
    """Log-probs of tokens; the logits are overwritten by all log-probs, and these in the backward pass by the gradient
    of the logits."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: Float[Tensor, "N vocabulary"],
        tokens: Int[Tensor, "N"],
        first: Bool[Tensor, "N"],
        sampled: Sampled,
    ) -> Float[Tensor, "N"]:
        sampled.apply_(logits, first)
        for part in logits.split(max(1, BLOCK // logits.shape[1])):
            part.copy_(part.log_softmax(-1))
        ctx.save_for_backward(logits, tokens, first)
        ctx.sampled = sampled
        return logits.gather(1, tokens[:, None])[:, 0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None, None, None]:
        log_probs, tokens, first = ctx.saved_tensors
        factor = upstream[0][:, None] / ctx.sampled.temperature
        gradient = log_probs.exp_().mul_(-factor)
        gradient.scatter_add_(1, tokens[:, None], factor)
        return ctx.sampled.fill_(gradient, first, 0.0), None, None, None


class _Scaled(torch.autograd.Function):
    """Log-probs whose gradient with respect to the hidden state of each token is known."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Float[Tensor, "N width"], values: Float[Tensor, "N"], slopes: Float[Tensor, "N width"]
    ) -> Float[Tensor, "N"]:
        ctx.save_for_backward(slopes)
        return values.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None, None]:
        (slopes,) = ctx.saved_tensors
        return slopes * upstream[0][:, None].to(slopes.dtype), None, None


ROW = 256
"""Tokens of a packed row where no completion is longer: enough to use the prompt's keys often, and few enough that what
a token may not attend to costs little."""


@dataclass(frozen=True)
class Packed:
    """Rows with the input tokens of several completions of the same prompt; a completion's last token is no input."""

    prompt: Int[Tensor, "rows"]
    """The prompt of each row."""
    part: Int[Tensor, "rows width"]
    """Which completion a token belongs to; -1 for padding."""
    place: Int[Tensor, "rows width"]
    """Its place in the completion."""
    index: Int[Tensor, "B T"]
    """Where the state before each token is among those of the prompts' last tokens and then of all rows."""
    owners: Sequence[int]
    """``prompt`` on the host."""

    @staticmethod
    def of(owners: Sequence[int], tokens: Sequence[int], prompts: int, device: torch.device, size: int = ROW) -> Packed:
        """First fit, the longest completions first, into rows of ``size`` tokens where none is longer. ``owners`` are
        the prompts of completions, below ``prompts``, and ``tokens`` their lengths."""
        # The last token of a completion is predicted, and read by nothing.
        lengths = [max(0, length - 1) for length in tokens]
        width = max(*lengths, min(size, sum(lengths)))
        rows: list[list[int]] = []
        room: list[int] = []
        for item in sorted(range(len(owners)), key=lambda item: -lengths[item]):
            fits = (
                row for row, left in enumerate(room) if left >= lengths[item] and owners[rows[row][0]] == owners[item]
            )
            if (row := next(fits, -1)) < 0:
                rows.append([])
                room.append(width)
                row = len(rows) - 1
            rows[row].append(item)
            room[row] -= lengths[item]
        width -= min(room)
        part, place, start = [], [], [0] * len(owners)
        for number, row in enumerate(rows):
            parts: list[int] = []
            places: list[int] = []
            for item in row:
                start[item] = prompts + number * width + len(parts)
                parts += [item] * lengths[item]
                places += range(lengths[item])
            part.append(parts + [-1] * (width - len(parts)))
            place.append(places + [0] * (width - len(parts)))
        # Token 0 is predicted at the end of the prompt, token t one place behind t - 1 in its row.
        time = torch.arange(max(tokens))
        index = torch.where(time > 0, torch.tensor(start)[:, None] + time - 1, torch.tensor(owners)[:, None])
        index = torch.where(time < torch.tensor(tokens)[:, None], index, 0)
        of_rows, shape = [owners[row[0]] for row in rows], (len(rows), width)
        return Packed(
            put(torch.tensor(of_rows), device),
            put(torch.tensor(part, dtype=torch.long).view(shape), device),
            put(torch.tensor(place, dtype=torch.long).view(shape), device),
            put(index, device),
            of_rows,
        )

    def gather(self, table: Int[Tensor, "B T"], filler: int) -> Int[Tensor, "rows width"]:
        """The values of a table of completions at the tokens of the rows."""
        return torch.where(self.part >= 0, table[self.part.clamp_min(0), self.place], filler)

    def attention_mask(self, before: Bool[Tensor, "rows length"], *, whole: bool) -> Bool[Tensor, "rows _ total"]:
        """Which tokens each token attends to: those of the prompt that are there, and its completion's up to itself.
        ``whole``: for the tokens of the prompt too, each of which attends to those before it."""
        width, length = self.part.shape[1], before.shape[1]
        same = (self.part[:, :, None] == self.part[:, None, :]).tril()
        behind = torch.cat([before[:, None].expand(-1, width, -1), same], 2)
        if not whole:
            return behind
        square = torch.ones(length, length, dtype=torch.bool, device=before.device)
        # Padding attends to itself: a token that attends to nothing has no state, not even one that nobody reads.
        first = (before[:, None] & square.tril()) | square.diag().diag()
        return torch.cat([nn.functional.pad(first, (0, width)), behind], 1)


def chosen_log_probs(
    logits_of: Callable[[Float[Tensor, "n width"]], Float[Tensor, "n vocabulary"]],
    hidden: Float[Tensor, "N width"],
    tokens: Int[Tensor, "N"],
    first: Bool[Tensor, "N"],
    sampled: Sampled,
    chunk: int,
) -> Float[Tensor, "N"]:
    """The log-prob of each token in the distribution that the output layer gives for its hidden state.

    ``first`` is True where a token begins a completion. Logits of ``chunk`` tokens are held at once: of further ones
    they are computed again in the backward pass where the output layer is trained, and never where it is frozen.
    """

    def score(hidden: Tensor, tokens: Tensor, first: Tensor) -> Tensor:
        logits = logits_of(hidden).float()
        return _Chosen.apply(logits.clone() if logits is hidden else logits, tokens, first, sampled)  # type: ignore[return-value]

    parts = list(zip(*(value.split(chunk) for value in (hidden, tokens, first)), strict=True))
    if not (torch.is_grad_enabled() and len(hidden)):
        return torch.cat([score(*part) for part in parts]) if parts else hidden.new_zeros(0)
    if logits_of(hidden[:0].detach()).requires_grad:  # parameters of the output layer are trained
        if len(parts) == 1:
            return score(*parts[0])
        # Stored for all chunks, logits would not fit in memory.
        scores = [checkpoint(score, *part, use_reentrant=False) for part in parts]
        return torch.cat(scores)  # type: ignore[arg-type]
    values, slopes = [], []
    for states, *rest in parts:
        leaf = states.detach().requires_grad_()
        value = score(leaf, *rest)
        value.sum().backward()  # what it depends on is frozen but for the leaf
        values.append(value.detach())
        slopes.append(leaf.grad)
    return _Scaled.apply(hidden, torch.cat(values), torch.cat(slopes))  # type: ignore[return-value]
