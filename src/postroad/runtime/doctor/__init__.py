"""The doctor: looks at what a process stands on, and says what would be lost and what to do."""

from __future__ import annotations

from postroad.runtime.doctor.broker import examine_broker
from postroad.runtime.doctor.checks import CHECKS
from postroad.runtime.doctor.database import examine_database
from postroad.runtime.doctor.deliveries import examine_deliveries
from postroad.runtime.doctor.findings import Check, Finding, Severity
from postroad.runtime.doctor.installation import examine_installation
from postroad.runtime.doctor.managed import examine_management
from postroad.runtime.doctor.subject import Limits, Subject, examine_settings

__all__ = [
    "CHECKS", "Check", "Finding", "Limits", "Severity", "Subject", "examine_broker", "examine_database",
    "examine_deliveries",     "examine_installation", "examine_management", "examine_settings",
]  # fmt: skip
