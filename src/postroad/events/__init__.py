"""Events: what a producer owns and promises, what a consumer reads, and the envelope that travels between them."""

from postroad.events.catalog import Catalog
from postroad.events.envelope import Envelope
from postroad.events.event_type import Compatibility, EventType, Keep, Subscribers, event_type_of
from postroad.events.producer import Producer
from postroad.events.sensitive import Sensitive
from postroad.events.subscription import Subscription, as_subscription

__all__ = [
    "Catalog",
    "Compatibility",
    "Envelope",
    "EventType",
    "Keep",
    "Producer",
    "Sensitive",
    "Subscribers",
    "Subscription",
    "as_subscription",
    "event_type_of",
]
