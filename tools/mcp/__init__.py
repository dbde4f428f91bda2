"""Tools of other programs, by the Model Context Protocol. They run outside the sandbox: only servers that the user named."""
