"""What the documentation site does in addition to mkdocs, so the same pages can be read on GitHub.

- Links that leave ``docs/`` lead to pages too: the files that they name become pages under ``repository/``.
- A fence such as ```` ```python runnable my_rewards.py ```` is a listing of Python with the title my_rewards.py.
- Tables of settings, presets, recipes, papers and rewards are made from the data: see tables.py.
- The search shows pages of reference below the guides.
- Formulas, ```` ```math ```` and ``$`...`$``, become SVG by matplotlib, so no script or font is fetched.
"""

from __future__ import annotations

import html
import posixpath
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

sys.path.append(str(Path(__file__).parents[2]))
from docs.site.tables import fill_tables

ROOT = Path(__file__).resolve().parents[2]
LISTING = re.compile(
    r"^(?P<ticks>```+)[^\n]*\n.*?^(?P=ticks)[ ]*$|^(?: {4}|\t)[^\n]*$|`[^`\n]+`", re.MULTILINE | re.DOTALL
)
"""What is shown as it is: fences, indented code (also that of lists, which has no links here) and code in a line."""
LINK = re.compile(r"(\]\()([^)\s]+)(\))")
FENCE = re.compile(r"^```(\w+) +(?!title=)(?:runnable ?)?(\S*)$", re.MULTILINE)
DISPLAYED = re.compile(r"^```math\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"\$`([^`]+)`\$")
CELL = re.compile(r"<td>.*?</td>", re.DOTALL)
NAME = re.compile(r"(?<=<code>)[^<>]+(?=</code>)")
REFERENCE = ("api/", "papers.md", "settings.md", "reward_catalogue.md", "benchmarks.md", "repository/")
"""Pages to look things up in, which the search shows below the guides."""
NOT_SEARCHED = ("index.md", "repository/CHANGELOG.md")
"""Pages that name all subjects and answer no question."""
LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".json": "json", ".toml": "toml", "Makefile": "makefile"}


def outside_code(change: Callable[[str], str], markdown: str) -> str:
    """The text with everything that is not code changed."""
    parts, start = [], 0
    for code in LISTING.finditer(markdown):
        parts += [change(markdown[start : code.start()]), code[0]]
        start = code.end()
    return "".join([*parts, change(markdown[start:])])


def links(markdown: str) -> Iterator[str]:
    """The targets of the links and images of a page, without anchors."""
    targets: list[str] = []
    outside_code(lambda text: targets.extend(target for _, target, _ in LINK.findall(text)) or "", markdown)
    for target in targets:
        if not re.match(r"[a-z]+:", target) and not target.startswith("#"):
            yield target.partition("#")[0]


def place(uri: str) -> str:
    """The path in the repository of a page of the site."""
    if not uri.startswith("repository/"):
        return f"docs/{uri}"
    path = uri.removeprefix("repository/")
    return path if (ROOT / path).is_file() else path.removesuffix(".md")


def address(path: str) -> str:
    """The page of the site that shows a file of the repository."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"repository/{path}" if path.endswith((".md", ".png", ".webp")) else f"repository/{path}.md"


def resolve(page: str, target: str) -> str:
    """The file of the repository that a link on a page names, both as paths in the repository."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), target))


def listing(path: str) -> str:
    """A page that shows a file."""
    file = ROOT / path
    language = LANGUAGES.get(file.suffix or file.name, "text")
    content = file.read_text(encoding="utf-8").rstrip()
    return f"---\nsearch:\n  exclude: true\n---\n# {path}\n\n````{language}\n{content}\n````\n"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what pages link to outside of docs/, and what that links to. mkdocs warns of what does not exist."""
    waiting = [place(file.src_uri) for file in files.documentation_pages()]
    known = set(waiting)
    while waiting:
        page = waiting.pop()
        for target in links((ROOT / page).read_text(encoding="utf-8")):
            path = resolve(page, target)
            if path in known or path.startswith("docs/") or not (ROOT / path).is_file():
                continue
            known.add(path)
            if path.endswith(".md"):
                waiting.append(path)
            shown = listing(path) if address(path) == f"repository/{path}.md" else (ROOT / path).read_bytes()
            files.append(File.generated(config, address(path), content=shown, inclusion=InclusionLevel.NOT_IN_NAV))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The page as mkdocs reads it."""
    uri = page.file.src_uri
    page.meta.setdefault("search", {"exclude": uri in NOT_SEARCHED, "boost": 0.1 if uri.startswith(REFERENCE) else 1})

    def lead(match: re.Match[str]) -> str:
        before, target, after = match.groups()
        if re.match(r"[a-z]+:|#|/", target):
            return match[0]
        name, mark, anchor = target.partition("#")
        there = posixpath.relpath(address(resolve(place(uri), name)), posixpath.dirname(uri) or ".")
        return f"{before}{there}{mark}{anchor}{after}"

    markdown = fill_tables(markdown)
    markdown = DISPLAYED.sub(lambda match: f'<p class="formula">{draw_formula(display(match[1]))}</p>', markdown)
    markdown = INLINE.sub(lambda match: draw_formula(match[1]), markdown)
    markdown = FENCE.sub(add_title, markdown)
    return outside_code(lambda text: LINK.sub(lead, text), markdown)


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Names in tables may break behind a stroke, a dot or an underscore, so columns stay narrow."""

    def breakable(name: re.Match[str]) -> str:
        return re.sub(r"(?<=[\w;])([/_]|\.(?=[a-z]))(?=[\w&])", r"\1<wbr>", name[0])

    return CELL.sub(lambda cell: NAME.sub(breakable, cell[0]), content)


def add_title(fence: re.Match[str]) -> str:
    """The first line of a listing, with the name of its file as title."""
    language, name = fence.groups()
    return f'```{language} title="{name}"' if "." in name else f"```{language}"


def display(formula: str) -> str:
    """A formula on a line of its own has large fractions, as on GitHub."""
    return formula.replace(r"\frac", r"\dfrac")


def draw_formula(formula: str) -> str:
    """A formula of LaTeX as SVG in the colour of the text; screen readers read its source."""
    formula = " ".join(formula.split())
    font, text = FontProperties(size=100, math_fontfamily="stix"), f"${formula}$"
    width, height, depth = text_to_path.get_text_width_height_descent(text, font, ismath=True)
    vertices, codes = text_to_path.get_text_path(font, text, ismath=True)
    letters = {1: "M", 2: "L", 3: "Q", 4: "C", 79: "Z"}
    path, before = [], 0
    for (x, y), code in zip(vertices, codes):
        follows = code == before and code in (3, 4)  # a further point of the same curve
        path.append("Z" if code == 79 else f"{'' if follows else letters[code]}{x:.1f} {-y:.1f}")
        before = code
    top = height - depth
    size = f"width:{width / 100:.3f}em;height:{height / 100:.3f}em;vertical-align:{-depth / 100:.3f}em"
    label = html.escape(formula, quote=True)
    box = f"0 {-top:.1f} {width:.1f} {height:.1f}"
    svg = f'<svg class="math" role="img" aria-label="{label}" viewBox="{box}" style="{size}">'
    return f'{svg}<path d="{" ".join(path)}"/></svg>'
