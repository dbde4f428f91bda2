"""Run tool calls in an isolated machine that contains the work tree; independent of the agent.

`new_sandbox` in `backends.factory` makes a sandbox. Its interface is `backends.sandbox.Sandbox`; the errors are in `errors`.
"""
