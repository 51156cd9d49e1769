"""VideoAlign: a small checkpoint in the published folder, merged and computed by peft and transformers, and by us."""

from __future__ import annotations

import json
import math
import shutil
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from mmgrpo.data.images import smart_resize
from mmgrpo.types import Image, Prompt, Video
from reward_models.vlm import videoalign as reward
from reward_models.vlm.qwen2_vl import clip_pixels, patches, read_base
from reward_models.vlm.videoalign import TOKENS, frame_places, load, videoalign
from tests.libraries.reward_models.vlm.tiny_qwen import amplified, hidden_at, old_names, write_base

INSTRUCTION = "quality : <|VQ_reward|> END motion : <|MQ_reward|> END - {text_prompt} : <|TA_reward|> END"
SETTINGS = {
    "data_config": {"fps": 2.0, "max_frame_pixels": 128 * 28 * 28 + 5000},
    "model_config": {"output_dim": 1},
    "peft_lora_config": {"lora_r": 4, "lora_alpha": 8},
    "inference_config": {
        "VQ_mean": 1.0, "VQ_std": 2.0, "MQ_mean": 0.5, "MQ_std": 4.0, "TA_mean": -1.0, "TA_std": 0.5,
    },
}  # fmt: skip


def write(folder, out=1):
    """The published folder and that of the base; return (folder, base, the merged network)."""
    from peft import LoraConfig, get_peft_model
    from transformers import Qwen2VLModel

    base, weights = write_base(folder / "base"), folder / "weights"
    step = weights / "checkpoint-120"
    step.mkdir(parents=True)
    (weights / "checkpoint-30").mkdir()
    settings = {**SETTINGS, "model_config": {"output_dim": out}}
    (weights / "model_config.json").write_text(json.dumps(settings))
    (weights / reward.TEMPLATE).write_text(f"import torch\n{reward.CONSTANT} = {INSTRUCTION!r}\n")
    config, _ = read_base(str(base), TOKENS, "videoalign")
    torch.manual_seed(0)
    network = torch.nn.Module()
    network.model, network.rm_head = amplified(Qwen2VLModel(config)), torch.nn.Linear(32, out, bias=False)
    before = old_names(network)
    table = before["model.embed_tokens.weight"]
    base_tensors = {**before, "model.embed_tokens.weight": torch.cat([table, torch.zeros(27, 32)])}
    del base_tensors["rm_head.weight"]
    half = len(base_tensors) // 2
    for n, names in enumerate((list(base_tensors)[:half], list(base_tensors)[half:])):
        save_file({name: base_tensors[name] for name in names}, base / f"model-0000{n + 1}-of-00002.safetensors")
    lora = LoraConfig(
        r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "down_proj", "fc1"], init_lora_weights=False
    )
    wrapped = get_peft_model(network.model, lora)
    adapters = {
        _old(key).replace(".default.", "."): value.clone()
        for key, value in wrapped.state_dict().items()
        if "lora_" in key
    }
    assert any("visual" in key for key in adapters) and any("layers.1.mlp" in key for key in adapters)
    save_file(adapters, step / "adapter_model.safetensors")
    others = {"model.embed_tokens.weight": table, "rm_head.weight": network.rm_head.weight.detach().clone()}
    save_file(
        {f"base_model.model.{name}": value for name, value in others.items()}, step / "non_lora_state_dict.safetensors"
    )
    network.model = wrapped.merge_and_unload().eval()
    return weights, base, network


def _old(key):
    """The key of a model whose language model and vision tower are still named as before transformers 4.52."""
    inside = key.removeprefix("base_model.model.")
    new = inside.replace("language_model.", "model.", 1) if inside.startswith("language_model.") else inside
    return f"base_model.model.{new}"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return write(tmp_path_factory.mktemp("videoalign"))


def clip(frames=9, fps=8.0, seed=0):
    return Video(torch.rand(frames, 3, 30, 44, generator=torch.Generator().manual_seed(seed)), fps)


