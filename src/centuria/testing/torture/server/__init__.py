"""Torture for servers: what an OpenAI-compatible endpoint must get right, tried on a real one."""

from centuria.testing.torture.server.checks import Check, Outcome
from centuria.testing.torture.server.examination import (
    Estimate,
    Finding,
    checks,
    estimate,
    examine,
    findings_as_json,
)
from centuria.testing.torture.server.serving import Obliging

__all__ = [
    "Check",
    "Estimate",
    "Finding",
    "Obliging",
    "Outcome",
    "checks",
    "estimate",
    "examine",
    "findings_as_json",
]
