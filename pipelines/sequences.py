"""The tokens of language models divided among processes while their log-probs have a gradient (DeepSpeed-Ulysses,
arXiv:2309.14509).

Every process embeds the whole sequence, media included, and runs the layers on its part of it, from one end of the line
of processes to the other. An attention gives away all heads but its own for the tokens of the others, attends with the
whole mask, and gives back. Behind the last layer the states are gathered, and every process computes the same loss: of
the gradients of the layers each has a part, and of what is behind them, the output layer, its share. What has no
gradient (completions that are drawn, their old log-probs, a reference) is not divided.

Keys and values that are kept of a prompt are those of a process's own tokens, so a table of keys is ordered by
process, and within it by call: the mask is ordered likewise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from pipelines.kv import BY_TOKENS, spread_cache


@dataclass(frozen=True)
class Line:
    """The processes that divide the tokens of a network, and the place of this one."""

    group: Any
    count: int
    place: int


LINES: WeakKeyDictionary[nn.Module, Line] = WeakKeyDictionary()
"""Of networks whose tokens are divided, and of the modules within their bodies."""


def line_of(network: nn.Module) -> Line | None:
    """The processes that divide the tokens of a call now; None where this process computes all of them."""
    return LINES.get(network) if torch.is_grad_enabled() else None


def divide_tokens(network: nn.Module, mesh: DeviceMesh, *, body: str) -> None:
    """Let the processes of a line of the mesh (``ulysses``) divide the tokens that the module named ``body`` reads.
    ValueError for heads that they cannot share, and for another attention than torch's."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    part: Any = network.get_submodule(body)
    line, config = mesh["ulysses"], part.config
    if config.num_key_value_heads % line.size():
        raise ValueError(
            f"distributed.sequence: got {line.size()}, expected a divisor of {config.num_key_value_heads}, the heads "
            f"of keys and values of {type(part).__name__}"
        )
    if config._attn_implementation != "sdpa":
        raise ValueError(
            f"distributed.sequence: got {line.size()} with attention '{config._attn_implementation}', expected 1: only "
            "that of torch (sdpa) is divided"
        )
    AttentionInterface.register(BY_TOKENS, attend_by_tokens)
    AttentionMaskInterface.register(BY_TOKENS, sdpa_mask)
    config._attn_implementation = BY_TOKENS
    for module in [network, *part.modules()]:
        LINES[module] = Line(line.get_group(), line.size(), line.get_local_rank())


def attend_by_tokens(
    module: nn.Module,
    query: Float[Tensor, "rows heads own width"],
    key: Float[Tensor, "rows _ some width"],
    value: Float[Tensor, "rows _ some width"],
    attention_mask: Tensor | None,
    **kwargs: Any,
) -> tuple[Float[Tensor, "rows own heads width"], None]:
    """torch's attention; that of all tokens where the mask has rows for more than these."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    line = LINES[module]
    if attention_mask is None or attention_mask.dim() < 4 or attention_mask.shape[2] != line.count * query.shape[2]:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    query, key, value = (all_tokens(states, line) for states in (query, key, value))
    attended, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    return own_tokens(attended, line), None


def all_tokens(
    value: Float[Tensor, "rows heads own width"], line: Line
) -> Float[Tensor, "rows {value.shape[1]//line.count} {value.shape[2]*line.count} width"]:
    """This process's heads of the tokens of all processes, for all heads of its own tokens."""
    parts = value.unflatten(1, (line.count, -1)).movedim(1, 0)  # [count, rows, heads / count, own, width]
    return _Exchange.apply(parts, line).movedim(0, 2).flatten(2, 3)


def own_tokens(
    attended: Float[Tensor, "rows every some width"], line: Line
) -> Float[Tensor, "rows {attended.shape[1]//line.count} {attended.shape[2]*line.count} width"]:
    """All heads of this process's tokens, for its heads of those of all processes."""
    parts = attended.unflatten(1, (line.count, -1)).movedim(1, 0)  # [count, rows, own, heads / count, width]
    return _Exchange.apply(parts, line).movedim(0, 2).flatten(2, 3)


