"""The tokenizer that tokens are counted with: finding it, converting it once, counting."""
