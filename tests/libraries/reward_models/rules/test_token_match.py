"""The average of the best matches of token embeddings."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import save_file

from mmgrpo.rewards import scorer
from mmgrpo.types import Prompt, Text
from reward_models.rules.token_match import max_average_similarity

tokenizers = pytest.importorskip("tokenizers")

VOCABULARY = {"[UNK]": 0, "a": 1, "red": 2, "crimson": 3, "cat": 4}
TABLE = torch.tensor([[-1.0, 0, 0], [1, 0, 0], [0, 2, 0], [0, 0.8, 0.6], [0, 0, 1]])  # red and crimson: 0.8


def saved(folder, *, sharded: bool = False, key: str = "model.embed_tokens.weight") -> str:
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(VOCABULARY, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    template = tokenizers.processors.TemplateProcessing(single="a $A", special_tokens=[("a", 1)])
    tokenizer.post_processor = template  # a token before the text, which is not compared
    tokenizer.save(str(folder / "tokenizer.json"))
    file = "model-00002-of-00002.safetensors" if sharded else "model.safetensors"
    save_file({key: TABLE, "model.layers.0.weight": torch.zeros(2)}, folder / file)
    if sharded:
        index = {"weight_map": {"model.norm.weight": "model-00001-of-00002.safetensors", key: file}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return str(folder)


def test_each_side_looks_for_its_best_match():
    unit = torch.eye(3)
    assert max_average_similarity(unit, unit) == 1
    assert max_average_similarity(7 * unit, unit.flip(0)) == 1  # neither lengths nor order count
    # one of two is found, and the one finds itself: (1/2 + 1) / 2
    assert max_average_similarity(unit[:2], unit[:1]) == max_average_similarity(unit[:1], unit[:2]) == 0.75
    assert max_average_similarity(unit[:1], unit[1:]) == 0
    assert max_average_similarity(unit[:1], -unit[:1]) == -1


@pytest.mark.parametrize("sharded", [False, True])
def test_words_of_like_embeddings_are_alike(tmp_path, sharded):
    reward = scorer(f"bmas(model='{saved(tmp_path, sharded=sharded)}', tags=False)")
    prompt = Prompt("what is it?", "7", answer="a red cat")
    texts = ["a red cat", "cat red a", "a crimson cat", "a cat", "", "dog", "a " * 30_000]
    # a crimson cat: red finds crimson by 0.8 and crimson red. a cat: both are found; of red, a and cat none is near
    expected = [1, 1, (2.8 / 3 + 2.8 / 3) / 2, (1 + 2 / 3) / 2, 0, 0, (1 + 1 / 3) / 2]
    assert reward.fn([prompt] * len(texts), [Text(text) for text in texts]) == pytest.approx(expected)
    tagged = scorer(f"bmas(model='{tmp_path}')").fn(
        [prompt] * 2, [Text("<answer>a red cat</answer>"), Text("a red cat")]
    )
    assert tagged == pytest.approx([1, 0])


def test_2048_tokens_are_compared(tmp_path):
    prompt, texts = Prompt("what is it?", "7", answer="cat"), [Text("a " * count + "cat") for count in (2047, 2048)]
    values = scorer(f"bmas(model='{saved(tmp_path)}', tags=False)").fn([prompt] * 2, texts)
    assert values == pytest.approx([(1 / 2048 + 1) / 2, 0])


def test_what_is_missing_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"bmas.*weights.*tokenizer\.json"):
        scorer(f"bmas(model='{tmp_path}')").fn([Prompt("a", answer="b")], [Text("c")])
    folder = tmp_path / "other"
    folder.mkdir()
    with pytest.raises(ValueError, match=r"bmas.*model.*model\.safetensors"):
        scorer(f"bmas(model='{saved(folder, key='lm_head.weight')}')").fn([Prompt("a", answer="b")], [Text("c")])
