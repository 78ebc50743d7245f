"""The transport on RabbitMQ by AMQP 0-9-1, on pika, on a thread of its own."""

from __future__ import annotations

import logging

from postroad.transport.amqp.admin import NOT_CHECKED
from postroad.transport.amqp.connection import AmqpSettings
from postroad.transport.amqp.transport import AmqpTransport, TransportService
from postroad.transport.topology import Difference

__all__ = ["NOT_CHECKED", "AmqpSettings", "AmqpTransport", "Difference", "TransportService"]

# pika tells of one lost connection in eight records, some with a traceback; signals tell it once. Whoever wants pika's
# own words sets the level of its logger before or after this import.
if logging.getLogger("pika").level == logging.NOTSET:
    logging.getLogger("pika").setLevel(logging.CRITICAL)
