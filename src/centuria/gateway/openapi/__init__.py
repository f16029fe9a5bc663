"""The gateway's HTTP interface as an OpenAPI 3.1 document: written by hand, and held against the router by a test."""

from centuria.gateway.openapi.document import PATH, document, routes

__all__ = ["PATH", "document", "routes"]
