"""Python scripts of TRL, read from their syntax tree: what the text says becomes a setting, and the rest is asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from mmgrpo.cli.migrate.recipe import recipe_of
from mmgrpo.cli.migrate.sources import Source
from mmgrpo.cli.migrate.trl_script import from_trl_script

HEAD = """
import os, torch, argparse
from dataclasses import dataclass, field
from datasets import load_dataset
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM
from trl import GRPOConfig, GRPOTrainer, ModelConfig, TrlParser
from trl.rewards import accuracy_reward
from mine.rewards import correct

data = load_dataset("a/b", "c", split="train")
def short(completions, **kwargs):
    return [0.0 for _ in completions]
"""


def script(body: str, **flags: Any) -> Source:
    source = Source("train.py")
    from_trl_script(source, HEAD + body, flags)
    return source


def trained(keywords: str, *, model: str = "'m'", rewards: str = "accuracy_reward", more: str = "") -> str:
    return (
        f"GRPOTrainer(model={model}, reward_funcs={rewards}, args=GRPOConfig({keywords}), train_dataset=data{more})\n"
    )


@pytest.mark.parametrize(
    ("before", "expression", "value"),
    [
        ("", "1e-5", 1e-5),
        ("LR = 2e-6", "LR", 2e-6),
        ("A = 512\nB = A // 2", "A - B", 256),
        ("cfg = {'lr': 3e-6}", "cfg['lr']", 3e-6),
        ("cfg = dict(lr=3e-6)", "cfg.get('lr', 1)", 3e-6),
        ("", "os.environ.get('LR', 4)", 4),
        ("", "float('1e-3')", 1e-3),
        ("class C:\n    lr = 5e-6", "C.lr", 5e-6),
        ("p = argparse.ArgumentParser()\np.add_argument('--lr', default=6e-6)\nargs = p.parse_args()", "args.lr", 6e-6),
        ("@dataclass\nclass A:\n    lr: float = field(default=7e-6)\na = A()", "a.lr", 7e-6),
    ],
)
def test_what_follows_from_the_text_is_a_setting(before: str, expression: str, value: Any):
    source = script(f"{before}\n{trained(f'learning_rate={expression}')}")
    assert source.values["learning_rate"] == pytest.approx(value) and source.unread == {}


@pytest.mark.parametrize(
    ("before", "expression"),
    [
        ("", "unknown"),
        ("", "compute()"),
        ("if x:\n    LR = 1\nelse:\n    LR = 2", "LR"),
        ("", "1 if x else 2"),
        ("", "os.environ['LR']"),
        ("", "__import__('os').system('true')"),
        ("", "10 ** 10 ** 10"),
    ],
)
def test_what_does_not_is_listed(before: str, expression: str):
    source = script(f"{before}\n{trained(f'learning_rate={expression}')}")
    assert "learning_rate" not in source.values and expression.split("(")[0] in source.unread["learning_rate"]


def test_flags_replace_the_arguments_of_a_script():
    text = "p = argparse.ArgumentParser()\np.add_argument('--lr', default=1)\nargs = p.parse_args()\n"
    source = Source("train.py")
    own = from_trl_script(source, HEAD + text + trained("learning_rate=args.lr"), {"lr": 2e-6})
    assert source.values["learning_rate"] == 2e-6 and own == {"lr"}


def test_arguments_of_the_parser_of_trl_are_its_own_settings():
    text = "_, training, model = TrlParser((Own, GRPOConfig, ModelConfig)).parse_args_and_config()\n"
    text += "GRPOTrainer(model=model.model_name_or_path, args=training, reward_funcs=[correct], train_dataset=data)"
    source = script(text)
    assert source.unread == {} and "model_name_or_path" not in source.values and "learning_rate" not in source.values
    assert source.values["reward_funcs"] == ["mine.rewards:correct"]


def test_models_and_adapters_are_followed():
    text = "model = AutoModelForCausalLM.from_pretrained('q/w', torch_dtype=torch.bfloat16).to('cuda')\n"
    text += "lora = LoraConfig(r=4, lora_alpha=9, target_modules=['q'], lora_dropout=0.1)\n"
    values = script(text + trained("bf16=True", model="model", more=", peft_config=lora")).values
    expected = {"model_name_or_path": "q/w", "dtype": "bfloat16", "use_peft": True, "lora_r": 4, "lora_alpha": 9}
    assert values | expected == values and values["lora_target_modules"] == ["q"] and values["lora_dropout"] == 0.1
    text = "model, tokenizer = FastLanguageModel.from_pretrained(model_name='u/v', max_seq_length=64)\n"
    text += "model = FastLanguageModel.get_peft_model(model, r=16, lora_alpha=16, target_modules=['q', 'v'])\n"
    values = script(text + trained("", model="model")).values
    assert (values["model_name_or_path"], values["lora_r"], values["use_peft"]) == ("u/v", 16, True)


def test_data_are_followed_and_code_on_them_is_listed():
    source = script("data = data.map(lambda x: x)\n" + trained(""))
    assert (source.values["dataset_name"], source.values["dataset_config"]) == ("a/b", "c")
    assert [key.partition(" ")[0] for key in source.unread] == ["train_dataset.map"]
    source = script("data = load_dataset('json', data_files={'train': 'rows.jsonl'})['train']\n" + trained(""))
    assert source.values["dataset_name"] == "rows.jsonl"


def test_a_reward_of_the_script_is_named_only_where_that_does_not_train(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    guarded = HEAD + "if __name__ == '__main__':\n    " + trained("max_steps=3", rewards="[short, correct, other()]")
    Path("train.py").write_text(guarded)
    recipe = yaml.safe_load(recipe_of("trl", "train.py", processes=8)[0])
    assert recipe["rewards"][:2] == ["train:short", "mine.rewards:correct"]
    assert recipe["rewards"][2].startswith("??? (other(), line")
    Path("train.py").write_text(HEAD + trained("max_steps=3", rewards="short"))
    recipe = yaml.safe_load(recipe_of("trl", "train.py", processes=8)[0])
    assert len(recipe["rewards"]) == 1 and recipe["rewards"][0].startswith("??? (short of train.py, which trains when")


def test_tools_and_environments_of_a_script_are_tools(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own = "def search(query): ...\nclass Shop:\n    def reset(self, **columns): ...\n"
    for more, tools, turns in (
        (", tools=[search, correct]", ["train:search", "mine.rewards:correct"], 4),
        (", environment_factory=Shop", ["train:Shop"], 4),
        (", tools=None", None, None),
    ):
        main = "if __name__ == '__main__':\n    " + trained("max_tool_calling_iterations=3", more=more)
        Path("train.py").write_text(HEAD + own + main)
        sampling = yaml.safe_load(recipe_of("trl", "train.py", processes=8)[0])["sampling"]
        assert (sampling.get("tools"), sampling.get("turns", None if tools is None else 4)) == (tools, turns)
    Path("train.py").write_text(HEAD + trained("", more=", tools=[lambda query: query]"))
    assert "lambda query" in str(yaml.safe_load(recipe_of("trl", "train.py", processes=8)[0])["sampling"]["tools"])


def test_a_script_has_one_trainer_and_is_python():
    with pytest.raises(ValueError, match="train.py.*0.*GRPOTrainer"):
        script("")
    with pytest.raises(ValueError, match="train.py.*2.*GRPOTrainer.*14.*15"):
        script(trained("") + trained(""))
    with pytest.raises(ValueError, match="train.py, line"):
        script("x = = 1")
    source = script("x = " + "-" * 40 + "1\n" + trained("max_steps=" + "-(" * 60 + "1" + ")" * 60))
    assert "max_steps" in {*source.values, *source.unread}


def test_a_package_that_is_missing_here_does_not_stop_the_migration(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    values = {
        "model_name_or_path": "a/b",
        "dataset_name": "c/d",
        "max_steps": 3,
        "use_peft": True,
        "load_in_4bit": True,
    }
    flags = [f"--{name}={value}" for name, value in values.items()]
    text, warnings = recipe_of("trl", "", flags)
    assert yaml.safe_load(text)["model"]["quantize"] == "4bit" and any("bitsandbytes" in one for one in warnings)
    assert "bitsandbytes" in text.partition("steps:")[0], "among what is to decide, at the top"
