"""The App and what keeps it running."""
