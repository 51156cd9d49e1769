"""Checkpoints that try to run code or to reach outside their folder: refused by one line, and nothing of theirs is run.

Every hostile pickle and module writes the file ``run`` when it is executed.
"""

from __future__ import annotations

import ast
import json
import os
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from mmgrpo.cli.errors import is_user_error
from mmgrpo.config.plugins import locate
from mmgrpo.runtime.weight_files import CONVERT
from pipelines.lora import read_adapters
from pipelines.pretrained import check_pipeline, check_weights
from pipelines.speech import duration, whisper
from pipelines.text import causal_lm
from pipelines.training import Training
from pipelines.visual import flux, sd3, sdxl, stable_diffusion
from pipelines.vlm import smolvlm
from tests import ROOT
from tests.building import load
from tests.tiny import maker, tiny_checkpoint

pytest.importorskip("diffusers")
ALLOWED = Training(allow_pickle=True)


class Payload:
    """What a hostile pickle holds: to read it is to call it."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


@pytest.fixture(autouse=True)
def marker(tmp_path):
    yield tmp_path / "run"
    assert not (tmp_path / "run").exists(), "code of a checkpoint was run"


@pytest.fixture
def network(tmp_path) -> Path:
    return Path(maker("causal_lm")(tmp_path / "network"))


NETWORKS = {sd3: "transformer", flux: "transformer", stable_diffusion: "unet", sdxl: "unet"}
"""Families of diffusers' pipelines, and the folder of their network."""


def named(kind) -> str:
    return kind.__name__.rpartition(".")[2]


@pytest.fixture(scope="session")
def pipelines_of_diffusers():
    return {kind: tiny_checkpoint(maker(kind)) for kind in NETWORKS}


def copied(source: Path, target: Path) -> Path:
    for file in source.rglob("*"):
        if file.is_file():
            (target / file.relative_to(source)).parent.mkdir(parents=True, exist_ok=True)
            (target / file.relative_to(source)).write_bytes(file.read_bytes())
    return target


def pickled(folder: Path, marker: Path, name: str = "pytorch_model.bin") -> Path:
    """The folder with a hostile pickle in the place of its weights."""
    for file in folder.glob("*.safetensors"):
        file.unlink()
    torch.save({"weight": Payload(marker)}, folder / name)
    return folder


def refusal(call, *arguments, **options) -> str:
    with pytest.raises((ValueError, OSError)) as caught:
        call(*arguments, **options)
    assert is_user_error(caught.value)
    return str(caught.value)


def test_the_payload_would_run(tmp_path, marker):
    """Otherwise the tests below show nothing."""
    pickled(tmp_path, marker)
    torch.load(tmp_path / "pytorch_model.bin", weights_only=False)
    assert marker.exists()
    marker.rmdir()


# ---- pickles


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "network.ckpt", "weights.pth", "model.pkl"])
def test_weights_in_a_pickle_only_are_refused_with_the_way_out(network, marker, name):
    message = refusal(load, causal_lm, pickled(network, marker, name))
    assert f"{name} only, a pickle" in message
    assert "--model.allow-pickle" in message


def test_even_where_pickles_are_allowed_code_in_one_is_not_run(network, marker):
    message = refusal(load, causal_lm, pickled(network, marker), ALLOWED)
    assert f"'{network}': UnpicklingError" in message


def test_an_honest_pickle_is_read_where_it_is_allowed_and_after_the_conversion(network):
    expected = load_file(network / "model.safetensors")
    torch.save(expected, network / "pytorch_model.bin")
    (network / "model.safetensors").unlink()
    refusal(load, causal_lm, network)
    loaded = load(causal_lm, network, ALLOWED).network.state_dict()
    assert all(torch.equal(loaded[name], weight) for name, weight in expected.items())
    # The command that the error prints, as a shell would run it.
    source = CONVERT.removeprefix('python -c "').removesuffix('"').replace("NAME", str(network / "pytorch_model.bin"))
    assert set(map(type, ast.parse(source).body)) == {ast.ImportFrom, ast.Expr} and "weights_only=True" in source
    torch.save(expected, network / "again.bin")
    state = torch.load(network / "again.bin", weights_only=True)
    save_file({name: weight.clone() for name, weight in state.items()}, network / "model.safetensors", {"format": "pt"})
    converted = load(causal_lm, network).network.state_dict()
    assert all(torch.equal(converted[name], weight) for name, weight in expected.items())


