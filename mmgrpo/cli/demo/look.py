"""The look of the demo: the colours of the reports, the system's own fonts, nothing from outside this machine."""

from __future__ import annotations

import gradio as gr

INK = {"light": "#1d1d22", "dark": "#e8e8ee"}
SOFT = {"light": "#62626b", "dark": "#a3a3ad"}
LINE = {"light": "#dcdce2", "dark": "#34343b"}
PAPER = {"light": "#fbfbf9", "dark": "#151518"}
CARD = {"light": "#ffffff", "dark": "#1d1d22"}
ACCENT = {"light": "#2f6fae", "dark": "#6ba7e0"}

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

/* Tables */
.wide { overflow-x: auto; }
.wide table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: .9rem; }
.wide table, .wide tr, .wide thead, .wide tbody { border: 0 !important; background: none !important; }
.wide th, .wide td { text-align: right; padding: .3rem .6rem; border: 0 !important; }
.wide tr > * { border-bottom: 1px solid var(--line) !important; }
.wide thead th { color: var(--soft); font-weight: 500; }
.wide th:first-child { text-align: left; padding-left: 0; font-weight: 500; }
.wide small { color: var(--accent); font-weight: 400; margin-left: .3rem; white-space: nowrap; }

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

/* The best of n */
.curve { margin: .3rem 0 0; max-width: 24rem; }
.curve svg { width: 100%; height: auto; display: block; }
.curve polyline { fill: none; stroke-width: 2.5; stroke-linejoin: round; }
.curve polyline.before { stroke: var(--soft); } .curve polyline.after { stroke: var(--accent); }
.curve line { stroke: var(--line); } .curve text { font-size: 9px; fill: var(--soft); }
.curve figcaption { display: flex; gap: 1rem; font-size: .8rem; }
.curve .before::before, .curve .after::before { content: "— "; font-weight: 700; }
.curve .before { color: var(--soft); } .curve .after { color: var(--accent); }

/* Outputs, and tables of the tabs Rewards and Vote */
.mm-sides { display: flex; flex-wrap: wrap; gap: 12px; }
.mm-sides figure { flex: 1 1 150px; max-width: 640px; min-width: 0; margin: 0; }
.mm-sides figure .mm-medium { display: block; width: 100%; max-width: 360px; margin: 0; border-radius: 6px;
  border: 1px solid var(--border-color-primary); }
.mm-sides figure .mm-small { image-rendering: pixelated; }
.mm-sides audio { width: 100%; min-width: 0; }
.mm-text { white-space: pre-wrap; overflow-wrap: anywhere; padding: 10px; border-radius: 6px; max-height: 22em;
  overflow-y: auto; border: 1px solid var(--border-color-primary); background: var(--background-fill-secondary); }
.mm-wide { overflow-x: auto; }
.mm-wide table.mm-table { border-collapse: collapse; width: 100%; margin: 8px 0; border: 0; }
.mm-wide table.mm-table tr { border: 0; }
.mm-wide table.mm-table th, .mm-wide table.mm-table td { text-align: left; padding: 4px 8px; vertical-align: top;
  border: 0; border-bottom: 1px solid var(--border-color-primary); }
