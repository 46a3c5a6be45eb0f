"""MkDocs hook: what the site does with every page. The version stands in the footer, pictures open in full size, and
names in tables break between their words.

Links to files of the repository become their names: the site does not carry the sources.
"""

from __future__ import annotations

import re
from typing import Any

_FOLDERS = "proxy|kueue_integration|airflow_provider|benchmarks|dags|tests|charts|images|localcluster"
_REPOSITORY_LINK = re.compile(rf"\[([^\]]+)\]\((?:\.\./)+((?:{_FOLDERS})[^)]*)\)")
_LISTS = ("reference/", "metrics.md")
"""Pages whose tables are lists of names: parameters, values, annotations, metrics."""
_CELL = re.compile(r"<td[ >].*?</td>", re.DOTALL)
_CODE = re.compile(r"(?<=<code>)[^<]{16,}(?=</code>)")
_JOINT = re.compile(r"(?<=[a-z0-9)][_./=:])(?=[\w{(])")
_PICTURE = re.compile(r'<img [^>]*src="([^"#]+)(#only-light|#only-dark)?"[^>]*>')


def on_config(config: Any) -> Any:
    """Say which version the pages are of."""
    from singularity_proxy.protocol import VERSION

    config.copyright = f"Version {VERSION}"
    return config


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Turn links to files of the repository into names."""
    return _REPOSITORY_LINK.sub(lambda match: f"{match[1]} (`{match[2]}`)", markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Let a picture keep a size that can be read on a phone, and open alone when it is chosen."""
    return _PICTURE.sub(lambda match: f'<a class="picture" href="{match[1]}">{match[0]}</a>', html)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Let a long name in a table break behind `_`, `.`, `/`, `=` and `:`, and never within a word. On a phone the cells
    of a list of names stand below each other. The search has read the page before."""

    def broken(cell: re.Match[str]) -> str:
        return _CODE.sub(lambda code: _JOINT.sub("<wbr>", code[0]), cell[0])

    lists = page.file.src_uri.startswith(_LISTS)
    return _CELL.sub(broken, output.replace("<table>", "<table data-list>") if lists else output)
