"""Descriptions of tools for a language model, and the settings that go with them."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmgrpo.config.registry import parse
from mmgrpo.config.settings import Config

if TYPE_CHECKING:
    from mmgrpo.policies.tools import Tools


def check_tools(config: Config, template: Mapping[str, Any]) -> None:
    """ValueError for ``sampling.tools`` that are none, and for a chat template, with these arguments, that does not
    write them."""
    from mmgrpo.policies.tool_table import having, load_tools, opens
    from mmgrpo.update import LossRecipe

    sampling, algorithm = config.sampling, config.algorithm
    loaded = load_tools(sampling.tools)
    rewarding = having(loaded, "reward") or sampling.program
    if not rewarding and "tool_reward" in {parse(str(reward))[0] for reward in config.rewards}:
        raise ValueError(
            "rewards: got tool_reward without a class in sampling.tools that has a method reward, or sampling.program; "
            "name one, or leave it out"
        )
    if sampling.program:
        from mmgrpo.policies.programs import Program

        Program.load(sampling.program, sampling.turns)
    if not loaded:
        return
    opening = [tool.__name__ for tool in loaded if isinstance(tool, type) and opens(tool)]
    if opening and (changed := sorted(name for name in LossRecipe.read(algorithm).scores if "@" in name)):
        raise ValueError(
            f"algorithm.terms: got one that scores under a changed prompt ({changed[0]}) with class '{opening[0]}' of "
            "sampling.tools, whose reset writes behind the prompt; leave out one of them"
        )
    described = schemas(loaded)
    if Path(config.model.path).is_dir():
        check_template(config.model.path, {**template, "tools": described})


def unread(config: Config) -> str:
    """Which classes' rewards the run does not read, in words for its arithmetic; empty: none."""
    from mmgrpo.advantages.estimate import AdvantageRecipe
    from mmgrpo.policies.tool_table import having, load_tools

    loaded = load_tools(config.sampling.tools)
    readers = {
        "reward": ("add tool_reward to rewards", "tool_reward" in {parse(str(reward))[0] for reward in config.rewards}),
        "turn_reward": (
            "set algorithm.credit to one of turns, e.g. turn_return",
            "step_rewards" in AdvantageRecipe.of(config.algorithm).fields,
        ),
    }
    names = {method: [owner.__name__ for owner in having(loaded, method)] for method in readers}
    return "".join(
        f"; {method}() of {', '.join(names[method])} is not read: {remedy}"
        for method, (remedy, read) in readers.items()
        if names[method] and not read
    )


def import_path(tool: Any, option: str = "tools") -> str:
    """``module:name`` of a function or class, by which a configuration records it; a text is one. ValueError that names
    the option for one that its module does not hold, a lambda for instance."""
    if isinstance(tool, str):
        return tool
    module, name = getattr(tool, "__module__", ""), getattr(tool, "__name__", "")
    if getattr(sys.modules.get(module), name, None) is not tool:
        raise ValueError(f"{option}: got {tool!r}, expected a function or a class at the top of a module")
    return f"{module}:{name}"


def check_template(path: str, arguments: Mapping[str, Any]) -> None:
    """ValueError for a folder without a chat template, or with one that does not write turns of results."""
    from mmgrpo.data.chat import ChatTemplate
    from pipelines.processors import load_tokenizer

    ChatTemplate(load_tokenizer(path), arguments).reply([""])


def schemas(tools: Sequence[Any]) -> list[dict[str, Any]]:
    """What chat templates take as ``tools``: name, description and parameters of each, by its signature and docstring.

    ValueError for one whose docstring does not describe every parameter (``Args:``), or with types that JSON lacks.
    """
    from transformers.utils import get_json_schema

    from mmgrpo.data.values import reason_of
    from mmgrpo.policies.tool_table import tools_by_name

    described = []
    for name, (owner, function) in tools_by_name(tools).items():
        bound = function if owner is None else getattr(object.__new__(owner), name)
        try:
            described.append(get_json_schema(bound))
        except Exception as error:  # of a docstring, a type hint, or a name in one
            raise ValueError(
                f"sampling.tools: '{name}' cannot be described to a model ({reason_of(error)}); give it a docstring "
                "with an entry in Args: for each parameter, and type hints"
            ) from error
    return described


def tools_of(config: Config, model: Any) -> Tools | None:
    """The tools of a configuration for a model with a chat template; None without any."""
    from mmgrpo.data.chat import special_ids
    from mmgrpo.policies.tool_table import load_tools
    from mmgrpo.policies.tools import Summaries, Tools

    sampling = config.sampling
    if not sampling.tools:
        return None
    tokenizer, chat = model.tokenizer, model.chat
    if model.turn_end is None:
        raise ValueError(
            "sampling.tools: the model's chat template ends a turn with no special token, so a policy cannot end "
            "its own; choose another model"
        )
    if "<tool_call>" not in model.decode(model.spell("<tool_call>")):
        raise ValueError(
            "sampling.tools: the model's tokenizer does not write <tool_call> into a text, since the word is a special "
            "token of it or unknown; change tokenizer.json, or choose another model"
        )
    if not chat.is_append_only:
        warnings.warn(
            "sampling.tools: the model's chat template writes earlier turns otherwise than they are sampled (it may "
            "drop their thoughts); they are kept as sampled, and whatever serves the model later should keep them too",
            stacklevel=2,
        )
    marks = {token for token in model.suppress_tokens if token < len(tokenizer)}
    loaded = load_tools(sampling.tools)
    return Tools(
        loaded,
        chat.reply,
        sampling.turns,
        sampling.observation_tokens,
        sampling.tool_seconds,
        tokenizer.convert_ids_to_tokens(sorted(special_ids(tokenizer) | marks)),
        model.prefilled,
        sampling.tool_workers,
        sampling.calls_per_turn,
        names_elsewhere(sampling.tools),
        {schema["function"]["name"]: schema["function"]["parameters"] for schema in schemas(loaded)},
        sampling.unreadable_calls,
        int(sampling.tool_memory * 1e9),
        Summaries(sampling.context_tokens, sampling.summaries, sampling.summary_instruction)
        if sampling.context_tokens
        else None,
    )


def names_elsewhere(names: Sequence[str]) -> Sequence[str]:
    """The names of tools if another Python finds them by these; none if one is of the program itself, of a notebook for
    instance, or of a module that was made in it."""
    modules = [name.partition(":")[0] for name in names]
    files = [getattr(getattr(sys.modules.get(module), "__spec__", None), "origin", None) for module in modules]
    importable = "__main__" not in modules and all(file and Path(file).is_file() for file in files)
    return list(names) if importable else ()