@dataclass(frozen=True)
class DividedCache:
    """Keys and values of this process's tokens of earlier calls."""

    cache: Any
    lengths: tuple[tuple[int, int], ...]
    """Of each call the number of tokens, and to how many they were filled up."""

    def spread(self, rows: Int[Tensor, "rows"]) -> DividedCache:
        """As ``spread_cache``."""
        return DividedCache(spread_cache(self.cache, rows), self.lengths)


def call_divided(
    body: Any,
    line: Line,
    embeddings: Float[Tensor, "rows length width"],
    real: Bool[Tensor, "rows *length total"],
    positions: Int[Tensor, "rows axes length"],
    before: DividedCache | None,
    *,
    use_cache: bool,
) -> tuple[Float[Tensor, "rows length width"], DividedCache]:
    """The last hidden states of all tokens, of which every process has computed a part; arguments as ``body`` takes
    them, and what it kept of tokens before."""
    length = embeddings.shape[1]
    missing = -length % line.count
    embeddings = nn.functional.pad(embeddings, (0, 0, 0, missing))
    positions = nn.functional.pad(positions, (0, missing), value=1)
    lengths = (*(before.lengths if before else ()), (length, length + missing))
    each = (length + missing) // line.count
    local = slice(line.place * each, (line.place + 1) * each)
    positions = positions[:, :, local]
    out = body(
        inputs_embeds=embeddings[:, local],
        attention_mask=mask_by_process(real.to(embeddings.device), lengths, line.count)[:, None],
        position_ids=positions[:, 0] if positions.shape[1] == 1 else positions.permute(1, 0, 2),
        past_key_values=before.cache if before else None,
        use_cache=use_cache,
    )
    states = _Gather.apply(out.last_hidden_state, line)[:, :length]
    return states, DividedCache(out.past_key_values, lengths)


def mask_by_process(
    real: Bool[Tensor, "rows *length total"], lengths: Sequence[tuple[int, int]], count: int
) -> Bool[Tensor, "rows filled every"]:
    """Which tokens those of the last call attend to: those that are there and not behind them, or those that ``real``
    says. Each call is filled up; the columns are ordered by process."""
    total, (last, filled) = real.shape[-1], lengths[-1]
    device = real.device
    if real.dim() == 2:
        places = torch.arange(total, device=device)
        real = real[:, None] & (places <= places[total - last :, None])
    parts = [
        nn.functional.pad(part, (0, whole - length))
        for part, (length, whole) in zip(real.split([length for length, _ in lengths], dim=2), lengths, strict=True)
    ]
    parts = [nn.functional.pad(part, (0, 0, 0, filled - last)) for part in parts]
    # Padding attends to itself: a token that attends to nothing has no state, not even one that nobody reads.
    parts[-1] = parts[-1] | torch.eye(filled, dtype=torch.bool, device=device)
    chunks = [part.chunk(count, dim=2) for part in parts]
    return torch.cat([chunk[process] for process in range(count) for chunk in chunks], dim=2)


def shared_head(network: Any) -> Callable[[Tensor], Tensor]:
    """The output layer, whose weights get this process's share of a gradient that all compute alike."""
    head, line = network.get_output_embeddings(), line_of(network)
    trained = {name: p for name, p in head.named_parameters() if p.requires_grad} if line else {}
    if not line or not trained:
        return head
    shares = {name: _Scaled.apply(p, 1 / line.count) for name, p in trained.items()}
    return lambda hidden: torch.func.functional_call(head, shares, (hidden,))


class _Exchange(torch.autograd.Function):
    """The n-th part of the first axis goes to the n-th process, and comes from it."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, line: Line) -> Tensor:
        ctx.line, value = line, value.contiguous()
        received = torch.empty_like(value)
        torch.distributed.all_to_all_single(received, value, group=line.group)
        return received

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return _Exchange.apply(gradients[0], ctx.line), None


class _Gather(torch.autograd.Function):
    """The tokens of all processes; the gradient is that of one's own."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, line: Line) -> Tensor:
        ctx.line = line
        parts = [torch.empty_like(value) for _ in range(line.count)]
        torch.distributed.all_gather(parts, value.contiguous(), group=line.group)
        return torch.cat(parts, 1)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0].chunk(ctx.line.count, dim=1)[ctx.line.place], None


class _Scaled(torch.autograd.Function):
    """A value as it is, and its gradient times a factor."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] * ctx.factor, None
