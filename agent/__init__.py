"""Fix issues with a language model, from the command line, from Python or from an editor.

Contains the command line, the issue, the packed context, the loop, stall detection, the session and its log,
verification, and reports.
"""
