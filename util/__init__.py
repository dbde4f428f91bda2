"""What every other package may use: errors, threads and processes, files, standard folders, printable text.

It imports nothing else of m3agent.
"""
