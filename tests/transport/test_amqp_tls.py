"""TLS to the broker: both ends are verified, and a rotated certificate is taken up by the next connection."""

from __future__ import annotations

import json
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import pairwise
from pathlib import Path
from threading import Thread
from time import monotonic
from typing import Any

import pytest

from certificates import Authority
from postroad.clock import seconds
from postroad.errors import AccessRefused, SettingsError, Unavailable
from postroad.runtime.exits import Exit
from postroad.signals.catalog import ConnectionDown, ConnectionUp
from postroad.testing.servers import RabbitNode, free_port
from postroad.transport.amqp.connection import Address
from postroad.transport.amqp.management import Management
from postroad.transport.amqp.tls import Tls
from postroad.transport.base import Settlement
from runtime.processes import Running, postroad
from support import until

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(120)]
CLOSE_ALL = '[rabbit_networking:close_connection(Each, "rotated") || Each <- rabbit_networking:connections()]'


@dataclass
class Place:
    """A node that demands certificates, what lies on its disk, and our own copies."""

    node: RabbitNode
    port: int
    folder: Path
    ours: Path
    other: Authority

    def url(self, host: str = "localhost", scheme: str = "amqps") -> str:
        return f"{scheme}://guest:hush-pw@{host}:{self.port}/%2F"

    @property
    def tls(self) -> Tls:
        return Tls(ca=str(self.ours / "ca.pem"), certificate=str(self.ours / "us.pem"), key=str(self.ours / "us.key"))

    def install(self, authority: Authority) -> None:
        """Put an authority and certificates of it on both disks."""
        for folder, name in ((self.folder, "broker"), (self.ours, "us")):
            certificate, key = authority.issue(name)
            shutil.copy(authority.certificate, folder / "ca.pem")
            shutil.copy(certificate, folder / f"{name}.pem")
            shutil.copy(key, folder / f"{name}.key")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    root = tmp_path_factory.mktemp("tls")
    folder, ours, port = root / "broker", root / "ours", free_port()
    folder.mkdir()
    ours.mkdir()
    settings = {
        "listeners.ssl.1": f"127.0.0.1:{port}",
        "ssl_options.cacertfile": str(folder / "ca.pem"),
        "ssl_options.certfile": str(folder / "broker.pem"),
        "ssl_options.keyfile": str(folder / "broker.key"),
        "ssl_options.verify": "verify_peer",
        "ssl_options.fail_if_no_peer_cert": "true",
        "default_pass": "hush-pw",
    }
    here = Place(RabbitNode(settings=settings), port, folder, ours, Authority(root / "other", "other"))
    here.install(Authority(root / "first", "first"))
    with here.node:
        yield here


async def refused(line_of: Any, url: str, tls: Tls) -> str:
    """The one line with which a first connection is refused."""
    with pytest.raises(AccessRefused) as caught:
        await line_of(url, tls=tls).transport.connect()
    text = str(caught.value)
    assert "\n" not in text
    assert "hush" not in text
    return text


async def test_the_right_authority_and_name_carry_an_event(place: Place, line_of: Any, topology: Any) -> None:
    line = line_of(place.url(), tls=place.tls)
    await line.transport.apply(topology)
    await line.start()
    (settled,) = await line.outcomes(line.message())
    assert settled.settlement is Settlement.CONFIRMED
    await line.stop()


async def test_another_authority_is_refused(place: Place, line_of: Any) -> None:
    for ca in (str(place.other.certificate), None):
        text = await refused(line_of, place.url(), Tls(ca=ca, certificate=place.tls.certificate, key=place.tls.key))
        assert "not trusted" in text
        assert "POSTROAD_BROKER_CA" in text


async def test_another_host_name_is_refused(place: Place, line_of: Any) -> None:
    text = await refused(line_of, place.url("127.0.0.1"), place.tls)
    assert "127.0.0.1" in text
    assert "not trusted (IP address mismatch" in text


async def test_a_certificate_that_the_broker_does_not_know_is_refused_and_so_is_none(
    place: Place, line_of: Any
) -> None:
    certificate, key = place.other.issue("stranger")
    for tls in (Tls(ca=place.tls.ca, certificate=str(certificate), key=str(key)), Tls(ca=place.tls.ca)):
        text = await refused(line_of, place.url(), tls)
        assert "POSTROAD_BROKER_CERT" in text


