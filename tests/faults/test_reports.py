"""A foreign run folder, damaged and hostile in seeded ways: its report is inert, or one line says what is wrong.

``MMGRPO_FAULTS=full`` tries 600 folders in place of 16.
"""

from __future__ import annotations

import json
import os
import random
import re
import resource
import shutil
from base64 import b64decode
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml
from PIL import Image as Pil

from mmgrpo.cli.errors import is_user_error
from mmgrpo.report import html as page
from mmgrpo.report.html import write_report

FOLDERS = 600 if os.environ.get("MMGRPO_FAULTS") == "full" else 16
BATCH = 20
SECRET = b"the key of someone's house, which lies outside"
MARKS = [
    "\"'><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "javascript:alert(1)",
    '" onmouseover="alert(1)" x="',
    "' style='background:url(//evil)",
    "</style><style>*{display:none}</style>",
    "</title><svg/onload=alert(1)>",
    "--><iframe src=//evil></iframe><!--{{ 7 * 7 }}{% include '/etc/passwd' %}",
    "$\\frac{1$",
    "half \ud83d of a pair, \x00 and \x1b[2J\nand \u2028 lines",
    "../../secret.txt",
    "../secret.png",
    "x" * 100_000,
]
VALUES = [
    *MARKS,
    *(None, True, False, -1, 0, 1e308, -1e299, 10**20, 10**400, -(10**400), float("nan"), float("inf")),
    *([], {}, [[]], [None], [1, "2", None], {"mean": "x", "low": None, "high": []}, {"n": [1]}),
    *({"mean": 1, "low": 0, "high": 2, "n": 10**300}, [float("nan")] * 9, ["a"] * 10_000, [0] * 20_000),
    {str(n): n for n in range(2_000)},
    {str(n): n for n in range(20_000)},
]
ELEMENTS = {
    *("html", "head", "meta", "title", "style", "body", "main", "header", "section", "article", "div", "p", "span"),
    *("h1", "h2", "h3", "b", "small", "sup", "ins", "del", "dl", "dt", "dd", "ul", "li", "pre", "img", "audio"),
    *("table", "thead", "tbody", "tr", "th", "td", "figure", "figcaption", "details", "summary"),
    *("label", "input", "i", "code", "ol", "svg", "line", "polyline", "polygon"),
}
ATTRIBUTES = {
    *("lang", "charset", "name", "content", "http-equiv", "class", "style", "scope", "title", "alt", "width", "src"),
    *("controls", "preload", "aria-label", "data-label", "type", "checked", "role", "aria-hidden", "data-tip", "open"),
    *("viewbox", "preserveaspectratio", "x1", "x2", "y1", "y2", "points"),
}
FIXED = {  # the values of all others do nothing
    "src": re.compile(r"data:(image/(png|jpeg|gif|webp)|audio/(ogg|mpeg|flac|mp4|wav));base64,[A-Za-z0-9+/=]+"),
    "style": re.compile(r"color: #[0-9a-f]{6}|(left|top): -?[\d.]+%(; (width|top): -?[\d.]+%)?"),
    "type": re.compile(r"radio|checkbox"),
    "class": re.compile(r"[a-z ]+"),
    "width": re.compile(r"\d+"),
    "http-equiv": re.compile(r"Content-Security-Policy"),
}


