"""The certificate of a verification: what was tested, how, and what came of it, in the form of an in-toto statement."""
