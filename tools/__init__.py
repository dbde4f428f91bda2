"""What the model may call: schemas, validation, execution in a sandbox. Knows nothing of the agent."""
