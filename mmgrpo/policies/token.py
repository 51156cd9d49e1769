"""A policy whose decisions are tokens, whatever its prompts show.

Log-probabilities are those of the distribution that was sampled from: logits divided by the
temperature, without the tokens that the family never says. They are computed at completion positions
only, in fp32, and in chunks, so that memory does not grow with vocabulary x length x batch.

What the members of a group have in common is computed once: the features of the prompt's media, and
(with ``share_prefix``) the keys and values of the prompt's tokens, in sampling and in scoring alike.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mmgrpo.policies.contrast import CONTRASTS
from mmgrpo.policies.generation import Reading, Written, draw, entropy_of, search, written
from mmgrpo.policies.sequences import Sequences, Tokens, answer_of, with_answers
from mmgrpo.policies.token_model import Context, Features, KeptFeatures, TokenModel, following_position
from mmgrpo.registry import bind
from mmgrpo.runtime.randomness import stream
from mmgrpo.types import CONTRAST, OWN, REFERENCE, Decisions, Output, Prompt, Request, Rollout, Scores, Text


class TokenPolicy:
    """Samples token by token and scores the same tokens in one forward pass."""

    kind = "tokens"
    keys = frozenset({"prompt"})
    provides = frozenset({"log_probs", "entropy", "reference_log_probs"})

    def __init__(
        self,
        model: TokenModel,
        *,
        max_tokens: int,
        temperature: float = 1.0,
        top_p: float = 1.0,
        search: str = "sample",
        reference_in_group: bool = False,
        evaluation_temperature: float = 0.0,
        train_truncated: bool = True,
        share_prefix: bool = True,
        sampling_dtype: str = "",
        contrast: str = "",
        logits_chunk_size: int = 4096,
        features_kept: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        """``search`` is how a group is made: ``sample``, token by token at the temperature, or ``beam``, those that a
        beam search finds most likely. With
        ``reference_in_group`` one member of a group is the prompt's own answer.
        ``sampling_dtype`` (bfloat16, float16) samples faster under autocast; the old log-probabilities are then
        computed again as training computes them, and the sampler's own are kept for a mismatch correction.
        ``contrast`` names a change of the prompt under which further rows are sampled (``CONTRASTS``).
        ``features_kept`` is of how many prompts the features of frozen media are kept over the rounds."""
        if temperature <= 0:
            raise ValueError(f"temperature must be above 0 to sample a group, got {temperature}")
        if not 0 < top_p <= 1:
            raise ValueError(f"top_p must lie in (0, 1], got {top_p}")
        if top_p < 1:
            warnings.warn(
                f"top_p={top_p} samples from a cut distribution while likelihoods are of the whole one, which biases "
                "the gradient; top_p=1 is exact",
                stacklevel=2,
            )
        if search not in ("sample", "beam"):
            raise ValueError(f"search must be sample or beam, got '{search}'")
        if search == "beam" and contrast:
            raise ValueError("a beam search cannot be compared with changed prompts; leave out contrast, or sample")
        if sampling_dtype and sampling_dtype not in AUTOCAST:
            raise ValueError(f"sampling_dtype must be empty or one of {', '.join(AUTOCAST)}, got '{sampling_dtype}'")
        self.model = model
        self.network = model.network
        self.settings: Any = None
        self.max_tokens = max_tokens
        self.temperature = temperature
        self.top_p = top_p
        self.search = search
        self.reference_in_group = reference_in_group
        self.evaluation_temperature = evaluation_temperature
        self.train_truncated = train_truncated
        self.share_prefix = share_prefix
        self.sampling_dtype = sampling_dtype
        self.contrast = bind(contrast, CONTRASTS, "sampling.contrast") if contrast else None
        self.logits_chunk_size = logits_chunk_size
        self.kept_features = KeptFeatures(features_kept)
        self.device = torch.device(device)
        self.suppressed = torch.tensor(sorted(model.suppress_tokens), dtype=torch.long, device=self.device)
        self.begin_suppressed = torch.tensor(sorted(model.begin_suppress_tokens), dtype=torch.long, device=self.device)
        self.places = torch.tensor(sorted(model.media_tokens), dtype=torch.long, device=self.device)
        self.ends = torch.tensor(sorted(model.end_ids), dtype=torch.long, device=self.device)
        self.fields = frozenset({"truncated", "entropy"} | ({"sampler_log_probs"} if sampling_dtype else set()))

    @torch.no_grad()
    def rollout(self, request: Request) -> Rollout:
        """``group_size`` completions a prompt, each group from its own stream; then those of changed prompts."""
        own = request.group_size - self.reference_in_group
        if own < 1:
            raise ValueError(
                f"a group of {request.group_size} with the reference answer among them has no sample of the policy's "
                "own; raise data.group_size"
            )
        asked = [Asked(prompt, slot, own) for prompt, slot in zip(request.prompts, request.slots)]
        asked += self._contrasted(request)
        kept, made = self._generate(asked, request.seed, self.temperature, self.search)
        numbers = {"log_probs": made.log_probs, "entropy": made.entropy}
        if self.sampling_dtype:
            numbers |= {"sampler_log_probs": made.log_probs, "log_probs": self._rescored(kept)}
        origin = torch.tensor([one.origin for one in asked], device=self.device)[kept.prompt]
        if self.reference_in_group:
            answers = [self.model.spell(answer_of(prompt))[: self.max_tokens] for prompt in request.prompts]
            kept, numbers, origin = with_answers(kept, numbers, origin, answers, self.model.pad_id)
        ended = self._ended(kept)
        rows, width = kept.real.shape
        trained = kept.real & (origin != CONTRAST)[:, None] & ((origin != REFERENCE)[:, None] | self._sayable(kept.ids))
        decisions = Decisions(
            log_probs=numbers.pop("log_probs"),
            loss_mask=trained if self.train_truncated else trained & ended[:, None],
            decision_mask=kept.real,
            node=torch.arange(rows * width, device=self.device).view(rows, width),
            origin=origin,
            keys={"prompt": torch.tensor([one.slot for one in asked], device=self.device)[kept.prompt]},
            fields={"truncated": (~ended).float(), **numbers},
        )
        prompts = [asked[row].prompt for row in kept.prompt.tolist()]
        return Rollout(prompts, self._decode(kept), decisions, kept, evaluations=rows * width)

    def score(self, rollout: Rollout, part: Tokens, names: frozenset[str]) -> Scores:
        """Score the part's tokens again under the present parameters."""
        kept: Sequences = rollout.steps  # type: ignore[assignment]
        log_probs, entropy = self._score(self.network, kept, part, "entropy" in names)
        scores: Scores = {"log_probs": log_probs}
        if "entropy" in names:
            scores["entropy"] = entropy
        if "reference_log_probs" in names:
            with torch.no_grad(), self.model.reference() as network:
                scores["reference_log_probs"], _ = self._score(network, kept, part, False)
        return scores

    @torch.no_grad()
    def sample(self, request: Request) -> list[Output]:
        """Draw at the evaluation temperature (0 is greedy)."""
        asked = [Asked(prompt, slot, request.group_size) for prompt, slot in zip(request.prompts, request.slots)]
        kept, _ = self._generate(asked, request.seed, self.evaluation_temperature, "sample")
        return self._decode(kept)

    def keep_reference(self) -> None:
        """Keep the network as it is now, for terms that compare with it."""
        self.model.reference.keep()

    def save(self, folder: Path) -> None:
        """Write the network in its family's own format."""
        self.model.save(folder, self.network)

    def _contrasted(self, request: Request) -> list[Asked]:
        """The same prompts changed, each to be answered a few times, where the change means anything."""
        if self.contrast is None:
            return []
        asked = []
        for prompt, slot in zip(request.prompts, request.slots):
            inputs = {"prompt": prompt, "group_size": request.group_size, "seed": request.seed}
            changed, count = self.contrast(inputs)
            if count:
                asked.append(Asked(changed, slot, count, CONTRAST))
        return asked

    def _generate(self, asked: Sequence[Asked], seed: int, temperature: float, how: str) -> tuple[Sequences, Written]:
        """Write completions with a cache that starts from each prompt once."""
        context = _moved(self.model.encode([one.prompt for one in asked]), self.device)
        dtype, divisor = AUTOCAST.get(self.sampling_dtype), temperature or 1.0

        def next_token(hidden: Tensor, first: bool) -> Tensor:
            begins = torch.full((len(hidden),), first, device=hidden.device)
            return self._log_softmax(self.network, hidden, begins, divisor)

        with torch.autocast(self.device.type, dtype) if dtype else nullcontext():
            features = self._seen(context, asked)
            counts = torch.tensor([one.count for one in asked], device=self.device)
            each = torch.arange(len(asked), device=self.device)
            prompt = each.repeat_interleave(counts)
            read = each if self.share_prefix or how == "beam" else prompt
            hidden, cache = self.model.hidden(
                self.network,
                context.ids[read],
                context.real[read],
                context.positions[read],
                [features[row] for row in read.tolist()] if features else (),
                None,
            )
            axes = context.positions.shape[1]
            following = following_position(context)[read]
            reading = Reading(self.model, self.network, hidden[:, -1], cache, context.real[read], following, axes)
            if how == "beam":
                best = search(reading, next_token, asked[0].count, self.ends, most=self.max_tokens)
                made = written([beam for beams in best for beam in beams], self.model.pad_id, self.device)
            else:
                made = draw(
                    reading.keep(prompt) if self.share_prefix else reading,
                    next_token,
                    [(stream(seed, STREAMS[one.origin], one.slot), one.count) for one in asked],
                    self.ends,
                    most=self.max_tokens,
                    greedy=temperature == 0,
                    top_p=self.top_p,
                )
        reusable = features if self.model.frozen_media and not dtype else None
        return Sequences(context, reusable, prompt, made.ids, made.real), made

    def _sayable(self, ids: Int[Tensor, "B T"]) -> Bool[Tensor, "B T"]:
        """False where the policy gives a token no probability, so that there is nothing to learn from it."""
        first = torch.arange(ids.shape[1], device=ids.device) == 0
        return ~(torch.isin(ids, self.suppressed) | (first & torch.isin(ids, self.begin_suppressed)))

    def _rescored(self, kept: Sequences, eval_batch_size: int = 16) -> Float[Tensor, "B T"]:
        """Log-probabilities as training computes them."""
        found = torch.zeros(kept.real.shape, device=self.device)
        for part in kept.split(kept.real, eval_batch_size):
            found[part.rows, part.positions], _ = self._score(self.network, kept, part, False)
        return found

    def _score(
        self, network: nn.Module, kept: Sequences, part: Tokens, with_entropy: bool
    ) -> tuple[Float[Tensor, "N"], Float[Tensor, "N"]]:
        """Log-probabilities (and entropies) of chosen tokens; logits are made chunk by chunk."""
        rows, inverse = torch.unique(part.rows, return_inverse=True)
        states = self._states(network, kept, rows)
        wanted, target = states[inverse, part.positions], kept.ids[part.rows, part.positions]

        def chunk(hidden: Tensor, tokens: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
            spread = self._log_softmax(network, hidden, first, self.temperature)
            chosen = spread.gather(1, tokens[:, None])[:, 0]
            return chosen, entropy_of(spread) if with_entropy else torch.zeros_like(chosen)

        pieces = []
        cut = [value.split(self.logits_chunk_size) for value in (wanted, target, part.positions == 0)]
        for hidden, tokens, first in zip(*cut, strict=True):
            # The chunk's logits are made again in the backward pass instead of being kept.
            if torch.is_grad_enabled() and len(wanted) > self.logits_chunk_size:
                pieces.append(checkpoint(chunk, hidden, tokens, first, use_reentrant=False))
            else:
                pieces.append(chunk(hidden, tokens, first))
        return torch.cat([p[0] for p in pieces]), torch.cat([p[1] for p in pieces])

    def _states(self, network: nn.Module, kept: Sequences, rows: Int[Tensor, " rows"]) -> Float[Tensor, "rows T width"]:
        """The hidden state before every token of some completions."""
        prompts, prompt = torch.unique(kept.prompt[rows], return_inverse=True)
        which = prompts.tolist()
        context = kept.context.take(which)
        if kept.features is None:
            features = self._features(network, context, [""] * len(which))
        else:
            features = [kept.features[row] for row in which] if kept.features else ()
        length = int(kept.real[rows].any(0).sum())
        ids, real = kept.ids[rows, : length - 1], kept.real[rows, : length - 1]
        steps = torch.arange(length - 1, device=ids.device)
        following = following_position(context)[prompt][:, None] + steps
        places = following[:, None].expand(-1, context.positions.shape[1], -1)
        if not self.share_prefix or (self.model.checkpointing and torch.is_grad_enabled()):
            hidden, _ = self.model.hidden(
                network,
                torch.cat([context.ids[prompt], ids], 1),
                torch.cat([context.real[prompt], real], 1),
                torch.cat([context.positions[prompt], places], 2),
                [features[row] for row in prompt.tolist()] if features else (),
                None,
            )
            return hidden[:, context.ids.shape[1] - 1 :]
        before, cache = self.model.hidden(network, context.ids, context.real, context.positions, features, None)
        first = before[prompt, -1:]
        if length == 1:
            return first
        whole = torch.cat([context.real[prompt], real], 1)
        hidden, _ = self.model.hidden(network, ids, whole, places, (), self.model.spread(cache, prompt))
        return torch.cat([first, hidden], 1)

    def _seen(self, context: Context, asked: Sequence[Asked]) -> Features:
        """Features for sampling; those of prompts that were seen before are not computed again."""
        names = [one.prompt.id for one in asked]
        if not (self.model.frozen_media and self.kept_features.most):
            return self._features(self.network, context, names)

        def compute(missing: list[int]) -> Features:
            return self._features(self.network, context.take(missing), [names[place] for place in missing])

        again = [one.origin != CONTRAST for one in asked]  # a changed prompt is changed in another way the next time
        return self.kept_features.of([one.prompt for one in asked], compute, again)

    def _features(self, network: nn.Module, context: Context, names: Sequence[str]) -> Features:
        """Features of the context's media, as many for each prompt as it has places for them."""
        frozen = torch.no_grad() if self.model.frozen_media else nullcontext()
        with frozen:
            features = self.model.features(network, context)
        if features and len(self.places):
            places = torch.isin(context.ids, self.places).sum(1).tolist()
            for name, wanted, found in zip(names, places, features, strict=True):
                if wanted != len(found):
                    raise ValueError(
                        f"prompt '{name}': its text has places for {wanted} features of media, its media make "
                        f"{len(found)}; the family's encode and features disagree"
                    )
        return features

    def _log_softmax(
        self, network: nn.Module, hidden: Tensor, first: Bool[Tensor, "N"], temperature: float
    ) -> Float[Tensor, "N vocabulary"]:
        """Log-probabilities of the next token; ``first`` is True where it begins the completion."""
        logits = self.model.logits(network, hidden).float() / temperature
        if len(self.suppressed):
            # In place, in the new tensor that the division made: a copy would be rows x vocabulary.
            logits.index_fill_(1, self.suppressed, -torch.inf)
        if len(self.begin_suppressed):
            begun = torch.where(first[:, None], -torch.inf, logits[:, self.begin_suppressed])
            logits = logits.index_copy(1, self.begin_suppressed, begun)
        return torch.log_softmax(logits, -1)

    def _ended(self, kept: Sequences) -> Bool[Tensor, " B"]:
        return (torch.isin(kept.ids, self.ends) & kept.real).any(1)

    def _decode(self, kept: Sequences) -> list[Output]:
        seen = [kept.context.seen[row] if kept.context.seen else () for row in kept.prompt.tolist()]
        return [
            Text(self.model.decode(ids[real].tolist()), int(real.sum()), not bool(ended), sizes)
            for ids, real, ended, sizes in zip(kept.ids, kept.real, self._ended(kept), seen, strict=True)
        ]


AUTOCAST = {"bfloat16": torch.bfloat16, "float16": torch.float16}


STREAMS = {OWN: "tokens", CONTRAST: "contrast"}
"""Name of the random stream by origin of the rows."""


@dataclass(frozen=True)
class Asked:
    """A prompt and how many completions of it are wanted."""

    prompt: Prompt
    slot: int
    count: int
    origin: int = OWN


def _moved(context: Context, device: torch.device) -> Context:
    ids, real, positions = (value.to(device) for value in (context.ids, context.real, context.positions))
    return replace(context, ids=ids, real=real, positions=positions)
