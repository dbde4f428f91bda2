"""Read benchmarks.

Contains the data model of an instance (`instance`), the readers of each format (`rows`, `swebench`,
`programs`,
`recipe`, `official`) and the function that chooses among them (`load`).
"""
