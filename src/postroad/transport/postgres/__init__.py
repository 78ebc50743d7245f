"""The transport on PostgreSQL alone: subscriptions in a table, deliveries as rows of work."""

from __future__ import annotations

from postroad.transport.postgres.transport import PostgresTransport, TransportService

__all__ = ["PostgresTransport", "TransportService"]
