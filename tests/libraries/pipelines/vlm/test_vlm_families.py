"""Models that see: what was sampled is what is scored, and both are what the library computes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from mmgrpo.policies.token import TokenPolicy
from mmgrpo.policies.token_model import TokenModel
from mmgrpo.types import CONTRAST, OWN, Prompt, Request
from mmgrpo.update import LossRecipe
from pipelines.training import Training
from tests.building import load, recipe, rescored, token_policy_over, trainer
from tests.seeing import (
    BOTH,
    CLIP,
    EVERY,
    PICTURE,
    PICTURES,
    WORDS,
    asked,
    image,
    kept,
    pixels,
    plain_inputs,
    plain_log_probs,
    released_positions,
    rollout,
    tower,
    video,
)
from tests.unit.test_trainer import judged_batch

pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def loaded(name, folder) -> Any:
    """Never trained, so all tests may use it."""
    model = load(name, folder)
    if name == "qwen_vl":
        model.network.model.get_rope_index = released_positions(model.network.model)
    return model


def test_a_family_answers_the_policys_questions(loaded):
    assert isinstance(loaded, TokenModel)


def test_scores_are_those_of_the_librarys_forward_pass_of_a_single_row(loaded):
    made = rollout(TokenPolicy(loaded, max_tokens=6))
    for row in range(made.decisions.rows):
        real = made.decisions.decision_mask[row]
        wanted = plain_log_probs(loaded, made.prompts[row], kept(made).ids[row][real])
        torch.testing.assert_close(made.decisions.log_probs[row][real], wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("prompt", EVERY, ids=lambda prompt: prompt.id)
def test_greedy_completions_are_those_of_the_librarys_generate(prompt, loaded):
    (found,) = TokenPolicy(loaded, max_tokens=6).sample(Request([prompt], [0], 1, 0))
    inputs = plain_inputs(loaded, prompt, torch.tensor([], dtype=torch.long))
    made = loaded.network.generate(
        **inputs, max_new_tokens=6, do_sample=False, suppress_tokens=sorted(loaded.suppress_tokens)
    )[0, inputs["input_ids"].shape[1] :]
    assert (found.text, found.tokens) == (loaded.decode(made.tolist()), len(made))


def forwards_of_the_tower(network: Any, seen: list[int]) -> Any:
    return tower(network).register_forward_hook(lambda *_: seen.append(1))


def test_features_are_computed_once_per_rollout_and_not_again_in_scoring_when_frozen(name, folder):
    for freeze, again in ((True, 0), (False, 3)):
        made_family = load(name, folder, freeze_vision=freeze)
        policy, seen = TokenPolicy(made_family, max_tokens=3), []
        forwards_of_the_tower(made_family.network, seen)
        made = rollout(policy, [PICTURE, CLIP], group_size=3)
        assert sum(seen) == 1  # six rows, two prompts, three media
        for part in made.steps.split(made.decisions.loss_mask, 2):
            policy.score(made, part, frozenset({"log_probs"}))
        assert sum(seen) == 1 + again


def test_each_prompt_is_looked_at_once_whatever_the_size_of_its_group(loaded):
    contexts = []
    policy = TokenPolicy(spying(loaded, "features", contexts), max_tokens=2)
    rollout(policy, [PICTURE, BOTH], group_size=5)
    assert [len(context.media) for _, context in contexts] == [2]


def spying(loaded: Any, verb: str, calls: list[tuple]) -> Any:
    """The same family, writing down what it is asked."""
    copied = dataclasses.replace(loaded)
    answer = getattr(loaded, verb)

    def told(*given: Any) -> Any:
        calls.append(given)
        return answer(*given)

    setattr(copied, verb, told)
    return copied


def test_silent_tokens_are_never_sampled_even_when_the_network_wants_them(loaded):
    copied, silent = dataclasses.replace(loaded), torch.tensor(sorted(loaded.suppress_tokens))
    copied.logits = lambda network, hidden: loaded.logits(network, hidden).index_fill(1, silent, 50.0)
    policy = TokenPolicy(copied, max_tokens=6)
    made = rollout(policy)
    assert len(silent) > 3 and not torch.isin(kept(made).ids[made.decisions.decision_mask], silent).any()
    torch.testing.assert_close(rescored(policy, made), made.decisions.log_probs, rtol=0, atol=1e-5)
    greedy = policy.sample(Request(EVERY, list(range(5)), 1, 0))
    assert [one.text for one in greedy] == [
        one.text for one in TokenPolicy(loaded, max_tokens=6).sample(Request(EVERY, list(range(5)), 1, 0))
    ]


def test_silent_tokens_have_no_probability_in_scoring(loaded):
    policy = TokenPolicy(loaded, max_tokens=4)
    made = rollout(policy, [PICTURE], group_size=1)
    for token in sorted(loaded.suppress_tokens):
        kept(made).ids[0, 0] = token
        assert rescored(policy, made)[0, 0] == -torch.inf


def test_a_groups_completions_do_not_depend_on_its_place_in_the_batch(loaded):
    policy = TokenPolicy(loaded, max_tokens=6)
    order = [3, 0, 4, 2, 1]
    first = rollout(policy)
    second = policy.rollout(Request([EVERY[place] for place in order], order, 3, 3))
    alone = policy.rollout(Request([CLIP], [2], 3, 3))
    for new, place in enumerate(order):
        old, here = slice(3 * place, 3 * place + 3), slice(3 * new, 3 * new + 3)
        assert [one.text for one in first.outputs[old]] == [one.text for one in second.outputs[here]]
        width = min(first.decisions.log_probs.shape[1], second.decisions.log_probs.shape[1])
        pair = [made.decisions.log_probs[rows, :width] for made, rows in ((first, old), (second, here))]
        torch.testing.assert_close(*pair, rtol=0, atol=1e-5)
    assert [one.text for one in alone.outputs] == [one.text for one in first.outputs[6:9]]
    assert len({one.text for one in first.outputs}) > 10


def clip_of(seconds: float) -> Prompt:
    """Eight frames that last so long; the pictures are the same."""
    return asked("clip", video(8, 3, fps=8 / seconds, frames=8), "where is the circle ?")


def test_the_time_that_a_clip_takes_is_seen_equally_in_all_forwards(loaded):
    short, long = (loaded.encode([clip_of(seconds)]) for seconds in (2.0, 16.0))
    told = (short.positions.tolist(), short.ids.tolist()), (long.positions.tolist(), long.ids.tolist())
    assert told[0] != told[1]  # Qwen puts the time into positions, SmolVLM into words
    calls: list[tuple] = []
    scores = []
    for seconds in (2.0, 16.0):
        for share in (True, False):
            policy = token_policy_over(spying(loaded, "hidden", calls), max_tokens=4, share_prefix=share)
            calls.clear()
            made = rollout(policy, [clip_of(seconds), PICTURES], group_size=2)
            sampled = seen_places(calls, made)
            calls.clear()
            torch.testing.assert_close(rescored(policy, made), made.decisions.log_probs, rtol=0, atol=1e-5)
            assert seen_places(calls, made) == sampled
        ids = kept(made).ids[0][made.decisions.decision_mask[0]]
        scores.append([plain_log_probs(loaded, clip_of(seconds), ids) for seconds in (2.0, 16.0)])
    assert all((first - second).abs().max() > 1e-3 for first, second in scores)


def seen_places(calls: Sequence[tuple], made: Any) -> list[list[int]]:
    """All positions at which the first row was read, without the last token's, which only sampling may skip."""
    prompt = int(kept(made).context.real[0].sum())
    length = prompt + int(made.decisions.decision_mask[0].sum()) - 1
    places = torch.cat([positions[0] for _, _, _, positions, _, _ in calls], 1)
    padding = int((~kept(made).context.real[0]).sum())
    return places[:, padding : padding + length].tolist()


