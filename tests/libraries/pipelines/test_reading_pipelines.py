"""What is read of a pipeline's folder, in which precision, and which parts of it are looked at first."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import save_file

from pipelines import pretrained, processors
from pipelines.lora import read_adapters
from pipelines.pretrained import check_pipeline, check_weights, read_pipeline
from pipelines.processors import load_tokenizer
from pipelines.training import Training
from tests.building import load
from tests.tiny import maker

PARTS = {
    "_class_name": "SomePipeline",
    "_name_or_path": ["transformers", "Not"],
    "text_encoder": ["transformers", "T5EncoderModel"],
    "tokenizer": ["transformers", "T5Tokenizer"],
    "transformer": ["diffusers", "SomeTransformer"],
    "absent": [None, None],
    "scheduler": ["elsewhere", "Code"],
    "size": 3,
}


class Kind:
    """A class of pipelines, which remembers what it is asked."""

    asked: ClassVar[list[tuple[str, dict[str, Any]]]] = []

    @classmethod
    def from_pretrained(cls, path: str, **given: Any) -> str:
        cls.asked.append((path, given))
        return f"{cls.__name__} of {path}"


class Vae(Kind):
    """A class of autoencoders."""


@pytest.mark.parametrize("allow_pickle", [False, True])
def test_parts_are_looked_at_and_read_in_the_precision_of_their_kind(allow_pickle, tmp_path, monkeypatch):
    (tmp_path / "model_index.json").write_text(json.dumps(PARTS))
    looked: list[tuple[str, str, bool]] = []
    monkeypatch.setattr(pretrained, "check_weights", lambda *given: looked.append(given))
    monkeypatch.setattr(Kind, "asked", [])
    training, folder = Training(dtype="bfloat16", allow_pickle=allow_pickle), str(tmp_path)
    made = read_pipeline(Kind, folder, training, Vae, transformer="network", scheduler=None)
    assert made == f"Kind of {folder}"
    assert looked == [(folder, name, allow_pickle) for name in ("text_encoder", "tokenizer")]
    safe = {"use_safetensors": None if allow_pickle else True, "variant": None}
    assert Kind.asked[0] == (folder, {"subfolder": "vae", "dtype": torch.float32, **safe})
    parts = {"transformer": "network", "scheduler": None, "vae": f"Vae of {folder}"}
    assert Kind.asked[1] == (folder, {**parts, "dtype": torch.bfloat16, "trust_remote_code": False, **safe})


def test_the_autoencoder_is_that_of_pictures_unless_it_is_named(tmp_path, monkeypatch):
    from diffusers import AutoencoderKL

    monkeypatch.setattr(AutoencoderKL, "from_pretrained", lambda path, **given: "pictures")
    monkeypatch.setattr(Kind, "asked", [])
    read_pipeline(Kind, str(tmp_path), Training())
    assert Kind.asked[0][1]["vae"] == "pictures"


@pytest.mark.parametrize(
    "part",
    [
        ["elsewhere", "Code"],
        ["diffusers", "a.b"],
        ["diffusers"],
        ["diffusers", "A", "B"],
        {"a": 1},
        {"diffusers": 0, "A": 1},
        [None, "A"],
    ],
)
def test_a_part_of_another_package_is_refused_unless_it_is_not_read(part, tmp_path):
    index = tmp_path / "model_index.json"
    index.write_text(json.dumps({"_class_name": "A", "unet": part}))
    with pytest.raises(ValueError, match="model_index.json.*'unet'"):
        check_pipeline(str(tmp_path))
    check_pipeline(str(tmp_path), ["unet"])
    index.write_text(
        json.dumps({"_class_name": "A", "_unet": part, "size": 3, "levels": [1.0, 0.5], "none": [None, None]})
    )
    check_pipeline(str(tmp_path))
    index.write_text(json.dumps({"_class_name": ["code", "A"]}))
    with pytest.raises(ValueError, match="code"):
        check_pipeline(str(tmp_path))


def test_a_hub_id_of_adapters_is_refused_and_a_part_is_looked_at_in_its_folder(monkeypatch):
    from transformers.utils import peft_utils

    asked: list[tuple] = []
    find = lambda source, subfolder: asked.append((source, subfolder))  # noqa: E731
    monkeypatch.setattr(peft_utils, "find_adapter_config_file", find)
    monkeypatch.setattr(pretrained, "check_weight_files", lambda *given: asked.append(given))
    check_weights("owner/name", "unet", True)
    assert asked == [("owner/name", "unet"), (Path("owner/name/unet"), True, "--model.allow-pickle")]
    monkeypatch.setattr(peft_utils, "find_adapter_config_file", lambda *given, **options: "adapter_config.json")
    with pytest.raises(ValueError, match="owner/name"):
        check_weights("owner/name", "", False)


@pytest.mark.parametrize("library", ["diffusers", "transformers", "stable_audio", "stable_audio_3"])
def test_classes_of_the_known_packages_are_read(library, tmp_path):
    (tmp_path / "model_index.json").write_text(json.dumps({"_class_name": "A", "unet": [library, "B"]}))
    assert check_pipeline(str(tmp_path)) is None


@pytest.mark.parametrize(
    ("rank", "alpha", "targets"), [("2", 4, ["a"]), (2, "4", ["a"]), (2, 4, "a"), (2, 4, ["a", 3])]
)
def test_settings_of_adapters_are_numbers_and_names(rank, alpha, targets, tmp_path):
    config = {"r": rank, "lora_alpha": alpha, "target_modules": targets}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    save_file({"base_model.model.a.lora_A.weight": torch.ones(2)}, tmp_path / "adapter_model.safetensors")
    with pytest.raises(ValueError, match="rank"):
        read_adapters(tmp_path)


READ_BY_NAME = ("AutoConfig", "AutoTokenizer", "AutoProcessor", "AutoImageProcessor", "Qwen2AudioProcessor")
"""Classes of transformers that would run code of a checkpoint."""


@pytest.mark.parametrize("name", ["qwen_vl", "smolvlm", "qwen_omni", "image_text", "ctc", "qwen_audio", "audio_text"])
def test_no_code_of_a_checkpoint_is_trusted(name, tmp_path, monkeypatch):
    folder, asked, inside = maker(name)(tmp_path / "tiny"), set(), []

    def watched(kind: Any) -> Any:
        read = kind.from_pretrained

        def from_pretrained(*given: Any, **options: Any) -> Any:
            if not inside:  # what transformers asks itself follows from that
                asked.add(options.get("trust_remote_code"))
            inside.append(kind)
            try:
                return read(*given, **options)
            finally:
                inside.pop()

        return from_pretrained

    import transformers

    for kind in READ_BY_NAME:
        monkeypatch.setattr(getattr(transformers, kind), "from_pretrained", watched(getattr(transformers, kind)))
    load(name, folder)
    assert asked == {False}


@pytest.mark.parametrize(
    ("declared", "kind"),
    [
        ({"tokenizer_class": "TokenizersBackend"}, "PreTrainedTokenizerFast"),
        ({"tokenizer_class": "PreTrainedTokenizerFast"}, "PreTrainedTokenizerFast"),
        ({"tokenizer_class": "Qwen2Tokenizer"}, "AutoTokenizer"),
        ({}, "AutoTokenizer"),
    ],
)
def test_a_tokenizer_without_a_class_of_its_own_is_read_as_it_was_saved(declared, kind, tmp_path, monkeypatch):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(declared))

    import transformers

    def read(*arguments, **options):
        return SimpleNamespace(chat_template=None, given=(arguments, options))

    monkeypatch.setattr(processors, "read_part", read)
    assert load_tokenizer(str(tmp_path)).given == (
        (getattr(transformers, kind), str(tmp_path)),
        {"trust_remote_code": False},
    )
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "older"}))
    assert load_tokenizer(str(tmp_path)).chat_template == "older"
