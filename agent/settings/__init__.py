"""Declare each setting once, and read its value from flags, environment variables and files.

Flags, documentation and the Python API are made from the declaration in `settings`.
"""
