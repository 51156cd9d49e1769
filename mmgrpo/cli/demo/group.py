"""The tab Group: the samples of a training prompt."""

from __future__ import annotations

import gradio as gr

from mmgrpo.cli.demo.opened import Opened


def tab(opened: Opened) -> None:
    """Build the tab."""
    gr.Markdown("the samples of a training prompt")
