"""Render sessions as one self-contained HTML page, from their logs (`m3agent report`).

Contains the report's data (`reader`, `model`, `patch`), its plot (`plot`), its texts (`text`, `words`), and the page
(`page`, `template`, `write`).
"""
