"""Run benchmarks: read their data, build environments, make attempts, grade patches and write reports.

Contains the data readers (`data`), the code of instances (`code`), container images (`environments`), runs (`run`),
grading (`grade`), reports (`report`), other formats (`export`), the making of new benchmarks (`create`), and how often
verdicts are right (`verdicts`).
"""
