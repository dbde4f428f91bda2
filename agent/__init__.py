"""The mind: command line, issue, context, loop, stall, session, verification, report."""
