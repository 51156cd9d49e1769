"""Callbacks: when their hooks are called, what becomes of their numbers and state, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mmgrpo import train
from mmgrpo.rounds.callback import Callback, Callbacks, load_callback
from mmgrpo.types import Request
from mmgrpo.update import LossRecipe
from tests.building import first_number, trainer
from tests.toys import toy_policy, toy_prompts


class Watch(Callback):
    """Notes every hook, and returns numbers."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def attach(self, run) -> None:
        self.calls.append(f"attach {run.step}")

    def on_train_begin(self, run) -> None:
        self.calls.append(f"begin {run.step}")

    def on_request(self, run, request) -> Request:
        self.calls.append(f"request {request.round}")
        return request

    def on_rows(self, run, rows) -> dict[str, float]:
        self.calls.append(f"rows {rows.request.round}")
        return {"mine/rows": rows.count}

    def on_rollout_end(self, run, round_) -> dict[str, float]:
        self.calls.append(f"rollout {run.round}")
        return {"mine/samples": len(round_.reward_scores.values)}

    def on_step_end(self, run, metrics) -> dict[str, float]:
        self.calls.append(f"step {run.step}")
        return {"mine/twice": 2 * metrics["loss"]}

    def on_round_end(self, run, round_) -> None:
        self.calls.append(f"round {run.round}")

    def on_evaluate(self, run, title, evaluation) -> dict[str, float]:
        self.calls.append(title)
        return {"best": max(next(iter(evaluation.values.values())))}

    def on_train_end(self, run) -> None:
        self.calls.append("end")


class Count(Callback):
    """Counts steps, over resumed runs too."""

    def __init__(self, every: int = 1) -> None:
        self.every = every
        self.steps, self.weights = 0, torch.zeros(2)

    def on_step_end(self, run, metrics) -> None:
        self.steps, self.weights = self.steps + 1, self.weights + 1

    def state(self) -> int:
        return self.steps

    def tensors(self) -> dict[str, torch.Tensor]:
        return {"weights": self.weights}

    def load(self, state, tensors, step) -> None:
        if state is not None:
            self.steps, self.weights = state, tensors["weights"]


class Enough(Callback):
    """Ends a run after its second step."""

    steps = 0

    def on_step_end(self, run, metrics) -> None:
        self.steps = run.step

    def ended(self) -> str:
        return "enough" if self.steps >= 2 else ""

    def summary(self) -> dict[str, int]:
        return {"enough": self.steps}


