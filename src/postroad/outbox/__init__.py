"""The outbox: staging events in the author's transaction, and dispatching them once it has committed."""
