"""X-vectors of WavLM (arXiv:2110.13900), a stronger speaker encoder than the default of ``speaker_similarity``.

    speaker_similarity(encoder="microsoft/wavlm-base-plus-sv", reference="voice.flac")

A WavLM network, a time delay network, and the mean and standard deviation over time are projected to one vector
(arXiv:1803.09153). Checkpoints are those of ``transformers.WavLMForXVector``, as a folder or hub id.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from mmgrpo.config.plugins import locate
from mmgrpo.runtime.weight_files import check_weight_files
from reward_models.checkpoints import read_whole
from reward_models.speech.audio import import_library

EXAMPLE = "microsoft/wavlm-base-plus-sv"

UNUSED = ("objective.", "classifier.", "wavlm.masked_spec_embed")
"""Weights that only training uses; a checkpoint may lack them."""


@dataclass(frozen=True)
class XVectorEncoder:
    """A frozen WavLM with an x-vector head."""

    network: Any
    extractor: Any
    device: torch.device

    @property
    def rate(self) -> int:
        """Sampling rate in Hz."""
        return int(self.extractor.sampling_rate)

    @property
    def shortest(self) -> int:
        """Fewest samples with two frames after all convolutions, since one frame has no standard deviation."""
        config = self.network.config
        length = 2 + sum(
            dilation * (kernel - 1) for kernel, dilation in zip(config.tdnn_kernel, config.tdnn_dilation, strict=True)
        )
        for kernel, stride in reversed(list(zip(config.conv_kernel, config.conv_stride, strict=True))):
            length = (length - 1) * stride + kernel
        return length

    @torch.no_grad()
    def embed(self, samples: Float[np.ndarray, " samples"]) -> Float[np.ndarray, " width"]:
        """The x-vector of one recording, of unit norm.

        Recordings are embedded one by one, because neither way of padding a batch leaves an embedding unchanged. With
        ``feat_extract_norm="group"`` (wavlm-base) the first layer normalizes over time, padding included. And for an
        attention mask transformers computes the lengths after the time delay network without its dilation, so
        the statistics of a padded recording include frames of its padding (6 with the usual dilations 1, 2, 3, 1, 1).
        """
        if len(samples) < self.shortest:
            raise ValueError(
                f"speaker_similarity: got a recording of {len(samples)} samples at {self.rate} Hz, expected at least "
                f"{self.shortest} ({self.shortest / self.rate:.3f} s), what the convolutions of the encoder cover"
            )
        inputs = self.extractor(samples, sampling_rate=self.rate, return_tensors="pt")
        embedding = self.network(inputs.input_values.to(self.device)).embeddings[0]
        return torch.nn.functional.normalize(embedding, dim=0).cpu().numpy()


@functools.cache
def xvector_encoder(path: str, device: str = "cpu", allow_pickle: bool = False) -> XVectorEncoder:
    """The encoder of a folder or hub id in fp32, loaded once per process and device.

    Weights are read from safetensors, or with ``allow_pickle`` also from a ``pytorch_model.bin``, by torch's restricted
    unpickler.
    """
    transformers = import_library("transformers")
    folder = locate(path)
    if not Path(folder).is_dir() and folder.count("/") != 1:
        raise FileNotFoundError(
            f"speaker_similarity: unknown encoder '{folder}'; expected a folder, a hub id like {EXAMPLE}, or "
            "nothing for the default encoder"
        )
    check_weight_files(Path(folder), allow_pickle, "speaker_similarity(allow_pickle=True)")
    unreadable = (
        f"speaker_similarity: encoder '{path}' could not be read, expected a folder or a hub id that can be reached, "
        f"e.g. {EXAMPLE}"
    )
    try:
        config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except (OSError, ValueError) as error:  # ValueError for a folder without a model, or an unknown one
        raise FileNotFoundError(f"{unreadable}: {error}") from error
    if config.model_type != "wavlm":
        raise ValueError(
            f"speaker_similarity: encoder '{path}': got a model of type '{config.model_type}', expected wavlm with an "
            f"x-vector head, e.g. {EXAMPLE}"
        )
    try:
        options = {"dtype": torch.float32, "use_safetensors": None if allow_pickle else True}
        network = read_whole(
            transformers.WavLMForXVector, folder, options, f"speaker_similarity: encoder '{path}'", UNUSED
        )
        extractor = transformers.AutoFeatureExtractor.from_pretrained(folder, trust_remote_code=False)
    except OSError as error:
        raise FileNotFoundError(
            f"{unreadable}: {error} (weights are read from safetensors; allow_pickle=True reads pytorch_model.bin too)"
        ) from error
    return XVectorEncoder(network.eval().requires_grad_(False).to(device), extractor, torch.device(device))
