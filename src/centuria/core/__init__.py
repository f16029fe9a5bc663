"""The pure cores: small synchronous machines that decide, and strangers to each other. See docs/decisions."""
