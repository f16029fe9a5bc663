"""Health, metrics and the document itself, described."""

from __future__ import annotations

from typing import Any

from centuria.gateway.openapi.parts import answer, operation, record

TAGS = {"operation": "For whoever runs the gateway."}

SCHEMAS: dict[str, Any] = {
    "Health": record({"status": {"const": "ok"}}),
    "Readiness": record({"status": {"const": "ready"}}),
}
_HEALTH = {"$ref": "#/components/schemas/Health"}
_READINESS = {"$ref": "#/components/schemas/Readiness"}
_METRICS = {
    "description": "Prometheus's text format, 0.0.4.",
    "content": {"text/plain": {"schema": {"type": "string"}}},
}

PATHS: dict[str, Any] = {
    "/healthz": {
        "get": operation(
            "health", "operation", "Whether the process answers", {200: answer("It does.", _HEALTH)}, public=True
        )
    },
    "/readyz": {
        "get": operation(
            "readiness",
            "operation",
            "Whether requests are taken",
            {200: answer("They are.", _READINESS)},
            text="503 while it shuts down, and while the store cannot be read.",
            public=True,
        )
    },
    "/metrics": {"get": operation("metrics", "operation", "Metrics, for admin keys", {200: _METRICS})},
    "/openapi.json": {
        "get": operation(
            "document",
            "operation",
            "This document",
            {200: answer("OpenAPI 3.1.", {"type": "object", "required": ["openapi", "paths"]})},
            public=True,
        )
    },
}
