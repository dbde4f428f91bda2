"""Run benchmarks: read their data, build environments, make attempts, grade patches and write reports.

Contains the data readers (`data`), container images (`environments`), runs (`run`, `cluster`), grading
(`grade`), reports (`report`) and the making of new benchmarks (`create`).
"""
