"""Verify a patch whoever made it, and check certificates: `m3agent verify`."""