def test_safetensors_beside_a_pickle_are_read_and_the_pickle_is_not(network, marker):
    torch.save({"weight": Payload(marker)}, network / "pytorch_model.bin")
    assert load(causal_lm, network).network is not None
    assert load(causal_lm, network, ALLOWED).network is not None


def test_the_run_s_saved_weights_are_checked_too(network, tmp_path, marker):
    saved = pickled(Path(maker("causal_lm")(tmp_path / "saved")), marker)
    assert "a pickle" in refusal(load, causal_lm, network, Training(weights=saved))


@pytest.mark.parametrize("part", ["network", "vae", "text_encoder", "text_encoder_2"])
@pytest.mark.parametrize("kind", NETWORKS, ids=named)
def test_every_part_of_a_pipeline_is_read_from_safetensors(kind, part, pipelines_of_diffusers, tmp_path, marker):
    if (kind, part) == (stable_diffusion, "text_encoder_2"):
        pytest.skip("it has one text encoder")
    folder, part = copied(pipelines_of_diffusers[kind], tmp_path / "model"), part.replace("network", NETWORKS[kind])
    name = "pytorch_model.bin" if part.startswith("text") else "diffusion_pytorch_model.bin"
    pickled(folder / part, marker, name)
    assert f"{name} only, a pickle" in refusal(load, kind, folder)
    assert f"'{folder}'" in refusal(load, kind, folder, ALLOWED)


def test_adapters_in_a_pickle_are_refused_with_the_conversion(tmp_path, marker):
    (tmp_path / "adapter_config.json").write_text("{}")
    torch.save({"weight": Payload(marker)}, tmp_path / "adapter_model.bin")
    message = refusal(read_adapters, tmp_path)
    assert "adapter_model.bin only" in message and "'adapter_model.safetensors'" in message
    assert "allow" not in message


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "list"),
        ("{", "not JSON"),
        ('{"r": "8", "lora_alpha": 8, "target_modules": ["q"]}', "rank 8, alpha 8"),
        ('{"r": 8, "lora_alpha": 8, "target_modules": "q.*"}', "targets"),
        ('{"r": 8, "lora_alpha": 8, "target_modules": [3]}', "targets"),
    ],
)
def test_adapters_whose_settings_are_of_another_type_are_refused(tmp_path, content, message):
    (tmp_path / "adapter_config.json").write_text(content)
    save_file({"a": torch.zeros(1)}, tmp_path / "adapter_model.safetensors")
    assert message in refusal(read_adapters, tmp_path)
    (tmp_path / "adapter_model.safetensors").write_bytes(b"12345678910")
    (tmp_path / "adapter_config.json").write_text('{"r": 8, "lora_alpha": 8, "target_modules": ["q"]}')
    assert "safetensors" in refusal(read_adapters, tmp_path)


# ---- judges


def test_a_recognizer_in_a_pickle_is_refused(tmp_path, marker):
    from reward_models.speech.recognizer import recognizer

    folder = pickled(Path(whisper.tiny(tmp_path / "whisper")), marker)
    assert "pytorch_model.bin only, a pickle" in refusal(recognizer, str(folder))
    assert "pytorch_model.bin only, a pickle" in refusal(load, whisper, folder)


def test_an_encoder_of_voices_in_a_pickle_is_refused_unless_it_is_allowed(tmp_path, marker):
    from transformers import WavLMConfig

    from reward_models.speech.xvector import xvector_encoder

    WavLMConfig().save_pretrained(tmp_path)
    torch.save({"weight": Payload(marker)}, tmp_path / "pytorch_model.bin")
    message = refusal(xvector_encoder, str(tmp_path))
    assert "speaker_similarity(allow_pickle=True)" in message


# ---- code and other files that a checkpoint names


MODULE = "from pathlib import Path\nPath({!r}).mkdir()\nclass Model: pass\nclass Config: pass\n"


