"""MkDocs hook: what the site does with every page. The version stands in the footer, and pictures open in full size.

Links to files of the repository become their names: the site does not carry the sources.
"""

from __future__ import annotations

import re
from typing import Any

_FOLDERS = "proxy|kueue_integration|airflow_provider|benchmarks|dags|tests|charts|images|localcluster"
_REPOSITORY_LINK = re.compile(rf"\[([^\]]+)\]\((?:\.\./)+((?:{_FOLDERS})[^)]*)\)")
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
