"""A policy with one decision per sample: the transcript of a recognizer with a CTC head.

The network labels every frame of a recording, and many label paths collapse to one transcript. Two likelihoods suit:

- of the path, one decision per frame. Graves and Jaitly (ICML 2014, section 3) draw paths so, for the expected
  transcription loss, and Shannon (arXiv:1706.02776) draws paths of a lattice.
- of the transcript, one decision: the sum over all of its paths. This is what minimum word error rate training
  (arXiv:1712.01818, eq. 2) weighs errors by.

The reward sees the transcript only. The gradient of log p(transcript) is the mean of those of log p(path) over the
transcript's paths, so both have the same expected gradient, and the second has no more variance (Rao-Blackwell).
This policy takes the second. A drawn path's transcript is a sample of p(transcript): transcripts that recur in a group
are rows of their own with equal log-probs, as often as they are likely. The ratio of a clipped objective is that of
whole transcripts.

Connectionist temporal classification (Graves et al. 2006): frame labels, and the transcripts that they collapse to.

A path names one label per frame, the blank among them. Its transcript is the path without repetitions, then without
blanks: with - as the blank, aa-ab and a-abb are both aab. Given the recording, the frames are independent, so

    log p(path) = sum_t frames[t, path[t]]        log p(transcript) = log sum_{paths of the transcript} p(path)
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from mmgrpo.config.registry import networks_of
from mmgrpo.files import share
from mmgrpo.policies.categorical import Choice
from mmgrpo.policies.generation import draw_tokens
from mmgrpo.randomness import stream
from mmgrpo.runtime.devices import put
from mmgrpo.runtime.finite import refuse_nan
from mmgrpo.runtime.networks import Networks
from mmgrpo.types import OWN, Decisions, Output, Prompt, Reference, Request, Rollout, Scores, Text

Transcript: TypeAlias = tuple[int, ...]
"""Labels without blanks."""


def collapse(path: Int[Tensor, "frames"], blank: int) -> Transcript:
    """The transcript of a path."""
    return tuple(label for label, _ in groupby(path.tolist()) if label != blank)


def draw_transcripts(
    frames: Float[Tensor, "frames labels"], uniform: Float[Tensor, "rows frames"], blank: int
) -> list[Transcript]:
    """The transcripts of paths drawn from the frames' log-probs by uniform numbers: each is a sample of p(transcript),
    so it recurs as often as it is likely."""
    paths = draw_tokens(frames.repeat(len(uniform), 1), uniform.flatten()).view(uniform.shape)
    return [collapse(path, blank) for path in paths.cpu()]


def log_likelihood(
    frames: Float[Tensor, "frames labels"], transcripts: Sequence[Transcript], blank: int
) -> Float[Tensor, "rows"]:
    """log p(transcript) in nats, exactly, by the forward algorithm over all of its paths; -inf for a transcript that
    does not fit into the frames. ``frames`` are log-probs, of which every row sums to one."""
    lengths = [len(transcript) for transcript in transcripts]
    width = max(1, *lengths)
    targets = torch.tensor([[*transcript, *[0] * (width - len(transcript))] for transcript in transcripts])
    return -torch.nn.functional.ctc_loss(
        frames[:, None].expand(-1, len(transcripts), -1),
        put(targets, frames.device),
        torch.full((len(transcripts),), len(frames)),
        torch.tensor(lengths),
        blank,
        reduction="none",
    )


def prefix_beam_search(frames: Float[Tensor, "frames labels"], width: int, blank: int) -> list[Transcript]:
    """At most ``width`` transcripts, the most likely first, by a beam search over prefixes that adds up the paths of
    each (Graves and Jaitly 2014, section 4; Hannun et al. 2014, arXiv:1408.2873, algorithm 1, without a language
    model)."""
    likely = frames.topk(min(width + 2, frames.shape[1])).indices.tolist()
    beams = {(): (0.0, -math.inf)}  # prefix to the log-probs of its paths that end in the blank, and in its last label
    for scores, best in zip(frames.tolist(), likely, strict=True):
        # A prefix has at least ``width`` extensions by its most likely labels that are neither blank nor a repetition.
        # Another label matters only where a beam ends with it, because paths of two beams meet there.
        labels = {*best, blank, *(prefix[-1] for prefix in beams if prefix)}
        sums: dict[Transcript, list[float]] = defaultdict(lambda: [-math.inf, -math.inf])
        for prefix, (in_blank, in_label) in beams.items():
            total = _log_add(in_blank, in_label)
            for label in labels:
                extended, before = (*prefix, label), total
                if label == blank:
                    sums[prefix][0] = _log_add(sums[prefix][0], total + scores[label])
                    continue
                if prefix[-1:] == (label,):  # after the label itself a blank is needed to begin it anew
                    sums[prefix][1] = _log_add(sums[prefix][1], in_label + scores[label])
                    before = in_blank
                sums[extended][1] = _log_add(sums[extended][1], before + scores[label])
        ranked = ((_log_add(*pair), prefix) for prefix, pair in sums.items())
        chosen = heapq.nlargest(width, (pair for pair in ranked if pair[0] > -math.inf))
        beams = {prefix: (sums[prefix][0], sums[prefix][1]) for _, prefix in chosen}
    return list(beams)


def _log_add(a: float, b: float) -> float:
    """log(exp(a) + exp(b))."""
    high, low = max(a, b), min(a, b)
    return high if low == -math.inf else high + math.log1p(math.exp(low - high))


@runtime_checkable
class CtcModel(Protocol):
    """The interface of a recognizer to the policy."""

    network: nn.Module
    reference: Reference
    blank: int
    """The label of no output."""

    def encode(self, prompt: Prompt) -> Any:
        """A prompt's recording as the network reads it."""
        ...

    def logits(self, network: nn.Module, clip: Any) -> Float[Tensor, "frames labels"]:
        """Logits of the labels of each frame of encoded audio."""
        ...

    def decode(self, transcript: Sequence[int]) -> str:
        """The text of labels without blanks."""
        ...

    def save(self, folder: Path, network: nn.Module) -> None:
        """Write the network in the family's own format."""
        ...


