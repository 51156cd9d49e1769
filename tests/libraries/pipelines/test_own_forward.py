"""What a network is asked by a model that computes with the network's own forward pass, told by a network that answers
with the numbers it is given."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from mmgrpo.policies.token_model import Context
from mmgrpo.types import Prompt
from pipelines import generic_lm
from pipelines.generic_lm import Encoded, OwnForward, Whole, choose_way, train_decoder
from pipelines.training import Training

VOCABULARY = 250


class Network(nn.Module):
    """Its hidden states are its tokens; it remembers how it was asked, and keeps keys and values where it may."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[dict[str, Any]] = []
        self.config = SimpleNamespace(get_text_config=lambda: SimpleNamespace())

    def base_model(self, input_ids: Any, use_cache: bool, past_key_values: Any = None, **others: Any) -> Any:
        self.asked.append({"ids": input_ids.tolist(), "use_cache": use_cache, **others})
        if past_key_values is not None:
            keys = input_ids.float()[:, None, :, None]
            past_key_values.update(keys, keys, 0)
        return SimpleNamespace(last_hidden_state=input_ids.float()[..., None], past_key_values=past_key_values)

    def forward(self, input_ids: Any, use_cache: bool, **others: Any) -> Any:
        self.asked.append({"ids": input_ids.tolist(), "use_cache": use_cache, **others})
        return SimpleNamespace(logits=torch.cat([input_ids.float()[..., None]] * 2, -1))

    def get_output_embeddings(self) -> Any:
        return lambda hidden: torch.cat([hidden, hidden], -1)


class Model(OwnForward):
    """Reads a prompt as the numbers in its text."""

    def __init__(self) -> None:
        self.network = self.numbers = Network()
        self.dtype, self.device, self.checkpointing = torch.float32, torch.device("cpu"), False
        self.encoded = Encoded(())
        self.pad_id, self.accepted, self.suppress_tokens = 9, frozenset({"input_ids", "pixels"}), frozenset({0, 2})

    def encode(self, prompts: Any) -> Context:
        rows = [torch.tensor([[int(word) for word in prompt.text.split()]]) for prompt in prompts]
        seen = {"attention_mask": 1, "pixels": 2, "unknown": 3}
        others = {name: torch.tensor([value]) for name, value in seen.items()}
        return self._context([({"input_ids": ids, **others}, ((4, 6),)) for ids in rows])


def test_prompts_are_padded_on_the_left_and_counted_from_their_first_token():
    context = Model().encode([Prompt("5 6 7"), Prompt("8")])
    assert context.ids.tolist() == [[5, 6, 7], [9, 9, 8]] and context.positions.dtype == torch.long
    assert context.real.tolist() == [[True] * 3, [False, False, True]]
    assert context.positions.tolist() == [[[0, 1, 2]], [[1, 1, 0]]]
    assert context.media == [{"pixels": torch.tensor([2])}] * 2 and context.seen == [((4, 6),)] * 2


def test_what_is_given_for_each_token_is_nothing_on_those_of_the_completion():
    model = Model()
    model.dtype = torch.bfloat16
    kinds, pixels = torch.tensor([[1, 1]]), torch.ones(1, 3)
    inputs = model._inputs(torch.tensor([5, 6, 7, 8]), {"mm_token_type_ids": kinds, "pixels": pixels, "sizes": kinds})
    assert {name: value.tolist() for name, value in inputs.items()} == {
        "input_ids": [[5, 6, 7, 8]],
        "attention_mask": [[1, 1, 1, 1]],
        "mm_token_type_ids": [[1, 1, 0, 0]],
        "pixels": [[1, 1, 1]],
        "sizes": [[1, 1]],
    }
    assert [inputs[name].dtype for name in ("pixels", "sizes")] == [torch.bfloat16, torch.long]


def test_the_whole_pass_to_compare_with_keeps_no_keys_and_values():
    model = Model()
    logits = model.own_logits(torch.tensor([5, 6]), {})
    assert logits.tolist() == [[5, 5], [6, 6]] and logits.dtype == torch.float32
    [asked] = model.numbers.asked
    assert asked["use_cache"] is False and asked["ids"] == [[5, 6]]


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_keys_and_values_are_kept_where_something_follows_and_shares_them(shared, ends, checkpointing):
    """What ends with padding is a whole completion; recomputed layers would append their keys twice."""
    model, context = Model(), Model().encode([Prompt("5 6 7"), Prompt("8 4")])
    model.shared, model.checkpointing = shared, checkpointing
    ids, real = context.ids, context.real
    if not ends:
        ids, real = ids.roll(-1, 1), real.roll(-1, 1)
        real[0, -1] = False
    states, cache = model.hidden(model.network, ids, real, context.positions, (), None)
    torch.testing.assert_close(states[..., 0], ids * real.float())
    keeps = ends and not checkpointing
    assert [one["use_cache"] for one in model.numbers.asked] == [shared and keeps] * 2
    assert ["position_ids" in one for one in model.numbers.asked] == [shared] * 2
    assert isinstance(cache, Whole) == (keeps and not shared) and (cache is None) == (not keeps)
    if cache is not None and shared:
        assert cache.layers[0].keys[:, 0, :, 0].tolist() == [[5, 6, 7], [0, 8, 4]]
        more, _ = model.hidden(
            model.network, torch.tensor([[1], [2]]), torch.ones(2, 4), torch.ones(2, 1, 1), (), cache
        )
        assert more[..., 0].tolist() == [[1], [2]] and model.numbers.asked[-1]["use_cache"] is True
    with torch.no_grad():  # nothing is recomputed in a backward pass then
        assert (model.hidden(model.network, ids, real, context.positions, (), None)[1] is None) == (not ends)


