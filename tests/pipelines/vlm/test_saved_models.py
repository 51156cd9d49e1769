"""A whole model that was saved, as the library reads it: what was trained, under the base's names, tied or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.building import load, module

pytest.importorskip("transformers")


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", ["causal_lm", "qwen_vl"])
def test_a_saved_whole_model_is_the_trained_one(name, tied, tmp_path):
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    library: Any = AutoModelForCausalLM if name == "causal_lm" else AutoModelForImageTextToText
    base = module(name).tiny(tmp_path / "base")
    if not tied:
        untie(library, base)
    names = set(load_file(Path(base) / "model.safetensors"))
    assert ("lm_head.weight" in names) != tied
    model = load(module(name), base)
    with torch.no_grad():
        for number, parameter in enumerate(model.network.parameters()):
            parameter += 0.01 * (number + 1)
    trained = {key: value.clone() for key, value in model.network.state_dict().items()}
    model.save(tmp_path / "saved")
    assert set(load_file(tmp_path / "saved" / "model.safetensors")) == names
    again = library.from_pretrained(tmp_path / "saved")
    found = again.state_dict()
    assert found.keys() == trained.keys() and all(torch.equal(found[key], trained[key]) for key in trained)
    ends = again.get_output_embeddings().weight, again.get_input_embeddings().weight
    assert (ends[0] is ends[1]) == tied == torch.equal(*ends)


def untie(library: Any, folder: str) -> None:
    """Give the model in a folder output embeddings of its own, which differ."""
    network = library.from_pretrained(folder)
    for config in (network.config, network.config.get_text_config()):
        config.tie_word_embeddings = False
    weight = network.get_input_embeddings().weight.detach()
    network.get_output_embeddings().weight = torch.nn.Parameter(weight + 1)
    network.save_pretrained(folder)
