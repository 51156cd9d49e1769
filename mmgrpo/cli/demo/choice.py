"""What happens when a visitor chooses an option of a list, or cancels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gradio as gr


def at_choice(
    options: gr.Dropdown,
    last: gr.State,
    act: Callable[..., Sequence[Any]],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    **listening: Any,
) -> None:
    """Run ``act`` when another option is chosen than ``last`` holds.

    Gradio calls it an input, too, when a list only loses the focus: without ``last``, somebody who passes over the list
    with the keyboard would lose what he had typed into ``outputs``. What sets the list must set ``last``.
    """

    def run(chosen: Any, before: Any, *values: Any) -> Sequence[Any]:
        return [gr.skip()] * (len(outputs) + 1) if chosen == before else [chosen, *act(*values)]

    options.input(run, [options, last, *inputs], [last, *outputs], **listening)


def at_cancel(
    button: gr.Button,
    running: list[Any],
    say: Callable[..., Any],
    inputs: list[Any],
    outputs: list[Any],
    **listening: Any,
) -> None:
    """Stop the events ``running`` when the button is pressed, and then say so.

    In two steps: in one, the browser may close the stream of events that ended while the words are on their way in it.
    """
    button.click(None, None, None, cancels=running, **listening).then(say, inputs, outputs, **listening)
