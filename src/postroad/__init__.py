"""Postroad: reliable messaging, workers and scheduled jobs on PostgreSQL and RabbitMQ."""
