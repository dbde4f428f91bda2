"""Starting an engine and keeping it: the job, the process, its log, its record."""
