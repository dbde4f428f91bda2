"""Verify a patch in a fresh sandbox: run the tests without it and with it, and compare.

Nothing that the model's sandbox wrote except the patch reaches the verification.
"""
