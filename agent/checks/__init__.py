"""The checks that a repository declares, such as linters, type checkers and a build: which a patch makes worse."""
