"""Convert a server's answer, in any dialect, to a message.

Contains the accumulator of a stream's chunks and the parsers for each dialect's text, calls, usage and
errors.
"""
