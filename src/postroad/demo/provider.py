"""The company that sends passengers their notices: a fake, in a process of its own, that counts what it did.

It honours no idempotency keys, and in one call of ten it acts and then does not answer.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from postroad.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SILENT_IN: Final = 10
"""Of so many calls one is not answered, though it was acted on."""
SILENCE: Final = 30.0
_PATIENCE: Final = 10.0


class Provider:
    """Acts on ``POST /FLIGHT``, tells on ``GET /FLIGHT`` whether it did, and on ``GET /`` all that it did."""

    def __init__(self) -> None:
        """Nothing was done yet."""
        self.notices: Counter[str] = Counter()
        self.calls = 0
        self.unanswered = 0

    async def answer(self, method: str, flight: str) -> tuple[int, object]:
        """What it answers, after it has acted where it was asked to."""
        if method == "POST":
            self.calls += 1
            self.notices[flight] += 1
            if self.calls % SILENT_IN == 0:
                self.unanswered += 1
                await asyncio.sleep(SILENCE)
                return 503, None
        if flight:
            return (200, self.notices[flight]) if self.notices[flight] else (404, None)
        return 200, {"notices": self.notices, "unanswered": self.unanswered}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request, one connection."""
        try:
            async with asyncio.timeout(_PATIENCE):
                head = await reader.readuntil(b"\r\n\r\n")
            method, path, *_ = head.decode("ascii").split()
            status, said = await self.answer(method, path.strip("/"))
            writer.write(f"HTTP/1.0 {status} -\r\n\r\n{json.dumps(said)}".encode())
            await writer.drain()
        except (OSError, ValueError, EOFError, TimeoutError):
            return  # Whoever asked is gone, or asked for nothing.
        finally:
            writer.close()


async def ask(url: str, method: str, flight: str = "") -> tuple[int, Any]:
    """Ask the provider at `url`: its status, and what it said.

    Raises:
        OSError: it is not there.
        ValueError: it hung up without an answer.
    """
    host, _, port = url.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(f"{method} /{flight} HTTP/1.0\r\n\r\n".encode())
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        if not body:
            raise ValueError("the provider hung up without an answer")
        return int(head.split()[1]), json.loads(body)
    finally:
        writer.close()


@contextmanager
def running(log: Path) -> Iterator[str]:
    """Run a provider for the block: its HOST:PORT.

    Raises:
        Unavailable: PR301, it did not start.
    """
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "postroad.demo.provider"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file
        )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        url = process.stdout.readline().decode().strip()
        if not url:
            raise Unavailable("PR301", f"the demo's provider did not start: see {log}")
        yield url
    finally:
        process.kill()  # It keeps nothing.
        process.stdin.close()
        process.stdout.close()
        process.wait()


async def main() -> None:
    """Serve on a port of the system's choice, printed first, until standard input ends."""
    server = await asyncio.start_server(Provider().serve, "127.0.0.1", 0)
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    sys.stdout.write(f"127.0.0.1:{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await reader.read()
    server.close()


if __name__ == "__main__":
    asyncio.run(main())
