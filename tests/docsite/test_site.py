"""The documentation as a site: complete, searchable, with docstrings, without dead links or requests to elsewhere."""

import json
import logging
import re
import shutil
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort
from playwright.sync_api import expect, sync_playwright

import meds_openrlhf
from tests.report.conftest import ARGUMENTS, DEADLINE

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("NO_MKDOCS_2_WARNING", "1")
    levels = {name: logging.getLogger(name).level for name in ("mkdocs", "mkdocs.plugins")}
    yield
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


def build_site(root: Path, site: Path) -> None:
    config = load_config(str(root / "mkdocs.yml"), strict=True, site_dir=str(site))
    config.plugins.on_startup(command="build", dirty=False)
    build(config)
    config.plugins.on_shutdown()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built strictly: any warning ends the build."""
    folder = tmp_path_factory.mktemp("site")
    build_site(REPOSITORY, folder)
    return folder


def text_of(page: Path) -> str:
    return " ".join(unescape(re.sub("<[^>]*>", " ", page.read_text())).split())


def test_every_page_of_docs_is_on_the_site(site: Path) -> None:
    for source in (REPOSITORY / "docs").rglob("*.md"):
        name = source.relative_to(REPOSITORY / "docs").with_suffix(".html")
        page = site / (name.with_name("index.html") if name.stem == "README" else name)
        title = re.sub("[`*]", "", source.read_text().splitlines()[0].removeprefix("# "))
        assert title in text_of(page), page
    assert "the same mistake in new words" in text_of(site / "index.html")
    assert "0.2.0" in text_of(site / "changes.html")
    assert ">The atlas of any run</a>" in (site / "report.html").read_text()  # in place of the file's name
    # A link to a file of the repository leads to its text.
    assert "../repository/examples/calculator_agent.py.html" in (site / "recipes/tools.html").read_text()
    shown = text_of(site / "repository/examples/calculator_agent.py.html")
    assert (REPOSITORY / "examples/calculator_agent.py").read_text().splitlines()[0].strip('"')[:60] in shown


def test_search_and_reference_know_settings_every_exported_class_and_troubles(site: Path) -> None:
    entries = json.loads((site / "search/search_index.json").read_text())["docs"]
    places = {entry["location"]: entry["title"] + unescape(entry["text"]) for entry in entries}
    for term, page in {
        "meds.penalty.alpha": "configuration.html",
        "recluster": "api.html",
        "eigen_ratio_window": "metrics.html",
        "Nothing is penalized": "troubleshooting.html",
    }.items():
        assert any(term in text for place, text in places.items() if place.startswith(page)), term
    assert not any(place.startswith("repository/") for place in places)
    headings = re.findall(r'<h3 id="meds_openrlhf\.[\w.]*?(\w+)"', (site / "api.html").read_text())
    assert set(meds_openrlhf.__all__) <= set(headings)
    assert "Records layer logits of a causal language model during a forward pass." in text_of(site / "api.html")


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        sources = r'<(?:script|img|iframe)[^>]*src="([^"]*)|<link[^>]*stylesheet[^>]*href="([^"]*)'
        loaded = re.findall(sources, page.read_text())
        assert loaded
        assert not [address for found in loaded for address in found if re.match(r"(\w+:)?//", address)], page


def small_project(root: Path, pages: dict[str, str]) -> Path:
    """A copy of the site's settings with a navigation of one page of docs/, which holds ``pages``."""
    for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"):
        (root / name).write_text("# Title\n")
    (root / "docs").mkdir()
    for name, text in pages.items():
        (root / "docs" / name).write_text(f"# Title\n\n{text}\n")
    shutil.copytree(REPOSITORY / "docsite", root / "docsite")
    navigation = "nav: [index.md, method.md, changes.md, contributing.md, security.md]"
    settings = (REPOSITORY / "mkdocs.yml").read_text()
    settings = re.sub(r"(?<=\n)nav:\n.*?(?=\n\n)", navigation, settings, flags=re.DOTALL)
    (root / "mkdocs.yml").write_text(settings)
    return root


@pytest.mark.e2e
def test_the_search_finds_a_class_without_a_server(site: Path) -> None:
    """The page is opened from the file system, and asks for nothing else."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("no chromium on the PATH; apt-get install chromium")
    requests, trouble = [], []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=ARGUMENTS, timeout=DEADLINE)
        page = browser.new_page()
        page.set_default_timeout(DEADLINE)
        page.on("request", lambda request: requests.append(request.url))
        page.on("console", lambda message: trouble.append(message.text))
        page.on("pageerror", lambda error: trouble.append(str(error)))
        page.goto((site / "recipes/own.html").as_uri())
        page.click("input[name=query]")
        page.keyboard.insert_text("LayerLogitRecorder")
        page.keyboard.press("End")
        first = page.locator(".md-search-result__item").first
        expect(first).to_contain_text("API")
        expect(first).to_contain_text("LayerLogitRecorder")
        browser.close()
    assert trouble == []
    assert [address for address in requests if not address.startswith(("file:", "data:", "blob:"))] == []


def test_what_leads_nowhere_ends_the_build(tmp_path: Path) -> None:
    """No page, no heading, no file; and a page that no link of the navigation leads to."""
    pages = {"method.md": "[page](gone.md) [anchor](../README.md#gone) [file](../gone.py)", "lost.md": ""}
    with pytest.raises(Abort, match="4 warnings in strict mode"):
        build_site(small_project(tmp_path, pages), tmp_path / "site")