def test_members_of_a_group_that_share_nothing_are_read_whole():
    model, context = Model(), Model().encode([Prompt("5 6"), Prompt("8")])
    model.shared = False
    media = tuple({"pixels": torch.tensor([row])} for row in range(2))
    _, cache = model.hidden(model.network, context.ids, context.real, context.positions, media, None)
    spread = model.spread(cache, torch.tensor([1, 0, 1]))
    assert [row.tolist() for row in spread.ids] == [[8], [5, 6], [8]]
    assert spread.media == [media[1], media[0], media[1]]


def test_logits_have_no_bound_unless_the_model_has_one():
    model, hidden = Model(), torch.tensor([[3.0]])
    assert model.logits(model.network, hidden).tolist() == [[3, 3]]
    model.cap = 2.0
    assert model.logits(model.network, hidden)[0, 0].item() == pytest.approx(2 * torch.tensor(1.5).tanh().item())


def test_the_way_is_chosen_on_an_answer_and_the_same_backwards(capsys):
    """Four tokens that a completion may have: neither is 0 or 2, and the first of the others is left out."""
    model = Model()
    choose_way(model, "mine", Prompt("5 6 7"))
    first, second, prompt, continued = (one["ids"] for one in model.numbers.asked)
    assert [first, second] == [[[5, 6, 7, 3, 4, 5, 6]], [[5, 6, 7, 6, 5, 4, 3]]]
    assert prompt == [[5, 6, 7]] and continued == [[3, 4, 5, 6], [6, 5, 4, 3]]
    assert model.numbers.asked[-1]["position_ids"].tolist() == [[3, 4, 5, 6]] * 2
    assert model.numbers.asked[-1]["attention_mask"].tolist() == [[1] * 7] * 2
    assert model.shared and capsys.readouterr().out == "mine: the samples of a group share their prompt\n"


@pytest.mark.parametrize(("most", "accepted"), [(0.5, True), (0.499, False)])
def test_logits_may_differ_by_as_much_as_is_tolerated(most, accepted, monkeypatch):
    """They are half of those of the whole pass."""
    monkeypatch.setattr(generic_lm, "TOLERANCE", {torch.float32: most})
    model, own = Model(), Model.own_logits
    monkeypatch.setattr(Model, "own_logits", lambda self, ids, media: 2 * own(self, ids, media))
    if accepted:
        choose_way(model, "mine", Prompt("5 6 7"))
        assert model.shared
    else:
        with pytest.raises(ValueError, match="5.0e-01"):
            choose_way(model, "mine", Prompt("5 6 7"))


def test_places_of_a_tokenizer_are_its_own_marks_and_those_of_the_configuration():
    from tests.libraries.pipelines.test_words_as_tokens import Letters

    class Marked(Letters):
        image_token, sound_token = "<a>", None

        def convert_ids_to_tokens(self, ids: Any) -> list[str]:
            return [f"<{one}>" for one in ids]

    model: Any = Model()
    model.processor = SimpleNamespace(tokenizer=Marked(), clip_token="<clip>", sound_token=3)
    model.network.config = SimpleNamespace(image_token_id=4, clip_token_id=5, sound_token_id=None)
    model.network.generation_config = SimpleNamespace(eos_token_id=[7, 6])
    model.network.get_output_embeddings = lambda: SimpleNamespace(weight=torch.zeros(8, 2))
    model.network.base_model = SimpleNamespace(forward=lambda input_ids, pixels: None, parameters=lambda: ())
    model.network.get_decoder = lambda: model.network
    model._set_up(("image_token", "clip_token", "sound_token", "other_token"), None)
    assert model.marks == ["<4>", "<a>", "<clip>"], "5 is no token"
    assert (model.end_ids, model.pad_id, model.accepted) == ({1, 6, 7}, 0, {"input_ids", "pixels"})
    assert model.suppress_tokens == {0, 3, 5}


class Parts(nn.Module):
    """A network with a tower next to its decoder."""

    def __init__(self, **layers: nn.Module) -> None:
        super().__init__()
        self.base_model = nn.Module()
        self.base_model.tower, self.base_model.words = nn.Linear(1, 1), nn.Module()
        self.base_model.words.block = nn.ModuleDict({"self_attn": nn.ModuleDict(layers), "norm": nn.LayerNorm(1)})

    def get_decoder(self) -> nn.Module:
        return self.base_model.words  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("names", "targets"),
    [
        (("q_proj", "v_proj", "gate"), ["self_attn.q_proj", "self_attn.v_proj"]),
        (("query", "gate"), ["block.self_attn.query", "block.self_attn.gate"]),
    ],
)
def test_adapters_are_at_the_usual_layers_of_attention_or_at_all_linear_ones(names, targets, monkeypatch):
    asked: list[tuple] = []
    monkeypatch.setattr(generic_lm, "make_trainable", lambda *given: asked.append(given))
    network = Parts(**{name: nn.Linear(1, 1) for name in names})
    train_decoder(network, Training(), freeze_media=False)
    assert asked == [(network, Training(), targets, [])]


@pytest.mark.parametrize(("rank", "freeze", "frozen"), [(0, True, 1), (2, False, 1), (2, True, 1), (0, False, 0)])
def test_what_is_beside_the_decoder_is_frozen_where_asked_or_adapters_train(rank, freeze, frozen, monkeypatch):
    asked: list[tuple] = []
    monkeypatch.setattr(generic_lm, "make_trainable", lambda *given: asked.append(given))
    network = Parts(q_proj=nn.Linear(1, 1))
    train_decoder(network, Training(lora_rank=rank), freeze)
    assert asked[0][3] == [network.base_model.tower] * frozen
