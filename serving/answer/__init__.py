"""What a server answers: from the chunks of a stream, in any dialect, to the message they make."""