def by_transformers(base, network, text, frames):
    """The logits [3, out] with the clip prepared by torch and the forward pass of transformers."""
    levels = (frames * 255).round()
    size = smart_resize(30, 44, 28, 128 * 784, SETTINGS["data_config"]["max_frame_pixels"])
    pixels = torch.nn.functional.interpolate(levels, size, mode="bicubic", antialias=True).clamp(0, 255).round() / 255
    mean, std = torch.tensor([0.48145466, 0.4578275, 0.40821073]), torch.tensor([0.26862954, 0.26130258, 0.27577711])
    pixels = (pixels - mean[:, None, None]) / std[:, None, None]
    time, rows, columns = len(pixels) // 2, size[0] // 14, size[1] // 14
    values = pixels.view(time, 2, 3, rows // 2, 2, 14, columns // 2, 2, 14).permute(0, 3, 6, 4, 7, 2, 1, 5, 8)
    values = values.reshape(-1, 3 * 2 * 14 * 14)
    _, tokenizer = read_base(str(base), TOKENS, "videoalign")
    count = time * rows * columns // 4
    whole = (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n<|vision_start|>"
        + "<|video_pad|>" * count
        + f"<|vision_end|>{INSTRUCTION.format(text_prompt=text)}<|im_end|>\n<|im_start|>assistant\n"
    )
    ids = torch.tensor(tokenizer(whole, add_special_tokens=False)["input_ids"])
    grid = torch.tensor([[time, rows, columns]])
    special = tokenizer.convert_tokens_to_ids(list(TOKENS))
    hidden = hidden_at(network.model, ids, special, pixel_values_videos=values, video_grid_thw=grid)
    return network.rm_head(hidden)


def test_the_three_scores_are_those_of_the_merged_network(made):
    weights, base, network = made
    wanted = by_transformers(base, network, "red circle", clip().frames[[0, 3, 5, 8]])[:, 0].tolist()
    where = {"weights": str(weights), "base": str(base)}
    given = [Prompt("red circle")], [clip()]
    raw = [videoalign(*given, dimension=name, normalize=False, **where)[0] for name in ("VQ", "MQ", "TA")]
    assert raw == pytest.approx(wanted, abs=1e-5) and len(set(raw)) == 3
    scaled = [(wanted[0] - 1) / 2, (wanted[1] - 0.5) / 4, (wanted[2] + 1) / 0.5]
    assert videoalign(*given, dimension="MQ", **where) == [pytest.approx(scaled[1], abs=1e-5)]
    assert videoalign(*given, **where) == [pytest.approx(sum(scaled), abs=5e-5)]


def test_a_head_of_three_outputs_has_one_for_each_token(tmp_path):
    weights, base, network = write(tmp_path, out=3)
    wanted = by_transformers(base, network, "blue", clip().frames[[0, 3, 5, 8]]).diagonal().tolist()
    for n, name in enumerate(("VQ", "MQ", "TA")):
        found = videoalign(
            [Prompt("blue")], [clip()], dimension=name, normalize=False, weights=str(weights), base=str(base)
        )
        assert found == [pytest.approx(wanted[n], abs=1e-5)]


def test_a_whole_network_of_peft_gives_the_same_scores(made, tmp_path):
    weights, base, _ = made
    shutil.copytree(weights, tmp_path / "whole")
    step = tmp_path / "whole" / "checkpoint-120"
    parts = load_file(step / "adapter_model.safetensors"), load_file(step / "non_lora_state_dict.safetensors")
    whole = {key.replace(".weight", ".default.weight"): value for key, value in parts[0].items()}
    targets = {key.rsplit(".lora_", 1)[0] for key in parts[0]}
    for file in base.glob("*.safetensors"):
        for key, value in load_file(file).items():
            name, ending = f"base_model.model.{key}".rsplit(".", 1)
            whole[f"{name}.base_layer.{ending}" if name in targets else f"{name}.{ending}"] = value
    for name in ("adapter_model", "non_lora_state_dict"):
        (step / f"{name}.safetensors").unlink()
    save_file(whole | parts[1], step / "model.safetensors")
    given = [Prompt("red circle")], [clip()]
    assert videoalign(*given, weights=str(tmp_path / "whole"), base=str(base)) == pytest.approx(
        videoalign(*given, weights=str(weights), base=str(base)), abs=1e-5
    )


@pytest.mark.parametrize(
    ("total", "fps", "places"),
    [
        (16, 8.0, [0, 5, 10, 15]),  # two seconds at 2 a second
        (16, 4.0, [0, 2, 4, 6, 9, 11, 13, 15]),  # the same frames in four seconds
        (9, 8.0, [0, 3, 5, 8]),  # four at least
        (81, 16.0, [0, 9, 18, 27, 36, 44, 53, 62, 71, 80]),  # 10.1 become 10
        (3, 8.0, [0, 2]),  # an even number of those that there are
        (2, 8.0, [0, 1]),
    ],
)
def test_which_frames_are_seen(total, fps, places):
    assert frame_places(total, fps, 2.0) == places


def test_at_most_768_frames_are_seen():
    places = frame_places(2000, 1.0, 1.0)
    assert len(places) == 768 and (places[0], places[-1]) == (0, 1999)
    assert frame_places(768, 1.0, 1.0) == list(range(768))


def test_a_frame_of_128_tokens_is_large_enough():
    """224 x 448 pixels are 8 x 16 tokens of 28 x 28: it is not enlarged."""
    shapes = []
    scorer: Any = SimpleNamespace(logits=lambda text, media, *_: shapes.append(media[0].shape) or torch.zeros(3, 1))
    model = reward.VideoAlign(scorer, "", 2.0, 200_000, {})
    reward._score(model, Prompt("red"), Video(torch.zeros(4, 3, 224, 448), 8.0), 2.0)
    reward._score(model, Prompt("red"), Video(torch.zeros(4, 3, 112, 224), 8.0), 2.0)
    assert shapes == [(4, 3, 224, 448)] * 2


def test_another_rate_may_be_asked_for(made):
    weights, base, network = made
    wanted = by_transformers(base, network, "blue", clip().frames[[0, 1, 2, 3, 5, 6, 7, 8]])[1, 0].item()
    found = videoalign([Prompt("blue")], [clip()], "MQ", normalize=False, fps=8.0, weights=str(weights), base=str(base))
    assert found == [pytest.approx(wanted, abs=1e-5)]


def test_the_instruction_may_be_a_file_of_its_own(made, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "asked.txt").write_text(INSTRUCTION.replace("quality", "rate"))
    weights, base, _ = made
    for name in (str(tmp_path / "asked.txt"), "~/asked.txt"):
        assert load(str(weights), str(base), name, False, "cpu").instruction == INSTRUCTION.replace("quality", "rate")
    assert load(str(weights), str(base), "", False, "cpu").instruction == INSTRUCTION


def test_an_odd_number_of_frames_is_completed_by_the_last():
    frames = torch.rand(3, 3, 28, 28)
    odd, even = patches(frames), patches(torch.cat([frames, frames[2:]]))
    assert odd[1] == even[1] == (2, 2, 2) and torch.equal(odd[0], even[0])


def test_frames_are_resized_to_whole_levels():
    pixels = clip_pixels(torch.rand(2, 3, 720, 1280), 128 * 784, 200_704)
    assert pixels.shape[2:] == (336, 588)
    assert torch.equal((pixels * 255).round(), pixels * 255) and pixels.min() >= 0 and pixels.max() <= 1
    stripes = (torch.arange(56) // 2 % 2).float().expand(2, 3, 56, 56)
    enlarged = clip_pixels(stripes * 2 - 0.5, 112 * 112, 112 * 112)
    assert enlarged.shape[2:] == (112, 112) and enlarged.min() == 0 and enlarged.max() == 1
    torch.testing.assert_close(enlarged, clip_pixels(stripes, 112 * 112, 112 * 112))


def test_what_is_no_clip_is_an_error_and_what_cannot_be_scored_nan(made):
    where = {"weights": str(made[0]), "base": str(made[1])}
    broken = clip(frames=4)
    broken.frames[3, 2, 29, 1] = math.inf
    assert math.isfinite(videoalign([Prompt("red")], [clip(frames=2)], **where)[0])
    values = videoalign([Prompt("red")] * 2, [broken, clip(frames=1)], **where)
    assert all(math.isnan(value) for value in values)
    with pytest.raises(TypeError, match="Video"):
        videoalign([Prompt("red")], [Image(torch.zeros(3, 8, 8))], **where)
    with pytest.raises(ValueError, match="VQ.*MQ.*TA"):
        videoalign([], [], dimension="quality", **where)


PREFIX = "base_model.model.model.layers.0.self_attn.q_proj"


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "adapter_model",
            lambda t: t.pop(f"{PREFIX}.lora_A.weight"),
            "unexpected.*layers.0.self_attn.*lora_B",
        ),
        ("adapter_model", lambda t: t.pop(f"{PREFIX}.lora_B.weight"), "unexpected.*q_proj.lora_A.weight"),
        ("non_lora_state_dict", lambda t: t.pop("base_model.model.rm_head.weight"), "missing.*rm_head.weight"),
        ("non_lora_state_dict", lambda t: t.update(extra=torch.ones(1)), "unexpected: extra"),
        (
            "non_lora_state_dict",
            lambda t: t.update({"base_model.model.rm_head.weight": torch.ones(2, 32)}),
            r"rm_head.weight.*\[2, 32\].*\[1, 32\]",
        ),
        (
            "non_lora_state_dict",
            lambda t: t.pop("base_model.model.model.embed_tokens.weight"),
            "special tokens",
        ),
    ],
)
def test_files_that_do_not_fit_are_named_with_their_keys(made, tmp_path, name, change, message):
    shutil.copytree(made[0], tmp_path / "weights")
    file = tmp_path / "weights" / "checkpoint-120" / f"{name}.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)
    with pytest.raises(ValueError, match=f"videoalign: .*{message}"):
        load(str(tmp_path / "weights"), str(made[1]), "", False, "cpu")


