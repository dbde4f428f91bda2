"""Plan how to launch M3 on GPUs.

The package contains the documented recipes, the changes that agent work needs in them, the memory model that
decides which plan fits which GPUs, and the table of known failures.
"""
