"""Mark-up from the templates next to this file; every value is escaped.

Python decides what is shown and in which order, templates decide how. Python contains no mark-up: any string that is
not the result of ``render`` is text, and is escaped.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined


def render(template: str, values: Mapping[str, Any]) -> str:
    """Render ``templates/<template>`` with ``values`` to mark-up, which other templates do not escape again.

    A variable of the template that ``values`` lacks is an error, and not an empty string.
    """
    # A template module is mark-up already, since Jinja's autoescape has escaped it: nothing is declared safe here.
    return _environment().get_template(template).make_module(dict(values)).__html__()


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("mmgrpo.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
