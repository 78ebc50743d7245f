"""The servers that tests run on, in one place to import them from."""

from __future__ import annotations

from postroad.testing.cluster import RabbitCluster
from postroad.testing.installed import rabbitmq_remedy
from postroad.testing.postgres import Postgres, PostgresServer
from postroad.testing.process import free_port
from postroad.testing.proxy import TcpProxy
from postroad.testing.rabbitmq import Rabbit, RabbitAddress, RabbitNode

__all__ = [
    "Postgres",
    "PostgresServer",
    "Rabbit",
    "RabbitAddress",
    "RabbitCluster",
    "RabbitNode",
    "TcpProxy",
    "free_port",
    "rabbitmq_remedy",
]
