"""Small helpers without knowledge of agents: concurrency, atomic writes, standard folders, printable text.

They import nothing else of `m3agent.agent`.
"""
