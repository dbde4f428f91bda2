"""The agent loop: ask the model, run its tool calls, compact the conversation, check whether it is done.

The loop uses interfaces for model, tools and log, so that tests run it without a server or a sandbox.
"""
