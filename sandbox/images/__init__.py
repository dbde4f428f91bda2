"""Build the image in which a repository's tests run, with its declared dependencies.

Images are reused while the declaration stays the same.
"""