def test_code_beside_a_model_is_not_run(network, marker):
    """A model type that transformers knows is read by transformers, and an unknown one is refused."""
    (network / "modeling_x.py").write_text(MODULE.format(str(marker)))
    config = json.loads((network / "config.json").read_text())
    names = ("AutoConfig", "AutoModelForCausalLM", "AutoTokenizer")
    config["auto_map"] = dict.fromkeys(names, "modeling_x.Model")
    (network / "config.json").write_text(json.dumps(config))
    settings = json.loads((network / "tokenizer_config.json").read_text())
    settings["auto_map"] = {"AutoTokenizer": ["modeling_x.Model", None]}
    (network / "tokenizer_config.json").write_text(json.dumps({**settings, "tokenizer_class": "Model"}))
    assert type(load(causal_lm, network).network).__name__ == "Qwen2ForCausalLM"
    (network / "config.json").write_text(json.dumps({**config, "model_type": "x"}))
    assert f"'{network}': ValueError" in refusal(load, causal_lm, network)
    assert f"'{network}': ValueError" in refusal(load, smolvlm, network)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("text_encoder", ["os", "abort"], "'text_encoder': got ['os', 'abort']"),
        ("text_encoder", ["evil", "Model"], "text_encoder"),
        ("text_encoder", ["transformers", "a.b"], "text_encoder"),
        ("text_encoder", ["transformers"], "text_encoder"),
        ("text_encoder", [["transformers"], "CLIPTextModel"], "text_encoder"),
        ("extra", ["evil", "Model"], "'extra': got ['evil', 'Model']"),
        ("_class_name", ["evil", "Pipeline"], "['evil', 'Pipeline']"),
    ],
)
@pytest.mark.parametrize("kind", NETWORKS, ids=named)
def test_a_pipeline_of_other_classes_is_refused(kind, key, value, message, pipelines_of_diffusers, tmp_path, marker):
    folder = copied(pipelines_of_diffusers[kind], tmp_path / "model")
    check_pipeline(str(folder))
    for place in (folder / "evil.py", folder / "text_encoder" / "evil.py", folder / "pipeline.py"):
        place.write_text(MODULE.format(str(marker)))
    index = json.loads((folder / "model_index.json").read_text())
    (folder / "model_index.json").write_text(json.dumps({**index, key: value}))
    assert message in refusal(load, kind, folder)


def test_a_module_that_is_called_like_a_library_is_not_run(pipelines_of_diffusers, tmp_path, marker):
    folder = copied(pipelines_of_diffusers[sd3], tmp_path / "model")
    (folder / "text_encoder" / "transformers.py").write_text(MODULE.format(str(marker)))
    assert f"'{folder}'" in refusal(load, sd3, folder)


def test_a_folder_of_adapters_does_not_send_transformers_to_another_model(network, tmp_path, marker):
    other = pickled(Path(maker("causal_lm")(tmp_path / "other")), marker, "adapter_model.bin")
    adapters = {"base_model_name_or_path": str(other), "peft_type": "LORA", "r": 1, "target_modules": ["q_proj"]}
    (network / "adapter_config.json").write_text(json.dumps(adapters))
    torch.save({"weight": Payload(marker)}, network / "adapter_model.bin")
    assert "(adapter_config.json)" in refusal(load, causal_lm, network)


@pytest.mark.parametrize(
    "shard", ["../other.safetensors", "/etc/passwd", "pytorch_model.bin", "sub/model.safetensors", 3, None]
)
def test_an_index_names_safetensors_of_its_folder_only(network, marker, shard):
    (network / "model.safetensors").rename(network.parent / "other.safetensors")
    torch.save({"weight": Payload(marker)}, network / "pytorch_model.bin")
    (network / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"lm_head.weight": shard}}))
    assert "index.json" in refusal(load, causal_lm, network)


