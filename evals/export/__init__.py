"""Write instances in the formats of other programs.

`harbor` writes tasks for Harbor, which `in_harbor` grades there; `export` writes these, and rows for programs that read
SWE-bench.
"""
