"""Tokenizers and processors of transformers, also on machines without torchvision."""

from __future__ import annotations

from typing import Any

from pipelines.pretrained import read_json, read_part, reading


def load_tokenizer(path: str) -> Any:
    """The tokenizer as it was saved; older checkpoints have its chat template in a file of the processor.

    AutoTokenizer replaces a tokenizer without a class of its own by the model's class, whose pre-tokenization rules are
    not those of the file.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerFast
    from transformers.models.auto.tokenization_auto import get_tokenizer_config

    with reading(path):
        config = get_tokenizer_config(path, trust_remote_code=False)
        generic = config.get("tokenizer_class") in ("TokenizersBackend", "PreTrainedTokenizerFast")
    tokenizer = read_part(PreTrainedTokenizerFast if generic else AutoTokenizer, path, trust_remote_code=False)
    if tokenizer.chat_template is None and (older := read_json(path, "chat_template.json")):
        tokenizer.chat_template = older.get("chat_template")
    return tokenizer


def read_processor(source: str, model_type: str) -> Any:
    """The processor of a checkpoint; without torchvision also without the part that reads clips, which needs it."""
    import transformers
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES
    from transformers.utils import is_torchvision_available

    declared = (read_json(source, "processor_config.json") or {}).get("processor_class")
    kind = getattr(transformers, str(declared or PROCESSOR_MAPPING_NAMES.get(model_type)), transformers.AutoProcessor)
    if not is_torchvision_available() and "video_processor" in getattr(kind, "get_attributes", list)():
        Processor = without_clips(kind)
        processor = read_part(Processor, source, trust_remote_code=False)
    else:
        processor = read_part(transformers.AutoProcessor, source, trust_remote_code=False)
    processor.tokenizer = load_tokenizer(source)
    return processor


def without_clips(kind: Any) -> Any:
    """A class of processors without its part for clips, which this family shows as images."""

    @classmethod
    def get_attributes(cls: Any) -> list[str]:
        return [name for name in kind.get_attributes() if name != "video_processor"]

    return type(kind.__name__, (kind,), {"get_attributes": get_attributes})
