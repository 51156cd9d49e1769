"""Rows of several sequences each, one after the other: calls of a program, contexts that a summary has begun anew.

    row 0    prompt a, completion | prompt b, completion | prompt c, completion
    row 1    prompt a, completion | prompt d, completion

A row is an episode: it has one output, one reward and one place in the statistics of its group, however many sequences
it is made of. Each sequence is read behind its own prompt, and a token's log-prob depends on nothing before that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from mmgrpo.policies.token_model import Context, Sequences, Tokens
from mmgrpo.runtime.devices import put

HOST = torch.device("cpu")


@dataclass(frozen=True)
class Link:
    """Decisions that are scored together, numbered as in the rows."""

    inner: Tokens
    """As in the sequences."""
    rows: Int[Tensor, "N"]
    positions: Int[Tensor, "N"]


@dataclass(frozen=True)
class Chains:
    """B rows of S sequences; those of a row have their order."""

    sequences: Sequences
    row: Int[Tensor, "S"]
    """The row of each sequence, on the host."""
    prompts: Int[Tensor, "B"]
    """Index of the query of each row, on the host."""

    @cached_property
    def begin(self) -> Int[Tensor, "S"]:
        """The column of the row at which each sequence begins, on the host."""
        lengths, ends, begin = self.sequences.lengths.tolist(), [0] * len(self.prompts), []
        for row, length in zip(self.row.tolist(), lengths, strict=True):
            begin.append(ends[row])
            ends[row] += length
        return torch.tensor(begin)

    @cached_property
    def width(self) -> int:
        """Columns of the longest row."""
        return int((self.begin + self.sequences.lengths).max())

    def columns(self, device: torch.device = HOST) -> tuple[Int[Tensor, "S 1"], Int[Tensor, "S L"]]:
        """The row and the column of each entry of the sequences; columns beyond a sequence are of others."""
        length = self.sequences.ids.shape[1]
        row, begin = put(self.row[:, None], device), put(self.begin[:, None], device)
        return row, begin + torch.arange(length, device=device)

    def table(self, values: Tensor, filler: float | int | bool = 0) -> Tensor:
        """[S, L] numbers of the sequences' tokens as those of the rows', [B, T]."""
        row, column = self.columns(values.device)
        real = self.sequences.real
        table = values.new_full((len(self.prompts), self.width), filler)
        table[row.expand(column.shape)[real], column[real]] = values[real]
        return table

    def per_sequence(self, values: Tensor) -> Tensor:
        """[B, T] numbers of the rows' tokens as those of the sequences', [S, L], 0 on padding."""
        row, column = self.columns(values.device)
        return torch.where(self.sequences.real, values[row, column.clamp(max=self.width - 1)], 0)

    @cached_property
    def ids(self) -> Int[Tensor, "B T"]:
        """The tokens of each row."""
        return self.table(self.sequences.ids)

    @cached_property
    def written(self) -> Bool[Tensor, "B T"]:
        """Tokens that the policy wrote, its decisions."""
        return self.table(self.sequences.written, False)

    @property
    def context(self) -> Context:
        """The prompts of the sequences."""
        return self.sequences.context

    def split(self, loss_mask: Bool[Tensor, "B T"], limit: int) -> Iterator[Link]:
        """Parts of at most ``limit`` sequences."""
        row, column = self.columns()
        inside = torch.arange(column.shape[1]) < self.sequences.lengths[:, None]
        mask = loss_mask.cpu()[row, column.clamp(max=self.width - 1)] & inside
        device = self.sequences.ids.device
        rows, begin = put(self.row, device), put(self.begin, device)
        for part in self.sequences.split(mask, limit):
            yield Link(part, rows[part.rows], part.positions + begin[part.rows])

    def inner(self, part: Link) -> tuple[Sequences, Tokens]:
        """The sequences, and the part as they number it."""
        return self.sequences, part.inner


def pad_rows(rows: Sequence[Sequence[float | int]], filler: float | int, dtype: torch.dtype) -> Tensor:
    """Rows of different lengths as one table."""
    width = max(map(len, rows))
    return torch.tensor([[*row, *[filler] * (width - len(row))] for row in rows], dtype=dtype)
