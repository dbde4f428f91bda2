"""Export a session as an ATIF trajectory or as a line of training data. The contract is docs/trajectories.md.

Contains both formats (`atif`, `sft`), the session as they read it (`story`, `history`), and the removal of secrets
(`clean`).
"""
