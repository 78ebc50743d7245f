"""The documents' examples run as they stand: every Python block, and the quick start from first to last line."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from postroad.clock import seconds
from postroad.testing.postgres import wheel_bin_dir
from postroad.testing.process import wait_until
from runtime.processes import Running, environment
from testing.project import Project

if TYPE_CHECKING:
    from postroad.testing.servers import Postgres, Rabbit

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = ["README.md", *(f"docs/{page.name}" for page in sorted(DOCS.glob("*.md")))]
RUN = """
import importlib, re, sys
from pathlib import Path
names = {"__name__": "docs"}
for number, block in enumerate(Path(sys.argv[1]).read_text("utf-8").split("\\0")):
    file = re.match(r"# (\\w+)\\.py\\n", block)
    if file is None:
        exec(compile(block, f"{sys.argv[2]}, block {number}", "exec"), names)
    else:
        importlib.import_module(file[1])
"""


def blocks(page: str, language: str) -> list[str]:
    """The fenced blocks of a page in that language, without their indentation in lists."""
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / page).read_text("utf-8"), re.DOTALL | re.MULTILINE)


def with_python(page: str) -> bool:
    return bool(blocks(page, "python"))


def save_files(page: str, folder: Path) -> None:
    """Write each Python block whose first line names a file, as a reader would."""
    for block in blocks(page, "python"):
        named = re.match(r"# (\w+\.py)\n", block)
        if named is not None:
            (folder / named[1]).write_text(block)


@pytest.mark.parametrize("page", [page for page in PAGES if with_python(page)])
def test_every_python_block_of_a_page_runs(page: str, tmp_path: Path) -> None:
    save_files(page, tmp_path)
    joined = tmp_path / "blocks"
    joined.write_text("\0".join(blocks(page, "python")))
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", RUN, str(joined), page], cwd=tmp_path, env=environment(PYTHONPATH="."),
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_every_page_is_linked_from_the_readme() -> None:
    linked = set(re.findall(r"\((docs/[\w-]+\.md)\)", (ROOT / "README.md").read_text("utf-8")))
    assert linked == {page for page in PAGES if page.startswith("docs/")}


@pytest.mark.parametrize("page", PAGES)
def test_every_link_to_another_page_leads_somewhere(page: str) -> None:
    here = (ROOT / page).parent
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", (ROOT / page).read_text("utf-8"))
    assert [link for link in links if not (here / link).exists()] == []


# --- the quick start ------------------------------------------------------------------------------------------------


class Terminal:
    """Runs the lines of a shell block: `postroad run` stays, everything else is waited for."""

    def __init__(self, folder: Path, urls: dict[str, str], stack: ExitStack) -> None:
        self._folder = folder
        self._urls = urls
        self._stack = stack
        self.settings: dict[str, str] = {}
        self.printed: dict[str, str] = {}

    def run(self, block: str) -> None:
        for line in block.splitlines():
            words = shlex.split(line)
            if words[0] == "export":
                name, _, value = words[1].partition("=")
                self.settings[name] = self._urls[value]  # The page's servers are the test's.
            elif words[:2] == ["postroad", "run"]:
                given = {**self.settings, "PYTHONPATH": str(self._folder), "POSTROAD_TOPOLOGY": "verify"}
                self._stack.enter_context(Running(*words[2:], **given)).ready()
            elif words[0] != "pip":
                self.printed[line] = self.command(line)

    def command(self, line: str) -> str:
        found = [str(Path(sys.executable).parent), str(wheel_bin_dir()), os.environ["PATH"]]
        env = environment(PYTHONPATH=str(self._folder), PATH=os.pathsep.join(found), **self.settings)
        done = subprocess.run(
            ["sh", "-c", line], cwd=self._folder, env=env, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, (line, done.stdout, done.stderr)
        return done.stdout


@pytest.fixture
def urls(postgres: Postgres, vhost: str) -> Iterator[dict[str, str]]:
    """What stands on the page, and what it is here."""
    names = {service: f"test_{service}_{uuid4().hex}" for service in ("orders", "billing")}
    databases = {
        f"postgresql://postgres@127.0.0.1/{service}": postgres.create_database(name) for service, name in names.items()
    }
    yield {**databases, "amqp://guest:guest@127.0.0.1/": vhost}
    for name in names.values():
        postgres.drop_database(name)


def test_the_quick_start_leads_from_installation_to_an_effect(urls: dict[str, str], tmp_path: Path) -> None:
    save_files("docs/quickstart.md", tmp_path)
    with ExitStack() as stack:
        terminal = Terminal(tmp_path, urls, stack)
        *steps, see = blocks("docs/quickstart.md", "sh")
        for block in steps:
            terminal.run(block)
        assert terminal.printed["python place_order.py"].startswith("published ")
        terminal.settings["POSTROAD_DATABASE_URL"] = urls["postgresql://postgres@127.0.0.1/billing"]
        look = next(line for line in see.splitlines() if line.startswith("psql"))
        assert wait_until(lambda: terminal.command(look) == "A-1|1999\n", within=seconds(30), every=seconds(0.1))
        terminal.run(see)
    assert "0 in quarantine" in terminal.printed["postroad quarantine list"]
    assert "0 errors" in terminal.printed["postroad doctor billing_app:app"]


class Shared(Terminal):
    """The same page over `postroad dev`: its exports, no `migrate` and no topology, psql as the owner."""

    def __init__(self, folder: Path, told: dict[str, Any], stack: ExitStack) -> None:
        super().__init__(folder, {}, stack)
        self.settings = dict(told["settings"])
        self._owner = {**self.settings, "POSTROAD_DATABASE_URL": told["owner"]}

    def run(self, block: str) -> None:
        for line in block.splitlines():
            words = shlex.split(line)
            if words[:2] == ["postroad", "run"]:
                given = {**self.settings, "PYTHONPATH": str(self._folder)}
                self._stack.enter_context(Running(*words[2:], **given)).ready()
            elif words[0] == "psql":
                self.printed[line] = self.psql(line)
            elif words[0] not in {"pip", "export"} and words[1] not in {"migrate", "topology"}:
                self.printed[line] = self.command(line)

    def psql(self, line: str) -> str:
        runtime, self.settings = self.settings, self._owner
        try:
            return self.command(line)
        finally:
            self.settings = runtime


@pytest.mark.heavy
def test_the_quick_start_works_over_the_developers_server(tmp_path: Path) -> None:
    save_files("docs/quickstart.md", tmp_path)
    place = Path(tempfile.mkdtemp(prefix="postroad-dev-", dir="/tmp"))
    place.chmod(0o755)
    command = [sys.executable, "-m", "postroad", "dev", "--json", "--folder", str(place / "stack")]
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, place, ignore_errors=True)
        dev = stack.enter_context(subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True))
        stack.callback(dev.terminate)
        assert dev.stdout is not None
        terminal = Shared(tmp_path, json.loads(dev.stdout.readline()), stack)
        *steps, see = blocks("docs/quickstart.md", "sh")
        for block in steps:
            terminal.run(block)
        look = next(line for line in see.splitlines() if line.startswith("psql"))
        assert wait_until(lambda: terminal.psql(look) == "A-1|1999\n", within=seconds(30), every=seconds(0.1))
        terminal.run(see)
    assert "0 errors" in terminal.printed["postroad doctor billing_app:app"]


# --- the rights on the broker that docs/operations.md asks for --------------------------------------------------------


def rights() -> dict[str, dict[str, str]]:
    """The table of docs/operations.md: who, and its three patterns."""
    rows = re.findall(
        r"^\| ([\w' -]+?) \| `(.+?)` \| `(.+?)` \| `(.+?)` \|",
        (DOCS / "operations.md").read_text("utf-8"),
        re.MULTILINE,
    )
    plain = [[cell.replace("\\|", "|") for cell in row] for row in rows]
    return {who: {"configure": one, "write": two, "read": three} for who, one, two, three in plain}


def test_the_rights_on_the_broker_that_the_page_names_are_enough(
    urls: dict[str, str], rabbit: Rabbit, vhost: str, tmp_path: Path
) -> None:
    save_files("docs/quickstart.md", tmp_path)
    host = vhost.rpartition("/")[2]
    users = {
        who: rabbit.add_user(f"user-{uuid4().hex}", "secret", vhost=host, **patterns)
        for who, patterns in rights().items()
    }
    assert users.keys() == {"producer's deploy", "producer", "consumer's deploy", "consumer"}
    broker = "amqp://guest:guest@127.0.0.1/"
    install, producing, consuming, publishing, see = blocks("docs/quickstart.md", "sh")
    assert install.startswith("pip")
    with ExitStack() as stack:
        for who, block in (("producer", producing), ("consumer", consuming)):
            deploy, _, run = block.rstrip().rpartition("\n")
            Terminal(tmp_path, {**urls, broker: users[f"{who}'s deploy"]}, stack).run(deploy)
            exports = "\n".join(line for line in deploy.splitlines() if line.startswith("export"))
            Terminal(tmp_path, {**urls, broker: users[who]}, stack).run(f"{exports}\n{run}")
        Terminal(tmp_path, urls, stack).run(publishing)
        terminal = Terminal(tmp_path, urls, stack)
        terminal.run(see.splitlines()[0])
        look = next(line for line in see.splitlines() if line.startswith("psql"))
        assert wait_until(lambda: terminal.command(look) == "A-1|1999\n", within=seconds(30), every=seconds(0.1))


# --- docs/testing.md ------------------------------------------------------------------------------------------------

USES_THE_FIXTURES = """
import asyncio

