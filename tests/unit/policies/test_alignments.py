"""Transcripts of frame labels against the enumeration of all paths: likelihoods, gradients, draws, beam search."""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict

import pytest
import torch
from torch import Tensor

from mmgrpo.policies.ctc import Transcript, collapse, draw_transcripts, log_likelihood, prefix_beam_search

BLANK = 1  # neither the first nor the last label


def frames_of(count: int, labels: int, seed: int = 0, spread: float = 1.5) -> Tensor:
    logits = spread * torch.randn(count, labels, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return logits.log_softmax(-1)


def spelled(path: tuple[int, ...]) -> Transcript:
    """The collapse, letter by letter."""
    kept, before = [], BLANK
    for label in path:
        if label not in (BLANK, before):
            kept.append(label)
        before = label
    return tuple(kept)


def every_transcript(frames: Tensor) -> dict[Transcript, Tensor]:
    """The log-prob of every transcript, summed over the log-probs of all of its paths."""
    paths = defaultdict(list)
    for path in itertools.product(range(frames.shape[1]), repeat=len(frames)):
        paths[spelled(path)].append(torch.stack([row[label] for row, label in zip(frames, path)]).sum())
    return {transcript: torch.stack(scores).logsumexp(0) for transcript, scores in paths.items()}


@pytest.mark.parametrize(
    ("path", "transcript"),
    [([0, 0, 1, 0, 2], (0, 0, 2)), ([0, 1, 0, 2, 2], (0, 0, 2)), ([1, 1], ()), ([2], (2,)), ([0, 2, 0], (0, 2, 0))],
)
def test_repetitions_go_first_then_blanks(path, transcript):
    assert collapse(torch.tensor(path), BLANK) == transcript == spelled(tuple(path))


def test_the_likelihood_is_the_sum_over_all_paths():
    frames = frames_of(5, 3)
    every = every_transcript(frames)
    assert len(every) == 25  # of 0 to 5 labels: 1, 2, 4, 8, 8 and 2, since a repetition takes a frame more
    ours = log_likelihood(frames, list(every), BLANK)
    torch.testing.assert_close(ours, torch.stack(list(every.values())), rtol=0, atol=1e-12)
    assert float(ours.exp().sum()) == pytest.approx(1, abs=1e-12)
    torch.testing.assert_close(log_likelihood(frames.float(), list(every), BLANK).double(), ours, rtol=0, atol=2e-6)


def test_a_transcript_that_does_not_fit_is_impossible_and_the_empty_one_is_all_blanks():
    frames = frames_of(2, 3)
    ours = log_likelihood(frames, [(0, 0), ()], BLANK)  # between two equal labels there is a blank
    assert ours[0] == -math.inf and float(ours[1]) == pytest.approx(float(frames[:, BLANK].sum()), abs=1e-12)
    assert torch.equal(log_likelihood(frames, [()], BLANK), ours[1:])


def test_the_gradient_is_that_of_the_enumerated_sum():
    logits = torch.randn(4, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64).requires_grad_()
    every = every_transcript(logits.log_softmax(-1))
    weights = torch.linspace(-1, 2, len(every), dtype=torch.float64)
    (wanted,) = torch.autograd.grad(weights @ torch.stack(list(every.values())), logits)
    (ours,) = torch.autograd.grad(weights @ log_likelihood(logits.log_softmax(-1), list(every), BLANK), logits)
    torch.testing.assert_close(ours, wanted, rtol=0, atol=1e-12)
    assert wanted.abs().max() > 0.1


def test_the_transcripts_gradient_is_the_paths_mean_gradient_with_less_variance():
    """Rao-Blackwell: of REINFORCE with a reward that sees the transcript only, over all paths with their weights."""
    logits = frames_of(4, 3, seed=5).requires_grad_()
    frames = logits.log_softmax(-1)
    every = every_transcript(frames)
    rewards = {transcript: -abs(len(transcript) - 2.0) - (transcript[:1] == (2,)) for transcript in every}
    slope = {one: torch.autograd.grad(every[one], logits, retain_graph=True)[0] for one in every}
    of_path, of_transcript, weights = [], [], []
    for path in itertools.product(range(3), repeat=4):
        log_prob = torch.stack([row[label] for row, label in zip(frames, path)]).sum()
        weights.append(float(log_prob.detach().exp()))
        of_path.append(rewards[spelled(path)] * torch.autograd.grad(log_prob, logits, retain_graph=True)[0])
        of_transcript.append(rewards[spelled(path)] * slope[spelled(path)])
    chance = torch.tensor(weights, dtype=torch.float64)[:, None, None]
    means = [(chance * torch.stack(one)).sum(0) for one in (of_path, of_transcript)]
    variances = [
        (chance * (torch.stack(one) - mean).square()).sum() for one, mean in zip((of_path, of_transcript), means)
    ]
    objective = torch.stack([every[one].exp() * rewards[one] for one in every]).sum()
    (wanted,) = torch.autograd.grad(objective, logits)
    for mean in means:
        torch.testing.assert_close(mean, wanted, rtol=0, atol=1e-12)
    assert variances[1] < 0.8 * variances[0]


def test_transcripts_are_drawn_with_their_probabilities():
    frames = frames_of(3, 3, seed=1)
    uniform = torch.rand(20_000, 3, generator=torch.Generator().manual_seed(0))
    shares = Counter(draw_transcripts(frames, uniform, BLANK))
    every = every_transcript(frames)
    assert set(shares) <= set(every)
    worst = max(abs(shares[one] / 20_000 - float(score.exp())) for one, score in every.items())
    assert worst < 0.012  # three sigmas of a half are 0.0106


@pytest.mark.parametrize("seed", range(3))
def test_a_wide_beam_lists_all_transcripts_in_order(seed):
    frames = frames_of(5, 3, seed)
    every = every_transcript(frames)
    wanted = sorted(every, key=lambda one: -float(every[one]))
    assert prefix_beam_search(frames, 1000, BLANK) == wanted


def plain_beam_search(frames: Tensor, width: int) -> list[Transcript]:
    """The same search over all labels, in probabilities of a prefix and the last label of its path."""
    beams: dict[tuple[Transcript, int], float] = {((), BLANK): 1.0}
    for row in frames.exp().tolist():
        grown: dict[tuple[Transcript, int], float] = defaultdict(float)
        for (prefix, last), chance in beams.items():
            for label, probability in enumerate(row):
                longer = prefix if label in (BLANK, last) else (*prefix, label)
                grown[longer, label] += chance * probability
        totals: dict[Transcript, float] = defaultdict(float)
        for (prefix, _), chance in grown.items():
            totals[prefix] += chance
        kept = sorted(totals, key=lambda prefix: -totals[prefix])[:width]
        beams = {state: chance for state, chance in grown.items() if state[0] in kept}
    return kept


@pytest.mark.parametrize("width", [1, 2, 5])
@pytest.mark.parametrize("seed", range(4))
def test_labels_that_are_left_out_could_not_have_entered_a_narrow_beam(width, seed):
    frames = frames_of(9, 15, seed, spread=2.5)
    assert prefix_beam_search(frames, width, BLANK) == plain_beam_search(frames, width)


def test_a_label_beyond_the_most_likely_ones_enters_where_it_can():
    """After a, which ends in the blank as often as in a, the .45 of a third a are halved, and c with .43 is ahead."""
    frames = torch.tensor([[0.9, 0.1, 0, 0], [0.5, 0.5, 0, 0], [0.45, 0.02, 0.43, 0.1]]).log()
    assert prefix_beam_search(frames, 1, BLANK) == plain_beam_search(frames, 1) == [(0, 2)]


def test_paths_of_two_beams_that_meet_in_an_unlikely_label_are_added():
    """The beams are a and ac. Four labels are likelier than c, by which both arrive at ac."""
    last = [0.05, 0.1, 0.13, 0.14, 0.15, 0.16, 0.17]
    frames = torch.tensor([[0.95, 0.05, *[0.0] * 5], [0, 0.5, 0.5, *[0.0] * 4], last]).log()
    assert prefix_beam_search(frames, 2, BLANK) == plain_beam_search(frames, 2)
    assert prefix_beam_search(frames, 2, BLANK)[0] == (0, 2)


def test_labels_of_probability_zero_are_in_no_list():
    frames = torch.tensor([[0.5, 0.5, 0.0], [0.5, 0.5, 0.0]]).log()
    assert set(prefix_beam_search(frames, 10, BLANK)) == {(), (0,)}
