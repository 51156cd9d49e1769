"""A language model without media: what it refuses, and what its tokenizer leaves open."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from mmgrpo.config.reading import load_yaml, read_config, write_yaml
from mmgrpo.config.settings import config_class
from mmgrpo.family import families
from mmgrpo.policies.beam_search import BeamSearch
from mmgrpo.policies.token import TokenPolicy
from mmgrpo.policies.walks import Completion
from mmgrpo.types import Prompt, Request, Turn
from pipelines import text
from pipelines.text import causal_lm
from pipelines.training import Training, checkpoint_layers
from tests.building import load
from tests.tiny import maker, tiny_checkpoint
from tests.tiny.causal_lm import KINDS


@pytest.fixture(scope="module")
def folder() -> str:
    return tiny_checkpoint(maker("causal_lm"))


def test_a_prompt_that_is_too_long_is_refused_and_not_cut(folder):
    model = load(causal_lm, folder, max_prompt_tokens=3)
    assert model.encode([Prompt("how many is")]).ids.shape == (1, 3)
    with pytest.raises(ValueError, match="'7'.*4.*max_prompt_tokens=3"):
        model.encode([Prompt("how many is are", "7")])
    assert model.prompt_length(Prompt("how many is are")) == 4
    assert load(causal_lm, folder).encode([Prompt("is " * 200)]).ids.shape == (1, 200)


def test_padding_is_on_the_left_and_has_no_position(folder):
    context = load(causal_lm, folder).encode([Prompt("how many is"), Prompt("red")])
    assert context.real.tolist() == [[True] * 3, [False, False, True]]
    assert context.positions[:, 0].tolist() == [[0, 1, 2], [0, 0, 0]]


def test_a_tokenizer_without_padding_pads_with_its_end(folder):
    model = load(causal_lm, folder)
    assert model.tokenizer.pad_token_id is None and model.pad_id == model.tokenizer.eos_token_id
    model.tokenizer.pad_token = "<pad>"
    again = causal_lm.CausalLm(model.network, model.tokenizer, model.reference)
    assert again.pad_id == 0 and again.suppress_tokens == {0}
    assert (again.dtype, again.max_prompt_tokens, again.checkpointing) == (torch.float32, 0, False)


def test_precision_and_checkpointing_are_those_of_the_training(folder):
    model = load(causal_lm, folder, Training(dtype="bfloat16", gradient_checkpointing=True))
    assert model.dtype == torch.bfloat16 and model.checkpointing and not model.network.training


def test_the_seed_of_a_policy_is_that_of_its_adapters(folder):
    seeds = (7, 8, 7)
    made = [text.policy(folder, seed=seed, lora_rank=2, max_tokens=2) for seed in seeds]
    assert tuple(policy.settings.config.seed for policy in made) == seeds
    first, other, same = (
        [value for name, value in policy.network.named_parameters() if "lora_A" in name] for policy in made
    )
    assert all(torch.equal(*pair) for pair in zip(first, same, strict=True))
    assert not any(torch.equal(*pair) for pair in zip(first, other, strict=True))


def test_a_conversation_is_written_by_the_template_of_the_tokenizer(folder):
    model = load(causal_lm, folder)
    model.tokenizer.chat_template = "how {{ messages[0].content }}"
    model.set_up({})
    assert model.encode([Prompt("red")]).ids.tolist() == [model.tokenizer("how red")["input_ids"]]


def test_the_search_of_the_settings_is_that_of_the_policy(folder):
    walks = [text.policy(folder, search=name, max_tokens=2).walk for name in ("sample", "beam")]
    assert [type(one) for one in walks] == [Completion, BeamSearch]


def test_layers_recompute_in_evaluation_mode(folder):
    network = load(causal_lm, folder).network.train()
    checkpoint_layers(network, False)
    assert not any(module.training for module in network.modules())


@pytest.fixture(scope="module")
def kinds() -> dict[str, str]:
    """A checkpoint of each kind of published template and tokenizer."""
    return {kind: tiny_checkpoint(maker("causal_lm"), kind) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_the_prompt_of_a_published_kind_holds_the_words_of_its_row(kind, kinds):
    model = load(causal_lm, kinds[kind])
    context = model.encode([Prompt("how many red"), Prompt("is the blue", turns=(Turn("user", ("is the ", "blue")),))])
    for row, words in ((0, "how many red"), (1, "is the blue")):
        ids = context.ids[row][context.real[row]].tolist()
        text = model.tokenizer.decode(ids)
        assert words in text and "type" not in text and "<unk>" not in text
        assert ids.count(model.tokenizer.bos_token_id) == (model.tokenizer.bos_token is not None)
        assert model.prompt_length(Prompt(words)) == len(ids)
    assert context.prefilled == ["<think>\n" if kind == "r1" else ""] * 2


@pytest.mark.parametrize("kind", KINDS)
def test_values_of_a_published_generation_config_change_no_sampling(kind, kinds):
    """Temperature 0.1, top_k 1 and the penalty of repetitions are those of generate(), not of the policy."""
    policy = TokenPolicy(load(causal_lm, kinds[kind]), max_tokens=6)
    made = policy.rollout(Request([Prompt("how many red"), Prompt("blue")], [0, 1], 8, seed=0))
    decisions = made.decisions
    assert len({output.text for output in made.outputs}) > 4
    assert {output.prefilled for output in made.outputs} == {"<think>\n" if kind == "r1" else ""}
    dense = torch.zeros_like(decisions.log_probs)
    for part in made.steps.split(decisions.loss_mask, 7):
        dense[part.rows, part.positions] = policy.score(made, part, frozenset({"log_probs"}))["log_probs"].detach()
    own = decisions.loss_mask
    torch.testing.assert_close(dense[own], decisions.log_probs[own], rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_the_embedding_beyond_the_tokenizer_are_never_sampled(kind, kinds):
    model = load(causal_lm, kinds[kind])
    rows: Any = model.network.get_output_embeddings()
    beyond = set(range(len(model.tokenizer), rows.weight.shape[0]))
    assert len(beyond) == 8 and beyond <= model.suppress_tokens
    assert not model.suppress_tokens & model.end_ids
    assert (model.tokenizer.pad_token_id in {None, *model.end_ids, *model.suppress_tokens}) and model.pad_id >= 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_completion_that_ends_in_any_of_the_ends_has_ended(kind, kinds):
    model = load(causal_lm, kinds[kind])
    own = KINDS[kind]
    assert {model.tokenizer.get_vocab()[end] for end in (*own.ends, own.end)} <= model.end_ids
    assert model.spell("yes")[-1] == (model.turn_end if own.template else model.tokenizer.eos_token_id)


def test_arguments_of_the_template_reach_it(kinds):
    """Qwen3 without thinking: an empty thought is prefilled, and known to the rewards."""
    model = load(causal_lm, kinds["qwen3"], template={"enable_thinking": False})
    context = model.encode([Prompt("how many")])
    assert model.tokenizer.decode(context.ids[0]).endswith("<think> </think>")
    assert context.prefilled == ["<think>\n\n</think>\n\n"]
    assert load(causal_lm, kinds["qwen3"]).encode([Prompt("how many")]).prefilled == [""]
    with pytest.raises(ValueError, match=r"model\.template.*'thinking'"):
        load(causal_lm, kinds["qwen3"], template={"thinking": False})


def test_a_conversation_needs_a_template(kinds):
    """Without one the turns that are not the user's would be lost."""
    model = load(causal_lm, kinds["base"])
    turns = (Turn("system", ("be brief",)), Turn("user", ("how many",)))
    with pytest.raises(ValueError, match="'a'"):
        model.encode([Prompt("how many", "a", turns=turns)])


