"""Servers and harness for tests: ours and our users'."""
