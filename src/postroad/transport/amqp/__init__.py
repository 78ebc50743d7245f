"""The transport on RabbitMQ by AMQP 0-9-1, on pika, on a thread of its own."""

from __future__ import annotations

from postroad.transport.amqp.admin import NOT_CHECKED, Difference
from postroad.transport.amqp.connection import AmqpSettings
from postroad.transport.amqp.transport import AmqpTransport, TransportService

__all__ = ["NOT_CHECKED", "AmqpSettings", "AmqpTransport", "Difference", "TransportService"]
