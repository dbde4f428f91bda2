"""The user's MCP servers: which are configured and trusted, and their tools as part of a session.

The protocol itself is in `m3agent.tools.mcp`.
"""