async def test_a_port_that_speaks_no_tls_is_refused(place: Place, line_of: Any) -> None:
    url = place.url().replace(str(place.port), str(place.node.port))
    assert "TLS listener" in await refused(line_of, url, place.tls)


@pytest.mark.sabotage
async def test_without_verification_any_authority_would_do(place: Place, line_of: Any, monkeypatch: Any) -> None:
    verified = Tls.context

    def trusting(self: Tls) -> ssl.SSLContext:
        context = verified(self)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context

    monkeypatch.setattr(Tls, "context", trusting)
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        await test_another_host_name_is_refused(place, line_of)


# --- rotation -------------------------------------------------------------------------------------------------------


async def rotated_while_it_runs(place: Place, line_of: Any, topology: Any, tmp_path: Path) -> None:
    """All certificates are replaced by those of another authority, connections end, and publishes go on."""
    line = line_of(place.url(), tls=place.tls)
    await line.transport.apply(topology)
    await line.start()
    place.install(Authority(tmp_path, "next"))
    place.node.evaluate("ssl:clear_pem_cache()")
    line.heard.forget()
    place.node.evaluate(CLOSE_ALL)
    try:
        await line.heard.wait(ConnectionUp, within=10)
        await until(lambda: line.publisher.writable)
        assert [settled.settlement for settled in await line.outcomes(line.message())] == [Settlement.CONFIRMED]
    finally:
        await line.stop()


async def test_a_rotated_certificate_works_without_a_restart(
    place: Place, line_of: Any, topology: Any, tmp_path: Path
) -> None:
    await rotated_while_it_runs(place, line_of, topology, tmp_path)


