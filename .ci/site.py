"""What the site's builder must know of our pages (a hook of mkdocs): how a table's code writes a vertical bar."""  # noqa: INP001 - mkdocs runs it as a file.

import re


def on_page_content(html: str, **_: object) -> str:
    r"""Write `\|` in inline code as the bar it means: tables need the backslash, and Python-Markdown keeps it."""
    return re.sub(r"<code>[^<]*</code>", lambda code: code[0].replace("\\|", "|"), html)
