"""The tab Rewards: score any file."""

from __future__ import annotations

import gradio as gr

from mmgrpo.cli.demo.opened import Opened


def tab(opened: Opened) -> None:
    """Build the tab."""
    gr.Markdown("score any file")