def test_a_shard_that_is_a_pickle_is_read_where_that_is_allowed_only(network):
    (network / "model.safetensors.index.json").write_text('{"weight_map": {"a": "pytorch_model-1.bin"}}')
    assert "safetensors" in refusal(check_weights, str(network), "", False)
    check_weights(str(network), "", True)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", "[1]"),
        ("config.json", '{"model_type": "qwen2", "hidden_size": "x"}'),
        ("config.json", '{"model_type": "qwen2", "transformers_weights": "../../x.bin"}'),
        ("config.json", "[" * 100_000),
        ("model.safetensors", "x" * 100),
        ("model.safetensors", ""),
        ("tokenizer.json", "{"),
        ("tokenizer_config.json", "3"),
    ],
)
def test_a_damaged_file_is_one_line(network, name, content):
    (network / name).write_text(content)
    assert f"'{network}'" in refusal(load, causal_lm, network)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("words/words.json", "{}"),
        ("words/words.json", '{"vocabulary": 3, "length": 1, "width": 1, "pooled_width": 1}'),
        ("words/words.safetensors", "x"),
        ("enlarger/enlarger.json", "{}"),
        ("enlarger/enlarger.json", '{"scale": "x", "width": 1}'),
        ("enlarger/enlarger.safetensors", "x"),
        ("scheduler/scheduler_config.json", "["),
        ("transformer/config.json", "{}"),
        ("transformer/config.json", '{"num_layers": "x"}'),
        ("transformer/diffusion_pytorch_model.safetensors", "x" * 100),
    ],
)
def test_a_damaged_file_of_the_embedded_model_is_one_line(tmp_path, name, content):
    folder = copied(Path(locate("embedded:visual/scenes/base")), tmp_path / "model")
    (folder / name).write_text(content)
    assert f"'{folder}'" in refusal(load, sd3, folder)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", "[]"),
        ("config.json", '{"family": "duration", "width": "x"}'),
        ("config.json", '{"family": "duration", "width": true}'),
        ("config.json", '{"family": "duration", "heads": null}'),
        ("model.safetensors", "x" * 100),
    ],
)
def test_a_damaged_duration_network_is_one_line(tmp_path, name, content):
    folder = Path(maker("duration")(tmp_path / "duration"))
    (folder / name).write_text(content)
    assert str(folder) in refusal(load, duration, folder, renderer="tests.speaking:hummer")


def test_a_chat_template_runs_in_a_sandbox(network):
    """transformers renders it in jinja's ImmutableSandboxedEnvironment; this asserts what that is for."""
    from jinja2.exceptions import SecurityError

    tokenizer = load(causal_lm, network).tokenizer
    for attack in (
        "{{ [].__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ messages.clear() }}",
    ):
        tokenizer.chat_template = attack
        with pytest.raises(SecurityError):
            tokenizer.apply_chat_template([{"role": "user", "content": "x"}], tokenize=False)


# ---- the rule for the code to come

PLAIN = ("Scheduler", "Tokenizer", "FeatureExtractor", "granite_extractor", "edit_processor", "Processor", "Config")
"""Parts of a checkpoint that are JSON and vocabularies."""


def loads(tree: ast.AST):
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "from_pretrained":
            yield ast.unparse(node.func.value).split(".")[-1], node
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "read_part":
            yield ast.unparse(node.args[0]), node


def test_whatever_is_read_from_a_checkpoint_says_how():
    """Weights with ``use_safetensors``, and what could run a checkpoint's code with ``trust_remote_code=False``."""
    seen = 0
    for room in ("mmgrpo", "pipelines", "reward_models", "scripts"):
        for module in sorted((ROOT / room).rglob("*.py")):
            source = module.read_text("utf-8")
            for kind, node in loads(ast.parse(source)):
                seen += 1
                given = ast.get_source_segment(source, node) or ""
                plain = any(part in kind for part in PLAIN)
                through = any(f"**{name}" in given for name in ("safely(training)", "options"))
                assert plain or through or "use_safetensors=" in given, f"{module}:{node.lineno}: {given}"
                auto = kind.startswith("Auto") and plain
                assert not auto or "trust_remote_code=False" in given, f"{module}:{node.lineno}: {given}"
    assert seen > 15


def test_a_torch_file_is_a_zip_that_holds_a_pickle(tmp_path, marker):
    """The attack is what it says it is: the archive's pickle names ``mkdir``."""
    pickled(tmp_path, marker)
    with zipfile.ZipFile(tmp_path / "pytorch_model.bin") as archive:
        name = next(name for name in archive.namelist() if name.endswith("data.pkl"))
        assert b"mkdir" in archive.read(name)