import asyncpg
import pika


def test_both_servers_answer(postroad_database, broker):
    async def ask():
        connection = await asyncpg.connect(postroad_database)
        assert await connection.fetchval("SELECT count(*) FROM postroad.outbox") == 0
        await connection.close()

    asyncio.run(ask())
    pika.BlockingConnection(pika.URLParameters(broker)).close()
"""


@pytest.mark.heavy
def test_the_tests_of_the_testing_page_pass_as_they_stand(tmp_path: Path) -> None:
    save_files("docs/testing.md", tmp_path)
    assert "4 passed" in Project.made(tmp_path).pytest()


@pytest.mark.heavy
def test_the_fixtures_of_the_testing_page_give_servers(tmp_path: Path) -> None:
    save_files("docs/testing.md", tmp_path)
    (tmp_path / "test_it.py").write_text(USES_THE_FIXTURES)
    assert "1 passed" in Project.made(tmp_path).pytest("-k", "both_servers")


@pytest.mark.heavy
def test_the_trial_servers_of_the_testing_page_start_and_stop(tmp_path: Path) -> None:
    save_files("docs/testing.md", tmp_path)
    done = subprocess.run(
        [sys.executable, "servers.py"], input="\n", cwd=tmp_path, env=environment(), capture_output=True, text=True,
        timeout=110, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^(\w+): export POSTROAD_DATABASE_URL=postgresql://", done.stdout, re.MULTILINE) == [
        "orders", "billing",
    ]  # fmt: skip
    assert "export POSTROAD_BROKER_URL=amqp://" in done.stdout
