"""What the chat template of a checkpoint reads and writes, found by trying it, and prompts as token ids.

Published templates differ in more than their marks: some read the content of a turn as text only (Qwen2.5, SmolLM2,
DeepSeek-R1 and Granite concatenate it, Llama 3 writes Python's text of a list, Qwen3 of 2507 takes a list for nothing),
some as a list of parts only (SmolVLM, LLaVA); some write the beginning-of-sequence token and some leave it to the
tokenizer; some open a thought behind the assistant's header, refuse a system turn, end a turn with a token that is not
the tokenizer's end, or write today's date. ``ChatTemplate`` answers these questions for one template:

    chat = ChatTemplate(tokenizer)                    # or a processor; whatever has ``chat_template``
    text = chat.text(messages)                        # messages whose contents are lists of parts
    ids = token_ids(tokenizer, text)                  # with exactly one beginning-of-sequence token
    processor(text=[text], **special_tokens(tokenizer, text))    # the same for a processor
    chat.prefilled, chat.end_of_turn                  # "<think>\\n", "<|im_end|>\\n"

A template that reads texts only has its media as marks in the text: ``marks={"audio": "<|audio|>"}`` (Granite-Speech).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import cached_property
from itertools import product
from types import MappingProxyType
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from mmgrpo.config.names import nearest
from mmgrpo.data.messages import format_calls
from mmgrpo.data.values import one_line, reason_of
from mmgrpo.types import Media, Prompt, Turn

DATE = date(2024, 7, 26)
"""The date that templates with a clock write: a prompt has the same ids on every day, so a resumed run continues
the same one. It is the date of Llama 3.2's own template where it finds no clock."""

CLOCK = re.compile(r"strftime_now\(\s*(['\"])(.*?)\1\s*\)")
"""A template's call of the clock; its second group is the format of the date."""

NO_ARGUMENTS: Mapping[str, Any] = MappingProxyType({})

USER, ASSISTANT = "zqu0", "zqa1"
THOUGHT, RESULTS = "zqd2", ("zqe3", "zqf4")
CALLED, CALL_ID = "zqc7", "zqi000009"
"""Words of a trial, which no template writes; an id of a call has nine characters (Mistral)."""

TOOL_PROMPT = """\
# Tools

You may call these functions, whose signatures are between <tools> tags:
<tools>
TOOLS
</tools>

To call one, write a JSON object with its name and its arguments between <tool_call> tags, and end your turn:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call>"""
"""The system prompt on tools for a chat template that does not write them, in the form of Hermes."""


