"""Read benchmarks, and read and write the results of runs.

Contains the data model of an instance (`instance`), the readers of each format (`swebench`, `dialects`, `programs`, `harbor`,
`recipe`, `official`), the function that chooses among them (`load`), the files that data names (`files`), and a run's results
(`results`, `run_folder`, `predictions`).
"""
