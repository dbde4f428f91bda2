"""The repository as one text for the model: listing, harmless text, packing."""
