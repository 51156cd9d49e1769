"""Mark-up is written in templates only, and templates escape all that they are given."""

from __future__ import annotations

import ast
import re

import pytest
from jinja2 import UndefinedError

from mmgrpo.report.render import _environment, render
from tests import ROOT

REPORT = ROOT / "mmgrpo" / "report"
TEMPLATES = sorted((REPORT / "templates").glob("*.html"))
TAG = re.compile(r"</?[a-z][a-z0-9]*[ >/]")


def test_no_module_of_the_report_writes_tags():
    for module in sorted(REPORT.glob("*.py")):
        for node in ast.walk(ast.parse(module.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = re.sub(r"``[^`]*``|<(title|stem|folder|name|template)>", "", node.value)
                assert not TAG.search(text), f"{module.name}: {text}"


def test_no_module_and_no_template_declares_anything_safe():
    for module in sorted(REPORT.glob("*.py")):
        assert "Markup" not in module.read_text("utf-8"), module.name
    for template in TEMPLATES:
        assert not re.search(r"\|\s*safe|autoescape|Markup", template.read_text("utf-8")), template.name


def test_attributes_are_quoted_so_that_escaping_holds():
    for template in TEMPLATES:
        assert not re.search(r"=\s*\{\{|='", re.sub(r"\{%.*?%\}", "", template.read_text("utf-8"))), template.name


def test_what_a_template_lacks_is_an_error():
    with pytest.raises(UndefinedError, match="'sections'"):
        render("page.html", {"title": "a"})


def test_the_result_of_a_template_is_not_escaped_again_and_text_is():
    inner = render("page.html", {"title": "<i>", "sections": []})
    outer = render("page.html", {"title": "a", "sections": [inner, str(inner)]})
    assert outer.count("<title>&lt;i&gt;</title>") == 1 and outer.count("&lt;title&gt;") == 1


def test_every_template_compiles_and_the_style_is_the_file():
    environment = _environment()
    assert environment.autoescape is True
    for template in TEMPLATES:
        environment.get_template(template.name)
    assert (REPORT / "templates" / "report.css").read_text("utf-8") in render(
        "page.html", {"title": "", "sections": []}
    )
