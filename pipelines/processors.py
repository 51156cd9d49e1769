"""Processors of transformers, also on machines without torchvision."""

from __future__ import annotations

from typing import Any

from pipelines.conversation import load_tokenizer
from pipelines.pretrained import read_json, read_part


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
