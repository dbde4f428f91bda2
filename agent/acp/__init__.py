"""The Agent Client Protocol: an editor starts `m3agent acp` and drives it over its standard streams."""
