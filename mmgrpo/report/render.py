"""Mark-up from the templates beside this file; whatever is put into a template is escaped.

Python decides what is shown and in which order, templates decide how. No mark-up is written in Python: a string that is
not itself the result of ``render`` is text, and appears on the page as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined


def render(template: str, values: Mapping[str, Any]) -> str:
    """The template ``templates/<template>`` with ``values``, as mark-up that other templates do not escape again.

    A name that the template uses and ``values`` lacks is an error, not an empty string.
    """
    # A template module is mark-up by itself: Jinja marks what its own autoescape has escaped, so that nothing has to
    # be declared safe here.
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
