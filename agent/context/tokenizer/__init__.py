"""Count tokens with the model's tokenizer.

Contains finding a tokenizer (`source`), checking and converting it once (`check`, `files`), and counting with
a file or through the model server (`counter`, `server`).
"""
