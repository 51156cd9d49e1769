"""PISCES' map of texts to real outputs: its loss, what it learns, and the reward."""

from __future__ import annotations

import json
import math

import pytest
import torch

from mmgrpo.cli import learn_map
from mmgrpo.rewards import scorer
from mmgrpo.types import Image, Prompt, Text
from reward_models.pixels import to_pil
from reward_models.sets.neural_map import map_loss, network, save_map, train_map


def cloud(x, y, count=256, seed=0):
    """A normal cloud of std 0.1 about a point."""
    return torch.tensor([x, y]) + 0.1 * torch.randn(count, 2, generator=torch.Generator().manual_seed(seed))


def test_the_map_minimizes_cost_minus_potential():
    """|(3, 4)|^2 - 5 = 20 and |(0, 0)|^2 - 1 = -1: the mean is 9.5."""
    moved, texts = torch.tensor([[3.0, 4.0], [1.0, 1.0]]), torch.tensor([[0.0, 0.0], [1.0, 1.0]])
    assert float(map_loss(moved, texts, torch.tensor([5.0, 1.0]))) == pytest.approx(9.5)


def test_texts_are_carried_to_the_cloud_of_outputs():
    """Texts about (1, 0) and outputs about (0, 2), unpaired."""
    mapping = train_map(cloud(1, 0), cloud(0, 2, seed=1), steps=150, hidden=32)
    moved = mapping(cloud(1, 0, seed=2))
    assert float((moved.mean(0) - torch.tensor([0.0, 2.0])).norm()) < 0.5, "it was 2.24 before"


def told(prompts):
    return torch.tensor([[1.0, 0.0]]).expand(len(prompts), 2)


def seen(outputs):
    return torch.tensor([[float(part) for part in one.text.split()] for one in outputs])


def test_the_reward_is_the_cosine_of_the_mapped_text_and_the_output(tmp_path):
    """A map to (0, 1) whatever the text, which is (1, 0): cos with (.6, .8) is .8, with (0, -2) it is -1."""
    mapping = network(2, 4, 2)
    with torch.no_grad():
        mapping[-1].weight.zero_()
        mapping[-1].bias.copy_(torch.tensor([0.0, 1.0]))
    save_map(mapping, file := tmp_path / "map.safetensors")
    here = f"embed_text='{__name__}:told', embed='{__name__}:seen'"
    reward = scorer(f"transported(map='{file}', {here})")
    values = reward.fn([Prompt("a")] * 3, [Text("0.6 0.8"), Text("0 -2"), Text("nan 0")])
    assert values[:2] == pytest.approx([0.8, -1]) and math.isnan(values[2])
    with pytest.raises(ValueError, match=r"\[1, 3\].*1.*2"):
        reward.fn([Prompt("a")], [Text("1 2 3")])


def mean_colours(outputs):
    return torch.stack([one.pixels.mean((1, 2))[:2] for one in outputs])


def test_a_map_is_learned_from_a_file_of_captions_and_pictures(tmp_path, capsys):
    for number in range(2):
        to_pil(Image(torch.rand(3, 4, 4, generator=torch.Generator().manual_seed(number)))).save(
            tmp_path / f"{number}.png"
        )
    rows = [{"text": "a", "image": f"{number}.png"} for number in range(2)]
    (tmp_path / "real.jsonl").write_text("\n".join(map(json.dumps, rows)))
    file = tmp_path / "map.safetensors"
    embeddings = ["--embed-text", f"{__name__}:told", "--embed", f"{__name__}:mean_colours"]
    learn_map.main(["--pictures", f"{tmp_path}/real.jsonl", *embeddings, "--steps", "2", "--out", str(file)])
    assert "from 2 " in capsys.readouterr().out
    here = f"embed_text='{__name__}:told', embed='{__name__}:mean_colours'"
    picture = Image(torch.full((3, 4, 4), 0.5))
    assert abs(scorer(f"transported(map='{file}', {here})").fn([Prompt("a")], [picture])[0]) <= 1


def test_clouds_of_two_widths_are_refused():
    with pytest.raises(ValueError, match=r"\[4, 2\].*\[4, 3\]"):
        train_map(torch.zeros(4, 2), torch.zeros(4, 3))


def test_equal_seeds_train_equal_maps_and_leave_the_generator_alone():
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    one, two = (train_map(cloud(1, 0), cloud(0, 2), steps=2, hidden=4).state_dict() for _ in range(2))
    assert torch.equal(torch.rand(1), expected) and all(torch.equal(one[name], two[name]) for name in one)


def test_a_trained_map_is_ready_to_score():
    cloud = torch.rand(8, 2, generator=torch.Generator().manual_seed(0))
    mapping = train_map(cloud, cloud + 1, steps=1)
    assert not mapping.training and not any(parameter.requires_grad for parameter in mapping.parameters())