def test_a_prompt_that_is_too_long_is_refused_by_name_and_nothing_is_cut(name, folder, loaded):
    lengths = {prompt.id: loaded.prompt_length(prompt) for prompt in EVERY}
    exactly = load(name, folder, max_prompt_tokens=lengths["both"])
    assert exactly.encode([BOTH]).ids.shape[1] == lengths["both"]
    assert loaded.encode(EVERY).real.sum(1).tolist() == list(lengths.values())
    short = load(name, folder, max_prompt_tokens=lengths["both"] - 1)
    wanted = rf"prompt 'both' has {lengths['both']} tokens .* max_prompt_tokens={lengths['both'] - 1}; .*max_pixels"
    with pytest.raises(ValueError, match=wanted):
        rollout(TokenPolicy(short, max_tokens=2), [WORDS, BOTH])


def test_a_text_that_holds_a_mark_of_media_is_refused(name, loaded):
    marks = {"qwen_vl": ["<|image_pad|>", "<|vision_start|>"], "smolvlm": ["<image>", "<row_1_col_2>", "<global-img>"]}
    for mark in marks[name]:
        with pytest.raises(ValueError, match="forged"):
            loaded.encode([asked("forged", image(16, 16, 0), f"look {mark}")])


def test_features_that_do_not_fill_their_places_are_an_error(loaded):
    copied = dataclasses.replace(loaded)
    copied.features = lambda network, context: [rows[:-1] for rows in loaded.features(network, context)]
    with pytest.raises(ValueError, match=r"picture.*\d+"):
        rollout(TokenPolicy(copied, max_tokens=2), [PICTURE])


