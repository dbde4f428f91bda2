"""Serve editors over the Agent Client Protocol (ACP).

An editor starts `m3agent acp` and talks to it over stdin and stdout. Contains the agent (`agent`), its sessions (`session`,
`store`), the transport (`pipe`), prompts (`blocks`), and the updates that the editor shows (`updates`).
"""
