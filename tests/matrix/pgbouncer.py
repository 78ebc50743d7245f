"""A pgbouncer of our own in transaction mode, before one PostgreSQL server."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING, Final, Self

from postroad.clock import seconds
from postroad.errors import Unavailable
from postroad.testing.process import Folder, free_port, listens, slay, wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from postroad.testing.servers import Postgres

_CONFIG: Final = """\
[databases]
* = host={host} port={server} auth_user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {users}
auth_query = SELECT rolname, rolpassword FROM pg_authid WHERE rolname = $1
pool_mode = transaction
default_pool_size = 40
max_client_conn = 1000
server_idle_timeout = 5
ignore_startup_parameters = extra_float_digits
{more}
"""


class Pgbouncer:
    """Runs from `start` (or ``with``) to `close`; `more` are lines of its configuration. As root it is `postgres`."""

    def __init__(self, server: Postgres, program: str = "pgbouncer", *, more: str = "") -> None:
        self.port = free_port()
        self._server = server
        self._program = program
        self._more = more
        self._folder = Folder(prefix="postroad-pool-", pid_files=["pgbouncer.pid"])
        self._process: subprocess.Popen[bytes] | None = None

    def url(self, direct: str) -> str:
        """The URL through the pooler, for one past it."""
        return direct.replace(f":{self._server.port}/", f":{self.port}/")

    def start(self) -> None:
        """Start it and wait until it listens.

        Raises:
            Unavailable: it does not; the message ends with its last lines.
        """
        folder = self._folder.path
        folder.chmod(0o755)
        (folder / "users.txt").write_text('"postgres" ""\n')
        (folder / "pgbouncer.ini").write_text(_CONFIG.format(
            host=self._server.host, server=self._server.port, port=self.port, users=folder / "users.txt",
            more=self._more,
        ))  # fmt: skip
        account = ["-u", "postgres"] if os.geteuid() == 0 else []
        self._process = self._folder.launch(
            [self._program, *account, folder / "pgbouncer.ini"],
            env={"PATH": os.environ.get("PATH", "") + ":/usr/sbin"}, output="pgbouncer.log",
        )  # fmt: skip
        (folder / "pgbouncer.pid").write_text(f"{self._process.pid}\n")
        if not wait_until(lambda: listens(self.port), within=seconds(10)):
            raise Unavailable("PR301", f"pgbouncer did not start: {self._folder.tail('pgbouncer.log')}")

    def close(self) -> None:
        """End it at once."""
        if self._process is not None:
            slay(self._process)
        self._folder.close()

    def __enter__(self) -> Self:
        """Start; a failed start leaves nothing behind."""
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()


def version(program: str | Path = "pgbouncer") -> str:
    """What it says it is, such as ``1.18.0``."""
    said = subprocess.run([str(program), "--version"], capture_output=True, text=True, check=True).stdout
    return said.split()[1]
