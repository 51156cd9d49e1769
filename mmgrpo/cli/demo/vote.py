"""The tab Vote: blind comparison."""

from __future__ import annotations

import gradio as gr

from mmgrpo.cli.demo.opened import Opened


def tab(opened: Opened) -> None:
    """Build the tab."""
    gr.Markdown("blind comparison")
