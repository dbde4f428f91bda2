"""Engine ``embedded``: a search-based program repairer behind an OpenAI-compatible server on loopback.

It needs no GPU and is no language model: it runs the tests, localises the fault, tries general edits and lets
the tests judge them. Wherever it is named, it is named ``m3agent-embedded``.
"""
