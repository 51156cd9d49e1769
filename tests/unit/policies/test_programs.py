"""Samples of several calls: what each call reads, that a sample is one row, and what a program can do wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest
import torch
from accelerate import Accelerator

from mmgrpo.advantages.estimate import estimate
from mmgrpo.policies.chains import Chains
from mmgrpo.policies.programs import Ask, Given, Program, Programmed
from mmgrpo.policies.token import TokenPolicy
from mmgrpo.types import Batch, Prompt, Request, Rollout, Text
from mmgrpo.update import accumulate_gradients
from pipelines.text.causal_lm import LORA_TARGETS, CausalLm, network_of
from pipelines.training import Training, make_trainable
from tests.building import algorithm_blocks, recipe, rescored, token_policy_over
from tests.unit.policies.test_token_policy import PROMPTS, WORDS, kept, token_policy

pytest.importorskip("transformers")

RECORDS = frozenset({"turn", "state", "action", "call"})


def plan_and_write(prompt, seed, member):
    plan = yield Ask(f"say {prompt.text}", "planner")
    return (yield Ask(f"{prompt.text} {plan}", "writer"))


def once(prompt, seed, member):
    return (yield Ask(prompt.text))


def until_a(prompt, seed, member):
    """Asks for as long as the answer is not ``a``; the reward is minus the number of calls."""
    text, count = prompt.text, 0
    while not text.startswith("a") or not count:
        text, count = (yield Ask(f"say {text} d")), count + 1
    return Given(text, reward=-float(count), rewards=[float(number) for number in range(count)])


def programmed(run: Any = plan_and_write, calls: int = 4, trained: Sequence[str] = (), **settings: Any) -> TokenPolicy:
    return token_policy(program=Program(run, calls, tuple(trained)), **settings)


def words(text: Text, role: str = "") -> list[str]:
    """The turns of a role before the last."""
    return ["".join(map(str, turn.parts)) for turn in text.turns if role in ("", turn.role)]


def chained(made: Rollout) -> Chains:
    assert isinstance(made.steps, Chains)
    return made.steps


def said(policy: TokenPolicy, text: str) -> str:
    """The greedy answer of a plain policy over the same model."""
    plain = TokenPolicy(policy.model, max_tokens=policy.max_tokens)
    (one,) = plain.sample(Request([Prompt(text)], [0], 1, 3))
    assert isinstance(one, Text)
    return one.text


def rolled(
    policy: TokenPolicy,
    size: int = 8,
    slots: Sequence[int] = (0, 1, 2),
    records: frozenset[str] = RECORDS,
    prompts: Sequence[Prompt] = PROMPTS,
) -> Rollout:
    return policy.rollout(Request(prompts[: len(slots)], list(slots), size, 3, records=records))


def texts(made: Rollout) -> list[Text]:
    return [one for one in made.outputs if isinstance(one, Text)]


@pytest.fixture(scope="module")
def made() -> tuple[TokenPolicy, Rollout]:
    policy = programmed()
    return policy, rolled(policy)


def test_each_call_is_scored_behind_the_prompt_that_it_was_asked(made):
    """The oracle reads the words of every call alone, without padding, cache or batch."""
    policy, rollout = made
    decisions, chains = rollout.decisions, chained(rollout)
    assert len(chains.sequences.ids) == 48 and decisions.rows == 24
    turn, widths = decisions.fields["turn"], set()
    for row, output in enumerate(texts(rollout)):
        asked, (planned,) = words(output, "user"), words(output, "assistant")
        prompt = rollout.prompts[row]
        assert asked == [f"say {prompt.text}", f"{prompt.text} {planned}"]
        for number, question in enumerate(asked):
            ids = chains.ids[row][turn[row] == number]
            widths.add(len(ids))
            (read,) = policy.model.encode([Prompt(question)]).ids
            with torch.no_grad():
                logits = policy.network(torch.cat([read, ids])[None]).logits[0, len(read) - 1 : -1]
            wanted = torch.log_softmax(logits, -1).gather(1, ids[:, None])[:, 0]
            torch.testing.assert_close(decisions.log_probs[row][turn[row] == number], wanted, rtol=0, atol=1e-5)
            assert policy.model.decode(ids.tolist()) == (planned if number == 0 else output.text)
    assert len(widths) > 3  # calls of different lengths, one behind the other
    torch.testing.assert_close(
        rescored(policy, rollout)[decisions.loss_mask], decisions.log_probs[decisions.loss_mask], rtol=0, atol=1e-5
    )
    torch.testing.assert_close(rescored(policy, rollout, limit=3), rescored(policy, rollout), rtol=0, atol=1e-5)


def test_a_program_of_one_call_is_a_plain_completion():
    plain, policy = token_policy(), programmed(once)
    wanted, found = rolled(plain, records=frozenset()), rolled(policy)
    real = wanted.decisions.decision_mask
    assert torch.equal(chained(found).ids[real], kept(wanted).ids[real])
    for name in ("log_probs", "loss_mask", "decision_mask", "node", "origin"):
        assert torch.equal(getattr(found.decisions, name), getattr(wanted.decisions, name))
    assert [one.text for one in texts(found)] == [one.text for one in texts(wanted)]
    assert torch.equal(found.decisions.keys["prompt"], wanted.decisions.keys["prompt"])
    assert torch.equal(found.decisions.fields["truncated"], wanted.decisions.fields["truncated"])
    advantages = torch.randn(24, generator=torch.Generator().manual_seed(0))[:, None].expand(real.shape)
    gradients = []
    for one, made in ((plain, wanted), (policy, found)):
        one.network.zero_grad()
        weight = made.decisions.loss_mask * advantages
        for part in made.steps.split(made.decisions.loss_mask, 5):
            scores = one.score(made, cast(Any, part), frozenset({"log_probs"}))["log_probs"]
            (scores * weight[part.rows, part.positions]).sum().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in one.network.parameters() if p.grad is not None]))
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


def test_an_outcome_counts_once_however_many_calls_a_sample_has():
    """Rewards 1 for the first sample, 0 for three: the mean is over samples, and every call has its advantage."""
    made = rolled(programmed(until_a, 6), slots=(0,), size=4)
    counts = made.decisions.fields["turns"]
    assert counts.min() < counts.max()
    rewards = torch.tensor([[1.0], [0], [0], [0]])
    found = estimate(rewards, rewards > -1, torch.ones(1), made.decisions, recipe(scale="none"))
    mask = made.decisions.decision_mask
    assert torch.equal(found.advantages[0][mask[0]], torch.full((int(mask[0].sum()),), 0.75))
    for row in (1, 2, 3):
        assert torch.equal(found.advantages[row][mask[row]], torch.full((int(mask[row].sum()),), -0.25))


def test_what_is_recorded_of_calls(made):
    _, rollout = made
    fields, mask = rollout.decisions.fields, rollout.decisions.decision_mask
    turn, call, state, action = (fields[name] for name in ("turn", "call", "state", "action"))
    assert torch.equal(turn >= 0, mask) and not fields["step_rewards"].any()
    for number in (0, 1):
        here = turn == number
        for slot in (0, 1, 2):  # a module's call is the same in all samples of a prompt
            rows = rollout.decisions.keys["prompt"] == slot
            assert len(call[here & rows[:, None]].unique()) == 1
    assert len(call[mask].unique()) == 6
    for row, output in enumerate(texts(rollout)):
        first, second = (state[row][turn[row] == number].unique() for number in (0, 1))
        assert len(first) == len(second) == 1 and first != second
        same = [other for other, one in enumerate(texts(rollout)) if one.turns[1:3] == output.turns[1:3]]
        for other in same:
            if rollout.prompts[other] is rollout.prompts[row]:
                assert torch.equal(action[other][turn[other] == 0].unique(), action[row][turn[row] == 0].unique())
                assert torch.equal(state[other][turn[other] == 1].unique(), second)


def test_a_program_rewards_its_sample_and_its_calls():
    made = rolled(programmed(until_a, 6))
    fields = made.decisions.fields
    several = 0
    for row, output in enumerate(texts(made)):
        count, given = int(fields["turns"][row]), fields["step_rewards"][row]
        answered = [turn for turn in output.turns if turn.role == "assistant"]
        assert count == 1 + len(answered) and count <= 6
        if output.tool_reward is None:  # it was ended after six calls, and gave nothing
            assert count == 6 and not given.any()
            continue
        assert output.tool_reward == -count and output.text.startswith("a")
        several += count > 1
        for number in range(count):
            (places,) = (fields["turn"][row] == number).nonzero(as_tuple=True)
            assert given[places].tolist() == [0.0] * (len(places) - 1) + [float(number)]
    assert several > 2


def test_samples_do_not_depend_on_the_other_prompts(made):
    policy, rollout = made
    alone = policy.rollout(Request(PROMPTS[1:2], [1], 8, 3, records=RECORDS))
    rows = rollout.decisions.keys["prompt"] == 1
    assert [one.text for one in texts(alone)] == [one.text for one, own in zip(texts(rollout), rows) if own]
    assert torch.equal(alone.decisions.fields["state"][:, :1], rollout.decisions.fields["state"][rows][:, :1])


def of_its_own(prompt, seed, member):
    """Every sample of a prompt asks for another, as vehicles of a fleet do."""
    return (yield Ask(f"{prompt.text} {' '.join(WORDS[1 + (member >> bit & 1)] for bit in range(2))}"))


def test_members_of_a_group_may_ask_for_different_things():
    policy = programmed(of_its_own)
    made = rolled(policy, 4)
    asked = [words(one)[0] for one in texts(made)]
    assert asked[:4] == ["say a a a", "say a b a", "say a a b", "say a b b"]
    torch.testing.assert_close(
        rescored(policy, made)[made.decisions.loss_mask],
        made.decisions.log_probs[made.decisions.loss_mask],
        rtol=0,
        atol=1e-5,
    )


def adapted() -> TokenPolicy:
    network, tokenizer = network_of(WORDS)
    with torch.no_grad():
        for number, parameter in enumerate(network.parameters()):
            parameter += 0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))
    training = Training(lora_rank=2, lora_alpha=64.0)
    model = CausalLm(network, tokenizer, make_trainable(network, training, LORA_TARGETS))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.network.parameters():
            if parameter.requires_grad:
                parameter += torch.randn(parameter.shape, generator=generator)
    return token_policy_over(model, max_tokens=6, program=Program(plan_and_write, 4, ("planner",)))


def test_modules_that_are_not_trained_belong_to_the_world():
    """The writer is the network without its adapters, and its words are no decisions."""
    policy = adapted()
    made = rolled(policy)
    assert len(chained(made).sequences.ids) == 24
    for row, output in enumerate(texts(made)):
        mask = made.decisions.decision_mask[row]
        assert policy.model.decode(chained(made).ids[row][mask].tolist()) == words(output)[1]
        assert output.tokens > int(mask.sum()) and int(made.decisions.fields["turns"][row]) == 2
    differ = False
    for output in greedy(policy):
        asked, planned, again = words(output)
        assert said(policy, asked) == planned
        with policy.model.reference():
            assert said(policy, again) == output.text
        differ |= said(policy, again) != output.text
    assert differ


def greedy(policy: TokenPolicy) -> list[Text]:
    return [one for one in policy.sample(Request(PROMPTS, [0, 1, 2], 1, 3)) if isinstance(one, Text)]


def test_a_network_that_trains_itself_has_no_frozen_modules():
    with pytest.raises(ValueError, match=r"sampling.trained_modules.*planner.*model.lora_rank"):
        rolled(programmed(trained=["planner"]))
    policy = adapted()
    policy.walk = Programmed(Program(plan_and_write, 4, ("critic",)))
    with pytest.raises(ValueError, match=r"sampling.trained_modules.*critic.*plan_and_write.*'0'.*planner.*writer"):
        rolled(policy)


def nothing(prompt, seed, member):
    if member > 100:
        yield Ask("say")


def failing(prompt, seed, member):
    yield Ask("say")
    raise KeyError("plan")


def yielding(prompt, seed, member):
    yield "say"


def returning(prompt, seed, member):
    yield Ask("say")
    return 7


def rewarding(prompt, seed, member):
    yield Ask("say")
    return Given("a", rewards=[1.0, 2.0])


def infinite(prompt, seed, member):
    yield Ask("say")
    return Given("a", rewards=[float("nan")])


@pytest.mark.parametrize(
    ("run", "kind", "match"),
    [
        (nothing, ValueError, "sampling.program: nothing .*'0'"),
        (failing, RuntimeError, "sampling.program: failing .*'0'.*KeyError.*plan"),
        (yielding, ValueError, "sampling.program: yielding .*'say'.*'0'.*Ask"),
        (returning, ValueError, "sampling.program: returning .*'0'.* 7,.*Given"),
        (rewarding, ValueError, "sampling.program: rewarding .*'0'.* 2 rewards, expected 1"),
        (infinite, ValueError, "sampling.program: infinite .*'0'.*nan"),
    ],
)
def test_what_no_program_may_do_is_refused_by_name(run, kind, match):
    with pytest.raises(kind, match=match):
        rolled(programmed(run))


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("once", "sampling.program.*'once'.*module:function"),
        ("tests.unit.policies.test_programs:rolled", "sampling.program.*generator function"),
    ],
)
def test_what_is_no_program_is_refused_before_a_run(name, match):
    with pytest.raises(ValueError, match=match):
        Program.load(name, 4)
    assert Program.load("tests.unit.policies.test_programs:once", 4).run is once


@pytest.mark.parametrize(
    ("preset", "changes", "records"),
    [
        ("module_grpo", {"select": []}, {"turn", "call"}),  # ragged: all calls, however often a module is called
        ("agent_flow", {"terms": []}, set()),
    ],
)
def test_the_gradient_is_that_of_every_call_behind_its_own_prompt(preset, changes, records):
    """The update's gradient against - sum of advantage / (rows calls tokens) times that of each token's log-prob."""
    policy = programmed(until_a, 3)
    made = rolled(policy, records=frozenset({"turn", "call"}))
    rewards = torch.tensor([[float(one.text.count("a"))] for one in texts(made)])
    algorithm = algorithm_blocks(preset, **changes)
    blocks, loss = algorithm["advantages"], algorithm["loss"]
    result = estimate(rewards, rewards > -1, torch.ones(1), made.decisions, blocks)
    mask, turn, chains = result.loss_mask, made.decisions.fields["turn"], chained(made)
    assert loss.records == {"turn"} and blocks.records == records and result.advantages[mask].abs().sum() > 1
    policy.network.zero_grad()
    accumulate_gradients(
        policy,
        Batch([made], [torch.arange(24)], made.decisions, result.advantages, mask),
        torch.ones(24, dtype=torch.bool),
        loss,
        micro_batch_size=5,
        accelerator=Accelerator(cpu=True),
        on_policy=False,
    )
    found = torch.cat([one.grad.flatten() for one in policy.network.parameters() if one.grad is not None])
    policy.network.zero_grad()
    for row, output in enumerate(texts(made)):
        asked = words(output, "user")
        for number, question in enumerate(asked):
            here = turn[row] == number
            (read,), ids = policy.model.encode([Prompt(question)]).ids, chains.ids[row][here]
            logits = policy.network(torch.cat([read, ids])[None]).logits[0, len(read) - 1 : -1]
            log_probs = torch.log_softmax(logits, -1).gather(1, ids[:, None])[:, 0]
            (-(log_probs * result.advantages[row][here]).mean() / len(asked) / 24).backward()
    wanted = torch.cat([one.grad.flatten() for one in policy.network.parameters() if one.grad is not None])
    assert wanted.norm() > 0.01
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)
