"""How an extra is installed, whether mmgrpo is a checkout or a wheel that is on no index."""

from __future__ import annotations

import json
import re
import subprocess
from types import SimpleNamespace

import pytest

from mmgrpo.config import extras
from tests import ROOT

REQUIRES = [
    "torch>=2",
    "gradio>=6.31 ; extra == 'demo'",
    'fastapi>=0.115; extra == "serve"',
    "uvicorn ; extra == 'serve'",
]


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        ({"dir_info": {"editable": True}, "url": "file:///my%20code"}, "pip install -e '/my code[serve]'"),
        ({"url": "file:///mmgrpo.whl"}, "pip install 'fastapi>=0.115' 'uvicorn'"),
        (None, "pip install 'fastapi>=0.115' 'uvicorn'"),
    ],
)
def test_the_packages_of_an_extra_are_named_where_there_is_no_checkout(origin, command, monkeypatch):
    made = SimpleNamespace(requires=REQUIRES, read_text=lambda name: origin and json.dumps(origin))
    monkeypatch.setattr(extras, "distribution", lambda name: made)
    assert extras.install("serve") == command


def test_no_hint_names_a_project_of_the_index():
    """Tests and documentation may, which speak of a checkout."""
    listing = ["git", "grep", "-n", r"pip install ['\"]mmgrpo\[", "--", "mmgrpo", "pipelines", "reward_models"]
    found = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True).stdout.splitlines()
    assert [line for line in found if not re.match(r"pipelines/speech/renderers.py:\d+:    hibari", line)] == []
