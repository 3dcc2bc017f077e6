"""The frame of every HTML page of a run: one document without scripts, fonts or addresses outside of it."""

from collections.abc import Sequence
from html import escape

from periplus.view.page.page_style import STYLE

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""Content security policy: a browser loads and runs nothing, whatever text from a run might become."""


def html_page(title: str, sections: Sequence[str]) -> str:
    """Return a document with these sections, which are markup; empty ones are left out. The title is escaped here."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)} - periplus</title>\n<style>{STYLE}</style></head>\n<body><main>\n"
        + "\n".join(section for section in sections if section)
        + "\n</main></body></html>\n"
    )
