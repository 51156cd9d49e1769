"""The page of the demo: its tabs, and how it is served."""

from __future__ import annotations

import errno
import html
import importlib
import socket
from pathlib import Path
from typing import Any

import gradio as gr

from mmgrpo.cli.demo.gate import gate
from mmgrpo.cli.demo.look import CSS, HEAD, theme
from mmgrpo.cli.demo.models import EMBEDDED, STORED, Opened, open_all
from mmgrpo.cli.serve_rewards import is_loopback
from mmgrpo.report.render import render

TABS = {
    "Runs": "mmgrpo.cli.demo.runs",
    "Visual": "mmgrpo.cli.demo.visual",
    "Vision-language": "mmgrpo.cli.demo.vision_language",
    "Speech": "mmgrpo.cli.demo.speech",
    "Rewards": "mmgrpo.cli.demo.rewards",
    "Group": "mmgrpo.cli.demo.group",
    "Vote": "mmgrpo.cli.demo.vote",
}
"""Tabs to their modules, each with ``tab(opened)``, which builds it where it is called."""
ABOUT = "A model makes several samples of a prompt, rewards score them, and training makes the better ones more likely."
STORED_NOTE = (
    " Nothing was trained here yet: this run comes with the package. To make your own: "
    "<code>mmgrpo train --recipe visual/demo</code>, then <code>mmgrpo demo</code>."
)
USER = "mmgrpo"
NAMES_SHOWN = 6
"""Runs that the header names."""


def build(opened: Opened) -> gr.Blocks:
    """The whole page. No model is loaded."""
    with gr.Blocks(title="mmgrpo", analytics_enabled=False, delete_cache=(3600, 3600)) as page:
        gr.HTML(f"{header(opened)}{render('demo_style.html', {})}", elem_id="head")
        with gr.Tabs():
            for name, module in TABS.items():
                with gr.Tab(name, id=name, elem_id=f"tab-{module.rpartition('.')[2].replace('_', '-')}"):
                    importlib.import_module(module).tab(opened)
    return page


def header(opened: Opened) -> str:
    """What is opened, and what is left out, as mark-up."""
    out = "".join(f"<li>{html.escape(name)}: {html.escape(why)}</li>" for name, why in opened.left_out.items())
    several = f"{len(opened.left_out)} run{'s' * (len(opened.left_out) != 1)} not opened or only in part"
    note = f"<details><summary>{several}</summary><ul>{out}</ul></details>" if out else ""
    stored = STORED_NOTE if STORED in opened.runs else ""
    head = f"<h1>mmgrpo</h1><p><b>{ABOUT}</b></p><p>{html.escape(contents(opened))}{stored}</p>"
    return f"<header>{head}</header>{note}"


def contents(opened: Opened) -> str:
    """What is opened, in a line."""
    names = list(opened.runs)
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    several = "run" if len(names) == 1 else "runs"
    runs = f"{len(names)} {several}: {', '.join(names[:NAMES_SHOWN])}{more}" if names else "no run"
    others = [name for name in opened.pairs if name not in opened.runs and not name.startswith("embedded: ")]
    return "; ".join([runs, *others, f"{len(EMBEDDED)} embedded models"]) + f". Device: {opened.device}."


def serve(args: Any) -> None:
    """Serve the page until it is interrupted."""
    password = read_password(args.password_file)
    if not password and (args.share or not is_loopback(args.host)):
        where = "--share" if args.share else f"--host {args.host}"
        raise ValueError(f"{where}: others can reach the page; set --password-file to a file with a password")
    free_port(args.host, args.port)  # before models are opened, which takes a while
    import torch

    from mmgrpo.runtime import devices

    if args.threads:
        torch.set_num_threads(args.threads)
    opened = open_all(args, str(devices.accelerator(args.device).device))
    for name, why in opened.left_out.items():
        print(f"left out: {name} ({why})", flush=True)
    page = launch(opened, args, free_port(args.host, args.port), password)
    addresses = " and ".join(address.rstrip("/") for address in (page.local_url, page.share_url) if address)
    print(f"demo of {contents(opened)[:-1]}\n{addresses} (Ctrl+C ends it)", flush=True)
    page.block_thread()


def launch(opened: Opened, args: Any, port: int, password: str = "") -> gr.Blocks:
    """The page, served by threads of this process; ``close()`` ends it."""
    page = build(opened).queue(max_size=args.waiting, default_concurrency_limit=1, api_open=False)
    page.launch(
        server_name=args.host,
        server_port=port,
        share=args.share,
        auth=(USER, password) if password else None,
        # Images and audio are handed out as copies in Gradio's own cache, never as files of the disk.
        allowed_paths=[],
        max_file_size=args.max_mebibytes << 20,
        strict_cors=True,
        show_error=True,
        enable_monitoring=False,
        mcp_server=False,
        ssr_mode=False,
        pwa=False,
        theme=theme(),
        css=CSS,
        head=HEAD,
        footer_links=[],
        # Gradio would offer to keep what visitors do on a server of others.
        run_history=False,
        app_kwargs={"middleware": [gate(is_loopback(args.host), args.share, args.max_mebibytes << 20)]},
        quiet=True,
        prevent_thread_lock=True,
    )
    return page


def free_port(host: str, port: int) -> int:
    """The port, if it can be listened on, or any free one for 0; OSError that names the next free one otherwise."""
    bound = listen(host, port)
    if bound is not None:
        return bound
    free = next((number for number in range(port + 1, min(port + 1000, 65536)) if listen(host, number) is not None), 0)
    raise OSError(errno.EADDRINUSE, f"--port {port} is taken, expected a free one; --port {free} is free")


def listen(host: str, port: int) -> int | None:
    """The port after holding it for a moment; None if it is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listener:
        # As servers do: connections of an earlier one linger.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, True)
        try:
            listener.bind((host.strip("[]"), port))
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
            return None
        return listener.getsockname()[1]


def read_password(file: str) -> str:
    """The password in a file, without white space around it."""
    if not file:
        return ""
    password = Path(file).expanduser().read_text(encoding="utf-8").strip()
    if len(password) < 8:
        raise ValueError(f"--password-file {file}: got {len(password)} characters, expected at least 8")
    return password