class Inert(HTMLParser):
    """Asserts that a page has our elements and attributes only, and collects what it embeds."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.embedded: list[bytes] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in ELEMENTS, tag
        for name, value in attrs:
            assert name in ATTRIBUTES, (tag, name)
            assert name not in FIXED or FIXED[name].fullmatch(value or ""), (tag, name, value)
            if name == "src":
                self.embedded.append(b64decode((value or "").partition(",")[2]))

    def handle_pi(self, data: str) -> None:
        raise AssertionError(f"a processing instruction: {data:.80}")

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data:.80}")


def interval(value: float) -> dict[str, float]:
    return {"mean": value, "low": value - 0.1, "high": value + 0.1, "n": 3}


def row(id: str, **fields: object) -> dict[str, object]:
    empty = {"task": "t", "prompt": "p", "meta": {"voice": "a"}, "media": [], "aligned": [], "answer": {"a": [1]}}
    return {"id": id, **empty, "rewards": {"exact": 0.5}, "completion": "c", "tokens": 1, "truncated": False, **fields}


def write_run(folder: Path) -> None:
    """A complete run with the files of all modalities."""
    sides = {side: {"exact": interval(0.5)} for side in ("before", "after", "difference")}
    rates = {"natural": {**{side: interval(0.2) for side in sides}, "relative": -0.1, "units": 30}}
    summary = {"modality": "speech", "family": "whisper", "preset": "grpo", "seconds": 9.5, "steps": 3, "eval": sides}
    summary |= {"extra": {"natural": sides}, "blind": sides["after"], "supervised": {"after": sides["after"]}}
    config = {"name": "run", "steps": 3, "seed": 1, "model": {"family": "whisper"}, "optim": {"lr": 1e-4}}
    values = {"reward/exact/mean": 0.5, "kl": 0.1, "grad_norm": 1.0, "ratio/first_minus_one": 1e-7, "seconds": 3.0}
    (folder / "samples" / "after").mkdir(parents=True)
    (folder / "evaluations").mkdir()
    (folder / "config.yaml").write_text(yaml.safe_dump({**config, "algorithm": {"preset": "grpo"}}))
    (folder / "summary.json").write_text(json.dumps({**summary, "rates": ["wer"], "wer": rates}))
    (folder / "metrics.jsonl").write_text("".join(json.dumps({"step": n, **values}) + "\n" for n in range(1, 4)))
    for step, title in enumerate(("before", "step-000002", "after", "after-natural")):
        counts = {"wer": {"errors": [1, 0, 2], "units": [5, 5, 5]}}
        record = {"step": step, "values": {"exact": [0.1, 0.5, 1.0]}, "counts": counts}
        (folder / "evaluations" / f"{title}.json").write_text(json.dumps(record))
    for name in ("before.png", "after.png", "after/0.jpg", "after/1.jpg"):
        Pil.new("RGB", (8, 8), "red").save(folder / "samples" / name)
    (folder / "samples" / "after" / "0.ogg").write_bytes(b"OggS")
    aligned = [["equal", "a", "a"], ["replace", "b", "c"], ["delete", "d", ""], ["insert", "", "e"]]
    texts = [
        row("a", media=["after/0.jpg"], boxes={"gold": [[0, 0, 0.5, 1]], "said": [[0.1, 0, 1, 1]]}),
        row("b", media=["after/1.jpg", "after/0.ogg"], aligned=aligned),
        row("c", sound="after/0.ogg", seconds=1.5),
    ]
    for title in ("before", "after", "after-natural"):
        (folder / "samples" / f"{title}.jsonl").write_text("".join(json.dumps(text) + "\n" for text in texts))


JSON = ["summary.json", "metrics.jsonl", "evaluations/before.json", "evaluations/step-000002.json"]
JSON += ["samples/before.jsonl", "samples/after.jsonl", "samples/after-natural.jsonl"]
FILES = [*JSON, "config.yaml", "samples/before.png", "samples/after/0.jpg", "samples/after/0.ogg"]


def places(value: object, inside: tuple = ()) -> list[tuple]:
    """The containers of a JSON value with their keys, at any depth."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [pair for key, child in children for pair in ((value, key), *places(child))]


def change_value(folder: Path, random: random.Random) -> None:
    """A value of a JSON file becomes another, its key another, or it is removed."""
    path = folder / random.choice(JSON)
    lines = path.read_text().splitlines()
    number = random.randrange(len(lines))
    value = json.loads(lines[number])
    container, key = random.choice(places(value))
    kind = random.choice(["value", "value", "value", "key", "remove"])
    if kind == "value" or isinstance(container, list):
        container[key] = random.choice(VALUES)
    else:
        removed = container.pop(key)
        if kind == "key":
            container[random.choice(MARKS)] = removed
    lines[number] = json.dumps(value)
    path.write_text("\n".join(lines) + "\n")


