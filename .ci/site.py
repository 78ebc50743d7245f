"""What the site's builder must know of our pages (a hook of mkdocs): links out of docs/, and bars in tables' code."""  # noqa: INP001 - mkdocs runs it as a file.

import re


def on_page_markdown(markdown: str, **_: object) -> str:
    """Leave the words alone of links to files beside the pages, which lie in the repository and not on the site."""
    return re.sub(r"\[([^\]]*)\]\(\.\./[^)\s]*\)", r"\1", markdown)


def on_page_content(html: str, **_: object) -> str:
    r"""Write `\|` in inline code as the bar it means: tables need the backslash, and Python-Markdown keeps it."""
    return re.sub(r"<code>[^<]*</code>", lambda code: code[0].replace("\\|", "|"), html)
