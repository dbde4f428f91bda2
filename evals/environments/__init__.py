"""The surroundings of an instance: images in layers, built from registries and cached by content."""
