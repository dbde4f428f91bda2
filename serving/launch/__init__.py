"""Start an engine and supervise it.

The package contains the job to start, the ways to start it (process, container, Slurm, several nodes), the
engine's process, the reader of its log, the explanation of failures, and the record of a running server.
"""
