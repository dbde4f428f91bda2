"""Where tool calls run: an isolated machine with the work tree in it.

`open_sandbox` (in `m3agent.sandbox.open`) starts one; `m3agent.sandbox.base.Sandbox` is its contract; the
errors are in `m3agent.sandbox.errors`. Nothing in this package knows the agent.
"""
