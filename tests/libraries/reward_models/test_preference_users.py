"""Heads for groups of users: who belongs to which head, and whether two groups are found again."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from mmgrpo.cli import train_reward
from mmgrpo.types import Image, Prompt, Text
from reward_models.evaluation.comparison import FIRST, SECOND, Comparison
from reward_models.preference import preference
from reward_models.preference_training import Examples, Fitting
from reward_models.preference_users import _of, assign, train_groups
from tests.libraries.reward_models.test_preference import DARK, HERE, LIGHT, PAIRS

# Of five users, the first three like what is light, the others what is dark; "e" errs once.
LIKES = {"a": FIRST, "b": FIRST, "c": FIRST, "d": SECOND, "e": SECOND}
HOW = Fitting("bradley_terry", epochs=30, lr=0.05, hidden=4)
VOTES = [Comparison(Prompt(str(n)), (LIGHT, DARK), LIKES[u], f"{u}{n}", user=u) for u in LIKES for n in range(4)]
VOTES.append(Comparison(Prompt("5"), (LIGHT, DARK), FIRST, "e5", user="e"))


def test_a_user_belongs_to_the_head_under_which_all_his_comparisons_are_most_likely():
    """User 0: .1 + .1 against 1 + 1; user 1: 2 + .2 against .1 + 2, though the first comparison says otherwise."""
    losses = torch.tensor([[0.1, 2.0, 0.1, 0.2], [1.0, 0.1, 1.0, 2.2]])
    assert assign(losses, torch.tensor([0, 1, 0, 1])).tolist() == [0, 0]
    assert assign(losses, torch.tensor([0, 1, 2, 1])).tolist() == [0, 0, 0]
    assert assign(losses[:, :2], torch.tensor([0, 1])).tolist() == [0, 1]
    assert assign(losses.flip(0)[:, :2], torch.tensor([0, 1])).tolist() == [1, 0], "heads change names"
    assert assign(torch.ones(2, 2), torch.tensor([0, 1])).tolist() == [0, 0], "of equal heads the first"


@pytest.mark.parametrize("seed", range(3))
def test_two_groups_of_opposite_users_are_found_again(seed):
    models, users = train_groups(VOTES, 2, 5, f"{HERE}:brightness", {}, replace(HOW, seed=seed))
    assert users["a"] == users["b"] == users["c"] != users["d"] == users["e"]
    light, dark = (models[users[name]] for name in ("a", "d"))
    for model, sign in ((light, 1), (dark, -1)):
        first, second = model(*model.features([Prompt("x")] * 2, [LIGHT, DARK], "cpu")).tolist()
        assert sign * (first - second) > 0
        assert model.description.std > 1e-3, "each is standardized over the outputs of all users"


def test_one_group_is_one_head_that_the_majority_decides():
    (model,), users = train_groups(VOTES, 1, 5, f"{HERE}:brightness", {}, HOW)
    first, second = model(*model.features([Prompt("x")] * 2, [LIGHT, DARK], "cpu")).tolist()
    assert set(users.values()) == {0} and first > second


def test_comparisons_without_users_and_more_groups_than_users_are_refused():
    with pytest.raises(ValueError, match="1: .*user"):
        train_groups(PAIRS, 2, 1, f"{HERE}:brightness", {}, HOW)
    with pytest.raises(ValueError, match="6.*groups.*5"):
        train_groups(VOTES, 6, 1, f"{HERE}:brightness", {}, HOW)
    with pytest.raises(ValueError, match="regression.*bradley_terry"):
        train_groups(VOTES, 2, 1, f"{HERE}:brightness", {}, replace(HOW, loss="regression"))


def test_as_many_groups_as_users_and_a_head_without_users_keeps_its_weights():
    both = [one for one in VOTES if one.user in "ad"]
    models, users = train_groups(both, 2, 3, f"{HERE}:brightness", {}, replace(HOW, epochs=20))
    assert sorted(users.values()) == [0, 1] and len(models) == 2
    alike = [one for one in VOTES if one.user in "ab"]
    models, users = train_groups(alike, 2, 3, f"{HERE}:brightness", {}, replace(HOW, epochs=5))
    untouched, _ = train_groups(alike, 2, 3, f"{HERE}:brightness", {}, replace(HOW, epochs=0))
    (number,) = set(users.values())
    for old, new in zip(untouched[1 - number].parameters(), models[1 - number].parameters(), strict=True):
        assert torch.equal(old, new)
    assert not torch.equal(untouched[number].head.layers[0].weight, models[number].head.layers[0].weight)


def test_rounds_end_when_no_user_changes_his_head():
    few, many = (
        train_groups(VOTES, 1, rounds, f"{HERE}:brightness", {}, replace(HOW, epochs=2))[0][0] for rounds in (1, 4)
    )
    assert all(torch.equal(*pair) for pair in zip(few.parameters(), many.parameters(), strict=True))


def test_comparisons_of_three_outputs_count_by_their_pairs():
    grey = Image(torch.full((3, 4, 4), 0.5))
    likes = {"a": (1.0, 2.0, 3.0), "b": (3.0, 2.0, 1.0)}
    votes = [Comparison(Prompt(u), (LIGHT, grey, DARK), ranks, u, user=u) for u, ranks in likes.items()]
    votes.append(Comparison(Prompt("2"), (LIGHT, DARK), FIRST, "2", user="a"))
    models, users = train_groups(votes, 2, 5, f"{HERE}:brightness", {}, HOW)
    assert users["a"] != users["b"]
    light, dark = models[users["a"]](*models[0].features([Prompt("x")] * 2, [LIGHT, DARK], "cpu")).tolist()
    assert light > dark


def longer(prompts, outputs, device):
    """Features of texts: their length."""
    return torch.tensor([[len(output.text) / 10] for output in outputs], device=device)


def test_the_command_writes_a_head_per_group_and_measures_it_on_its_own_users(tmp_path, capsys):
    rows = [
        {"prompt": f"{n}", "left": {"text": "long " * 4}, "right": {"text": "short"}, "vote_type": vote, "user": user}
        for user, vote in (("a", "leftvote"), ("b", "leftvote"), ("c", "rightvote"))
        for n in range(4)
    ]
    file = tmp_path / "votes.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in rows))
    train_reward.main(
        ["--data", f"votes:{file}", "--heldout", f"votes:{file}", "--features", f"{__name__}:longer"]
        + ["--user-groups", "2", "--epochs", "40", "--lr", "0.05", "--loss", "bradley_terry", "--hidden", "4"]
        + ["--device", "cpu", "--output", str(tmp_path / "heads")]
    )
    users = json.loads((tmp_path / "heads" / "users.json").read_text())
    assert users["a"] == users["b"] != users["c"]
    assert capsys.readouterr().out.count("accuracy 1.000") == 2
    outputs = [Text("long " * 4), Text("short")]
    for user, sign in (("a", 1), ("c", -1)):
        first, second = preference([Prompt("1")] * 2, outputs, str(tmp_path / "heads" / f"group-{users[user]}"))
        assert sign * (first - second) > 0


def test_the_comparisons_of_some_users_are_their_own():
    features = (torch.arange(6.0)[:, None],)
    given = Examples(features, torch.tensor([0, 2, 4]), torch.tensor([1, 3, 5]), torch.tensor([1.0, 0, -1]), None)
    of = _of(given, torch.tensor([0, 2]))
    assert (of.first.tolist(), of.second.tolist(), of.human.tolist()) == ([0, 4], [1, 5], [1, -1])
    assert of.features is features and of.ratings is None