def test_shuffled_frames_are_answered_too_but_never_trained(loaded):
    policy = token_policy_over(loaded, max_tokens=4, contrast="shuffled_frames(fraction=0.5)")
    made = rollout(policy, [PICTURE, CLIP, BOTH], group_size=4)
    own, plain = made.decisions.origin == OWN, rollout(TokenPolicy(loaded, max_tokens=4), [PICTURE, CLIP, BOTH], 4)
    # Four rows of each of three prompts, and two more of each of the two that show a clip.
    assert own.sum() == 12 and (made.decisions.origin == CONTRAST).sum() == 4
    assert made.decisions.keys["prompt"][~own].tolist() == [1, 1, 2, 2]
    assert not made.decisions.loss_mask[~own].any() and made.decisions.decision_mask[~own, 0].all()
    assert [one.text for one in made.outputs[:12]] == [one.text for one in plain.outputs]
    context = kept(made).context
    assert context.positions.shape[0] == 5
    for ordered, shuffled, place in ((1, 3, 0), (2, 4, 1)):
        first, second = (pixels(context.media[row][place]) for row in (ordered, shuffled))
        assert first.shape == second.shape and not torch.equal(first, second)
    assert torch.equal(pixels(context.media[2][0]), pixels(context.media[4][0]))  # its picture stays
    assert all(prompt.meta["contrast"] == "shuffled_frames" for prompt in made.prompts[12:])


def test_contrasted_rows_are_outside_the_statistics(loaded, tmp_path):
    """The reward of shuffled clips is far from the others, and no advantage changes by it."""

    def told(shuffled: float) -> Any:
        return lambda prompts, outputs: [
            shuffled if "contrast" in prompt.meta else float(len(output.text))
            for prompt, output in zip(prompts, outputs, strict=True)
        ]

    found = []
    for shuffled in (0.0, 1000.0):
        policy = token_policy_over(dataclasses.replace(loaded), max_tokens=4, contrast="shuffled_frames(fraction=0.5)")
        policy.network = loaded.network
        state = {key: value.clone() for key, value in loaded.network.state_dict().items()}
        made = trainer(
            policy,
            tmp_path / str(shuffled),
            [CLIP, BOTH],
            reward=told(shuffled),
            advantages=recipe(),
            loss=LossRecipe.of("ppo(low=0.2, high=0.2)", "per_sample"),
        )
        batch = judged_batch(made)
        loaded.network.load_state_dict(state)
        assert not batch.loss_mask[batch.decisions.origin == CONTRAST].any()
        found.append(batch.advantages * batch.loss_mask)
    assert torch.equal(*found) and found[0].abs().max() > 0.5


@pytest.mark.parametrize("adapters", [0, 2])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_ratio_is_one_in_every_precision_while_the_weights_are_those_of_the_rollout(dtype, adapters, name, folder):
    """Five rows in one batch: a picture, several, a clip, texts."""
    model = load(name, folder, Training(dtype=dtype, lora_rank=adapters))
    policy = TokenPolicy(model, max_tokens=5)
    made = rollout(policy, EVERY)
    own = made.decisions.loss_mask
    gap = (rescored(policy, made, limit=1000) - made.decisions.log_probs)[own].abs().max()
    assert gap < (1e-5 if dtype == "float32" else 0.15)  # of sampling token by token in 8 or 11 bits


def test_a_row_is_read_in_a_batch_as_alone_and_positions_of_one_axis_would_be_seen(name, folder):
    """Weights of eight times the size, so positions matter; padding on the left."""
    model = load(name, folder)
    with torch.no_grad():
        for parameter in model.network.parameters():
            if parameter.dim() > 1:
                parameter *= 2
    together = model.encode(EVERY)

    def last(context, features):
        hidden, _ = model.hidden(model.network, context.ids, context.real, context.positions, features, None)
        return model.logits(model.network, hidden[:, -1])

    with torch.no_grad():
        batch = last(together, model.features(model.network, together))
        for row, prompt in enumerate(EVERY):
            alone = model.encode([prompt])
            torch.testing.assert_close(
                batch[row], last(alone, model.features(model.network, alone))[0], rtol=1e-4, atol=1e-4
            )
        if name == "qwen_vl":
            flat = dataclasses.replace(
                together, positions=(together.real.long().cumsum(1) - 1)[:, None].expand(-1, 3, -1)
            )
            assert (last(flat, model.features(model.network, flat)) - batch).abs().max() > 1e-2
