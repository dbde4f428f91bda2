"""General edits that reverse ordinary programming mistakes.

Each module contains operators for one kind of code; `base` defines their input and output.
"""
