"""The look of the demo: the colours of the reports, the system's own fonts, nothing from outside this machine."""

from __future__ import annotations

import gradio as gr

FONTS = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "Helvetica Neue", "DejaVu Sans", "sans-serif")
MONO = ("ui-monospace", "SF Mono", "Menlo", "Consolas", "DejaVu Sans Mono", "monospace")

CSS = """
:root {
  --ink: #1d1d22; --soft: #62626b; --line: #dcdce2; --paper: #fbfbf9; --card: #ffffff;
  --accent: #2f6fae; --good: #1a7446; --bad: #b3412f; --mark: #925c00;
}
.dark {
  --ink: #e8e8ee; --soft: #a3a3ad; --line: #34343b; --paper: #151518; --card: #1d1d22;
  --accent: #6ba7e0; --good: #62c795; --bad: #ee8a78; --mark: #e2ae56;
}
.gradio-container { width: 100%; max-width: 78rem !important; margin: 0 auto !important; }
.gradio-container button { white-space: nowrap; }
.gradio-container h3 { font-size: 1rem; font-weight: 600; margin: 0 0 .6rem; color: var(--ink); }
footer { display: none !important; }
.soft { color: var(--soft); } .good { color: var(--good); } .bad { color: var(--bad); }
.note { color: var(--soft); font-size: .85rem; }
:focus-visible { outline: 2px solid var(--accent) !important; outline-offset: 2px; }

/* The header */
#head header { display: flex; flex-wrap: wrap; align-items: baseline; gap: .2rem 1rem; padding: .8rem 0 .3rem; }
#head h1 { font-size: 1.5rem; letter-spacing: -.02em; margin: 0; color: var(--ink); }
#head p { margin: 0; color: var(--soft); overflow-wrap: anywhere; }
#head details { font-size: .85rem; color: var(--mark); overflow-wrap: anywhere; }
#head summary { cursor: pointer; }

pre { overflow-x: auto; white-space: pre-wrap; overflow-wrap: anywhere; font-size: .82rem; }

/* Samples */
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(8.5rem, 1fr)); gap: .7rem; }
button.card {
  position: relative; display: flex; flex-direction: column; gap: .4rem; padding: .4rem; margin: 0; text-align: left;
  font: inherit; color: var(--ink); background: var(--card); border: 1px solid var(--line); border-radius: 8px;
  cursor: pointer;
}
button.card:hover { border-color: var(--accent); }
button.card[aria-pressed="true"] { border-color: var(--accent); box-shadow: 0 0 0 1px var(--accent); }
.card img, .card video { width: 100%; height: auto; margin: 0; border-radius: 4px; display: block; }
.card .place {
  position: absolute; top: .7rem; left: .7rem; padding: 0 .4rem; border-radius: 4px; font-size: .75rem;
  color: #fff; background: #1d1d22b0;
}
.rewards { display: block; font-size: .78rem; line-height: 1.45; }
.rewards > span { display: flex; justify-content: space-between; gap: .5rem; color: var(--soft); }
.rewards > span > span { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.rewards b { font-weight: 400; font-variant-numeric: tabular-nums; color: inherit; }
.rewards > span.trained { color: var(--ink); } .rewards > span.trained b { font-weight: 600; }
#visual-slider img { image-rendering: pixelated; }

/* Outputs */
.mm-sides { display: flex; flex-wrap: wrap; gap: 12px; }
.mm-sides figure { flex: 1 1 150px; max-width: 640px; min-width: 0; margin: 0; }
.mm-sides figure .mm-medium { display: block; width: 100%; max-width: 360px; margin: 0; border-radius: 6px;
  border: 1px solid var(--border-color-primary); }
.mm-sides figure .mm-small { image-rendering: pixelated; }
.mm-sides audio { width: 100%; min-width: 0; }
.mm-text { white-space: pre-wrap; overflow-wrap: anywhere; padding: 10px; border-radius: 6px; max-height: 22em;
  overflow-y: auto; border: 1px solid var(--border-color-primary); background: var(--background-fill-secondary); }

/* Narrow windows */
@media (max-width: 640px) {
  .gradio-container { padding: .6rem !important; }
  .row { flex-wrap: wrap !important; }
  .results { order: -1; }
  .tab-container button { padding: 0 .28rem !important; font-size: .72rem !important; }
  .cards { grid-template-columns: repeat(auto-fill, minmax(8rem, 1fr)); }
}
@media (prefers-reduced-motion: reduce) { * { animation: none !important; transition: none !important; } }
"""

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
