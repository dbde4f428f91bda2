"""A session as others read it: an ATIF trajectory, a line of training data. The contract is docs/trajectories.md."""
