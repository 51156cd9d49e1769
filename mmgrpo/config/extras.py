"""How the packages of an extra are added to this installation, which may be a checkout or a wheel."""

from __future__ import annotations

import json
import re
from importlib.metadata import PackageNotFoundError, distribution
from urllib.parse import unquote, urlsplit

PROJECT = "mmgrpo"


def install(extra: str) -> str:
    """The command that installs the packages of an extra: of a checkout by its folder, else by their own names, since
    an installed wheel need not be on any index."""
    try:
        installed = distribution(PROJECT)
    except PackageNotFoundError:
        return f"pip install -e '.[{extra}]' in the folder of {PROJECT}"
    try:
        origin = json.loads(installed.read_text("direct_url.json") or "{}")
    except ValueError:
        origin = {}
    if origin.get("dir_info", {}).get("editable"):
        return f"pip install -e '{unquote(urlsplit(origin['url']).path)}[{extra}]'"
    packages = [
        re.sub(r"\s", "", text.partition(";")[0])
        for text in installed.requires or ()
        if re.search(rf"extra\s*==\s*['\"]{re.escape(extra)}['\"]", text)
    ]
    return "pip install " + " ".join(f"'{package}'" for package in packages or [f"{PROJECT}[{extra}]"])
