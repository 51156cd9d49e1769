"""What Granite-Speech (ibm-granite/granite-speech-3.3-2b and later) has that other models do not.

granite_extractor    its feature extractor, which needs torchaudio in transformers, without it
read_granite         its network with the adapter that lies next to its weights, merged
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from pipelines.lora import PEFT_FILES, read_adapters
from pipelines.pretrained import read_network, reading
from pipelines.training import Training


def read_granite(kind: Any, source: str, training: Training) -> Any:
    """The network of a checkpoint. An adapter next to its weights, which the model switches on where it hears, is
    merged into them, so adapters of one's own come on top of it.

    transformers would load the model that the adapter names; here only its tensors are read.
    """
    folder = Path(source)
    if training.network or (folder.is_dir() and not (folder / PEFT_FILES[0]).is_file()):
        return read_network(kind, source, training)
    if not folder.is_dir():
        from huggingface_hub import snapshot_download

        with reading(source):
            folder = Path(snapshot_download(source))
    with tempfile.TemporaryDirectory() as bare:
        for file in folder.iterdir():
            if file.name not in PEFT_FILES:
                os.symlink(file.resolve(), Path(bare) / file.name)
        try:
            network = read_network(kind, bare, training)
        except (OSError, ValueError) as error:
            raise type(error)(str(error).replace(bare, source)) from error
    network.name_or_path = network.config._name_or_path = source
    if (folder / PEFT_FILES[0]).is_file():
        merge(network.get_decoder(), *read_adapters(folder))
        network.config.has_lora_adapter = False
    return network


@torch.no_grad()
def merge(decoder: nn.Module, weights: Mapping[str, Tensor], config: Mapping[str, Any]) -> None:
    """W + (alpha / rank) B A for every pair of adapters, by its name from ``layers.`` on.

    ValueError for tensors of another kind, and for a module that the decoder does not have.
    """
    modules = {name: module for name, module in decoder.named_modules() if isinstance(module, nn.Linear)}
    for name, down in weights.items():
        place = "layers." + name.partition("layers.")[2].removesuffix(".lora_A.weight")
        if name.endswith(".lora_B.weight") and name.replace(".lora_B.", ".lora_A.") in weights:
            continue
        up = weights.get(name.replace(".lora_A.", ".lora_B."))
        if not name.endswith(".lora_A.weight") or up is None or place not in modules or config.get("use_rslora"):
            raise ValueError(
                f"the checkpoint's adapter: got the tensor '{name}', expected pairs of lora_A and lora_B of linear "
                "layers of the language model; merge the adapter with peft and give the merged model as the path"
            )
        weight: Tensor = modules[place].weight
        weight += (config["lora_alpha"] / config["r"]) * (up.float() @ down.float()).to(weight)


def granite_extractor() -> Any:
    """The class of Granite-Speech's feature extractor without torchaudio."""
    from transformers import BatchFeature, SequenceFeatureExtractor
    from transformers import GraniteSpeechFeatureExtractor as Theirs

    class GraniteSpeechFeatureExtractor(Theirs):
        """Under the name that checkpoints store."""

        def __init__(
            self,
            sampling_rate: int = 16_000,
            n_fft: int = 512,
            win_length: int = 400,
            hop_length: int = 160,
            n_mels: int = 80,
            projector_window_size: int = 15,
            projector_downsample_rate: int = 5,
            padding_value: float = 0.0,
            **more: Any,
        ) -> None:
            more.pop("feature_size", None)
            SequenceFeatureExtractor.__init__(self, n_mels, sampling_rate, padding_value, **more)
            sizes = {"sample_rate": sampling_rate, "n_fft": n_fft, "win_length": win_length}
            self.melspec_kwargs = {**sizes, "hop_length": hop_length, "n_mels": n_mels}
            self.projector_window_size = projector_window_size
            self.projector_downsample_rate = projector_downsample_rate

        def __call__(self, audios: Any, device: str | None = "cpu") -> BatchFeature:
            samples, lengths = self._get_audios_and_audio_lengths(audios)
            sizes = self._get_num_audio_features(lengths)
            real = torch.arange(max(sizes)) < torch.tensor(sizes)[:, None]
            frames = granite_frames(samples, **self.melspec_kwargs)
            return BatchFeature({"input_features": frames, "audio_embed_sizes": sizes, "input_features_mask": real})

        def _get_audios_and_audio_lengths(self, audios: Any) -> Any:
            tensors = [torch.as_tensor(audio, dtype=torch.float32).flatten() for audio in audios]
            return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True), [len(tensor) for tensor in tensors]

    return GraniteSpeechFeatureExtractor


def granite_frames(
    samples: Float[Tensor, "clips samples"], sample_rate: int, n_fft: int, win_length: int, hop_length: int, n_mels: int
) -> Float[Tensor, "clips frames width"]:
    """Log-mel spectrograms as Granite-Speech reads them, two frames of 10 ms in one.

    The spectrogram is ``torchaudio.transforms.MelSpectrogram`` with its defaults: power 2, Hann's window, centred
    frames with reflected ends, filters on HTK's scale without normalization.
    """
    from transformers.audio_utils import mel_filter_bank

    window = torch.hann_window(win_length)
    spectrum = torch.stft(samples, n_fft, hop_length, win_length, window, center=True, return_complex=True)
    filters = mel_filter_bank(n_fft // 2 + 1, n_mels, 0.0, sample_rate / 2, sample_rate, norm=None, mel_scale="htk")
    mel = torch.einsum("cft,fm->ctm", spectrum.abs().square(), torch.from_numpy(filters).float())
    log = mel.clamp(min=1e-10).log10()
    log = torch.maximum(log, log.amax((1, 2), keepdim=True) - 8.0) / 4 + 1
    log = log[:, : len(log[0]) // 2 * 2]
    return log.reshape(len(log), -1, 2 * n_mels)
