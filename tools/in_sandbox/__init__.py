"""Programs that run tests inside the sandbox, with the image's Python and its standard library only."""
