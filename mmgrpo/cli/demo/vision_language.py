"""The tab Vision-language: questions about pictures and clips."""

from __future__ import annotations

import gradio as gr

from mmgrpo.cli.demo.opened import Opened


def tab(opened: Opened) -> None:
    """Build the tab."""
    gr.Markdown("questions about pictures and clips")