@pytest.mark.parametrize("stream", [False, True])
def test_settings_of_prompts_hold_for_files_rows_and_the_command_line(stream, tmp_path):
    family = families()["causal_lm"]
    (tmp_path / "rows.jsonl").write_text('{"text": "how many"}\n{"text": "red", "system": "yes"}\n')
    config = config_class(family.sections)()
    config.data = replace(config.data, stream=stream, system="no", template="the {text} ?")
    read, _ = family.read(config, str(tmp_path / "rows.jsonl"))
    given, _ = family.readable(config, [Prompt("how many"), Prompt("red", turns=read[1].turns)], "prompts")
    said = family.prompts(config, ["how many"])
    assert [one.turns[0].parts for one in (*read, given[0], said[0])] == [("no",), ("yes",), ("no",), ("no",)]
    assert {one.text for one in (read[0], given[0], said[0])} == {"the how many ?"} and read[1].text == "the red ?"


@pytest.mark.parametrize("value", ["false", "False"])
def test_arguments_of_the_template_come_from_a_file_or_a_command_line(value, kinds, tmp_path):
    family = families()["causal_lm"]
    kind, about = config_class(family.sections), ""
    section = {"model": {"family": "causal_lm", "path": kinds["qwen3"], "template": {"enable_thinking": False}}}
    written = read_config(kind, [], section, "a.yaml", about)
    words = ["--model.path", kinds["qwen3"], "--model.template", "enable_thinking", value]
    said = read_config(kind, words, {"model": {"family": "causal_lm"}}, "a.yaml", about)
    for config in (written, said):
        policy: Any = family.policy(config, "cpu", training=False)
        assert policy.model.prefilled == "<think>\n\n</think>\n\n"
    write_yaml(tmp_path / "config.yaml", written)
    assert load_yaml(tmp_path / "config.yaml")["model"]["template"] == {"enable_thinking": False}
    with pytest.raises(ValueError, match=r"model\.template"):
        read_config(kind, [], {"model": {"template": "enable_thinking"}}, "a.yaml", about)
