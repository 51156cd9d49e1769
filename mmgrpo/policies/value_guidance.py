"""Decoding that is guided by values: the next token is drawn of softmax(log p + sum_i beta_i (V_i - mean V_i)) over the
``top`` most likely tokens, V_i the value of what stands there with the token; less likely ones keep log p.

Value-augmented sampling (arXiv:2405.06639; its code: 20 tokens, centred): the network stays as it is, and several values
are added, each with a weight that is chosen when it is used. Each candidate costs a pass of the value network.
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mmgrpo.policies.generation import DecodingState, Drawing, Generated, NextToken, Numbers, draw_tokens, entropy_of
from mmgrpo.policies.token_model import Query, next_position
from mmgrpo.policies.token_passes import TokenPasses
from mmgrpo.randomness import stream
from mmgrpo.runtime.finite import refuse_nan


@dataclass(frozen=True)
class Guide:
    """A value network, and how much it counts."""

    network: Callable[[], AbstractContextManager[Any]]
    """The context in which the policy's network has the weights of the value network."""
    value: Callable[[Float[Tensor, "N width"]], Float[Tensor, "N"]]
    """Of hidden states."""
    beta: float
    top: int


def guide_log_probs(
    distribution: Float[Tensor, "N vocabulary"],
    tokens: Int[Tensor, "N k"],
    values: Float[Tensor, "N k"],
    beta: float,
) -> Float[Tensor, "N vocabulary"]:
    """log p + beta (V - mean of V over the k tokens) at these tokens, log p elsewhere, not normalized.

    Two equal tokens with V 1 and 0, beta 1: probabilities .73106 and .26894.
    """
    there = torch.isfinite(distribution.gather(1, tokens))
    mean = torch.where(there, values, 0.0).sum(1, keepdim=True) / there.sum(1, keepdim=True).clamp(min=1)
    return distribution.scatter_add(1, tokens, torch.where(there, beta * (values - mean), 0.0))


class Guidance:
    """A search that draws every token by guides."""

    def __init__(self, guides: Sequence[Guide]) -> None:
        self.guides = guides

    def __call__(
        self,
        policy: TokenPasses,
        state: DecodingState,
        next_token: NextToken,
        queries: Sequence[Query],
        drawing: Drawing,
    ) -> Generated:
        """The completions of the queries, from the random numbers that plain sampling would use; log-probs and entropy
        are those of the guided distribution. The value of a text that ends is that of the text before its end, since
        nothing is learned behind it."""
        device, most = policy.device, drawing.max_tokens
        counts = [query.count for query in queries]
        rows = torch.arange(len(queries), device=device).repeat_interleave(torch.tensor(counts, device=device))
        policy_state, judges = (
            state.select(rows),
            [judge.select(rows) for judge in self._read_prompts(policy, state, queries)],
        )
        streams = [(stream(drawing.seed, *query.stream), query.count) for query in queries]
        # One number for each position of a sample, however it is guided: without guides this is plain sampling.
        numbers, row = Numbers(streams, most, device), torch.arange(len(rows), device=device)
        alive, steps = torch.ones_like(rows, dtype=torch.bool), list[tuple[Tensor, ...]]()
        for position in range(most):
            first = torch.full_like(alive, position == 0)
            distribution = refuse_nan(next_token(policy_state.hidden, first), "the probabilities of the next token")
            guided = distribution
            for guide, judge in zip(self.guides, judges, strict=True):
                tokens = distribution.topk(min(guide.top, distribution.shape[1])).indices
                guided = guide_log_probs(
                    guided, tokens, self._values(guide, judge, tokens, alive, policy.ends), guide.beta
                )
            guided = torch.log_softmax(guided, -1)
            uniform = numbers.at(torch.full_like(rows, position), row, position)
            choice = draw_tokens(guided, uniform, drawing.top_p) if drawing.temperature else guided.argmax(-1)
            token = torch.where(alive, choice, policy.model.pad_id)
            steps.append((token, alive, guided.gather(1, choice[:, None])[:, 0] * alive, entropy_of(guided) * alive))
            going = alive & ~torch.isin(token, policy.ends)
            if not bool(going.any()) or position + 1 == most:
                break
            policy_state = policy_state.advance(token, alive)
            # Judges read the text in caches of their own, under the weights of their networks.
            for place, guide in enumerate(self.guides):
                with guide.network():
                    judges[place] = judges[place].advance(token, alive)
            alive = going
        ids, real, log_probs, entropy = (torch.stack(column, 1) for column in zip(*steps, strict=True))
        return Generated(ids, real, log_probs, entropy, torch.zeros_like(entropy))

    def _read_prompts(self, policy: TokenPasses, state: DecodingState, queries: Sequence[Query]) -> list[DecodingState]:
        """The prompts as each value network reads them."""
        context = policy._context(queries)
        states, position = [], next_position(context)
        for guide in self.guides:
            with guide.network():
                features = policy._cached_features(context, queries)
                hidden, cache = policy.model.hidden(
                    policy.network, context.ids, context.there, context.positions, features, None
                )
            states.append(
                DecodingState(
                    policy.model,
                    policy.network,
                    hidden[:, -1],
                    cache,
                    context.real,
                    position,
                    context.positions.shape[1],
                )
            )
        return states

    def _values(
        self,
        guide: Guide,
        judge: DecodingState,
        tokens: Int[Tensor, "N k"],
        alive: Bool[Tensor, "N"],
        ends: Int[Tensor, "_"],
    ) -> Float[Tensor, "N k"]:
        """V of every candidate, one after the other, so one more cache is held."""
        every = torch.arange(len(tokens), device=tokens.device)
        with guide.network():
            ahead = [judge.select(every).advance(column, alive).hidden for column in tokens.unbind(1)]
        values = torch.stack([guide.value(hidden) for hidden in ahead], 1)
        return torch.where(torch.isin(tokens, ends), guide.value(judge.hidden)[:, None], values)
