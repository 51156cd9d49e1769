"""Arguments of calls, by the schema that the model was shown."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from mmgrpo.policies.token_model import Query
from mmgrpo.policies.tool_calls import arguments_of
from mmgrpo.policies.tools import Episode, Tools
from mmgrpo.types import Prompt
from pipelines.tools import schemas

pytest.importorskip("transformers")

WRONG = object()


def schema_of(annotation: Any) -> dict[str, Any]:
    def tool(x: Any) -> str:
        """Do.

        Args:
            x: What.
        """
        return repr(x)

    tool.__annotations__["x"] = annotation
    return schemas([tool])[0]["function"]["parameters"]


@pytest.mark.parametrize(
    ("annotation", "values"),
    [
        (int, [(3, 3), ("3", 3), (3.0, 3), ("3.0", 3), (3.5, WRONG), ("three", WRONG), (True, WRONG), (None, WRONG)]),
        (float, [(3, 3), (0.5, 0.5), ("0.5", 0.5), ("NaN", WRONG), ("1e999", WRONG), ("true", WRONG), ([1], WRONG)]),
        (str, [("3", "3"), (3, "3"), (0.5, "0.5"), (True, "true"), (["a"], WRONG), ({}, WRONG), (None, WRONG)]),
        (bool, [(True, True), ("true", True), ("False", False), (1, WRONG), ("1", WRONG), ("yes", WRONG)]),
        (list[int], [([1, "2"], [1, 2]), ("[1, 2]", [1, 2]), (1, WRONG), (["a"], WRONG), ("a", WRONG)]),
        (dict[str, int], [({"a": "1"}, {"a": 1}), ('{"a": 1}', {"a": 1}), ({"a": "b"}, WRONG), ([], WRONG)]),
        (int | None, [(None, None), ("3", 3), ("a", WRONG)]),
        (int | str, [("3", "3"), (3, 3), (None, WRONG)]),
        (Literal["cat", "dog"], [("cat", "cat"), ("cow", WRONG), (3, WRONG)]),
        (Literal[1, 2], [(1, 1), ("2", 2), (3, WRONG)]),
        (Any, [("3", "3"), ([None], [None])]),
    ],
)
def test_values_are_converted_or_refused_by_the_schema(annotation, values):
    schema = schema_of(annotation)
    for value, wanted in values:
        got, error = arguments_of(schema, {"x": value})
        if wanted is WRONG:
            assert "'x'" in error and not got, value
        else:
            assert (got, error) == ({"x": wanted}, "") and type(got["x"]) is type(wanted), value


def search(query: str = "everything", count: int = 3) -> str:
    """Search.

    Args:
        query: What for.
        count: How many.
    """
    return f"{query} {count!r}"


@pytest.mark.parametrize(
    ("given", "result", "error"),
    [
        ({"query": "cats"}, "cats 3", ""),
        ({"query": "cats", "count": "5"}, "cats 5", ""),
        ({}, "everything 3", ""),
        ({"quer": "cats"}, "", "'quer'"),
        ({"query": "cats", "count": "many"}, "", "'count'"),
    ],
)
def test_a_tool_is_called_with_what_its_schema_says(given, result, error):
    parameters = {"search": schemas([search])[0]["function"]["parameters"]}
    tools = Tools([search], lambda parts: "", 4, 8, 60.0, parameters=parameters)
    call = tools._make_call(Episode(Query(Prompt("", "0"), 0, 1), 0), "search", given, 0)
    assert call.result == result and bool(call.error) == bool(error) and error in call.error


def test_what_must_be_given_is_missed():
    assert "'x'" in arguments_of(schema_of(int), {})[1]
