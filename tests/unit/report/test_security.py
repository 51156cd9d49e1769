"""A run folder that comes from someone else: nothing in it becomes mark-up, and nothing next to it is read."""

from __future__ import annotations

import json
from base64 import b64encode
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path

import pytest
import yaml
from PIL import Image as Pil

from mmgrpo.report.completions import completions_html
from mmgrpo.report.html import page, write_report

BAD = "\"'><script>alert(1)</script>$\\frac$"
BAD_NAME = "\"'><img src=x onerror=alert(1)>&"
"""A file's name has no slash."""
SECRET = b"the key of someone's house"


class Tags(HTMLParser):
    """Tags and attributes of a page, and its text."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.attributes, self.text = set(), set(), []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {(tag, name) for name, _ in attrs}
        self.text += [value for _, value in attrs if value]

    def handle_data(self, data):
        self.text.append(data)


OURS = {
    *("html", "head", "meta", "title", "style", "body", "main", "header", "section", "article", "div", "p", "span"),
    *("h1", "h2", "h3", "b", "small", "sup", "ins", "del", "dl", "dt", "dd", "ul", "li", "pre", "img", "audio"),
    *("table", "thead", "tbody", "tr", "th", "td", "figure", "figcaption", "details", "summary"),
    *("label", "input", "i", "code", "svg", "line", "polyline", "polygon", "ol"),
}


def interval(value):
    return {"mean": value, "low": value, "high": value, "n": value}


def row(**fields):
    common = {
        "id": "a",
        "task": "",
        "prompt": "p",
        "meta": {},
        "media": [],
        "aligned": [],
        "answer": None,
        "rewards": {},
    }
    return {**common, "completion": "c", "tokens": 1, "truncated": False, **fields}


def write_rows(path, *rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def picture(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    Pil.new("RGB", (8, 8), "red").save(path)


def hostile_run(folder):
    """A script in every field of every file, also where numbers belong, in names of fields and of files."""
    sides = {side: {BAD: interval(BAD)} for side in ("before", "after", "difference")}
    config = {"name": BAD, "steps": BAD, "seed": BAD, "model": {"family": BAD}, "optim": {"lr": BAD}, BAD: [BAD]}
    (folder / "config.yaml").write_text(yaml.safe_dump({**config, "algorithm": {"preset": BAD}}))
    summary = {
        **{name: BAD for name in ("modality", "family", "preset", "seconds")},
        **{"eval": sides, "extra": {BAD: sides}, "blind": sides["after"], "supervised": {"after": sides["after"]}},
        **{"rates": [BAD], BAD: {BAD: {**{name: BAD for name in sides}, "relative": BAD, "units": BAD}}},
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    values = {f"reward/{BAD}/mean": 0.5, BAD: 0.5, "kl": BAD, "seconds": BAD, "ratio/first_minus_one": BAD}
    write_rows(folder / "metrics.jsonl", {"step": 1, **values})
    for step in range(3):
        counts = {BAD: {"errors": [1, BAD], "units": [2, BAD]}}
        evaluation = {"step": step, "values": {BAD: [BAD]}, "counts": counts}
        write_rows(folder / "evaluations" / f"step-{step}{BAD_NAME}.json", evaluation)
    samples = folder / "samples"
    for title in (f"before-{BAD_NAME}", "after", BAD_NAME):
        picture(samples / f"{title}.png")
    picture(samples / f"{BAD_NAME}.jpg")
    (samples / f"{BAD_NAME}.ogg").write_bytes(b"sound")
    texts = {name: BAD for name in ("id", "task", "prompt", "completion", "tokens")}
    media = [f"{BAD_NAME}.jpg", f"{BAD_NAME}.ogg", f"{BAD_NAME}.missing.ogg", BAD]
    aligned = [["equal", BAD, BAD], ["replace", BAD, BAD], ["delete", BAD, ""], ["insert", "", BAD]]
    fields = {"media": media, "aligned": aligned, "answer": {BAD: [BAD]}, "rewards": {BAD: BAD}}
    write_rows(
        samples / f"before-{BAD_NAME}.jsonl",
        row(**texts, **fields, meta={BAD: BAD}),
        row(**fields, id="b", boxes={BAD: [], "gold": [[0, 0, 1, 1]]}),
    )
    write_rows(samples / "after.jsonl", row(**texts, sound=f"{BAD_NAME}.ogg", seconds=BAD), row(sound=BAD, id="b"))


def test_a_script_in_every_field_of_a_run_folder_stays_text(tmp_path):
    hostile_run(tmp_path)
    html = write_report(tmp_path).read_text()
    tags = Tags(html)
    assert tags.tags <= OURS and not [name for _, name in tags.attributes if name.startswith("on")]
    assert {tag for tag, name in tags.attributes if name == "src"} == {"img", "audio"}
    # It is not left out either: once read as HTML, the texts are those of the files.
    text = "\n".join(tags.text)
    assert text.count(BAD) > 60 and text.count(BAD_NAME) > 5
    assert "src=x" not in html.replace("&lt;img src=x", "")


def test_a_number_of_a_foreign_summary_is_text_too(tmp_path):
    estimate = {"mean": 0.5, "low": 0.4, "high": 0.6, "n": "<script>alert(1)</script>"}
    (tmp_path / "summary.json").write_text(json.dumps({"eval": {"before": {}, "after": {"task": estimate}}}))
    html = write_report(tmp_path).read_text()
    assert "<script" not in html and "&lt;script&gt;alert(1)" in html and "0.400 to 0.600" in html


def test_text_that_is_given_to_a_page_is_escaped_and_its_own_mark_up_is_not(tmp_path):
    write_rows(tmp_path / "after.jsonl", row(completion="<i>"))
    html = page("<i>", ["<i>plain</i>", completions_html(tmp_path)])
    assert "<i>" not in html and "&lt;i&gt;plain&lt;/i&gt;" in html
    assert "<article>" in html and '<p class="text">&lt;i&gt;</p>' in html and "&amp;lt;" not in html


def refused(folder, name, **fields):
    """The page of a row that names ``name``, which must not be on it."""
    write_rows(folder / "after.jsonl", row(media=[name], **fields), row(id="b", sound=name, seconds=1.0))
    html = completions_html(folder)
    assert b64encode(SECRET).decode() not in html and "data:" not in html
    return html


@pytest.mark.parametrize("suffix", [".txt", ".jpg", ".ogg"])
@pytest.mark.parametrize("up", ["..", "../..", "sub/../../.."])
def test_a_medium_above_the_samples_is_refused_by_name(tmp_path, up, suffix):
    samples = tmp_path / "run" / "samples"
    (samples / "sub").mkdir(parents=True)
    for folder in (tmp_path, tmp_path / "run"):
        (folder / f"secret{suffix}").write_bytes(SECRET)
    html = refused(samples, f"{up}/secret{suffix}")
    assert html.count(f"({up}/secret{suffix} is refused: it lies outside samples/)") == 2


@pytest.mark.parametrize("suffix", [".txt", ".jpg", ".ogg"])
def test_absolute_names_and_links_out_are_refused(tmp_path, suffix):
    secret, samples = tmp_path / f"secret{suffix}", tmp_path / "samples"
    samples.mkdir()
    secret.write_bytes(SECRET)
    (samples / f"link{suffix}").symlink_to(secret)
    (samples / "folder").symlink_to(tmp_path)
    (samples / f"circle{suffix}").symlink_to(samples / f"circle{suffix}")
    for name in (str(secret), f"link{suffix}", f"folder/secret{suffix}"):
        assert refused(samples, name).count(f"({name} is refused: it lies outside samples/)") == 2
    # A picture is opened where boxes are drawn into it, and is not either.
    assert "is refused" in refused(samples, f"link{suffix}", boxes={"gold": [[0, 0, 1, 1]]})
    for name in (f"circle{suffix}", f"a\0b{suffix}", f"{'a' * 300}{suffix}", f"nothing{suffix}", ""):
        assert refused(samples, name).count('<small class="soft">(') == 2


def test_an_absolute_name_is_refused_inside_the_folder_too(tmp_path):
    (tmp_path / "a.ogg").write_bytes(b"sound")
    write_rows(tmp_path / "after.jsonl", row(media=[str(tmp_path / "a.ogg")]))
    assert "is refused" in completions_html(tmp_path)


def test_files_inside_the_samples_are_shown_also_through_links(tmp_path):
    samples = tmp_path / "real"
    picture(samples / "after" / "0.jpg")
    (samples / "again.jpg").symlink_to(samples / "after" / "0.jpg")
    write_rows(samples / "after.jsonl", row(media=["after/0.jpg", "again.jpg", "after/../after/0.jpg"]))
    (tmp_path / "samples").symlink_to(samples)  # of the caller, who names the folder
    assert completions_html(tmp_path / "samples").count('src="data:image/jpeg;base64,') == 3


def test_only_pictures_and_sounds_of_a_size_that_a_page_can_hold_are_read(tmp_path, monkeypatch):
    picture(tmp_path / "large.png")
    (tmp_path / "notes.txt").write_bytes(SECRET)
    (tmp_path / "not.png").write_bytes(SECRET)
    (tmp_path / "page.jpg").write_text("<svg onload='alert(1)'>")
    monkeypatch.setattr("mmgrpo.report.media.MAX_IMAGE_BYTES", 30)
    write_rows(tmp_path / "after.jsonl", row(media=["large.png", "notes.txt", "not.png", "page.jpg"]))
    html = completions_html(tmp_path)
    assert "(large.png is too large for this page: " in html and "data:" not in html
    assert "(notes.txt is refused: expected a file of .jpg, .jpeg, .png, .gif, .webp)" in html
    assert "(not.png is not a readable image)" in html and "(page.jpg is not a readable image" in html


def test_a_picture_is_what_it_is_and_not_what_its_name_says(tmp_path):
    buffer = BytesIO()
    Pil.new("RGB", (200, 200)).save(buffer, format="PNG")
    (tmp_path / "a.jpg").write_bytes(buffer.getvalue())
    write_rows(tmp_path / "after.jsonl", row(media=["a.jpg"]))
    assert 'src="data:image/png;base64,' in completions_html(tmp_path)
    first, second = Pil.new("RGB", (200, 200)), Pil.new("RGB", (200, 200))
    first.save(tmp_path / "a.jpg", format="MPO", save_all=True, append_images=[second])  # two JPEGs in one file
    assert 'src="data:image/jpeg;base64,' in completions_html(tmp_path)


LINKS = ["config.yaml", "summary.json", "metrics.jsonl", "evaluations/before.json", "samples/a.png", "samples/a.jsonl"]


@pytest.mark.parametrize("name", [*LINKS, "samples", "evaluations"])
def test_parts_of_a_run_that_are_links_out_of_it_are_named_and_not_read(tmp_path, name):
    outside, run = tmp_path / "outside", tmp_path / "run"
    if "." in name:
        (run / name).parent.mkdir(parents=True)
        outside.write_text(
            '{"name": "a secret name", "modality": "a secret one", "step": 3, "values": {"secret": [1]}}'
        )
    else:
        run.mkdir()
        write_rows(outside / "before.json", {"step": 3, "values": {"secret": [1]}})
        write_rows(outside / "before.jsonl", row(completion="secret"))
        picture(outside / "before.png")
    (run / name).symlink_to(outside)
    html = write_report(run).read_text()
    assert f"links out of the run folder: {name}." in html
    assert "secret" not in html and "data:image" not in html and "Its last recorded step" not in html


def test_a_run_that_is_itself_behind_a_link_is_read(tmp_path):
    picture(tmp_path / "real" / "samples" / "after.png")
    (tmp_path / "real" / "config.yaml").write_text("name: mine\n")
    (tmp_path / "run").symlink_to(tmp_path / "real")
    html = write_report(tmp_path / "run").read_text()
    assert "<h1>mine</h1>" in html and "data:image/png" in html and "links out" not in html


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"id": 3}, "'id'.*'3'"),
        ({"media": "a.jpg"}, "'media'.*'a.jpg'"),
        ({"media": [3]}, "names"),
        ({"sound": None}, "names"),
        ({"aligned": [["other", "a", "b"]]}, "kind"),
        ({"aligned": [["equal", "a"]]}, "kind"),
        ({"boxes": {"gold": [[0, 0, 1, "x"]]}}, "left"),
        ({"boxes": {"gold": [[0, 0, 1]]}}, "left"),
        ({"boxes": {"gold": 3}}, "left"),
        ({"boxes": [[0, 0, 1, 1]]}, "left"),
    ],
)
def test_a_row_of_another_form_is_an_error_that_names_its_line(tmp_path, fields, message):
    write_rows(tmp_path / "after.jsonl", row(), row(**fields))
    with pytest.raises(ValueError, match=rf"after\.jsonl:2.*{message}"):
        completions_html(tmp_path)


def test_a_line_that_is_not_json_is_an_error_that_names_it(tmp_path):
    (tmp_path / "after.jsonl").write_text(json.dumps(row()) + "\n[1]\n")
    with pytest.raises(ValueError, match=r"after\.jsonl:2.*'\[1\]'"):
        completions_html(tmp_path)
    (tmp_path / "after.jsonl").write_text('{"id": ')
    with pytest.raises(ValueError, match=r"after\.jsonl:1.*JSON"):
        completions_html(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.yaml", "[1]", r"config\.yaml.*'\[1\]'"),
        ("summary.json", "[1]", r"summary\.json.*'\[1\]'"),
        ("summary.json", '{"eval": "x"}', "summary.json.*eval.*'x'"),
        ("summary.json", '{"rates": ["wer"]}', "summary.json.*wer.*'None'"),
    ],
)
def test_a_file_of_another_form_is_an_error_that_names_it(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        write_report(tmp_path)


def test_a_configuration_that_refers_to_itself_is_not_spelled_out(tmp_path):
    # Ten lists of ten of the next: as text, 10^9 words.
    lines = ["a0: &a0 [x]"] + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)]
    (tmp_path / "config.yaml").write_text("\n".join([*lines, "seed: *a9", "name: *a9", "model: {family: *a9}"]))
    html = write_report(tmp_path).read_text()
    assert f"<h1>{tmp_path.name}</h1>" in html and "<dt>seed</dt>" not in html and len(html) < 20_000


def test_folders_and_pipes_in_the_place_of_files_are_not_read(tmp_path):
    (tmp_path / "samples" / "after.jsonl").mkdir(parents=True)
    (tmp_path / "samples" / "a.png").mkdir()
    write_rows(tmp_path / "samples" / "before.jsonl", row(media=["a.png", "after.jsonl"]))
    html = write_report(tmp_path).read_text()
    assert (
        "(a.png is missing)" in html and "(after.jsonl is refused" in html and Path(tmp_path / "report.html").is_file()
    )


@pytest.mark.parametrize(
    "position", ["equ", {"equal": 0, "a": 1, "b": 2}, ["equal", "a"], ["equal", "a", 1], ["?", "", ""]]
)
def test_aligned_words_of_another_form_are_refused(tmp_path, position):
    write_rows(tmp_path / "after.jsonl", row(aligned=[position]))
    with pytest.raises(ValueError, match="'aligned'"):
        completions_html(tmp_path)
