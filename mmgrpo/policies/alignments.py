"""Connectionist temporal classification (Graves et al. 2006): frame labels, and the transcripts that they collapse to.

A path names one label per frame, the blank among them. Its transcript is the path without repetitions, then without
blanks: with - as the blank, aa-ab and a-abb are both aab. Given the sound, the frames are independent, so that

    log p(path) = sum_t frames[t, path[t]]        log p(transcript) = log sum_{paths of the transcript} p(path)
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Sequence
from typing import TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mmgrpo.policies.generation import draw_tokens

Transcript: TypeAlias = tuple[int, ...]
"""Labels without blanks."""


def collapse(path: Int[Tensor, "frames"], blank: int) -> Transcript:
    """The transcript of a path."""
    return tuple(label for label in path.unique_consecutive().tolist() if label != blank)


def draw_transcripts(
    frames: Float[Tensor, "frames labels"], uniform: Float[Tensor, "rows frames"], blank: int
) -> list[Transcript]:
    """The transcripts of paths drawn from the frames' log-probs by uniform numbers: each is a sample of p(transcript),
    so that it recurs as often as it is likely."""
    paths = draw_tokens(frames.repeat(len(uniform), 1), uniform.flatten()).view(uniform.shape)
    return [collapse(path, blank) for path in paths]


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
        targets.to(frames.device),
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
        chosen = heapq.nlargest(width, (one for one in ranked if one[0] > -math.inf))
        beams = {prefix: (sums[prefix][0], sums[prefix][1]) for _, prefix in chosen}
    return list(beams)


def _log_add(a: float, b: float) -> float:
    """log(exp(a) + exp(b))."""
    high, low = max(a, b), min(a, b)
    return high if low == -math.inf else high + math.log1p(math.exp(low - high))
