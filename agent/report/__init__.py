"""Render sessions as one self-contained HTML page, from their logs (`m3agent report`).

Contains the report's data (`reader`, `model`, `patch`), its plots (`plot`, `axis`), its texts (`text`), and the page
(`page`, `template`, `write`).
"""
