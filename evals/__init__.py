"""Run benchmarks: read their data, build environments, make attempts, grade patches and write reports.

Contains the data readers (`data`), the code of instances (`code`), container images (`environments`), runs (`run`),
grading (`grade`), reports (`report`) and the making of new benchmarks (`create`).
"""