def change_configuration(folder: Path, random: random.Random) -> None:
    bomb = ["a0: &a0 {x: 1}"] + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)]
    merge = ["a0: &a0 {x: 1}"] + [f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 10)}]}}" for i in range(1, 10)]
    key = random.choice(["name", "steps", "seed", "model", "optim"])
    text = random.choice(
        [
            yaml.safe_dump({key: random.choice(VALUES[:24])}),
            "\n".join([*bomb, f"{key}: *a9"]),
            "\n".join([*merge, f"{key}: *a9"]),
            f"{key}: 0x{'f' * 9000}",
            "[" * 5000,
            "&a [*a]",
            f"{key}: !!python/object/apply:os.abort []",
            f"{key}: 2001-99-99",
            "? [a]\n: b",
            "a: b: c\n\t- \0",
        ]
    )
    (folder / "config.yaml").write_text(text, errors="surrogatepass")


def change_bytes(folder: Path, random: random.Random) -> None:
    path = folder / random.choice(FILES)
    if not path.is_file() or path.is_symlink():
        return
    content = bytearray(path.read_bytes())
    place = random.randrange(len(content) + 1)
    kind = random.choice(["cut", "insert", "flip", "deep", "digits"])
    if kind == "cut":
        del content[place:]
    elif kind == "insert":
        content[place:place] = random.randbytes(9)
    elif kind == "flip":
        content[place : place + 1] = bytes([random.randrange(256)])
    else:
        content = bytearray(b'{"step": ' + (b"[" * 100_000 if kind == "deep" else b"9" * 5000 + b"}") + b"\n")
    path.write_bytes(content)


def change_file(folder: Path, random: random.Random) -> None:
    """Something else in the place of a file or folder."""
    path = folder / random.choice([*FILES, "samples", "evaluations", "samples/after", "report.html"])
    (shutil.rmtree if path.is_dir() and not path.is_symlink() else Path.unlink)(path) if path.exists() else None
    if not path.parent.is_dir() or path.is_symlink():
        return
    kind = random.choice(["link", "folder link", "device", "circle", "pipe", "folder", "sparse", "secret", "page"])
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "sparse":
        with path.open("wb") as file:
            file.truncate(10 << 30)
    elif kind == "page":
        path.write_text("<svg onload='alert(1)'><script>alert(1)</script></svg>")
    else:
        outside = folder.parent / "secret.txt"
        targets = {"link": outside, "folder link": folder.parent, "device": "/dev/zero", "circle": path.name}
        path.symlink_to(targets.get(kind, outside))


