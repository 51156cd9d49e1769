"""Groups made by a beam search, and minimum word error rate training over the list that it finds."""

from __future__ import annotations

import itertools
import math
from unittest.mock import Mock

import pytest
import torch
from accelerate import Accelerator

from mmgrpo.advantages.estimate import estimate
from mmgrpo.policies.beam_search import beam_search
from mmgrpo.policies.generation import DecodingState
from mmgrpo.policies.token import TokenPolicy
from mmgrpo.policies.token_model import TokenModel
from mmgrpo.types import Prompt, Rollout
from mmgrpo.update import Batch, accumulate_gradients
from tests.building import algorithm_blocks, rescored
from tests.unit.policies.test_token_policy import PROMPTS, completions, rollout, token_policy

pytest.importorskip("transformers")


def log_prob_of(policy: TokenPolicy, prompt: Prompt, ids: tuple[int, ...]) -> torch.Tensor:
    """The sum over the tokens, by a plain forward pass."""
    (before,) = policy.model.encode([prompt]).ids
    logits = policy.network(torch.cat([before, torch.tensor(ids)])[None]).logits[0, len(before) - 1 : -1]
    logits[:, sorted(policy.model.suppress_tokens)] = -torch.inf
    return logits.log_softmax(-1).gather(1, torch.tensor(ids)[:, None]).sum()


def found(made: Rollout, group_size: int) -> list[list[tuple[int, ...]]]:
    """Every group's completions as tuples of ids."""
    rows = [tuple(ids[real].tolist()) for ids, real in zip(completions(made), made.decisions.decision_mask)]
    return [rows[start : start + group_size] for start in range(0, len(rows), group_size)]


def test_a_wide_beam_finds_the_most_likely_of_all_completions():
    policy = token_policy(max_tokens=2, search="beam")
    (end,) = policy.model.end_ids
    words = sorted(set(range(policy.network.config.vocab_size)) - policy.model.suppress_tokens - {end})
    every = [(end,), *((word, end) for word in words)]  # all that end within two tokens
    made = found(rollout(policy, group_size=len(every)), len(every))
    for prompt, group in zip(PROMPTS, made):
        with torch.no_grad():
            wanted = sorted(every, key=lambda ids: -float(log_prob_of(policy, prompt, ids)))
        assert group == wanted


def test_the_list_is_that_of_the_librarys_beam_search():
    policy = token_policy(max_tokens=6, search="beam")
    made = found(rollout(policy, group_size=4), 4)
    for prompt, group in zip(PROMPTS, made):
        context = policy.model.encode([prompt])
        theirs = policy.network.generate(  # type: ignore[operator]
            context.ids,
            attention_mask=context.real.long(),
            num_beams=4,
            num_return_sequences=4,
            do_sample=False,
            max_new_tokens=6,
            length_penalty=0.0,
            early_stopping="never",
            suppress_tokens=sorted(policy.model.suppress_tokens) or None,
        )
        (end,) = policy.model.end_ids
        cut = [row[context.ids.shape[1] :].tolist() for row in theirs]
        wanted = {tuple(ids[: ids.index(end) + 1]) for ids in cut if end in ids}
        assert wanted and wanted <= set(group)


def test_a_likely_end_takes_no_beam_of_what_goes_on():
    """Tokens 1, 2 and the end 3. After the end (.5), 1 (.3) and 2 (.2) go on: 2 3 is .18, and 1 3 is .03."""
    chances = torch.tensor([[0, 0.3, 0.2, 0.5], [0, 0.5, 0.4, 0.1], [0, 0.05, 0.05, 0.9]])
    last = lambda network, tokens, *rest: (tokens[..., None].float(), None)  # noqa: E731
    model = Mock(spec=TokenModel, hidden=last, spread=lambda cache, rows: None)
    one = torch.ones(1, 1, dtype=torch.bool)
    start = DecodingState(model, torch.nn.Identity(), torch.zeros(1, 1), None, one, torch.zeros(1, dtype=torch.long), 1)
    [beams] = beam_search(
        start, lambda hidden, first: chances[hidden[:, 0].long()].log(), 2, torch.tensor([3]), max_tokens=2
    )
    assert [beam.ids for beam in beams] == [(3,), (2, 3)]
    assert [math.exp(beam.score) for beam in beams] == pytest.approx([0.5, 0.18])


def test_a_group_is_distinct_best_first_and_scored_as_it_was_searched():
    policy = token_policy(max_tokens=6, search="beam")
    made = rollout(policy, group_size=5)
    loss_mask = made.decisions.loss_mask
    torch.testing.assert_close(
        rescored(policy, made)[loss_mask], made.decisions.log_probs[loss_mask], rtol=0, atol=1e-5
    )
    for group in found(made, 5):
        assert len(set(group)) == 5
    totals = made.decisions.log_probs.sum(1).view(-1, 5)
    ended = made.decisions.fields["truncated"].view(-1, 5) == 0
    for row, whole in zip(totals, ended):
        assert bool((row[whole].diff() <= 0).all())


def test_other_prompts_of_the_batch_do_not_matter():
    policy = token_policy(max_tokens=6, search="beam")
    together = found(rollout(policy, group_size=3), 3)
    alone = [found(rollout(policy, [prompt], 3), 3)[0] for prompt in PROMPTS]
    assert together == alone


def test_a_group_larger_than_all_completions_is_refused():
    policy = token_policy(max_tokens=1, search="beam")
    with pytest.raises(ValueError, match="7 different.*9"):
        rollout(policy, group_size=9)


def test_what_a_beam_search_cannot_be_combined_with_is_said():
    with pytest.raises(ValueError, match="'greedy'"):
        token_policy(search="greedy")
    with pytest.raises(ValueError, match="leave out"):
        token_policy(search="beam", contrast="shuffled_frames")


def test_its_training_has_the_gradient_of_the_expected_number_of_errors_over_the_list():
    """sum_i P_i W_i with P_i = p_i / sum_j p_j, differentiated by itself (arXiv:1712.01818, eq. 6)."""
    policy = token_policy(max_tokens=3, search="beam")
    made = rollout(policy, PROMPTS[:2], group_size=4)
    errors = torch.tensor([0.0, 1.0, 3.0, 1.0, 2.0, 2.0, 0.0, 5.0])
    blocks = algorithm_blocks("mwer_n_best")
    told = estimate(
        -errors[:, None], torch.ones(8, 1, dtype=torch.bool), torch.ones(1), made.decisions, blocks["advantages"]
    )
    batch = Batch([made], [torch.arange(8)], made.decisions, told.advantages, told.loss_mask)
    accumulate_gradients(
        policy,
        batch,
        torch.ones(8, dtype=torch.bool),
        blocks["loss"],
        micro_batch_size=3,
        accelerator=Accelerator(cpu=True),
        on_policy=True,
    )
    ours = [parameter.grad.clone() for parameter in policy.network.parameters() if parameter.grad is not None]
    policy.network.zero_grad()
    expected = torch.zeros(())
    for number, group in enumerate(found(made, 4)):
        scores = torch.stack([log_prob_of(policy, PROMPTS[number], ids) for ids in group])
        expected = expected + scores.softmax(0) @ errors[4 * number : 4 * number + 4] / 2
    expected.backward()
    wanted = [parameter.grad for parameter in policy.network.parameters() if parameter.grad is not None]
    assert max(float(gradient.abs().max()) for gradient in wanted) > 1e-2
    for one, other in itertools.zip_longest(ours, wanted):
        torch.testing.assert_close(one, other, rtol=0, atol=5e-6)  # of at most 1.1