.mm-wide table.mm-table td.mm-number { font-variant-numeric: tabular-nums; white-space: nowrap; }
.mm-wide .mm-rose { color: #b91c1c; font-weight: 600; }
.dark .mm-wide .mm-rose { color: #f87171; }
.mm-note { color: var(--body-text-color-subdued); }

/* Narrow windows */
@media (max-width: 640px) {
  .gradio-container { padding: .6rem !important; }
  .row { flex-wrap: wrap !important; }
  .results { order: -1; }
  .tab-container button { padding: 0 .28rem !important; font-size: .72rem !important; }
  .wide table { font-size: .82rem; } .wide th, .wide td { padding: .3rem .25rem; }
  .wide small { display: block; margin: 0; }
  .cards { grid-template-columns: repeat(auto-fill, minmax(8rem, 1fr)); }
}
@media (prefers-reduced-motion: reduce) { * { animation: none !important; transition: none !important; } }
"""

MARKS = """
* { --quiet: color-mix(in srgb, var(--body-text-color) 72%, transparent); }
.unseen { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
.sides { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(19rem, 100%), 1fr)); gap: 1rem 1.5rem; }
.sides > section { min-width: 0; overflow-wrap: anywhere; }
h3 { margin: 0 0 .2rem; }
p { margin: 0 0 .4rem; }
.soft, small, sup { color: var(--quiet); font-size: .85em; }
article { border: 1px solid var(--border-color-primary); border-radius: 8px; padding: .6rem .8rem; margin: .5rem 0;
  display: flow-root; }
article img { float: right; max-width: 45%; margin: 0 0 .3rem .8rem; }
.text { white-space: pre-wrap; max-height: 24rem; overflow-y: auto; font-size: 1.05em; }
.tag { color: var(--quiet); font-size: .8em; }
.rewards { display: flex; flex-wrap: wrap; gap: .1rem 1rem; margin: .3rem 0 0; padding: 0; list-style: none;
  font-size: .85em; color: var(--quiet); }
.rewards b { color: var(--body-text-color); font-variant-numeric: tabular-nums; font-weight: 600; }
.failed, .rewards .failed { color: #c0492f; }
summary { cursor: pointer; }
details { margin: .3rem 0; }
img { display: block; max-width: 100%; height: auto; border-radius: 4px; }
img[width] { image-rendering: pixelated; }
audio { width: min(24rem, 100%); }
.aligned { line-height: 2; }
ins, del { text-decoration-thickness: 2px; text-underline-offset: .2em; }
ins { text-decoration-line: underline; }
ins.replace { color: #b06f00; }
ins.insert { color: #c0492f; }
del { color: var(--quiet); margin-left: .25em; text-decoration-line: line-through; }
del.delete { color: #c0492f; margin-left: 0; }
.bar { fill: var(--color-accent); }
svg { display: block; height: 56px; margin: .3rem 0; }
"""
"""Rules of answers and transcripts, which Gradio confines to the component that is given them."""

HEAD = '<link rel="icon" href="data:,"><meta name="referrer" content="no-referrer">'
"""No icon, and no referrer is sent."""


def theme() -> gr.themes.Base:
    """Gradio's plainest theme in the colours of the reports."""
    blue = gr.themes.Color(
        *("#f2f7fb", "#dfebf6", "#c0d8ec", "#9cc1e1", "#6ba7e0", "#4487c6"),
        *("#2f6fae", "#275c91", "#204a74", "#1a3b5c", "#122a42"),
    )
    both = {
        "body_background_fill": PAPER,
        "body_text_color": INK,
        "body_text_color_subdued": SOFT,
        "background_fill_primary": CARD,
        "background_fill_secondary": PAPER,
        "block_background_fill": CARD,
        "block_border_color": LINE,
        "border_color_primary": LINE,
        "block_label_background_fill": CARD,
        "block_label_text_color": SOFT,
        "block_title_text_color": SOFT,
        "input_background_fill": PAPER,
        "input_border_color": LINE,
        "input_border_color_focus": ACCENT,
        "panel_background_fill": PAPER,
        "link_text_color": ACCENT,
        "color_accent_soft": CARD,
    }
    values = {name: pair["light"] for name, pair in both.items()}
    values |= {f"{name}_dark": pair["dark"] for name, pair in both.items()}
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
        slider_color="#2f6fae",
        slider_color_dark="#6ba7e0",
        button_primary_background_fill="#2f6fae",
        button_primary_background_fill_hover="#275c91",
        button_primary_background_fill_dark="#2f6fae",
        button_primary_background_fill_hover_dark="#4487c6",
        button_primary_text_color="#ffffff",
        button_cancel_background_fill="transparent",
        button_cancel_background_fill_dark="transparent",
        button_cancel_text_color="#b3412f",
        button_cancel_text_color_dark="#ee8a78",
        button_cancel_border_color="#dcdce2",
        button_cancel_border_color_dark="#34343b",
    )
