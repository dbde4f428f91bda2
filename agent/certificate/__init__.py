"""The certificate of a verification: what was tested, how, and the result, in the form of an in-toto statement."""
