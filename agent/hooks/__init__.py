"""Answer other agents that say "done" with a verdict: their stop hooks, and what installs these."""