def add_files(folder: Path, random: random.Random) -> None:
    """Files with names that are mark-up, and rows that name files outside."""
    samples = folder / "samples"
    if not samples.is_dir() or samples.is_symlink():
        return
    name = random.choice(MARKS)[:60].replace("/", "_").replace("\0", "_").encode(errors="replace").decode()
    Pil.new("RGB", (8, 8)).save(samples / f"{name}.png")
    outside = random.choice(
        ["../../secret.txt", "../../secret.png", "../../secret.ogg", str(folder.parent / "secret.png")]
    )
    rows = [row(random.choice(MARKS), media=[outside, f"{name}.png"]), row("s", sound=outside, boxes={"gold": []})]
    (samples / f"after-{name}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))


CHANGES = [change_value] * 5 + [change_configuration, change_bytes, change_file, add_files]


@pytest.mark.parametrize("batch", range(FOLDERS // BATCH))
def test_the_report_of_a_hostile_folder_is_inert_or_one_line_says_what_is_wrong(batch, tmp_path):
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        generator, folder = random.Random(seed), tmp_path / str(seed) / "run"
        write_run(folder)
        for name in ("secret.txt", "secret.png", "secret.ogg"):
            (folder.parent / name).write_bytes(SECRET)
        changes = sorted(generator.choices(CHANGES, k=generator.randint(1, 4)), key=CHANGES.index)
        for change in changes:
            change(folder, generator)
        try:
            html = write_report(folder).read_text()
        except Exception as error:
            assert is_user_error(error), f"seed {seed}: {changes}"
            message = str(error)
            assert len(message.splitlines()) == 1 and message.isprintable() and SECRET.decode() not in message, seed
            assert any(part in message for part in ("config", "summary", "metrics", "json", "report.html")), message
        else:
            embedded = Inert(html).embedded
            assert SECRET.decode() not in html and not any(SECRET in content for content in embedded), seed
        assert {entry.name for entry in folder.parent.iterdir()} == {"run", "secret.txt", "secret.png", "secret.ogg"}
        assert (folder.parent / "secret.txt").read_bytes() == SECRET
        shutil.rmtree(folder.parent)


def test_an_unchanged_folder_has_a_report_with_everything_in_it(tmp_path):
    write_run(tmp_path)
    embedded = Inert(write_report(tmp_path).read_text()).embedded
    assert len(embedded) > 5 and embedded.count(b"OggS") > 3


def report_of(folder: Path, name: str, text: str) -> Path:
    write_run(folder)
    (folder / name).write_text(text)
    return write_report(folder)


def test_memory_does_not_grow_with_what_a_small_folder_claims(tmp_path):
    """Ten gigabytes of zeros, and aliases and merge keys without end."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    write_run(tmp_path)
    merge = ["a0: &a0 {x: 1}"] + [f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 10)}]}}" for i in range(1, 10)]
    with pytest.raises(ValueError, match=r"config\.yaml.*merge"):
        report_of(tmp_path / "merge", "config.yaml", "\n".join(merge))
    aliases = [f"- &a{i} [{', '.join([f'*a{i - 1}' if i else 'x'] * 10)}]" for i in range(10)]
    with pytest.raises(ValueError, match=r"config\.yaml"):
        report_of(tmp_path / "aliases", "config.yaml", "\n".join(aliases))
    for name in ("summary.json", "metrics.jsonl", "config.yaml", "samples/after.jsonl", "evaluations/before.json"):
        folder = tmp_path / f"sparse-{name.replace('/', '-')}"
        write_run(folder)
        with (folder / name).open("wb") as file:
            file.truncate(10 << 30)
        with pytest.raises(ValueError, match=f"{name}.*10,737,418,240"):
            write_report(folder)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2 << 20  # KiB


def test_a_file_that_rows_name_many_times_fills_a_page_only_so_far(tmp_path):
    write_run(tmp_path)
    (tmp_path / "samples" / "large.ogg").write_bytes(bytes(90_000))
    rows = [row(str(n), media=["large.ogg"] * 30) for n in range(24)]
    (tmp_path / "samples" / "after.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    html = write_report(tmp_path).read_text()
    assert len(html) < page.PAGE_BYTES and html.count("data:audio/ogg;base64,AAAA") == 4  # of 450,000 bytes
    assert "large.ogg" in html


def test_a_name_in_an_error_has_no_character_that_a_terminal_acts_on(tmp_path):
    write_run(tmp_path)
    samples = tmp_path / "samples" / "after-\x1b[2J\n.jsonl"
    samples.write_text("{")
    with pytest.raises(ValueError, match=r"after-\?\[2J\?\.jsonl:1.*JSON"):
        write_report(tmp_path)
    samples.unlink()
    (tmp_path / "summary.json").write_text(json.dumps({"extra": {"\x1b[2J\n": 3}}))
    with pytest.raises(ValueError, match=r"summary\.json.*extra.*\?\[2J"):
        write_report(tmp_path)


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_a_picture_of_very_many_pixels_is_named_and_not_decoded(tmp_path):
    write_run(tmp_path)
    Pil.new("1", (13_300, 13_400)).save(tmp_path / "samples" / "step-000001.png")
    Pil.new("1", (3_000, 3_000)).save(tmp_path / "samples" / "after" / "0.jpg")
    html = write_report(tmp_path).read_text()
    assert "13,300 x 13,400" in html
    assert "3000 x 3000" in html


def test_a_page_has_so_many_curves_and_prompts_and_says_so(tmp_path, monkeypatch):
    write_run(tmp_path)
    assert page.CURVES == 60
    monkeypatch.setattr(page, "CURVES", 2)
    names = {f"reward/{n}/mean": 0.5 for n in range(3)}
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 1, **names}) + "\n")
    silent = [row(str(n)) for n in range(1001)]
    (tmp_path / "samples" / "after.jsonl").write_text("".join(json.dumps(one) + "\n" for one in silent))
    (tmp_path / "samples" / "before.jsonl").unlink()
    html = write_report(tmp_path).read_text()
    assert html.count('<figure class="chart"><label>') == 2 and html.count('<th scope="row">reward/') == 3
    assert "48 of 1001" in html and 'class="id">47 · ' in html and 'class="id">48 · ' not in html
