"""Run tool calls in an isolated machine that contains the work tree; independent of the agent.

`open_sandbox` (in `m3agent.sandbox.backends.factory`) starts a sandbox. Its contract is `m3agent.sandbox.backends.sandbox.Sandbox`;
the errors are in `m3agent.sandbox.errors`.
"""
