import socket
import threading

import pytest

from postroad.testing.process import free_port, listens, wait_until
from postroad.testing.proxy import TcpProxy


@pytest.fixture
def echo():
    """The port of a server that sends back what it gets."""
    listener = socket.create_server(("127.0.0.1", 0))

    def talk(connection):
        with connection:
            while data := connection.recv(1024):
                connection.sendall(data)

    def serve():
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=talk, args=(connection,), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    yield listener.getsockname()[1]
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


def dial(proxy):
    connection = socket.create_connection(("127.0.0.1", proxy.port), 5)
    connection.settimeout(5)
    return connection


def ask(connection, text=b"ping"):
    connection.sendall(text)
    return connection.recv(1024)


def test_it_forwards_both_ways(echo):
    with TcpProxy(echo) as proxy, dial(proxy) as connection:
        assert ask(connection) == b"ping"
        assert proxy.connections == 1


def test_a_cut_drops_connections_and_refuses_new_ones_until_healed(echo):
    with TcpProxy(echo) as proxy:
        with dial(proxy) as connection:
            assert ask(connection) == b"ping"
            proxy.cut()
            assert connection.recv(1024) == b""
        assert not listens(proxy.port)
        proxy.heal()
        with dial(proxy) as connection:
            assert ask(connection) == b"ping"


def test_a_stalled_line_accepts_and_is_silent_and_delivers_when_healed(echo):
    with TcpProxy(echo) as proxy, dial(proxy) as old:
        assert ask(old) == b"ping"
        proxy.stall()
        with dial(proxy) as new:
            for connection in (old, new):
                connection.sendall(b"late")
                connection.settimeout(0.2)
                with pytest.raises(TimeoutError):
                    connection.recv(1024)
                connection.settimeout(5)
            proxy.heal()
            assert old.recv(1024) == b"late"
            assert new.recv(1024) == b"late"


def test_a_stalled_line_can_be_cut(echo):
    with TcpProxy(echo) as proxy, dial(proxy) as connection:
        assert ask(connection) == b"ping"
        proxy.stall()
        connection.sendall(b"lost")
        proxy.cut()
        assert connection.recv(1024) == b""


def test_the_end_of_one_side_ends_the_other(echo):
    with TcpProxy(echo) as proxy:
        with dial(proxy) as connection:
            assert ask(connection) == b"ping"
        assert wait_until(lambda: proxy.connections == 0)


def test_a_target_that_is_down_closes_the_connection():
    with TcpProxy(free_port()) as proxy, dial(proxy) as connection:
        assert connection.recv(1024) == b""


def test_no_thread_is_left_after_close(echo):
    proxy = TcpProxy(echo)
    connection = dial(proxy)
    assert ask(connection) == b"ping"
    proxy.close()
    connection.close()
    assert wait_until(lambda: not [each for each in threading.enumerate() if each.name == f"proxy-{proxy.port}"])
