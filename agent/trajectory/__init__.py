"""Export a session as an ATIF trajectory or as a line of training data. The contract is docs/trajectories.md."""
