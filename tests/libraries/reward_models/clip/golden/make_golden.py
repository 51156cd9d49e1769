"""Makes the golden values of this folder with the package open_clip and torchvision:

    python -m tests.libraries.reward_models.clip.golden.make_golden

The model is a tiny random one of open_clip's own class. Tokens are given, so its vocabulary is not needed.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from reward_models.pixels import CLIP_MEAN, CLIP_STD, to_pil
from tests.libraries.reward_models.clip.tiny import SIZE, TEXTS, VOCABULARY, letters, pictures

HERE = Path(__file__).parent


def import_torchvision():
    """torchvision, also where it was built for GPUs and torch for CPUs."""
    try:
        import torchvision
    except RuntimeError:
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        import torchvision

        torchvision.library_of_stubs = library  # which is undone when it is collected
    return torchvision


def longest(picture, antialias):
    """ResizeMaxSize of HPSv2 on the tensor, then padded and normalized."""
    from torchvision.transforms import functional

    tensor = functional.to_tensor(picture)
    height, width = tensor.shape[1:]
    scale = SIZE / max(height, width)
    new = [round(height * scale), round(width * scale)]
    tensor = functional.resize(tensor, new, functional.InterpolationMode.BICUBIC, antialias=antialias)
    down, across = SIZE - new[0], SIZE - new[1]
    tensor = functional.pad(tensor, [across // 2, down // 2, across - across // 2, down - down // 2], fill=0)
    return functional.normalize(tensor, CLIP_MEAN, CLIP_STD)


def main() -> None:
    torchvision = import_torchvision()
    import open_clip

    assert (open_clip.OPENAI_DATASET_MEAN, open_clip.OPENAI_DATASET_STD) == (CLIP_MEAN, CLIP_STD)
    torch.manual_seed(0)
    tower = {"layers": 2, "width": 32}
    model = open_clip.CLIP(
        embed_dim=32,
        vision_cfg={**tower, "image_size": SIZE, "patch_size": 7, "head_width": 16, "mlp_ratio": 1.5},
        text_cfg={**tower, "context_length": 77, "vocab_size": VOCABULARY, "heads": 2, "mlp_ratio": 1.5},
        quick_gelu=True,
    ).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.2)
        parameter.data = parameter.data.half().float()
    crop = open_clip.image_transform(SIZE, is_train=False, mean=CLIP_MEAN, std=CLIP_STD)
    pils = [to_pil(image) for image in pictures()]
    golden = {
        "crop": torch.stack([crop(picture) for picture in pils]),
        "longest": torch.stack([longest(picture, True) for picture in pils]),
        "longest_sharp": torch.stack([longest(picture, False) for picture in pils]),
        "tokens": torch.tensor([letters(text) for text in TEXTS]),
    }
    with torch.no_grad():
        texts = model.encode_text(golden["tokens"], normalize=True)
        for name in ("crop", "longest"):
            images = model.encode_image(golden[name], normalize=True)
            golden[f"{name}_cosines"] = (images * texts).sum(-1)
            golden[f"{name}_features"] = images
        golden["texts"] = texts
        golden["logit_scale"] = model.logit_scale.exp()
    save_file({key: tensor.contiguous() for key, tensor in golden.items()}, HERE / "golden.safetensors")
    weights = {key: tensor.half().contiguous() for key, tensor in model.state_dict().items()}
    save_file(weights, HERE / "open_clip_model.safetensors")
    for file in HERE.glob("*.safetensors"):
        file.chmod(0o644)
    print(open_clip.__version__, torchvision.__version__, torch.__version__, sorted(weights)[:4])


if __name__ == "__main__":
    main()
