"""The model room: one dialect on the wire, one client that pays for every call, two transports."""
