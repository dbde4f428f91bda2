"""What an agent feels of a model server, measured: waiting for the first token, with and without the prefix cache."""
