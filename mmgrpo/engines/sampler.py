"""Our own sampler as an engine: a token policy with a network of its own.

It draws what the trained policy itself would draw, bit for bit, so it proves the interface, and serves where
sampling is to happen in another process or on another device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from mmgrpo.engines.engine import (
    OTHER,
    Drawn,
    EncodedQuery,
    EngineFailure,
    Forgotten,
    Named,
    Rules,
    fingerprint,
    parameters,
)
from mmgrpo.policies.generation import Drawing
from mmgrpo.policies.token import TokenPolicy


class Weights:
    """The tensors of a network that draws and never trains."""

    def __init__(self, network: nn.Module, name: str) -> None:
        self.network, self.name = network, name
        self.version: int | None = None

    def fingerprints(self) -> dict[str, str]:
        """The fingerprints of all parameters and buffers as they are."""
        return {name: fingerprint(value) for name, value in parameters(self.network)}

    @torch.no_grad()
    def load(self, tensors: Named, version: int) -> None:
        """Copy tensors into those of the same name; EngineFailure for one that the network does not have."""
        stored = dict(parameters(self.network))
        for name, tensor in tensors:
            if name not in stored or stored[name].shape != tensor.shape:
                shape = list(stored[name].shape) if name in stored else "none of this name"
                raise EngineFailure(
                    f"rollout.engine: {self.name}: got the tensor '{name}' of shape {list(tensor.shape)}, "
                    f"expected {shape}: {OTHER}"
                )
            stored[name].copy_(tensor)
        self.version = version


class OwnSampler:
    """``policy`` draws and never trains; its network is no part of the trained one."""

    whole, form = False, "own"

    def __init__(self, policy: TokenPolicy, name: str = "the sampler") -> None:
        self.policy, self.name = policy, name
        self.weights = Weights(policy.network, name)

    def fingerprints(self) -> Mapping[str, str]:
        """The fingerprints of all parameters and buffers as they are."""
        return self.weights.fingerprints()

    def load(self, tensors: Named, version: int) -> None:
        """Copy tensors into those of the same name."""
        self.weights.load(tensors, version)
        self.policy.feature_cache.entries.clear()

    def generate(self, encoded: Sequence[EncodedQuery], rules: Rules, drawing: Drawing) -> list[list[Drawn]]:
        """Completions as the policy draws them, each group from its own random stream."""
        version = self.weights.version
        if version is None:
            raise Forgotten
        queries = [query.query for query in encoded]
        with torch.no_grad():
            sequences, completions = self.policy.generate(queries, drawing)
        rows = zip(sequences.prompt.tolist(), completions.ids, completions.log_probs, completions.real, strict=True)
        drawn: list[list[Drawn]] = [[] for _ in queries]
        for place, row, log_probs, real in rows:
            drawn[place].append(Drawn(row[real].tolist(), log_probs[real].tolist(), version))
        return drawn

    def rest(self) -> None:
        """Nothing can be freed."""

    def close(self) -> None:
        """Nothing is left."""
