"""Compares an authority with what was made of it, and repairs what has drifted."""

from postroad.reconcile.ground import Source, pages
from postroad.reconcile.handled import handled
from postroad.reconcile.reconciliation import Drift, Reconciliation
from postroad.reconcile.resend import resend

__all__ = ["Drift", "Reconciliation", "Source", "handled", "pages", "resend"]