def lines(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_hooks_are_called_in_their_order_and_their_numbers_stand_among_those_of_the_run(tmp_path):
    watch = Watch()
    settings = {"steps": 4, "updates": 2, "every": 2, "heldout": toy_prompts(2), "callbacks": [watch]}
    trainer(toy_policy(), tmp_path, toy_prompts(2), **settings).fit()
    rounds = [
        *("request 0", "rows 0", "rollout 0", "step 1", "step 2", "round 1", "step-000002"),
        *("request 1", "rows 1", "rollout 1", "step 3", "step 4", "round 2"),
    ]
    assert watch.calls == ["attach 0", "begin 0", "before", *rounds, "after", "end"]
    assert [line["mine/samples"] for line in lines(tmp_path)] == [8] * 4
    assert [line["mine/rows"] for line in lines(tmp_path)] == [8] * 4
    assert all(line["mine/twice"] == 2 * line["loss"] for line in lines(tmp_path))
    for title in ("before", "step-000002", "after"):
        written = json.loads((tmp_path / "evaluations" / f"{title}.json").read_text())
        assert written["metrics"] == {"best": max(written["values"]["reward"])}


class First(Callback):
    def on_step_end(self, run, metrics) -> dict[str, float]:
        return {"mine/first": 2.0}


class Second(Callback):
    def on_step_end(self, run, metrics) -> dict[str, float]:
        return {"mine/second": 3 * metrics["mine/first"]}


def test_a_callback_sees_what_earlier_ones_add_to_the_metrics_of_a_step(tmp_path):
    trainer(toy_policy(), tmp_path, toy_prompts(2), callbacks=[First(), Second()], steps=1).fit()
    assert [line["mine/second"] for line in lines(tmp_path)] == [6.0]


class Slow(Callback):
    """A tenth of the clip range, and steps that move nothing."""

    def at(self, step, stated):
        return replace(stated, loss=LossRecipe.of("ppo(low=0.02, high=0.02)", "per_sample"))

    def move(self, run, batch, rows) -> bool:
        return True


def test_a_callback_may_say_what_a_round_goes_by_and_move_the_weights(tmp_path):
    made = trainer(toy_policy(), tmp_path, toy_prompts(2), callbacks=[Slow()], steps=1)
    before = [parameter.detach().clone() for parameter in made.trained.values()]
    made.run_round()
    assert made.loss.clip_range == 0.02
    assert all(map(torch.equal, before, made.trained.values()))


class Halved(Callback):
    """Asks for half of the samples."""

    def on_request(self, run, request) -> Request:
        return replace(request, group_size=request.group_size // 2)


class Forgetful(Callback):
    def on_request(self, run, request):
        replace(request, group_size=2)


def test_a_callback_may_change_what_is_asked_of_the_policy(tmp_path):
    trainer(toy_policy(), tmp_path / "half", toy_prompts(2), callbacks=[Halved()], steps=1).fit()
    assert lines(tmp_path / "half")[0]["rollout/rows"] == 4
    with pytest.raises(ValueError, match="Forgetful.on_request.*None"):
        trainer(toy_policy(), tmp_path / "none", toy_prompts(2), callbacks=[Forgetful()], steps=1).fit()


def test_a_hook_that_nothing_calls_is_refused_with_the_name_that_was_meant():
    class Misspelled(Callback):
        def on_step_ended(self, run, metrics) -> None: ...

    with pytest.raises(ValueError, match="'Misspelled'.*'on_step_ended'.*'on_step_end'"):
        Callbacks([Misspelled()])


def test_a_run_without_callbacks_is_that_with_callbacks_that_only_look(tmp_path):
    settings = {"steps": 3, "lr": 1e-2}
    plain, watched = (
        trainer(toy_policy(), tmp_path / name, toy_prompts(2), callbacks=some, heldout=toy_prompts(2), **settings)
        for name, some in (("plain", []), ("watched", [Watch(), Count()]))
    )
    assert plain.fit() == watched.fit()
    for one, other in zip(plain.trained.values(), watched.trained.values(), strict=True):
        assert torch.equal(one, other)


def test_the_state_of_a_callback_comes_back_with_the_checkpoint_and_is_not_lost(tmp_path):
    made = trainer(toy_policy(), tmp_path, toy_prompts(2), callbacks=[Count()], steps=4)
    made.run_round(), made.run_round(), made.save()
    count = Count()
    again = trainer(toy_policy(), tmp_path, toy_prompts(2), callbacks=[count], steps=4)
    assert again.resume() and count.steps == 2 and count.weights.tolist() == [2, 2]
    again.fit()
    assert count.steps == 4
    with pytest.raises(ValueError, match=r"callbacks.*'Count'"):
        trainer(toy_policy(), tmp_path, toy_prompts(2), steps=4).resume()


def test_a_state_that_is_no_json_is_an_error_of_its_callback(tmp_path):
    class Wrong(Callback):
        def state(self):
            return torch.zeros(1)

    made = trainer(toy_policy(), tmp_path, toy_prompts(2), callbacks=[Wrong()])
    with pytest.raises(ValueError, match=r"Wrong\.state.*Tensor"):
        made.save()


def test_a_checkpoint_without_the_state_of_a_callback_leaves_it_as_it_is(tmp_path):
    made = trainer(toy_policy(), tmp_path, toy_prompts(2), steps=4)
    made.run_round(), made.save()
    count = Count()
    assert trainer(toy_policy(), tmp_path, toy_prompts(2), callbacks=[count], steps=4).resume() and count.steps == 0


def test_a_callback_may_end_a_run_and_adds_to_its_summary(tmp_path, capsys):
    made = trainer(toy_policy(), tmp_path, toy_prompts(2), callbacks=[Enough()], steps=9)
    assert made.fit()["enough"] == 2 and made.step == 2 and "enough" in capsys.readouterr().out
    assert (tmp_path / "checkpoints" / "step-000002").is_dir()


@pytest.mark.parametrize(
    ("number", "message"),
    [
        ({"loss": 1.0}, "'loss'.*already"),
        ({"mine": float("nan")}, "'mine'.*finite"),
        ({"mine": "many"}, "'many'.*'mine'.*number"),
    ],
)
def test_a_number_that_is_none_or_hides_one_of_the_run_is_an_error_of_its_hook(number, message, tmp_path):
    class Wrong(Callback):
        def on_step_end(self, run, metrics):
            return number

    made = trainer(toy_policy(), tmp_path, toy_prompts(2), callbacks=[Wrong()])
    with pytest.raises(ValueError, match=rf"Wrong\.on_step_end.*{message}"):
        made.fit()


def test_two_callbacks_of_one_class_need_names(tmp_path):
    one, other = Count(), Count()
    with pytest.raises(ValueError, match=r"callbacks.*'Count'.*name"):
        Callbacks([one, other])
    other.name = "second"
    assert len([*Callbacks([one, other])]) == 2
    other.name = "a/b"
    with pytest.raises(ValueError, match="callbacks.*'a/b'"):
        Callbacks([one, other])


@pytest.fixture
def own(tmp_path, monkeypatch) -> None:
    (tmp_path / "my_callbacks.py").write_text(
        "import mmgrpo\n\nclass Every(mmgrpo.Callback):\n    def __init__(self, every: int = 1):\n"
        "        self.every = every\n\ndef function(run):\n    pass\n"
    )
    monkeypatch.chdir(tmp_path)


def test_a_callback_is_named_by_its_module_and_class(own):
    made = load_callback("my_callbacks:Every(every=3)")
    assert isinstance(made, Callback) and made.every == 3  # type: ignore[attr-defined]
    for spec, message in [
        ("my_callbacks:Evry", "'Evry'.*'Every'"),
        ("my_callbacks:Every(evry=3)", r"'my_callbacks:Every\(evry=3\)'.*evry"),
        ("my_callbacks:function", "Callback"),
        ("my_callback:Every", "'my_callback'.*'my_callbacks'"),
    ]:
        with pytest.raises(ValueError, match=f"callbacks: .*{message}"):
            load_callback(spec)
    with pytest.raises(ValueError, match="callbacks: got 3"):
        load_callback(3)  # type: ignore[arg-type]


def test_callbacks_are_given_in_python_too(tmp_path):
    watch = Watch()
    rows = {"heldout": ["5"], "group_size": 4, "prompts_per_step": 2, "evaluation": {"batch_size": 4}}
    settings = {"output_dir": str(tmp_path), "trackers": [], "name": "run", "steps": 2, "callbacks": [watch]}
    result = train(toy_policy(), ["1", "2"], [first_number], **rows, **settings)
    assert watch.calls[-1] == "end" and result.metrics[0]["mine/samples"] == 8
    assert "callbacks:\n- Watch" in (result.folder / "config.yaml").read_text()
