"""Adapters: m3agent as an agent of Harbor, Verifiers, NeMo Gym and Inspect. docs/integrations.md says how to use them."""
