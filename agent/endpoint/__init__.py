"""Choose the model server of a session, and tell the user where code is sent.

`doctor`, `fix` and `eval run` ask the same function.
"""
