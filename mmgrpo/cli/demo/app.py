"""The page of the demo: its tabs, and how it is served."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import gradio as gr

from mmgrpo.cli.demo.gate import gate
from mmgrpo.cli.demo.opened import Opened, open_all
from mmgrpo.cli.serve_rewards import is_loopback

TABS = {
    "Visual": "mmgrpo.cli.demo.visual",
    "Vision-language": "mmgrpo.cli.demo.vision_language",
    "Speech": "mmgrpo.cli.demo.speech",
    "Rewards": "mmgrpo.cli.demo.rewards",
    "Group": "mmgrpo.cli.demo.group",
    "Runs": "mmgrpo.cli.demo.runs",
    "Vote": "mmgrpo.cli.demo.vote",
}
"""Tabs to their modules, each with ``tab(opened)``, which builds it where it is called."""
USER = "mmgrpo"
CSS = ""


def build(opened: Opened) -> gr.Blocks:
    """The whole page. No model is loaded."""
    with gr.Blocks(title="mmgrpo", analytics_enabled=False, delete_cache=(3600, 3600)) as page:
        for name, module in TABS.items():
            with gr.Tab(name):
                importlib.import_module(module).tab(opened)
    return page


def serve(args: Any) -> None:
    """Serve the page until it is interrupted."""
    import torch

    from mmgrpo.runtime import devices

    password = read_password(args.password_file)
    if not password and (args.share or not is_loopback(args.host)):
        where = "--share" if args.share else f"--host {args.host}"
        raise ValueError(f"{where}: others can reach the page; set --password-file to a file with a password")
    if args.threads:
        torch.set_num_threads(args.threads)
    opened = open_all(args, str(devices.accelerator(args.device).device))
    page = build(opened).queue(max_size=args.waiting, default_concurrency_limit=1, api_open=False)
    page.launch(
        server_name=args.host,
        server_port=args.port or None,
        share=args.share,
        auth=(USER, password) if password else None,
        # Pictures and sounds are handed out as copies in Gradio's own cache, never as files of the disk.
        allowed_paths=[],
        max_file_size=args.max_mebibytes << 20,
        strict_cors=True,
        show_error=True,
        enable_monitoring=False,
        mcp_server=False,
        css=CSS,
        footer_links=[],
        # Gradio would offer to keep what visitors do on a server of others.
        run_history=False,
        app_kwargs={"middleware": [gate(is_loopback(args.host) and not args.share, args.max_mebibytes << 20)]},
    )


def read_password(file: str) -> str:
    """The password in a file, without white space around it."""
    if not file:
        return ""
    password = Path(file).expanduser().read_text(encoding="utf-8").strip()
    if len(password) < 8:
        raise ValueError(f"--password-file {file}: got {len(password)} characters, expected at least 8")
    return password
