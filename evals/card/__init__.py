"""The harness card: several agents behind one model server, on the same instances, with the same budget.

`config` reads the wish, `adapters` knows the agents, `run` makes the attempts, `model` sums them up, and `page` draws them. Each
agent has an ordinary run folder, so `eval report` reads it as well.
"""
