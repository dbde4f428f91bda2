"""Pack the repository as one text for the model.

Contains the file listing (`files`), the rules for leaving files out (`rules`), escaping and
redaction (`neutralise`, `secrets`), the order of files (`history`), the packing itself (`pack`, `packer`), the choice
of files under a budget (`overflow`, `selection`), and excerpts of files that do not fit (`excerpt`).
"""
