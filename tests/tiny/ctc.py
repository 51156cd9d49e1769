"""Small CTC recognizers of several architectures, over letters."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

LETTERS = "abcdefghijklmnopqrstuvwxyz'"
WIDTH = 32


def tiny(folder: str | Path, kind: str = "wav2vec2", seed: int = 0) -> str:
    """Write a random recognizer of some 30,000 parameters with its processor; ``kind`` is of ``KINDS``."""
    from transformers import AutoModelForCTC

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    config_of, processor_of = KINDS[kind]
    processor = processor_of(folder)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = AutoModelForCTC.from_config(config_of(len(processor.tokenizer), processor.tokenizer.pad_token_id))
        # With the default initialization the output hardly depends on the recording, so no test could detect it.
        for name, parameter in network.named_parameters():
            if name.endswith("head.weight"):
                parameter.data *= 16
            elif parameter.dim() == 2:
                parameter.data *= 8
    network.save_pretrained(folder)
    processor.save_pretrained(folder)
    return str(folder)


def convolutional(kind: str) -> Callable[[int, int], Any]:
    """The configuration of a model with wav2vec's encoder: 16 kHz samples, a frame every 40 ms."""

    def config_of(labels: int, blank: int) -> Any:
        from transformers import AutoConfig

        return AutoConfig.for_model(
            kind,
            vocab_size=labels,
            hidden_size=WIDTH,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=2 * WIDTH,
            conv_dim=(16, 16, 16),
            conv_kernel=(10, 8, 8),
            conv_stride=(10, 8, 8),
            num_feat_extract_layers=3,
            num_conv_pos_embeddings=4,
            num_conv_pos_embedding_groups=2,
            pad_token_id=blank,
        )

    return config_of


def large(labels: int, blank: int) -> Any:
    """The configuration of a large wav2vec 2.0: layer norms in place of the group norm, which padding would change."""
    config = convolutional("wav2vec2")(labels, blank)
    config.feat_extract_norm, config.do_stable_layer_norm, config.conv_bias = "layer", True, True
    config.mask_time_prob, config.layerdrop, config.attention_dropout, config.activation_dropout = 0.05, 0.1, 0.1, 0.1
    return config


def parakeet(labels: int, blank: int) -> Any:
    """The configuration of a Parakeet: log-mel spectrograms, a frame every 80 ms."""
    from transformers import ParakeetCTCConfig

    encoder = {
        "hidden_size": WIDTH,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 2 * WIDTH,
        "subsampling_conv_channels": 8,
        "conv_kernel_size": 5,
        "num_mel_bins": 80,
        # Published files have these, although the models were trained without.
        **dict.fromkeys(("dropout", "dropout_positions", "layerdrop", "activation_dropout", "attention_dropout"), 0.1),
    }
    return ParakeetCTCConfig(vocab_size=labels, encoder_config=encoder, pad_token_id=blank)


def letter_processor(folder: Path, return_attention_mask: bool = False) -> Any:
    """The processor of wav2vec 2.0, with | between words; the blank is <pad>. Those of base models return no mask."""
    from transformers import Wav2Vec2CTCTokenizer, Wav2Vec2FeatureExtractor, Wav2Vec2Processor

    labels = ["<pad>", "<s>", "</s>", "<unk>", "|", *LETTERS]
    (folder / "vocab.json").write_text(json.dumps({label: place for place, label in enumerate(labels)}))
    tokenizer = Wav2Vec2CTCTokenizer(str(folder / "vocab.json"))
    return Wav2Vec2Processor(Wav2Vec2FeatureExtractor(return_attention_mask=return_attention_mask), tokenizer)


def piece_processor(folder: Path) -> Any:
    """The processor of Parakeet; ▁ begins a word, and the blank is the last label."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import ParakeetFeatureExtractor, ParakeetProcessor, ParakeetTokenizer

    labels = ["<unk>", "▁", *LETTERS, *(f"▁{letter}" for letter in LETTERS), "<pad>"]
    inner = Tokenizer(models.BPE({label: place for place, label in enumerate(labels)}, [], unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    inner.decoder = decoders.Metaspace()
    tokenizer = ParakeetTokenizer(tokenizer_object=inner, unk_token="<unk>", pad_token="<pad>")
    return ParakeetProcessor(ParakeetFeatureExtractor(feature_size=80), tokenizer)


KINDS: Mapping[str, tuple[Callable[[int, int], Any], Callable[[Path], Any]]] = {
    "wav2vec2": (convolutional("wav2vec2"), letter_processor),
    "wav2vec2_large": (large, lambda folder: letter_processor(folder, True)),
    "hubert": (convolutional("hubert"), letter_processor),
    "wavlm": (convolutional("wavlm"), letter_processor),
    "parakeet_ctc": (parakeet, piece_processor),
}
"""Model type, or a variant of one, to its configuration, of the number of labels and the blank, and its processor."""
