import json
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.request import urlopen

import pika
import pytest
from pika.exceptions import ProbableAccessDeniedError, ProbableAuthenticationError

from postroad.errors import Unavailable
from postroad.testing.installed import rabbitmq_remedy
from postroad.testing.process import listens
from postroad.testing.rabbitmq import RabbitAddress, RabbitNode

PERSISTENT = pika.BasicProperties(delivery_mode=2)


def connect(url):
    return pika.BlockingConnection(pika.URLParameters(url))


def publish_one(url, queue="kept"):
    with connect(url) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum"})
        channel.basic_publish("", queue, b"body", PERSISTENT, mandatory=True)


def test_an_address_survives_the_way_through_json(rabbit):
    assert RabbitAddress.from_json(rabbit.address.to_json()) == rabbit.address


def test_a_url_quotes_its_parts(rabbit):
    assert rabbit.url("/", "a:b", "c@d", port=1) == "amqp://a%3Ab:c%40d@127.0.0.1:1/%2F"


def test_a_virtual_host_of_its_own_carries_a_quorum_queue(vhost):
    publish_one(vhost)
    with connect(vhost) as connection:
        method, _, body = connection.channel().basic_get("kept", auto_ack=True)
        assert method is not None
        assert body == b"body"


def test_virtual_hosts_do_not_see_each_other(rabbit, vhost):
    publish_one(vhost)
    other = rabbit.add_vhost("other-one")
    with connect(other) as connection, pytest.raises(pika.exceptions.ChannelClosedByBroker, match="NOT_FOUND"):
        connection.channel().queue_declare("kept", passive=True)
    rabbit.drop_vhost("other-one")


def test_a_user_is_held_to_its_permissions(rabbit, vhost):
    name = vhost.rpartition("/")[2]
    url = rabbit.add_user("reader", "secret", configure="", write="", read=".*", vhost=name)
    with connect(url) as connection, pytest.raises(pika.exceptions.ChannelClosedByBroker, match="ACCESS_REFUSED"):
        connection.channel().queue_declare("mine", durable=True)
    with pytest.raises(ProbableAuthenticationError):
        connect(rabbit.url(name, "reader", "wrong"))
    with pytest.raises(ProbableAccessDeniedError):
        connect(rabbit.url("/", "reader", "secret"))


def test_a_name_with_quotes_is_a_name(rabbit):
    url = rabbit.add_vhost('odd"\\name')
    with connect(url):
        pass
    rabbit.drop_vhost('odd"\\name')


def test_an_expression_the_node_refuses_is_unavailable(rabbit):
    assert rabbit.evaluate("1 + 1") == "2"
    with pytest.raises(Unavailable, match="refused"):
        rabbit.evaluate("nosuch:function()")


def test_many_may_act_on_a_node_at_once(rabbit):
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(rabbit.evaluate, [f"begin timer:sleep(20), {number} end" for number in range(32)]))
    assert answers == [str(number) for number in range(32)]


def test_rabbitmqctl_speaks_to_the_node(rabbit):
    assert "guest" in rabbit.ctl("list_users")
    with pytest.raises(Unavailable, match="rabbitmqctl nonsense failed"):
        rabbit.ctl("nonsense")


def test_where_a_node_can_be_started_there_is_no_remedy(monkeypatch):
    assert rabbitmq_remedy() is None
    monkeypatch.setenv("PATH", "/nowhere")
    remedy = rabbitmq_remedy()
    assert remedy is not None
    assert "\n" not in remedy


@pytest.mark.heavy
@pytest.mark.timeout(180)
def test_a_node_of_our_own_is_killed_paused_restarted_and_leaves_nothing():
    with RabbitNode(management=True) as node:
        assert int(node.evaluate("list_to_integer(os:getpid())")) == node.pid
        publish_one(node.url())
        with urlopen(f"http://127.0.0.1:{node.address.management_port}/api/index.html") as page:
            assert page.status == 200

        node.pause()
        with socket.create_connection(("127.0.0.1", node.port), 5) as line:
            line.sendall(b"AMQP\x00\x00\x09\x01")
            line.settimeout(0.5)
            with pytest.raises(TimeoutError):
                line.recv(1)
            node.resume()
            line.settimeout(30)
            assert line.recv(1) == b"\x01"

        node.kill()
        assert not listens(node.port)
        node.start()
        with connect(node.url()) as connection:
            method, _, _ = connection.channel().basic_get("kept")
            assert method is not None

        pid, home, epmd = node.pid, Path(node.address.home), node.address.epmd_port
        assert listens(epmd)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert not home.exists()
    assert not listens(epmd)


@pytest.mark.heavy
def test_a_node_that_cannot_start_says_why():
    with pytest.raises(Unavailable, match="RabbitMQ did not start"):
        RabbitNode(settings={"no.such.setting": "1"}).__enter__()


def test_an_address_is_plain_json(rabbit):
    assert json.loads(rabbit.address.to_json())["port"] == rabbit.port
