"""HPSv3: a small checkpoint in the published layout, prepared and computed by transformers, and by the reward."""

from __future__ import annotations

import math

import pytest
import torch
from PIL import Image as Pil
from safetensors.torch import save_file

from mmgrpo.data.images import smart_resize
from mmgrpo.types import Image, Prompt
from reward_models.pixels import to_pil
from reward_models.vlm import hpsv3 as reward
from reward_models.vlm.instructions import HPSV3_NAMES, constants, hpsv3_instruction
from reward_models.vlm.qwen2_vl import build, folder_of, image_pixels, patches, read_base
from tests.libraries.reward_models.vlm.tiny_qwen import amplified, hidden_at, old_names, write_base

INSTRUCTION = "rate quality . Textual prompt - {text_prompt} : <|Reward|> END"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """(folder, the network that was saved there)."""
    from transformers import Qwen2VLModel

    folder = write_base(tmp_path_factory.mktemp("hpsv3"))
    config, _ = read_base(str(folder), [reward.TOKEN], "hpsv3")
    torch.manual_seed(0)
    network = torch.nn.Module()
    network.model, network.rm_head = amplified(Qwen2VLModel(config)).eval(), amplified(reward.head(32)).eval()
    tensors = old_names(network) | {"lm_head.weight": torch.zeros(config.text_config.vocab_size, 32)}
    save_file(tensors, folder / "HPSv3.safetensors")
    (folder / "instruction.txt").write_text(INSTRUCTION)
    return folder, network


def picture(seed, height=40, width=64):
    return Image(torch.rand(3, height, width, generator=torch.Generator().manual_seed(seed)))


def score(folder, prompts, images):
    return reward.hpsv3(
        [Prompt(text) for text in prompts], images, str(folder), str(folder), str(folder / "instruction.txt")
    )