@pytest.mark.sabotage
async def test_certificates_that_were_read_once_would_keep_it_out(
    place: Place, line_of: Any, topology: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    once = place.tls.context()
    monkeypatch.setattr(Tls, "context", lambda _: once)
    with pytest.raises(TimeoutError):
        await rotated_while_it_runs(place, line_of, topology, tmp_path)


async def test_a_certificate_that_is_wrong_for_a_while_is_told_and_tried_again(
    place: Place, line_of: Any, topology: Any
) -> None:
    line = line_of(place.url(), tls=place.tls)
    await line.transport.apply(topology)
    await line.start()
    whole = (place.ours / "ca.pem").read_bytes()
    line.heard.forget()
    for wrong in (b"", b"-----BEGIN CERTIFICATE-----\nhalf", place.other.certificate.read_bytes()):
        (place.ours / "ca.pem").write_bytes(wrong)
        place.node.evaluate(CLOSE_ALL)
        expected = "not trusted" if wrong.endswith(b"END CERTIFICATE-----\n") else "POSTROAD_BROKER_CA: no certificates"
        down = await line.heard.wait(ConnectionDown, lambda signal, text=expected: text in signal.reason)
        assert "\n" not in down.reason
    assert not line.publisher.writable
    (place.ours / "ca.pem").write_bytes(whole)
    await line.heard.wait(ConnectionUp)
    await until(lambda: line.publisher.writable)
    await line.stop()


async def test_a_broker_that_is_not_trusted_is_not_asked_in_a_hot_loop(
    place: Place, line_of: Any, topology: Any, monkeypatch: Any
) -> None:
    with monkeypatch.context() as certain:
        certain.setattr("random.random", lambda: 0.999)  # The longest wait that the jitter allows.
        line = line_of(place.url(), tls=place.tls, first=seconds(0.2), most=seconds(30))
    await line.transport.apply(topology)
    await line.start()
    whole, times = (place.ours / "ca.pem").read_bytes(), []
    line.signals.subscribe(lambda signal: times.append(monotonic()) if isinstance(signal, ConnectionDown) else None)
    (place.ours / "ca.pem").write_bytes(place.other.certificate.read_bytes())
    place.node.evaluate(CLOSE_ALL)
    await line.heard.wait(ConnectionDown, count=5)
    (place.ours / "ca.pem").write_bytes(whole)
    await line.stop()
    gaps = [later - sooner for sooner, later in pairwise(times[:5])]
    assert all(gap > 0.19 * 2**number for number, gap in enumerate(gaps))


# --- bad input ------------------------------------------------------------------------------------------------------


def test_files_that_are_no_certificates_name_their_setting(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hush")
    authority = Authority(tmp_path / "a")
    certificate, key = authority.issue("us")
    text, whole = str(tmp_path / "text"), str(certificate)
    locked = tmp_path / "locked.key"
    command = ["openssl", "ec", "-in", str(key), "-out", str(locked), "-aes256", "-passout", "pass:hush"]
    subprocess.run(command, check=True, capture_output=True)
    for tls, setting in (
        (Tls(ca=text), "POSTROAD_BROKER_CA:"), (Tls(ca="/nowhere"), "POSTROAD_BROKER_CA:"),
        (Tls(certificate=text), "POSTROAD_BROKER_CERT:"), (Tls(certificate=whole), "POSTROAD_BROKER_CERT:"),
        (Tls(certificate=whole, key=str(locked)), "POSTROAD_BROKER_CERT and POSTROAD_BROKER_KEY:"),
        (Tls(certificate=whole, key=str(authority.issue("another")[1])), "POSTROAD_BROKER_CERT and POSTROAD_BROKER"),
    ):  # fmt: skip
        with pytest.raises(SettingsError) as caught:
            tls.context()
        assert str(caught.value).startswith(setting)
        assert "hush" not in str(caught.value)


def test_a_url_may_not_switch_verification_off() -> None:
    with pytest.raises(SettingsError, match="ssl_options"):
        Address.of("amqps://guest:hush@localhost/?ssl_options=%7B%27verify_mode%27%3A0%7D")


def test_an_app_and_its_doctor_work_over_tls(place: Place, runtime_url: str) -> None:
    given = {
        "POSTROAD_DATABASE_URL": runtime_url, "POSTROAD_BROKER_URL": place.url(),
        "POSTROAD_BROKER_CA": place.tls.ca or "", "POSTROAD_BROKER_CERT": place.tls.certificate or "",
        "POSTROAD_BROKER_KEY": place.tls.key or "",
    }  # fmt: skip
    with Running("orders:app", **given) as app:
        app.ready()
        assert app.stop() < 10
    findings = json.loads(postroad("doctor", "orders:app", "--json", **given).stdout)["findings"]
    assert {each["name"]: each["severity"] for each in findings}["broker"] == "ok"


@pytest.fixture
def api(place: Place) -> Iterator[str]:
    """The URL of a server over HTTPS that shows its overview to those who trust it."""

    class Overview(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"rabbitmq_version": "4.0.5"}')

        def log_message(self, *_: object) -> None: ...

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(place.folder / "broker.pem", place.folder / "broker.key")
    with HTTPServer(("127.0.0.1", 0), Overview) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"https://u:hush@localhost:{server.server_port}"
        server.shutdown()
        thread.join()


def test_the_management_api_is_verified_by_the_same_authority(place: Place, api: str) -> None:
    assert Management(api, place.tls).get("overview") == {"rabbitmq_version": "4.0.5"}
    for tls in (Tls(ca=str(place.other.certificate)), None):
        with pytest.raises(Unavailable) as caught:
            Management(api, tls).get("overview")
        assert "SSLCertVerificationError" in str(caught.value)
        assert "hush" not in str(caught.value)


def test_a_process_that_does_not_trust_the_broker_ends_at_once_in_one_line(place: Place) -> None:
    given = {"POSTROAD_BROKER_URL": place.url(), "POSTROAD_BROKER_CA": str(place.other.certificate)}
    done = postroad("topology", "verify", "orders:app", **given)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (Exit.REFUSED, "", 1)
    assert "not trusted" in done.stderr
    given["POSTROAD_BROKER_CA"] = f"{place.ours / 'ca.pem'}"
    given |= {"POSTROAD_BROKER_CERT": place.tls.certificate or "", "POSTROAD_BROKER_KEY": place.tls.key or ""}
    assert postroad("topology", "apply", "orders:app", **given).returncode == 0
