"""What a judge does with rewards: one value per output, failures that stay failures."""

from __future__ import annotations

import math
import threading
import warnings

import numpy as np
import pytest
import torch

from mmgrpo.rewards import scorer
from mmgrpo.scoring import RewardScores, Scorer, begin_scoring, mean_of_valid, score_outputs
from mmgrpo.scoring.background import begin
from mmgrpo.scoring.isolation import RewardFailure, call_reward, column, column_or_nan, copy_value, score_column
from mmgrpo.types import Image, Media, Prompt, Text, Turn

PROMPTS = [Prompt("one", "1"), Prompt("two", "2"), Prompt("three", "3")]
OUTPUTS = [Text("a"), Text("bb"), Text("ccc")]


def length(prompts, outputs):
    return [len(output.text) for output in outputs]


def test_every_reward_is_a_column_in_the_order_of_the_scorers():
    reward_scores = score_outputs(
        [Scorer("length", length), Scorer("place", lambda p, o: [0.5, 1, 2], 0.0)], PROMPTS, OUTPUTS
    )
    assert reward_scores.values.tolist() == [[1, 0.5], [2, 1], [3, 2]]
    assert reward_scores.valid.all() and reward_scores.values.dtype == torch.float32


def test_a_reward_is_given_the_prompt_of_each_output():
    seen = []

    def pairs(prompts, outputs):
        seen.extend((prompt.id, output.text) for prompt, output in zip(prompts, outputs, strict=True))
        return [0.0] * len(outputs)

    score_outputs([Scorer("pairs", pairs)], PROMPTS, OUTPUTS)
    assert seen == [("1", "a"), ("2", "bb"), ("3", "ccc")]


@pytest.mark.parametrize("values", [[True, False, True], np.array([1.0, 0.0, 1.0]), torch.tensor([1, 0, 1]), (1, 0, 1)])
def test_anything_that_is_a_number_per_output_will_do(values):
    assert score_outputs([Scorer("any", lambda p, o: values)], PROMPTS, OUTPUTS).values[:, 0].tolist() == [1, 0, 1]


