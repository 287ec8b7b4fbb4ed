"""The HTML file: markup, style and script from the assets folder, and the packed data.

A run's data never becomes markup: it is base64 until the script unpacks it, and the script creates text nodes from it.
The Content-Security-Policy in the head allows only this style and script, by their hashes, and no connections.
"""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files

SCRIPTS = (
    "elements.js", "data.js", "charts.js", "whatif.js", "overview.js", "curves.js", "list.js", "heatmap.js",
    "formulas.js", "texts.js", "prompt.js", "gradings.js",
    "themes.js", "main.js",
)  # fmt: skip


def render(core: str, details: list[str]) -> str:
    """The page with the packed ``core``, and the packed ``details`` of each run."""
    style, scripts = _asset("style.css"), "\n".join(_asset(name) for name in SCRIPTS)
    script = f'"use strict";\n(() => {{\n{scripts}\n}})();\n'
    blocks = [_block("core", core), *(_block(f"details-{number}", content) for number, content in enumerate(details))]
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    filled = {"policy": policy, "style": style, "script": script, "data": "\n".join(blocks)}
    parts = _asset("page.html").split("@@")  # text, name, text, name ... text
    return "".join(filled[part] if number % 2 else part for number, part in enumerate(parts))


def _block(name: str, content: str) -> str:
    return f'<script type="text/plain" id="{name}">{content}</script>'


def _digest(content: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"


def _asset(name: str) -> str:
    return (files("meds_openrlhf.report") / "assets" / name).read_text(encoding="utf-8")
