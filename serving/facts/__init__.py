"""What m3agent knows about GPUs, engines, recipes, failures and prices, as tables that anyone can correct.

Each TOML file is a table; `table.py` reads them. The rooms above evaluate the rows.
"""
