"""Read the issue to fix: from text, a file, standard input or an issue tracker, with its images and attachments.

Everything read here is untrusted input.
"""
