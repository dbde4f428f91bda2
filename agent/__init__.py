"""Fix issues with a language model, for the command line, for Python or for an editor.

Contains the issue, the packed context, the loop, stall detection, the session and its log, verification, and reports.
"""