@pytest.mark.parametrize("failure", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_no_finite_number_is_invalid_and_means_nothing(failure):
    reward_scores = score_outputs([Scorer("some", lambda p, o: [1.0, failure, 3.0])], PROMPTS, OUTPUTS)
    assert reward_scores.valid[:, 0].tolist() == [True, False, True]
    assert reward_scores.values[:, 0].tolist() == [1, 0, 3]


@pytest.mark.parametrize("weight", [1.0, 0.0])
def test_none_abstains_and_nan_fails(weight):
    made = score_outputs([Scorer("some", lambda p, o: [None, math.nan, 3.0], weight)], PROMPTS, OUTPUTS)
    assert made.abstentions.tolist() == [[True], [False], [False]]
    assert made.failed.tolist() == [[False], [True], [False]]
    assert made.valid.tolist() == [[False], [False], [True]] and made.values.tolist() == [[0], [0], [3]]
    assert mean_of_valid(made, 0) == (3.0, 0.0, 1)


@pytest.mark.parametrize("count", [0, 2, 4])
def test_another_number_of_values_than_outputs_stops_the_run_by_name(count):
    with pytest.raises(ValueError, match=f"'few'.*{count}.*3"):
        score_outputs([Scorer("length", length), Scorer("few", lambda p, o: [0.0] * count)], PROMPTS, OUTPUTS)


def test_a_reward_that_raises_is_named_with_the_first_prompt_and_the_reason():
    def broken(prompts, outputs):
        raise OSError("server gone")

    with pytest.raises(RuntimeError, match="'far'.*3.*'one'.*OSError: server gone") as failure:
        score_outputs([Scorer("far", broken)], PROMPTS, OUTPUTS)
    assert isinstance(failure.value.__cause__, OSError)


def test_values_that_are_no_numbers_are_named_too():
    with pytest.raises(ValueError, match="'words'.*'good'.*0"):
        score_outputs([Scorer("words", lambda p, o: ["good", "bad", "good"])], PROMPTS, OUTPUTS)  # type: ignore


def test_statistics_of_a_reward_are_over_what_could_be_scored():
    reward_scores = RewardScores(torch.tensor([[1.0], [0.0], [3.0]]), torch.tensor([[True], [False], [True]]))
    mean, std, failed = mean_of_valid(reward_scores, 0)
    assert (mean, std, failed) == (2, 1, 1)  # of 1 and 3: mean 2, population std 1


def test_statistics_of_nothing_are_no_numbers():
    mean, std, failed = mean_of_valid(RewardScores(torch.zeros(2, 1), torch.zeros(2, 1, dtype=torch.bool)), 0)
    assert math.isnan(mean) and math.isnan(std) and failed == 2


def test_a_single_value_is_its_own_mean_and_nothing_warns_of_none():
    one = RewardScores(torch.tensor([[3.0], [0.0]]), torch.tensor([[True], [False]]))
    assert mean_of_valid(one, 0) == (3.0, 0.0, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mean_of_valid(RewardScores(torch.zeros(2, 1), torch.zeros(2, 1, dtype=torch.bool)), 0)


def test_values_have_32_bits_whatever_torch_is_told():
    torch.set_default_dtype(torch.float64)
    try:
        found = score_outputs([Scorer("large", lambda p, o: [1.0, 1e39, 2.0])], PROMPTS, OUTPUTS)
    finally:
        torch.set_default_dtype(torch.float32)
    assert found.values.dtype == torch.float32 and found.valid[:, 0].tolist() == [True, False, True]


def test_a_reward_without_weight_may_fail_and_one_with_a_weight_may_not():
    def failing(prompts, outputs):
        raise OSError("a server of its own")

    with pytest.warns(UserWarning, match="'logged'.*0.*batch.*3"):
        found = score_outputs([Scorer("logged", failing, 0.0), Scorer("length", length)], PROMPTS, OUTPUTS)
    assert found.valid.tolist() == [[False, True]] * 3 and found.values.tolist() == [[0, 1], [0, 2], [0, 3]]
    with pytest.raises(RuntimeError, match="'trained'"):
        score_outputs([Scorer("trained", failing, -0.5)], PROMPTS, OUTPUTS)


def test_what_is_computed_elsewhere_does_not_hold_up_the_end_of_the_program():
    assert begin(lambda: threading.current_thread().daemon)() is True


def test_a_reward_that_nobody_vouches_for_is_given_copies_of_tensors():
    output, seen = Image(torch.zeros(3, 1, 1)), []

    def note(prompts, outputs):
        seen.append(outputs[0].pixels)
        return [1.0]

    call_reward(note, PROMPTS[:1], [output])
    call_reward(note, PROMPTS[:1], [output], trusted=True)
    assert seen[0] is not output.pixels and seen[1] is output.pixels


def test_a_reward_counts_once_unless_told_otherwise():
    one = Scorer("length", length)
    assert (one.weight, one.rates, one.annotate, one.trusted) == (1.0, (), None, False)


def test_a_whole_number_beyond_all_floats_is_infinite_with_its_sign():
    assert column([10**400, -(10**400), 3], 3) == [math.inf, -math.inf, 3.0]


def test_a_reward_of_this_process_is_called_by_whoever_waits_and_one_elsewhere_at_once():
    threads = {}

    def note(name):
        return lambda prompts, outputs: (threads.update({name: threading.current_thread()}), [1.0])[1]

    begun = threading.Event()

    def far(prompts, outputs):
        begun.set()
        return note("far")(prompts, outputs)

    finish = begin_scoring([Scorer("near", note("near")), Scorer("far", far, elsewhere=True)], PROMPTS[:1], OUTPUTS[:1])
    assert begun.wait(30) and "near" not in threads
    assert finish().values.tolist() == [[1, 1]]
    assert threads["near"] is threading.current_thread() is not threads["far"]


def test_a_reward_without_weight_warns_once_for_each_reason_and_name():
    def failing(reason):
        def reward(prompts, outputs):
            raise OSError(reason)

        return reward

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore", ResourceWarning)  # of files that other tests have left to the collector
        warnings.simplefilter("always", UserWarning)
        for name, reason in (("x", "once"), ("x", "once"), ("x", "twice"), ("y", "once"), ("y", "once")):
            [first, *_] = column_or_nan(f"warned {name}", failing(reason), PROMPTS, OUTPUTS, True, False)
            assert math.isnan(first)  # type: ignore
    assert [str(one.message).partition(" has")[0] for one in caught] == [
        *2 * ["reward 'warned x'"],
        "reward 'warned y'",
    ]
    assert "could not score a batch of 3 outputs; the run goes on without these values: OSError: once" in str(
        caught[0].message
    )


def test_a_device_that_was_set_before_is_set_afterwards_and_none_is_set_where_none_was():
    def moves(prompts, outputs):
        torch.set_default_device("meta")
        return [1.0]

    def comes_home(prompts, outputs):
        torch.set_default_device("cpu")
        return [1.0]

    call_reward(moves, PROMPTS[:1], OUTPUTS[:1])
    assert torch.utils._device.CURRENT_DEVICE is None, "not the CPU by name, which slows every call of torch"  # type: ignore
    torch.set_default_device("meta")
    try:
        call_reward(comes_home, PROMPTS[:1], OUTPUTS[:1])
        assert torch.get_default_device().type == "meta"
    finally:
        torch.set_default_device(None)


@pytest.mark.parametrize(
    "value", [np.complex64(1), np.str_("1"), np.array([1.0]), np.array("1"), torch.tensor([1.0]), "1", 1j]
)
def test_what_is_no_real_number_is_refused_also_where_python_would_convert_it(value):
    with pytest.raises(ValueError, match="output 1"):
        score_outputs([Scorer("odd", lambda p, o: [0.5, value, 1.0])], PROMPTS, OUTPUTS)


def test_prompts_are_copied_with_their_media_unless_the_reward_is_trusted():
    picture, seen = Image(torch.zeros(3, 1, 1)), []
    shown = Prompt("p", answer=[1, (2, [3])], turns=(Turn("user", (Media("image", picture),)),))

    def note(prompts, outputs):
        seen.append((prompts[0].media[0].source.pixels, prompts[0].answer))
        return [1.0]

    for trusted in (False, True):
        call_reward(note, [shown], OUTPUTS[:1], trusted)
    (own, answer), (same, other) = seen
    assert own is not picture.pixels and same is picture.pixels
    for one in (answer, other):  # what Python alone could change is copied for all
        assert one == shown.answer and one is not shown.answer and one[1][1] is not shown.answer[1][1]


def test_what_was_one_object_is_one_in_the_copy():
    picture = torch.zeros(2)
    first, second = copy_value([picture, picture])
    assert first is second and first is not picture


def test_a_reward_of_another_process_is_given_prompts_and_outputs_without_copies():
    prompt, output, seen = Prompt("p", answer=[1]), Image(torch.zeros(3, 1, 1)), []

    def note(prompts, outputs):
        seen.append((prompts[0] is prompt, outputs[0] is output))
        return [1.0]

    for score in (score_column, column_or_nan):
        for elsewhere in (False, True):
            assert score("r", note, [prompt], [output], True, elsewhere) == [1.0]
    assert seen == [(False, False), (True, True)] * 2


def test_a_picture_that_was_made_for_inference_can_be_scored():
    with torch.inference_mode():
        picture = Image(torch.ones(3, 1, 1))
    assert call_reward(lambda p, o: [float(o[0].pixels.sum())], PROMPTS[:1], [picture], True) == [3.0]


def test_a_trusted_reward_that_changes_what_it_is_given_is_an_error():
    def changes(prompts, outputs):
        outputs[0].pixels.add_(1)
        return [1.0]

    picture = Image(torch.zeros(3, 1, 1))
    with pytest.raises(RewardFailure, match="in place"):
        call_reward(changes, PROMPTS[:1], [picture], True)
    assert call_reward(changes, PROMPTS[:1], [Image(torch.zeros(3, 1, 1))]) == [1.0]


def test_a_failure_without_prompts_is_told_without_one():
    def broken(prompts, outputs):
        raise OSError("gone")

    with pytest.raises(RuntimeError, match="'far'.*batch.*0.*OSError: gone"):
        score_outputs([Scorer("far", broken)], [], [])


@pytest.mark.parametrize(
    "values",
    [
        torch.tensor([1j] * 3),
        np.array([1j] * 3),
        np.array(["a"] * 3),
        torch.zeros(3, 1),
        np.zeros((3, 1)),
        np.zeros(()),
    ],
)
def test_an_array_holds_one_real_number_for_each_output(values):
    with pytest.raises(ValueError, match=r"3.*shape \[3\]"):
        score_outputs([Scorer("odd", lambda p, o: values)], PROMPTS, OUTPUTS)
    mixed = np.array([1, True, 0.5], dtype=object)
    assert score_outputs([Scorer("odd", lambda p, o: mixed)], PROMPTS, OUTPUTS).values[:, 0].tolist() == [1, 1, 0.5]  # type: ignore


def test_an_error_of_a_reward_names_the_line_of_its_file(tmp_path, monkeypatch, copied):
    code = "def first(prompts, outputs):\n    return list(map(measure, outputs))\n\n\n"
    (tmp_path / "broken.py").write_text(code + "def measure(one):\n    return one.lenght\n")
    monkeypatch.chdir(tmp_path)
    for process in (False, True):
        made = scorer(f"broken:first(process={process})")
        with pytest.raises(RuntimeError, match=r"'first'.*lenght.*broken\.py:6"):
            score_outputs([made], [Prompt("?")], [Text("a")])
