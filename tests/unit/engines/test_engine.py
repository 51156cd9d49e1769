"""An engine draws with the trainer's weights, or nothing that it draws is trained."""

from __future__ import annotations

import copy
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest
import torch
from torch import nn

from mmgrpo.config.settings import Engine as Settings
from mmgrpo.engines.engine import (
    CHUNK,
    Drawn,
    Drift,
    Engine,
    EngineFailure,
    Forgotten,
    Lanes,
    Rules,
    Synchronized,
    fingerprint,
    gap_of,
    parameters,
    refuse_gap,
    wrong,
)
from mmgrpo.engines.sampler import OwnSampler
from mmgrpo.policies.exploring import sampling_metrics
from mmgrpo.policies.generation import Drawing, Generated
from mmgrpo.policies.token import TokenPolicy
from mmgrpo.policies.token_model import Query
from mmgrpo.types import Prompt, Request
from pipelines.text.causal_lm import toy
from tests.building import token_policy_over

pytest.importorskip("transformers")

WORDS = ["say", "a", "b", "c", "d"]
PROMPTS = [Prompt("say a", "0"), Prompt("say b c d a", "1"), Prompt("d", "2")]


def policy(seed: int = 0, layers: int = 2, **settings: Any) -> TokenPolicy:
    model: Any = toy(WORDS)
    if layers == 1:
        model.network.model.layers = model.network.model.layers[:1]
    shift(model.network, seed)
    return token_policy_over(model, max_tokens=6, **settings)


@torch.no_grad()
def shift(network: Any, seed: int) -> None:
    """What an update does: every weight moves, norms apart from each other."""
    for number, parameter in enumerate(network.parameters()):
        parameter += 0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed + number))


def drawing_with(trained: TokenPolicy, engine: Any, max_gap: float = 1e-4) -> TokenPolicy:
    """``trained``, whose rollouts the engine draws."""
    trained.draw_with(Synchronized(engine, lambda: parameters(trained.network), trained.model, max_gap=max_gap))
    return trained


def rolled(one: TokenPolicy, number: int = 0) -> Any:
    return one.rollout(Request(PROMPTS, [0, 1, 2], 4, seed=3 + number, round=number))


@dataclass
class Faulty:
    """An engine that loads as ``change`` says, or answers so."""

    inner: OwnSampler
    change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]] = dict
    answer: Callable[[Drawn], Drawn] = lambda one: one
    lies: bool = False
    """States the fingerprints that it was sent, whatever it holds, as an engine of another layout does."""
    name: str = "the engine"
    whole: bool = False
    form: str = "own"
    sent: Mapping[str, str] | None = None

    def fingerprints(self) -> Mapping[str, str]:
        return self.sent if self.lies and self.sent else self.inner.fingerprints()

    def load(self, tensors: Any, version: int) -> None:
        given = dict(tensors)
        self.sent = {
            **(self.sent or self.inner.fingerprints()),
            **{name: fingerprint(one) for name, one in given.items()},
        }
        self.inner.load(self.change(given).items(), version)

    def generate(self, asked: Any, rules: Rules, drawing: Drawing) -> list[list[Drawn]]:
        return [[self.answer(one) for one in row] for row in self.inner.generate(asked, rules, drawing)]

    def rest(self) -> None: ...

    def close(self) -> None: ...


def test_our_sampler_as_an_engine_draws_what_the_policy_itself_draws():
    alone, served = policy(), policy()
    drawing_with(served, OwnSampler(policy(seed=9)))
    for number in range(2):
        one, other = rolled(alone, number), rolled(served, number)
        assert torch.equal(one.steps.ids, other.steps.ids)
        assert torch.equal(one.decisions.log_probs, other.decisions.fields["sampler_log_probs"])
        torch.testing.assert_close(one.decisions.log_probs, other.decisions.log_probs, rtol=0, atol=1e-5)
        torch.testing.assert_close(
            one.decisions.fields["entropy"], other.decisions.fields["entropy"], rtol=0, atol=1e-5
        )
        assert 0 <= sampling_metrics(other.decisions, torch.zeros(12))["rollout/sampler_gap"] < 1e-5
        for one in (alone, served):
            shift(one.network, 50)