def by_transformers(folder, network, text, image):
    """Pillow, the image processor and the forward pass of transformers, in one."""
    from transformers.models.qwen2_vl import image_processing_pil_qwen2_vl as processing

    height, width = processing.smart_resize(40, 64, 28, 200_704, 200_704)
    resized = to_pil(image).resize((width, height), Pil.Resampling.BICUBIC)
    inputs = processing.Qwen2VLImageProcessorPil()(resized, return_tensors="pt")
    assert inputs["image_grid_thw"].tolist() == [[1, height // 14, width // 14]], "not resized again"
    _, tokenizer = read_base(str(folder), [reward.TOKEN], "hpsv3")
    count = int(inputs["image_grid_thw"].prod()) // 4
    whole = (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n<|vision_start|>"
        + "<|image_pad|>" * count
        + f"<|vision_end|>{INSTRUCTION.format(text_prompt=text)}<|im_end|>\n<|im_start|>assistant\n"
    )
    ids = torch.tensor(tokenizer(whole, add_special_tokens=False)["input_ids"])
    hidden = hidden_at(network.model, ids, tokenizer.convert_tokens_to_ids([reward.TOKEN]), **inputs)
    return network.rm_head(hidden)[0, 0].item()


def test_the_score_is_that_of_transformers_with_positions_in_one_axis(made):
    images = [picture(0), picture(1), picture(0)]
    texts = ["red circle", "red circle", "blue square"]
    found = score(made[0], texts, images)
    wanted = [by_transformers(*made, text, image) for text, image in zip(texts, images, strict=True)]
    assert found == pytest.approx(wanted, abs=1e-5)
    assert len({round(value, 3) for value in found}) == 3, "picture and prompt both matter"


def test_the_head_and_the_tokens_are_those_of_the_published_model(made):
    shapes = {name: tuple(value.shape) for name, value in reward.head(8).state_dict().items() if "weight" in name}
    assert shapes == {"0.weight": (1024, 8), "3.weight": (16, 1024), "5.weight": (2, 16)}
    _, tokenizer = read_base(str(made[0]), [reward.TOKEN], "hpsv3")
    number = tokenizer.convert_tokens_to_ids(reward.TOKEN)
    assert tokenizer.added_tokens_decoder[number].special
    config, plain = read_base(str(made[0]), [], "hpsv3")
    assert len(tokenizer) == len(plain) + 1
    assert config.text_config.vocab_size == len(plain), "the embeddings have a row for each token, without padding"


def test_beside_the_cpu_the_network_has_16_bits_and_its_head_32(made):
    config, _ = read_base(str(made[0]), [reward.TOKEN], "hpsv3")
    network = build(config, reward.head(32), "meta")
    assert {(one.device.type, one.dtype) for one in network.model.parameters()} == {("meta", torch.bfloat16)}
    assert {(one.device.type, one.dtype) for one in network.rm_head.parameters()} == {("meta", torch.float32)}
    assert torch.get_default_dtype() == torch.float32


def test_pixels_are_those_of_the_processor():
    from transformers.models.qwen2_vl import image_processing_pil_qwen2_vl as processing

    image = picture(3, 100, 333)
    pixels = image_pixels(image, 200_704, 200_704)
    size = {"shortest_edge": 200_704, "longest_edge": 200_704}
    wanted = processing.Qwen2VLImageProcessorPil(size=size)(to_pil(image), return_tensors="pt")
    values, grid = patches(pixels)
    assert [grid] == [tuple(row) for row in wanted["image_grid_thw"].tolist()]
    torch.testing.assert_close(values, wanted["pixel_values"], atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("size", "resized"),
    [
        ((512, 512), (448, 448)),
        ((1024, 1024), (448, 448)),
        ((64, 64), (448, 448)),
        ((720, 1280), (336, 588)),  # 448 / sqrt(16/9) = 336, 448 sqrt(16/9) = 597.3 cut to 21 x 28
        ((10, 1000), (56, 4480)),  # rounded up, as it was rounded to 28 x 1008 first, which is too small
    ],
)
def test_sizes_are_multiples_of_28_with_200704_pixels_at_most_or_at_least(size, resized):
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize as reference

    assert smart_resize(*size, 28, 200_704, 200_704) == resized
    if min(size) >= 28:
        assert reference(*size, 28, 200_704, 200_704) == resized


def test_broken_pixels_are_nan_and_special_tokens_in_a_prompt_an_error(made):
    value, other = score(made[0], ["red"] * 2, [Image(torch.full((3, 8, 8), torch.nan)), picture(0)])
    assert math.isnan(value) and [other] == score(made[0], ["red"], [picture(0)])
    for text in ("red <|Reward|>", "<|image_pad|> blue"):
        with pytest.raises(ValueError, match="instruction"):
            score(made[0], [text], [picture(0)])


def test_names_of_later_transformers_are_read_as_well(made, tmp_path):
    tensors = {key: value.clone() for key, value in made[1].state_dict().items()}
    save_file(tensors, tmp_path / "HPSv3.safetensors")
    scorer = reward.load(str(tmp_path), str(made[0]), "cpu")
    assert torch.equal(scorer.network.state_dict()["rm_head.0.weight"], tensors["rm_head.0.weight"])


def test_a_truncated_file_and_missing_ones_are_named(made, tmp_path):
    content = (made[0] / "HPSv3.safetensors").read_bytes()
    (tmp_path / "HPSv3.safetensors").write_bytes(content[:-100])
    with pytest.raises(ValueError, match="HPSv3.safetensors"):
        reward.load(str(tmp_path), str(made[0]), "cpu")
    with pytest.raises(FileNotFoundError, match="base"):
        reward.load(str(tmp_path), str(tmp_path), "cpu")
    with pytest.raises(FileNotFoundError, match="instruction"):
        hpsv3_instruction(str(tmp_path / "none.txt"))


def test_an_instruction_is_read_from_python_without_running_it(tmp_path):
    file = tmp_path / "collator.py"
    others = "import nothing\nf = open('x')\na.b = 1\n"
    file.write_text(f"{others}INSTRUCTION = '- {{text_prompt}}'\n{HPSV3_NAMES[1]} = ' <|Reward|>'\n1 / 0\n")
    assert hpsv3_instruction(str(file)) == "- {text_prompt} <|Reward|>"
    with pytest.raises(ValueError, match="f.py"):
        constants("INSTRUCTION = 1", ["other"], "f.py")
    (tmp_path / "wrong.txt").write_text("rate it")
    with pytest.raises(ValueError, match="{text_prompt}"):
        hpsv3_instruction(str(tmp_path / "wrong.txt"))


def test_weights_are_a_folder_or_files_of_a_hub_id(tmp_path, monkeypatch):
    import huggingface_hub

    asked = []

    def download(source: str, allow_patterns: list[str]) -> str:
        asked.append((source, allow_patterns))
        if source == "gone/away":
            raise OSError("no network")
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert folder_of(str(tmp_path), "mine", ["a"]) == tmp_path and asked == []
    assert folder_of("owner/name", "mine", ("a", "b")) == tmp_path and asked == [("owner/name", ["a", "b"])]
    for missing in ("nowhere", "./no/where", "/no", "~/no", "a/b/c"):
        with pytest.raises(FileNotFoundError, match="mine.*weights"):
            folder_of(missing, "mine", ["a"])
    assert len(asked) == 1
    with pytest.raises(FileNotFoundError, match="gone/away"):
        folder_of("gone/away", "mine", ["a"])
