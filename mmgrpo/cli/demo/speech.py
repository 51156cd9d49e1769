"""The tab Speech: transcripts and synthesis."""

from __future__ import annotations

import gradio as gr

from mmgrpo.cli.demo.opened import Opened


def tab(opened: Opened) -> None:
    """Build the tab."""
    gr.Markdown("transcripts and synthesis")
