"""Tools of other programs, through the Model Context Protocol (MCP).

Contains the connections to servers, the selection of the tools that the model is offered, and the execution
of calls. MCP servers run outside the sandbox; only servers that the user named are started.
"""
