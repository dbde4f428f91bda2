"""Export a session as an ATIF trajectory or as a line of training data. The contract is docs/trajectories.md.

Contains both formats (`atif`, `sft`), the session's messages (`history`), and the removal of secrets (`clean`).
"""
