"""The services under examples/, copies of them to run, and the shell lines of their pages."""

from __future__ import annotations

import re
import shutil
import socket
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"
SERVICES = sorted(path.parent.name for path in EXAMPLES.glob("*/requirements.txt"))


def copied(name: str, to: Path) -> Path:
    """Its folder, as it stands in the repository."""
    return Path(shutil.copytree(EXAMPLES / name, to / name, ignore=shutil.ignore_patterns("*cache*")))


def lines(name: str, *, wheel: Path) -> str:
    """What its page has a reader type, as it stands, but for ports, which have to be free here, and our own wheel."""
    page = (EXAMPLES / name / "README.md").read_text("utf-8")
    written = "".join(re.findall(r"^```sh\n(.*?)^```", page, re.DOTALL | re.MULTILINE))
    script = written.replace("pip install ", f"pip install --quiet --disable-pip-version-check {wheel} ")
    port = str(_free_port())
    web = {
        "localhost:8000": f"localhost:{port}", "127.0.0.1:8000": f"127.0.0.1:{port}",
        "uvicorn ": f"uvicorn --port {port} ", "runserver ": f"runserver {port} ",
    }  # fmt: skip
    for old, new in web.items():
        script = script.replace(old, new)
    return re.sub(r"\b5433\d\b", str(_free_port()), script)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
