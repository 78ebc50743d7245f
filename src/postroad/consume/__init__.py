"""Consumers: what an author declares, and what runs it from delivery to ack."""

from postroad.consume.attempt import Attempts
from postroad.consume.consumer import Consumer, consumer, consumer_of
from postroad.consume.delivery import Delivery
from postroad.consume.entrusted import EntrustedAttempts
from postroad.consume.legacy import Properties, cloud_event
from postroad.consume.retries import Retries
from postroad.consume.service import ConsumerService

__all__ = [
    "Attempts",
    "Consumer",
    "ConsumerService",
    "Delivery",
    "EntrustedAttempts",
    "Properties",
    "Retries",
    "cloud_event",
    "consumer",
    "consumer_of",
]
