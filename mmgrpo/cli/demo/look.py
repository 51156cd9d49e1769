"""The look of the demo: the colours of the reports, the system's own fonts, nothing from outside this machine."""

from __future__ import annotations

from pathlib import Path

import gradio as gr

FONTS = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "Helvetica Neue", "DejaVu Sans", "sans-serif")
MONO = ("ui-monospace", "SF Mono", "Menlo", "Consolas", "DejaVu Sans Mono", "monospace")

CSS = (Path(__file__).parent / "look.css").read_text(encoding="utf-8")

HEAD = '<link rel="icon" href="data:,"><meta name="referrer" content="no-referrer">'
"""No icon, and no referrer is sent."""


def theme() -> gr.themes.Base:
    """Gradio's plainest theme in the colours of the reports."""
    blue = gr.themes.Color(
        *("#f2f7fb", "#dfebf6", "#c0d8ec", "#9cc1e1", "#6ba7e0", "#4487c6"),
        *("#2f6fae", "#275c91", "#204a74", "#1a3b5c", "#122a42"),
    )
    colours = {
        "--paper": (
            "body_background_fill",
            "background_fill_secondary",
            "input_background_fill",
            "panel_background_fill",
        ),
        "--card": (
            "background_fill_primary",
            "block_background_fill",
            "block_label_background_fill",
            "color_accent_soft",
        ),
        "--ink": ("body_text_color",),
        "--soft": ("body_text_color_subdued", "block_label_text_color", "block_title_text_color"),
        "--line": ("block_border_color", "border_color_primary", "input_border_color", "button_cancel_border_color"),
        "--accent": ("input_border_color_focus", "link_text_color", "slider_color"),
        "--bad": ("button_cancel_text_color",),
    }
    values = {part: f"var({name})" for name, several in colours.items() for part in several}
    values |= {"button_cancel_background_fill": "transparent", "button_primary_background_fill": "#2f6fae"}
    values |= {f"{part}_dark": value for part, value in values.items()}
    made = gr.themes.Base(
        primary_hue=blue,
        secondary_hue=blue,
        font=FONTS,
        font_mono=MONO,
    )
    return made.set(
        **values,
        input_border_width="1px",
        block_title_text_weight="500",
        button_primary_background_fill_hover="#275c91",
        button_primary_background_fill_hover_dark="#4487c6",
        button_primary_text_color="#ffffff",
    )