def one_forgotten(given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: one for name, one in given.items() if "layers.1.self_attn.o_proj" not in name}


def two_swapped(given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    first, second = (f"model.layers.{number}.input_layernorm.weight" for number in (0, 1))
    return {**given, **({first: given[second], second: given[first]} if first in given else {})}


def one_stale(given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    name = "model.layers.0.mlp.down_proj.weight"
    return {**given, **({name: given[name] - 1e-3} if name in given else {})}


def one_not_finite(given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: one * float("nan") if name.endswith("norm.weight") else one for name, one in given.items()}


@pytest.mark.parametrize("lies", [False, True], ids=["fingerprints", "log-probs"])
@pytest.mark.parametrize("change", [one_forgotten, two_swapped, one_stale, one_not_finite])
def test_a_sync_that_leaves_one_tensor_wrong_is_caught_before_anything_is_trained(change, lies):
    """By fingerprints; and by the log-probs of what was drawn, where an engine cannot say what it holds."""
    engine = Faulty(OwnSampler(policy()), lies=lies)
    trained = drawing_with(policy(), engine)
    rolled(trained)  # the same weights: nothing differs
    shift(trained.network, 70)
    engine.change = change
    with pytest.raises((Drift, EngineFailure, RuntimeError), match="nothing was trained|not finite"):
        rolled(trained, 1)
    engine.change = dict  # what failed is sent again
    shift(trained.network, 71)
    assert rolled(trained, 2).decisions.rows == 12


def test_a_tensor_that_no_sync_ever_brought_is_caught():
    """One that the engine names and the trainer does not, or the other way round: another model."""
    for own, other in ((2, 1), (1, 2)):
        trained = drawing_with(policy(layers=own), OwnSampler(policy(layers=other)))
        with pytest.raises(EngineFailure, match="layers.1"):
            rolled(trained)


def test_a_tensor_of_another_shape_is_named():
    with pytest.raises(EngineFailure, match=r"lm.*\[2\].*none of this name"):
        OwnSampler(policy()).load([("lm", torch.zeros(2))], 0)
    with pytest.raises(EngineFailure, match=r"norm.weight.*\[2\].*\[32\]"):
        OwnSampler(policy()).load([("model.norm.weight", torch.zeros(2))], 0)


@pytest.mark.parametrize("whole", [False, True])
def test_only_what_has_changed_is_sent_or_all_where_a_load_must_be_whole(whole):
    engine = Faulty(OwnSampler(policy()), whole=whole)
    trained, sizes = drawing_with(policy(), engine), []
    engine.change = lambda given: sizes.append(len(given)) or given
    rolled(trained)
    with torch.no_grad():
        trained.network.get_parameter("model.norm.weight").add_(1)
    rolled(trained, 1)
    assert sizes == [0, len([*parameters(trained.network)]) if whole else 1]


@pytest.mark.parametrize(
    "answer",
    [
        lambda one: replace(one, log_probs=[float("nan")] * len(one.ids)),
        lambda one: replace(one, log_probs=one.log_probs[:-1]),
        lambda one: replace(one, version=7),
        lambda one: replace(one, log_probs=[value - 0.1 for value in one.log_probs]),
    ],
    ids=["nan", "short", "version", "gap"],
)
def test_an_answer_that_cannot_be_trained_on_is_one_line(answer):
    trained = drawing_with(policy(), Faulty(OwnSampler(policy()), answer=answer))
    with pytest.raises(EngineFailure, match=r"rollout.engine: .*the engine") as caught:
        rolled(trained)
    assert "\n" not in str(caught.value)


RULES = Rules(frozenset({9}), frozenset({5}), frozenset({6}), frozenset({5}))


@pytest.mark.parametrize(
    ("ids", "reason"),
    [
        ([1, 9], ""),
        ([1, 2, 3], ""),
        ([], "0 tokens"),
        ([1, 2, 3, 4], "4 tokens"),
        ([1, 5, 9], "token 5"),
        ([6, 9], "token 6"),
        ([1, 6, 9], ""),
        ([9, 1, 2], "after the end"),
        ([1, 9, 2], "after the end"),
        ([1, 2], "without an end"),
    ],
)
def test_what_no_sampler_of_the_model_can_draw(ids, reason):
    found = wrong(Drawn(ids, [-1.0] * len(ids), 0), RULES, Drawing(0, 1.0, 3))
    assert (reason in found) if reason else not found


def test_a_nucleus_may_raise_log_probs_by_its_mass_and_no_more():
    """log 2 = 0.69 for top_p 0.5."""
    drawn, scored = torch.tensor([-1.0, -1.0, -1.0, -1.0]), torch.tensor([-1.0, -1.6, -2.0, -0.9])
    gap = gap_of(drawn, scored, 0.5)
    torch.testing.assert_close(gap, torch.tensor([0.0, 0.0, 1 - 0.6931472, 0.1]))
    assert gap_of(drawn, scored).tolist() == pytest.approx([0, 0.6, 1, 0.1])


def test_the_gap_of_a_round_is_its_mean():
    """.9 at one of three tokens: .3 on average."""
    excess = torch.tensor([0.0, 0.0, 0.9])
    refuse_gap("the engine", excess, 0.31, "token")
    with pytest.raises(Drift, match="the engine.*0.3 nats per token"):
        refuse_gap("the engine", excess, 0.29, "token")


def test_what_was_begun_is_drawn_in_turn():
    order: list[tuple[str, int]] = []
    gate = threading.Event()

    def generate(asked: Any, rules: Rules, drawing: Drawing) -> list[list[Drawn]]:
        order.append(("begin", drawing.seed))
        gate.wait(5 * (drawing.seed == 0))
        order.append(("end", drawing.seed))
        return []

    one = Synchronized(Mock(spec=Engine, generate=generate), dict, toy(WORDS), max_gap=1.0)
    one.version = 0
    context, query = one.model.encode(PROMPTS[:1]), Query(PROMPTS[0], 0, 1)
    for seed in range(3):
        one.begin(context, (), [query], Drawing(seed, 1.0, 3))
    threading.Timer(0.1, gate.set).start()
    one.settle()
    assert order == [(what, seed) for seed in range(3) for what in ("begin", "end")]


def test_what_is_compared_is_that_of_the_lane_that_drew_last():
    one, table = policy(), torch.zeros(1, 1)
    context, drawn = one.model.encode(PROMPTS[:1]), Generated(table.long(), table > 0, table, table, table)
    lanes = [Mock(spec=Synchronized, overlaps=False, draw=Mock(return_value=drawn)) for _ in range(2)]
    several = Lanes(lanes)
    for number, asked in ((1, 1), (2, 0), (3, 1)):
        several.draw(context, (), [], Drawing(0, 1.0, 3, round=number))
        several.compare(table, table, table > 0)
        assert [lane.compare.call_count for lane in lanes] == [lane.draw.call_count for lane in lanes]
        assert lanes[asked].compare.call_count == (number + 1) // 2


def test_a_fingerprint_sees_every_bit_its_place_its_shape_and_its_precision():
    one = torch.randn(70, 30, generator=torch.Generator().manual_seed(0))
    swapped, moved = one.clone(), one.clone()
    swapped[0], swapped[1] = one[1], one[0]
    moved[69, 29] = torch.nextafter(moved[69, 29], torch.tensor(9.0))
    others = [swapped, moved, one.T, one.half(), one.view(30, 70), torch.cat([one, one[:0]]).roll(1)]
    assert len({fingerprint(value) for value in [one, *others]}) == 7
    assert fingerprint(one.T.contiguous().T) == fingerprint(one)  # whatever its strides
    long = torch.zeros(2_500_000)
    ends = [long.clone() for _ in range(3)]
    ends[0][0], ends[1][-1], ends[2][CHUNK] = 1, 1, 1
    assert len({fingerprint(value) for value in [long, *ends]}) == 4


@pytest.mark.parametrize(
    "settings", [{"search": "beam"}, {"sampling_dtype": "bfloat16"}, {"divergence": True}, {"draw_batch_size": 2}]
)
def test_what_an_engine_cannot_draw_is_refused(settings):
    with pytest.raises(ValueError, match="rollout.engine"):
        drawing_with(policy(**settings), OwnSampler(policy()))


@pytest.mark.parametrize("url", [[], ["127.0.0.1:8800"]])
def test_a_served_engine_has_the_url_of_a_server(url):
    with pytest.raises(ValueError, match="rollout.url"):
        Settings(engine="served", url=url).check()


def test_vllm_draws_for_one_process_on_its_device():
    Settings(engine="vllm").check(1)
    with pytest.raises(ValueError, match=r"rollout\.engine.*vllm.*2"):
        Settings(engine="vllm").check(2)


# -- behind HTTP ------------------------------------------------------------------------------------------------------


def client(url: str, **settings: Any) -> Any:
    from mmgrpo.engines.served import Client

    return Client(url, **{"patience": 0.3, "pause": 0.1, **settings})


def test_a_served_engine_draws_what_the_policy_itself_draws(serve, monkeypatch):
    monkeypatch.setattr("mmgrpo.engines.served.PART", 3000)  # weights come in several parts
    alone, trained = policy(), policy()
    drawing_with(trained, client(serve(OwnSampler(policy(seed=9)))))
    for number in range(2):
        assert torch.equal(rolled(alone, number).steps.ids, rolled(trained, number).steps.ids)
        for one in (alone, trained):
            shift(one.network, 50)


def test_a_server_that_was_started_again_is_sent_the_weights_again(serve):
    alone, trained = policy(), policy()
    url = serve(OwnSampler(policy(seed=9)))
    drawing_with(trained, client(url, patience=20.0))
    rolled(trained)
    serve.stop()
    threading.Timer(0.5, lambda: serve(OwnSampler(policy(seed=8)), port=int(url.rpartition(":")[2]))).start()
    assert torch.equal(rolled(alone).steps.ids, rolled(trained).steps.ids)  # the run waits for it


def test_two_processes_of_a_run_share_a_server(serve):
    alone, url = policy(), serve(OwnSampler(policy(seed=9)))
    for trained in (policy(), policy()):
        drawing_with(trained, client(url, run="the run"))
        assert torch.equal(rolled(alone).steps.ids, rolled(trained).steps.ids)


def test_a_server_that_dies_is_slow_refuses_or_is_another_model_is_one_clear_line(serve):
    trained = drawing_with(policy(), client(serve(OwnSampler(policy()))))
    serve.stop()
    with pytest.raises(EngineFailure, match="rollout.patience"):
        rolled(trained)

    def late(one: Drawn) -> Drawn:
        threading.Event().wait(0.1)
        return one

    slow = drawing_with(policy(), client(serve(Faulty(OwnSampler(policy()), answer=late)), timeout=0.5))
    with pytest.raises(EngineFailure, match=r"rollout.timeout.*rollout.patience"):
        rolled(slow)
    with pytest.raises(EngineFailure, match="token"):
        client(serve(OwnSampler(policy()), token="a" * 20))
    other = drawing_with(policy(), client(serve(OwnSampler(policy(layers=1)))))
    with pytest.raises(EngineFailure, match="layers.1"):
        rolled(other)


@pytest.mark.slow
@pytest.mark.parametrize(("failures", "patience"), [(1, 60.0), (1000, 3.0)])
def test_a_server_that_fails_for_a_while_is_waited_for_and_its_reason_is_printed(failures, patience, serve, capsys):
    left = [failures]

    def answer(one: Drawn) -> Drawn:
        left[0] -= 1
        if left[0] >= 0:
            raise RuntimeError("CUDA error")
        return one

    alone, trained = policy(), policy()
    url = serve(Faulty(OwnSampler(policy()), answer=answer))
    drawing_with(trained, client(url, pause=0.01, patience=patience))
    if failures > 1:
        with pytest.raises(EngineFailure, match=r"500: RuntimeError: CUDA error.*rollout\.patience"):
            rolled(trained)
    else:
        assert torch.equal(rolled(alone).steps.ids, rolled(trained).steps.ids)
    assert "500: RuntimeError: CUDA error" in capsys.readouterr().err


def test_servers_that_are_none_or_want_another_token_are_refused_before_a_model_is_loaded(serve, tmp_path):
    from accelerate import Accelerator
    from fastapi import FastAPI

    from mmgrpo.api import make_trainer
    from mmgrpo.config.settings import config_class
    from mmgrpo.engines.served import refuse_servers, token_of
    from mmgrpo.family import families
    from mmgrpo.scoring.server import Running

    (tmp_path / "token").write_text("a" * 20 + "\n")
    url, token = serve(OwnSampler(policy()), token="a" * 20), token_of(str(tmp_path / "token"))
    refuse_servers(["http://127.0.0.1:1", url], token)  # the first may be starting
    owner = families()["causal_lm"]
    config = replace(config_class(owner.sections)(), rollout=Settings(engine="served", url=[url]))
    with pytest.raises(EngineFailure, match=r"rollout\.token_file"):
        make_trainer(config, owner, start := Mock(), ["exact"], Accelerator(cpu=True))
    assert not start.called
    with pytest.raises(FileNotFoundError, match=r"rollout\.token_file.*none"):
        token_of(str(tmp_path / "none"))
    other = Running(FastAPI(), "127.0.0.1", 0, 1.0)
    thread = threading.Thread(target=other.run, daemon=True)
    thread.start()
    with pytest.raises(EngineFailure, match=rf":{other.port} answers 404.*rollout\.url"):
        refuse_servers([f"http://127.0.0.1:{other.port}"], "")
    other.stop()
    thread.join()


def test_an_engine_without_weights_says_so():
    engine = OwnSampler(policy())
    with pytest.raises(Forgotten):
        engine.generate([], RULES, Drawing(0, 1.0, 3))


def test_a_query_is_sent_whole():
    from mmgrpo.engines.served import fields_of

    assert fields_of(Query(PROMPTS[0], 0, 2)).keys() == {one.name for one in fields(Query)}


def test_a_copy_of_tied_embeddings_is_made_anew_by_a_reload():
    """vLLM on a CPU multiplies by a copy that an output layer keeps of its weight."""
    from pipelines.vllm_engine import Accounted

    layer, table, other = nn.Linear(2, 3, bias=False), nn.Embedding(3, 2), nn.Linear(2, 3, bias=False)
    layer.weight, made = table.weight, []
    for one in (layer, other):
        one.cpu_linear = None  # type: ignore[assignment]
        one.quant_method = SimpleNamespace(process_weights_after_loading=made.append)  # type: ignore[assignment]
    model = nn.ModuleList([table, other, layer])
    model.load_weights = lambda weights: {name for name, _ in weights}  # type: ignore[assignment]
    reload = SimpleNamespace(reload_weights=lambda weights_iterator: model.load_weights(weights_iterator))
    worker: Any = SimpleNamespace(model_runner=SimpleNamespace(get_model=lambda: model), **vars(reload))
    assert Accounted.load_accounted(worker, [(name, one) for name, one in model.named_parameters()]) == []
    assert made == [layer]  # the others' copies are those that the reload wrote


# -- vLLM, as far as its calls go (tests/libraries/engines has the real one) -------------------------------------------


class StandIn:
    """``vllm.LLM`` as version 0.32 answers: fused tensors of its own names, reloads that may be partial."""

    def __init__(self, inner: OwnSampler, forgets: str = "") -> None:
        self.inner, self.forgets, self.calls = inner, forgets, []
        self.params: list[Any] = []
        self.loras: set[str] = set()
        self.adapted: Any = {name for name, _ in inner.policy.network.named_modules()}
        self.base: dict[str, torch.Tensor] = {}

    def collective_rpc(self, method: str, timeout: Any = None, args: Any = (), kwargs: Any = None) -> list[Any]:
        from pipelines.vllm_engine import Accounted

        manager = SimpleNamespace(get_adapter=lambda _: SimpleNamespace(loras=self.loras), modules=self.adapted)
        self.lora_manager = SimpleNamespace(_adapter_manager=manager)
        worker: Any = SimpleNamespace(model_runner=self, reload_weights=self.reload)
        return [getattr(Accounted, method)(worker, *args)]

    def add_lora(self, request: Any) -> None:
        """W + B A in the place of W."""
        from safetensors.torch import load_file

        given = load_file(f"{request.path}/adapter_model.safetensors")
        modules = [name.removeprefix("base_model.model.").removesuffix(".lora_A.weight") for name in given]
        self.loras = {name for name in modules if ".lora_" not in name}
        network = self.inner.policy.network
        for name in self.loras:
            up, down = (given[f"base_model.model.{name}.lora_{factor}.weight"] for factor in "BA")
            network.get_parameter(f"{name}.weight").data = self.base[f"{name}.weight"] + up @ down

    def get_model(self) -> Any:
        return self

    def named_parameters(self) -> Any:
        return dict(parameters(self.inner.policy.network)).items()

    def modules(self) -> Any:
        return self.inner.policy.network.modules()

    def load_weights(self, weights: Any) -> set[str]:
        given = {name: one for name, one in weights if not self.forgets or self.forgets not in name}
        try:
            self.inner.load(given.items(), 0)
        except EngineFailure as failure:
            raise ValueError(str(failure)) from failure
        return set(given)

    def reload(self, weights_iterator: Any) -> None:
        self.load_weights(weights_iterator)
        self.base = {name: one.detach().clone() for name, one in self.named_parameters()}

    @property
    def llm_engine(self) -> Any:
        return SimpleNamespace(reset_encoder_cache=lambda: None, add_lora=self.add_lora)

    def reset_prefix_cache(self) -> None:
        self.calls.append("reset_prefix_cache")

    def sleep(self, level: int) -> None:
        self.calls.append(f"sleep {level}")

    def wake_up(self, tags: Sequence[str]) -> None:
        self.calls.append(f"wake_up {tags[0]}")

    def generate(
        self, requests: Sequence[Any], params: Sequence[Any], use_tqdm: bool, lora_request: Any = None
    ) -> list[Any]:
        self.params, results = list(params), []
        for request, one in zip(requests, params, strict=True):
            ids, table = request["prompt_token_ids"], {}
            tokens: list[int] = []
            rows: list[Any] = []
            generator = torch.Generator().manual_seed(one.seed)
            while len(tokens) < one.max_tokens and not (tokens and tokens[-1] in one.stop_token_ids):
                with torch.no_grad():
                    logits = self.inner.policy.network(torch.tensor([ids + tokens])).logits[0, -1]
                for token, bias in (one.logit_bias or {}).items():
                    logits[token] += bias
                table = torch.log_softmax(logits / one.temperature, -1)
                token = int(torch.multinomial(table.exp(), 1, generator=generator))
                tokens.append(token)
                rows.append({token: SimpleNamespace(logprob=float(table[token]))})
            results.append(SimpleNamespace(outputs=[SimpleNamespace(token_ids=tokens, logprobs=rows)]))
        return results


def vllm_like(forgets: str = "", sleeps: bool = False, lora: Any = None) -> Any:
    from pipelines.vllm_engine import VllmEngine

    return VllmEngine(StandIn(OwnSampler(policy(seed=9)), forgets), SimpleNamespace, sleeps, lora=lora)


@pytest.mark.parametrize(
    ("settings", "given"),
    [
        ({}, {"tensor_parallel_size": 1, "quantization": None, "max_num_seqs": None, "enforce_eager": False}),
        ({"tensor_parallel": 2}, {"tensor_parallel_size": 2}),
        ({"quantization": "fp8"}, {"quantization": "fp8"}),
        ({"max_sequences": 64}, {"max_num_seqs": 64}),
        ({"media_per_prompt": 3}, {"limit_mm_per_prompt": {"image": 3, "video": 3}}),
        ({"memory": 0.7}, {"gpu_memory_utilization": 0.7}),
        ({"eager": True}, {"enforce_eager": True}),
        ({"sleep": False}, {"enable_sleep_mode": False}),
    ],
)
def test_settings_of_an_engine_reach_the_constructor_of_vllm(settings, given, monkeypatch):
    from mmgrpo.config.settings import config_class
    from mmgrpo.family import families
    from pipelines.vllm_engine import VllmEngine

    recorded: dict[str, Any] = {}
    fake = SimpleNamespace(__version__="0.32.0", LLM=lambda **given: recorded.update(given), SamplingParams=object)
    monkeypatch.setitem(sys.modules, "vllm", fake)
    for name in ("VLLM_ENABLE_V1_MULTIPROCESSING", "VLLM_NO_USAGE_STATS"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    config: Any = config_class(families()["qwen_vl"].sections)()
    config.rollout = Settings(engine="vllm", **settings)
    VllmEngine.of(config, "cuda:0")
    assert {name: recorded[name] for name in given} == given
    assert ("limit_mm_per_prompt" in recorded) == ("media_per_prompt" in settings)


@pytest.mark.parametrize(
    ("settings", "device", "words"),
    [
        ({"tensor_parallel": 3}, "cuda", r"rollout.tensor_parallel: got 3, expected at most 2"),
        ({"tensor_parallel": 2}, "cpu", r"rollout.tensor_parallel: got 2 .*device=cpu"),
        ({"quantization": "fp8"}, "cpu", r"rollout.quantization: got fp8 .*device=cpu"),
        ({}, "cuda:1", r"model.device: got cuda:1 .*CUDA_VISIBLE_DEVICES=1"),
    ],
)
def test_what_vllm_would_not_do_is_refused_before_it_starts(settings, device, words, monkeypatch):
    from pipelines.vllm_engine import check_cards

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ValueError, match=words):
        check_cards(Settings(engine="vllm", **settings), device)
    check_cards(Settings(engine="vllm", tensor_parallel=2, quantization="fp8"), "cuda:0")


def test_every_card_says_what_it_did_not_write_and_scales_of_8_bits_are_its_own():
    engine = vllm_like()
    once = engine.llm.collective_rpc
    engine.llm.collective_rpc = lambda *given, **named: [*once(*given, **named), ["of.the.second.card"]]
    with pytest.raises(EngineFailure, match=r"of\.the\.second\.card"):
        rolled(drawing_with(policy(), engine))
    engine = vllm_like()
    scaled = [*engine.llm.named_parameters(), ("model.layers.0.self_attn.q_proj.weight_scale", torch.ones(1))]
    engine.llm.named_parameters = lambda: scaled
    rolled(drawing_with(policy(), engine))


def test_vllm_draws_with_the_trainers_weights_ends_and_masks():
    trained, engine = policy(temperature=0.7), vllm_like(sleeps=True)
    drawing_with(trained, engine)
    for number in range(2):
        made = rolled(trained, number)
        gap = (made.decisions.fields["sampler_log_probs"] - made.decisions.log_probs).abs()
        assert float(gap.max()) < 1e-5
        shift(trained.network, 50)
    assert engine.llm.calls == [
        *("reset_prefix_cache", "sleep 2"),
        *("wake_up weights", "reset_prefix_cache", "wake_up kv_cache", "sleep 2"),
    ]
    one = engine.llm.params[0]
    assert (one.logprobs, one.ignore_eos, one.detokenize) == (0, True, False)
    assert len({several.seed for several in engine.llm.params}) == 12  # each sample has its own


@dataclass
class Adapters:
    """``vllm.lora.request.LoRARequest``."""

    name: str
    number: int
    path: str


def test_adapters_go_to_vllm_by_themselves_after_the_first_load():
    """alpha 3 and rank 2: B is sent times 1.5, and what is drawn is that of the trainer's network."""
    pytest.importorskip("peft")
    from functools import partial

    from pipelines.engines import apart
    from pipelines.lora import add_lora

    trained, engine = policy(), vllm_like(lora=Adapters)
    assert engine.form == "adapters" and not engine.whole
    adapters = add_lora(trained.network, 2, 3.0, ["q_proj", "down_proj"], 0)
    weights = partial(apart, trained.network, torch.float32)
    name = "model.layers.1.mlp.down_proj"
    trained.draw_with(Synchronized(engine, weights, trained.model, max_gap=1e-4))
    sizes, load = [], engine.load

    def counted(tensors: Any, version: int) -> None:
        pairs = list(tensors)
        sizes.append(len(pairs))
        load(pairs, version)

    engine.load = counted
    for number in range(3):
        with torch.no_grad():
            for one in adapters:
                one += 0.2
        rolled(trained, number)
        held, layer = dict(weights()), cast(Any, trained.network.get_submodule(name))
        assert torch.equal(held[f"{name}.lora_B.weight"], layer.lora_B["default"].weight * 1.5)
    assert sizes[1:] == [8, 8] and sizes[0] > 8  # A and B of two layers of two modules each
    engine.llm.adapted = {one for one in engine.llm.adapted if one != name}
    adapters[0].data += 1
    with pytest.raises(EngineFailure, match=rf"{name}.*rollout.lora=merged"):
        rolled(trained, 3)


@pytest.mark.parametrize(("rank", "places"), [(1, 1), (4, 8), (8, 8), (32, 32), (200, 256), (600, 600)])
def test_vllm_reserves_places_for_a_rank(rank, places):
    from pipelines.vllm_engine import rank_of

    assert rank_of(rank) == places


def test_a_part_of_vllms_tensors_that_was_not_written_is_named():
    """What vLLM itself accepts with a line in its log."""
    with pytest.raises(EngineFailure, match=r"1 of its tensors.*layers.0.input_layernorm"):
        rolled(drawing_with(policy(), vllm_like("0.input")))


def test_another_model_than_vllms_is_named():
    from pipelines.vllm_engine import line_of

    with pytest.raises(EngineFailure, match="another model"):
        rolled(drawing_with(policy(layers=1), vllm_like()))
    assert [line_of(AssertionError()), line_of(ValueError("one\ntwo"))] == ["AssertionError", "one"]


def test_runs_of_placeholders_are_one_each():
    from pipelines.vllm_engine import collapse_runs

    assert collapse_runs([5, 5, 1, 5, 5, 5, 2, 2, 7, 7, 5], frozenset({5, 7})) == [5, 1, 5, 2, 2, 7, 5]


def test_a_copy_of_an_engine_is_not_the_trained_network():
    trained, engine = policy(), OwnSampler(policy())
    drawing_with(trained, engine)
    before = copy.deepcopy(dict(trained.network.named_parameters()))
    rolled(trained)
    shift(engine.policy.network, 1)
    assert all(torch.equal(before[name], one) for name, one in trained.network.named_parameters())
