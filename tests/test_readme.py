import re

import pytest
import torch

from mmgrpo.rewards import scorer
from mmgrpo.runtime import plugins
from mmgrpo.types import Image, Prompt
from tests import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_readmes_reward_is_at_most_ten_lines_and_scores_a_red_picture_one(tmp_path, monkeypatch):
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(code.splitlines()) <= 10
    (tmp_path / "my_rewards.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    (text,) = re.findall(r'"(my_rewards:.*?)"', README)
    warmth = scorer(text)
    red = torch.zeros(3, 4, 4)
    red[0] = 1
    assert warmth.name == "warmth" and warmth.weight == 0.5
    assert list(warmth.fn([Prompt("red"), Prompt("blue")], [Image(red), Image(red.flip(0))])) == [1.0, -1.0]


ROOMS = r"(?:mmgrpo|pipelines|reward_models|scripts|docs|tests|benchmarks)"


@pytest.mark.parametrize("path", sorted(set(re.findall(rf"\b{ROOMS}/[\w/.-]+\.\w+", README))))
def test_every_file_that_the_readme_names_exists(path):
    assert (ROOT / path).is_file()


def test_the_readmes_commands_are_targets_of_the_makefile():
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"make (\w+)", README)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_every_recipe_is_in_the_readmes_table_and_nothing_else():
    recipes = set(plugins.recipes()) - {"visual/demo", "vlm/demo"}
    assert set(re.findall(r"^\| `(\w+/\w+)` \|", README, re.MULTILINE)) == recipes
