"""A judge in this process: any vision-language model of transformers, from a folder or a hub id."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from mmgrpo.config.extras import install
from mmgrpo.data.chat import ChatTemplate, end_tokens, special_tokens
from mmgrpo.data.values import reason_of
from mmgrpo.types import Image
from reward_models.checkpoints import read_whole
from reward_models.judges.question import Question
from reward_models.pixels import to_pil


@dataclass(frozen=True)
class LocalJudge:
    """A frozen model with its processor; ``batch`` questions are answered at a time, the most probable token each."""

    network: Any
    processor: Any
    batch: int
    device: torch.device
    temperature: float = 0.7
    """Of the answers to a question after the first."""

    @cached_property
    def chat(self) -> ChatTemplate:
        """The judge's chat template."""
        return ChatTemplate(self.processor)

    def answers(self, questions: Sequence[Question], tokens: int) -> list[str | None]:
        """As ``Judge.answers``; None for an answer that has not ended after ``tokens``. One that is drawn is so alone,
        from a seed of its own, so it does not depend on the others."""
        first = [place for place, question in enumerate(questions) if not question.draw]
        given = dict(zip(first, self._answers([questions[place] for place in first], tokens), strict=True))
        for place, question in enumerate(questions):
            if question.draw:
                with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
                    torch.manual_seed(int(question.digest[:15], 16))
                    drawn = {"do_sample": True, "temperature": self.temperature, "top_k": 0, "top_p": 1.0}
                    [given[place]] = self._answers([question], tokens, **drawn)
        return [given[place] for place in range(len(questions))]

    @torch.no_grad()
    def _answers(self, questions: Sequence[Question], tokens: int, **how: Any) -> list[str | None]:
        answers: list[str | None] = []
        all_ends = sorted(end_tokens(self.network, self.processor.tokenizer, self.chat.end_of_turn))
        ends = torch.tensor(all_ends, device=self.device)
        for inputs in self._batches(questions):
            arguments = {**inputs, **(how or {"do_sample": False})}
            ids = self.network.generate(**arguments, max_new_tokens=tokens, eos_token_id=all_ends)
            new = ids[:, inputs["input_ids"].shape[1] :]
            texts = self.processor.batch_decode(new, skip_special_tokens=True)
            answers += [
                text if ended else None
                for text, ended in zip(texts, torch.isin(new, ends).any(1).tolist(), strict=True)
            ]
        return answers

    @torch.no_grad()
    def log_probs(self, questions: Sequence[Question], words: Sequence[Sequence[str]]) -> list[list[float] | None]:
        """As ``Judge.log_probs``, of the whole vocabulary. A word counts by the first token of each of its spellings,
        which must tell the words apart."""
        ids = first_tokens(self.processor.tokenizer, words)
        rows: list[list[float] | None] = []
        for inputs in self._batches(questions):
            values = self.network(**inputs).logits[:, -1].float().log_softmax(1)
            rows += torch.stack([values[:, tokens].logsumexp(1) for tokens in ids], 1).tolist()
        return rows

    def _batches(self, questions: Sequence[Question]) -> Iterator[dict[str, Tensor]]:
        for first in range(0, len(questions), self.batch):
            chunk = questions[first : first + self.batch]
            texts = [self._text(question) for question in chunk]
            images = [[to_pil(part) for part in question.parts if isinstance(part, Image)] for question in chunk]
            media = {"images": images} if any(images) else {}
            special = special_tokens(self.processor.tokenizer, texts[0])  # all are of one template
            inputs = self.processor(text=texts, **media, **special, padding=True, return_tensors="pt")
            yield {name: value.to(self.device) for name, value in inputs.items()}

    def _text(self, question: Question) -> str:
        content = [{"type": "image"} if isinstance(p, Image) else {"type": "text", "text": p} for p in question.parts]
        return self.chat.text([{"role": "user", "content": content}]) + question.start


def first_tokens(tokenizer: Any, words: Sequence[Sequence[str]]) -> list[list[int]]:
    """For each word the first tokens of its spellings, those with a space before them included."""
    ids = []
    for spellings in words:
        forms = [form for spelling in spellings for form in (spelling, f" {spelling}")]
        rows = [tokenizer(form, add_special_tokens=False)["input_ids"] for form in forms]
        begin = {token for row in rows for token in [t for t in row if tokenizer.decode([t]).strip()][:1]}
        ids.append(sorted(begin - {tokenizer.unk_token_id, *tokenizer.all_special_ids}))
    several = [token for row in ids for token in row]
    if not all(ids) or len(several) > len(set(several)):
        raise ValueError(
            f"judge: the first tokens of {', '.join('/'.join(w) for w in words)} are {ids}, expected different "
            "ones for each word; use a judge with another vocabulary"
        )
    return ids


def load_judge(
    model: str, batch: int = 8, dtype: str = "bfloat16", temperature: float = 0.7, device: str = "cpu"
) -> LocalJudge:
    """A judge from a folder or hub id of ``transformers`` (AutoModelForImageTextToText); on the CPU in float32."""
    if temperature <= 0:
        raise ValueError(f"judge: temperature: got {temperature}, expected a positive number")
    if batch < 1 or dtype not in ("bfloat16", "float16", "float32"):
        raise ValueError(
            f"judge: got batch={batch} and dtype={dtype!r}, expected a positive batch, and bfloat16, float16 or float32"
        )
    try:
        from transformers import AutoModelForImageTextToText, AutoProcessor
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"judge: vlm(...) needs the package '{error.name}': {install('vlm')}", name=error.name
        ) from error
    try:
        processor: Any = AutoProcessor.from_pretrained(model, trust_remote_code=False)
    except (OSError, ValueError, ImportError) as error:
        raise unusable(model, error) from error
    check_template(processor, model)
    try:
        precision = torch.float32 if device == "cpu" else getattr(torch, dtype)
        network = read_whole(
            AutoModelForImageTextToText, model, {"dtype": precision, "trust_remote_code": False}, "weights"
        )
    except (OSError, ValueError, ImportError) as error:
        raise unusable(model, error) from error
    processor.tokenizer.padding_side = "left"
    network = network.to(device).eval().requires_grad_(False)
    return LocalJudge(network, processor, batch, torch.device(device), temperature)


def unusable(model: str, error: Exception) -> ValueError:
    """The error of a judge whose processor or weights transformers does not read."""
    return ValueError(
        f"judge: {model} cannot be loaded as a vision-language model ({str(error).strip().splitlines()[0]}); expected "
        "a folder or hub id with its weights and processor"
    )


def check_template(processor: Any, model: str) -> None:
    """ValueError for a judge without a chat template, or whose template raises for a question with an image or for one
    without; before its weights are read."""
    if not getattr(processor, "chat_template", None):
        raise ValueError(f"judge: {model} has no chat template, expected a model that was trained on conversations")
    words = {"type": "text", "text": "a question"}
    for title, parts in (("an image and a text", [{"type": "image"}, words]), ("a text", [words])):
        try:
            ChatTemplate(processor).text([{"role": "user", "content": parts}])
        except ValueError as error:
            reason = reason_of(error.__cause__ or error)
            raise ValueError(
                f"judge: {model}: its chat template raises for a turn of {title} ({reason}); correct its "
                "chat_template.jinja, or name another model"
            ) from error
