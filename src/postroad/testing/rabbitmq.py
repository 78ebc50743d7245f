"""RabbitMQ nodes for tests: one of our own that may be broken at will, or one that runs already."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from typing_extensions import override

from postroad.clock import seconds
from postroad.errors import Unavailable, UsageError
from postroad.testing.installed import erlang_tool, package_sbin, rabbitmq_remedy
from postroad.testing.process import Folder, Started, end, free_port, listens, slay, wait_until

_LOG = "output.log"
_ACTOR = '<<"postroad">>'  # Who did it, in the broker's own log.
_LOOPBACK = "-kernel inet_dist_use_interface {127,0,0,1}"


@dataclass(frozen=True, slots=True)
class RabbitAddress:
    """Where a node is and what opens it, to be handed to another process of the same machine as JSON."""

    port: int
    node: str
    cookie: str
    epmd_port: int
    home: str
    sbin: str
    management_port: int | None = None

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` wrote."""
        fields: dict[str, Any] = json.loads(text)
        return cls(**fields)


class Rabbit:
    """A RabbitMQ node of this machine that someone else runs: its URLs, virtual hosts and users.

    Operator acts run inside the node, by Erlang's `erl_call`, and take milliseconds; `ctl` is `rabbitmqctl` and takes
    up to a second.
    """

    def __init__(self, address: RabbitAddress) -> None:
        self.address = address

    @property
    def port(self) -> int:
        """The AMQP port on 127.0.0.1."""
        return self.address.port

    def url(self, vhost: str = "/", user: str = "guest", password: str = "guest", *, port: int | None = None) -> str:  # noqa: S107 - the broker's own default
        """The AMQP URL of a virtual host; `port` is that of a proxy."""
        who = f"{quote(user, safe='')}:{quote(password, safe='')}"
        return f"amqp://{who}@127.0.0.1:{port or self.port}/{quote(vhost, safe='')}"

    def management_url(self, user: str = "guest", password: str = "guest") -> str:  # noqa: S107 - the broker's own default
        """The base URL of the management API.

        Raises:
            UsageError: the node runs without the management plugin.
        """
        if self.address.management_port is None:
            raise UsageError("PR107", "this node has no management API; construct it with management=True")
        who = f"{quote(user, safe='')}:{quote(password, safe='')}"
        return f"http://{who}@127.0.0.1:{self.address.management_port}"

    def add_vhost(self, name: str) -> str:
        """Make a virtual host, open to `guest`, and return its URL; one that exists already stays as it is."""
        vhost = _binary(name)
        self._act(f"rabbit_vhost:add({vhost}, {_ACTOR})")
        self._permit("guest", name, (".*", ".*", ".*"))
        return self.url(name)

    def drop_vhost(self, name: str) -> None:
        """Delete a virtual host with its queues, closing its connections."""
        self.evaluate(f"rabbit_vhost:delete({_binary(name)}, {_ACTOR})")

    def add_user(
        self,
        name: str,
        password: str,
        *,
        configure: str = ".*",
        write: str = ".*",
        read: str = ".*",
        vhost: str = "/",
        tags: Sequence[str] = (),
    ) -> str:
        """Make a user with these permissions on one virtual host, and return its URL; repeat for further hosts."""
        known = f"rabbit_auth_backend_internal:exists({_binary(name)})"
        add = f"rabbit_auth_backend_internal:add_user({_binary(name)}, {_binary(password)}, {_ACTOR})"
        self._act(f"case {known} of true -> ok; false -> {add} end")
        if tags:
            names = ", ".join(f"'{tag}'" for tag in tags)
            self._act(f"rabbit_auth_backend_internal:set_tags({_binary(name)}, [{names}], {_ACTOR})")
        self._permit(name, vhost, (configure, write, read))
        return self.url(vhost, name, password)

    def evaluate(self, expression: str) -> str:
        """Evaluate an Erlang expression (without the closing dot) inside the node; the value as Erlang prints it.

        Useful ones: `rabbit_alarm:set_alarm({{resource_limit, memory, node()}, []})` blocks publishers, `clear_alarm`
        with the inner tuple lets them go on.

        Raises:
            Unavailable: the node does not answer, or the expression failed.
        """
        tool = erlang_tool("erl_call")
        if tool is None:
            return self.ctl("eval", f"{expression}.").strip()
        # A name of its own for each call: by default all have the same, and the node refuses a second caller of a name.
        caller = f"call{secrets.token_hex(6)}"
        command = [tool, "-sname", self.address.node, "-c", self.address.cookie, "-h", caller, "-e"]
        done = subprocess.run(
            command, input=f"{expression}.\n", capture_output=True, text=True, check=False, env=self._env()
        )
        answer = done.stdout.strip()
        if done.returncode != 0 or not answer.startswith("{ok, "):
            raise Unavailable(
                "PR302", f"the RabbitMQ node {self.address.node} refused: {answer or done.stderr.strip()}"
            )
        return answer.removeprefix("{ok, ").removesuffix("}")

    def ctl(self, *arguments: str) -> str:
        """Run `rabbitmqctl` against the node and return its output; about a second a call.

        Raises:
            Unavailable: it failed; the message ends with its last line.
        """
        command = [f"{self.address.sbin}/rabbitmqctl", "-q", "-n", self.address.node, *arguments]
        env = {**self._env(), "RABBITMQ_CTL_ERL_ARGS": _LOOPBACK, "RABBITMQ_CONF_ENV_FILE": "/dev/null"}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
        if done.returncode != 0:
            lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
            raise Unavailable("PR302", f"rabbitmqctl {arguments[0]} failed: {lines[-1] if lines else 'no output'}")
        return done.stdout

    def _permit(self, user: str, vhost: str, patterns: tuple[str, str, str]) -> None:
        inner = ", ".join(_binary(pattern) for pattern in patterns)
        self._act(f"rabbit_auth_backend_internal:set_permissions({_binary(user)}, {_binary(vhost)}, {inner}, {_ACTOR})")

    def _act(self, expression: str) -> None:
        answer = self.evaluate(expression)
        if answer != "ok":
            raise Unavailable("PR302", f"the RabbitMQ node {self.address.node} refused: {answer}")

    def _env(self) -> dict[str, str]:
        """What tools and node need to find each other; nothing else of ours reaches them."""
        return {
            "PATH": os.environ.get("PATH", ""),
            "LANG": "C.UTF-8",
            "HOME": self.address.home,
            "ERL_EPMD_PORT": str(self.address.epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_AFLAGS": "-start_epmd false",  # Of every Erlang: one that starts its own leaves it behind.
            "ERL_CRASH_DUMP_BYTES": "0",  # A tool that fails leaves no dump in the caller's folder.
        }


class RabbitNode(Rabbit, Started):
    """A RabbitMQ node of our own on free loopback ports, with its own epmd, cookie and data: break it at will.

    Runs as whoever we are, root included. `settings` are lines of rabbitmq.conf. With `peer`, a node made before, it
    shares that one's cookie and epmd, so that both can form a cluster (see `RabbitCluster`). The data survive `stop`,
    `kill` and `restart`, and are removed by `close`, unless `folder` says where they live. Should this Python process
    end in whatever way, node and epmd are killed. Start-up takes 4 to 8 seconds. Not for use by several threads at
    once.

    Raises:
        UsageError: RabbitMQ is not installed; the message says what to install.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        management: bool = False,
        sbin: Path | None = None,
        settings: Mapping[str, str] | None = None,
        peer: RabbitNode | None = None,
    ) -> None:
        remedy = rabbitmq_remedy() if sbin is None else None
        if remedy is not None:
            raise UsageError("PR108", remedy)
        self._folder = Folder(folder, prefix="postroad-mq-", pid_files=["beam.pid", "epmd.pid"])
        port = free_port()
        super().__init__(
            RabbitAddress(
                port=port,
                node=f"postroad{port}@localhost",
                cookie=peer.address.cookie if peer else secrets.token_hex(16),
                epmd_port=peer.address.epmd_port if peer else free_port(),
                home=str(self._folder.path),
                sbin=str(sbin or package_sbin()),
                management_port=free_port() if management else None,
            )
        )
        self._dist_port = free_port()
        self._settings = dict(settings or {})
        self._peer = peer
        self._node: subprocess.Popen[bytes] | None = None
        self._epmd: subprocess.Popen[bytes] | None = None
        self._paused = False

    @property
    def pid(self) -> int:
        """The node's process id.

        Raises:
            UsageError: the node is not running.
        """
        if self._node is None:
            raise UsageError("PR107", "the RabbitMQ node is not running; start it first")
        return self._node.pid

    @override
    def start(self, *, within: timedelta = seconds(90)) -> None:
        """Start the node and return once it is booted and accepts connections.

        Raises:
            Unavailable: it did not come up; the message ends with the last lines of its output.
        """
        self.launch()
        node = self._node
        assert node is not None
        if not wait_until(lambda: node.poll() is not None or self._booted(), within=within) or node.poll() is not None:
            self.kill()
            raise Unavailable("PR302", f"RabbitMQ did not start: {self._folder.tail(_LOG)}")

    def launch(self) -> None:
        """Begin to start; `start` then waits for the end of it. A node that runs is no error."""
        if self._node is not None:
            return
        self._write_files()
        self._start_epmd()
        node = self._folder.launch([Path(self.address.sbin) / "rabbitmq-server"], env=self._node_env(), output=_LOG)
        self._node = node
        (self._folder.path / "beam.pid").write_text(f"{node.pid}\n")

    def stop(self) -> None:
        """Stop the node in good order (seconds); a node that is not running is no error."""
        if self._node is not None:
            end(self._node, signal.SIGTERM)
        self._node = None

    def kill(self) -> None:
        """SIGKILL the node, after `settle` where it answers."""
        if self._node is not None:
            if not self._paused:
                with suppress(Unavailable):
                    self.settle()
            slay(self._node)
        self._node = None
        self._paused = False

    def settle(self) -> None:
        """Make the queues declared so far survive a SIGKILL; `kill` does it by itself.

        A node writes a new quorum queue's registration to disk up to a second after it has confirmed the declaration.
        Killed before, it was seen (3.10.8) to come back with the queue empty, confirmed messages and all, and without a
        leader. Production declares long before it crashes; a test does not.
        """
        self.evaluate("[dets:sync(Table) || Table <- dets:all()]")

    def restart(self) -> None:
        """Stop in good order and start again, on the same ports and data."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """SIGSTOP: connections stay, nothing answers."""
        os.kill(self.pid, signal.SIGSTOP)
        self._paused = True

    def resume(self) -> None:
        """SIGCONT, after `pause`."""
        os.kill(self.pid, signal.SIGCONT)
        self._paused = False

    @override
    def close(self) -> None:
        """End node and epmd for good, at once, and remove the data, unless they are the caller's."""
        for process in (self._node, self._epmd):
            if process is not None:
                slay(process)
        self._node = self._epmd = None
        self._folder.close()

    @property
    def runs(self) -> bool:
        """Whether the node's process runs, and was not paused."""
        return self._node is not None and self._node.poll() is None and not self._paused

    def _write_files(self) -> None:
        folder = self._folder.path
        plugins = "rabbitmq_management" if self.address.management_port else ""
        (folder / "enabled_plugins").write_text(f"[{plugins}].\n")
        (folder / "advanced.config").write_text("[].\n")
        lines = {
            "listeners.tcp.1": f"127.0.0.1:{self.port}",
            "loopback_users": "none",
            "log.console": "false",
            "disk_free_limit.absolute": "50MB",
            **self._settings,
        }
        if self.address.management_port:
            lines |= {"management.tcp.ip": "127.0.0.1", "management.tcp.port": str(self.address.management_port)}
        (folder / "rabbitmq.conf").write_text("".join(f"{name} = {value}\n" for name, value in lines.items()))
        cookie = folder / ".erlang.cookie"
        if not cookie.exists():
            cookie.touch(mode=0o600)
            cookie.write_text(self.address.cookie)

    def _start_epmd(self) -> None:
        """Start a port mapper of our own, as a child: one that the node started would outlive it."""
        if self._peer is not None:
            self._peer._start_epmd()  # noqa: SLF001 - one of our own kind
            return
        if self._epmd is not None and self._epmd.poll() is None:
            return
        tool = erlang_tool("epmd")
        if tool is None:
            raise UsageError("PR108", "Erlang's epmd was not found beside erl; install the Erlang runtime whole")
        command = [tool, "-port", str(self.address.epmd_port), "-address", "127.0.0.1"]
        self._epmd = self._folder.launch(command, env=self._env(), output=_LOG)
        (self._folder.path / "epmd.pid").write_text(f"{self._epmd.pid}\n")
        if not wait_until(lambda: listens(self.address.epmd_port), within=seconds(10)):
            raise Unavailable("PR302", f"epmd did not start: {self._folder.tail(_LOG)}")

    def _node_env(self) -> dict[str, str]:
        folder = self._folder.path
        return {
            **self._env(),
            "RABBITMQ_NODENAME": self.address.node,
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "advanced.config"),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_PID_FILE": str(folder / "rabbit.pid"),
            "RABBITMQ_DIST_PORT": str(self._dist_port),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": f"{_LOOPBACK} -noinput",
            "RABBITMQ_ALLOW_INPUT": "true",  # Makes the script become the node, whose id is then that of our child.
        }

    def _booted(self) -> bool:
        if not listens(self.port):
            return False
        try:
            return self.evaluate("rabbit:is_running()") == "true"
        except Unavailable:
            return False


def _binary(text: str) -> str:
    """A text as an Erlang binary."""
    inner = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'<<"{inner}"/utf8>>'
