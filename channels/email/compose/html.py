"""
Renders Markdown as the HTML of a mail. Pure.

Mail programs know no style sheets worth the name (some remove ``<style>`` altogether), so what is needed to
read tables, code and quotations stands at the elements. The HTML comes from `channels.markup`, which lets
only known elements through and gives none of them attributes that matter here.
"""

from __future__ import annotations

import re

from channels.markup import MAX_BYTES, to_html

_BODY = "font-family:sans-serif;font-size:1em;line-height:1.4"
_MONO = "font-family:monospace;background:#f4f4f4"
_CELL = "border:1px solid #ccc;padding:4px 8px;text-align:left;vertical-align:top"
_BESIDE = "margin:0 0 0 .8ex;border-left:2px solid #ccc;padding-left:1ex;color:#555"
_STYLES = {
    "table": "border-collapse:collapse",
    "th": f"{_CELL};background:#f4f4f4",
    "td": _CELL,
    "pre": f"{_MONO};padding:8px;white-space:pre-wrap;overflow-wrap:anywhere",
    "code": _MONO,
    "blockquote": _BESIDE,
    "h1": "font-size:1.4em",
    "h2": "font-size:1.25em",
    "h3": "font-size:1.1em",
    "hr": "border:0;border-top:1px solid #ccc",
}
# What people wrote has its angle brackets escaped by now, so these are tags.
_TAG = re.compile(rf"<({'|'.join(_STYLES)})(?=[ >])")


def page(markdown: str, *, quoted: str = "", max_bytes: int = MAX_BYTES) -> str:
    """Render a page, with the HTML ``quoted`` below; Markdown over ``max_bytes`` is shown as it is."""
    body = _TAG.sub(
        lambda tag: f'<{tag[1]} style="{_STYLES[tag[1]]}"', to_html(markdown, max_bytes=max_bytes)
    )
    if quoted:
        body += f'\n<blockquote style="{_BESIDE};white-space:pre-wrap">{quoted}</blockquote>'
    return f'<!DOCTYPE html>\n<html><body style="{_BODY}">\n{body}\n</body></html>\n'
