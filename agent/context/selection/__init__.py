"""Choose what to show of a repository that exceeds the budget.

Contains reading and storing of terms (`terms`, `store`), the query made from the issue (`query`), the ranking
(`select`, `imports`, `kinds`), outlines of files (`outline`), and passages of files (`passages`).
"""
