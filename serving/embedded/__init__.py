"""The engine `embedded`: a search-based program repairer behind an OpenAI-compatible server on loopback.

It needs no GPU and is no language model. It runs the tests, localises the fault, tries general edits and lets
the tests judge them. Its model name is ``m3agent-embedded`` everywhere.
"""