@dataclass(frozen=True)
class Transcripts:
    """Encoded recordings and the transcripts of a group each."""

    clips: Sequence[Any]
    """One per group."""
    prompt: Int[Tensor, "B"]
    """Index of each row's clip, on the host; members of a group are adjacent."""
    labels: Sequence[Transcript]
    """The transcript of each row."""
    device: torch.device
    """Where parts lie."""

    def split(self, loss_mask: Bool[Tensor, "B T"], limit: int) -> Iterator[Choice]:
        """Parts of all rows of at most ``limit`` clips, since a clip takes one forward pass for all its transcripts."""
        rows = loss_mask[:, 0].cpu().nonzero()[:, 0]
        clips = self.prompt[rows]
        for some in clips.unique_consecutive().split(limit):
            chunk = rows[torch.isin(clips, some)]
            if len(chunk):
                yield Choice.of(chunk, self.device)


class CtcPolicy:
    """Samples one transcript per row and scores the same transcript again.

    frames = log_softmax(logits / temperature)
    log_prob = log sum_{paths of the transcript} prod_t exp(frames[t, path[t]])
    """

    kind = "tokens"
    keys = frozenset({"prompt"})
    provides = frozenset({"log_probs", "reference.log_probs"})
    fields: frozenset[str] = frozenset()

    def __init__(
        self,
        model: CtcModel,
        *,
        temperature: float = 1.0,
        search: str = "sample",
        evaluation_temperature: float = 0.0,
        device: torch.device | str = "cpu",
    ) -> None:
        """``search`` chooses the transcripts of a group: ``sample`` draws paths at the temperature, ``beam`` takes the
        most likely transcripts of a prefix beam search, as wide as the group."""
        if temperature <= 0:
            raise ValueError(f"got temperature {temperature}, expected above 0: the samples of a group must differ")
        if search not in ("sample", "beam"):
            raise ValueError(f"got search '{search}', expected sample or beam")
        self.model = model
        self.network, self.networks = model.network, Networks(model)
        self.settings: Any = None
        self.temperature = temperature
        self.search = search
        self.evaluation_temperature = evaluation_temperature
        self.device = torch.device(device)

    @torch.no_grad()
    def rollout(self, request: Request) -> Rollout:
        """``group_size`` transcripts per prompt, each group from its own random stream."""
        clips = [self.model.encode(prompt) for prompt in request.prompts]
        labels: list[Transcript] = []
        log_probs = []
        for clip, prompt, slot in zip(clips, request.prompts, request.slots, strict=True):
            frames = self._certain_frames(clip, self.temperature)
            if self.search == "beam":
                group = prefix_beam_search(frames, request.group_size, self.model.blank)
                if len(group) < request.group_size:
                    raise ValueError(
                        f"prompt '{prompt.id}': the beam search got {len(group)} transcripts of {len(frames)} frames, "
                        f"expected the {request.group_size} of a group; lower data.group_size or remove the row"
                    )
            else:
                group = self._draw(frames, request.seed, slot, request.group_size)
            labels += group
            log_probs.append(log_likelihood(frames, group, self.model.blank))
        prompt = torch.arange(len(clips)).repeat_interleave(request.group_size)
        mask = torch.ones(len(labels), 1, dtype=torch.bool, device=self.device)
        decisions = Decisions(
            log_probs=torch.cat(log_probs)[:, None],
            loss_mask=mask,
            decision_mask=mask,
            node=torch.arange(len(labels), device=self.device)[:, None],
            origin=torch.full((len(labels),), OWN, device=self.device),
            keys={"prompt": put(torch.tensor(request.slots)[prompt], self.device)},
        )
        prompts = [request.prompts[index] for index in prompt.tolist()]
        steps = Transcripts(clips, prompt, labels, self.device)
        return Rollout(prompts, self._decode(labels), decisions, steps, evaluations=len(clips))

    def score(self, rollout: Rollout, part: Choice, names: frozenset[str]) -> Scores:
        """Score the part's transcripts again under the present parameters."""
        transcripts: Transcripts = rollout.steps  # type: ignore[assignment]
        scores: Scores = {"log_probs": self._log_probs(self.network, transcripts, part.on_host)}
        for other in networks_of(names):
            with torch.no_grad(), self.networks(other) as network:
                scores[f"{other}.log_probs"] = self._log_probs(network, transcripts, part.on_host)
        return scores

    @torch.no_grad()
    def sample(self, request: Request) -> list[Output]:
        """The transcripts of paths at the evaluation temperature; 0 takes the most likely label of every frame."""
        labels: list[Transcript] = []
        for prompt, slot in zip(request.prompts, request.slots, strict=True):
            frames = self._certain_frames(self.model.encode(prompt), self.evaluation_temperature or 1.0)
            if self.evaluation_temperature:
                labels += self._draw(frames, request.seed, slot, request.group_size)
            else:
                labels += [collapse(frames.argmax(1), self.model.blank)] * request.group_size
        return self._decode(labels)

    def keep_reference(self) -> None:
        """Store the present network as the reference of KL terms."""
        self.model.reference.keep()

    def save(self, folder: Path) -> None:
        """Write the network in its family's own format."""
        self.model.save(folder, self.network)
        share(folder)

    def _frames(self, network: nn.Module, clip: Any, temperature: float) -> Float[Tensor, "frames labels"]:
        return torch.log_softmax(self.model.logits(network, clip).float() / temperature, -1)

    def _certain_frames(self, clip: Any, temperature: float) -> Float[Tensor, "frames labels"]:
        return refuse_nan(self._frames(self.network, clip, temperature), "the probabilities of labels")

    def _draw(self, frames: Tensor, seed: int, slot: int, count: int) -> list[Transcript]:
        uniform = torch.rand(count, len(frames), generator=stream(seed, "paths", slot))
        return draw_transcripts(frames, put(uniform, self.device), self.model.blank)

    def _log_probs(self, network: nn.Module, transcripts: Transcripts, rows: Int[Tensor, "N"]) -> Float[Tensor, "N"]:
        """Log-probs of some rows (on the host), in order; rows of one clip that follow each other share its forward
        pass."""
        clips, counts = transcripts.prompt[rows].unique_consecutive(return_counts=True)
        scores = []
        for clip, group in zip(clips.tolist(), rows.split(counts.tolist()), strict=True):
            frames = self._frames(network, transcripts.clips[clip], self.temperature)
            labels = [transcripts.labels[row] for row in group.tolist()]
            scores.append(log_likelihood(frames, labels, self.model.blank))
        return torch.cat(scores)

    def _decode(self, labels: Sequence[Transcript]) -> list[Output]:
        return [Text(self.model.decode(transcript), len(transcript), ids=tuple(transcript)) for transcript in labels]
