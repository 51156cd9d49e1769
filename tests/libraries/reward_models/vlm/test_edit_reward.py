"""EditReward: a small checkpoint in the published layout, computed by transformers, and by the reward."""

from __future__ import annotations

import math

import pytest
import torch
from safetensors.torch import load_file, save_file

from mmgrpo.types import Image, Media, Prompt, Turn
from reward_models.vlm import edit_reward as reward
from reward_models.vlm.hpsv3 import PIXELS
from reward_models.vlm.qwen2_vl import image_pixels, patches, read_base
from tests.libraries.reward_models.vlm.tiny_qwen import amplified, hidden_at, old_names, write_base

ASKED = {"following": "motion {text_prompt}", "quality": "quality {text_prompt}"}
PUBLISHED = "".join(f"{reward.SIDES[side]} = {text!r}\n" for side, text in ASKED.items())


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """(folder, the network that was saved there)."""
    from transformers import Qwen2_5_VLModel

    folder = write_base(tmp_path_factory.mktemp("edit"), later=True)
    config, _ = read_base(str(folder), [reward.TOKEN], "edit_reward")
    torch.manual_seed(0)
    network = torch.nn.Module()
    network.model, network.rm_heads = amplified(Qwen2_5_VLModel(config)).eval(), amplified(reward.Heads(32)).eval()
    save_file(old_names(network), folder / "model.safetensors")
    (folder / "prompts.py").write_text(PUBLISHED)
    return folder, network


def picture(seed: int, height: int = 40, width: int = 64) -> Image:
    return Image(torch.rand(3, height, width, generator=torch.Generator().manual_seed(seed)))


def edit(source: Image, text: str = "red circle") -> Prompt:
    return Prompt(text, "row 7", turns=(Turn("user", (Media("image", source), text)),))


def score(folder, prompts, images, **more) -> list[float]:
    return reward.edit_reward(prompts, images, str(folder), str(folder / "prompts.py"), base=str(folder), **more)


def by_transformers(folder, network, side: int, source: Image, image: Image) -> float:
    """The forward pass of transformers over both images, source first, with one position for each token."""
    values, grids = zip(*(patches(image_pixels(one, PIXELS, PIXELS)) for one in (source, image)), strict=True)
    _, tokenizer = read_base(str(folder), [reward.TOKEN], "edit_reward")
    shown = "".join(f"<|vision_start|>{'<|image_pad|>' * (math.prod(one) // 4)}<|vision_end|>" for one in grids)
    text = [*ASKED.values()][side].format(text_prompt="red circle") + reward.END
    whole = (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
        f"<|im_start|>user\n{shown}{text}<|im_end|>\n<|im_start|>assistant\n"
    )
    ids = torch.tensor(tokenizer(whole, add_special_tokens=False)["input_ids"])
    media = {"pixel_values": torch.cat(values), "image_grid_thw": torch.tensor(grids)}
    hidden = hidden_at(network.model, ids, tokenizer.convert_tokens_to_ids([reward.TOKEN]), **media)
    return network.rm_heads(hidden)[0, side, 0].item()


def test_each_head_has_its_instruction_and_both_see_the_source_before_the_edit(made):
    source, image = picture(0), picture(1, 64, 40)
    following, quality = (score(made[0], [edit(source)], [image], side=side)[0] for side in ASKED)
    wanted = [by_transformers(*made, side, source, image) for side in range(2)]
    assert [following, quality] == pytest.approx(wanted, abs=1e-5)
    assert abs(following - quality) > 1e-3
    mean, swapped, other = score(made[0], [edit(source), edit(image), edit(picture(2))], [image, source, image])
    assert mean == pytest.approx((following + quality) / 2, abs=1e-6)
    assert abs(swapped - mean) > 1e-3, "the order of both matters"
    assert abs(other - mean) > 1e-3, "swapping the source changes the score"


def test_rows_without_a_source_and_what_is_no_published_file_are_refused(made, tmp_path):
    with pytest.raises(ValueError, match="row 7"):
        score(made[0], [Prompt("red circle", "row 7")], [picture(0)])
    with pytest.raises(ValueError, match=r"side.*'style'"):
        score(made[0], [edit(picture(0))], [picture(0)], side="style")
    with pytest.raises(ValueError, match=r"instructions.*a\.txt"):
        reward.edit_reward([edit(picture(0))], [picture(0)], str(made[0]), "a.txt", base=str(made[0]))
    tensors = load_file(made[0] / "model.safetensors")
    tensors.pop("rm_heads.head_1.5.bias")
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"missing.*head_1\.5\.bias"):
        reward.edit_reward(
            [edit(picture(0))], [picture(0)], str(tmp_path), str(made[0] / "prompts.py"), base=str(made[0])
        )
    broken = Image(torch.full((3, 8, 8), math.nan))
    assert math.isnan(score(made[0], [edit(picture(0))], [broken])[0])