def lora_file(folder, **others):
    """The file of a whole network: W = 0 of 2 x 2, and adapters whose product is 4 everywhere."""
    folder.mkdir(exist_ok=True)
    tensors = {"a.weight": torch.zeros(2, 2), "a.lora_A.weight": torch.ones(4, 2), "a.lora_B.weight": torch.ones(2, 4)}
    save_file({**tensors, **others}, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize(
    ("settings", "weight"), [({}, 8.0), ({"use_rslora": False}, 8.0), ({"use_rslora": True}, 16.0)]
)
def test_adapters_count_alpha_over_their_rank_or_its_root(tmp_path, settings, weight):
    """alpha 8 over rank 4, or over its root 2: twice or four times the product of 4."""
    step = lora_file(tmp_path / "step", **{"a.original_module.weight": torch.ones(1), "lm_head.weight": torch.ones(1)})
    (step / "model.pth").touch()
    lora = {"lora_r": 4, "lora_alpha": 8, **settings}
    tensors, name = reward._tensors(step, "", lora, torch.nn.Module(), False)
    assert {key: value.tolist() for key, value in tensors.items()} == {"a.weight": [[weight] * 2] * 2}
    assert name == str(step / "model.safetensors")


def test_adapters_of_a_matrix_that_there_is_not_are_named(tmp_path):
    plain = {"b.lora_A.weight": torch.ones(1, 1), "b.lora_B.weight": torch.ones(1, 1)}
    with pytest.raises(ValueError, match="unexpected.*b.lora_A.weight.*b.weight"):
        reward.merge_adapters(plain, 1.0, tmp_path)


@pytest.mark.parametrize(
    ("part", "left", "message"),
    [
        ("data_config", {"max_frame_pixels": 1}, "data_config.fps"),
        ("model_config", {}, "model_config.output_dim"),
        ("peft_lora_config", {"lora_r": 4}, "peft_lora_config.lora_alpha"),
        ("peft_lora_config", {"lora_alpha": 4}, "peft_lora_config.lora_r"),
        ("peft_lora_config", None, "peft_lora_config.lora_r.*peft_lora_config.lora_alpha"),
        ("inference_config", None, "inference_config"),
        ("inference_config", [1.0], "inference_config"),
    ],
)
def test_settings_that_are_missing_are_named(tmp_path, part, left, message):
    settings = {name: value for name, value in SETTINGS.items() if name != part}
    settings |= {} if left is None else {part: left}
    (tmp_path / "model_config.json").write_text(json.dumps(settings))
    with pytest.raises(ValueError, match=f"model_config.json.*{message}"):
        load.__wrapped__(str(tmp_path), "", "", False, "cpu")


def test_the_latest_checkpoint_is_read(tmp_path):
    with pytest.raises(FileNotFoundError, match="checkpoint-<step>"):
        reward._checkpoint(tmp_path)
    for name in ("checkpoint-final", "checkpoint-9", "checkpoint-"):
        (tmp_path / name).mkdir()
    assert reward._checkpoint(tmp_path).name == "checkpoint-9"
    (tmp_path / "checkpoint-10").mkdir()
    assert reward._checkpoint(tmp_path).name == "checkpoint-10"


@pytest.mark.parametrize(
    ("rows", "inside", "message"),
    [
        (0, False, "Qwen2-VL-2B"),
        (3, False, "special tokens"),
        (5, False, ""),
        (3, True, ""),
    ],
)
def test_embeddings_are_those_of_the_base_where_they_have_a_row_for_every_token(tmp_path, rows, inside, message):
    table = "model.language_model.embed_tokens.weight"
    network = SimpleNamespace(state_dict=lambda: {table: torch.zeros(5, 2)})
    (tmp_path / "base").mkdir()
    if rows:
        save_file({"model.embed_tokens.weight": torch.zeros(rows, 2)}, tmp_path / "base" / "m.safetensors")
    save_file({}, tmp_path / "adapter_model.safetensors")
    others = {"model.embed_tokens.weight": torch.ones(5, 2)} if inside else {"rm_head.weight": torch.ones(1, 2)}
    save_file(others, tmp_path / "non_lora_state_dict.safetensors")
    given: Any = (tmp_path, str(tmp_path / "base"), {"lora_r": 4, "lora_alpha": 8}, network, False)
    if message:
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            reward._tensors(*given)
    else:
        assert reward._tensors(*given)[0][table].tolist() == [[float(inside)] * 2] * 5


def test_a_base_without_embeddings_is_left_to_the_network_to_refuse(tmp_path):
    (tmp_path / "base").mkdir()
    for file in ("adapter_model", "non_lora_state_dict", "base/m"):
        save_file({"norm.weight": torch.ones(1)}, tmp_path / f"{file}.safetensors")
    network: Any = SimpleNamespace(state_dict=lambda: {"model.language_model.embed_tokens.weight": torch.zeros(5, 2)})
    lora = {"lora_r": 4, "lora_alpha": 8}
    assert [*reward._tensors(tmp_path, str(tmp_path / "base"), lora, network, False)[0]] == ["norm.weight"]


def test_a_truncated_file_a_pickle_and_missing_files_are_named(made, tmp_path):
    shutil.copytree(made[0], tmp_path / "w")
    step = tmp_path / "w" / "checkpoint-120"

    def message():
        with pytest.raises((ValueError, FileNotFoundError)) as caught:
            load(str(tmp_path / "w"), str(made[1]), "", False, "cpu")
        return str(caught.value)

    others = step / "non_lora_state_dict.safetensors"
    tensors = load_file(others)
    others.unlink()
    torch.save(tensors, step / "non_lora_state_dict.pth")
    assert "a pickle" in message() and "videoalign(allow_pickle=True)" in message()
    assert load(str(tmp_path / "w"), str(made[1]), "", True, "cpu").fps == 2.0
    file = step / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])
    assert "adapter_model.safetensors" in message()
    (tmp_path / "w" / reward.TEMPLATE).unlink()
    assert "no such file" in message() and reward.TEMPLATE in message()
    settings = {**SETTINGS, "data_config": {"fps": 2}}
    (tmp_path / "w" / "model_config.json").write_text(json.dumps(settings))
    assert "got no data_config.max_frame_pixels" in message()
    (tmp_path / "w" / "model_config.json").unlink()
    assert "has no model_config.json" in message()
