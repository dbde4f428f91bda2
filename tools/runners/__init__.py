"""Test runners: how the tests of each ecosystem are found, run and read."""