@dataclass(frozen=True)
class ChatTemplate:
    """The chat template of a tokenizer or processor with its arguments, e.g. ``{"enable_thinking": False}``.

    ValueError without a template, for an argument that the template does not read, and for a template that writes none
    of the words of a user's turn, whichever way they are given.
    """

    renderer: Any
    """A tokenizer or processor: ``chat_template``, ``apply_chat_template``."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    marks: Mapping[str, str] = field(default_factory=dict)
    """Type of a medium's part to its mark in a text, for templates that read no lists."""

    def __post_init__(self) -> None:
        if not self.renderer.chat_template:
            raise ValueError("the model's tokenizer has no chat template; add chat_template.jinja to its folder")
        names = [name for name in self.arguments if name != "tools"]
        if unread := [name for name in names if not re.search(rf"\b{re.escape(name)}\b", self.source)]:
            known = sorted(set(re.findall(r"\b[a-z]+(?:_[a-z]+)+\b", self.source)) - {"add_generation_prompt"})
            raise ValueError(
                f"model.template: the model's chat template does not read '{unread[0]}'.{nearest(unread[0], known)}"
            )

    @cached_property
    def source(self) -> str:
        """The template itself; of several the one of plain conversations, or of those with tools."""
        return self._source("tool_use" if self.writes_tools else "default")

    def _source(self, kind: str) -> str:
        source = self.renderer.chat_template
        return str(source.get(kind) or source["default"]) if isinstance(source, Mapping) else str(source)

    @cached_property
    def pinned(self) -> str:
        """The template with ``DATE`` in place of today's."""
        return CLOCK.sub(lambda call: f'"{DATE.strftime(call[2])}"', self.source)

    def text(self, messages: Sequence[Mapping[str, Any]], *, generate: bool = True) -> str:
        """The conversation as the model reads it, with ``generate`` up to the beginning of the assistant's answer.

        The content of each message is a list of parts, ``{"type": "text", "text": ...}`` or those of media; they are
        given to the template in the form that it reads. ValueError for a conversation that the template refuses.
        """
        try:
            return self._render([self._format_message(message) for message in self._with_tools(messages)], generate)
        except Exception as error:  # whatever a template raises for a conversation that it does not take
            roles = ", ".join(str(message["role"]) for message in messages)
            raise ValueError(
                f"the model's chat template refuses its turns ({roles}): {reason_of(error)}; change the turns, or put "
                "a system prompt at the beginning of the user's text (data.template)"
            ) from error

    @cached_property
    def prefilled(self) -> str:
        """What the template writes of the answer itself, behind the assistant's header: an opened thought,
        ``<think>\\n`` (DeepSeek-R1, Qwen3 Thinking), an empty one (Qwen3 with ``enable_thinking`` false), or nothing.

        The header is what stands before the words of an earlier answer.
        """
        question = self.text([_turn("user", USER)], generate=False)
        begun = self.text([_turn("user", USER)])
        try:
            answered = self.text([_turn("user", USER), _turn("assistant", ASSISTANT), _turn("user", USER)])
        except ValueError:
            return ""
        if not (begun.startswith(question) and answered.startswith(question) and ASSISTANT in answered):
            return ""
        opening, header = begun[len(question) :], answered[len(question) : answered.index(ASSISTANT)]
        same = next((place for place, pair in enumerate(zip(opening, header)) if pair[0] != pair[1]), len(header))
        return opening[same:]

    @cached_property
    def end_of_turn(self) -> str:
        """What the template writes behind the words of an answer, ``<end_of_turn>\\n``; "" where it takes none."""
        try:
            text = self.text([_turn("user", USER), _turn("assistant", ASSISTANT)], generate=False)
        except ValueError:
            return ""
        return text.rpartition(ASSISTANT)[2] if ASSISTANT in text else ""

    @cached_property
    def _header(self) -> str:
        """What the template writes of an answer before its words; with the end of the turn before it where it writes
        another end behind the last turn."""
        question, begun = (self.text([_turn("user", USER)], generate=generate) for generate in (False, True))
        return begun.removeprefix(question) if begun.startswith(question) else begun.rpartition(USER)[2]

    @property
    def _end(self) -> str:
        """The token of ``end_of_turn``."""
        return next(iter(self.end_of_turn.split()), "")

    def reply(self, results: Sequence[str | Sequence[Mapping[str, str]]]) -> str:
        """What the template writes behind the token that ends the assistant's turn, where the calls of that turn have
        these results, texts or lists of parts, up to the beginning of its next turn. ValueError for a template that
        writes no such turns."""
        turns = [
            _turn("tool", result) if isinstance(result, str) else {"role": "tool", "content": result}
            for result in results
        ]
        dialogue = [_turn("user", USER), _turn("assistant", ASSISTANT), *turns]
        texts = [part["text"] for turn in turns for part in turn["content"] if part["type"] == "text"]
        end = self._end
        _, _, rest = self.text(dialogue).partition(ASSISTANT)
        _, ended, reply = rest.partition(end) if end else ("", "", "")
        if not (ended and reply.endswith(self._header) and all(text.strip() in reply for text in texts)):
            raise ValueError(
                "sampling.tools: the model's chat template does not write turns of a user behind those of the "
                "assistant, each with its end; change chat_template.jinja, or choose another model"
            )
        return reply

    @cached_property
    def is_append_only(self) -> bool:
        """Whether the template writes a conversation with tools as its turns are sampled and read one after the other.
        Some do not: they drop earlier thoughts (Qwen3 with ``enable_thinking`` false drops the empty one)."""
        opening = self.prefilled or "<think>\n"
        answer = f"{opening}{ASSISTANT}" if "</think>" in opening else f"{opening}{THOUGHT}\n</think>\n\n{ASSISTANT}"
        sampled = answer.removeprefix(self.prefilled) + self._end
        first, second = ([_turn("assistant", answer), _turn("tool", result)] for result in RESULTS)
        question = _turn("user", USER)
        written = [self.text([question]), *(f"{sampled}{self.reply([result])}" for result in RESULTS)]
        return self.text([question, *first, *second]) == "".join(written)

    @cached_property
    def writes_tools(self) -> bool:
        """Whether the template itself writes the tools, asks for calls as JSON in ``<tool_call>``, and writes results
        (Hermes, Qwen2.5, Qwen3). Others ask for calls in another form, or know of none; the tools are then written into
        the system prompt, and results into a turn of the user, as Hermes does."""
        source = self._source("tool_use")
        if not (self.arguments.get("tools") and re.search(r"\btools\b", source)):
            return False
        for form in (lambda text: text, lambda text: [_part(text)]):
            turns = (("user", USER), ("assistant", ASSISTANT), ("tool", RESULTS[0]))
            try:
                text = self.renderer.apply_chat_template(
                    [{"role": role, "content": form(words)} for role, words in turns],
                    tokenize=False,
                    chat_template=source,
                    **self.arguments,
                )
            except Exception:  # a template that concatenates a list, or refuses a role
                continue
            if RESULTS[0] in text and re.search(r"<tool_call>\s*\{", text):
                return True
        return False

    @cached_property
    def _writes_calls(self) -> bool:
        """Whether the template itself writes calls of a history, and their results."""
        call = {"id": CALL_ID, "type": "function", "function": {"name": CALLED, "arguments": {"x": ASSISTANT}}}
        for form, content in product((lambda text: text, lambda text: [_part(text)]), ("", None)):
            request = {"role": "assistant", "content": content, "tool_calls": [call]}
            answer = {"role": "tool", "content": form(RESULTS[0]), "name": CALLED, "tool_call_id": CALL_ID}
            try:
                text = self._render([{"role": "user", "content": form(USER)}, request, answer], True)
            except Exception:  # a template that concatenates a list or null, or refuses a role
                continue
            if all(word in text for word in (CALLED, ASSISTANT, RESULTS[0])):
                return True
        return False

    def _with_tools(self, messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """Messages with tools, calls and results in the form that the template reads (``writes_tools``,
        ``_writes_calls``)."""
        tools = self.arguments.get("tools")
        spoken = any(message["role"] == "tool" or "tool_calls" in message for message in messages)
        if not tools and not spoken:
            return messages
        results = self.writes_tools if tools else self._writes_calls
        calls = results and (not spoken or self._writes_calls)
        turns: list[Mapping[str, Any]] = []
        for place, message in enumerate(messages):
            if "tool_calls" in message and not calls:
                parts_of_turn = [*(message["content"] or ()), _part(format_calls(message["tool_calls"]))]
                parts_of_turn = (
                    [parts_of_turn[0], _part("\n"), *parts_of_turn[1:]] if len(parts_of_turn) > 1 else parts_of_turn
                )
                kept = {name: value for name, value in message.items() if name != "tool_calls"}
                turns.append({**kept, "content": _join_texts(parts_of_turn)})
                continue
            if message["role"] != "tool" or results:
                turns.append(message)
                continue
            answer = [_part("<tool_response>\n"), *message["content"], _part("\n</tool_response>")]
            if messages[place - 1]["role"] == "tool":
                answer = [*turns.pop()["content"], _part("\n"), *answer]
            turns.append({"role": "user", "content": _join_texts(answer)})
        if not tools or self.writes_tools:
            return turns
        about = TOOL_PROMPT.replace("TOOLS", "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
        first, has_system = turns[0], turns[0]["role"] == "system"
        if has_system or not self._takes_system:
            parts = list(first["content"])
            words, at = ("\n\n" + about, len(parts) - 1) if has_system else (about + "\n\n", 0)
            if parts[at]["type"] == "text":
                parts[at] = _part(parts[at]["text"] + words if has_system else words + parts[at]["text"])
            else:
                parts.insert(len(parts) if has_system else 0, _part(words))
            return [{**first, "content": parts}, *turns[1:]]
        return [_turn("system", about), *turns]

    @cached_property
    def _takes_system(self) -> bool:
        """Whether a system prompt stays at the beginning of a conversation; some write it before the last turn of the
        user (Mistral Nemo)."""
        try:
            turns = ("system", USER), ("user", RESULTS[0]), ("assistant", ASSISTANT), ("user", RESULTS[1])
            text = self._render([self._format_message(_turn(*turn)) for turn in turns], True)
        except Exception:  # a template that refuses the role
            return False
        return 0 <= text.find(USER) < text.find(RESULTS[0])

    @cached_property
    def _forms(self) -> dict[str, tuple[bool, bool]]:
        """Memory of ``_form``."""
        return {}

    def _form(self, role: str) -> tuple[bool, bool]:
        """Whether the template reads the content of a role's turn as a text, and whether as a list of parts."""
        if role not in self._forms:
            trials: list[str] = []
            self._forms[role] = self._reads(role, USER, trials), self._reads(role, [_part(USER)], trials)
            if not any(self._forms[role]):
                del self._forms[role]
                raise ValueError(trials[0] if trials else f"it writes none of the words of a turn of role '{role}'")
        return self._forms[role]

    def _reads(self, role: str, content: Any, errors: list[str]) -> bool:
        """Whether a turn of this content is written as it should be."""
        turns: list[dict[str, Any]] = [{"role": role, "content": content}]
        if role == "tool" and not self.arguments.get("tools") and self._writes_calls:
            call = {"id": CALL_ID, "type": "function", "function": {"name": CALLED, "arguments": {}}}
            request = {"role": "assistant", "content": "", "tool_calls": [call]}
            turns = [
                self._format_message(_turn("user", "zqb2")),
                request,
                {**turns[0], "name": CALLED, "tool_call_id": CALL_ID},
            ]
        elif role != "user":
            before, after = self._format_message(_turn("user", "zqb2")), self._format_message(_turn("user", "zqc3"))
            turns = [*turns, after] if role == "system" else [before, *turns, after]
        try:
            text = self._render(turns, True)
        except Exception as error:  # a template that concatenates a list, or refuses the role
            errors.append(reason_of(error))
            return False
        return USER in text and not re.search(rf"""['"]text['"]:\s*['"]{USER}""", text)

    def _format_message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """A message with its content as the template reads it: one text as a text, several parts as a list."""
        role, parts = str(message["role"]), list(message["content"] or ())
        if not parts and "tool_calls" in message:
            return {**message, "content": None if message["content"] is None else ""}
        as_text, as_list = self._form(role)
        if as_list and not (as_text and len(parts) == 1 and parts[0]["type"] == "text"):
            return {**message, "role": role, "content": parts}
        if unmarked := {part["type"] for part in parts} - {"text", *self.marks}:
            raise ValueError(f"it reads texts only, and so no {' or '.join(sorted(unmarked))}")
        words = [part["text"] if part["type"] == "text" else self.marks[part["type"]] for part in parts]
        return {**message, "role": role, "content": "".join(words)}

    def _render(self, messages: Sequence[Mapping[str, Any]], generate: bool) -> str:
        has_variants = isinstance(self.renderer.chat_template, Mapping)
        changed = {"chat_template": self.pinned} if has_variants or self.pinned != self.source else {}
        given = {name: value for name, value in self.arguments.items() if name != "tools" or self.writes_tools}
        return self.renderer.apply_chat_template(
            list(messages), add_generation_prompt=generate, tokenize=False, **changed, **given
        )


def chat_of(renderer: Any, arguments: Mapping[str, Any] = NO_ARGUMENTS) -> ChatTemplate | None:
    """The chat template of a tokenizer or processor; None for a base model, which has none. ValueError for arguments of
    a template that is not there."""
    if renderer.chat_template or arguments:
        return ChatTemplate(renderer, arguments)
    return None


def _part(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def _join_texts(parts: Sequence[Mapping[str, str]]) -> list[Mapping[str, str]]:
    """Parts of which no two texts stand one behind the other."""
    joined: list[Mapping[str, str]] = []
    for part in parts:
        if part["type"] == "text" and joined and joined[-1]["type"] == "text":
            part = _part(joined.pop()["text"] + part["text"])
        joined.append(part)
    return joined


def _turn(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": [_part(text)]}


def special_tokens(tokenizer: Any, text: str) -> dict[str, bool]:
    """The arguments with which a tokenizer or processor gives ``text`` one beginning-of-sequence token, where it has
    one: what the text begins with already is not added a second time."""
    plain, beginning = _ids_and_prefix(tokenizer, text)
    return {"add_special_tokens": False} if beginning and plain[: len(beginning)] == beginning else {}


def token_ids(tokenizer: Any, text: str) -> list[int]:
    """Ids of a text that a model continues, with what its tokenizer puts in front of a text exactly once; what it would
    put behind it, an end, is left out."""
    plain, beginning = _ids_and_prefix(tokenizer, text)
    return plain if plain[: len(beginning)] == beginning else [*beginning, *plain]


def _ids_and_prefix(tokenizer: Any, text: str) -> tuple[list[int], list[int]]:
    """Ids of a text alone, and those that its tokenizer puts in front of it."""
    plain = list(tokenizer(text, add_special_tokens=False)["input_ids"])
    whole = list(tokenizer(text)["input_ids"])
    for place in range(len(whole) - len(plain) + 1):
        if whole[place : place + len(plain)] == plain:
            return plain, whole[:place]
    return plain, []  # a tokenizer that reads a text otherwise where it adds to it


def end_tokens(network: Any, tokenizer: Any, end_of_turn: str = "") -> frozenset[int]:
    """All ids that end a completion: those of the generation configuration (of the language model's configuration where
    it has none), that of the tokenizer, and that of the template's ``end_of_turn``."""
    ends = network.generation_config.eos_token_id
    if ends is None:
        ends = getattr(network.config.get_text_config(), "eos_token_id", None)
    listed = [] if ends is None else [ends] if isinstance(ends, int) else list(ends)
    more = (tokenizer.eos_token_id, turn_end(tokenizer, end_of_turn))
    return frozenset([*listed, *(token for token in more if token is not None)])


def turn_end(tokenizer: Any, end_of_turn: str) -> int | None:
    """The id of the special token with which a template ends a turn; None where it ends with none."""
    if not (written := end_of_turn.strip()):
        return None
    first = tokenizer(written, add_special_tokens=False)["input_ids"][0]
    return first if first in special_ids(tokenizer) else None


def special_ids(tokenizer: Any) -> frozenset[int]:
    """Ids of special tokens, named and added."""
    added = {place for place, token in tokenizer.added_tokens_decoder.items() if token.special}
    return frozenset(added | set(tokenizer.all_special_ids))


def pad_left(rows: Sequence[Sequence[int]], pad_id: int) -> tuple[Int[Tensor, "P L"], Bool[Tensor, "P L"]]:
    """Rows of ids in one tensor, padded on the left, and the mask of ids that are no padding."""
    length = max(map(len, rows))
    ids = torch.tensor([[pad_id] * (length - len(row)) + list(row) for row in rows])
    real = torch.tensor([[False] * (length - len(row)) + [True] * len(row) for row in rows])
    return ids, real


def turns_of(prompt: Prompt) -> tuple[Turn, ...]:
    """The conversation of a prompt; a prompt without turns is one turn of the user."""
    return prompt.turns or (Turn("user", (prompt.text,)),)


def conversation(
    prompt: Prompt, marks: Sequence[str], content: Callable[[Media], list[dict[str, str]]]
) -> list[dict[str, Any]]:
    """The messages of a prompt as chat templates take them.

    ``content`` returns the parts of the template that represent a medium. Text that contains one of ``marks`` (the
    placeholders of media) is refused, since the network could not distinguish it from a medium.
    """
    messages = []
    for turn in turns_of(prompt):
        parts: list[dict[str, str]] = []
        for part in turn.parts:
            if isinstance(part, Media):
                parts += content(part)
                continue
            for mark in marks:
                if mark in part:
                    raise ValueError(
                        f"prompt '{prompt.id}': its text contains {mark}, the placeholder of a medium; remove it"
                    )
            parts.append({"type": "text", "text": part})
        messages.append({**turn.keys, "role": turn.role, "content": parts if parts else turn.keys.get("content", [])})
    return messages


def conversation_text(
    chat: ChatTemplate | None, prompt: Prompt, marks: Sequence[str], content: Callable[[Media], list[dict[str, str]]]
) -> str:
    """The prompt (``conversation``) in the model's chat template, up to the beginning of the answer."""
    messages = conversation(prompt, marks, content)
    if chat is None:
        raise ValueError("the model's tokenizer has no chat template; add chat_template.jinja to its folder")
    try:
        return chat.text(messages)
    except ValueError as error:
        raise ValueError(f"prompt '{prompt.id}': {one_line(error)}") from error


def conversation_ids(
    chat: ChatTemplate | None, prompt: Prompt, marks: Sequence[str], content: Callable[[Media], list[dict[str, str]]]
) -> list[int]:
    """Ids of ``conversation_text`` by the tokenizer of the template, with one beginning-of-sequence token."""
    text = conversation_text(chat, prompt, marks, content)
    return token_ids(chat.renderer, text) if chat else []


def prompt_ids(tokenizer: Any, chat: ChatTemplate | None, prompt: Prompt) -> list[int]:
    """Ids of a prompt by the chat template, or of its text where there is none; ValueError for one with media."""
    if prompt.media:
        raise ValueError(
            f"prompt '{prompt.id}': got a medium of kind {prompt.media[0].kind}, expected text only; choose a "
            "family that takes media"
        )
    if chat is not None:
        return conversation_ids(chat, prompt, (), lambda medium: [])
    if len(prompt.turns) > 1:
        roles = ", ".join(turn.role for turn in prompt.turns)
        raise ValueError(
            f"prompt '{prompt.id}': got turns of {roles}, expected one text: the model's tokenizer has no chat "
            "template, which would write them; write the whole prompt as a text, or choose an instruction model"
        )
    ids = token_ids(tokenizer, prompt.text)
    if not ids:
        raise ValueError(f"prompt '{prompt.id}' ({prompt.text!r}): got no tokens, expected at least one")
    return ids


def check_prompt_lengths(prompts: Sequence[Prompt], rows: Sequence[Sequence[int]], limit: int, remedy: str) -> None:
    """ValueError for a prompt of more than ``limit`` tokens (0: no limit); ``remedy`` names what shortens prompts."""
    for prompt, row in zip(prompts, rows, strict=True):
        if 0 < limit < len(row):
            raise ValueError(
                f"prompt '{prompt.id}' has {len(row)} tokens with its media, more than max_prompt_tokens={limit}; "
                f"shorten it ({remedy}) or skip it (data.too_long=filter). It is not truncated, which would cut its "
                "media"
            )


def repeat_marks(ids: Sequence[int], counts: Sequence[int], marks: Sequence[int]) -> list[int]:
    """Ids in which the i-th mark is repeated ``counts[i]`` times, once per feature that replaces it."""
    remaining, expanded = list(counts), []
    for token in ids:
        expanded += [token] * (remaining.pop(0) if token in marks else 1)
    return expanded


def suppressed_tokens(tokenizer: Any, vocabulary: int, marks: Sequence[str], end_ids: frozenset[int]) -> frozenset[int]:
    """Ids that are never generated: marks of media, padding, and rows of the embedding without a token."""
    ids = {tokenizer.convert_tokens_to_ids(mark) for mark in marks if mark in tokenizer.get_vocab()}
    ids |= {tokenizer.pad_token_id} if tokenizer.pad_token_id is not None else set()
    # Embeddings are often padded to a round size; padding may double as an end token, which must stay possible.
    return frozenset(ids | set(range(len(tokenizer), vocabulary))) - end_ids


def completion_ids(
    tokenizer: Any, text: str, end_ids: frozenset[int], turn_end: int | None = None, prefilled: str = ""
) -> list[int]:
    """Ids of the completion ``text`` and its end: that of the template's turns (``turn_end``), else the tokenizer's end
    token, else the smallest id of ``end_ids``. What the template has prefilled is not written a second time."""
    if prefilled.strip() and text.lstrip().startswith(prefilled.strip()):
        text = text.lstrip()[len(prefilled.strip()) :].lstrip(prefilled[len(prefilled.rstrip()) :])
    end = next((token for token in (turn_end, tokenizer.eos_token_id) if token in end_ids), min(end_ids))
    return [*tokenizer(text, add_special_tokens=False)["input_ids"], end]


def positions_of(real: Bool[Tensor, "P L"]) -> Int[Tensor, "P 1 L"]:
    """Positions of tokens on one axis, which do not count the padding on the left."""
    return (real.long().cumsum(1) - 1).clamp(min=0)[:, None]
