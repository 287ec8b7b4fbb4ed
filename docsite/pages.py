"""Pages that lie outside of docs/, and links to them; mkdocs calls the functions `on_...` (see mkdocs.yml).

The pages of docs/ link to each other and into the repository as a forge needs it. On the site, a link to a file that is
no page leads to a page that shows the file. A link to nowhere stays as it is, and mkdocs refuses it.
"""

from __future__ import annotations

import json
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

# Page of the site, and the file in the repository's root, where a forge looks for it.
ROOT_PAGES = {
    "index.md": "README.md",
    "changes.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "security.md": "SECURITY.md",
}
SHOWN = "repository"  # folder of the site for pages that show a file
_LINK = re.compile(r"\[([^\[\]]*)\]\((?!\w+:)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the repository's root, and one for each file that a page links to."""
    root = Path(config.config_file_path).parent
    for uri, source in ROOT_PAGES.items():
        files.append(File.generated(config, uri, abs_src_path=str(root / source)))
    for page in list(files.documentation_pages()):
        for _, link, _ in _LINK.findall(page.content_string):
            uri = _page_of(root, page.src_uri, link) or ""
            if uri.startswith(f"{SHOWN}/") and uri not in files.src_uris:
                content = _showing(root / uri.removeprefix(f"{SHOWN}/").removesuffix(".md"), root)
                files.append(File.generated(config, uri, content=content, inclusion=InclusionLevel.NOT_IN_NAV))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links between files of the repository into links between pages of the site."""
    root, here = Path(config.config_file_path).parent, page.file.src_uri

    def changed(link: re.Match[str]) -> str:
        text, target, anchor = link.groups(default="")
        uri = _page_of(root, here, target)
        page_there = uri and files.get_file_from_path(uri)
        if not uri or not page_there:
            return link[0]
        if text.endswith(".md") and not uri.startswith(f"{SHOWN}/"):  # a file's name: the page has a title
            text = page_there.content_string.partition("\n")[0].removeprefix("# ")
        return f"[{text}]({posixpath.relpath(uri, posixpath.dirname(here) or '.')}{anchor})"

    return _LINK.sub(changed, markdown)


def _page_of(root: Path, here: str, link: str) -> str | None:
    """Return the page that shows what page ``here`` links to, or None if there is no such file in the repository."""
    shown = here.removeprefix(f"{SHOWN}/")
    source = posixpath.dirname(ROOT_PAGES.get(here, f"docs/{here}" if here == shown else shown))
    target = posixpath.normpath(posixpath.join(source, link))
    if (root / target / "README.md").is_file():
        target = posixpath.join(target, "README.md")
    if target.startswith("..") or not (root / target).is_file():
        return None
    pages = {file: uri for uri, file in ROOT_PAGES.items()}
    if target.startswith("docs/"):
        return target.removeprefix("docs/")
    return pages.get(posixpath.normpath(target)) or f"{SHOWN}/{target}.md"


def _showing(path: Path, root: Path) -> str:
    """Return a page with a file's text. The search leaves it out."""
    text = path.read_text("utf-8")
    title = f"`{path.relative_to(root).as_posix()}`"
    if path.suffix == ".ipynb":
        shown = "\n\n".join(_cell(cell) for cell in json.loads(text)["cells"])
    else:
        shown = _code(text, path.suffix.removeprefix("."))
    return f"---\nsearch:\n  exclude: true\n---\n# {title}\n\n{shown}\n"


def _code(text: str, language: str = "") -> str:
    return f"~~~~{language}\n{text}\n~~~~"


def _cell(cell: dict[str, Any]) -> str:
    """A notebook's cell, with what it printed and drew; a heading is one level below the page's own."""
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return re.sub("^#", "##", source, flags=re.MULTILINE)
    parts = [_code(source, "python")]
    for output in cell["outputs"]:
        image = output.get("data", {}).get("image/png")
        parts.append(
            f"![](data:image/png;base64,{''.join(image).strip()})" if image else _code("".join(output["text"]))
        )
    return "\n\n".join(parts)
